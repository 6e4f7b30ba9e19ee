"""The options of ``barrier-kafka``, with the names, meanings and defaults of Spark's own Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from connector.kafka.offsets import Partition
from connector.options import REQUIRED, Option, OptionTable, as_bool, as_json, as_positive_int

__all__ = [
    "EARLIEST",
    "LATEST",
    "READ_DEFAULTS",
    "READ_OPTIONS",
    "StartingOffsets",
    "as_duration_ms",
    "as_starting_offsets",
    "as_topics",
]

EARLIEST = -2
"""In startingOffsets' JSON: the first row that is still there."""

LATEST = -1
"""In startingOffsets' JSON: the next row to come."""

StartingOffsets = Literal["earliest", "latest"] | Mapping[Partition, int]

READ_DEFAULTS: Mapping[str, str] = {"isolation.level": "read_committed"}
"""Client settings that users may override, but should know."""

_OFFSETS_FORM = '"earliest", "latest", or JSON {"topic": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest'

_MILLISECONDS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("", "ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION: Final = re.compile(r"([0-9]{1,12})\s*([a-z]*)")
_DURATION_FORM: Final = 'milliseconds (30000), or a whole number with ms, s, min, h or d ("500ms", "30s", "5 min")'


def as_duration_ms(text: str) -> int:
    """Milliseconds from 0; text without a unit is milliseconds already."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _MILLISECONDS:
        raise ValueError(_DURATION_FORM)
    return int(found[1]) * _MILLISECONDS[found[2]]


def as_topics(text: str) -> tuple[str, ...]:
    """Topic names, comma between, each once, in order of their names."""
    names = sorted({name.strip() for name in text.split(",") if name.strip()})
    if not names:
        raise ValueError("topic names, comma between")
    for name in names:
        if len(name) > 249 or not all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in name):
            raise ValueError(f"topic names of letters, digits, '.', '_' and '-', comma between; {name!r} is none")
    return tuple(names)


def as_starting_offsets(text: str) -> StartingOffsets:
    """``earliest``, ``latest``, or offsets of each partition."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    try:
        value = as_json(text)
    except ValueError:
        raise ValueError(_OFFSETS_FORM) from None
    found: dict[Partition, int] = {}
    if not isinstance(value, dict) or not value:
        raise ValueError(_OFFSETS_FORM)
    for topic, offsets in value.items():
        if not isinstance(offsets, dict):
            raise ValueError(_OFFSETS_FORM)
        for number, offset in offsets.items():
            # bool is an int in Python, and not an offset.
            if not number.isdecimal() or type(offset) is not int or offset < EARLIEST:
                raise ValueError(_OFFSETS_FORM)
            found[Partition(topic, int(number))] = offset
    return found


READ_OPTIONS = OptionTable(
    "barrier-kafka",
    (
        Option("subscribe", REQUIRED, as_topics, "Topics to read, comma between."),
        Option(
            "startingOffsets",
            "latest",
            as_starting_offsets,
            "Where a new query begins: earliest, latest, or JSON with every partition's offset (-2 earliest, -1 "
            "latest). A query that has a checkpoint goes on from there; partitions added later are read from their "
            "first row.",
        ),
        Option(
            "maxOffsetsPerTrigger",
            None,
            as_positive_int,
            "At most so many offsets per micro-batch, shared out among partitions by backlog.",
        ),
        Option(
            "includeHeaders",
            False,
            as_bool,
            "true adds the column headers: array<struct<key: string, value: binary>>.",
        ),
        Option(
            "barrierInterval",
            0,
            as_duration_ms,
            "At least so long from one checkpoint barrier to the next: milliseconds, or text such as 30s or 5 min. What "
            "is written becomes visible with its checkpoint. 0 closes a checkpoint with every micro-batch that has rows.",
        ),
        Option(
            "minPauseBetweenCheckpoints",
            0,
            as_duration_ms,
            "At least so long from the end of one checkpoint to the next barrier, also where barrierInterval is over: "
            "milliseconds, or text such as 30s or 5 min. A restart counts it anew. The last barrier of availableNow does "
            "not wait for it.",
        ),
    ),
)
"""Everything but ``kafka.*``, which goes to the client."""
