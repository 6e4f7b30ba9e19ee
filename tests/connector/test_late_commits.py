"""What a driver that stood still writes into Spark's logs, after a rewind has deleted its micro-batch, is found and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connector.followed_query import FollowedQuery
from tests.connector.test_followed import Capture, does, lose, names


@pytest.fixture
def query(tmp_path: Path) -> FollowedQuery:
    """Micro-batches 0 to 2 are settled checkpoints."""
    return FollowedQuery(tmp_path).start(3)


@pytest.mark.parametrize("planned", [(), (3,), (3, 4)])
def test_a_late_commit_stops_the_next_planning_and_recovery_deletes_it(
    query: FollowedQuery, capsys: Capture, planned: tuple[int, ...]
) -> None:
    """A driver of another machine stood still before it wrote ``commits/N``, until a rewind had deleted it."""
    query.start(2, closes=False)
    lose(query, 3)
    does(capsys, "recover", str(query))
    for batch in planned:  # the next driver was killed before its sink was asked
        (query.path / "offsets" / str(batch)).write_text(query.planned(batch))
    (query.path / "commits" / str(max(planned, default=3))).write_text("v1\n{}")
    assert names(query.refused(), "LOGS_AHEAD", "recover LOCATION")
    does(capsys, "recover", str(query))
    assert query.start(2).has_all_of(0, 1, 2, 3, 4)


def test_a_late_commit_is_found_before_a_start(query: FollowedQuery, capsys: Capture) -> None:
    """Spark would take the micro-batch for done, and ask no sink while there are no new rows."""
    query.start(closes=False)
    lose(query, 3)
    does(capsys, "recover", str(query))
    for log in ("offsets", "commits"):
        (query.path / log / "3").write_text(query.planned(3))
    does(capsys, "recover", str(query))
    assert not (query.path / "commits" / "3").exists()
    assert query.start().has_all_of(0, 1, 2, 3)


def test_what_spark_has_committed_and_no_rewind_ever_deleted_is_not_taken_back(query: FollowedQuery) -> None:
    """The journal is an older copy of itself: going back would write again what is committed."""
    for log in ("offsets", "commits"):
        (query.path / log / "3").write_text(query.planned(3))
    assert query.refused().condition == "BATCHES_NOT_ACCOUNTED"
