"""The C functions of the librdkafka that confluent-kafka has loaded, called through ctypes.

The library is found through confluent-kafka's extension module, so it is always the same library, wherever it is installed.
Only its public C interface is used, whose layout is fixed within a major version. Other major versions are not used.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import sys
from collections.abc import Mapping
from ctypes import CFUNCTYPE, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import lru_cache
from typing import Any, Final

_log = logging.getLogger(__name__)

OBJECTS_ONLY: Final = "BARRIER_KAFKA_OBJECTS"
"""The name of an environment variable. If it is 1, all rows go through confluent-kafka's objects."""

MAJOR: Final = 2
"""The major version of librdkafka whose layout is known."""

ERROR_TEXT_BYTES: Final = 512

INVALID_ARGUMENT: Final = -186
"""librdkafka's error code ``RD_KAFKA_RESP_ERR__INVALID_ARG``."""


class Message(ctypes.Structure):
    """librdkafka's type ``rd_kafka_message_t``."""

    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


class _TopicMetadata(ctypes.Structure):
    """librdkafka's type ``rd_kafka_metadata_topic``."""

    _fields_ = [("topic", c_char_p), ("count", c_int), ("partitions", c_void_p), ("err", c_int)]


class _Metadata(ctypes.Structure):
    """The first fields of librdkafka's type ``rd_kafka_metadata``."""

    _fields_ = [
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("count", c_int),
        ("topics", ctypes.POINTER(_TopicMetadata)),
    ]


REPORT: Final = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
"""The type of a callback for delivery reports. Arguments: client, message, opaque."""

COMPLAINT: Final = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
"""The type of a callback for errors of the whole client. Arguments: client, error, reason, opaque."""

