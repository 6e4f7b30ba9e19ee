"""The options of ``2pc-kafka``, with the names of Spark's own Kafka sink if it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.config import SINK_FORBIDDEN, ClientConfig, client_config
from connector.kafka.client.topics import TOPIC_FORM, is_topic_name
from connector.kafka.sink.row_writer import QUEUED_BYTES
from connector.options import HOST_OPTIONS, Option, OptionTable, as_bool, as_positive_int

__all__ = ["LONGEST_DEFAULT_TIMEOUT_MS", "WRITE_DEFAULTS", "WRITE_OPTIONS", "WriteOptions", "parse_write_options"]

LONGEST_DEFAULT_TIMEOUT_MS: Final = 900_000
"""15 min: Kafka's own default of transaction.max.timeout.ms. A longer one holds readers back longer after a crash."""

SHORTEST_TIMEOUT_MS: Final = 1_000
"""librdkafka's own minimum."""

KBYTES: Final = "queue.buffering.max.kbytes"
LONGEST_KBYTES: Final = "2147483647"
"""Outstanding bytes are limited by RowWriter, which keeps the order of rows; librdkafka's limit would not."""

LONGEST_TIMEOUT_MS: Final = 2**31 - 1
"""If sink and brokers set this, a prepared transaction never expires: what KIP-939 promises, today."""

WRITE_DEFAULTS: Mapping[str, str] = {
    # Rows land where Java's producers would put them: replacing Spark's sink keeps co-partitioning.
    "partitioner": "murmur2_random",
    "acks": "all",
    "enable.idempotence": "true",
    # The broker decides what is too large, so that the error can name the partition; batches stay below batch.size.
    "message.max.bytes": "1000000000",
    # A new producer waits for these at its start: its init takes 63 ms with 100 ms each, and 18 ms with these.
    "retry.backoff.ms": "10",
    "reconnect.backoff.ms": "10",
    "client.id": "barrier-kafka",
}
"""Client settings that users may override."""


def _as_timeout(text: str) -> int:
    expected = f"milliseconds from {SHORTEST_TIMEOUT_MS} to {LONGEST_TIMEOUT_MS}"
    try:
        number = as_positive_int(text)
    except ValueError:
        raise ValueError(expected) from None
    if not SHORTEST_TIMEOUT_MS <= number <= LONGEST_TIMEOUT_MS:
        raise ValueError(expected)
    return number


def _as_topic(text: str) -> str:
    name = text.strip()
    if not is_topic_name(name):
        raise ValueError(f"one topic's name: {TOPIC_FORM}")
    return name


WRITE_OPTIONS = OptionTable(
    "2pc-kafka",
    (
        Option(
            "topic", None, _as_topic, "The topic for all rows; it overrides the column topic. One of the two is needed."
        ),
        Option(
            "createTopics",
            False,
            as_bool,
            "true lets rows name topics, in the column topic, that do not exist: brokers with auto.create.topics.enable "
            "create them. false refuses such a row.",
        ),
        Option(
            "kafka.transaction.timeout.ms",
            None,
            _as_timeout,
            "How many milliseconds a broker keeps a prepared transaction, counted from its first row. A checkpoint has to be "
            "decided within this time. Default: the brokers' transaction.max.timeout.ms, but at most 15 min.",
        ),
        Option(
            "barrierTopic",
            None,
            _as_topic,
            "A topic that gets a mark for each checkpoint: the checkpoint's end offsets in the topic that the option topic "
            "names. It is created if it does not exist.",
        ),
    ),
)


@dataclass(frozen=True)
class WriteOptions:
    """Checked options of one sink; their repr shows no secret.

    Parameters
    ----------
    client : ClientConfig
        For both client libraries.
    topic : str or None
    prefix : str or None
        ``transactionalIdPrefix``; the host fills it in.
    timeout_ms : int or None
        ``kafka.transaction.timeout.ms`` if the user set it.
    commit_seconds : float
        ``commitTimeoutMs``.
    exactly_once : bool
    queue_bytes : int
        Bytes of outstanding rows, at most: kafka.buffer.memory if the user set it.
    barrier_topic : str or None
    creates_topics : bool
        Whether rows may name topics that do not exist.
    by_objects : bool
        Whether rows go through confluent-kafka's objects: librdkafka's batch call takes no headers.
    """

    client: ClientConfig
    topic: str | None
    prefix: str | None
    timeout_ms: int | None
    commit_seconds: float
    exactly_once: bool
    queue_bytes: int
    barrier_topic: str | None = None
    creates_topics: bool = False
    by_objects: bool = False


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the user's options, offline."""
    parsed = WRITE_OPTIONS.parse(options, also=HOST_OPTIONS)
    values: Mapping[str, Any] = parsed
    client = client_config(WRITE_OPTIONS, parsed, SINK_FORBIDDEN, WRITE_DEFAULTS)
    kbytes = client.settings.get(KBYTES)
    if kbytes is not None and not (kbytes.isdecimal() and int(kbytes) > 0):
        key = f"kafka.{client.origins.get(KBYTES, KBYTES)}"
        raise WRITE_OPTIONS.invalid(key, parsed.passthrough[key], "a whole number from 1")
    barrier_topic = values["barrierTopic"]
    if barrier_topic is not None:
        if values["topic"] is None or values["topic"] == barrier_topic:
            expectation = "a topic other than the rows' own, and the option topic has to be set"
            raise WRITE_OPTIONS.invalid("barrierTopic", barrier_topic, expectation)
        if values["deliveryGuarantee"] != "exactly-once":
            expectation = "no value with deliveryGuarantee=at-least-once, because its checkpoints have no known ends"
            raise WRITE_OPTIONS.invalid("barrierTopic", barrier_topic, expectation)
    # A producer's own default is true: brokers create a topic that was deleted, or is misspelt, when a producer asks for it.
    client = client.with_setting("allow.auto.create.topics", str(values["createTopics"]).lower())
    return WriteOptions(
        client=client.with_setting(KBYTES, LONGEST_KBYTES),
        topic=values["topic"],
        prefix=values["transactionalIdPrefix"],
        timeout_ms=values["kafka.transaction.timeout.ms"],
        commit_seconds=values["commitTimeoutMs"] / 1000,
        exactly_once=values["deliveryGuarantee"] == "exactly-once",
        barrier_topic=barrier_topic,
        creates_topics=values["createTopics"],
        queue_bytes=min(QUEUED_BYTES, int(kbytes) * 1024) if kbytes else QUEUED_BYTES,
    )
