"""The start and the end of a read, as the options give them, before the brokers are asked. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from connector.kafka.client.topics import SHOWN, Partition, listed
from connector.kafka.source.offsets import Positions
from connector.kafka.source.option_values import StartingOffsets
from connector.kafka.source.subscription import wrong_partitions
from transactional.errors import OptionError


@dataclass(frozen=True)
class OffsetBound:
    """The start or the end of a read, given as offsets."""

    option: str  # The option's name, for messages.
    at: StartingOffsets  # ``earliest``, ``latest``, or each partition's offset (-2 earliest, -1 latest).


@dataclass(frozen=True)
class TimeBound:
    """The start or the end of a read, given as a time: the first row that is not older than this time."""

    option: str  # The option's name, for messages.
    at: int | Mapping[Partition, int]  # Milliseconds since 1970: one time for all partitions, or one per partition.
    otherwise: Literal["error", "latest"]  # How to treat a partition without such a row: refuse it, or use its end.


Bound = OffsetBound | TimeBound


def check_partitions(bound: Bound, partitions: Iterable[Partition]) -> None:
    """If the start or end is given per partition, check that it names exactly the partitions to read."""
    if not isinstance(bound.at, Mapping):
        return
    known = set(partitions)
    strange, silent = sorted(set(bound.at) - known), sorted(known - set(bound.at))
    if strange:
        value, expectation = listed(strange), "partitions that this source reads"
    elif silent:
        way = ", with -2 for earliest and -1 for latest" if isinstance(bound, OffsetBound) else ""
        value, expectation = f"without {listed(silent)}", f"every partition{way}"
    else:
        return
    raise wrong_partitions(bound.option, value, expectation, strange or silent)


def check_order(starting: Bound, ending: Bound) -> None:
    """Reject an end that is before the start, if the options alone show this."""
    if type(starting) is not type(ending):
        return
    first, last = starting.at, ending.at
    if isinstance(first, int) and isinstance(last, int):
        if first <= last:
            return
        shown = [f"{first}", f"{last}"]
    elif isinstance(first, Mapping) and isinstance(last, Mapping):
        # -1 and -2 are not positions: the brokers resolve them.
        back = [p for p in sorted(first) if p in last and 0 <= last[p] < first[p]]
        if not back:
            return
        shown = [", ".join(f"{p}: {at[p]}" for p in back[:SHOWN]) for at in (first, last)]
    else:
        return
    raise OptionError(
        "INVALID_OPTION",
        owner="barrier-kafka",
        option=ending.option,
        value=shown[1],
        expectation=f"{shown[0]} or later, because {starting.option} begins there",
    )


def check_reach(bound: OffsetBound, wanted: Positions, earliest: Positions, latest: Positions) -> None:
    """Reject offsets that do not exist in their partitions."""
    outside = [p for p in sorted(wanted) if not earliest[p] <= wanted[p] <= latest[p]]
    if outside:
        shown = ", ".join(f"{p}: {wanted[p]}" for p in outside[:SHOWN])
        there = ", ".join(f"{p}: [{earliest[p]}, {latest[p]})" for p in outside[:SHOWN])
        raise wrong_partitions(
            bound.option,
            shown,
            f"offsets that exist ({there}; -2 is the first remaining row, -1 the end). Rows may have expired, or the topic "
            "was created again. With failOnDataLoss=false the query reads the rows that exist",
            outside,
        )
