"""The options of ``barrier-kafka``, with the names, meanings and defaults of Spark's own Kafka source."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from connector.kafka.client.config import SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.source.alignment.aim import AlignOptions
from connector.kafka.source.bounds import Bound, OffsetBound, TimeBound, check_order
from connector.kafka.source.option_values import (
    EARLIEST,
    LATEST,
    as_assignment,
    as_columns,
    as_duration_ms,
    as_long,
    as_pattern,
    as_starting_offsets,
    as_timestamp,
    as_timestamps,
    as_topics,
)
from connector.kafka.source.planning.micro_batch import TriggerLimits
from connector.kafka.source.rows import HEADERS, all_columns
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.task_limits import TaskLimits
from connector.kafka.source.topic_reader import Retries
from connector.location.location import STORE_OPTIONS
from connector.options import HOST_OPTIONS, Option, OptionTable, ParsedOptions, as_bool, as_choice, as_str
from transactional.errors import OptionError
from transactional.schedule import Schedule

_log = logging.getLogger(__name__)

Kind = Literal["stream", "batch"]

READ_DEFAULTS: Mapping[str, str] = {"isolation.level": "read_committed"}
"""Our defaults for settings of the Kafka client. Users may override them."""

READ_OPTIONS = OptionTable(
    "barrier-kafka",
    (
        Option(
            "subscribe",
            None,
            as_topics,
            "Topics to read, separated by commas. Set exactly one of subscribe, subscribePattern and assign.",
        ),
        Option(
            "subscribePattern",
            None,
            as_pattern,
            "A Java regular expression for the names of the topics to read. It has to match the whole name of a topic. If a "
            "matching topic is created while the query runs, the query reads it from its first row.",
        ),
        Option("assign", None, as_assignment, 'Partitions to read, as JSON {"topicA": [0, 1], "topicB": [2, 4]}.'),
        Option(
            "startingTimestamp",
            None,
            as_timestamp,
            "In each partition, a new query begins at the first row that is not older than this time (milliseconds since "
            "1970). Overrides startingOffsetsByTimestamp and startingOffsets.",
        ),
        Option(
            "startingOffsetsByTimestamp",
            None,
            as_timestamps,
            'A startingTimestamp for each partition, as JSON {"topic": {"0": 1700000000000}}. Overrides startingOffsets.',
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "error",
            as_choice("error", "latest"),
            "Defines what happens if a partition has no row that is new enough for the timestamp. error: the query fails. "
            "latest: the query begins at the partition's end.",
        ),
        Option(
            "startingOffsets",
            None,
            as_starting_offsets,
            "The position at which a new query begins: earliest, latest (streams only), or JSON with the offset of every "
            "partition (-2 means earliest, -1 means latest). A query that has a checkpoint continues from that checkpoint. "
            "Partitions that are added later are read from their first row.",
        ),
        Option(
            "endingTimestamp",
            None,
            as_timestamp,
            "In each partition, a batch read ends before the first row that is not older than this time (milliseconds since "
            "1970). If a partition has no such row, the read ends at the partition's latest offset. Overrides "
            "endingOffsetsByTimestamp and endingOffsets.",
        ),
        Option(
            "endingOffsetsByTimestamp",
            None,
            as_timestamps,
            "An endingTimestamp for each partition, in the same JSON form as startingOffsetsByTimestamp. Overrides "
            "endingOffsets.",
        ),
        Option(
            "endingOffsets",
            None,
            as_starting_offsets,
            "The position at which a batch read ends: latest, or JSON with the offset of every partition (-1 means latest). "
            "The read does not include the row at the ending offset.",
        ),
        Option(
            "failOnDataLoss",
            True,
            as_bool,
            "true: the query fails if rows are gone before it has read them, for example because rows expired or a topic was "
            "deleted. false: the query skips the lost rows, and logs a warning.",
        ),
        Option(
            "maxOffsetsPerTrigger",
            None,
            as_long(1),
            "Maximum number of offsets per micro-batch. The source divides this number among the partitions in proportion to "
            "their backlogs. Partitions with small backlogs do not starve.",
        ),
        Option(
            "minOffsetsPerTrigger",
            None,
            as_long(1),
            "Minimum number of offsets per micro-batch. The query waits for this number of offsets, but not longer than "
            "maxTriggerDelay. The first micro-batch of a run does not wait. With the trigger availableNow, no micro-batch "
            "waits.",
        ),
        Option(
            "maxTriggerDelay",
            900_000,
            as_duration_ms,
            "Maximum time to wait for minOffsetsPerTrigger, counted from the last micro-batch with rows. A number of "
            "milliseconds, or a duration such as 30s or 5 min.",
        ),
        Option(
            "minPartitions",
            None,
            as_long(1),
            "Approximate minimum number of tasks: the source splits long offset ranges among several tasks. A stream also "
            "needs allowReordering=true.",
        ),
        Option(
            "maxRecordsPerPartition",
            None,
            as_long(1),
            "Maximum number of offsets per task: the source splits longer offset ranges among several tasks. A stream also "
            "needs allowReordering=true.",
        ),
        Option(
            "maxPartitions",
            None,
            as_long(1),
            "Maximum number of tasks. If more partitions than this have rows, a task reads several partitions, one after the "
            "other. maxRecordsPerPartition can lead to more tasks than maxPartitions; minPartitions must not be greater than "
            "maxPartitions. Default: as many tasks as the cluster can run at the same time, or more if tasks would otherwise "
            "read over 100,000 offsets on average. If barrier_kafka.register can't determine how many tasks the cluster can "
            "run, the default is one task per partition.",
        ),
        Option(
            "allowReordering",
            False,
            as_bool,
            "true: a stream may split a partition's offset range among several tasks (minPartitions, maxRecordsPerPartition). "
            "These tasks write at the same time, so a newer row of a key can become visible before an older row. A query whose "
            "sink replaces rows by key does not start with this option, because an older row could replace a newer row.",
        ),
        Option(
            "includeHeaders",
            False,
            as_bool,
            "true: the rows also have the column headers, of type array<struct<key: string, value: binary>>.",
        ),
        Option(
            "columns",
            None,
            as_columns,
            "The columns to read, separated by commas: key, value, topic, partition, offset, timestamp, timestampType, "
            "headers. If the list contains headers, includeHeaders is not needed. Reading is faster with fewer columns, "
            "because the source does not copy the other columns from the Kafka client. Default: all columns, but headers only "
            "if includeHeaders is true.",
        ),
        Option(
            "groupIdPrefix",
            "spark-kafka-source",
            as_str,
            "Prefix of the consumer group's name. The rest of the name is derived from the brokers and the topics. The query "
            "commits offsets to this group for monitoring only.",
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs",
            120_000,
            as_long(1),
            "If a partition returns no row for this number of milliseconds, the task that reads the partition fails.",
        ),
        Option(
            "fetchOffset.numRetries",
            3,
            as_long(0),
            "How many times the driver repeats a failed request for partitions and offsets. Each request takes up to 15 s. If "
            "the last request also fails, the query fails with KAFKA_TIMEOUT. If you then restart the query, it continues.",
        ),
        Option(
            "fetchOffset.retryIntervalMs",
            1000,
            as_long(0),
            "Pause before the driver repeats a request for partitions and offsets, in milliseconds.",
        ),
        Option(
            "barrierInterval",
            0,
            as_duration_ms,
            "Minimum interval between checkpoints: a number of milliseconds, or a duration such as 30s or 5 min. Rows become "
            "visible when their checkpoint is committed. With 0, every micro-batch that has rows closes a checkpoint.",
        ),
        Option(
            "minPauseBetweenCheckpoints",
            0,
            as_duration_ms,
            "Minimum pause between the end of a checkpoint and the next barrier, even if barrierInterval has passed. A number "
            "of milliseconds, or a duration such as 30s or 5 min. After a restart, the pause begins again. With the trigger "
            "availableNow, the last barrier does not wait for the pause.",
        ),
        Option(
            "alignOn",
            None,
            as_topics,
            "Barrier topics of other queries, separated by commas. A checkpoint of this query then contains exactly the rows "
            "up to the same barriers in all topics that the query reads. A batch read ends at such barriers. For each topic "
            "that this query reads, one of the barrier topics must contain the marks.",
        ),
        Option(
            "alignment",
            "exactly-once",
            as_choice("exactly-once", "at-least-once", "unaligned"),
            "Needs alignOn. exactly-once: the query reads no row after a barrier until it has closed the barrier's checkpoint. "
            "at-least-once: the query reads every row without waiting for barriers; a checkpoint records the newest barriers "
            "that the query has reached in all topics. unaligned: the query closes the checkpoint when the first mark of a "
            "barrier arrives, and records the topics in which it has not reached the barrier yet.",
        ),
        Option(
            "checkpointLocation",
            None,
            as_str,
            "If a query with alignOn has several streams, set this option of each source to the query's checkpointLocation. "
            "Also set the same alignOn in each source. All sources of the query then stop at the same barriers.",
        ),
        *(option for option in HOST_OPTIONS.options if option.key in STORE_OPTIONS.values()),
        Option(
            "alignedTimeout",
            0,
            as_duration_ms,
            "With alignment=unaligned: how long the query waits for a barrier's other marks after the first mark, before it "
            "closes the checkpoint without them. A number of milliseconds, or a duration such as 30s.",
        ),
    ),
)
"""All options except ``kafka.*``, which go to the client."""

GROUP_ID: Final = Option(
    "kafka.group.id",
    None,
    as_str,
    "The full name of the consumer group, if your Kafka rights require a certain name. groupIdPrefix is then ignored. If "
    "another application has committed offsets of the query's topics to this group, the query does not change these offsets "
    "and commits no offsets.",
)
"""The only client setting that Spark lists among its Kafka source's options. It is also passed to the client."""

