"""Where reading begins and ends, as the options say it before the brokers are asked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from connector.kafka.source.offsets import Partition, Positions
from connector.kafka.source.option_values import StartingOffsets
from transactional.errors import OptionError

__all__ = ["SHOWN", "Bound", "OffsetBound", "TimeBound", "check_order", "check_partitions", "check_reach", "listed"]

SHOWN: Final = 10
"""Partitions that an error names; a topic may have thousands."""


@dataclass(frozen=True)
class OffsetBound:
    """Offsets.

    Parameters
    ----------
    option : str
        Which says so, for messages.
    at : StartingOffsets
        ``earliest``, ``latest``, or each partition's offset (-2 earliest, -1 latest).
    """

    option: str
    at: StartingOffsets


@dataclass(frozen=True)
class TimeBound:
    """The first row that is not older than a time.

    Parameters
    ----------
    option : str
        Which says so, for messages.
    at : int or Mapping[Partition, int]
        Milliseconds since 1970, of all partitions or of each.
    otherwise : {"error", "latest"}
        What holds for a partition without such a row.
    """

    option: str
    at: int | Mapping[Partition, int]
    otherwise: Literal["error", "latest"]


Bound = OffsetBound | TimeBound


def check_partitions(bound: Bound, partitions: Iterable[Partition]) -> None:
    """Refuse a bound that names partitions which are not read, or leaves some out.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, naming the partitions.
    """
    if not isinstance(bound.at, Mapping):
        return
    known = set(partitions)
    strange, silent = sorted(set(bound.at) - known), sorted(known - set(bound.at))
    if strange:
        told = f"names {listed(strange)}, which this source does not read"
    elif silent:
        way = ", with -2 for earliest and -1 for latest" if isinstance(bound, OffsetBound) else ""
        told = f"says nothing of {listed(silent)}: name every partition{way}"
    else:
        return
    raise OptionError(
        "INVALID_OPTION",
        f"barrier-kafka: the option {bound.option} {told}.",
        option=bound.option,
        partitions=[str(partition) for partition in strange or silent],
    )


def check_order(starting: Bound, ending: Bound) -> None:
    """Refuse an end before its start, as far as the options alone say it.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, naming both options.
    """
    if type(starting) is not type(ending):
        return
    first, last = starting.at, ending.at
    if isinstance(first, int) and isinstance(last, int):
        if first <= last:
            return
        told = f"{first} and {last}"
    elif isinstance(first, Mapping) and isinstance(last, Mapping):
        # -1 and -2 are no positions: what they mean, the brokers say.
        back = [p for p in sorted(first) if p in last and 0 <= last[p] < first[p]]
        if not back:
            return
        told = ", ".join(f"{p}: {first[p]} and {last[p]}" for p in back[:SHOWN])
    else:
        return
    raise OptionError(
        "INVALID_OPTION",
        f"barrier-kafka: the option {ending.option} lies before {starting.option} ({told}).",
        option=ending.option,
    )


def check_reach(bound: OffsetBound, wanted: Positions, earliest: Positions, latest: Positions) -> None:
    """Refuse offsets that a partition does not hold.

    Parameters
    ----------
    bound : OffsetBound
    wanted : Positions
        The offsets that the user wrote.
    earliest, latest : Positions
        The first row of each of these partitions, and the next to come.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, with what was asked for and what is there.
    """
    outside = [p for p in sorted(wanted) if not earliest[p] <= wanted[p] <= latest[p]]
    if outside:
        told = ", ".join(f"{p}: {wanted[p]}, and it holds [{earliest[p]}, {latest[p]})" for p in outside[:SHOWN])
        raise OptionError(
            "INVALID_OPTION",
            f"barrier-kafka: the option {bound.option} names offsets that are not there ({told}). Rows may have expired, or "
            "the topic was made anew; use -2 for the first row that is left and -1 for the end, or set "
            "failOnDataLoss to false to read what is there.",
            option=bound.option,
            partitions=[str(partition) for partition in outside],
        )


def listed(partitions: Sequence[Partition]) -> str:
    """Some partitions' names, for a message."""
    return ", ".join(map(str, partitions[:SHOWN])) + (", ..." if len(partitions) > SHOWN else "")
