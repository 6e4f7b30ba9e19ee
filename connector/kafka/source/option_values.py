"""Parsers for the values of the source's options: topics, patterns, offsets, timestamps, durations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from connector.kafka.client.topics import TOPIC_FORM, Partition, is_topic_name
from connector.kafka.source.rows import all_columns
from connector.options import as_duration_ms, as_json

__all__ = [
    "EARLIEST",
    "LATEST",
    "StartingOffsets",
    "as_assignment",
    "as_columns",
    "as_duration_ms",
    "as_long",
    "as_pattern",
    "as_starting_offsets",
    "as_timestamp",
    "as_timestamps",
    "as_topics",
]

EARLIEST: Final = -2
"""In JSON with offsets, this number stands for the first row that still exists."""

LATEST: Final = -1
"""In JSON with offsets, this number stands for the end of the partition."""

StartingOffsets = Literal["earliest", "latest"] | Mapping[Partition, int]

LONGEST: Final = 2**63 - 1
"""The largest value of a ``long`` in Spark and Kafka."""

_OFFSETS_FORM: Final = (
    '"earliest", "latest", or JSON {"topic": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest'
)
_TIMES_FORM: Final = 'JSON {"topic": {"0": 1700000000000, "1": 1700000000000}} with milliseconds since 1970'
_ASSIGN_FORM: Final = 'JSON {"topic": [0, 1]} with partition numbers'


def as_long(least: int) -> Callable[[str], int]:
    """Return a function that parses a whole number from `least` to 2**63 - 1."""

    def parse(text: str) -> int:
        digits = text.strip()
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
        if not least <= number <= LONGEST:
            raise ValueError(f"a whole number, {least} or more")
        return number

    return parse


def as_timestamp(text: str) -> int:
    """Parse a timestamp in milliseconds since 1970."""
    try:
        return as_long(0)(text)
    except ValueError:
        raise ValueError("milliseconds since 1970, such as 1700000000000") from None


def as_topics(text: str) -> tuple[str, ...]:
    """Parse topic names, separated by commas; return each name once, sorted."""
    names = sorted({name.strip() for name in text.split(",") if name.strip()})
    if not names:
        raise ValueError("topic names, separated by commas")
    for name in names:
        if not is_topic_name(name):
            raise ValueError(
                f"topic names, separated by commas, but {name!r} is not a topic name. A topic name has {TOPIC_FORM}"
            )
    return tuple(names)


def as_columns(text: str) -> tuple[str, ...]:
    """Parse column names, separated by commas, and return them in the order given."""
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= {*all_columns(True)} or len(set(names)) < len(names):
        raise ValueError(
            f"columns from the list {', '.join(all_columns(True))}, separated by commas, each at most once"
        )
    return names


def as_assignment(text: str) -> tuple[Partition, ...]:
    """Parse a JSON object of topics and their partitions; return each partition once, sorted."""
    value = _mapping(text, _ASSIGN_FORM)
    partitions: set[Partition] = set()
    for topic, numbers in value.items():
        if not is_topic_name(topic) or not isinstance(numbers, list):
            raise ValueError(_ASSIGN_FORM)
        for number in numbers:
            if type(number) is not int or not 0 <= number < 2**31:
                raise ValueError(_ASSIGN_FORM)
            partitions.add(Partition(topic, number))
    if not partitions:
        raise ValueError(_ASSIGN_FORM)
    return tuple(sorted(partitions))


def as_pattern(text: str) -> str:
    r"""Translate a Java regular expression for whole topic names to Python's syntax.

    Java and Python agree on the syntax that topic names need. ``\Q...\E`` and ``(?<name>...)`` are translated; syntax that
    Python does not know, or reads differently (``\p{...}``, ``[a&&[b]]``), is rejected.
    """
    pattern = text.strip()
    form = "a regular expression that Java and Python read in the same way"
    if not pattern:
        raise ValueError(form)
    if re.search(r"\\[pPhHRX]|&&", pattern):
        raise ValueError(rf"{form}: without \p, \h, \R, \X and &&")
    pattern = re.sub(r"\\Q(.*?)(?:\\E|$)", lambda quoted: re.escape(quoted[1]), pattern, flags=re.DOTALL)
    pattern = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern)
    try:
        with warnings.catch_warnings():
            # Python warns about a character class within another one, because it does not support Java's meaning.
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, Warning, OverflowError, RecursionError) as problem:
        raise ValueError(f"{form} ({problem})") from None
    return pattern


def as_starting_offsets(text: str) -> StartingOffsets:
    """Parse ``earliest``, ``latest``, or JSON with an offset for each partition."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    return _by_partition(text, EARLIEST, _OFFSETS_FORM)


def as_timestamps(text: str) -> Mapping[Partition, int]:
    """Parse JSON with a time for each partition, in milliseconds since 1970."""
    return _by_partition(text, 0, _TIMES_FORM)


def _by_partition(text: str, least: int, form: str) -> dict[Partition, int]:
    values: dict[Partition, int] = {}
    for topic, numbers in _mapping(text, form).items():
        if not isinstance(numbers, dict):
            raise ValueError(form)
        for partition, number in numbers.items():
            # bool is an int in Python, but not an offset.
            if not (partition.isascii() and partition.isdecimal()) or type(number) is not int:
                raise ValueError(form)
            if not least <= number <= LONGEST:
                raise ValueError(form)
            values[Partition(topic, int(partition))] = number
    if not values:
        raise ValueError(form)
    return values


def _mapping(text: str, form: str) -> dict[str, Any]:
    try:
        value = as_json(text)
    except (ValueError, RecursionError):
        raise ValueError(form) from None
    if not isinstance(value, dict):
        raise ValueError(form)
    return value
