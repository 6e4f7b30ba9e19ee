"""All internal names of Spark that we use. If a name is missing, functions that use it fail or report "unknown"."""

from __future__ import annotations

import enum
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from transactional.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"

_PLANNING_MODULE = "pyspark.sql.worker.write_into_data_source"
_COMMIT_MODULE = "pyspark.sql.worker.python_streaming_sink_runner"


class Phase(enum.Enum):
    """The kinds of Python processes in which Spark calls `streamWriter`."""

    PLANNING = "planning"
    COMMIT = "commit"


def phase() -> Phase:
    """Return whether this is the planning process or the commit process, according to the modules in the call stack.

    Spark reuses both processes for other queries, so nothing else distinguishes them.
    """
    for name in _callers():
        if name == _PLANNING_MODULE:
            return Phase.PLANNING
        if name == _COMMIT_MODULE:
            return Phase.COMMIT
    raise ProtocolError(
        "UNKNOWN_SPARK",
        reason="streamWriter() was called neither by Spark's planning process nor by its commit process",
    )


def check_stream_limits() -> None:
    """Check that Spark lets a Python source limit its micro-batches, so that a micro-batch can end at a barrier."""
    try:
        import pyspark.sql.streaming.datasource
    except ImportError:
        import pyspark

        raise ProtocolError(
            "SPARK_TOO_OLD",
            version=pyspark.__version__,
        ) from None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema; timestamps get the time zone UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.1 always uses UTC


def _callers() -> Iterator[str]:
    """Yield the names of the modules in the call stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        spec = frame.f_globals.get("__spec__")
        yield spec.name if module == "__main__" and spec is not None else module
        frame = frame.f_back


def driver_identity() -> str:
    """Return an identifier shared by all Python workers of one driver."""
    value = os.environ.get(_LOCAL_DIRS, "")
    if not value:
        raise ProtocolError("UNKNOWN_SPARK", reason=f"it set no {_LOCAL_DIRS} in its Python worker's environment")
    return value


def task_batch() -> tuple[str, int, int, int]:
    """Return the running task's query id, micro-batch id, partition id and task attempt id."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_PROPERTY) if context is not None else None
    batch = context.getLocalProperty(_BATCH_PROPERTY) if context is not None else None
    if context is None or query is None or batch is None:
        raise ProtocolError("UNKNOWN_SPARK", reason=f"a writer task has no {_QUERY_PROPERTY} and {_BATCH_PROPERTY}")
    return query, int(batch), context.partitionId(), context.taskAttemptId()


def batch_task() -> tuple[int, int, str]:
    """Return the running task's partition id, attempt id and streaming query id; the last is empty outside ``foreachBatch``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ProtocolError("UNKNOWN_SPARK", reason="a writer runs outside a task")
    return context.partitionId(), context.taskAttemptId(), context.getLocalProperty(_QUERY_PROPERTY) or ""


def checkpoint_location(query: StreamingQuery) -> str:
    """Return a started query's checkpoint location, as Spark resolved it. Raises ProtocolError with Spark Connect."""
    try:
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
    except (AttributeError, TypeError) as problem:
        raise ProtocolError(
            "UNKNOWN_SPARK",
            reason=f"it does not report the query's checkpoint location ({problem}); pass it with supervise(..., location=...)",
        ) from problem


def driver_of(query: StreamingQuery) -> str | None:
    """Return the `driver_identity` of the workers that run this query; None if unknown.

    This function works only in the user's driver program, not in the workers.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    try:
        if context is None or not query.id:
            return None
        jvm: Any = context._jvm
        folders = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()
        return ",".join(folder.getPath() for folder in folders)
    except Exception:  # noqa: BLE001 - the JVM or a name may be gone.
        return None


def driver_pid(session: SparkSession) -> int | None:
    """Return the pid of the JVM that runs a session's queries; None if unknown, for example with Spark Connect."""
    try:
        jvm: Any = session._jvm
        return int(jvm.java.lang.ProcessHandle.current().pid())
    except Exception:  # noqa: BLE001 - Spark Connect, or the JVM is gone
        return None


def running_tasks() -> int | None:
    """Return the number of running tasks of all queries in this program's application; None if unknown."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    try:
        if context is None:
            return None
        infos = context._jsc.sc().statusTracker().getExecutorInfos()
        return sum(int(info.numRunningTasks()) for info in infos)
    except Exception:  # noqa: BLE001 - the JVM or a name may be gone.
        return None


def jvm_is_gone(problem: BaseException) -> bool:
    """Return whether an error means that the driver's JVM no longer answers."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, (Py4JNetworkError, ConnectionError)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def streaming_query(session: SparkSession) -> str:
    """Return the id of the streaming query whose ``foreachBatch`` this thread runs; empty outside of ``foreachBatch``."""
    return session.sparkContext.getLocalProperty(_QUERY_PROPERTY) or ""


@dataclass(frozen=True)
class StreamWrite:
    """The format, mode, options and schema that a `DataStreamWriter` was given."""

    format: str  # The format's name, as the user wrote it.
    mode: str  # The output mode, as Spark names it.
    options: Mapping[str, str] = field(repr=False)  # The options of the writer.
    schema: StructType  # The schema of the rows.


