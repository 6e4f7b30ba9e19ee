"""The doctor's examination of a location, or of the options of a source or a sink."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from connector.doctor.finding import Finding, failed, good, problem, unknown
from connector.doctor.kafka import (
    check_brokers_release,
    check_prefix,
    check_read_topics,
    check_timeout,
    check_written_topic,
)
from connector.doctor.store import check_store
from connector.doctor.versions import check_versions
from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.brokers import check_brokers
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.kafka.sink.write_options import parse_write_options
from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.read_options import READ_OPTIONS, parse_read_options
from connector.kafka.source.topic_reader import Retries, TopicReader
from connector.location.location import CheckpointLocation
from connector.spark.belonging import refuse_elsewhere
from connector.spark.recorded import naming_secrets, recorded_run, recorded_sink
from transactional.errors import OptionError, TwoPhaseCommitError
from transactional.sink import Options, TwoPhaseCommitSink

__all__ = ["examine_location", "examine_options"]

SOURCE, SINK = "barrier-kafka", "2pc-kafka"

NO_QUERY: Final = "barrier-doctor"
"""The prefix of a query that has none yet: of no query."""


def examine_location(location: CheckpointLocation, given: Mapping[str, str]) -> Iterator[Finding]:
    """Check the sink of a location as its journal has recorded it, its store, and this machine.

    Parameters
    ----------
    location : CheckpointLocation
    given : Mapping[str, str]
        Options of the sink that the journal does not keep, or that replace what it keeps.
    """
    yield from check_versions()
    yield from check_store(location)
    try:
        ledger = location.journal().load()
        refuse_elsewhere(location, ledger)
        run = recorded_run(ledger)
        if ledger.rewinding is not None:
            yield problem(
                "location", "A rewind of it is not done: a query that starts stops.", "barrier recover LOCATION"
            )
        with naming_secrets(run, given):
            sink = recorded_sink(run, location, given)
            yield from _check_sink(sink, run.prefix, {each.prefix for each in ledger.runs.values()}, 0)
    except TwoPhaseCommitError as error:
        yield failed(error)


def examine_options(options: Mapping[str, str]) -> Iterator[Finding]:
    """Check options as a program gives them to a reader or a writer, and this machine.

    Parameters
    ----------
    options : Mapping[str, str]
        With ``format``, if it can't be seen from them: ``barrier-kafka`` if they subscribe to topics, else ``2pc-kafka``.
    """
    kind = Options(options).get("format") or _kind(options)
    asked = _without(options, "format")
    yield from check_versions()
    own: set[str] = set()
    if "checkpointLocation" in Options(asked):
        try:
            place = CheckpointLocation.from_options(asked)
            yield from check_store(place)
            with suppress(OSError):  # of which the store's check has said all
                own = {run.prefix for run in place.journal().load().runs.values()}
        except TwoPhaseCommitError as error:
            yield failed(error)
    try:
        if kind == SOURCE:
            yield from _check_source(_without(asked, "checkpointLocation"))
        elif kind == SINK:
            yield from _check_kafka_options(asked, own)
        else:
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier doctor",
                option="format",
                value=kind,
                expectation=f"{SOURCE} or {SINK}; name the LOCATION of a query with another sink",
            )
    except TwoPhaseCommitError as error:
        yield failed(error)


def _kind(options: Mapping[str, str]) -> str:
    given = Options(options)
    return SOURCE if any(name in given for name in ("subscribe", "subscribePattern", "assign")) else SINK


def _without(options: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() != name.lower()}


def _check_kafka_options(options: Mapping[str, str], own: Collection[str]) -> Iterator[Finding]:
    # The source's; the two belong together.
    interval = READ_OPTIONS.parse({"barrierInterval": Options(options).get("barrierInterval", "0")})["barrierInterval"]
    options = _without(options, "barrierInterval")
    checked = parse_write_options(Options(options))
    columns = [("key", pa.binary()), ("value", pa.binary())]
    schema = pa.schema(columns if checked.topic else [*columns, ("topic", pa.string())])
    named = Options({**options, "transactionalIdPrefix": checked.prefix or NO_QUERY})
    yield from _check_sink(KafkaSink(named, schema), checked.prefix, own, interval)


def _check_sink(
    sink: TwoPhaseCommitSink[Any, Any], prefix: str | None, own: Collection[str], interval_ms: int
) -> Iterator[Finding]:
    try:
        sink.checkStart(prefix)
        yield good("sink", f"{sink.name()}: everything that it needs at its start is there")
        if isinstance(sink, KafkaSink):
            yield from (good("options", "as they should be"), good("brokers", sink.client.bootstrap_servers))
            if prefix is None:
                way = "Set transactionalIdPrefix: else it is the query's id, which is not known before its first start."
                yield unknown("rights", "Whether this user may write under the transactional ids is not checked.", way)
            else:
                yield good("rights", "all that the sink needs")
            admin = KafkaAdmin(sink.client)
            try:
                yield from check_brokers_release(admin)
                yield check_timeout(admin, sink.timeout_ms, interval_ms)
                yield check_prefix(admin, prefix, own)
                if sink.topic is not None:
                    yield good("topic", sink.topic)
                    yield from check_written_topic(admin, sink.topic)
                else:
                    yield unknown("topic", "A column names the topics of rows: none is checked.")
            finally:
                admin.close()
    except TwoPhaseCommitError as error:
        yield failed(error)
    finally:
        sink.close()


def _check_source(options: Mapping[str, str]) -> Iterator[Finding]:
    checked = parse_read_options(options, "stream")
    BarrierKafkaDataSource(dict(options)).schema()
    yield from (good("options", "as they should be"), good("brokers", checked.config.bootstrap_servers))
    admin = KafkaAdmin(checked.config)
    try:
        reader = TopicReader(check_brokers(checked.config), checked.config, Retries(0), patience=5.0)
        partitions = reader.partitions(checked.subscription)
        topics = sorted({partition.topic for partition in partitions})
        if not topics:
            yield problem("topic", "No topic matches subscribePattern.", "Check the pattern: it matches whole names.")
            return
        reader.latest(partitions)
        yield good("topic", ", ".join(topics))
        yield from check_brokers_release(admin)
        yield from check_read_topics(admin, checked, topics)
    finally:
        admin.close()
