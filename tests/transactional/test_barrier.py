"""Which micro-batches close a checkpoint."""

from __future__ import annotations

import json

import pytest

from transactional.barrier import BarrierKind, CheckpointBarrier, barrier_of_line, closes_checkpoint, sources_digest


def line(offset: int, barrier: int | None = 1, **more: object) -> str:
    mark = None if barrier is None else CheckpointBarrier(barrier, BarrierKind.CHECKPOINT, 5).to_json()
    return json.dumps({"source": "barrier-kafka", "topics": {"t": {"0": offset}}, "barrier": mark, **more})


def test_a_barrier_survives_its_json() -> None:
    barrier = CheckpointBarrier(3, BarrierKind.FINAL, 17)
    assert CheckpointBarrier.from_json(json.loads(json.dumps(barrier.to_json()))) == barrier
    assert barrier_of_line(line(1, 3)) == CheckpointBarrier(3, BarrierKind.CHECKPOINT, 5)


@pytest.mark.parametrize("foreign", ["17", "not JSON", '{"t":{"0":4}}', "null", line(1, None)])
def test_a_line_without_our_barrier_has_none(foreign: str) -> None:
    assert barrier_of_line(foreign) is None


@pytest.mark.parametrize(
    ("lines", "previous", "closes"),
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
def test_a_micro_batch_closes_a_checkpoint(lines: list[str], previous: list[str] | None, closes: bool) -> None:
    assert closes_checkpoint(lines, previous) is closes


def test_the_digest_is_over_positions_and_barrier_only() -> None:
    assert sources_digest([line(1, planned=[5])]) == sources_digest([line(1)])
    assert sources_digest([line(2)]) != sources_digest([line(1)])
    assert sources_digest([line(1, 2)]) != sources_digest([line(1, 1)])
    assert sources_digest(['{"a": 1}']) != sources_digest(['{"a":1}'])
    assert sources_digest(["a", "b"]) != sources_digest(["b", "a"])
