"""Bounds: where reading begins and ends by the options, before the brokers are asked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from connector.kafka.client.topics import SHOWN, Partition, listed
from connector.kafka.source.offsets import Positions
from connector.kafka.source.option_values import StartingOffsets
from connector.kafka.source.subscription import wrong_partitions
from transactional.errors import OptionError

__all__ = ["Bound", "OffsetBound", "TimeBound", "check_order", "check_partitions", "check_reach"]


@dataclass(frozen=True)
class OffsetBound:
    """A bound by offsets.

    Parameters
    ----------
    option : str
        The option's name, for messages.
    at : StartingOffsets
        ``earliest``, ``latest``, or each partition's offset (-2 earliest, -1 latest).
    """

    option: str
    at: StartingOffsets


@dataclass(frozen=True)
class TimeBound:
    """A bound by time: the first row that is not older.

    Parameters
    ----------
    option : str
        The option's name, for messages.
    at : int or Mapping[Partition, int]
        Milliseconds since 1970, for all partitions or for each.
    otherwise : {"error", "latest"}
        The bound of a partition without such a row.
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
        problem = f"names {listed(strange)}, which this source does not read"
    elif silent:
        way = ", with -2 for earliest and -1 for latest" if isinstance(bound, OffsetBound) else ""
        problem = f"leaves out {listed(silent)}: name every partition{way}"
    else:
        return
    raise wrong_partitions(bound.option, f"{problem}.", strange or silent)


def check_order(starting: Bound, ending: Bound) -> None:
    """Refuse an end before its start, as far as the options alone show it.

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
        shown = f"{first} and {last}"
    elif isinstance(first, Mapping) and isinstance(last, Mapping):
        # -1 and -2 are not positions: the brokers resolve them.
        back = [p for p in sorted(first) if p in last and 0 <= last[p] < first[p]]
        if not back:
            return
        shown = ", ".join(f"{p}: {first[p]} and {last[p]}" for p in back[:SHOWN])
    else:
        return
    raise OptionError(
        "INVALID_OPTION",
        f"barrier-kafka: the option {ending.option} lies before {starting.option} ({shown}).",
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
        ``INVALID_OPTION``, with the wanted offset and those that exist.
    """
    outside = [p for p in sorted(wanted) if not earliest[p] <= wanted[p] <= latest[p]]
    if outside:
        shown = ", ".join(f"{p}: {wanted[p]}, and it holds [{earliest[p]}, {latest[p]})" for p in outside[:SHOWN])
        raise wrong_partitions(
            bound.option,
            f"names offsets that are not there ({shown}). Rows may have expired, or the topic was created again; use -2 for "
            "the first row that is left and -1 for the end, or set failOnDataLoss to false to read what is there.",
            outside,
        )
