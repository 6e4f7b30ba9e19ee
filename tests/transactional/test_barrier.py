"""Which micro-batches close a checkpoint."""

from __future__ import annotations

import json

import pytest

from tests.transactional.bodies import lines
from transactional.barrier import (
    BarrierKind,
    CheckpointBarrier,
    SourceLine,
    closes_checkpoint,
    cut_of,
    sources_digest,
)


def line(offset: int, barrier: int | None = 1, **more: object) -> str:
    mark = None if barrier is None else CheckpointBarrier(barrier, BarrierKind.CHECKPOINT, 5).to_json()
    return json.dumps({"source": "barrier-kafka", "topics": {"t": {"0": offset}}, "barrier": mark, **more})


def test_a_barrier_survives_its_json() -> None:
    barrier = CheckpointBarrier(3, BarrierKind.FINAL, 17)
    assert CheckpointBarrier.from_json(json.loads(json.dumps(barrier.to_json()))) == barrier
    assert SourceLine.parse(line(1, 3)).barrier == CheckpointBarrier(3, BarrierKind.CHECKPOINT, 5)


@pytest.mark.parametrize("foreign", ["17", "not JSON", '{"t":{"0":4}}', "null", line(1, None)])
def test_a_line_without_our_barrier_has_none(foreign: str) -> None:
    assert SourceLine.parse(foreign).barrier is None


@pytest.mark.parametrize(
    ("now", "previous", "closes"),
    [
        ([line(1)], None, True),
        ([line(2, 2)], [line(1, 1)], True),
        ([line(2, 1)], [line(1, 1)], False),
        ([line(1, 1)], [line(1, 1)], True),
        (["17"], ["16"], True),
        ([line(2, 1), "17"], [line(1, 1), "17"], True),
        ([line(2, 1), line(2, 1)], [line(1, 1), line(2, 1)], False),
        ([line(2, 1), line(2, 2)], [line(1, 1), line(2, 1)], True),
        ([line(2, 1), line(2, 1)], [line(1, 1)], True),
    ],
    ids=["first", "new barrier", "none", "no data", "foreign", "one foreign", "two sources", "one of two", "added"],
)
def test_a_micro_batch_closes_a_checkpoint(now: list[str], previous: list[str] | None, closes: bool) -> None:
    before = None if previous is None else lines(*previous)
    assert closes_checkpoint(lines(*now), before) is closes


def cut(exact: bool = True, toward: dict[str, int] | None = None, **lineage: int) -> dict[str, object]:
    return {"lineage": lineage, "exact": exact, "waited": {"m": 5}, **({"toward": toward} if toward else {})}


def test_no_checkpoint_ends_between_two_barriers_of_other_queries() -> None:
    within = line(2, None, cut=cut(False, {"m": 7}))
    assert not closes_checkpoint(lines(within), None)
    assert not closes_checkpoint(lines(within), lines(within)), "a no-data micro-batch"
    assert closes_checkpoint(lines(line(3, 1, cut=cut())), lines(within))
    assert closes_checkpoint(lines(line(3, None, cut=cut(False))), None), "one that reads past barriers"
    assert not closes_checkpoint(lines(line(2, 1, cut=cut(s=2))), lines(line(2, 1, cut=cut(s=1)))), "a cut without rows"


def test_the_lineage_of_sources_that_disagree_is_not_exact() -> None:
    assert cut_of(lines(line(1), "7")) is None
    one = cut_of(lines(line(1, cut=cut(s=2, a=1))))
    assert one == {"lineage": {"a": 1, "s": 2}, "exact": True, "waited": {"m": 5}}
    both = cut_of(lines(line(1, cut=cut(s=2)), line(1, cut=cut(s=3, b=1))))
    assert both == {"lineage": {"b": 1, "s": 2}, "exact": False, "waited": {"m": 5}}
    beyond = cut_of(lines(line(1, cut=cut(False, s=2)), line(1, cut=cut(s=2))))
    assert beyond == {"lineage": {"s": 2}, "exact": False, "waited": {"m": 5}}


def test_the_digest_is_over_positions_and_barrier_only() -> None:
    assert sources_digest(lines(line(1, planned=[5]))) == sources_digest(lines(line(1)))
    assert sources_digest(lines(line(2))) != sources_digest(lines(line(1)))
    assert sources_digest(lines(line(1, 2))) != sources_digest(lines(line(1, 1)))
    assert sources_digest(lines('{"a": 1}')) != sources_digest(lines('{"a":1}'))
    assert sources_digest(lines("a", "b")) != sources_digest(lines("b", "a"))
