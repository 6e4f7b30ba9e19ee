"""Where micro-batches end and which carry barriers, over any arrivals and times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.planning.available import Available
from connector.kafka.source.planning.micro_batch import Timing, next_offset
from transactional.barrier import BarrierKind
from transactional.errors import StoreError
from transactional.schedule import Schedule

AT = 1_700_000_000_000
SMALL, LARGE = Partition("t", 0), Partition("t", 1)


class Stream:
    """A topic that only grows and a source that is asked about it, as Spark asks: each end is the next one's start."""

    def __init__(self, schedule: Schedule, limit: int | None) -> None:
        self.schedule, self.limit, self.now = schedule, limit, AT
        self.available: dict[Partition, int] = {}
        self.ends = [SourceOffset({}, {})]

    def append(self, rows: Mapping[Partition, int]) -> None:
        for partition, number in rows.items():
            self.available[partition] = self.available.get(partition, 0) + number

    def ask(self, *, ends: bool = False) -> SourceOffset | None:
        start = SourceOffset.from_json(json.loads(json.dumps(self.ends[-1].to_json())))
        timing = Timing(self.schedule, self.now, ends=ends)
        end = next_offset(Available(start, dict(self.available)), self.limit, timing)
        if end is not None:
            self.ends.append(end)
        return end

    def run(self, steps: Sequence[tuple[int, Mapping[Partition, int]]]) -> None:
        for passed, rows in steps:
            self.now += passed
            self.append(rows)
            self.ask()


arrivals = st.dictionaries(st.builds(Partition, st.just("t"), st.integers(0, 4)), st.integers(0, 9), max_size=4)
steps = st.lists(st.tuples(st.integers(0, 9000), arrivals), max_size=25)
intervals = st.sampled_from([0, 1, 2000, 5000, 30_000])
limits = st.none() | st.integers(1, 20)
unhurried = settings(deadline=None)


@unhurried
@given(intervals, limits, steps)
def test_micro_batches_join_and_never_go_back(
    interval: int, limit: int | None, steps: list[tuple[int, Mapping[Partition, int]]]
) -> None:
    stream = Stream(Schedule(interval), limit)
    stream.run(steps)
    for before, after in pairwise(stream.ends):
        assert {p: before.topics.get(p, 0) for p in after.start} == after.start
        assert set(before.topics) <= set(after.topics)
        assert all(after.topics[p] >= offset for p, offset in after.start.items())
        assert limit is None or sum(after.topics.values()) - sum(after.start.values()) <= limit
        assert after.to_json() != before.to_json()
        assert after.interval == interval
    rows = sum(stream.available.values())
    assert sum(stream.ends[-1].topics.values()) <= rows
    assert limit is not None or sum(stream.ends[-1].topics.values()) == rows


@unhurried
@given(intervals, limits, steps)
def test_barriers_are_numbered_and_say_which_rows_stand_around_them(
    interval: int, limit: int | None, steps: list[tuple[int, Mapping[Partition, int]]]
) -> None:
    stream = Stream(Schedule(interval), limit)
    stream.run(steps)
    at_barrier = stream.ends[0]  # where the last barrier stood
    for before, after in pairwise(stream.ends):
        rows = sum(after.topics.values()) - sum(at_barrier.topics.values())
        if after.barrier == before.barrier:
            assert after.barrier_rows
            assert rows > 0
            assert after.barrier_empty == before.barrier_empty
            continue
        assert after.barrier is not None
        assert after.barrier.number == (before.barrier.number + 1 if before.barrier else 1)
        assert after.barrier.kind is BarrierKind.CHECKPOINT
        assert not after.barrier_rows
        assert after.barrier_empty == (0 if rows else before.barrier_empty + 1)
        at_barrier = after


@unhurried
@given(intervals, limits, steps)
def test_once_asked_no_row_is_longer_than_the_interval_without_a_barrier(
    interval: int, limit: int | None, steps: list[tuple[int, Mapping[Partition, int]]]
) -> None:
    stream = Stream(Schedule(interval), limit)
    for step in steps:
        stream.run([step])
        end = stream.ends[-1]
        if end.barrier_rows:
            assert end.barrier is not None
            assert stream.now - end.barrier.timestamp < interval


