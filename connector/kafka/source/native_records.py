"""Rows as librdkafka delivers them, and a consumer of its own: `records` without a Python object per row."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from connector.kafka.client.topics import Partition
from connector.kafka.native.columns import Columns
from connector.kafka.native.library import COMPLAINT, Library
from connector.kafka.source.records import Notice, Records
from connector.kafka.source.rows import HEADERS, UNREADABLE_HEADER, assemble, bad_record, headers_type
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError

__all__ = ["NativeConsumer", "NativeRecords"]

CONSUMER: Final = 1
WATERMARK_MS: Final = 10_000
LARGEST_COLUMN: Final = 2**31 - 1
"""Bytes that a column of Arrow's binary type holds at most."""

Array = np.ndarray[Any, Any]


class _Client:
    """One client of the library. It ends when nothing refers to it any more, after it has freed its messages.

    The library can't end a client before all of its messages are freed: it would wait forever. In a cycle of objects, Python's
    collector may finalize the client before the objects that hold its messages. So the client knows which are not freed yet.
    """

    def __init__(
        self, library: Library, columns: Columns, settings: Mapping[str, Any], complain: Callable[[KafkaError], None]
    ) -> None:
        self._library = library
        self._columns = columns
        self._destroy = library.address("message_destroy")
        self._process = os.getpid()
        self._unfreed: dict[int, Array] = {}
        self.client = self.queue = 0
        # The library keeps a bare pointer to it: it lives as long as the client. It knows no `self`: that would be a cycle.
        self._callback = _complaint(complain)
        configuration = library.configuration(settings)
        library.conf_set_error_cb(configuration, self._callback)
        self.client = library.client(CONSUMER, configuration)
        library.poll_set_consumer(self.client)
        self.queue = library.queue_get_consumer(self.client)

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if self.client and process() == self._process:  # a forked copy has none of its threads
            for address in list(self._unfreed):
                self.free(address)
            self._library.queue_destroy(self.queue)
            self._library.destroy(self.client)

    def own(self, messages: Array) -> int:
        """Keep messages until `free` is called with the returned key, or the client ends."""
        address = int(messages.ctypes.data)
        self._unfreed[address] = messages
        return address

    def free(self, address: int) -> None:
        """Free the messages of an array, once."""
        messages = self._unfreed.pop(address, None)
        if messages is not None:
            self._columns.destroy(messages.ctypes.data, len(messages), self._destroy)


def _complaint(complain: Callable[[KafkaError], None]) -> Any:
    from confluent_kafka import (
        KafkaError,  # here: nothing can be imported any more when the last client of a program ends
    )

    def on_complaint(client: int, code: int, reason: bytes | None, opaque: int) -> None:
        complain(KafkaError(code, (reason or b"").decode(errors="replace")))

    return COMPLAINT(on_complaint)


class _Held:
    """Messages of the library, which are freed when nothing refers to them any more. Their client lives at least as long."""

    def __init__(self, client: _Client, messages: Array) -> None:
        self._client = client
        self._address = client.own(messages)
        self._process = os.getpid()

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if process() == self._process:
            self._client.free(self._address)


