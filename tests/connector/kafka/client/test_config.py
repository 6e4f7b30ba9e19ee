from __future__ import annotations

import pytest

from connector.kafka.client.config import SINK_FORBIDDEN, SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.client.topics import Partition
from connector.kafka.source.option_values import as_duration_ms, as_starting_offsets, as_topics
from connector.kafka.source.read_options import READ_OPTIONS, parse_read_options
from connector.options import HOST_OPTIONS, Option, OptionTable, as_str
from transactional.errors import OptionError

BROKERS = {"kafka.bootstrap.servers": "b:9092"}


def test_keys_are_found_in_any_case_and_defaults_fill_the_rest() -> None:
    parsed = READ_OPTIONS.parse({"SUBSCRIBE": "b, a", "maxoffsetspertrigger": "5", "Kafka.Client.Id": "Me"})
    assert parsed["subscribe"] == parsed["Subscribe"] == ("a", "b")
    assert parsed["maxOffsetsPerTrigger"] == 5
    assert parsed["includeHeaders"] is False
    assert parsed.given("maxOffsetsPerTrigger")
    assert not parsed.given("startingOffsets")
    assert parsed.passthrough == {"kafka.client.id": "Me"}


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("startingoffset", "startingOffsets"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(wrong: str, nearest: str) -> None:
    with pytest.raises(OptionError, match="UNKNOWN_OPTION") as caught:
        READ_OPTIONS.parse({"subscribe": "t", wrong: "1"})
    assert caught.value.parameters["nearest"] == nearest
    assert nearest in str(caught.value)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(OptionError, match=r"MISSING_OPTION.*kafka\.bootstrap\.servers"):
        client_config(READ_OPTIONS, READ_OPTIONS.parse({"subscribe": "t"}), SOURCE_FORBIDDEN)
    with pytest.raises(OptionError, match=r"MISSING_OPTION.*subscribe"):
        parse_read_options(BROKERS)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "1.5"),
        ("includeHeaders", "yes"),
        ("subscribe", " , "),
        ("subscribe", "a b"),
        ("startingOffsets", "first"),
        ("startingOffsets", '{"t": {"0": -3}}'),
        ("startingOffsets", '{"t": {"0": true}}'),
        ("startingOffsets", '{"t": {"x": 1}}'),
        ("startingOffsets", '{"t": 5}'),
        ("startingOffsets", "{}"),
        ("barrierInterval", ""),
        ("barrierInterval", "-1"),
        ("barrierInterval", "1.5s"),
        ("barrierInterval", "30 parsecs"),
        ("barrierInterval", "٣s"),
        ("barrierInterval", "1 h 30 min"),
        ("minPauseBetweenCheckpoints", "soon"),
        ("minPauseBetweenCheckpoints", "9" * 5000),
    ],
)
def test_a_bad_value_is_refused_with_option_value_and_expectation(key: str, text: str) -> None:
    with pytest.raises(OptionError, match="INVALID_OPTION") as caught:
        READ_OPTIONS.parse({"subscribe": "t", key: text})
    assert caught.value.parameters["option"] == key
    assert caught.value.parameters["value"] == text
    assert caught.value.parameters["expectation"]


def test_the_value_of_a_secret_option_is_never_shown() -> None:
    def refuse(text: str) -> str:
        raise ValueError(f"not {text}")

    table = OptionTable("x", (Option("apiToken", None, refuse, ""), Option("other", None, as_str, "")))
    with pytest.raises(OptionError) as caught:
        table.parse({"apitoken": "hunter2"})
    assert "hunter2" not in f"{caught.value!s}{caught.value!r}{caught.value.parameters}"
    config = ClientConfig("x", {"bootstrap.servers": "b", "sasl.password": "hunter2"})
    assert "hunter2" not in repr(config)
    assert config.scrub("wrong hunter2") == "wrong (hidden)"


