"""Divides a micro-batch's ranges among tasks. The result depends only on the ranges and the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.task_limits import TaskLimits


def divide(ranges: Sequence[OffsetRange], limits: TaskLimits) -> list[tuple[OffsetRange, ...]]:
    """Divide ranges among tasks, and return each task's ranges.

    Parameters
    ----------
    ranges : Sequence[OffsetRange]
        Sorted by partition, without empty ranges.
    limits : TaskLimits

    Returns
    -------
    list of tuple of OffsetRange
        The ranges in their order, at most one range per partition in a task. If tasks get several ranges, the longest
        task is as short as possible without changing the order.
    """
    parts = _split(ranges, limits)
    if limits.most is None or len(parts) <= limits.most:
        return [(part,) for part in parts]
    return [_joined(task) for task in _packed(parts, max(limits.most, limits.least or 1), limits.longest)]


def _split(ranges: Sequence[OffsetRange], limits: TaskLimits) -> list[OffsetRange]:
    """Split ranges that are too long into even parts, and return the parts in order.

    Ranges that are longer than `limits.longest` are split first. If there are still fewer parts than `limits.least`, the
    parts are split again, in proportion to their lengths.
    """
    parts = list(ranges)
    if limits.longest is not None:
        parts = [part for whole_range in parts for part in _parts(whole_range, -(-len(whole_range) // limits.longest))]
    if limits.least is None or len(parts) >= limits.least:
        return parts
    total = sum(map(len, parts))
    small = [whole_range for whole_range in parts if _share(len(whole_range), total, limits.least) == 1]
    whole = set(small)
    rest, tasks = total - sum(map(len, small)), max(limits.least - len(small), 1)
    return [
        part
        for whole_range in parts
        for part in _parts(whole_range, 1 if whole_range in whole else _share(len(whole_range), rest, tasks))
    ]


def _share(length: int, total: int, tasks: int) -> int:
    """Return how many of the `tasks` a range gets, in proportion to its length: a rounded number, but at least one."""
    return max(1, (2 * length * tasks + total) // (2 * total))


def _parts(whole: OffsetRange, number: int) -> list[OffsetRange]:
    number = min(number, len(whole))
    cuts = [whole.start + len(whole) * cut // number for cut in range(number + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(cuts)]


def _packed(parts: Sequence[OffsetRange], most: int, longest: int | None) -> list[list[OffsetRange]]:
    """Pack the parts into tasks, in order: into `most` tasks, or more if a task would be longer than `longest`."""
    lengths = [len(part) for part in parts]
    shortest, largest = max(*lengths, -(-sum(lengths) // most)), sum(lengths)
    while shortest < largest:  # find the smallest length of a task with which so few tasks are enough
        middle = (shortest + largest) // 2
        if len(_sizes(lengths, middle)) <= most:
            largest = middle
        else:
            shortest = middle + 1
    capacity = shortest if longest is None else min(shortest, longest)
    rest = iter(parts)
    return [list(islice(rest, size)) for size in _sizes(lengths, capacity, least=min(most, len(parts)))]


def _sizes(lengths: Sequence[int], capacity: int, least: int = 1) -> list[int]:
    """Return how many ranges each task gets, so that no task has over `capacity` offsets, and at least `least` tasks exist."""
    sizes, room = list[int](), 0
    for number, length in enumerate(lengths):
        left = len(lengths) - number  # with this part
        if not sizes or length > room or left <= least - len(sizes):
            sizes.append(0)
            room = capacity
        sizes[-1] += 1
        room -= length
    return sizes


def _joined(task: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Join a task's consecutive parts of the same partition into one range."""
    joined: list[OffsetRange] = []
    for part in task:
        if joined and joined[-1].partition == part.partition:
            joined[-1] = replace(joined[-1], end=part.end)
        else:
            joined.append(part)
    return tuple(joined)
