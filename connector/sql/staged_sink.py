"""`StagedSqlSink`: the base of sinks whose store is a relational database.

A task writes its rows to a staging table, in a database transaction that it commits itself: from then on they are durable, and
in no table that readers query. A checkpoint is committed by one database transaction. It locks the rows that stand for the
tasks' transactions in a control table, moves the staged rows into the target and sets the state. An abort sets the other
state. Whichever locks a row first wins, and nothing expires.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

from connector.sinks import faults, must_hold
from connector.sql.control_tables import AT_ONCE, CONTROL_TABLES, ControlTables, Cursor, Prepared, marks, portions
from connector.sql.database import Connection, Database, sqlstate, standard_error
from connector.sql.fitting import in_micros
from transactional import (
    AmbiguousOutcomeError,
    Cutoff,
    FencedError,
    GuardsRuns,
    HandleState,
    Options,
    Outcome,
    RowRefusedError,
    StoreError,
    StoreReplacedError,
    TransactionContext,
    TransactionLostError,
    TwoPhaseCommitError,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional import DecidedCheckpoint

__all__ = ["StagedHandle", "StagedSqlSink", "StagedTransaction"]

FORMAT: Final = 1
"""Version of the handles."""


class StagedHandle(TypedDict):
    """A prepared transaction: its name, where its rows are staged, and for which target."""

    format: int
    nonce: str
    batch: int
    partition: int
    rows: int
    staging: str
    target: str
    more: dict[str, Any]


class _RowsDeletedError(Exception):
    """Something has deleted staged rows between the first look of a commit and its end, so it is rolled back."""


@dataclass
class StagedTransaction:
    """A task's transaction while it is open.

    Parameters
    ----------
    context : TransactionContext
    cursor : Cursor
        Of a connection that no one else uses.
    target : str
        As `StagedSqlSink.target` returned it.
    rows : int
        That were staged so far.
    """

    context: TransactionContext
    cursor: Any
    target: str
    rows: int = 0


class StagedSqlSink(GuardsRuns, TwoPhaseCommitSink[StagedTransaction, StagedHandle]):
    """Stages rows in a relational database, and moves those of a whole checkpoint into the target at one instant.

    Subclasses name the staging table, write to it (`stage`) and move rows out of it (`publish`). The database must have
    transactions that survive a crash once they are committed, and lock the rows that ``SELECT ... FOR UPDATE`` reads, or
    whole tables.

    Parameters
    ----------
    options : Options
    schema : pyarrow.Schema
    """

    commitsTogether: ClassVar[bool] = True
    addressOptions = frozenset({"url", "dbtable", "stagingschema"})

    marker: ClassVar[str] = "?"
    """The sign for a parameter in a statement: PEP 249's ``paramstyle``."""

    locking: ClassVar[str] = " FOR UPDATE"
    """The end of a query that locks what it reads; empty if a transaction that writes excludes all others."""

    at_once: ClassVar[int] = AT_ONCE
    """How many rows a statement that locks may name; 1 if the database would read, and lock, the whole table for several."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._prefix = options.get("transactionalIdPrefix", "")

    # -- what a sink's author gives ---------------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> Connection:
        """Connect to the database, without autocommit."""

    @abstractmethod
    def staging(self, cursor: Cursor) -> str:
        """Return the name of the staging table for these rows, as it stands in a statement.

        One of its columns is ``barrier_nonce``. Other columns than before are staged in another table, as what an earlier
        run has prepared is still there.
        """

    @abstractmethod
    def create(self, cursor: Cursor) -> None:
        """Create the staging table, and the target if it may be missing, unless they are there. *Driver, once per planning.*"""

    @abstractmethod
    def has(self, cursor: Cursor, name: str) -> bool:
        """Return whether there is a control table of this name; change nothing. *Driver.*"""

    @abstractmethod
    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Insert rows into the staging table, with ``barrier_nonce`` = ``transaction.context.nonce``. *Executor.*"""

    @abstractmethod
    def publish(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        """Insert the staged rows of these transactions into the target, in this order. *Driver.*"""

    def unstage(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> None:
        """Delete staged rows."""
        for some in portions(nonces, self.at_once):
            self.run(cursor, f"DELETE FROM {staging} WHERE barrier_nonce IN ({marks(some)})", some)

    def staged(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return how many rows are staged, by transaction; empty if the staging table is gone."""
        found: dict[str, int] = {}
        for some in portions(nonces):
            where = f"WHERE barrier_nonce IN ({marks(some)}) GROUP BY barrier_nonce"
            found |= dict(self.run(cursor, f"SELECT barrier_nonce, COUNT(*) FROM {staging} {where}", some))
        return found

    def target(self, cursor: Cursor) -> str:
        """Return what distinguishes the target from one that is created under its name later. Default: nothing does."""
        return ""

    def lock(self, cursor: Cursor) -> None:
        """Keep the target as it is until the end of the transaction: `target` is asked next. Default: nothing."""

    def server(self, cursor: Cursor) -> str:
        """Return what changes if the database goes on elsewhere, or from an older state: a failover. Default: nothing.

        A run that finds another server than it began on ends, and the next one compares the database with the journal.
        """
        return ""

    def control_table(self, name: str) -> str:
        """Return the name of a control table as it stands in a statement. Default: the name."""
        return name

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        """Begin a database transaction: settings that are valid for it. Default: nothing.

        Parameters
        ----------
        cursor : Cursor
        seconds : float or None
            How long one statement, or a pause between two, may take. None for a task's: it waits for its rows.
        """

    def more(self) -> dict[str, Any]:
        """Return what else `publish` needs, as JSON: it goes into the handles. Default: nothing."""
        return {}

    # -- executor ---------------------------------------------------------------------------------------------------

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Begin a database transaction."""
        with self.database.reaching():
            cursor = self.database.begin(None)
            self._must_be_the_same(cursor)
            return StagedTransaction(context, cursor, self.target(cursor))

    def write(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Stage the rows."""
        with self.database.reaching():
            self.stage(transaction, in_micros(self.name(), batch))
        transaction.rows += batch.num_rows

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Commit the database transaction: the staged rows, and the row that stands for them."""
        context, rows = transaction.context, transaction.rows
        with self.database.reaching():
            staging = self.staging(transaction.cursor)
            self._control.add(transaction.cursor, context, rows, staging)
            self.database.connection().commit()
        return StagedHandle(
            format=FORMAT,
            nonce=context.nonce,
            batch=context.batchId,
            partition=context.partitionId,
            rows=rows,
            staging=staging,
            target=transaction.target,
            more=self.more(),
        )

    def rollback(self, transaction: StagedTransaction) -> None:
        """Roll back."""
        self.close()

    def close(self) -> None:
        """Close the connection, after a rollback."""
        self.database.close()

    # -- driver -----------------------------------------------------------------------------------------------------

    def identify(self) -> dict[str, str]:
        """Create what is missing; return the id of the control tables, and the target's."""
        self.create_control_tables()
        with self.database.transaction() as cursor:
            self.create(cursor)
            target = self.target(cursor)
        return {"cluster": f"{self._store()}/{self.table()}", "table": target}

    def _store(self) -> str:
        """Return the id of the control tables; the first that asks gives them one."""
        while True:
            with self.database.transaction() as cursor:
                found = self._control.store(cursor)
            if found is not None:
                return found
            with suppress(RowRefusedError), self.database.transaction() as cursor:  # another query was first
                self._control.name_store(cursor)

    def table(self) -> str:
        """Return the target's name in the database. Default: the format's name."""
        return self.name()

    def described(self) -> str:
        """Return the target's name and where it is, for people; it holds no secret. Default: `table`."""
        return self.table()

    def create_control_tables(self) -> None:
        """Create the control tables unless they are there."""
        with self.database.transaction() as cursor:
            for name, columns in CONTROL_TABLES.items():
                self.run(cursor, f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns})")

    def isThere(self, route: str = "") -> bool:
        """Return whether the control tables and the target are there."""
        with self.database.transaction() as cursor:
            return all(self.has(cursor, name) for name in CONTROL_TABLES) and self.has_target(cursor)

    def has_target(self, cursor: Cursor) -> bool:
        """Return whether the target is there. Default: yes, because `create` creates none."""
        return True

    def newestCheckpoint(self, queryId: str, route: str = "") -> int:
        """Return the newest committed checkpoint of the query; the commit itself compares it once more."""
        with self.database.transaction() as cursor:
            return self._control.newest(cursor, queryId)

    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Take the prefix, or check that no other query has, and that the database is still the same."""
        if mark is None:
            with suppress(RowRefusedError):  # another run took it while it had no row that could be locked
                return self._claim()
            return self._claim()
        with self.database.transaction() as cursor:
            if self._must_be_the_same(cursor) != mark["token"]:
                raise FencedError("PREFIX_TAKEN", prefix=self._prefix, reason=f"{self.described()} names another run")
            return mark

    def _claim(self) -> Mapping[str, Any]:
        with self.database.transaction() as cursor:
            return {"token": self._control.claim(cursor, self.server(cursor))}

    def commit(self, handles: Sequence[StagedHandle], checkpoint: DecidedCheckpoint) -> None:
        """Move the rows of all into the target, in one database transaction."""
        if not handles:
            return

        def attempt(seconds: float) -> list[StagedHandle]:
            while True:
                with suppress(_RowsDeletedError):  # the next look finds them gone
                    return self._commit(handles, checkpoint, seconds)

        try:
            lost = self.database.retried(attempt, f"the commit of checkpoint {checkpoint.id}")
        except RowRefusedError as problem:
            raise problem.with_note(
                f"Checkpoint {checkpoint.id} is decided, so its rows stay as they are: ALTER TABLE (or drop the constraint, "
                f"index, policy or trigger that refuses them), and start the query again. Nothing is lost."
            ) from problem
        faults.reach("commit.one")
        if lost:
            reason = (
                f"{len(lost)} of checkpoint {checkpoint.id} were aborted, or their rows are not in {lost[0]['staging']}"
            )
            raise TransactionLostError("TRANSACTION_LOST", handles=lost, reason=reason)

    def _commit(
        self, handles: Sequence[StagedHandle], checkpoint: DecidedCheckpoint, seconds: float
    ) -> list[StagedHandle]:
        """Commit all, or none; return those that are lost."""
        with self.database.transaction(seconds) as cursor:
            self._must_be_the_same(cursor, lock=True)
            must_hold(self.described(), self._control.newest(cursor, checkpoint.queryId), checkpoint.after)
            states = self._control.states(cursor, [handle["nonce"] for handle in handles], lock=True)
            lost = [handle for handle in handles if states.get(handle["nonce"]) not in ("prepared", "committed")]
            living = [handle for handle in handles if states.get(handle["nonce"]) == "prepared"]
            gone = self._gone(cursor, living)
            if gone:  # no one can repair them but the replay: as good as aborted, and now they are
                self._control.end(cursor, [handle["nonce"] for handle in gone], "aborted")
                self._unstage(cursor, _by_staging(gone))
            if lost or gone or not living:
                return lost + gone
            self.lock(cursor)
            self._must_be_known(cursor, living, checkpoint)
            living.sort(key=lambda handle: (handle["batch"], handle["partition"]))
            self._publish(cursor, living)
            for staging, nonces in _by_staging(living).items():
                self.unstage(cursor, staging, nonces)
            self._control.end(cursor, [handle["nonce"] for handle in living], "committed")
            self._control.record(cursor, checkpoint.queryId, checkpoint.completed)
        return []

    def _publish(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        """Insert the rows, if all that were counted are staged to the end: each statement sees what is committed by then."""
        try:
            self.publish(cursor, handles)
        except StoreError:  # it may have counted too few
            self._must_be_staged(cursor, handles)
            raise
        self._must_be_staged(cursor, handles)

    def _must_be_staged(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        if self._gone(cursor, handles):
            raise _RowsDeletedError

    def abort(self, handles: Sequence[StagedHandle]) -> Sequence[StagedHandle]:
        """Set the state of those that are not committed, and delete their staged rows."""

        def attempt(seconds: float) -> list[StagedHandle]:
            with self.database.transaction(seconds) as cursor:
                states = self._control.states(cursor, [handle["nonce"] for handle in handles], lock=True)
                living = [handle for handle in handles if states.get(handle["nonce"]) == "prepared"]
                self._control.end(cursor, [handle["nonce"] for handle in living], "aborted")
                self._unstage(cursor, _by_staging(living))
            return [handle for handle in handles if states.get(handle["nonce"]) == "committed"]

        return self.database.retried(attempt, "an abort") if handles else []

    def inspect(self, handles: Sequence[StagedHandle]) -> Sequence[HandleState]:
        """Return the state of each."""
        if not handles:
            return []
        with self.database.transaction() as cursor:
            states = self._control.states(cursor, [handle["nonce"] for handle in handles])
            target = self.target(cursor)
        return [_outcome(handle, states.get(handle["nonce"]), target) for handle in handles]

    def sweep(self, known: Sequence[StagedHandle], before: Cutoff) -> int:
        """Delete what is over: prepared transactions, and the rows that stood for others."""
        kept = {handle["nonce"] for handle in known}
        return self._sweep(lambda row: row.nonce not in kept and before.ends(row.query, row.run, row.batch))

    def _sweep(self, is_over: Callable[[Prepared], bool]) -> int:
        with self.database.transaction() as cursor:
            over = [row for row in self._control.all(cursor) if is_over(row)]
            if not over:
                return 0
            states = self._control.states(cursor, [row.nonce for row in over], lock=True)
            over = [row for row in over if states.get(row.nonce) == row.state]  # one may have been committed meanwhile
            staged: dict[str, list[str]] = {}
            for row in over:
                if row.state == "prepared":
                    staged.setdefault(row.staging, []).append(row.nonce)
            self._unstage(cursor, staged)
            self._control.forget(cursor, [row.nonce for row in over])
            return sum(map(len, staged.values()))

    def _unstage(self, cursor: Cursor, staged: Mapping[str, Sequence[str]]) -> None:
        for staging, nonces in staged.items():
            if self.staged(cursor, staging, nonces):
                self.unstage(cursor, staging, nonces)

    # -- statements -------------------------------------------------------------------------------------------------

    @cached_property
    def database(self) -> Database:
        """The connection, its database transactions and their errors."""
        return Database(self, self.commit_seconds)

    @property
    def commit_seconds(self) -> float:
        """How long the commit of a checkpoint may take: the option ``commitTimeoutMs``."""
        return int(self.options.get("commitTimeoutMs", "120000")) / 1000

    def translated(self, problem: Exception) -> TwoPhaseCommitError | None:
        """Return a database's error as ours: by its SQLSTATE. None if it is no database's."""
        return standard_error(problem, self.sqlstate(problem), self.name(), self.described(), self.commit_seconds)

    def sqlstate(self, problem: Exception) -> str:
        """Return the SQLSTATE of a database's error: it decides whether the statement is tried again. Empty if it has none.

        Default: the driver's. Override it if your database's own numbers say more.
        """
        return sqlstate(problem)

    @cached_property
    def _control(self) -> ControlTables:
        return ControlTables(self, self._prefix)

    def run(self, cursor: Cursor, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run a statement whose parameters are written as ``?``; return its rows, if it has any."""
        cursor.execute(statement.replace("?", self.marker), tuple(parameters))
        return list(cursor.fetchall()) if statement.lstrip()[:6].upper() == "SELECT" else []

    def _must_be_the_same(self, cursor: Cursor, lock: bool = False) -> str:
        """Check that the newest run under the prefix has begun on this database, as it is; return the run's token."""
        claimed, server = self._control.claimed(cursor, lock), self.server(cursor)
        if claimed is None or claimed[1] != server:
            raise StoreReplacedError("DATABASE_FAILED_OVER", table=self.described(), server=server)
        return claimed[0]

    def _gone(self, cursor: Cursor, living: Sequence[StagedHandle]) -> list[StagedHandle]:
        """Return those whose rows are not all staged: something has deleted them."""
        found: dict[str, int] = {}
        for staging, nonces in _by_staging(living).items():
            found |= self.staged(cursor, staging, nonces)
        return [handle for handle in living if found.get(handle["nonce"], 0) != handle["rows"]]

    def _must_be_known(self, cursor: Cursor, handles: Sequence[StagedHandle], checkpoint: DecidedCheckpoint) -> None:
        target = self.target(cursor)
        for handle in handles:
            found = _outcome(handle, "prepared", target)
            if found.outcome is Outcome.UNKNOWN:
                raise AmbiguousOutcomeError(
                    "OUTCOME_UNKNOWN",
                    transaction=f"the commit of {handle['rows']} rows of checkpoint {checkpoint.id} to {self.described()}",
                    handle=json.loads(json.dumps(handle)),
                    evidence=found.evidence,
                )


def _outcome(handle: StagedHandle, state: str | None, target: str) -> HandleState:
    if state == "committed":
        return HandleState(Outcome.COMMITTED, evidence="its state is committed")
    if state != "prepared":
        known = "its state is aborted" if state else "the control table does not have it"
        return HandleState(Outcome.LOST, evidence=known)
    if handle["target"] != target:
        evidence = "the table is not the one that it was prepared for, which was deleted or renamed"
        return HandleState(Outcome.UNKNOWN, evidence=evidence)
    return HandleState(Outcome.PREPARED)


def _by_staging(handles: Sequence[StagedHandle]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for handle in handles:
        found.setdefault(handle["staging"], []).append(handle["nonce"])
    return found