@unhurried
@given(intervals, limits, steps, st.lists(st.integers(0, 60_000), min_size=5, max_size=20))
def test_an_idle_query_makes_some_empty_barriers_in_a_row(
    interval: int, limit: int | None, steps: list[tuple[int, Mapping[Partition, int]]], quiet: list[int]
) -> None:
    stream = Stream(Schedule(interval), limit)
    stream.run(steps)
    stream.limit = None
    stream.ask()
    read = len(stream.ends)
    stream.run([(passed, {}) for passed in quiet])
    made = stream.ends[read:]
    assert all(end.topics == end.start == stream.available for end in made)
    empty = [end.barrier_empty for end in made]
    assert not empty or empty == list(range(empty[0], empty[0] + len(empty)))
    assert not made or not made[-1].barrier_rows


@unhurried
@given(intervals, limits, steps, arrivals)
def test_available_now_ends_with_one_final_barrier_whatever_ran_before(
    interval: int,
    limit: int | None,
    steps: list[tuple[int, Mapping[Partition, int]]],
    late: Mapping[Partition, int],
) -> None:
    stream = Stream(Schedule(interval), limit)
    stream.run(steps)
    stream.append(late)
    began = len(stream.ends)
    while stream.ask(ends=True) is not None:
        assert len(stream.ends) < 1200
    made, last = stream.ends[began:], stream.ends[-1]
    if not sum(stream.available.values()):
        assert last.barrier is None
        return
    assert last.barrier is not None
    assert (last.barrier.kind, last.barrier_rows) == (BarrierKind.FINAL, False)
    assert sum(last.topics.values()) == sum(stream.available.values())
    assert [end for end in made if end.barrier and end.barrier.kind is BarrierKind.FINAL] == [last]
    assert [end for end in made if end.topics == end.start] in ([], [last])
    # The next run finds it there, and has nothing to do.
    assert stream.ask(ends=True) is None


def test_partitions_take_turns_under_a_limit_below_their_number_also_between_barriers() -> None:
    stream = Stream(Schedule(3_600_000), limit=2)
    stream.append({Partition("t", number): 6 for number in range(5)})
    for _ in range(15):
        assert stream.ask() is not None
    assert set(stream.ends[5].topics.values()) == {2}
    assert stream.ends[-1].topics == stream.available
    assert stream.ends[-1].barrier == stream.ends[1].barrier


def test_an_empty_barrier_behind_rows_leaves_the_positions() -> None:
    stream = Stream(Schedule(3000), None)
    stream.append({SMALL: 5})
    assert stream.ask() is not None
    stream.append({SMALL: 1, LARGE: 9})
    behind = stream.ask()
    assert behind is not None
    assert behind.barrier_rows
    stream.now += 2999
    assert stream.ask() is None
    stream.now += 1
    end = stream.ask()
    assert end is not None
    assert end.barrier is not None
    assert end.topics == end.start == behind.topics
    assert (end.barrier.number, end.barrier.timestamp) == (2, AT + 3000)
    assert (end.barrier_rows, end.barrier_empty) == (False, 0)


def test_rows_behind_an_empty_barrier_leave_it_an_empty_one() -> None:
    stream = Stream(Schedule(30_000), None)
    stream.run([(0, {SMALL: 1}), (30_000, {}), (1, {SMALL: 1})])
    assert [(end.barrier_rows, end.barrier_empty) for end in stream.ends[1:]] == [
        (False, 0),
        (False, 1),
        (True, 1),
    ]


def test_a_topic_that_ends_before_what_was_read_is_an_error_not_an_empty_barrier() -> None:
    before = replace(SourceOffset({SMALL: 5}, {SMALL: 0}), barrier_rows=True)
    with pytest.raises(StoreError, match="DATA_LOST"):
        next_offset(Available(before, {SMALL: 4}), None, Timing(Schedule(), AT))


def test_a_partition_that_is_new_begins_at_its_first_row() -> None:
    before = SourceOffset({SMALL: 5}, {SMALL: 0})
    available = Available(before, {SMALL: 6, LARGE: 9}, {SMALL: 3, LARGE: 7})
    end = next_offset(available, None, Timing(Schedule(), AT))
    assert end is not None
    assert end.start == {SMALL: 5, LARGE: 7}
    assert end.topics == {SMALL: 6, LARGE: 9}
