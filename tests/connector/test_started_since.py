"""A recovery acts only on what it has checked: not on a query that was started since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations import recovery
from connector.spark.exclusion import exclusive_access
from connector.spark.process import this_process
from connector.spark.recorded_sink import recorded_sink
from tests.connector.test_recovery import left, lose, recovered
from transactional.errors import FencedError, LocationError


@pytest.mark.parametrize("go_back", [False, True])
def test_a_query_that_was_started_since_is_not_rewound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_back: bool
) -> None:
    place = left(tmp_path)
    lose(place, 2)
    build = recorded_sink

    def late(*args: Any) -> Any:
        monkeypatch.setattr(recovery, "recorded_sink", build)
        recovered(place)  # another process has recovered the query, and started it
        place.run(process=this_process(), driver="new")
        place.prepared(2)
        return build(*args)

    monkeypatch.setattr(recovery, "recorded_sink", late)
    with pytest.raises(FencedError, match="QUERY_RUNS"):
        recovered(place, go_back=go_back)
    assert place.files("pending") == [2], "the prepared rows of the query that runs were aborted"


def test_a_file_of_a_query_that_was_started_since_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = left(tmp_path)
    offsets = place.path / "offsets" / "3"
    offsets.write_text("v1\n{")

    @contextmanager
    def late(location: CheckpointLocation) -> Iterator[None]:
        monkeypatch.setattr(recovery, "exclusive_access", exclusive_access)
        recovered(place)  # another process has recovered the query, and started it
        place.run(process=this_process(), driver="new")
        place.prepared(3)
        with exclusive_access(location):
            yield

    monkeypatch.setattr(recovery, "exclusive_access", late)
    with pytest.raises(LocationError, match="LOCATION_BUSY"):
        recovered(place)
    assert offsets.exists()
