"""Filters that Spark hands over narrow what is read, and never leave out a row that passes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from connector.kafka.client.topics import Partition
from connector.kafka.source.pushdown import Narrowing
from connector.kafka.source.ranges import OffsetRange

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, wanted: value == wanted,
    EqualNullSafe: lambda value, wanted: value == wanted,
    GreaterThan: lambda value, wanted: value > wanted,
    GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    LessThan: lambda value, wanted: value < wanted,
    LessThanOrEqual: lambda value, wanted: value <= wanted,
    In: lambda value, wanted: value in wanted,
    StringStartsWith: lambda value, wanted: value.startswith(wanted),
    StringEndsWith: lambda value, wanted: value.endswith(wanted),
    StringContains: lambda value, wanted: wanted in value,
    IsNotNull: lambda value, wanted: True,
    IsNull: lambda value, wanted: False,
}

times = st.integers(0, 40_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))
values: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.text("ab", max_size=2),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 32),
    "timestamp": times,
    "value": st.binary(max_size=1),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(values)))
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNotNull, IsNull]
    if column == "topic":
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    kind: Any = draw(st.sampled_from(kinds))
    if kind in (IsNotNull, IsNull):
        found = kind((column,))
    elif kind is In:
        found = In((column,), tuple(draw(st.lists(values[column], max_size=3))))
    else:
        found = kind((column,), draw(values[column]))
    return Not(found) if draw(st.booleans()) else found


def passes(each: Filter, row: dict[str, Any]) -> bool:
    if isinstance(each, Not):
        return not passes(each.child, row)
    column: str = each.attribute[0]  # type: ignore[attr-defined]
    return bool(COMPARED[type(each)](row[column], getattr(each, "value", None)))


rows = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "ab", "b"]),
        "partition": st.integers(0, 2),
        "offset": st.integers(0, 29),
        "timestamp": st.integers(0, 40).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
        "value": st.binary(max_size=1),
    }
)


@given(st.lists(filters(), max_size=4), rows)
def test_no_row_that_passes_is_left_out(found: list[Filter], row: dict[str, Any]) -> None:
    narrowing = Narrowing(found)
    partition = Partition(row["topic"], row["partition"])
    narrowed = narrowing.narrow(OffsetRange(partition, 0, 30))
    assert 0 <= narrowed.start <= narrowed.end <= 30
    if all(passes(each, row) for each in found):
        assert narrowing.keeps(partition)
        assert narrowed.start <= row["offset"] < narrowed.end
        since = narrowing.since_ms()
        assert since is None or (row["timestamp"] - EPOCH) >= timedelta(milliseconds=since)


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (EqualTo(("topic",), "t"), ["t-0", "t-1"]),
        (StringStartsWith(("topic",), "u"), ["u-0"]),
        (In(("partition",), (1, 5)), ["t-1"]),
        (Not(EqualTo(("partition",), 0)), ["t-1"]),
        (GreaterThan(("partition",), 0), ["t-1"]),
        (EqualTo(("value",), b"x"), ["t-0", "t-1", "u-0"]),
        (EqualTo(("headers", "key"), "t"), ["t-0", "t-1", "u-0"]),
    ],
)
def test_partitions_that_cannot_pass_are_not_read(found: Filter, kept: list[str]) -> None:
    partitions = [Partition("t", 0), Partition("t", 1), Partition("u", 0)]
    assert [str(each) for each in partitions if Narrowing([found]).keeps(each)] == kept


@pytest.mark.parametrize(
    ("found", "start", "end"),
    [
        ([EqualTo(("offset",), 5)], 5, 6),
        ([GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 8)], 6, 9),
        ([In(("offset",), (7, 3))], 3, 8),
        ([GreaterThanOrEqual(("offset",), 20)], 10, 10),
        ([LessThan(("offset",), 0)], 0, 0),
        ([Not(EqualTo(("offset",), 5))], 0, 10),
    ],
)
def test_offsets_that_cannot_pass_are_not_read(found: list[Filter], start: int, end: int) -> None:
    narrowed = Narrowing(found).narrow(OffsetRange(Partition("t", 0), 0, 10))
    assert (narrowed.start, narrowed.end) == (start, end)


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=5)), 5),
        (GreaterThan(("timestamp",), EPOCH + timedelta(milliseconds=5)), 6),
        (GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(microseconds=5001)), 6),
        (GreaterThan(("timestamp",), EPOCH + timedelta(microseconds=5001)), 6),
        (GreaterThanOrEqual(("timestamp",), EPOCH), 0),
        (GreaterThan(("timestamp",), EPOCH - timedelta(milliseconds=2)), None),
        (EqualTo(("timestamp",), EPOCH - timedelta(milliseconds=1)), None),
        (GreaterThan(("timestamp",), EPOCH - timedelta(days=1)), None),
        (LessThan(("timestamp",), EPOCH), None),
    ],
)
def test_a_least_timestamp_is_asked_of_the_brokers(found: Filter, since: int | None) -> None:
    assert Narrowing([found]).since_ms() == since