class NativeRecords:
    """Rows as messages of the library.

    Parameters
    ----------
    library : Library
    columns : Columns
    messages : numpy.ndarray of uint64
        Where they lie.
    offsets : numpy.ndarray of int64
    held : Sequence[object]
        What keeps them alive.
    """

    def __init__(
        self, library: Library, columns: Columns, messages: Array, offsets: Array, held: Sequence[object]
    ) -> None:
        self._library = library
        self._columns = columns
        self._messages = np.ascontiguousarray(messages)
        self._offsets = offsets
        self._held = tuple(held)
        sizes = np.zeros(2, np.int64)
        keys = sizes.ctypes.data
        columns.sizes(self._messages.ctypes.data, len(messages), keys, keys + 8)
        self._key_bytes, self._value_bytes = sizes.tolist()

    @property
    def last(self) -> int:
        """The last row's offset."""
        return int(self._offsets[-1])

    @property
    def size(self) -> int:
        """How many bytes their keys and values have."""
        return int(self._key_bytes + self._value_bytes)

    def __len__(self) -> int:
        return len(self._messages)

    def before(self, end: int) -> NativeRecords | None:
        """Return the rows before this offset, None if there is none."""
        kept = int(np.searchsorted(self._offsets, end))
        if kept == len(self):
            return self
        return self._of(self._messages[:kept], self._offsets[:kept], self._held) if kept else None

    def joined(self, others: Sequence[NativeRecords]) -> NativeRecords:
        """Return these rows and those of the others, which follow them."""
        if not others:
            return self
        all_of = [self, *others]
        return self._of(
            np.concatenate([one._messages for one in all_of]),
            np.concatenate([one._offsets for one in all_of]),
            [held for one in all_of for held in one._held],
        )

    def _of(self, messages: Array, offsets: Array, held: Sequence[object]) -> NativeRecords:
        return NativeRecords(self._library, self._columns, messages, offsets, held)

    def to_batch(self, at: Partition, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return them in the schema of `connector.kafka.source.rows.arrow_schema`.

        Raises
        ------
        StoreError
            ``BAD_RECORD``: a timestamp or a header that no column can hold; ``READ_FAILED``: more bytes than a column holds.
        """
        sizes = {"key": self._key_bytes, "value": self._value_bytes}
        self._check_size(at, *(sizes.get(name, 0) for name in columns))
        own = {
            "key": lambda: self._bytes(0, self._key_bytes),
            "value": lambda: self._bytes(1, self._value_bytes),
            HEADERS: lambda: self._headers(at),
        }
        return assemble(at, columns, self._offsets, self._times, own)

    def _check_size(self, at: Partition, *sizes: int) -> None:
        """Refuse what the columns' 32-bit offsets can't count: only a client's queue of gigabytes holds that much."""
        if max(sizes) > LARGEST_COLUMN:
            raise StoreError(
                "READ_FAILED",
                partition=str(at),
                offset=int(self._offsets[0]),
                reason=f"{max(sizes)} bytes of one column came at once, which can hold {LARGEST_COLUMN}: set "
                "kafka.queued.max.messages.kbytes lower",
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

    def _headers(self, at: Partition) -> pa.Array:
        import pyarrow as pa

        count, messages = len(self), self._messages.ctypes.data
        read = self._library.address("message_headers"), self._library.address("header_get_all")
        counts, sizes = np.empty(count, np.int32), np.zeros(2, np.int64)
        first = sizes.ctypes.data
        total = self._columns.header_sizes(messages, count, *read, counts.ctypes.data, first, first + 8)
        self._check_size(at, total, *sizes.tolist())
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
            raise bad_record(
                at, self._offset_of(_first_unreadable(name_ends, names), ends), UNREADABLE_HEADER
            ) from None
        kind = headers_type()
        entries = pa.StructArray.from_arrays(
            [keys, pa.Array.from_buffers(pa.binary(), total, _buffers(valid, value_ends, values), nulls)],
            fields=list(kind.value_type),
        )
        present = None if (counts >= 0).all() else np.packbits(counts >= 0, bitorder="little")
        return pa.Array.from_buffers(kind, count, _buffers(present, ends), children=[entries])

    def _offset_of(self, header: int, ends: Array) -> int:
        """Return the offset of the row that has this header."""
        return int(self._offsets[np.searchsorted(ends, header, side="right") - 1])


class NativeConsumer:
    """A consumer that reads one partition at a time.

    Parameters
    ----------
    library : Library
    columns : Columns
    settings : Mapping[str, Any]
        librdkafka's; without Python callbacks.
    complain : Callable[[KafkaError], None]
        Called within `take` with what the client says of its brokers.

    Raises
    ------
    confluent_kafka.KafkaException
        The settings are not the library's.
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

    def begin(self, at: Partition, offset: int) -> None:
        """Deliver this partition's rows from this offset on, and nothing that was asked for before."""
        library, topic = self._library, at.topic.encode()
        wanted = library.topic_partition_list_new(1)
        library.topic_partition_list_add(wanted, topic, at.number)
        library.topic_partition_list_set_offset(wanted, topic, at.number, offset)
        code = library.assign(self._client.client, wanted)
        library.topic_partition_list_destroy(wanted)
        library.check_code(code)

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return what it has, in order, at most `most` rows; if it has none, wait up to `seconds` for the first."""
        # Asked for more than one, the library waits until it has them all.
        messages = self._consume(most, 0)
        if not len(messages):
            messages = self._consume(1, int(seconds * 1000))
        count = len(messages)
        if not count:
            return []
        held = (_Held(self._client, messages),)
        errors, offsets = np.empty(count, np.int32), np.empty(count, np.int64)
        good = self._columns.scan(messages.ctypes.data, count, errors.ctypes.data, offsets.ctypes.data)
        if good == count:
            return [NativeRecords(self._library, self._columns, messages, offsets, held)]
        taken: list[Records | Notice] = []
        start = 0
        for at in [*np.flatnonzero(errors).tolist(), count]:
            if start < at:
                part = slice(start, at)
                taken.append(NativeRecords(self._library, self._columns, messages[part], offsets[part], held))
            if at < count:
                taken.append(self._notice(int(messages[at]), int(errors[at]), int(offsets[at])))
            start = at + 1
        return taken

    def _consume(self, most: int, milliseconds: int) -> Array:
        found = np.empty(most, np.uint64)
        count = self._library.consume_batch_queue(self._client.queue, milliseconds, found.ctypes.data, most)
        return found[: max(0, count)]  # behind the count may be messages that the library has freed itself

    def _notice(self, message: int, code: int, offset: int) -> Notice:
        from confluent_kafka import KafkaError

        reason = self._library.message_errstr(message) or b""
        return Notice(KafkaError(code, reason.decode(errors="replace")), offset)

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the leader for the first offset that it holds, and the one after the last; None without an answer."""
        first, last = ctypes.c_int64(-1), ctypes.c_int64(-1)
        code = self._library.query_watermark_offsets(
            self._client.client, at.topic.encode(), at.number, ctypes.byref(first), ctypes.byref(last), WATERMARK_MS
        )
        return None if code else (first.value, last.value)

    def rest(self) -> None:
        """Deliver nothing until the next `begin`."""
        self._library.check_code(self._library.assign(self._client.client, None))

    def close(self) -> None:
        """Let go of its threads and connections."""
        self._library.consumer_close(self._client.client)


def _bitmap(count: int) -> Array:
    return np.zeros((count + 7) // 8, np.uint8)


def _buffers(valid: Array | None, *arrays: Array) -> list[Any]:
    import pyarrow as pa

    return [None if valid is None else pa.py_buffer(valid), *map(pa.py_buffer, arrays)]


def _first_unreadable(ends: Array, names: Array) -> int:
    """Return the number of the first name that is not UTF-8."""
    data = names.tobytes()
    spans = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return next(number for number, (start, end) in enumerate(spans) if not _is_text(data[start:end]))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
