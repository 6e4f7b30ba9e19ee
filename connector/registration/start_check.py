"""Make ``start()`` report mistakes in a sink's settings: wrong options, columns, rights, ...

Spark 4.2.0 calls a Python sink for the first time when it plans the first micro-batch. By then, ``start()`` has returned, and
``offsets/0`` is written, so a changed ``startingOffsets`` no longer has an effect. The error also contains the JVM's stack
trace. So the user's program checks the sink when it calls ``start()``, before Spark begins.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from connector.registration.data_sources import known_sources, sink_of
from connector.spark import first_start, internals
from connector.spark.process import is_alive, process_of
from transactional.barrier import SourceLine
from transactional.errors import (
    FencedError,
    LocationError,
    OptionError,
    StoreError,
    StoreUnreachableError,
    TwoPhaseCommitError,
)
from transactional.failure import Remedy, failure_of
from transactional.sink import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from connector.spark.hosted_sink import HostedSink

log = logging.getLogger(__name__)

OFFSET_LOG_VERSION: Final = "spark.sql.streaming.offsetLog.formatVersion"

LOSES_VERSION_2: Final = "4.2.0"
"""The PySpark release that can't restart a query with version 2 of the offset log if the query died after its first
micro-batch.

Its `isRepartitionBatch` expects ``spark.sql.shuffle.partitions`` in the log's metadata, which version 2 does not have there.
"""

SLOW: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.compression.codec": "none",
    "spark.python.worker.reuse": "true",
}
"""Session settings with Spark's default values. Other values make every query that uses Spark's Python API slow."""

OF_THE_WORKERS: Final = frozenset({"MISSING_PACKAGE", "CLIENT_NOT_STARTED"})
"""Error conditions that are ignored here, because Spark's workers may run a different Python than the user's program."""

NO_LOCATION: Final = frozenset({"LOCATION_NOT_A_FOLDER", "LOCATION_NOT_OURS"})
"""Error conditions of a location that Spark could not create, or could not write into."""


def check_starts() -> None:
    """Make every ``start()`` in this program check our sinks first. A second call changes nothing."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    plain = DataStreamWriter.start
    if getattr(plain, "checks_our_sinks", False):
        return
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def start(self: DataStreamWriter, *args: Any, **named: Any) -> Any:
        given = signature.bind(self, *args, **named).arguments
        mistake = _mistake(self, given)
        if mistake is not None:
            raise mistake from None
        return plain(self, *args, **named)

    start.checks_our_sinks = True  # type: ignore[attr-defined]
    DataStreamWriter.start = start  # type: ignore[method-assign]


def _mistake(writer: DataStreamWriter, given: Mapping[str, Any]) -> TwoPhaseCommitError | None:
    """Check the sink. Return the error that ``start()`` should raise, without its traceback; None if there is none."""
    try:
        _check(writer, given)
    except LocationError as problem:
        if problem.condition in NO_LOCATION:
            return problem.with_traceback(None)
        log.info("the sink can't be checked before Spark starts the query: %s", problem)
    except FencedError as problem:
        return problem.with_traceback(None)
    except (OptionError, StoreError) as problem:
        lasts = failure_of(problem).remedy is Remedy.NONE and problem.condition not in OF_THE_WORKERS
        if lasts or isinstance(problem, StoreUnreachableError):  # usually a wrong address
            return problem.with_traceback(None)
        log.info("the sink can't be checked before Spark starts the query: %s", problem)
    except Exception:  # the planning of the first micro-batch checks again, in the Python that will write
        log.warning(
            "the sink can't be checked before Spark starts the query; the first micro-batch reports mistakes, if any",
            exc_info=True,
        )
    return None


def _check(writer: DataStreamWriter, given: Mapping[str, Any]) -> None:
    from connector.kafka.source import planned
    from connector.kafka.source.offsets import SOURCE_NAME
    from connector.spark.hosted_sink import STARTED_AFTER, STARTED_SOURCES, HostedSink

    known = known_sources()
    asked = internals.stream_write(writer)
    if asked is None:  # Spark Connect: its workers run on another machine
        return
    named = given.get("format") or asked.format
    source = known.get(named.lower())
    sink = sink_of(source)
    if source is None or sink is None:
        return
    internals.be_active(writer._spark)
    if internals.knows_format(writer._spark, source.name()) is False:
        writer._spark.dataSource.register(source)
    path = {"path": given["path"]} if given.get("path") is not None else {}
    options = {**asked.options, **_as_text(given.get("options", {})), **path}
    mode = str(given.get("outputMode") or asked.mode)
    host = HostedSink(sink, Options(options), asked.schema)
    writer.option(STARTED_AFTER, _position(host))
    names = internals.source_names(writer)
    if names is not None:
        writer.option(STARTED_SOURCES, json.dumps(names))
    if mode.lower() == "update":
        host.refuse_update()
    sources = internals.stream_sources(writer)
    ours = [read for name, read in sources if name == SOURCE_NAME]
    lines = [planned.line_of(read) if name == SOURCE_NAME else SourceLine(name) for name, read in sources]
    host.check_start(mode.lower() == "complete", lines if ours else ())
    _warn_of_slow_settings(writer._spark)
    planned.check_together(ours)
    if host.is_first():
        for read in ours:
            planned.check_bounds(read)
        _check_first(writer._spark, host)


def _warn_of_slow_settings(session: SparkSession) -> None:
    for key, fast in SLOW.items():
        value = internals.setting(session, key)
        if value is not None and value.lower() != fast:
            log.warning("%s=%s makes this query several times slower than %s: see docs/tuning.md", key, value, fast)


def _check_first(session: SparkSession, host: HostedSink) -> None:
    """Check the settings that only a first start can choose, and record which driver starts the location's first query."""
    version = internals.setting(session, OFFSET_LOG_VERSION) or "1"
    reason = "it supports 1 and 2" if version not in ("1", "2") else ""
    if version == "2" and session.version == LOSES_VERSION_2:
        reason = f"PySpark {LOSES_VERSION_2} can't start such a query again after a failure; 4.2.1 can"
    if reason:  # later starts keep the location's version
        raise OptionError(
            "SPARK_OFFSETS_UNKNOWN",
            path=f"{host.location.path}/offsets (set by {OFFSET_LOG_VERSION})",
            version=version,
            option=OFFSET_LOG_VERSION,
            reason=reason,
        )
    first_start.clean(host.location, is_alive)
    driver = internals.driver_pid(session)
    if driver is not None:
        first_start.record_start(host.location, process_of(driver))


def _position(host: HostedSink) -> str:
    """Return the number of the newest journal entry, as text; empty if the journal can't be read now."""
    try:
        return str(host.position())
    except TwoPhaseCommitError as problem:
        log.info("the journal can't be read now, so other drivers that start the query are not detected: %s", problem)
        return ""


def _as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the strings that PySpark passes to Spark."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }
