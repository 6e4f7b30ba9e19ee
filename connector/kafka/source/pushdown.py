"""Filter pushdown: a batch read's filters, as narrower offset ranges. Pure.

Spark evaluates every filter again after the read: a range may be too wide, never too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from connector.kafka.client.topics import Partition
from connector.kafka.source.ranges import OffsetRange

__all__ = ["Narrowing"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Narrowing:
    """The filters of one read; all of them hold at once.

    Parameters
    ----------
    filters : Sequence[Filter]
        As Spark passes them; one about another column than topic, partition, offset or timestamp changes nothing.
    """

    filters: Sequence[Filter] = ()

    def keeps(self, partition: Partition) -> bool:
        """Return whether rows of this partition can pass."""
        return all(
            _holds(each, "topic", partition.topic) and _holds(each, "partition", partition.number)
            for each in self.filters
        )

    def narrow(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range whose offsets can pass; it may be empty."""
        start, end = wanted.start, wanted.end
        for each in self.filters:
            value = _value(each, "offset")
            if type(each) is In and _column(each) == "offset":
                offsets = [number for number in each.value if type(number) is int]
                start, end = max(start, min(offsets, default=end)), min(end, max(offsets, default=start - 1) + 1)
            elif type(value) is not int:
                continue
            elif isinstance(each, (EqualTo, EqualNullSafe)):
                start, end = max(start, value), min(end, value + 1)
            elif isinstance(each, GreaterThan):
                start = max(start, value + 1)
            elif isinstance(each, GreaterThanOrEqual):
                start = max(start, value)
            elif isinstance(each, LessThan):
                end = min(end, value)
            elif isinstance(each, LessThanOrEqual):
                end = min(end, value + 1)
        start = min(start, wanted.end)
        return OffsetRange(wanted.partition, start, max(start, end))

    def since_ms(self) -> int | None:
        """Return the milliseconds since 1970 before which no row can pass; None if the filters set no such limit.

        There is no such end: rows of a topic need not be in order of their timestamps.
        """
        found: list[int] = []
        for each in self.filters:
            value = _value(each, "timestamp")
            if not isinstance(value, datetime) or value.tzinfo is None:
                continue
            micros = (value - _EPOCH) // timedelta(microseconds=1)
            if isinstance(each, GreaterThan):
                found.append(micros // 1000 + 1)
            elif isinstance(each, (GreaterThanOrEqual, EqualTo, EqualNullSafe)):
                found.append(-(-micros // 1000))
        return max([0, *found]) if found else None


def _column(each: Filter) -> str | None:
    path: Sequence[str] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else None


def _value(each: Filter, column: str) -> Any:
    return getattr(each, "value", None) if _column(each) == column else None


def _holds(each: Filter, column: str, value: str | int) -> bool:
    """Return whether a filter may hold if the column has this value, which is not null; True if it is not about it."""
    if isinstance(each, Not):
        # Only a filter that is decided here may be negated: any other may hold either way.
        return not _decides(each.child, column, value) or not _holds(each.child, column, value)
    if not _decides(each, column, value):
        return True
    wanted: Any = each.value  # type: ignore[attr-defined]
    if isinstance(each, In):
        return value in wanted
    if isinstance(each, (EqualTo, EqualNullSafe)):
        return bool(value == wanted)
    if isinstance(each, StringStartsWith):
        return str(value).startswith(wanted)
    if isinstance(each, StringEndsWith):
        return str(value).endswith(wanted)
    if isinstance(each, StringContains):
        return wanted in str(value)
    if isinstance(each, GreaterThan):
        return bool(value > wanted)
    if isinstance(each, GreaterThanOrEqual):
        return bool(value >= wanted)
    if isinstance(each, LessThan):
        return bool(value < wanted)
    return bool(value <= wanted)


def _decides(each: Filter, column: str, value: str | int) -> bool:
    if _column(each) != column:
        return False
    wanted = getattr(each, "value", None)
    if isinstance(each, In):
        return all(type(one) is type(value) for one in wanted or ())
    if isinstance(each, (StringStartsWith, StringEndsWith, StringContains)):
        return isinstance(value, str) and isinstance(wanted, str)
    # Topic names are ASCII: Python sorts them as Spark does.
    known = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    return isinstance(each, known) and type(wanted) is type(value)
