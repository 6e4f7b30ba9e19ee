"""Which micro-batches close a checkpoint."""

from __future__ import annotations

import json

import pytest

from tests.transactional.bodies import lines
from transactional.barrier import BarrierKind, CheckpointBarrier, SourceLine, closes_checkpoint, sources_digest


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


def test_the_digest_is_over_positions_and_barrier_only() -> None:
    assert sources_digest(lines(line(1, planned=[5]))) == sources_digest(lines(line(1)))
    assert sources_digest(lines(line(2))) != sources_digest(lines(line(1)))
    assert sources_digest(lines(line(1, 2))) != sources_digest(lines(line(1, 1)))
    assert sources_digest(lines('{"a": 1}')) != sources_digest(lines('{"a":1}'))
    assert sources_digest(lines("a", "b")) != sources_digest(lines("b", "a"))
