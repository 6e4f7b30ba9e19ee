"""Java's names of client settings, against librdkafka's own list of names."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

from connector.kafka.client.client_settings import (
    JAVA_SETTINGS,
    READ_ONLY,
    WRITE_ONLY,
    Ignored,
    Refused,
    Renamed,
    as_markdown,
)
from connector.kafka.client.config import SINK_FORBIDDEN, SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.sink.row_writer import QUEUED_BYTES
from connector.kafka.sink.write_options import WRITE_DEFAULTS, WRITE_OPTIONS, parse_write_options
from connector.kafka.source.read_options import READ_DEFAULTS, READ_OPTIONS
from transactional.errors import OptionError

BROKERS = {"kafka.bootstrap.servers": "b:9092"}
SECRET = "hunter2-unique"


def source(**given: str) -> ClientConfig:
    named = {f"kafka.{key.replace('_', '.')}": text for key, text in given.items()}
    parsed = READ_OPTIONS.parse({"subscribe": "t", **BROKERS, **named})
    return client_config(READ_OPTIONS, parsed, SOURCE_FORBIDDEN, READ_DEFAULTS)


def sink(**given: str) -> ClientConfig:
    named = {f"kafka.{key.replace('_', '.')}": text for key, text in given.items()}
    return client_config(WRITE_OPTIONS, WRITE_OPTIONS.parse({**BROKERS, **named}), SINK_FORBIDDEN, WRITE_DEFAULTS)


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Names of librdkafka's properties, with who has them: consumers (C), producers (P), both (*)."""
    libraries = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka-*"))))
    system = ctypes.CDLL(None)
    system.fdopen.restype = ctypes.c_void_p
    library.rd_kafka_conf_properties_show.argtypes = system.fclose.argtypes = [ctypes.c_void_p]
    path = tmp_path_factory.mktemp("librdkafka") / "properties"
    file = system.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY), b"w")
    library.rd_kafka_conf_properties_show(file)
    system.fclose(file)
    rows = [[cell.strip() for cell in line.split("|")] for line in path.read_text().splitlines() if "|" in line]
    found = {row[0]: row[1] for row in rows if row[1] in ("C", "P", "*")}
    assert len(found) > 100
    return found


def test_every_name_that_a_setting_becomes_is_one_of_librdkafka_s(properties: dict[str, str]) -> None:
    targets = {rule.to for rule in JAVA_SETTINGS.values() if isinstance(rule, Renamed)}
    assert targets - set(properties) == set()
    assert (set(READ_DEFAULTS) | set(WRITE_DEFAULTS)) - set(properties) == set()


def test_what_a_side_leaves_out_is_the_other_side_s_alone(properties: dict[str, str]) -> None:
    assert {name for name in READ_ONLY if properties[name] == "P"} == set()
    assert {name for name in WRITE_ONLY if properties[name] == "C"} == set()
    # Nothing that only consumers have reaches the sink's producer, and the reverse.
    ruled = {name for name, rule in JAVA_SETTINGS.items() if not isinstance(rule, Renamed)}
    callbacks = {name for name in properties if name.endswith(("_cb", "_cmp", ".cb"))}
    readers = {name for name, who in properties.items() if who == "C"} - ruled - callbacks
    writers = {name for name, who in properties.items() if who == "P"} - ruled - callbacks
    assert source_takes(writers) == UNUSUAL_WRITERS & writers
    assert sink_takes(readers) == UNUSUAL_READERS & readers


UNUSUAL_WRITERS = frozenset(
    {
        "delivery.report.only.error",
        "enable.gapless.guarantee",
        "msg_order_cmp",
        "produce.offset.report",
        "queuing.strategy",
    }
)
UNUSUAL_READERS = frozenset(
    {
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "consume.callback.max.messages",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "partition.assignment.strategy",
        "share.acknowledgement.mode",
    }
)
"""Nobody's settings of a Kafka job: the client itself says that it does not use them."""


def source_takes(names: set[str]) -> set[str]:
    return {name for name in names - set(SOURCE_FORBIDDEN) if name in source(**{name: "1"}).settings}


def sink_takes(names: set[str]) -> set[str]:
    return {name for name in names - set(SINK_FORBIDDEN) if name in sink(**{name: "1"}).settings}


@pytest.mark.parametrize(
    ("key", "text", "to", "becomes"),
    [
        ("max.request.size", "5242880", "message.max.bytes", "5242880"),
        ("buffer.memory", "33554432", "queue.buffering.max.kbytes", "32768"),
        ("buffer.memory", "1", "queue.buffering.max.kbytes", "1"),
        ("batch.size", "0", "batch.size", "1"),
        ("receive.buffer.bytes", "-1", "socket.receive.buffer.bytes", "0"),
        ("send.buffer.bytes", "131072", "socket.send.buffer.bytes", "131072"),
        ("request.timeout.ms", "30000", "socket.timeout.ms", "30000"),
        ("connections.max.idle.ms", "-1", "connections.max.idle.ms", "0"),
        ("linger.ms", "20", "linger.ms", "20"),
        ("compression.type", "zstd", "compression.type", "zstd"),
        ("retries", "2147483647", "retries", "2147483647"),
        ("max.in.flight.requests.per.connection", "5", "max.in.flight.requests.per.connection", "5"),
        ("reconnect.backoff.ms", "50", "reconnect.backoff.ms", "50"),
        ("metadata.max.age.ms", "300000", "metadata.max.age.ms", "300000"),
        ("client.dns.lookup", "use_all_dns_ips", "client.dns.lookup", "use_all_dns_ips"),
    ],
)
def test_a_writer_s_setting_is_translated_with_its_unit_and_taken(key: str, text: str, to: str, becomes: str) -> None:
    settings = sink(**{key: text}).settings
    assert settings[to] == becomes
    assert key == to or key not in settings
    Producer({to: becomes, "log_level": 0})


