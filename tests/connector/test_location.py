"""Where a checkpoint location is."""

from __future__ import annotations

import pytest

from connector.spark.location import CheckpointLocation, local_path
from transactional.errors import OptionError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/a%20b#1?x", "/data/a%20b#1?x"),  # Hadoop's Path decodes nothing
        ("file:/data/loc;v=1/x", "/data/loc;v=1/x"),
        ("file:///data/a%20b", "/data/a%20b"),
        ("file:///data/loc#1", "/data/loc#1"),
        ("file://localhost/data", "/data"),
        ("file://host/data", None),
        ("s3://bucket/data", None),
        ("relative/path:1", "relative/path:1"),
    ],
)
def test_a_location_is_read_as_hadoop_reads_it(text: str, path: str | None) -> None:
    assert local_path(text) == path


def test_a_location_that_is_not_on_a_local_disk_is_refused() -> None:
    with pytest.raises(OptionError, match="LOCATION_NOT_LOCAL"):
        CheckpointLocation("hdfs://host/data")
    assert CheckpointLocation("file:///data//loc/").path == "/data/loc"
