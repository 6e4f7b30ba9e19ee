"""Topics and partitions: their names, and their ids, which the two client libraries write differently."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["SHOWN", "TOPIC_FORM", "Partition", "is_topic_name", "listed", "short_id"]

SHOWN: Final = 10
"""Partitions that an error names; a topic may have thousands."""

TOPIC_FORM: Final = "at most 249 letters, digits, '.', '_' and '-'"
"""How Kafka lets a topic be named."""

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class Partition(NamedTuple):
    """A partition of a topic; partitions sort by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


def listed(partitions: Sequence[Partition]) -> str:
    """Return the first names of a list of partitions, for a message."""
    return ", ".join(map(str, partitions[:SHOWN])) + (", ..." if len(partitions) > SHOWN else "")


def is_topic_name(text: str) -> bool:
    """Return whether Kafka lets a topic have this name: see `TOPIC_FORM`."""
    return _NAME.fullmatch(text) is not None


def short_id(identity: uuid.UUID | str) -> str:
    """Return a topic's id as librdkafka writes it, which is the form that a source's offsets keep.

    Parameters
    ----------
    identity : UUID or str
        As kafka-python returns it; as text, with hyphens.

    Examples
    --------
    >>> short_id("4cd641bd-9ac3-4d38-9279-9b04cbfe826d")
    'TNZBvZrDTTiSeZsEy/6CbQ'
    """
    raw = uuid.UUID(str(identity)).bytes
    return base64.b64encode(raw).decode().rstrip("=")