def test_what_the_host_adds_is_parsed_beside_a_sinks_own_options() -> None:
    table = OptionTable("x", (Option("topic", None, as_str, ""),))
    parsed = table.parse({"topic": "t", "checkpointlocation": "/c", "singledriver": "TRUE"}, also=HOST_OPTIONS)
    assert (parsed["checkpointLocation"], parsed["singleDriver"]) == ("/c", True)
    assert (parsed["commitTimeoutMs"], parsed["maxBatchesPerCheckpoint"]) == (120_000, 50)
    assert parsed["deliveryGuarantee"] == "exactly-once"
    with pytest.raises(OptionError, match="UNKNOWN_OPTION"):
        table.parse({"checkpointlocation": "/c"})


@pytest.mark.parametrize("key", sorted(SOURCE_FORBIDDEN))
def test_every_forbidden_key_of_the_source_is_refused_with_a_way_out(key: str) -> None:
    options = READ_OPTIONS.parse({"subscribe": "t", **BROKERS, f"kafka.{key}": "x"})
    with pytest.raises(OptionError, match=f"FORBIDDEN_OPTION.*kafka.{key}: ..."):
        client_config(READ_OPTIONS, options, SOURCE_FORBIDDEN)


@pytest.mark.parametrize(
    ("key", "text", "refused"),
    [("acks", "1", True), ("acks", "ALL", False), ("enable.idempotence", "false", True), ("linger.ms", "5", False)],
)
def test_the_sink_takes_only_what_transactions_allow(key: str, text: str, refused: bool) -> None:
    options = OptionTable("2pc-kafka", ()).parse({**BROKERS, f"kafka.{key}": text})
    if refused:
        with pytest.raises(OptionError, match=f"FORBIDDEN_OPTION.*kafka.{key}"):
            client_config(READ_OPTIONS, options, SINK_FORBIDDEN)
    else:
        assert client_config(READ_OPTIONS, options, SINK_FORBIDDEN).settings[key] == text


def test_no_brokers_is_an_error_that_names_the_option() -> None:
    with pytest.raises(OptionError, match=r"MISSING_OPTION.*kafka\.bootstrap\.servers"):
        client_config(READ_OPTIONS, READ_OPTIONS.parse({"subscribe": "t"}), SOURCE_FORBIDDEN)


def test_both_clients_get_the_same_addresses_and_security() -> None:
    given = {
        "kafka.bootstrap.servers": "a:1, b:2",
        "kafka.security.protocol": "sasl_ssl",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "p",
        "kafka.ssl.endpoint.identification.algorithm": "none",
        "kafka.linger.ms": "5",
    }
    options = READ_OPTIONS.parse({"subscribe": "t", **given})
    config = client_config(READ_OPTIONS, options, SOURCE_FORBIDDEN, {"isolation.level": "read_committed"})
    assert config.for_librdkafka(client_id="x")["client.id"] == "x"
    assert config.settings["isolation.level"] == "read_committed"
    found = config.for_kafka_python()
    assert found.pop("ssl_context").check_hostname is False
    assert "'p'" not in repr(found)
    assert found == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


def test_starting_offsets_and_topics_are_read_as_spark_reads_them() -> None:
    assert as_starting_offsets(" Earliest ") == "earliest"
    assert as_starting_offsets('{"t": {"0": 23, "1": -2}}') == {Partition("t", 0): 23, Partition("t", 1): -2}
    assert as_topics("b,a,b") == ("a", "b")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("30000", 30_000),
        ("500ms", 500),
        ("30s", 30_000),
        (" 30 Seconds ", 30_000),
        ("5 min", 300_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("2 days", 172_800_000),
    ],
)
def test_a_duration_is_milliseconds_or_says_its_unit(text: str, milliseconds: int) -> None:
    assert as_duration_ms(text) == milliseconds
    parsed = READ_OPTIONS.parse({"subscribe": "t", "barrierinterval": text, "minpausebetweencheckpoints": text})
    assert (parsed["barrierInterval"], parsed["minPauseBetweenCheckpoints"]) == (milliseconds, milliseconds)


def test_every_micro_batch_closes_a_checkpoint_by_default() -> None:
    parsed = READ_OPTIONS.parse({"subscribe": "t"})
    assert (parsed["barrierInterval"], parsed["minPauseBetweenCheckpoints"]) == (0, 0)
