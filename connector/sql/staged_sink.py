"""`StagedSqlSink`: the base class of sinks whose store is a relational database.

A task writes its rows to a staging table, in a database transaction that the task itself commits. After that, the rows
are durable, but not in a table that readers query. The sink keeps control tables in the same database. One of them has
a row with the state of each task's transaction.

One database transaction commits a checkpoint: it locks these state rows, moves the staged rows into the target, and
sets the state to committed. An abort locks the same state rows, and sets the state to aborted. If a commit and an abort
overlap, the first to lock a row wins. A prepared transaction never expires.
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

FORMAT: Final = 1
"""The version of the format of handles."""


class StagedHandle(TypedDict):
    """The handle of a prepared transaction: its ``nonce``, the number of its rows, the staging table and the target.

    The column ``barrier_nonce`` of the staged rows contains this ``nonce``. ``more`` is the value that `StagedSqlSink.more`
    returned.
    """

    format: int
    nonce: str
    batch: int
    partition: int
    rows: int
    staging: str
    target: str
    more: dict[str, Any]


class _RowsDeletedError(Exception):
    """Staged rows were deleted while a commit was running, so the commit was rolled back."""


@dataclass
class StagedTransaction:
    """A task's open transaction.

    Parameters
    ----------
    context : TransactionContext
        The task that writes the rows.
    cursor : Cursor
        A cursor of a connection that no one else uses.
    target : str
        The value that `StagedSqlSink.target` returned when the transaction began.
    rows : int
        The number of rows that have been staged so far.
    """

    context: TransactionContext
    cursor: Any
    target: str
    rows: int = 0


class StagedSqlSink(GuardsRuns, TwoPhaseCommitSink[StagedTransaction, StagedHandle]):
    """Base class of sinks that stage rows in a relational database, and make a whole checkpoint visible at one instant.

    Subclasses name the staging table, write rows to it (`stage`), and move the rows into the target (`publish`). In the
    database, committed transactions must survive a crash, and ``SELECT ... FOR UPDATE`` must lock the rows that it reads, or
    their whole tables.

    Parameters
    ----------
    options : Options
        The user's options, with ``transactionalIdPrefix`` filled in (the query id by default).
    schema : pyarrow.Schema
        The schema of every batch that `stage` gets.
    """

    commitsTogether: ClassVar[bool] = True
    addressOptions = frozenset({"url", "dbtable", "stagingschema"})

    marker: ClassVar[str] = "?"
    """The placeholder for a parameter in the client's statements (``paramstyle`` in PEP 249): ``?`` or ``%s``."""

    locking: ClassVar[str] = " FOR UPDATE"
    """The end of a SELECT statement that locks the rows it reads. Set it to an empty string if the database allows only
    one writing transaction at a time."""

    at_once: ClassVar[int] = AT_ONCE
    """The maximum number of transactions in one locking statement. Set it to 1 if the database would lock the whole
    table for more than one transaction."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._prefix = options.get("transactionalIdPrefix", "")

    # -- methods for a subclass -------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> Connection:
        """Return a new connection to the database (PEP 249) that is not in autocommit mode."""

    @abstractmethod
    def staging(self, cursor: Cursor) -> str:
        """Return the name of the staging table for these rows, as SQL writes it.

        The staging table has a column ``barrier_nonce``. If the rows' columns have changed, return a different name, because
        the old table may still contain prepared rows of an earlier run.
        """

    @abstractmethod
    def create(self, cursor: Cursor) -> None:
        """Create the staging table if it is missing, and the target, if your sink creates it.

        The driver calls this method each time it plans a micro-batch.
        """

    @abstractmethod
    def has(self, cursor: Cursor, name: str) -> bool:
        """Return whether a control table with this name exists.

        The driver calls this method; it must change nothing.
        """

    @abstractmethod
    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Insert a batch into the staging table, with ``transaction.context.nonce`` in the column ``barrier_nonce``.

        Tasks call this method.
        """

    @abstractmethod
    def publish(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        """Insert the staged rows of these transactions into the target, in the order of `handles`.

        The driver calls this method inside the checkpoint's database transaction, so do not commit.
        """

    def unstage(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> None:
        """Delete the staged rows of these transactions."""
        for some in portions(nonces, self.at_once):
            self.run(cursor, f"DELETE FROM {staging} WHERE barrier_nonce IN ({marks(some)})", some)

    def staged(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return the number of staged rows of each of these transactions, by nonce. Omit transactions without staged rows."""
        found: dict[str, int] = {}
        for some in portions(nonces):
            where = f"WHERE barrier_nonce IN ({marks(some)}) GROUP BY barrier_nonce"
            found |= dict(self.run(cursor, f"SELECT barrier_nonce, COUNT(*) FROM {staging} {where}", some))
        return found

    def target(self, cursor: Cursor) -> str:
        """Return a value that identifies the target, for example an object id. Default: an empty string.

        A table that is created later under the same name must get a different value.
        """
        return ""

    def lock(self, cursor: Cursor) -> None:
        """Lock the target, so that no one can alter or replace it until this database transaction ends.

        Default: no lock.

        Called in each commit, before `target`.
        """

    def server(self, cursor: Cursor) -> str:
        """Return a value that a failover or a restore changes, such as the server's id. Default: an empty string.

        If the value has changed since the run began, the run ends. The next run then compares the database with the
        journal.
        """
        return ""

    def control_table(self, name: str) -> str:
        """Return the name of a control table as SQL writes it. Default: `name`, without a schema."""
        return name

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        """Begin a database transaction with the settings that it needs.

        Default: do nothing, because Python's clients begin the transaction.

        Parameters
        ----------
        cursor : Cursor
            The cursor that runs the transaction's statements.
        seconds : float or None
            The time limit for each statement, and for each pause between two statements. None (no limit) in a task, because a
            task waits for its rows.
        """

    def more(self) -> dict[str, Any]:
        """Return further data that `publish` needs, as a JSON mapping that the handle stores.

        Default: an empty mapping.
        """
        return {}

    # -- executor ---------------------------------------------------------------------------------------------------

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Begin the task's database transaction."""
        with self.database.reaching():
            cursor = self.database.begin(None)
            self._must_be_the_same(cursor)
            return StagedTransaction(context, cursor, self.target(cursor))

    def write(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Write the batch to the staging table."""
        with self.database.reaching():
            self.stage(transaction, in_micros(self.name(), batch))
        transaction.rows += batch.num_rows

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Commit the staged rows together with the transaction's row in the control table. Return the handle."""
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
        """Roll back, and close the connection."""
        self.close()

    def close(self) -> None:
        """Roll back uncommitted changes, and close the connection."""
        self.database.close()

    # -- driver -----------------------------------------------------------------------------------------------------

    def identify(self) -> dict[str, str]:
        """Create missing tables. Return the control tables' id with the target's name, and the value of `target`."""
        self.create_control_tables()
        with self.database.transaction() as cursor:
            self.create(cursor)
            target = self.target(cursor)
        return {"cluster": f"{self._store()}/{self.table()}", "table": target}

    def _store(self) -> str:
        """Return the id of the control tables. If they have no id yet, give them one first."""
        while True:
            with self.database.transaction() as cursor:
                found = self._control.store(cursor)
            if found is not None:
                return found
            with suppress(RowRefusedError), self.database.transaction() as cursor:  # another query gave them an id
                self._control.name_store(cursor)

    def table(self) -> str:
        """Return the target's name in the database. Default: the format's name."""
        return self.name()

    def described(self) -> str:
        """Return the target's name and server for messages, without secrets. Default: the result of `table`."""
        return self.table()

    def create_control_tables(self) -> None:
        """Create the control tables, unless they exist."""
        with self.database.transaction() as cursor:
            for name, columns in CONTROL_TABLES.items():
                self.run(cursor, f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns})")

    def isThere(self, route: str = "") -> bool:
        """Return whether the control tables and the target exist."""
        with self.database.transaction() as cursor:
            return all(self.has(cursor, name) for name in CONTROL_TABLES) and self.has_target(cursor)

    def has_target(self, cursor: Cursor) -> bool:
        """Return whether the target exists. Default: True. Override this if `create` creates the target."""
        return True

    def newestCheckpoint(self, queryId: str, route: str = "") -> int:
        """Return the query's newest committed checkpoint; 0 if it has none. The framework compares it with the journal."""
        with self.database.transaction() as cursor:
            return self._control.newest(cursor, queryId)

    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Claim the prefix for a new run.

        In a continuing run, check that the run still owns the prefix, on the same server.
        """
        if mark is None:
            with suppress(RowRefusedError):  # another run inserted the prefix's row first: try again
                return self._claim()
            return self._claim()
        with self.database.transaction() as cursor:
            if self._must_be_the_same(cursor) != mark["token"]:
                raise FencedError(
                    "PREFIX_TAKEN", prefix=self._prefix, reason=f"another run claimed the prefix for {self.described()}"
                )
            return mark

    def _claim(self) -> Mapping[str, Any]:
        with self.database.transaction() as cursor:
            return {"token": self._control.claim(cursor, self.server(cursor))}

    def commit(self, handles: Sequence[StagedHandle], checkpoint: DecidedCheckpoint) -> None:
        """Move the staged rows of all handles into the target, in one database transaction."""
        if not handles:
            return

        def attempt(seconds: float) -> list[StagedHandle]:
            while True:
                with suppress(_RowsDeletedError):  # the next attempt finds out which rows are gone
                    return self._commit(handles, checkpoint, seconds)

        try:
            lost = self.database.retried(attempt, f"the commit of checkpoint {checkpoint.id}")
        except RowRefusedError as problem:
            raise problem.with_note(
                f"Checkpoint {checkpoint.id} is decided, so its rows can't be changed. Alter the table (or drop the "
                f"constraint, index, policy or trigger that rejects the row), and start the query again. No row is lost."
            ) from problem
        faults.reach("commit.one")
        if lost:
            reason = f"{len(lost)} transactions of checkpoint {checkpoint.id} were aborted or lack rows in {lost[0]['staging']}"
            raise TransactionLostError("TRANSACTION_LOST", handles=lost, reason=reason)

    def _commit(
        self, handles: Sequence[StagedHandle], checkpoint: DecidedCheckpoint, seconds: float
    ) -> list[StagedHandle]:
        """Commit all handles in one database transaction.

        If some are lost, commit none of them, and return the lost ones.
        """
        with self.database.transaction(seconds) as cursor:
            self._must_be_the_same(cursor, lock=True)
            must_hold(self.described(), self._control.newest(cursor, checkpoint.queryId), checkpoint.after)
            states = self._control.states(cursor, [handle["nonce"] for handle in handles], lock=True)
            lost = [handle for handle in handles if states.get(handle["nonce"]) not in ("prepared", "committed")]
            living = [handle for handle in handles if states.get(handle["nonce"]) == "prepared"]
            gone = self._gone(cursor, living)
            if gone:  # only a replay can write these rows again, so abort the transactions
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
        """Move staged rows into the target.

        Raise `_RowsDeletedError` if another transaction has deleted some of these rows in the meantime.
        """
        try:
            self.publish(cursor, handles)
        except StoreError:  # rows may have been deleted
            self._must_be_staged(cursor, handles)
            raise
        self._must_be_staged(cursor, handles)

    def _must_be_staged(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        if self._gone(cursor, handles):
            raise _RowsDeletedError

    def abort(self, handles: Sequence[StagedHandle]) -> Sequence[StagedHandle]:
        """Abort the handles that are prepared, and delete their staged rows. Return the handles that are committed."""

        def attempt(seconds: float) -> list[StagedHandle]:
            with self.database.transaction(seconds) as cursor:
                states = self._control.states(cursor, [handle["nonce"] for handle in handles], lock=True)
                living = [handle for handle in handles if states.get(handle["nonce"]) == "prepared"]
                self._control.end(cursor, [handle["nonce"] for handle in living], "aborted")
                self._unstage(cursor, _by_staging(living))
            return [handle for handle in handles if states.get(handle["nonce"]) == "committed"]

        return self.database.retried(attempt, "an abort") if handles else []

    def inspect(self, handles: Sequence[StagedHandle]) -> Sequence[HandleState]:
        """Return the state of each handle, from the transaction's row in the control table."""
        if not handles:
            return []
        with self.database.transaction() as cursor:
            states = self._control.states(cursor, [handle["nonce"] for handle in handles])
            target = self.target(cursor)
        return [_outcome(handle, states.get(handle["nonce"]), target) for handle in handles]

    def sweep(self, known: Sequence[StagedHandle], before: Cutoff) -> int:
        """Abort the prepared transactions that are over (see `Cutoff`) and not in `known`. Return how many were aborted.

        Delete the staged rows of the aborted transactions. Also delete the control table's row of every transaction
        that is over and not in `known`, in any state.
        """
        kept = {handle["nonce"] for handle in known}
        return self._sweep(lambda row: row.nonce not in kept and before.ends(row.query, row.run, row.batch))

    def _sweep(self, is_over: Callable[[Prepared], bool]) -> int:
        with self.database.transaction() as cursor:
            over = [row for row in self._control.all(cursor) if is_over(row)]
            if not over:
                return 0
            states = self._control.states(cursor, [row.nonce for row in over], lock=True)
            over = [row for row in over if states.get(row.nonce) == row.state]  # skip rows that a commit has changed
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
        """The sink's connection to its database, which also runs transactions and translates errors."""
        return Database(self, self.commit_seconds)

    @property
    def commit_seconds(self) -> float:
        """The maximum number of seconds that the commit of a checkpoint may take: the option ``commitTimeoutMs``."""
        return int(self.options.get("commitTimeoutMs", "120000")) / 1000

    def translated(self, problem: Exception) -> TwoPhaseCommitError | None:
        """Return the framework's error for a database error, by its SQLSTATE. None for any other exception."""
        return standard_error(problem, self.sqlstate(problem), self.name(), self.described(), self.commit_seconds)

    def sqlstate(self, problem: Exception) -> str:
        """Return the SQLSTATE of a database error, which decides whether the statement is retried. Empty if there is none.

        Default: the SQLSTATE in the client's exception. Override this if your database's error numbers are more
        precise.
        """
        return sqlstate(problem)

    @cached_property
    def _control(self) -> ControlTables:
        return ControlTables(self, self._prefix)

    def run(self, cursor: Cursor, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run a statement with ``?`` for each parameter; return the rows of a SELECT."""
        cursor.execute(statement.replace("?", self.marker), tuple(parameters))
        return list(cursor.fetchall()) if statement.lstrip()[:6].upper() == "SELECT" else []

    def _must_be_the_same(self, cursor: Cursor, lock: bool = False) -> str:
        """Check that no failover has happened since the prefix's newest run began; return the run's token.

        With `lock`, no run can claim the prefix before the database transaction ends.
        """
        claimed, server = self._control.claimed(cursor, lock), self.server(cursor)
        if claimed is None or claimed[1] != server:
            raise StoreReplacedError("DATABASE_FAILED_OVER", table=self.described(), server=server)
        return claimed[0]

    def _gone(self, cursor: Cursor, living: Sequence[StagedHandle]) -> list[StagedHandle]:
        """Return the handles whose staged rows are incomplete, because some were deleted."""
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
        return HandleState(Outcome.COMMITTED, evidence="the control table says that the transaction is committed")
    if state != "prepared":
        known = (
            "the control table says that the transaction is aborted"
            if state
            else "the control table has no row for the transaction"
        )
        return HandleState(Outcome.LOST, evidence=known)
    if handle["target"] != target:
        evidence = "the transaction's target table was deleted, renamed or replaced"
        return HandleState(Outcome.UNKNOWN, evidence=evidence)
    return HandleState(Outcome.PREPARED)


def _by_staging(handles: Sequence[StagedHandle]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for handle in handles:
        found.setdefault(handle["staging"], []).append(handle["nonce"])
    return found
