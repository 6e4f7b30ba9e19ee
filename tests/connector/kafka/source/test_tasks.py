"""How ranges are divided among tasks."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.client.topics import Partition
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.planning.tasks import divide
from connector.kafka.source.task_limits import TaskLimits
from transactional.errors import LocationError

lengths = st.lists(st.integers(1, 10**6), max_size=12)
limits = st.builds(
    TaskLimits,
    least=st.none() | st.integers(1, 40),
    longest=st.none() | st.integers(50_000, 10**7),
    most=st.none() | st.integers(1, 40),
)


def of_lengths(rows: list[int]) -> list[OffsetRange]:
    return [OffsetRange(Partition("t", number), 7, 7 + length) for number, length in enumerate(rows)]


def sizes(tasks: list[tuple[OffsetRange, ...]]) -> list[list[int]]:
    return [list(map(len, task)) for task in tasks]


@given(lengths, limits)
def test_the_tasks_have_every_offset_once_in_order_and_the_same_tasks_each_time(
    rows: list[int], chosen: TaskLimits
) -> None:
    whole = of_lengths(rows)
    tasks = divide(whole, chosen)
    parts = list(chain.from_iterable(tasks))
    assert parts == sorted(parts)
    assert all(len(part) > 0 for part in parts)
    joined: dict[Partition, OffsetRange] = {}
    for part in parts:
        before = joined.get(part.partition)
        assert before is None or before.end == part.start
        joined[part.partition] = OffsetRange(part.partition, before.start if before else part.start, part.end)
    assert list(joined.values()) == whole
    assert all(one.partition != other.partition for task in tasks for one, other in pairwise(task))
    if chosen.longest is not None:
        assert all(sum(map(len, task)) <= chosen.longest for task in tasks)
    assert tasks == divide(whole, TaskLimits.from_json(chosen.to_json()))


@given(lengths, st.integers(1, 40))
def test_there_are_about_as_many_tasks_as_are_wanted(rows: list[int], least: int) -> None:
    tasks = divide(of_lengths(rows), TaskLimits(least=least))
    assert len(rows) <= len(tasks) <= max(least, len(rows)) + len(rows)
    if len(rows) == 1:
        assert len(tasks) == min(least, rows[0])


def test_small_ranges_stay_whole_and_the_large_ones_share_the_other_tasks() -> None:
    tasks = divide(of_lengths([1, 100, 200]), TaskLimits(least=4))
    assert [(part.partition.number, len(part)) for [part] in tasks] == [(0, 1), (1, 100), (2, 100), (2, 100)]


def test_ranges_are_cut_by_length_first_and_by_number_then() -> None:
    whole = of_lengths([10, 4])
    assert sizes(divide(whole, TaskLimits(longest=4))) == [[3], [3], [4], [4]]
    assert sizes(divide(whole, TaskLimits(least=3, longest=4))) == [[3], [3], [4], [4]]
    assert len(divide(whole, TaskLimits(least=6, longest=4))) >= 6


@given(lengths, st.integers(1, 40))
def test_exactly_so_many_tasks_share_the_ranges_and_no_other_cut_has_a_shorter_longest_task(
    rows: list[int], most: int
) -> None:
    tasks = divide(of_lengths(rows), TaskLimits(most=most))
    assert len(tasks) == min(most, len(rows))
    if rows:
        assert max(sum(map(len, task)) for task in tasks) == shortest(tuple(rows), most)


def shortest(rows: tuple[int, ...], tasks: int) -> int:
    """Of all ways to cut the rows into so many tasks, the length of the longest task of the best."""
    best = [sum(rows[:end]) for end in range(len(rows) + 1)]
    for _ in range(tasks - 1):
        best = [
            min((max(best[cut], sum(rows[cut:end])) for cut in range(end + 1)), default=0)
            for end in range(len(rows) + 1)
        ]
    return best[-1]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (TaskLimits(most=2), [[3, 3], [3, 3]]),
        (TaskLimits(most=3), [[3, 3], [3], [3]]),
        (TaskLimits(most=1), [[3, 3, 3, 3]]),
        (TaskLimits(most=9), [[3], [3], [3], [3]]),
        (TaskLimits(most=1, longest=6), [[3, 3], [3, 3]]),
        (TaskLimits(most=1, longest=2), [[1], [2], [1], [2], [1], [2], [1], [2]]),
        (TaskLimits(most=1, least=3), [[3, 3], [3], [3]]),
        (TaskLimits(most=2, least=2), [[3, 3], [3, 3]]),
    ],
)
def test_the_minimum_and_the_length_of_a_task_win(chosen: TaskLimits, expected: list[list[int]]) -> None:
    assert sizes(divide(of_lengths([3, 3, 3, 3]), chosen)) == expected


def test_parts_of_one_partition_in_one_task_are_one_range() -> None:
    [task] = divide(of_lengths([10]), TaskLimits(most=1, longest=10, least=1))
    assert list(map(len, task)) == [10]
    tasks = divide(of_lengths([1, 9]), TaskLimits(least=4, most=4))
    assert tasks == divide(of_lengths([1, 9]), TaskLimits(least=4))


def test_limits_are_recorded_by_the_names_of_their_options() -> None:
    assert TaskLimits(1, 2, 3).to_json() == {"maxPartitions": 3, "maxRecordsPerPartition": 2, "minPartitions": 1}
    assert TaskLimits().to_json() == {}
    assert TaskLimits.from_json({}) == TaskLimits()
    with pytest.raises(LocationError, match=r"FORMAT_UNKNOWN.*maxBytes"):
        TaskLimits.from_json({"maxBytes": 5})


@pytest.mark.parametrize(
    ("limits", "slots", "offsets", "most"),
    [
        (TaskLimits(), None, 10**9, None),
        (TaskLimits(), 4, 0, 4),
        (TaskLimits(), 4, 400_000, 4),
        (TaskLimits(), 4, 400_001, 5),
        (TaskLimits(most=2), 4, 10**9, 2),
    ],
)
def test_the_session_s_slots_are_the_default_for_tasks_that_are_not_long(
    limits: TaskLimits, slots: int | None, offsets: int, most: int | None
) -> None:
    assert limits.with_slots(slots, offsets).most == most