_POINTER = c_void_p
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_POINTER, ()),
    "conf_destroy": (None, (_POINTER,)),
    "conf_set": (c_int, (_POINTER, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_dr_msg_cb": (None, (_POINTER, REPORT)),
    "last_error": (c_int, ()),
    "new": (_POINTER, (c_int, _POINTER, c_char_p, c_size_t)),
    "destroy": (None, (_POINTER,)),
    "poll": (c_int, (_POINTER, c_int)),
    "flush": (c_int, (_POINTER, c_int)),
    "poll_set_consumer": (c_int, (_POINTER,)),
    "queue_get_consumer": (_POINTER, (_POINTER,)),
    "queue_get_partition": (_POINTER, (_POINTER, c_char_p, c_int32)),
    "queue_forward": (None, (_POINTER, _POINTER)),
    "queue_destroy": (None, (_POINTER,)),
    "consumer_close": (c_int, (_POINTER,)),
    "topic_partition_list_new": (_POINTER, (c_int,)),
    "topic_partition_list_add": (_POINTER, (_POINTER, c_char_p, c_int32)),
    "topic_partition_list_set_offset": (c_int, (_POINTER, c_char_p, c_int32, c_int64)),
    "topic_partition_list_destroy": (None, (_POINTER,)),
    "incremental_assign": (_POINTER, (_POINTER, _POINTER)),
    "incremental_unassign": (_POINTER, (_POINTER, _POINTER)),
    "consume_batch_queue": (c_ssize_t, (_POINTER, c_int, _POINTER, c_size_t)),
    "query_watermark_offsets": (c_int, (_POINTER, c_char_p, c_int32, _POINTER, _POINTER, c_int)),
    "conf_set_error_cb": (None, (_POINTER, COMPLAINT)),
    "purge": (c_int, (_POINTER, c_int)),
    "outq_len": (c_int, (_POINTER,)),
    "fatal_error": (c_int, (_POINTER, c_char_p, c_size_t)),
    "err2str": (c_char_p, (c_int,)),
    "topic_new": (_POINTER, (_POINTER, c_char_p, _POINTER)),
    "topic_destroy": (None, (_POINTER,)),
    "topic_name": (c_char_p, (_POINTER,)),
    "metadata": (c_int, (_POINTER, c_int, _POINTER, _POINTER, c_int)),
    "metadata_destroy": (None, (_POINTER,)),
    "produce_batch": (c_int, (_POINTER, c_int32, c_int, _POINTER, c_int)),
    "init_transactions": (_POINTER, (_POINTER, c_int)),
    "begin_transaction": (_POINTER, (_POINTER,)),
    "abort_transaction": (_POINTER, (_POINTER, c_int)),
    "error_code": (c_int, (_POINTER,)),
    "error_string": (c_char_p, (_POINTER,)),
    "error_is_fatal": (c_int, (_POINTER,)),
    "error_is_retriable": (c_int, (_POINTER,)),
    "error_txn_requires_abort": (c_int, (_POINTER,)),
    "error_destroy": (None, (_POINTER,)),
    "message_errstr": (c_char_p, (_POINTER,)),
    "message_destroy": (None, (_POINTER,)),
    "message_timestamp": (c_int64, (_POINTER, _POINTER)),
    "message_headers": (c_int, (_POINTER, _POINTER)),
    "header_get_all": (c_int, (_POINTER, c_size_t, _POINTER, _POINTER, _POINTER)),
}
"""The result type and the argument types of each function, as in ``rdkafka.h``; names are without ``rd_kafka_``."""


class Library:
    """librdkafka's functions, as attributes without the prefix ``rd_kafka_``. Each call releases the interpreter lock."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        version = library.rd_kafka_version
        version.restype = c_int
        self.version = int(version())
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"rd_kafka_{name} is not declared here")

    def configuration(self, settings: Mapping[str, Any]) -> int:
        """Return a new ``rd_kafka_conf_t`` with these settings. A client that is created from it takes ownership of it."""
        made: int = self.conf_new()
        reason = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self.conf_set(made, name.encode(), text.encode(), reason, ERROR_TEXT_BYTES) != 0:
                self.conf_destroy(made)
                raise failure(INVALID_ARGUMENT, reason.value.decode(errors="replace"))
        return made

    def client(self, kind: int, configuration: int) -> int:
        """Return a new ``rd_kafka_t``, which then owns the configuration. `kind` is 0 for a producer, 1 for a consumer."""
        reason = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        made: int | None = self.new(kind, configuration, reason, ERROR_TEXT_BYTES)
        if not made:
            code = self.last_error()
            self.conf_destroy(configuration)
            raise failure(code, reason.value.decode(errors="replace"))
        return made

    def check(self, error: int | None) -> None:
        """Raise an exception for an ``rd_kafka_error_t``, and free it. If `error` is None, the call has succeeded."""
        if not error:
            return
        text = self.error_string(error).decode(errors="replace")
        flags = [
            bool(ask(error)) for ask in (self.error_is_fatal, self.error_is_retriable, self.error_txn_requires_abort)
        ]
        code = self.error_code(error)
        self.error_destroy(error)
        raise failure(code, text, *flags)

    def check_code(self, code: int) -> None:
        """Raise the exception for an error code. The code 0 means success: do nothing."""
        if code:
            raise failure(code, self.text(code))

    def text(self, code: int) -> str:
        """Return librdkafka's description of an error code."""
        return str(self.err2str(code).decode(errors="replace"))

    def address(self, name: str) -> int:
        """Return the address of a function, for compiled code that calls it."""
        return ctypes.cast(getattr(self, name), c_void_p).value or 0

    def ask_topic(self, client: int, topic: int, milliseconds: int) -> tuple[int, int]:
        """Ask a broker about a topic, so that the client learns the topic's partitions.

        Return the error code of the request, and the error code of the topic. 0 means success.
        """
        answer = ctypes.POINTER(_Metadata)()
        code = int(self.metadata(client, 0, topic, ctypes.byref(answer), milliseconds))
        if code:
            return code, 0
        found = [answer.contents.topics[number].err for number in range(answer.contents.count)]
        self.metadata_destroy(answer)
        return 0, max(found, key=abs, default=0)

    def check_alive(self, client: int) -> None:
        """If a client has failed permanently, raise the error that made it fail."""
        reason = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        code = self.fatal_error(client, reason, ERROR_TEXT_BYTES)
        if code:
            raise failure(code, reason.value.decode(errors="replace"), True)


def failure(code: int, text: str, *flags: bool) -> Exception:
    """Return confluent-kafka's exception for an error code.

    The `flags` say whether the error is fatal, whether it is retriable, and whether it requires an abort.
    """
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException(KafkaError(code, text, *flags))


@lru_cache(maxsize=1)
def native_library() -> Library | None:
    """Return the C functions of this process's librdkafka; None if rows must go through confluent-kafka's objects."""
    if os.environ.get(OBJECTS_ONLY) == "1":
        return None
    import confluent_kafka
    from confluent_kafka import cimpl

    if sys.byteorder != "little" or struct.calcsize("P") != 8 or confluent_kafka.libversion()[1] >> 24 != MAJOR:
        _log.info(
            "Rows go through confluent-kafka's objects, which is slower: the memory layout of this librdkafka is not known."
        )
        return None
    try:
        # The extension module depends on librdkafka, so a look-up in the module finds librdkafka's functions.
        library = Library(cimpl.__file__)
    except (OSError, AttributeError) as problem:
        _log.info("Rows go through confluent-kafka's objects, which is slower: %s", problem)
        return None
    return library if library.version == confluent_kafka.libversion()[1] else None
