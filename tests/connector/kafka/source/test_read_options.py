"""What the source's options say together: which is read, where it begins and ends, and what is refused."""

from __future__ import annotations

import json
import logging
import re
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.client.topics import Partition
from connector.kafka.source.bounds import OffsetBound, TimeBound, check_partitions
from connector.kafka.source.option_values import as_assignment, as_long, as_pattern, as_timestamps
from connector.kafka.source.planning.micro_batch import TriggerLimits
from connector.kafka.source.read_options import BATCH_ONLY, READ_OPTIONS, STREAM_ONLY, Kind, parse_read_options
from connector.kafka.source.rows import COLUMNS, all_columns
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.task_limits import TaskLimits
from connector.kafka.source.topic_reader import Retries
from transactional.errors import OptionError
from transactional.schedule import Schedule

A, B = Partition("t", 0), Partition("t", 1)
GIVEN = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}


def test_what_is_not_set_has_sparks_defaults() -> None:
    options = parse_read_options(GIVEN, "stream")
    assert options.subscription == Subscription(topics=("t",))
    assert options.starting == OffsetBound("startingOffsets", "latest")
    assert parse_read_options(GIVEN, "batch").starting == OffsetBound("startingOffsets", "earliest")
    assert options.ending == OffsetBound("endingOffsets", "latest")
    assert options.fail_on_data_loss is True
    assert options.columns == COLUMNS
    assert options.limits == TriggerLimits(None, None, 15 * 60_000)
    assert options.tasks == TaskLimits(None, None, None)
    assert options.retries == Retries(3, 1.0)
    assert options.poll_seconds == 120
    assert options.schedule == Schedule(0, 0)
    assert options.config.settings["group.id"].startswith("spark-kafka-source-")
    assert options.config.settings["isolation.level"] == "read_committed"


def test_columns_are_chosen_among_those_of_sparks_source() -> None:
    def columns(**more: str) -> tuple[str, ...]:
        return parse_read_options({**GIVEN, **more}).columns

    assert columns(includeHeaders="true") == all_columns(True)
    assert columns(columns="value , key") == ("value", "key")
    assert columns(columns="headers") == columns(columns="headers", includeHeaders="true") == ("headers",)
    for wrong in ("", "value,", "value,value", "Value", "body"):
        with pytest.raises(
            OptionError, match=r"INVALID_OPTION.*columns from the list key, value, topic.*each at most once"
        ):
            columns(columns=wrong)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*columns.*with headers, because includeHeaders is true"):
        columns(columns="key,value", includeHeaders="true")


def test_keys_are_taken_in_any_case() -> None:
    mixed = {"KAFKA.bootstrap.servers": "b:9092", "SubscribePattern": "t.*", "MINOFFSETSPERTRIGGER": "5"}
    options = parse_read_options(mixed)
    assert options.subscription == Subscription(pattern="t.*")
    assert options.limits.least == 5


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign"),
        ({"subscribe": "a", "subscribePattern": "a"}, "subscribe and subscribePattern"),
        ({"subscribePattern": "a", "assign": '{"a": [0]}'}, "subscribePattern and assign"),
    ],
)
def test_only_one_says_what_is_read(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=f"FORBIDDEN_OPTION.*{told} are set"):
        parse_read_options({"kafka.bootstrap.servers": "b", **given})


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_timestamp_wins_over_timestamps_and_these_over_offsets(side: str) -> None:
    given = {
        f"{side}Offsets": '{"t": {"0": 1}}',
        f"{side}OffsetsByTimestamp": '{"t": {"0": 2000}}',
        f"{side}Timestamp": "3000",
    }
    strategy: Literal["error", "latest"] = "error" if side == "starting" else "latest"
    expected = [
        TimeBound(f"{side}Timestamp", 3000, strategy),
        TimeBound(f"{side}OffsetsByTimestamp", {A: 2000}, strategy),
        OffsetBound(f"{side}Offsets", {A: 1}),
    ]
    for bound in expected:
        options = parse_read_options({**GIVEN, **given}, "batch")
        assert (options.starting if side == "starting" else options.ending) == bound
        del given[bound.option]


