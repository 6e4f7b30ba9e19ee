"""The library's functions: errors become confluent-kafka's, and another layout leaves rows to objects."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

from connector.kafka.native import columns, library
from connector.kafka.native.library import OBJECTS_ONLY, Library, native_library
from connector.kafka.native.producer import ArrowProducer
from connector.kafka.source.reading.native_records import NativeConsumer


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    native_library.cache_clear()
    columns.native_columns.cache_clear()
    yield
    native_library.cache_clear()
    columns.native_columns.cache_clear()


@pytest.fixture
def found() -> Library:
    loaded = native_library()
    assert loaded is not None
    return loaded


def test_it_is_the_library_that_confluent_kafka_uses(found: Library) -> None:
    assert found.version == confluent_kafka.libversion()[1]


@pytest.mark.parametrize("version", [1 << 24, 3 << 24])
def test_another_major_version_is_left_alone(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("other", version))
    assert native_library() is None


def test_a_library_without_a_function_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(library, "_FUNCTIONS", {**library._FUNCTIONS, "no_such_function": (None, ())})
    assert native_library() is None
    assert "rd_kafka_no_such_function" in caplog.text


def test_the_user_may_leave_rows_to_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OBJECTS_ONLY, "1")
    assert native_library() is None


def test_without_the_helper_rows_are_read_as_objects_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(columns, "__file__", "/nowhere/columns.py")
    assert columns.native_columns() is columns.native_columns() is None
    assert [record.getMessage() for record in caplog.records] == [
        "Rows are read through confluent-kafka's objects, which is slower: no C compiler was present during installation."
    ]


@pytest.mark.parametrize(
    "settings", [{"no.such.setting": "1"}, {"linger.ms": "soon"}, {"acks": "2", "transactional.id": "t"}]
)
def test_settings_are_refused_as_by_confluent_kafka(settings: dict[str, Any], found: Library) -> None:
    with pytest.raises(KafkaException) as reference:
        Producer(dict(settings))
    with pytest.raises(KafkaException) as caught:
        ArrowProducer(found, settings, lambda *_: None)
    ours, theirs = caught.value.args[0], reference.value.args[0]
    assert (ours.code(), ours.str()) == (theirs.code(), theirs.str().removeprefix("Failed to create producer: "))


def test_an_error_of_a_transaction_has_its_flags(found: Library) -> None:
    producer = ArrowProducer(found, {"bootstrap.servers": "localhost:1", "transactional.id": "t"}, lambda *_: None)
    with pytest.raises(KafkaException) as caught:
        producer.begin_transaction()
    error = caught.value.args[0]
    assert (error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()) == (
        "_STATE",
        False,
        False,
        False,
    )


def test_a_name_that_no_topic_can_have_is_refused(found: Library) -> None:
    import numpy as np

    from connector.kafka.native.rows import MESSAGE

    producer = ArrowProducer(found, {"bootstrap.servers": "localhost:1"}, lambda *_: None)
    with pytest.raises(KafkaException, match="is not a valid topic name"):
        producer.produce("t" * 1000, np.zeros(1, MESSAGE))


def test_a_row_that_is_not_delivered_is_reported_with_its_place_and_size(found: Library) -> None:
    import numpy as np

    from connector.kafka.native.rows import MESSAGE

    seen: list[tuple[Any, ...]] = []
    settings = {"bootstrap.servers": "localhost:1", "delivery.report.only.error": True}
    producer = ArrowProducer(found, settings, lambda error, *more: seen.append((error.name(), *more)))
    rows = np.zeros(2, MESSAGE)
    value = np.frombuffer(b"value", np.uint8)
    rows["payload"], rows["len"] = value.ctypes.data, len(value)
    assert producer.produce("t", rows) == 2
    assert len(producer) >= 2
    producer.purge()
    assert producer.flush(5) == 0
    assert seen == [("_PURGE_QUEUE", "t", -1, 5)] * 2


def test_a_client_that_is_dropped_ends_at_once(found: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its reference count: the collector looks seldom."""
    gone: list[int] = []
    destroy, helper = found.destroy, columns.native_columns()

    def counted(client: int) -> None:
        gone.append(client)
        destroy(client)

    monkeypatch.setattr(found, "destroy", counted)
    settings = {"bootstrap.servers": "localhost:1", "log_level": 0}
    gc.disable()
    try:
        ArrowProducer(found, settings, lambda *_: None)
        if helper is not None:
            NativeConsumer(found, helper, {**settings, "group.id": "g"}, lambda _: None)
        assert len(gone) == 1 + (helper is not None)
    finally:
        gc.enable()


def test_a_program_that_ends_with_clients_ends_in_peace() -> None:
    program = """if True:
        from connector.kafka.native.library import native_library
        from connector.kafka.native.producer import ArrowProducer
        from connector.kafka.source.reading.consumers import _make, _idle
        settings = {"bootstrap.servers": "localhost:1", "log_level": 0}
        producer = ArrowProducer(native_library(), settings, lambda *_: None)
        _idle[1] = _make({**settings, "group.id": "g"}), {}
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
