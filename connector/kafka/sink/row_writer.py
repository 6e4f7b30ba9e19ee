"""Check the columns of Arrow batches, and put their rows into the queue of a librdkafka producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.topics import is_topic_name
from connector.kafka.native.producer import ArrowProducer
from connector.kafka.sink.deliveries import (
    Deliveries,
    no_topic,
    no_topic_name,
    not_queued,
    raise_cause,
    serve,
    wait_for,
    write_error,
    wrong_partition,
)
from transactional.errors import OptionError, RowRefusedError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

COLUMNS: Final[Mapping[str, str]] = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
}
"""The columns that the sink accepts (as Spark's Kafka sink does), with Spark's names for their types."""

CHUNK_ROWS: Final = 10_000
"""The maximum number of rows in one call of librdkafka: enough to benefit from its batch call, but few compared to its
queue, which holds 100,000 rows."""

CHUNK_BYTES: Final = 32 << 20
"""The maximum number of bytes in one call of librdkafka. This limits the memory for copies of the rows, in Python
objects and in librdkafka."""

QUEUED_BYTES: Final = 256 << 20
"""The maximum number of bytes that wait for delivery. If the user sets a lower buffer.memory, the lower limit applies."""

USUAL_PART: Final = 4
"""Usually, at most 1/4 of the maximum number of bytes waits for delivery. The size of the waiting rows is only an
estimate; see `_Waiting`."""

DEFAULT_QUEUE_ROWS: Final = 100_000
"""librdkafka's default for queue.buffering.max.messages."""

LARGEST_PARTITION: Final = 2**31 - 1

POLL_SECONDS: Final = 0.02


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Check the names and types of the rows' columns, without a connection."""
    names = schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names:
        raise OptionError(
            "COLUMNS_MISMATCH",
            owner="2pc-kafka",
            reason=f"the column value is missing; the query has {', '.join(names) or 'no column'} (for JSON: "
            "df.selectExpr('to_json(struct(*)) AS value'))",
            column="value",
            columns=list(names),
        )
    if unknown or len(set(names)) < len(names):
        wrong = unknown or sorted({name for name in names if names.count(name) > 1})
        raise OptionError(
            "COLUMNS_MISMATCH",
            owner="2pc-kafka",
            reason=f"the sink can't write {', '.join(wrong)}: it accepts {', '.join(COLUMNS)}, each once",
            columns=wrong,
        )
    for field in schema:
        if not _fits(field.name, field.type):
            raise OptionError(
                "COLUMNS_MISMATCH",
                owner="2pc-kafka",
                reason=f"the column {field.name} is {field.type}; it must be {COLUMNS[field.name]}",
                column=field.name,
                type=str(field.type),
            )
    if topic is None and "topic" not in names:
        raise OptionError("MISSING_OPTION", owner="2pc-kafka", option="topic", reason="the rows have no column topic")


class RowWriter:
    """Writes Arrow batches into a producer's queue, in order, without overfilling it."""

    def __init__(
        self,
        schema: pa.Schema,
        topic: str | None,
        queue_rows: int = DEFAULT_QUEUE_ROWS,
        queue_bytes: int = QUEUED_BYTES,
        check_topic: Callable[[str], None] = lambda _: None,
    ) -> None:
        check_columns(schema, topic)
        # Called once with each topic that a row names, before a row for it is queued, because a producer's first request for a
        # topic can make brokers create it.
        self._check_topic = check_topic
        self._topics_seen: set[str] = set()
        self._names = frozenset(schema.names)
        self._topic = topic  # The topic of all rows; None if a column names each row's topic.
        # The producer's queue.buffering.max.messages; 0 means no limit.
        self._queue_rows = queue_rows or DEFAULT_QUEUE_ROWS
        # The largest number of bytes that wait for delivery. A single larger row waits alone.
        self._queue_bytes = queue_bytes
        self._waiting = _Waiting()

    def write(self, producer: Producer | ArrowProducer, batch: pa.RecordBatch, deliveries: Deliveries) -> None:
        """Queue a batch's rows, after waiting for room in the queue. Return before the rows are delivered."""
        for chunk in self._chunks(batch):
            self._make_room(producer, chunk, deliveries)
            if isinstance(producer, ArrowProducer):
                from connector.kafka.sink.arrow_rows import queue_rows  # imports numpy, which only tasks need

                queue_rows(producer, chunk, self._topic, deliveries, self._check_new)
            else:
                self._queue_objects(producer, chunk, deliveries)
            serve(lambda: producer.poll(0), deliveries)
            deliveries.check()

    def _check_new(self, topic: str) -> None:
        if topic in self._topics_seen:
            return
        if not is_topic_name(topic):
            raise no_topic_name(topic)
        self._check_topic(topic)
        self._topics_seen.add(topic)

    def _queue_objects(self, producer: Producer, chunk: pa.RecordBatch, deliveries: Deliveries) -> None:
        values, keys = _as_bytes(chunk, "value"), _as_bytes(chunk, "key")
        if self._needs_rows(chunk):
            self._write_rows(producer, chunk, values, keys, deliveries)
        elif self._topic is not None:
            self._write_batch(producer, self._topic, values, keys, deliveries)
        else:
            for topic, rows in self._by_topic(chunk).items():
                self._check_new(topic)
                chosen = [values[i] for i in rows], [keys[i] for i in rows]
                self._write_batch(producer, topic, *chosen, deliveries)

    def _chunks(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        # Half of what usually waits: one chunk is delivered while the next one is read.
        most = min(CHUNK_BYTES, self._queue_bytes // USUAL_PART // 2)
        rows = max(1, min(CHUNK_ROWS, most // row_bytes, self._queue_rows // 2))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _make_room(self, producer: Producer | ArrowProducer, chunk: pa.RecordBatch, deliveries: Deliveries) -> None:
        # If the queue is full, a batch call drops rows from the middle of the batch, which breaks their order.
        wait_for(producer, deliveries, lambda waiting: self._has_room(waiting, chunk))
        self._waiting.add(chunk)

    def _has_room(self, waiting: int, chunk: pa.RecordBatch) -> bool:
        usual = self._waiting.bytes_of(waiting) + chunk.nbytes <= self._queue_bytes // USUAL_PART
        fits = usual and self._waiting.since_empty + chunk.nbytes <= self._queue_bytes
        return not waiting or (waiting + chunk.num_rows <= self._queue_rows and fits)

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
            raise_cause(problem.args[0], producer, deliveries)
            raise write_error(problem.args[0], topic, None, 0) from None
        if queued < len(messages):
            # A producer that has failed permanently accepts no rows, and raises nothing here.
            serve(lambda: producer.poll(0), deliveries)
            deliveries.check()
            refused = next((m for m in messages if "_error" in m), None)
            if refused is None:
                raise not_queued(len(messages) - queued, topic)
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
        for name in dict.fromkeys(topics):
            if name is not None:
                self._check_new(name)
        for value, key, header, partition, topic in zip(values, keys, headers, partitions, topics, strict=True):
            to = self._topic or topic or ""
            row: dict[str, Any] = {"value": value, "key": key}
            if header:
                row["headers"] = _headers(header, to, row)
            if partition is not None:
                if not 0 <= partition <= LARGEST_PARTITION:
                    raise wrong_partition(partition, to)
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
                raise_cause(problem.args[0], producer, deliveries)
                size = len(value or b"") + len(key or b"")
                raise write_error(problem.args[0], to, partition, size) from None

    def _by_topic(self, chunk: pa.RecordBatch) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, topic in enumerate(self._topics(chunk)):
            rows.setdefault(topic, []).append(row)
        return rows

    @staticmethod
    def _topics(chunk: pa.RecordBatch) -> list[str]:
        topics = [_text(topic) for topic in chunk.column("topic").to_pylist()]
        if any(not topic for topic in topics):
            raise no_topic()
        return topics


class _Waiting:
    """Estimates how many bytes wait for delivery. The producer counts only rows; the oldest are assumed to be sent first.

    Attributes
    ----------
    since_empty : int
        The bytes that were queued since the queue was last empty. The waiting bytes are never more than that, even if the
        assumption is wrong, for example because the largest rows wait for a leader that does not answer.
    """

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, int]] = deque()  # rows and bytes of each
        self._rows = self._bytes = self.since_empty = 0

    def add(self, chunk: pa.RecordBatch) -> None:
        self._count(chunk.num_rows, chunk.nbytes)
        self._chunks.append((chunk.num_rows, chunk.nbytes))
        self.since_empty += chunk.nbytes

    def bytes_of(self, rows: int) -> int:
        """Return the size of the chunks that contain the `rows` newest rows, and forget all other chunks."""
        while self._chunks and self._rows - self._chunks[0][0] >= rows:
            count, size = self._chunks.popleft()
            self._count(-count, -size)
        if not rows:
            self.since_empty = 0
        return self._bytes

    def _count(self, rows: int, size: int) -> None:
        self._rows += rows
        self._bytes += size


def _as_bytes(chunk: pa.RecordBatch, name: str) -> list[bytes | None]:
    if name not in chunk.schema.names:
        return [None] * chunk.num_rows
    import pyarrow as pa

    column = chunk.column(name)
    # A cast between string and binary only changes the type: the bytes are not copied.
    kind = pa.large_binary() if column.type in (pa.large_string(), pa.large_binary()) else pa.binary()
    rows: list[bytes | None] = column.cast(kind).to_pylist()
    return rows


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else (value or "")


def _headers(headers: Sequence[Any], topic: str, row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return a row's headers as confluent-kafka expects them. Reject a missing key, and a key with a zero byte."""
    for number, header in enumerate(headers):
        if header is None or header["key"] is None:
            size = len(row["value"] or b"") + len(row["key"] or b"")
            raise RowRefusedError(
                "ROW_REFUSED",
                owner="2pc-kafka",
                reason=f"it has {size} bytes for {topic}, and a header whose key is null (number {number} in the column "
                "headers, counted from 0). Kafka does not allow this. Remove such headers: filter(headers, h -> h.key IS "
                "NOT NULL)",
                topic=topic,
                header=number,
                size=size,
            )
        if "\0" in _text(header["key"]):
            raise RowRefusedError(
                "ROW_REFUSED",
                owner="2pc-kafka",
                reason=f"it is for {topic}, and has a header whose key contains a zero byte (number {number} in the column "
                "headers, counted from 0). The client would cut the key at that byte",
                topic=topic,
                header=number,
            )
    return [(_text(header["key"]), _bytes(header["value"])) for header in headers]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _fits(name: str, kind: pa.DataType) -> bool:
    import pyarrow as pa

    # A column that is null in every row can have the type null.
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
