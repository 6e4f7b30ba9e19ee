"""Idempotent upserts, and whatever else needs Delta's own engine, for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from connector.spark import internals
from transactional import OptionError

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import DataFrame

__all__ = ["idempotent_merge"]

APP, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""Delta's settings of a session: the app transaction that its next commits carry; a version that the table knows is skipped."""


def idempotent_merge(
    source: DataFrame,
    target: str,
    condition: str,
    clauses: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    *,
    version: int,
    app: str | None = None,
) -> None:
    """MERGE a micro-batch into a Delta table exactly once. *Called on the driver, in ``foreachBatch``.*

    delta-spark runs it, so everything that its MERGE does is there: updates, deletes, change data feed, deletion vectors.
    The app transaction is in the same commit as the rows, so a micro-batch that is replayed is skipped as a whole. It is set in
    a copy of the session, so what other threads write meanwhile is no part of it.

    Parameters
    ----------
    source : DataFrame
        The micro-batch; in `condition` and `clauses` its alias is ``source``.
    target : str
        Path, or name in the catalog, of a table that exists; its alias is ``target``.
    condition : str
        When a row of the one matches a row of the other.
    clauses : Callable[[DeltaMergeBuilder], DeltaMergeBuilder]
        Adds ``whenMatched...`` and ``whenNotMatched...``.
    version : int
        The batch id.
    app : str, optional
        The writer's name: each version of one app is merged once. By default the streaming query's id: a new query starts its
        batch ids at 0 again, so two queries must never share one. Two merges of one micro-batch into one table need one
        each: the second would be taken for a repetition of the first.

    Raises
    ------
    OptionError
        Outside ``foreachBatch`` without `app`; without the package delta-spark.

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
        reason = "outside of foreachBatch, a name that no other job has"
        raise OptionError("MISSING_OPTION", owner="idempotent_merge", option="app", reason=reason)
    # The app transaction is a setting of a session, and no other thread's commit may carry it.
    own = internals.cloned(session)
    own.conf().set(APP, app)
    own.conf().set(VERSION, str(version))
    tables = session.sparkContext._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]
    found = tables.forPath(own, target) if "/" in target else tables.forName(own, target)
    merge = DeltaTable(session, found).alias("target").merge(source.alias("source"), condition)
    clauses(merge).execute()
