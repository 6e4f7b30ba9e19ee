"""When a barrier is due: rule by rule, and over any sequence of asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.schedule import EMPTY_BARRIER_MS, EMPTY_BARRIERS, Schedule

CHECKPOINT, FINAL = BarrierKind.CHECKPOINT, BarrierKind.FINAL
AT = 1_700_000_000_000
LAST = CheckpointBarrier(7, CHECKPOINT, AT)


def due(schedule: Schedule, after: int, last: CheckpointBarrier | None = LAST, **more: Any) -> BarrierKind | None:
    """Ask so many milliseconds after the last barrier; no rows unless they are told."""
    return schedule.due(last, AT + after, **{"rows": False, **more})


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(60_000, 60_000)])
def test_the_first_micro_batch_with_rows_carries_a_barrier_whatever_the_interval(schedule: Schedule) -> None:
    assert due(schedule, 0, None, rows=True) is CHECKPOINT
    assert due(schedule, 10**9, None) is None


def test_without_an_interval_every_micro_batch_with_rows_carries_one_at_once() -> None:
    assert due(Schedule(), 0, rows=True) is CHECKPOINT
    assert due(Schedule(), 0) is None


@pytest.mark.parametrize("empty", [0, 1, EMPTY_BARRIERS])
def test_rows_wait_for_the_interval(empty: int) -> None:
    schedule = Schedule(3000)
    assert due(schedule, 2999, empty=empty, rows=True) is None
    assert due(schedule, 3000, empty=empty, rows=True) is CHECKPOINT


def test_the_pause_counts_from_the_end_of_the_checkpoint() -> None:
    schedule = Schedule(3000, 2000)
    assert due(schedule, 5999, rows=True, completed=AT + 4000) is None
    assert due(schedule, 6000, rows=True, completed=AT + 4000) is CHECKPOINT
    assert due(schedule, 2500, rows=True, completed=AT) is None, "the interval counts all the same"


def test_the_pause_counts_from_the_barrier_where_nobody_saw_its_checkpoint_completed() -> None:
    assert due(Schedule(0, 2000), 1999, rows=True) is None
    assert due(Schedule(0, 2000), 2000, rows=True) is CHECKPOINT


@pytest.mark.parametrize(
    ("schedule", "wait"),
    [(Schedule(), EMPTY_BARRIER_MS), (Schedule(3000), EMPTY_BARRIER_MS), (Schedule(60_000), 60_000)],
)
def test_a_quiet_source_makes_some_empty_barriers_each_after_twice_the_time(schedule: Schedule, wait: int) -> None:
    assert due(schedule, wait - 1) is None
    assert due(schedule, wait) is CHECKPOINT
    assert due(schedule, 2 * wait - 1, empty=1) is None
    assert due(schedule, 2 * wait, empty=1) is CHECKPOINT
    assert due(schedule, 8 * wait, empty=3) is CHECKPOINT
    assert due(schedule, 10**12, empty=EMPTY_BARRIERS) is None


def test_the_empty_barrier_keeps_the_pause_too() -> None:
    schedule = Schedule(0, 60_000)
    assert due(schedule, 60_999, completed=AT + 1000) is None
    assert due(schedule, 61_000, completed=AT + 1000) is CHECKPOINT


def test_a_clock_that_went_back_lets_nothing_wait() -> None:
    schedule = Schedule(3000, 3000)
    assert due(schedule, -1, rows=True, completed=AT + 10) is CHECKPOINT
    assert due(schedule, -1, completed=AT + 10) is CHECKPOINT
    assert due(schedule, -1, empty=EMPTY_BARRIERS) is None


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(60_000, 60_000)])
def test_at_its_target_a_query_ends_with_a_final_barrier(schedule: Schedule) -> None:
    final = CheckpointBarrier(7, FINAL, AT)
    assert due(schedule, 0, rows=True, at_target=True) is FINAL
    assert due(schedule, 0, None, rows=True, at_target=True) is FINAL
    assert due(schedule, 0, final, rows=True, at_target=True) is FINAL
    # Nothing new; the run before read everything, and its end is not a final barrier.
    assert due(schedule, 0, at_target=True) is FINAL
    assert due(schedule, 0, empty=1, at_target=True) is FINAL
    assert due(schedule, 0, final, rows=True, at_target=True) is FINAL
    # Its end is one, or it never had a row.
    assert due(schedule, 10**9, final, at_target=True) is None
    assert due(schedule, 10**9, None, at_target=True) is None


@dataclass(frozen=True)
class Source:
    """What a source remembers between two asks."""

    last: CheckpointBarrier | None = None
    empty: int = 0
    rows_since: bool = False
    completed: int | None = None

    def ask(self, schedule: Schedule, now: int, rows: bool) -> tuple[Source, BarrierKind | None]:
        """Take rows, or none, as the reader does."""
        known = self if self.last is None or self.completed is not None else replace(self, completed=now)
        kind = schedule.due(
            known.last,
            now,
            rows=rows or known.rows_since,
            empty=known.empty,
            completed=known.completed,
        )
        if kind is None:
            return replace(known, rows_since=known.rows_since or rows), None
        number = known.last.number + 1 if known.last else 1
        return Source(CheckpointBarrier(number, kind, now), 0 if rows or known.rows_since else known.empty + 1), kind


schedules = st.builds(Schedule, st.integers(0, 20_000), st.integers(0, 20_000))
asks = st.lists(st.tuples(st.integers(0, 15_000), st.booleans()), max_size=60)
unhurried = settings(deadline=None)


@unhurried
@given(schedules, asks)
def test_no_row_waits_longer_than_interval_and_pause(schedule: Schedule, asks: list[tuple[int, bool]]) -> None:
    source, now = Source(), AT
    for passed, rows in asks:
        now += passed
        source, _ = source.ask(schedule, now, rows)
        if source.rows_since:
            assert source.last is not None
            assert source.completed is not None
            assert now - source.last.timestamp < schedule.interval_ms or now - source.completed < schedule.min_pause_ms


@unhurried
@given(schedules, asks)
def test_two_barriers_keep_interval_and_pause(schedule: Schedule, asks: list[tuple[int, bool]]) -> None:
    source, now = Source(), AT
    for passed, rows in asks:
        now += passed
        before = source
        source, kind = source.ask(schedule, now, rows)
        if kind is not None and before.last is not None:
            seen_completed = now if before.completed is None else before.completed
            assert now - before.last.timestamp >= schedule.interval_ms
            assert now - seen_completed >= schedule.min_pause_ms


@unhurried
@given(schedules, asks, st.lists(st.integers(0, 100_000), min_size=20, max_size=40))
def test_a_quiet_source_makes_at_most_one_barrier_for_its_rows_and_some_empty_ones(
    schedule: Schedule, asks: list[tuple[int, bool]], quiet: list[int]
) -> None:
    source, now = Source(), AT
    for passed, rows in asks:
        now += passed
        source, _ = source.ask(schedule, now, rows)
    made = []
    for passed in quiet:
        now += passed
        source, kind = source.ask(schedule, now, rows=False)
        made += [source.empty] if kind else []
    assert not made or made == list(range(made[0], made[0] + len(made)))
    assert not made or made[-1] <= EMPTY_BARRIERS


@unhurried
@given(asks)
def test_without_interval_and_pause_no_row_ever_waits(asks: list[tuple[int, bool]]) -> None:
    source, now = Source(), AT
    for passed, rows in asks:
        now += passed
        source, kind = source.ask(Schedule(), now, rows)
        assert not source.rows_since
        assert kind is CHECKPOINT or not rows
