"""Implements the interfaces in `records` with librdkafka's own messages, without a Python object per row."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from connector.kafka.client.topics import Partition
from connector.kafka.native.columns import Columns
from connector.kafka.native.library import COMPLAINT, Library, Message
from connector.kafka.source.reading.records import Notice, Records
from connector.kafka.source.rows import HEADERS, UNREADABLE_HEADER, Runs, assemble, bad_record, headers_type
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError

CONSUMER: Final = 1
WATERMARK_MS: Final = 10_000
NOTICES: Final = 100
"""The maximum number of notices to take in one call."""
LARGEST_COLUMN: Final = 2**31 - 1
"""Maximum number of bytes in a column of Arrow's binary type."""

Array = np.ndarray[Any, Any]


class _Client:
    """One client of librdkafka. When nothing refers to this object anymore, its messages are freed, and then the client ends.

    The library can't end a client before all messages of the client are freed: the call would wait forever. In a cycle of
    objects, Python's collector may finalize the client before the objects that hold its messages. So the client records
    which messages are not freed yet.
    """

    def __init__(
        self, library: Library, columns: Columns, settings: Mapping[str, Any], complain: Callable[[KafkaError], None]
    ) -> None:
        self._library = library
        self._columns = columns
        self._destroy = library.address("message_destroy")
        self._process = os.getpid()
        self._unfreed: dict[int, Array] = {}
        self.queues: dict[Partition, int] = {}
        self.client = self.queue = 0
        # The library keeps a bare pointer to the callback, so the callback must live as long as the client. It does not
        # refer to `self`, because that would be a cycle.
        self._callback = _complaint(complain)
        configuration = library.configuration(settings)
        library.conf_set_error_cb(configuration, self._callback)
        self.client = library.client(CONSUMER, configuration)
        library.poll_set_consumer(self.client)
        self.queue = library.queue_get_consumer(self.client)

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if self.client and process() == self._process:  # a forked process has none of the client's threads
            for address in list(self._unfreed):
                self.free(address)
            for queue in [*self.queues.values(), self.queue]:
                self._library.queue_destroy(queue)
            self._library.destroy(self.client)

    def own(self, messages: Array) -> int:
        """Keep messages until `free` is called with the returned key, or the client ends."""
        address = int(messages.ctypes.data)
        self._unfreed[address] = messages
        return address

    def free(self, address: int) -> None:
        """Free the messages for which `own` returned this key. Call this exactly once for each key."""
        messages = self._unfreed.pop(address, None)
        if messages is not None:
            self._columns.destroy(address, len(messages), self._destroy)


def _complaint(complain: Callable[[KafkaError], None]) -> Any:
    from confluent_kafka import (
        KafkaError,  # imported here, because nothing can be imported when the last client of a program ends
    )

    def on_complaint(client: int, code: int, reason: bytes | None, opaque: int) -> None:
        complain(KafkaError(code, (reason or b"").decode(errors="replace")))

    return COMPLAINT(on_complaint)


class _Held:
    """Keeps librdkafka's messages and their client alive. The messages are freed when nothing refers to this object."""

    def __init__(self, client: _Client, messages: Array) -> None:
        self._client = client
        self._address = client.own(messages)
        self._process = os.getpid()

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if process() == self._process:
            self._client.free(self._address)