def test_the_strategy_is_taken_in_any_case() -> None:
    given = {**GIVEN, "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "LATEST"}
    assert parse_read_options(given).starting == TimeBound("startingTimestamp", 5, "latest")


@pytest.mark.parametrize("option", sorted(BATCH_ONLY))
def test_a_stream_refuses_an_end(option: str) -> None:
    value = {"endingTimestamp": "5", "endingOffsets": "latest"}.get(option, '{"t": {"0": 5}}')
    parse_read_options({**GIVEN, option: value}, "batch")
    parse_read_options({**GIVEN, option: value})  # load() is not told which it is
    with pytest.raises(OptionError, match=rf"FORBIDDEN_OPTION.*{option}.*spark\.read"):
        parse_read_options({**GIVEN, option: value}, "stream")


@pytest.mark.parametrize("option", sorted(STREAM_ONLY))
def test_a_batch_read_passes_over_what_is_for_streams(option: str, caplog: pytest.LogCaptureFixture) -> None:
    follows = {"alignOn": "marks", "alignment": "unaligned"} if option.startswith("align") else {}
    follows |= {"alignOn": "marks"} if option == "checkpointLocation" else {}
    value = "true" if option == "allowReordering" else "5"
    with caplog.at_level(logging.WARNING):
        parse_read_options({**GIVEN, option: value, **follows}, "batch")
    assert f"a batch read ignores the option {option}" in caplog.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "Latest"}, "startingOffsets is 'latest'"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, r"startingOffsets is '-1 \(latest\)'"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, r"endingOffsets is '-2 \(earliest\)'"),
        (
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
            r"endingOffsets is 't-0: 4'; expected t-0: 5 or later, because startingOffsets begins there",
        ),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            r"endingTimestamp is '4'; expected 5 or later, because startingTimestamp begins there",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "endingOffsetsByTimestamp": '{"t": {"0": 4}}'},
            "endingOffsetsByTimestamp is 't-0: 4'; expected t-0: 5 or later, because startingOffsetsByTimestamp begins there",
        ),
    ],
)
def test_a_batch_read_refuses_what_can_hold_no_rows(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=f"INVALID_OPTION.*{told}"):
        parse_read_options({**GIVEN, **given}, "batch")


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_what_a_timestamp_wins_over_is_not_judged(kind: Kind) -> None:
    given = {"startingTimestamp": "5", "startingOffsets": "latest"}
    assert parse_read_options({**GIVEN, **given}, kind).starting == TimeBound("startingTimestamp", 5, "error")


