"""Idempotent MERGE with Delta's own engine, for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from connector.spark import internals
from transactional import OptionError

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import DataFrame

APP, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""Delta's session settings for the app transaction of commits. Delta skips a commit whose version the table already has."""


def idempotent_merge(
    source: DataFrame,
    target: str,
    condition: str,
    clauses: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    *,
    version: int,
    app: str | None = None,
) -> None:
    """MERGE a micro-batch into a Delta table exactly once. Call this on the driver, in ``foreachBatch``.

    delta-spark runs the MERGE, so all of its features work: updates, deletes, change data feed, deletion vectors. The commit
    contains Delta's transaction id (``txnAppId``, ``txnVersion``) together with the rows. So if a micro-batch is replayed,
    Delta skips the whole MERGE. The id is set in a copy of the session, so writes of other threads are not affected.

    Parameters
    ----------
    source : DataFrame
        The micro-batch; its alias in `condition` and `clauses` is ``source``.
    target : str
        Path or catalog name of an existing table; its alias is ``target``.
    condition : str
        SQL condition under which a source row matches a target row.
    clauses : Callable[[DeltaMergeBuilder], DeltaMergeBuilder]
        Adds the ``whenMatched...`` and ``whenNotMatched...`` clauses.
    version : int
        The batch id that ``foreachBatch`` passes.
    app : str, optional
        A name for this writer; by default, the id of the streaming query. Delta merges each `version` of an app once, and
        skips repetitions. So two queries must not share an app, because each counts its batch ids from 0. If you merge one
        micro-batch twice into one table, give each merge its own app.

    Raises
    ------
    OptionError
        ``MISSING_OPTION``: outside ``foreachBatch``, `app` is needed. ``MISSING_PACKAGE``: delta-spark is not installed.

    Examples
    --------
    >>> def upsert(frame, batch):
    ...     idempotent_merge(
    ...         frame, "/tables/counts", "source.key = target.key",
    ...         lambda merge: merge.whenMatchedUpdateAll().whenNotMatchedInsertAll(), version=batch,
    ...     )
    >>> counts.writeStream.outputMode("update").foreachBatch(upsert).start()
    """
    try:
        from delta.tables import DeltaTable
    except ImportError as missing:
        package = "barrier-kafka[delta-merge]"
        raise OptionError("MISSING_PACKAGE", owner="idempotent_merge", package=package) from missing

    session = source.sparkSession
    app = app or internals.streaming_query(session)
    if not app:
        reason = "outside foreachBatch, set it to a name that no other job uses"
        raise OptionError("MISSING_OPTION", owner="idempotent_merge", option="app", reason=reason)
    # The app transaction is a session setting. A copy of the session keeps it out of other threads' commits.
    own = internals.cloned(session)
    own.conf().set(APP, app)
    own.conf().set(VERSION, str(version))
    tables = session.sparkContext._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]
    found = tables.forPath(own, target) if "/" in target else tables.forName(own, target)
    merge = DeltaTable(session, found).alias("target").merge(source.alias("source"), condition)
    clauses(merge).execute()
