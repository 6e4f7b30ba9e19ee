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
            _holds(condition, "topic", partition.topic) and _holds(condition, "partition", partition.number)
            for condition in self.filters
        )

    def narrow(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range whose offsets can pass; it may be empty."""
        start, end = wanted.start, wanted.end
        for condition in self.filters:
            value = _value(condition, "offset")
            if type(condition) is In and _column(condition) == "offset":
                offsets = [number for number in condition.value if type(number) is int]
                start, end = max(start, min(offsets, default=end)), min(end, max(offsets, default=start - 1) + 1)
            elif type(value) is not int:
                continue
            elif isinstance(condition, (EqualTo, EqualNullSafe)):
                start, end = max(start, value), min(end, value + 1)
            elif isinstance(condition, GreaterThan):
                start = max(start, value + 1)
            elif isinstance(condition, GreaterThanOrEqual):
                start = max(start, value)
            elif isinstance(condition, LessThan):
                end = min(end, value)
            elif isinstance(condition, LessThanOrEqual):
                end = min(end, value + 1)
        start = min(start, wanted.end)
        return OffsetRange(wanted.partition, start, max(start, end))

    def since_ms(self) -> int | None:
        """Return the milliseconds since 1970 before which no row can pass; None if the filters set no such limit.

        There is no such end: rows of a topic need not be in order of their timestamps.
        """
        limits: list[int] = []
        for condition in self.filters:
            value = _value(condition, "timestamp")
            if not isinstance(value, datetime) or value.tzinfo is None:
                continue
            micros = (value - _EPOCH) // timedelta(microseconds=1)
            if isinstance(condition, GreaterThan):
                limits.append(micros // 1000 + 1)
            elif isinstance(condition, (GreaterThanOrEqual, EqualTo, EqualNullSafe)):
                limits.append(-(-micros // 1000))
        # The brokers can be asked for no time before 1970, and rows may have one: -1 is what producers without a clock write.
        latest = max(limits, default=-1)
        return latest if latest >= 0 else None


def _column(condition: Filter) -> str | None:
    path: Sequence[str] = getattr(condition, "attribute", ())
    return path[0] if len(path) == 1 else None


def _value(condition: Filter, column: str) -> Any:
    return getattr(condition, "value", None) if _column(condition) == column else None


def _holds(condition: Filter, column: str, value: str | int) -> bool:
    """Return whether a filter may hold if the column has this value, which is not null; True if it is not about it."""
    if isinstance(condition, Not):
        # Only a filter that is decided here may be negated: any other may hold either way.
        return not _decides(condition.child, column, value) or not _holds(condition.child, column, value)
    if not _decides(condition, column, value):
        return True
    wanted: Any = condition.value  # type: ignore[attr-defined]
    if isinstance(condition, In):
        return value in wanted
    if isinstance(condition, (EqualTo, EqualNullSafe)):
        return bool(value == wanted)
    if isinstance(condition, StringStartsWith):
        return str(value).startswith(wanted)
    if isinstance(condition, StringEndsWith):
        return str(value).endswith(wanted)
    if isinstance(condition, StringContains):
        return wanted in str(value)
    if isinstance(condition, GreaterThan):
        return bool(value > wanted)
    if isinstance(condition, GreaterThanOrEqual):
        return bool(value >= wanted)
    if isinstance(condition, LessThan):
        return bool(value < wanted)
    return bool(value <= wanted)


def _decides(condition: Filter, column: str, value: str | int) -> bool:
    if _column(condition) != column:
        return False
    wanted = getattr(condition, "value", None)
    if isinstance(condition, In):
        return all(type(one) is type(value) for one in wanted or ())
    if isinstance(condition, (StringStartsWith, StringEndsWith, StringContains)):
        return isinstance(value, str) and isinstance(wanted, str)
    # Topic names are ASCII: Python sorts them as Spark does.
    known = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    return isinstance(condition, known) and type(wanted) is type(value)