def stream_write(writer: DataStreamWriter) -> StreamWrite | None:
    """Return the settings that the user's program gave to a `DataStreamWriter`; None with Spark Connect."""
    written = getattr(writer, "_jwrite", None)
    if written is None:
        return None
    try:
        kind = written.getClass()

        def value(name: str) -> Any:
            found = kind.getDeclaredField(name)
            found.setAccessible(True)
            return found.get(written)

        given = value("extraOptions").originalMap().iterator()
        options: dict[str, str] = {}
        while given.hasNext():
            pair = given.next()
            options[str(pair._1())] = str(pair._2())
        return StreamWrite(str(value("source")), str(value("outputMode").toString()), options, writer._df.schema)
    except Exception as problem:
        raise ProtocolError(
            "UNKNOWN_SPARK", reason=f"it does not report the settings of a DataStreamWriter ({problem})"
        ) from problem


def stream_sources(writer: DataStreamWriter) -> Sequence[tuple[str, Mapping[str, str]]]:
    """Return the format and the options of each streaming source that a writer reads from; empty if unknown."""
    found = []
    try:
        for leaf in _streaming_leaves(writer):
            if leaf.nodeName() == "StreamingRelationV2":
                found.append((str(leaf.sourceName()), dict(leaf.extraOptions().asCaseSensitiveMap())))
            else:  # a source of Spark's own, with the first source API
                found.append((str(leaf.nodeName()), {}))
    except Exception:  # noqa: BLE001 - Spark Connect, or a name is gone.
        return []
    return found


_SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def source_names(writer: DataStreamWriter) -> Sequence[str] | None:
    """Return the names of the streaming sources that a writer reads from, in the order of the plan; None if unknown.

    If source evolution is enabled, these are the names that were set with ``DataStreamReader.name``; otherwise, they
    are the sources' positions. Version 2 of Spark's offset log contains the same names.
    """
    found: list[str] = []
    evolves = (setting(writer._spark, _SOURCE_EVOLUTION) or "").lower() == "true"
    try:
        for leaf in _streaming_leaves(writer):
            found.append(str(leaf.sourceIdentifyingName().nameOpt().get()) if evolves else str(len(found)))
    except Exception:  # noqa: BLE001 - Spark Connect, a source without a name, or an older Spark.
        return None
    return found


def _streaming_leaves(writer: DataStreamWriter) -> Iterator[Any]:
    """Yield the streaming sources of a writer's analyzed plan, in the order of the plan."""
    leaves: Any = writer._df._jdf.queryExecution().analyzed().collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.isStreaming():
            yield leaf


def setting(session: SparkSession, key: str) -> str | None:
    """Return a session's setting for a key; None if the key is not set, or can't be read."""
    try:
        found = session.conf.get(key, None)
    except Exception:  # noqa: BLE001 - the session may be gone; `start` reports that better
        return None
    return None if found is None else str(found)


def slots(session: SparkSession, of: Callable[[Callable[[str], str | None], str, int], int | None]) -> int | None:
    """Pass the Spark context's settings, master and default parallelism to `of`. Return its result; None on failure."""
    try:
        context: Any = session.sparkContext
        return of(context.getConf().get, str(context.master), int(context.defaultParallelism))
    except Exception:  # noqa: BLE001 - Spark Connect, or the JVM is gone
        return None


def knows_format(session: SparkSession, name: str) -> bool | None:
    """Return whether this session finds a Python data source with this name; None if unknown, as with Spark Connect."""
    try:
        state: Any = session._jsparkSession.sessionState()
        return bool(state.dataSourceManager().dataSourceExists(name))
    except Exception:  # noqa: BLE001 - Spark Connect, or a name is gone.
        return None


def cloned(session: SparkSession) -> Any:
    """Return a copy of the JVM session, with its settings, views and functions; later changes in one don't affect the other.

    Spark runs each streaming query in such a copy. This function creates no Python `SparkSession` for the copy, because that
    would patch RDDs to use the copy.
    """
    return session._jsparkSession.cloneSession()


def worker_python(session: SparkSession) -> str | None:
    """Return the path of Python in Spark's workers; None if unknown, or if Spark itself ships packages to the workers."""
    try:
        context: Any = session.sparkContext
        return None if context._python_includes else str(context.pythonExec)
    except Exception:  # noqa: BLE001 - Spark Connect, or a name is gone.
        return None


def finds_class(session: SparkSession, source: type[DataSource]) -> bool:
    """Return whether Spark has found this data source class by itself, in an installed package; False if unknown."""
    try:
        state: Any = session._jsparkSession.sessionState()
        known = state.dataSourceManager().lookupDataSource(source.name())
        pickled = bytes(known.dataSourceCls().command().unsafeArray())
        return source.__module__.encode() in pickled and source.__qualname__.encode() in pickled
    except Exception:  # noqa: BLE001 - no such source, Spark Connect, or a name is gone.
        return False


def be_active(session: SparkSession) -> None:
    """Make the session active in the calling thread of the user's program, if no session is active there.

    Spark looks up a sink's Python format in the session that is active in the JVM's thread. For a new Python thread, the JVM's
    thread has no active session.
    """
    jvm = getattr(session, "_jvm", None)
    if jvm is None:  # Spark Connect
        return
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(session._jsparkSession)


def active_session() -> SparkSession | None:
    """Return the active session of the user's program; None if there is none, or if its JVM is gone."""
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except Exception:  # noqa: BLE001 - its JVM may be gone; `start` reports that better
        return None
