"""Where a checkpoint location is."""

from __future__ import annotations

import pickle

import pytest

from connector.spark.location import SINGLE_DRIVER, CheckpointLocation, local_path
from transactional.errors import LocationError, OptionError


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


@pytest.mark.parametrize("location", ["hdfs://host/data", "dbfs:/data", "wasbs://a@b/data", "file://host/data"])
def test_a_location_without_exclusive_create_is_refused_unless_somebody_else_guarantees_one_driver(
    location: str,
) -> None:
    with pytest.raises(OptionError, match=r"NO_EXCLUSIVE_CREATE.*singleDriver=true"):
        CheckpointLocation(location)
    with pytest.raises(OptionError, match="NO_EXCLUSIVE_CREATE"):
        CheckpointLocation.from_options({"checkpointLocation": location, "singledriver": "false"})
    assert CheckpointLocation.from_options({"checkpointLocation": location, "singledriver": "true"}).path == location


def test_a_command_is_told_of_the_one_driver_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SINGLE_DRIVER, "true")
    assert CheckpointLocation("hdfs://host/data/").path == "hdfs://host/data"


def test_a_local_location_has_one_canonical_path() -> None:
    assert CheckpointLocation("file:/data//loc/").path == "/data/loc"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("s3a://bucket/a//b/", "s3://bucket/a/b"),
        ("s3://bucket/a%20b c#1", "s3://bucket/a%20b c#1"),  # Hadoop's Path decodes nothing
        ("S3N://bucket", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfs://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
    ],
)
def test_all_names_of_a_place_in_an_object_store_are_one(location: str, path: str) -> None:
    found = CheckpointLocation.from_options({"checkpointLocation": location, "checkpointRegion": "eu-west-1"})
    assert found.path == path
    assert pickle.loads(pickle.dumps(found)).path == path
    with pytest.raises(LocationError, match=r"LOCATION_NOT_LOCAL.*copy it"):
        found.must_be_local("import-offsets")


@pytest.mark.parametrize("location", ["s3a:///a", "s3a:bucket", "s3a://bucket/../a", "abfss://account/a"])
def test_a_location_that_names_no_folder_of_an_object_store_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="INVALID_LOCATION"):
        CheckpointLocation(location)
