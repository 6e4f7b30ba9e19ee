"""The options of ``2pc-kafka``. Options that Spark's Kafka sink also has keep the names that they have there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.config import SINK_FORBIDDEN, ClientConfig, client_config
from connector.kafka.client.topics import TOPIC_FORM, is_topic_name
from connector.kafka.sink.row_writer import QUEUED_BYTES
from connector.options import HOST_OPTIONS, Option, OptionTable, as_bool, as_positive_int

LONGEST_DEFAULT_TIMEOUT_MS: Final = 900_000
"""The longest timeout that the sink chooses by default: 15 min, Kafka's default for transaction.max.timeout.ms. With a
longer timeout, readers would be stuck longer after a crash."""

SHORTEST_TIMEOUT_MS: Final = 1_000
"""The shortest timeout that librdkafka accepts."""

KBYTES: Final = "queue.buffering.max.kbytes"
LONGEST_KBYTES: Final = "2147483647"
"""The highest value for the setting `KBYTES`: librdkafka then does not limit its queue. `RowWriter` limits the queue
instead, and keeps rows in order.
"""

LONGEST_TIMEOUT_MS: Final = 2**31 - 1
"""The longest possible timeout. If the sink and the brokers both use this timeout, a prepared transaction never expires,
because the brokers don't check such transactions.
"""

WRITE_DEFAULTS: Mapping[str, str] = {
    # Rows go to the same partitions as with Java's producers, so replacing Spark's sink keeps co-partitioning.
    "partitioner": "murmur2_random",
    "acks": "all",
    "enable.idempotence": "true",
    # The broker decides what is too large, so that the error can name the partition; batches stay below batch.size.
    "message.max.bytes": "1000000000",
    # A new producer waits for these times when it starts. Its init takes 63 ms with 100 ms each, and 18 ms with these values.
    "retry.backoff.ms": "10",
    "reconnect.backoff.ms": "10",
    # With the default of 5, librdkafka's threads seldom sleep while they wait for answers (`deliveries.wait_for`).
    "max.in.flight.requests.per.connection": "2",
    "client.id": "barrier-kafka",
}
"""Default client settings, which users may override."""


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
        raise ValueError(f"the name of one topic, with {TOPIC_FORM}")
    return name


WRITE_OPTIONS = OptionTable(
    "2pc-kafka",
    (
        Option(
            "topic",
            None,
            _as_topic,
            "The topic for all rows; it overrides the column topic. If the rows have no column topic, the option is required.",
        ),
        Option(
            "createTopics",
            False,
            as_bool,
            "If true, the column topic may contain topics that do not exist. Brokers with auto.create.topics.enable then "
            "create these topics. If false, the sink rejects a row with such a topic.",
        ),
        Option(
            "kafka.transaction.timeout.ms",
            None,
            _as_timeout,
            "How many milliseconds a broker keeps a prepared transaction, counted from the transaction's first row. A "
            "checkpoint has to be decided within this time. Default: the brokers' transaction.max.timeout.ms, but at most "
            "15 min.",
        ),
        Option(
            "barrierTopic",
            None,
            _as_topic,
            "A topic into which the sink writes a mark for each checkpoint. A mark contains the checkpoint's end offsets in "
            "the output topic (option topic). If the barrier topic does not exist, the sink creates it.",
        ),
    ),
)


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of one sink. Their repr shows no secrets."""

    client: ClientConfig  # The configuration of both client libraries.
    topic: str | None  # The topic of all rows; None if a column names each row's topic.
    prefix: str | None  # ``transactionalIdPrefix``, which the host fills in.
    timeout_ms: int | None  # ``kafka.transaction.timeout.ms`` if the user set it.
    commit_seconds: float  # ``commitTimeoutMs``, in seconds.
    exactly_once: bool
    # The largest number of bytes of outstanding rows: `QUEUED_BYTES`, or kafka.buffer.memory if that is lower.
    queue_bytes: int
    barrier_topic: str | None = None
    creates_topics: bool = False  # Whether rows may name topics that do not exist.
    # Whether rows go through confluent-kafka's objects, because librdkafka's batch call does not support headers.
    by_objects: bool = False


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check and parse the user's options, without a connection."""
    parsed = WRITE_OPTIONS.parse(options, also=HOST_OPTIONS)
    values: Mapping[str, Any] = parsed
    client = client_config(WRITE_OPTIONS, parsed, SINK_FORBIDDEN, WRITE_DEFAULTS)
    kbytes = client.settings.get(KBYTES)
    if kbytes is not None and not (kbytes.isdecimal() and int(kbytes) > 0):
        key = f"kafka.{client.origins.get(KBYTES, KBYTES)}"
        raise WRITE_OPTIONS.invalid(key, parsed.passthrough[key], "a whole number, 1 or more")
    barrier_topic = values["barrierTopic"]
    if barrier_topic is not None:
        if values["topic"] is None or values["topic"] == barrier_topic:
            expectation = "a topic other than the rows' topic (and the option topic must be set)"
            raise WRITE_OPTIONS.invalid("barrierTopic", barrier_topic, expectation)
        if values["deliveryGuarantee"] != "exactly-once":
            expectation = "no value with deliveryGuarantee=at-least-once, because its checkpoints have no known ends"
            raise WRITE_OPTIONS.invalid("barrierTopic", barrier_topic, expectation)
    # The client's default is true: if a topic was deleted, or its name is misspelled, brokers would create it for a producer.
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