class NativeRecords:
    """Rows that are held as librdkafka's own messages, by their addresses in memory."""

    def __init__(
        self, library: Library, columns: Columns, messages: Array, offsets: Array, held: Sequence[object], runs: Runs
    ) -> None:
        self._library = library
        self._columns = columns
        self._messages = np.ascontiguousarray(messages)  # The addresses of the messages.
        self._offsets = offsets
        self._held = tuple(held)  # Objects that keep the messages alive.
        self._runs = runs  # The rows' partitions.
        sizes = np.zeros(2, np.int64)
        keys = sizes.ctypes.data
        columns.sizes(self._messages.ctypes.data, len(messages), keys, keys + 8)
        self._key_bytes, self._value_bytes = sizes.tolist()

    @property
    def first(self) -> int:
        """The first row's offset."""
        return int(self._offsets[0])

    @property
    def last(self) -> int:
        """The last row's offset."""
        return int(self._offsets[-1])

    @property
    def size(self) -> int:
        """The number of bytes in the rows' keys and values."""
        return int(self._key_bytes + self._value_bytes)

    def __len__(self) -> int:
        return len(self._messages)

    def before(self, end: int) -> NativeRecords | None:
        """Return the rows before an offset; None if there are none. All rows must be from one partition."""
        kept = int(np.searchsorted(self._offsets, end))
        if kept == len(self):
            return self
        runs = ((self._runs[0][0], kept),)
        return self._of(self._messages[:kept], self._offsets[:kept], self._held, runs) if kept else None

    def joined(self, others: Sequence[NativeRecords]) -> NativeRecords:
        """Return these rows, followed by the rows of `others`."""
        if not others:
            return self
        all_of = [self, *others]
        return self._of(
            np.concatenate([one._messages for one in all_of]),
            np.concatenate([one._offsets for one in all_of]),
            [held for one in all_of for held in one._held],
            tuple(run for one in all_of for run in one._runs),
        )

    def _of(self, messages: Array, offsets: Array, held: Sequence[object], runs: Runs) -> NativeRecords:
        return NativeRecords(self._library, self._columns, messages, offsets, held, runs)

    def to_batch(self, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the rows as a record batch with the schema of `connector.kafka.source.rows.arrow_schema`."""
        sizes = {"key": self._key_bytes, "value": self._value_bytes}
        self._check_size(*(sizes.get(name, 0) for name in columns))
        own = {
            "key": lambda: self._bytes(0, self._key_bytes),
            "value": lambda: self._bytes(1, self._value_bytes),
            HEADERS: self._headers,
        }
        return assemble(self._runs, columns, self._offsets, self._times, own)

    def _check_size(self, *sizes: int) -> None:
        """Raise if a column is too large for Arrow's 32-bit offsets.

        This is possible only if the client's queue is set to several gigabytes.
        """
        if max(sizes) > LARGEST_COLUMN:
            raise StoreError(
                "READ_FAILED",
                partition=str(self._runs[0][0]),
                offset=int(self._offsets[0]),
                reason=f"{max(sizes)} bytes of one column arrived together, but a batch can hold only {LARGEST_COLUMN}: set "
                "kafka.queued.max.messages.kbytes to a lower value",
            )

    def _times(self) -> tuple[Array, Array]:
        count, read = len(self), self._library.address("message_timestamp")
        millis, kinds = np.empty(count, np.int64), np.empty(count, np.int32)
        self._columns.times(self._messages.ctypes.data, count, read, millis.ctypes.data, kinds.ctypes.data)
        return millis, kinds

    def _bytes(self, which: int, size: int) -> pa.Array:
        import pyarrow as pa

        count = len(self)
        ends, data, valid = np.empty(count + 1, np.int32), np.empty(size, np.uint8), _bitmap(count)
        nulls = self._columns.bytes(
            self._messages.ctypes.data, count, which, ends.ctypes.data, data.ctypes.data, valid.ctypes.data
        )
        return pa.Array.from_buffers(pa.binary(), count, _buffers(valid, ends, data), nulls)

    def _headers(self) -> pa.Array:
        import pyarrow as pa

        count, messages = len(self), self._messages.ctypes.data
        read = self._library.address("message_headers"), self._library.address("header_get_all")
        counts, sizes = np.empty(count, np.int32), np.zeros(2, np.int64)
        first = sizes.ctypes.data
        total = self._columns.header_sizes(messages, count, *read, counts.ctypes.data, first, first + 8)
        self._check_size(total, *sizes.tolist())
        names, values = np.empty(sizes[0], np.uint8), np.empty(sizes[1], np.uint8)
        name_ends, value_ends, valid = np.empty(total + 1, np.int32), np.empty(total + 1, np.int32), _bitmap(total)
        nulls = self._columns.headers(
            messages,
            count,
            *read,
            *(one.ctypes.data for one in (name_ends, names, value_ends, values, valid)),
        )
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(np.maximum(counts, 0), out=ends[1:])
        keys = pa.Array.from_buffers(pa.string(), total, _buffers(None, name_ends, names), 0)
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid:
            row = int(np.searchsorted(ends, _first_unreadable(name_ends, names), side="right")) - 1
            raise bad_record(self._runs, row, int(self._offsets[row]), UNREADABLE_HEADER) from None
        kind = headers_type()
        entries = pa.StructArray.from_arrays(
            [keys, pa.Array.from_buffers(pa.binary(), total, _buffers(valid, value_ends, values), nulls)],
            fields=list(kind.value_type),
        )
        present = None if (counts >= 0).all() else np.packbits(counts >= 0, bitorder="little")
        return pa.Array.from_buffers(kind, count, _buffers(present, ends), children=[entries])


class NativeConsumer:
    """A consumer that reads one partition at a time, and can fetch others meanwhile.

    Each partition has its own queue. Otherwise, the rows of all partitions would be mixed in one queue.

    Parameters
    ----------
    library : Library
    columns : Columns
    settings : Mapping[str, Any]
        Settings of librdkafka, without Python callbacks.
    complain : Callable[[KafkaError], None]
        Called during `take` with each error that the client reports about its brokers.

    Raises
    ------
    confluent_kafka.KafkaException
        librdkafka rejects the settings.
    """

    def __init__(
        self,
        library: Library,
        columns: Columns,
        settings: Mapping[str, Any],
        complain: Callable[[KafkaError], None],
    ) -> None:
        self._library = library
        self._columns = columns
        self._client = _Client(library, columns, settings, complain)
        self._at = Partition("", 0)
        self._prepared: dict[Partition, int] = {}

    def begin(self, at: Partition, offset: int) -> None:
        """Start delivering this partition's rows from this offset on. Drop rows that remain from an earlier `begin`."""
        ready = self._prepared.pop(at, None) == offset
        self._release([old for old in self._client.queues if old not in self._prepared and not (old == at and ready)])
        if not ready:
            self._fetch({at: offset})
        self._at = at

    def prepare(self, starts: Mapping[Partition, int]) -> None:
        """Start fetching rows from these offsets on, before `begin` asks for them."""
        self._fetch(starts)
        self._prepared |= starts

    def _fetch(self, starts: Mapping[Partition, int]) -> None:
        library, client, queues = self._library, self._client.client, self._client.queues
        wanted = library.topic_partition_list_new(len(starts))
        for at, offset in starts.items():
            topic = at.topic.encode()
            queue = library.queue_get_partition(client, topic, at.number)
            if not queue:
                raise StoreError(
                    "READ_FAILED",
                    partition=str(at),
                    offset=offset,
                    reason="the Kafka client has no queue for this partition",
                )
            # Without a queue to forward to, the rows stay in the partition's queue. Set before the first row can arrive.
            library.queue_forward(queue, None)
            queues[at] = queue
            library.topic_partition_list_add(wanted, topic, at.number)
            library.topic_partition_list_set_offset(wanted, topic, at.number, offset)
        error = library.incremental_assign(client, wanted)
        library.topic_partition_list_destroy(wanted)
        library.check(error)

    def _release(self, partitions: Sequence[Partition]) -> None:
        """Stop fetching rows from these partitions, and drop the rows that have already arrived."""
        if not partitions:
            return
        library = self._library
        wanted = library.topic_partition_list_new(len(partitions))
        for at in partitions:
            library.topic_partition_list_add(wanted, at.topic.encode(), at.number)
        error = library.incremental_unassign(self._client.client, wanted)
        library.topic_partition_list_destroy(wanted)
        library.check(error)
        for at in partitions:
            queue = self._client.queues.pop(at)
            # The client frees the rows in a queue only when the queue is read. They are out of date now, so none is returned.
            _Held(self._client, self._consume(queue, 1, 0))
            library.queue_destroy(queue)

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return up to `most` rows and notices that have arrived, in order. If there are none, wait up to `seconds`."""
        # If it is asked to wait for several messages, the library waits until it has all of them.
        queue = self._client.queues[self._at]
        messages = self._consume(queue, most, 0)
        if not len(messages):
            messages = self._consume(queue, 1, int(seconds * 1000))
        held = (_Held(self._client, messages),)
        taken = self._notices()
        count = len(messages)
        if not count:
            return taken
        errors, offsets = np.empty(count, np.int32), np.empty(count, np.int64)
        good = self._columns.scan(messages.ctypes.data, count, errors.ctypes.data, offsets.ctypes.data)

        def part(start: int, end: int) -> NativeRecords:
            runs = ((self._at, end - start),)
            return NativeRecords(self._library, self._columns, messages[start:end], offsets[start:end], held, runs)

        if good == count:
            return [*taken, part(0, count)]
        start = 0
        for at in [*np.flatnonzero(errors).tolist(), count]:
            if start < at:
                taken.append(part(start, at))
            if at < count:
                taken.append(self._notice(int(messages[at]), int(errors[at]), int(offsets[at])))
            start = at + 1
        return taken

    def _notices(self) -> list[Records | Notice]:
        """Return errors of the client and of topics. They do not arrive in the partitions' queues."""
        messages = self._consume(self._client.queue, NOTICES, 0)
        if not len(messages):
            return []
        held = _Held(self._client, messages)
        found: list[Records | Notice] = []
        for address in messages.tolist():
            message = Message.from_address(address)
            topic = self._library.topic_name(message.topic).decode() if message.topic else None
            at = None if topic is None else Partition(topic, message.partition)
            if not message.err:  # a row outside of its queue would be missing, without a sign
                raise StoreError(
                    "READ_FAILED",
                    partition=str(at),
                    offset=message.offset,
                    reason="the client delivered this row outside of its partition's queue",
                )
            found.append(replace(self._notice(address, message.err, message.offset), at=at))
        del held
        return found

    def _consume(self, queue: int, most: int, milliseconds: int) -> Array:
        found = np.empty(most, np.uint64)
        count = self._library.consume_batch_queue(queue, milliseconds, found.ctypes.data, most)
        return found[: max(0, count)]  # after the count, there may be messages that the library has freed itself

    def _notice(self, message: int, code: int, offset: int) -> Notice:
        from confluent_kafka import KafkaError

        reason = self._library.message_errstr(message) or b""
        return Notice(KafkaError(code, reason.decode(errors="replace")), offset)

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the partition's leader for the first offset and the end offset. Return None if there is no answer."""
        first, last = ctypes.c_int64(-1), ctypes.c_int64(-1)
        code = self._library.query_watermark_offsets(
            self._client.client, at.topic.encode(), at.number, ctypes.byref(first), ctypes.byref(last), WATERMARK_MS
        )
        return None if code else (first.value, last.value)

    def rest(self) -> None:
        """Stop delivering rows until the next `begin`."""
        self._prepared.clear()
        self._release(list(self._client.queues))
        self._notices()

    def close(self) -> None:
        """Release the client's threads and connections."""
        self._library.consumer_close(self._client.client)


def _bitmap(count: int) -> Array:
    return np.zeros((count + 7) // 8, np.uint8)


def _buffers(valid: Array | None, *arrays: Array) -> list[Any]:
    import pyarrow as pa

    return [None if valid is None else pa.py_buffer(valid), *map(pa.py_buffer, arrays)]


def _first_unreadable(ends: Array, names: Array) -> int:
    """Return the index of the first header name that is not UTF-8."""
    data = names.tobytes()
    spans = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return next(number for number, (start, end) in enumerate(spans) if not _is_text(data[start:end]))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