SLOTS: Final = "sessionSlots"
"""The option with which `barrier_kafka.register` passes the number of tasks that the cluster can run at the same time."""

BATCH_ONLY: Final = frozenset({"endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"})
"""Options of batch reads. A stream rejects them, as Spark's own source does."""

STREAM_ONLY: Final = frozenset(
    {
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "barrierInterval",
        "minPauseBetweenCheckpoints",
        "alignment",
        "alignedTimeout",
        "allowReordering",
        "checkpointLocation",
        *STORE_OPTIONS.values(),
    }
)
"""Options of streams. A batch read ignores them with a warning, as Spark's own source does."""

DEFAULTS_SHOWN: Mapping[str, str] = {
    "startingOffsets": "`latest`; batch: `earliest`",
    "endingOffsets": "`latest`",
    "maxTriggerDelay": "`15m`",
}
"""Defaults as the options page shows them, for options whose default in `READ_OPTIONS` is not clear enough."""

_WAYS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True)
class ReadOptions:
    """The checked options of one read. Its ``repr`` shows no secrets."""

    config: ClientConfig  # The client's settings, with ``group.id``.
    names_group: bool  # Whether the user set ``kafka.group.id``.
    subscription: Subscription
    # Where reading begins and ends. Only batch reads use `ending`.
    starting: Bound
    ending: Bound
    limits: TriggerLimits  # The limits of a micro-batch. Only streams use them.
    tasks: TaskLimits
    slots: int | None  # How many tasks the cluster can run at the same time; None if unknown.
    schedule: Schedule  # The schedule of barriers. Only streams use it.
    retries: Retries
    poll_seconds: float  # Maximum time that a task waits for a row, in seconds.
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    align: AlignOptions | None = None  # The barriers of other queries that this query follows; None if it follows none.


