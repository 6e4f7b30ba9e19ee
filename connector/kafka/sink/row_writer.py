"""Arrow batches into librdkafka: which columns there are, and how their rows get into the producer's queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.connection import missing_right
from transactional.clock import Deadline
from transactional.errors import OptionError, RetriableError, RowRefusedError, StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError, Message, Producer

__all__ = ["COLUMNS", "Deliveries", "RowWriter", "check_columns", "deliver", "serve", "write_error"]

COLUMNS: Final[Mapping[str, str]] = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
}
"""The columns that a sink takes, as Spark's Kafka sink does, and their types in Spark's words."""

CHUNK_ROWS: Final = 10_000
"""Rows handed to librdkafka at once: large enough for its batch call, small beside its queue of 100,000."""

CHUNK_BYTES: Final = 32 << 20
"""Rows are copied into Python objects and into librdkafka: this bounds the copies."""

QUEUED_BYTES: Final = 256 << 20
"""When so much was queued since the queue was last empty, wait until it is. Lower where the user's buffer.memory is."""

DEFAULT_QUEUE_ROWS: Final = 100_000
"""librdkafka's queue.buffering.max.messages."""

POLL_SECONDS: Final = 0.02

FLUSH_SECONDS: Final = 0.25
"""Between two looks at refused rows while the queue empties."""

TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
CONSEQUENCES: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE", "_FATAL"})
"""Errors that follow an earlier one and don't say why."""


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Check the rows' columns, offline.

    Raises
    ------
    OptionError
        ``MISSING_COLUMN``, ``UNKNOWN_COLUMN``, ``WRONG_COLUMN_TYPE``, ``MISSING_TOPIC``; each names the way out.
    """
    names = schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names:
        raise OptionError(
            "MISSING_COLUMN",
            f"2pc-kafka needs a column value; the rows have {', '.join(names) or 'no columns'}. For JSON: "
            "df.selectExpr('to_json(struct(*)) AS value').",
            column="value",
            columns=list(names),
        )
    if unknown or len(set(names)) < len(names):
        wrong = unknown or sorted({name for name in names if names.count(name) > 1})
        raise OptionError(
            "UNKNOWN_COLUMN",
            f"2pc-kafka can't write the column {', '.join(wrong)}: it takes {', '.join(COLUMNS)}, each once. Put other "
            "columns into value, or drop them.",
            columns=wrong,
        )
    for field in schema:
        if not _fits(field.name, field.type):
            raise OptionError(
                "WRONG_COLUMN_TYPE",
                f"2pc-kafka: the column {field.name} is {field.type}; it must be {COLUMNS[field.name]}. Cast it.",
                column=field.name,
                type=str(field.type),
            )
    if topic is None and "topic" not in names:
        raise OptionError(
            "MISSING_TOPIC",
            "2pc-kafka has no topic to write to: set .option('topic', ...), or give the rows a column topic.",
            option="topic",
        )


class Deliveries:
    """What the producer's callbacks told of rows that were not delivered; the first cause counts."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._place: tuple[str | None, int | None] = (None, None)
        self._size = 0

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Note one row's delivery report; librdkafka calls it inside poll and flush."""
        if error is None:
            return
        size = len(message.value() or b"") + len(message.key() or b"")
        # A refused batch reports each of its rows: the largest is the one to look at.
        larger = self._error is not None and error.code() == self._error.code() and size > self._size
        if self._error is None or larger or self._error.name() in CONSEQUENCES:
            self._error, self._place, self._size = error, (message.topic(), message.partition()), size

    def check(self) -> None:
        """Raise if any row was not delivered."""
        if self._error is not None:
            raise write_error(self._error, *self._place, self._size)


def write_error(error: KafkaError, topic: str | None, partition: int | None, size: int) -> TwoPhaseCommitError:
    """Make the error of a row, or of a producer's call, that librdkafka refused."""
    name, place = error.name(), f"{topic} [{'partition not chosen yet' if partition in (None, -1) else partition}]"
    told: dict[str, Any] = {"error": name, "topic": topic, "partition": partition, "size": size}
    if name in TOO_LARGE:
        return RowRefusedError(
            "ROW_TOO_LARGE",
            f"A row of {size} bytes for {place} is larger than is allowed ({error.str()}); nothing of its batch is "
            "visible. Raise the topic's max.message.bytes (or kafka.message.max.bytes where it was lowered), or write "
            "smaller rows. If every row is small, lower kafka.batch.size below the topic's max.message.bytes.",
            **told,
        )
    if name in ("_UNKNOWN_PARTITION", "INVALID_RECORD"):
        return RowRefusedError(
            "ROW_REFUSED", f"A row of {size} bytes for {place} was refused: {name}, {error.str()}.", **told
        )
    if name in FENCED:
        return RetriableError(
            "LANE_TAKEN",
            f"The task's transactional id was initialised by somebody else while it wrote ({name}): by another attempt "
            "of the task, by a newer run's sweep, or by another query with the same transactionalIdPrefix.",
            **told,
        )
    if name in ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"):
        return StoreError("UNKNOWN_TOPIC", f"The topic {topic} does not exist: create it.", **told)
    if name == "TOPIC_AUTHORIZATION_FAILED":
        return missing_right("WRITE", f"topic {topic}")
    if name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return missing_right("WRITE", "the transactional ids of the prefix")
    return RetriableError("WRITE_FAILED", f"Rows could not be written to {place}: {name}, {error.str()}.", **told)


