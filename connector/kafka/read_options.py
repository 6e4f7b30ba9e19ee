"""The options of ``barrier-kafka``, with the names, meanings and defaults of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from connector.kafka.offsets import Partition
from connector.options import REQUIRED, Option, OptionTable, as_bool, as_json, as_positive_int

__all__ = ["EARLIEST", "LATEST", "READ_DEFAULTS", "READ_OPTIONS", "StartingOffsets", "as_starting_offsets", "as_topics"]

EARLIEST = -2
"""In startingOffsets' JSON: the first row that is still there."""

LATEST = -1
"""In startingOffsets' JSON: the next row to come."""

StartingOffsets = Literal["earliest", "latest"] | Mapping[Partition, int]

READ_DEFAULTS: Mapping[str, str] = {"isolation.level": "read_committed"}
"""Client settings that users may override, but should know."""

_OFFSETS_FORM = '"earliest", "latest", or JSON {"topic": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest'


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
    ),
)
"""Everything but ``kafka.*``, which goes to the client."""