@pytest.mark.parametrize(
    ("key", "text", "to"),
    [
        ("fetch.max.wait.ms", "500", "fetch.wait.max.ms"),
        ("max.partition.fetch.bytes", "1048576", "fetch.message.max.bytes"),
        ("fetch.min.bytes", "1", "fetch.min.bytes"),
        ("fetch.max.bytes", "52428800", "fetch.max.bytes"),
        ("isolation.level", "read_uncommitted", "isolation.level"),
        ("check.crcs", "true", "check.crcs"),
        ("client.rack", "eu-1a", "client.rack"),
    ],
)
def test_a_reader_s_setting_is_translated_and_taken(key: str, text: str, to: str) -> None:
    settings = source(**{key: text}).settings
    assert settings[to] == text
    Producer({to: text, "log_level": 0})


def test_settings_given_once_for_both_sides_reach_only_the_side_that_has_them() -> None:
    shared = {
        "linger.ms": "20",
        "max.request.size": "5000000",
        "fetch.max.wait.ms": "5",
        "group.id": "g",
        "acks": "all",
    }
    reads, writes = source(**shared).settings, sink(**shared).settings
    assert set(reads) & {"linger.ms", "message.max.bytes", "acks"} == set()
    assert (reads["fetch.wait.max.ms"], reads["group.id"]) == ("5", "g")
    assert set(writes) & {"fetch.wait.max.ms", "group.id"} == set()
    assert (writes["linger.ms"], writes["message.max.bytes"]) == ("20", "5000000")


def test_a_user_s_buffer_memory_lowers_what_the_sink_queues_and_not_the_client_s_own_limit() -> None:
    def parsed(**more: str) -> tuple[int, str]:
        found = parse_write_options({**BROKERS, "topic": "t", **more})
        return found.queue_bytes, found.client.settings["queue.buffering.max.kbytes"]

    assert parsed() == (QUEUED_BYTES, "2147483647")
    assert parsed(**{"kafka.buffer.memory": "33554432"}) == (32 << 20, "2147483647")
    assert parsed(**{"kafka.buffer.memory": str(1 << 40)}) == (QUEUED_BYTES, "2147483647")
    for key in ("kafka.buffer.memory", "kafka.queue.buffering.max.kbytes"):
        with pytest.raises(OptionError, match=f"INVALID_OPTION.*{key} is 'much'"):
            parsed(**{key: "much"})


@pytest.mark.parametrize("key", sorted(key for key, rule in JAVA_SETTINGS.items() if isinstance(rule, Refused)))
def test_what_can_t_be_followed_is_refused_by_name_with_a_way_out(key: str) -> None:
    for side in (source, sink):
        with pytest.raises(OptionError, match=rf"FORBIDDEN_OPTION.*kafka\.{key}: .{{20}}") as caught:
            side(**{key: SECRET})
        assert SECRET not in f"{caught.value}{caught.value!r}{caught.value.parameters}"


@pytest.mark.parametrize("key", sorted(key for key, rule in JAVA_SETTINGS.items() if isinstance(rule, Ignored)))
def test_what_has_no_effect_is_ignored_and_said(key: str, caplog: pytest.LogCaptureFixture) -> None:
    for side in (source, sink):
        config = side(**{key: "5"})
        assert key not in config.settings
        caplog.clear()
        config.warn_of_ignored()
        assert f"ignores the option kafka.{key}: {config.ignored[key]}" in caplog.text


def test_one_setting_by_both_of_its_names_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"FORBIDDEN_OPTION.*kafka\.max\.request\.size: .* for kafka\.message\.max\.bytes"
    ):
        sink(**{"max.request.size": "1000", "message.max.bytes": "2000"})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"max.request.size": "5"},
            r"kafka\.max\.request\.size is '5'; expected a value that the Kafka client accepts .*message\.max\.bytes",
        ),
        ({"compression.type": "rar"}, r"kafka\.compression"),
        ({"bogus.thing": "1"}, r"kafka\.bogus\.thing"),
        ({"request.timeout.ms": "soon"}, r"kafka\.request\.timeout\.ms"),
    ],
)
def test_what_the_client_refuses_is_named_as_the_user_wrote_it(settings: dict[str, str], named: str) -> None:
    config = sink(**settings)
    with pytest.raises(KafkaException) as caught:
        Producer(config.for_librdkafka())
    assert isinstance(config.refused(caught.value), OptionError)
    with pytest.raises(OptionError, match=f"INVALID_OPTION.*the option {named}.*"):
        raise config.refused(caught.value)


def test_the_documented_table_is_the_code_s() -> None:
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    assert as_markdown() in page, "docs/security.md has connector.kafka.client.client_settings.as_markdown()"