def serve(call: Callable[[], int], deliveries: Deliveries) -> int:
    """Call poll or flush of a producer, and make an error of ours of a fatal one.

    confluent-kafka raises it in the middle of the rows' reports. These fail with SystemError around it, or lose it, and
    what is left is a SystemError without a cause; then the reports say why.
    """
    from confluent_kafka import KafkaException

    try:
        return call()
    except (KafkaException, SystemError) as problem:
        cause = problem if isinstance(problem, KafkaException) else problem.__cause__
        if isinstance(cause, KafkaException):
            raise write_error(cause.args[0], None, None, 0) from None
        with contextlib.suppress(KafkaException, SystemError):
            call()  # The reports that the first call did not come to.
        deliveries.check()
        raise RetriableError(
            "WRITE_FAILED", f"The task's producer failed for good, and its client lost the reason ({problem})."
        ) from problem


def deliver(producer: Producer, deliveries: Deliveries, deadline: Deadline | None = None) -> int:
    """Wait until every queued row is delivered; returns how many are not when the deadline has passed.

    In steps, because librdkafka sends nothing more of a transaction once a row of it was refused: what is queued behind
    that row would be waited for until its own timeout.
    """
    while True:
        waiting = serve(lambda: producer.flush(FLUSH_SECONDS), deliveries)
        deliveries.check()
        if not waiting or (deadline is not None and deadline.passed()):
            return waiting


def _raise_cause(error: KafkaError, producer: Producer, deliveries: Deliveries) -> None:
    """Raise why a producer has failed for good: the reports of its earlier rows know it, the refused call does not."""
    if error.name() in CONSEQUENCES:
        serve(lambda: producer.poll(0), deliveries)
        deliveries.check()