def parse_read_options(options: Mapping[str, str], kind: Kind | None = None) -> ReadOptions:
    """Parse and check the options that the user set, without asking the brokers.

    `kind` is the kind of read. If it is None, accept the options of streams as well as those of batch reads.
    """
    parsed = READ_OPTIONS.parse({name: value for name, value in options.items() if name.lower() != SLOTS.lower()})
    subscription = _subscription(parsed)
    config = client_config(READ_OPTIONS, parsed, SOURCE_FORBIDDEN, READ_DEFAULTS)
    default: Literal["earliest", "latest"] = "earliest" if kind == "batch" else "latest"
    starting = _bound(parsed, "starting", default, parsed["startingOffsetsByTimestampStrategy"])
    ending = _bound(parsed, "ending", "latest", "latest")
    if kind == "stream":
        _check_stream(parsed)
    if kind == "batch":
        _check_batch(parsed, starting, ending)
    least, most = parsed["minOffsetsPerTrigger"], parsed["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise READ_OPTIONS.invalid("minOffsetsPerTrigger", str(least), f"at most maxOffsetsPerTrigger, which is {most}")
    return ReadOptions(
        config=config.with_setting("group.id", _group_id(parsed, config, subscription)),
        names_group=GROUP_ID.key in parsed.passthrough,
        subscription=subscription,
        starting=starting,
        ending=ending,
        limits=TriggerLimits(most, least, parsed["maxTriggerDelay"]),
        tasks=_tasks(parsed),
        slots=_slots(options),
        schedule=Schedule(parsed["barrierInterval"], parsed["minPauseBetweenCheckpoints"]),
        retries=Retries(parsed["fetchOffset.numRetries"], parsed["fetchOffset.retryIntervalMs"] / 1000),
        poll_seconds=parsed["kafkaConsumer.pollTimeoutMs"] / 1000,
        columns=_columns(parsed),
        fail_on_data_loss=parsed["failOnDataLoss"],
        align=_align(parsed, config, subscription),
    )


def _tasks(parsed: ParsedOptions) -> TaskLimits:
    least, most = parsed["minPartitions"], parsed["maxPartitions"]
    if least is not None and most is not None and least > most:
        raise READ_OPTIONS.invalid("minPartitions", str(least), f"at most maxPartitions, which is {most}")
    return TaskLimits(least, parsed["maxRecordsPerPartition"], most)


def _slots(options: Mapping[str, str]) -> int | None:
    value = next((value for name, value in options.items() if name.lower() == SLOTS.lower()), None)
    try:
        return None if value is None else as_long(1)(value)
    except ValueError as problem:
        raise READ_OPTIONS.invalid(SLOTS, str(value), str(problem)) from None


def _align(parsed: ParsedOptions, config: ClientConfig, subscription: Subscription) -> AlignOptions | None:
    topics: tuple[str, ...] | None = parsed["alignOn"]
    if topics is None:
        for option in ("alignment", "alignedTimeout", "checkpointLocation"):
            if parsed.given(option):
                raise _forbidden(
                    option, "it needs alignOn (the barrier topics that the query follows), which is not set"
                )
        return None
    if subscription.assigned:
        raise _forbidden("assign", "alignOn needs all partitions of the topics: use subscribe")
    if {*topics} & {*subscription.topics}:
        raise READ_OPTIONS.invalid("alignOn", ",".join(topics), "barrier topics that are not among the topics to read")
    if config.settings.get("isolation.level", "read_committed") != "read_committed":
        raise _forbidden("kafka.isolation.level", "alignOn works with committed rows only")
    if parsed.given("endingOffsets") or parsed.given("endingTimestamp") or parsed.given("endingOffsetsByTimestamp"):
        raise _forbidden(
            "alignOn",
            "alignOn ends the batch at the newest barriers, but another option also sets the end of the batch",
        )
    if not parsed["failOnDataLoss"]:
        raise _forbidden(
            "failOnDataLoss",
            "alignOn needs complete checkpoints, and a checkpoint that has lost rows does not match its barrier",
        )
    if parsed["alignedTimeout"] and parsed["alignment"] != "unaligned":
        raise _forbidden("alignedTimeout", "it needs alignment=unaligned")
    if parsed["checkpointLocation"] is None:
        return AlignOptions(topics, parsed["alignment"], parsed["alignedTimeout"])
    if parsed["alignment"] != "exactly-once":
        raise _forbidden(
            "alignment",
            "with the option checkpointLocation, several sources of a query follow the same barriers, which requires "
            "alignment=exactly-once",
        )
    keys = ("checkpointLocation", *STORE_OPTIONS.values())
    place = {key: str(parsed[key]) for key in keys if parsed[key] is not None}
    return AlignOptions(topics, location=place)


def _forbidden(option: str, reason: str) -> OptionError:
    return OptionError("FORBIDDEN_OPTION", owner="barrier-kafka", option=option, reason=reason)


def _columns(parsed: ParsedOptions) -> tuple[str, ...]:
    chosen: tuple[str, ...] | None = parsed["columns"]
    if chosen is not None and parsed["includeHeaders"] and HEADERS not in chosen:
        raise READ_OPTIONS.invalid("columns", ",".join(chosen), "a list with headers, because includeHeaders is true")
    return chosen or all_columns(parsed["includeHeaders"])


def _subscription(parsed: ParsedOptions) -> Subscription:
    given = [way for way in _WAYS if parsed.given(way)]
    if not given:
        raise OptionError(
            "MISSING_OPTION",
            owner="barrier-kafka",
            option="subscribe",
            reason="it lists topics, separated by commas. Or set subscribePattern (a regular expression), or assign (JSON "
            '{"topic": [0, 1]})',
        )
    if len(given) > 1:
        raise OptionError(
            "FORBIDDEN_OPTION",
            owner="barrier-kafka",
            option=given[-1],
            reason=f"{' and '.join(given)} are set, but only one of them is allowed",
            options=given,
        )
    return Subscription(
        topics=parsed["subscribe"] or (), pattern=parsed["subscribePattern"], assigned=parsed["assign"] or ()
    )


def _bound(
    parsed: ParsedOptions,
    side: Literal["starting", "ending"],
    default: Literal["earliest", "latest"],
    otherwise: Literal["error", "latest"],
) -> Bound:
    # In the order of Spark's precedence.
    for option in (f"{side}Timestamp", f"{side}OffsetsByTimestamp"):
        if parsed[option] is not None:
            return TimeBound(option, parsed[option], otherwise)
    return OffsetBound(f"{side}Offsets", parsed[f"{side}Offsets"] or default)


def _check_stream(parsed: ParsedOptions) -> None:
    for option in ("minPartitions", "maxRecordsPerPartition"):
        if parsed[option] is not None and not parsed["allowReordering"]:
            raise _forbidden(
                option,
                "several tasks would write one partition's rows at the same time, so a row could become visible after a newer "
                "row of its key. If that order does not matter, set allowReordering to true",
            )
    for option in sorted(BATCH_ONLY):
        if parsed.given(option):
            raise OptionError(
                "FORBIDDEN_OPTION",
                owner="barrier-kafka",
                option=option,
                reason="only batch reads (spark.read) have it, because a stream has no end",
            )


def _check_batch(parsed: ParsedOptions, starting: Bound, ending: Bound) -> None:
    for bound, word, number in ((starting, "latest", LATEST), (ending, "earliest", EARLIEST)):
        if not isinstance(bound, OffsetBound):
            continue
        if bound.at == word or (isinstance(bound.at, Mapping) and number in bound.at.values()):
            shown = word if bound.at == word else f"{number} ({word})"
            way = "begin at its end" if word == "latest" else "end at its beginning"
            raise READ_OPTIONS.invalid(bound.option, shown, f"a different value, because a batch read can't {way}")
    check_order(starting, ending)
    for option in sorted(STREAM_ONLY):
        if parsed.given(option):
            _log.warning("barrier-kafka: a batch read ignores the option %s", option)


def _group_id(parsed: ParsedOptions, config: ClientConfig, subscription: Subscription) -> str:
    """Return the consumer group's name, which is the same in all runs. Queries that read the same topics share the group."""
    named = parsed.passthrough.get(GROUP_ID.key)
    if named is not None:
        if not named.strip():
            raise READ_OPTIONS.invalid(GROUP_ID.key, named, "the name of a consumer group")
        if parsed.given("groupIdPrefix"):
            _log.warning("barrier-kafka: the option groupIdPrefix is ignored, because kafka.group.id is set")
        return named.strip()
    servers = sorted(part.strip() for part in config.bootstrap_servers.split(","))
    text = "\n".join([*servers, *subscription.words()])
    return f"{parsed['groupIdPrefix']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
