"""A topic's id as text: the two client libraries write it differently."""

from __future__ import annotations

import base64
import uuid

__all__ = ["from_kafka_python"]


def from_kafka_python(identity: uuid.UUID | str) -> str:
    """Return the id as librdkafka writes it, which is how a source's offsets have it.

    Parameters
    ----------
    identity : UUID or str
        As kafka-python has it, with hyphens as text.

    Examples
    --------
    >>> from_kafka_python("4cd641bd-9ac3-4d38-9279-9b04cbfe826d")
    'TNZBvZrDTTiSeZsEy/6CbQ'
    """
    raw = uuid.UUID(str(identity)).bytes
    return base64.b64encode(raw).decode().rstrip("=")