class RowWriter:
    """Puts Arrow batches into a producer's queue, in order, without overfilling it.

    Parameters
    ----------
    schema : pyarrow.Schema
    topic : str or None
        Of all rows; None takes each row's from its column.
    queue_rows : int
        The producer's queue.buffering.max.messages; 0 is no limit.
    queue_bytes : int
        When so many were queued since the queue was last empty, wait until it is.
    """

    def __init__(
        self,
        schema: pa.Schema,
        topic: str | None,
        queue_rows: int = DEFAULT_QUEUE_ROWS,
        queue_bytes: int = QUEUED_BYTES,
    ) -> None:
        check_columns(schema, topic)
        self._names = frozenset(schema.names)
        self._topic = topic
        self._queue_rows = queue_rows or DEFAULT_QUEUE_ROWS
        self._queue_bytes = queue_bytes
        self._bytes_since_empty = 0

    def write(self, producer: Producer, batch: pa.RecordBatch, deliveries: Deliveries) -> None:
        """Queue a batch's rows; returns before they are delivered."""
        for chunk in self._chunks(batch):
            self._make_room(producer, chunk, deliveries)
            values, keys = _as_bytes(chunk, "value"), _as_bytes(chunk, "key")
            if self._needs_rows(chunk):
                self._write_rows(producer, chunk, values, keys, deliveries)
            elif self._topic is not None:
                self._write_batch(producer, self._topic, values, keys, deliveries)
            else:
                for topic, places in self._by_topic(chunk).items():
                    chosen = [values[i] for i in places], [keys[i] for i in places]
                    self._write_batch(producer, topic, *chosen, deliveries)
            serve(lambda: producer.poll(0), deliveries)
            deliveries.check()

    def _chunks(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = max(1, min(CHUNK_ROWS, min(CHUNK_BYTES, self._queue_bytes) // row_bytes, self._queue_rows // 2))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _make_room(self, producer: Producer, chunk: pa.RecordBatch, deliveries: Deliveries) -> None:
        # A queue that is full drops rows out of the middle of a batch call, and their order with them.
        room = self._queue_rows - chunk.num_rows
        while len(producer) > room:
            serve(lambda: producer.poll(POLL_SECONDS), deliveries)
            deliveries.check()
        self._bytes_since_empty += chunk.nbytes
        if self._bytes_since_empty > self._queue_bytes:
            deliver(producer, deliveries)
            self._bytes_since_empty = chunk.nbytes

    def _needs_rows(self, chunk: pa.RecordBatch) -> bool:
        # The batch call drops headers without an error.
        return any(
            name in self._names and chunk.column(name).null_count < chunk.num_rows for name in ("headers", "partition")
        )

    @staticmethod
    def _write_batch(
        producer: Producer, topic: str, values: Sequence[Any], keys: Sequence[Any], deliveries: Deliveries
    ) -> None:
        from confluent_kafka import KafkaException

        messages: list[Any] = [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
        try:
            queued = producer.produce_batch(topic, messages)
        except KafkaException as problem:
            _raise_cause(problem.args[0], producer, deliveries)
            raise write_error(problem.args[0], topic, None, 0) from None
        if queued < len(messages):
            # A producer that has failed for good takes nothing and says nothing here.
            serve(lambda: producer.poll(0), deliveries)
            deliveries.check()
            refused = next((m for m in messages if "_error" in m), None)
            if refused is None:
                raise RetriableError("WRITE_FAILED", f"{len(messages) - queued} rows for {topic} were not queued.")
            size = len(refused["value"] or b"") + len(refused["key"] or b"")
            raise write_error(refused["_error"], topic, None, size)

    def _write_rows(
        self,
        producer: Producer,
        chunk: pa.RecordBatch,
        values: Sequence[Any],
        keys: Sequence[Any],
        deliveries: Deliveries,
    ) -> None:
        from confluent_kafka import KafkaException

        none = [None] * chunk.num_rows
        headers = chunk.column("headers").to_pylist() if "headers" in self._names else none
        partitions = chunk.column("partition").to_pylist() if "partition" in self._names else none
        topics = none if self._topic is not None else self._topics(chunk)
        for value, key, header, partition, topic in zip(values, keys, headers, partitions, topics, strict=True):
            to = self._topic or topic or ""
            row: dict[str, Any] = {"value": value, "key": key}
            if header:
                row["headers"] = _headers(header, to, row)
            if partition is not None:
                if partition < 0:
                    raise RowRefusedError(
                        "ROW_REFUSED", f"A row's partition is {partition}; it must be 0 or more, or null.", topic=to
                    )
                row["partition"] = partition
            try:
                while True:
                    try:
                        producer.produce(to, **row)
                        break
                    except BufferError:
                        serve(lambda: producer.poll(POLL_SECONDS), deliveries)
                        deliveries.check()
            except KafkaException as problem:
                _raise_cause(problem.args[0], producer, deliveries)
                size = len(value or b"") + len(key or b"")
                raise write_error(problem.args[0], to, partition, size) from None

    def _by_topic(self, chunk: pa.RecordBatch) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, topic in enumerate(self._topics(chunk)):
            found.setdefault(topic, []).append(place)
        return found

    @staticmethod
    def _topics(chunk: pa.RecordBatch) -> list[str]:
        topics = [_text(topic) for topic in chunk.column("topic").to_pylist()]
        if any(not topic for topic in topics):
            raise RowRefusedError(
                "NULL_TOPIC",
                "A row's topic is null and the option topic is not set: set it, or fill the column.",
                column="topic",
            )
        return topics


def _as_bytes(chunk: pa.RecordBatch, name: str) -> list[bytes | None]:
    if name not in chunk.schema.names:
        return [None] * chunk.num_rows
    import pyarrow as pa

    column = chunk.column(name)
    # Between string and binary only the type changes: their bytes are not copied.
    kind = pa.large_binary() if column.type in (pa.large_string(), pa.large_binary()) else pa.binary()
    rows: list[bytes | None] = column.cast(kind).to_pylist()
    return rows


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else (value or "")


def _headers(headers: Sequence[Any], topic: str, row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """A row's headers as the client takes them. Kafka has no header without a key; Spark's own sink fails there, too."""
    for number, header in enumerate(headers):
        if header is None or header["key"] is None:
            size = len(row["value"] or b"") + len(row["key"] or b"")
            raise RowRefusedError(
                "ROW_REFUSED",
                f"A row of {size} bytes for {topic} has a header whose key is null (number {number} in its column headers, "
                "counted from 0), which Kafka does not allow. Give it a key, or leave it out: "
                "filter(headers, h -> h.key IS NOT NULL).",
                topic=topic,
                header=number,
                size=size,
            )
    return [(_text(header["key"]), _bytes(header["value"])) for header in headers]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _fits(name: str, kind: pa.DataType) -> bool:
    import pyarrow as pa

    # A column that is null in every row has no type of its own.
    if pa.types.is_null(kind):
        return name != "topic"
    if name == "partition":
        return bool(pa.types.is_integer(kind))
    if name == "headers":
        entry = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
        if entry is None or not pa.types.is_struct(entry) or {f.name for f in entry} != {"key", "value"}:
            return False
        return all(_is_bytes(field.type) for field in entry)
    return _is_bytes(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    return any(test(kind) for test in tests)
