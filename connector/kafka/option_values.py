"""How the values of the source's options are written: topics, patterns, offsets, timestamps, durations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from connector.kafka.offsets import Partition
from connector.options import as_duration_ms, as_json

__all__ = [
    "EARLIEST",
    "LATEST",
    "StartingOffsets",
    "as_assignment",
    "as_duration_ms",
    "as_long",
    "as_pattern",
    "as_starting_offsets",
    "as_timestamp",
    "as_timestamps",
    "as_topics",
]

EARLIEST: Final = -2
"""In the JSON of offsets: the first row that is still there."""

LATEST: Final = -1
"""In the JSON of offsets: the next row to come."""

StartingOffsets = Literal["earliest", "latest"] | Mapping[Partition, int]

LONGEST: Final = 2**63 - 1
"""Spark's and Kafka's long."""

_OFFSETS_FORM: Final = (
    '"earliest", "latest", or JSON {"topic": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest'
)
_TIMES_FORM: Final = 'JSON {"topic": {"0": 1700000000000, "1": 1700000000000}} with milliseconds since 1970'
_ASSIGN_FORM: Final = 'JSON {"topic": [0, 1]} with the numbers of partitions'


def as_long(least: int) -> Callable[[str], int]:
    """Make a parser of whole numbers from `least` to 2**63 - 1."""

    def parse(text: str) -> int:
        digits = text.strip()
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
        if not least <= number <= LONGEST:
            raise ValueError(f"a whole number from {least}")
        return number

    return parse


def as_timestamp(text: str) -> int:
    """Milliseconds since 1970."""
    try:
        return as_long(0)(text)
    except ValueError:
        raise ValueError("milliseconds since 1970, such as 1700000000000") from None


def as_topics(text: str) -> tuple[str, ...]:
    """Topic names, comma between, each once, in order of their names."""
    names = sorted({name.strip() for name in text.split(",") if name.strip()})
    if not names:
        raise ValueError("topic names, comma between")
    for name in names:
        if not _is_topic(name):
            raise ValueError(f"topic names of letters, digits, '.', '_' and '-', comma between; {name!r} is none")
    return tuple(names)


def as_assignment(text: str) -> tuple[Partition, ...]:
    """Partitions by topic, each once, in order."""
    value = _mapping(text, _ASSIGN_FORM)
    found: set[Partition] = set()
    for topic, numbers in value.items():
        if not _is_topic(topic) or not isinstance(numbers, list):
            raise ValueError(_ASSIGN_FORM)
        for number in numbers:
            if type(number) is not int or not 0 <= number < 2**31:
                raise ValueError(_ASSIGN_FORM)
            found.add(Partition(topic, number))
    if not found:
        raise ValueError(_ASSIGN_FORM)
    return tuple(sorted(found))


def as_pattern(text: str) -> str:
    r"""A Java regular expression as Python writes it; a topic matches as a whole.

    The two languages agree on what names of topics need. ``\Q...\E`` and ``(?<name>...)`` are translated; what Python does
    not know, or reads in another way (``\p{...}``, ``[a&&[b]]``), is refused.
    """
    pattern = text.strip()
    form = "a regular expression that Java and Python read alike"
    if not pattern:
        raise ValueError(form)
    if re.search(r"\\[pPhHRX]|&&", pattern):
        raise ValueError(rf"{form}: without \p, \h, \R, \X and &&")
    pattern = re.sub(r"\\Q(.*?)(?:\\E|$)", lambda found: re.escape(found[1]), pattern, flags=re.DOTALL)
    pattern = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern)
    try:
        with warnings.catch_warnings():
            # Python warns where a class within a class has a meaning in Java.
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, Warning, OverflowError, RecursionError) as problem:
        raise ValueError(f"{form} ({problem})") from None
    return pattern


def as_starting_offsets(text: str) -> StartingOffsets:
    """``earliest``, ``latest``, or offsets of each partition."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    return _by_partition(text, EARLIEST, _OFFSETS_FORM)


def as_timestamps(text: str) -> Mapping[Partition, int]:
    """Milliseconds since 1970 of each partition."""
    return _by_partition(text, 0, _TIMES_FORM)


def _by_partition(text: str, least: int, form: str) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for topic, numbers in _mapping(text, form).items():
        if not isinstance(numbers, dict):
            raise ValueError(form)
        for partition, number in numbers.items():
            # bool is an int in Python, and not an offset.
            if not (partition.isascii() and partition.isdecimal()) or type(number) is not int:
                raise ValueError(form)
            if not least <= number <= LONGEST:
                raise ValueError(form)
            found[Partition(topic, int(partition))] = number
    if not found:
        raise ValueError(form)
    return found


def _mapping(text: str, form: str) -> dict[str, Any]:
    try:
        value = as_json(text)
    except (ValueError, RecursionError):
        raise ValueError(form) from None
    if not isinstance(value, dict):
        raise ValueError(form)
    return value


def _is_topic(name: str) -> bool:
    return 0 < len(name) <= 249 and all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in name)