def test_a_least_above_the_most_is_refused() -> None:
    given = {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(
        OptionError, match=r"INVALID_OPTION.*minOffsetsPerTrigger is '6'.*maxOffsetsPerTrigger, which is 5"
    ):
        parse_read_options({**GIVEN, **given})


def test_the_group_is_the_same_from_run_to_run_and_can_be_named() -> None:
    def group(**given: str) -> str:
        return parse_read_options({**GIVEN, **given}).config.settings["group.id"]

    assert group() == group()
    assert group() != parse_read_options({**GIVEN, "subscribe": "u"}).config.settings["group.id"]
    assert re.fullmatch("mine-[0-9a-f]{12}", group(groupIdPrefix="mine"))
    assert group(**{"kafka.group.id": "exactly", "groupIdPrefix": "mine"}) == "exactly"
    assert parse_read_options({**GIVEN, "Kafka.Group.Id": "exactly"}).names_group
    assert not parse_read_options(GIVEN).names_group
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*kafka\.group\.id is ' '"):
        group(**{"kafka.group.id": " "})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("assign", "t"),
        ("assign", "{}"),
        ("assign", '{"t": []}'),
        ("assign", '{"t": [-1]}'),
        ("assign", '{"t": ["0"]}'),
        ("assign", '{"t": [true]}'),
        ("assign", '{"": [0]}'),
        ("subscribePattern", "  "),
        ("subscribePattern", "a("),
        ("subscribePattern", r"\p{Alpha}+"),
        ("subscribePattern", "[a-z&&[^x]]"),
        ("subscribePattern", "[[a-c]x]"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-1"),
        ("endingTimestamp", "1.5"),
        ("startingOffsetsByTimestamp", "1000"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}'),
        ("endingOffsetsByTimestamp", '{"t": {"0": "x"}}'),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("endingOffsets", '{"t": {"0": -3}}'),
        ("failOnDataLoss", "maybe"),
        ("minOffsetsPerTrigger", "0"),
        ("maxTriggerDelay", "soon"),
        ("minPartitions", "0"),
        ("maxPartitions", "0"),
        ("maxRecordsPerPartition", "-5"),
        ("maxRecordsPerPartition", str(2**63)),
        ("groupIdPrefix", " "),
        ("kafkaConsumer.pollTimeoutMs", "0"),
        ("fetchOffset.numRetries", "-1"),
        ("fetchOffset.retryIntervalMs", "1s"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_expected(key: str, text: str) -> None:
    with pytest.raises(OptionError, match="INVALID_OPTION") as caught:
        READ_OPTIONS.parse({key: text})
    assert (caught.value.parameters["option"], caught.value.parameters["value"]) == (key, text)


@given(st.integers(-(2**64), 2**64))
def test_a_long_is_what_spark_can_keep(number: int) -> None:
    if 1 <= number < 2**63:
        assert as_long(1)(f" {number} ") == number
    else:
        with pytest.raises(ValueError, match="a whole number, 1 or more"):
            as_long(1)(str(number))


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("topic.*", "topic1", True),
        ("topic.*", "my-topic1", False),
        ("topic", "topic1", False),
        (r"\Qa.b\E.*", "a.b.c", True),
        (r"\Qa.b\E.*", "axb.c", False),
        (r"\Qa.b", "a.b", True),
        ("(?<year>[0-9]+)-x", "2013-x", True),
        ("(?i)ORDERS", "orders", True),
        ("a|b", "b", True),
        (".*", "__consumer_offsets", False),
        (".*", "__mine", True),
    ],
)
def test_a_pattern_means_what_it_means_in_java(pattern: str, topic: str, matches: bool) -> None:
    assert Subscription(pattern=as_pattern(pattern)).matches(topic) is matches


def test_partitions_and_timestamps_are_read_as_spark_reads_them() -> None:
    assert as_assignment('{"u": [4, 2], "t": [1, 0, 1]}') == (A, B, Partition("u", 2), Partition("u", 4))
    assert as_timestamps('{"t": {"0": 1000, "1": 0}}') == {A: 1000, B: 0}


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (OffsetBound("startingOffsets", {A: 1}), "startingOffsets is 'without t-1'; .*-2 for earliest"),
        (
            TimeBound("endingOffsetsByTimestamp", {A: 1}, "latest"),
            r"endingOffsetsByTimestamp is 'without t-1'; [^-]*$",
        ),
        (OffsetBound("endingOffsets", {A: 1, B: 1, Partition("u", 0): 1}), "endingOffsets is 'u-0'"),
    ],
)
def test_every_partition_has_its_bound_and_no_other_has(bound: OffsetBound | TimeBound, told: str) -> None:
    with pytest.raises(OptionError, match=f"INVALID_OPTION.*{told}"):
        check_partitions(bound, [A, B])
    check_partitions(OffsetBound("startingOffsets", "latest"), [A, B])
    check_partitions(TimeBound("startingTimestamp", 5, "error"), [A, B])


def test_assigned_partitions_must_be_there() -> None:
    subscription = Subscription(assigned=(A, B))
    subscription.check([A, B])
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*assign is 't-1'"):
        subscription.check([A])


def test_secrets_do_not_show() -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
    }
    options = parse_read_options({**GIVEN, **{f"kafka.{key}": value for key, value in login.items()}})
    assert "hunter2" not in repr(options)
    assert json.dumps(options.config.settings["sasl.password"]) == '"hunter2"'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alignment": "unaligned"}, "it needs alignOn"),
        ({"alignOn": "t"}, "barrier topics that are not among the topics to read"),
        ({"alignOn": "m", "kafka.isolation.level": "read_uncommitted"}, "committed rows only"),
        ({"alignOn": "m", "failOnDataLoss": "false"}, "has lost rows"),
        ({"alignOn": "m", "alignedTimeout": "5s"}, "it needs alignment=unaligned"),
        ({"alignOn": "m", "alignment": "best"}, "exactly-once or at-least-once or unaligned"),
        ({"alignOn": "m", "endingOffsets": "latest"}, "alignOn ends the batch at the newest barriers"),
    ],
)
def test_what_does_not_go_with_other_queries_barriers_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_read_options({**GIVEN, **given})
