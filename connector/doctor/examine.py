"""The doctor's checks of a location, or of the options of a source or a sink."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from connector.delta.storage import plain
from connector.doctor.finding import failed
from connector.doctor.kafka import check_read_topics, check_readers
from connector.doctor.registry import check_registry
from connector.doctor.store import check_store
from connector.doctor.trial import try_transaction
from connector.doctor.versions import check_versions
from connector.formats.discovery import find_sink
from connector.formats.table import FORMATS, format_of
from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.release import check_release
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.offsets import SOURCE_NAME
from connector.kafka.source.read_options import READ_OPTIONS, parse_read_options
from connector.kafka.source.topic_reader import Retries, TopicReader
from connector.location.location import CheckpointLocation
from connector.multi.names import NAME as SEVERAL
from connector.multi.names import under_route
from connector.multi.write_options import parse_write_options as parse_options_of_several
from connector.options import prefix_of
from connector.spark.location_owner import refuse_elsewhere
from connector.spark.recorded_sink import naming_secrets, recorded_run, recorded_sink
from transactional.capabilities import Examines
from transactional.comparison import compare_histories, must_be_there
from transactional.errors import OptionError, TwoPhaseCommitError
from transactional.finding import Finding, good, problem, unknown
from transactional.journal import Journal
from transactional.secrets import is_secret
from transactional.sink import Options, TwoPhaseCommitSink, routes_of

REGISTRY: Final = "schema-registry"

NO_QUERY: Final = "barrier-doctor"
"""The prefix used to check a sink whose options have no transactionalIdPrefix. No query uses this prefix."""


@dataclass(frozen=True)
class _Asked:
    """The settings with which a sink is checked."""

    interval_ms: int  # The source's barrierInterval in milliseconds; 0 if it is not known.
    tries: bool  # Whether to try Kafka transactions without rows.


def examine_location(
    location: CheckpointLocation, given: Mapping[str, str], *, tries: bool = False
) -> Iterator[Finding]:
    """Check a location's store, the sink that is recorded in the location's journal, and the software on this machine.

    The options in `given` replace recorded ones. If `tries` is true, also abort a Kafka transaction without rows, and
    commit another one.
    """
    yield from check_versions()
    yield from check_store(location)
    try:
        journal = location.journal()
        ledger = journal.load()
        refuse_elsewhere(location, ledger)
        run = recorded_run(ledger)
        if ledger.rewinding is not None:
            yield problem(
                "location",
                "A rewind of this location is not finished: a query that starts here stops immediately.",
                "Run `barrier recover LOCATION`.",
            )
        with naming_secrets(run, given):
            sink = recorded_sink(run, location, given)
            given_other = {key.lower(): value for key, value in given.items() if not is_secret(key, value)}
            as_recorded = given_other.items() <= run.setup.get("options", {}).items()
            target = (
                _check_target(journal, sink, location.query_id()) if as_recorded and ledger.rewinding is None else ()
            )
            own = {each.prefix for each in ledger.runs.values()}
            yield from _check_sink(sink, run.prefix, own, _Asked(0, tries), target)
    except TwoPhaseCommitError as error:
        yield failed(error)


def _check_target(journal: Journal, sink: TwoPhaseCommitSink[Any, Any], query_id: str) -> Iterator[Finding]:
    """Check what the next run will check: that the target exists, and has the same checkpoints as the journal.

    If no checkpoint is settled yet, check nothing, because the target may not exist yet.
    """
    run = journal.ledger.newest_run
    settled = journal.ledger.known_at_store(routes_of(sink))
    if run is None or not settled:
        return
    try:
        must_be_there(sink, settled)
        if all(sink.isThere(route) for route in routes_of(sink) if route not in settled):
            _, seen = compare_histories(journal, sink, query_id, run)
            if "checkpoint" in seen:
                yield good("target", f"{sink.name()} has the query's rows up to checkpoint {seen['checkpoint']}")
    except TwoPhaseCommitError as error:
        yield failed(error)


def examine_options(options: Mapping[str, str], *, tries: bool = False) -> Iterator[Finding]:
    """Check the software on this machine, and options that a program would pass to readStream or writeStream.

    If `tries` is true, also abort a Kafka transaction without rows, and commit another one.
    """
    given = Options(options)
    kind = given.get("format") or format_of(given) or (REGISTRY if "url" in given else "2pc-kafka")
    asked = _without(options, "format")
    yield from check_versions()
    own: set[str] = set()
    if "checkpointLocation" in Options(asked):
        try:
            place = CheckpointLocation.from_options(asked)
            yield from check_store(place)
            with suppress(OSError):  # the store's check has already reported it
                own = {run.prefix for run in place.journal().load().runs.values()}
        except TwoPhaseCommitError as error:
            yield failed(error)
    yield from _check_format(kind, asked, own, tries)


def _check_format(kind: str, asked: Mapping[str, str], own: Collection[str], tries: bool) -> Iterator[Finding]:
    try:
        if kind == SOURCE_NAME:
            yield from _check_source(_without(asked, "checkpointLocation"))
            if tries:
                yield unknown("trial-transaction", f"{SOURCE_NAME} writes no Kafka transactions, so none was tried.")
        elif kind == REGISTRY:
            yield from check_registry(asked)
        else:
            # An option of the source, which must fit the sink's transaction timeout.
            interval = Options(asked).get("barrierInterval", "0")
            options = Options(_without(asked, "barrierInterval"))
            interval_ms = READ_OPTIONS.parse({"barrierInterval": interval})["barrierInterval"]
            if kind == SEVERAL:
                yield from _check_several(options, own, interval, tries)
            else:
                yield from _check_sink_options(kind, options, own, _Asked(interval_ms, tries))
    except TwoPhaseCommitError as error:
        yield failed(error)


def _check_sink_options(kind: str, options: Options, own: Collection[str], asked: _Asked) -> Iterator[Finding]:
    try:
        sink = find_sink(kind)
    except OptionError:
        known = ", ".join(each.name for each in FORMATS)
        own_sink = "your own sink, if BARRIER_ALLOW=package.module:Class or an entry point names its class"
        raise _wrong_format(kind, f"{known}, {REGISTRY}, or {own_sink}") from None
    if not issubclass(sink, Examines):
        raise _wrong_format(kind, "a sink that is an Examines; for any other sink, pass the LOCATION of its query")
    prefix = prefix_of(options)
    options = options.replaced(transactionalidprefix=prefix or NO_QUERY)
    yield from _check_sink(sink.ofOptions(options), prefix, own, asked)


def _wrong_format(kind: str, expectation: str) -> OptionError:
    return OptionError("INVALID_OPTION", owner="barrier doctor", option="format", value=kind, expectation=expectation)


def _without(options: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() != name.lower()}


def _check_several(options: Mapping[str, str], own: Collection[str], interval: str, tries: bool) -> Iterator[Finding]:
    for each in parse_options_of_several(Options(options)).sinks:
        known = {under_route(prefix, each.name) for prefix in own}
        asked = {**_without(each.options, "checkpointLocation"), "barrierInterval": interval}
        prefix = prefix_of(Options(asked))
        if prefix is not None:
            asked["transactionalidprefix"] = under_route(prefix, each.name)
        for found in _check_format(each.format, asked, known, tries):
            yield replace(found, sentence=f"{each.name}: {found.sentence}")


def _check_sink(
    sink: TwoPhaseCommitSink[Any, Any],
    prefix: str | None,
    own: Collection[str],
    asked: _Asked,
    target: Iterable[Finding] = (),
) -> Iterator[Finding]:
    try:
        yield good("options", "all options are valid")
        if isinstance(sink, Examines):
            sink.checkStart(prefix)
        yield good("sink", f"{sink.name()} finds everything that it needs to start")
        yield from target
        if isinstance(sink, Examines):
            yield from sink.examine(prefix, own=own, intervalMs=asked.interval_ms)
            yield from sink.tryOut()
        if isinstance(sink, KafkaSink) and sink.topic is not None:
            with closing(KafkaAdmin(sink.client)) as admin:
                yield check_readers(admin, sink.topic)
        if asked.tries:
            yield _try_transaction(sink, prefix)
    except TwoPhaseCommitError as error:
        yield failed(error)
    except Exception as error:  # noqa: BLE001 - any error of a user's own sink, or of a store's client
        yield problem("sink", f"{sink.name()} can't be examined: {type(error).__name__}: {plain(error)}", "")
    finally:
        sink.close()


def _try_transaction(sink: TwoPhaseCommitSink[Any, Any], prefix: str | None) -> Finding:
    """Begin and end Kafka transactions without rows, if the sink is a Kafka sink with transactions."""
    if not isinstance(sink, KafkaSink) or not sink.exactly_once:
        return unknown("trial-transaction", f"{sink.name()} writes no Kafka transactions, so none was tried.")
    if sink.topic is None or prefix is None:
        way = "Set the options topic and transactionalIdPrefix."
        return unknown(
            "trial-transaction", "No transaction was tried: the topic or the transactional ids are not known.", way
        )
    with closing(KafkaAdmin(sink.client)) as admin:
        return try_transaction(admin, prefix, sink.topic)


def _check_source(options: Mapping[str, str]) -> Iterator[Finding]:
    checked = parse_read_options(options, "stream")
    BarrierKafkaDataSource(dict(options)).schema()
    yield from (good("options", "all options are valid"), good("brokers", checked.config.bootstrap_servers))
    admin = KafkaAdmin(checked.config)
    try:
        reader = TopicReader(check_brokers(checked.config), checked.config, Retries(0), patience=5.0)
        partitions = reader.partitions(checked.subscription)
        topics = sorted({partition.topic for partition in partitions})
        if not topics:
            yield problem(
                "topic", "No topic matches subscribePattern.", "Check the pattern: it must match whole topic names."
            )
            return
        reader.latest(partitions)
        yield good("topic", ", ".join(topics))
        yield from check_release(admin)
        yield from check_read_topics(admin, checked, topics)
    finally:
        admin.close()
