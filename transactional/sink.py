"""The base class of sinks: `TwoPhaseCommitSink`.

The contract is that of Flink's TwoPhaseCommitSinkFunction, with one difference: one process prepares, and another process
commits. Only a *handle* passes between them: a small JSON mapping, which Flink calls a committable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from transactional.capabilities import (
    Expires,
    GuardsRuns,
    KeepsEvidence,
    MarksCheckpoints,
    Restorable,
    Routes,
    must_be_whole,
)
from transactional.errors import StoreError
from transactional.history import Handle, History, RunMark, compared
from transactional.transaction import ONE, Cutoff, HandleState, Options, Outcome, TransactionContext

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.checkpoint import DecidedCheckpoint

__all__ = [
    "ONE",
    "Cutoff",
    "Handle",
    "HandleState",
    "History",
    "Options",
    "Outcome",
    "RunMark",
    "TransactionContext",
    "TwoPhaseCommitSink",
    "commit_calls",
    "guard_run",
    "history_seen",
    "lifetime_of",
    "publishes_marks",
    "restorable",
    "routes_of",
]

TransactionT = TypeVar("TransactionT")
HandleT = TypeVar("HandleT", bound=Mapping[str, Any])


class TwoPhaseCommitSink(ABC, Generic[TransactionT, HandleT]):
    """Base class of sinks: prepares a task's rows so that they are durable but invisible, then commits or aborts them.

    Every process builds its own sink from ``(options, schema)``; a sink is never pickled. After `beginTransaction`, either
    `preCommit` returns or `rollback` is called, unless the process dies.

    Parameters
    ----------
    options : Options
        The user's options, with ``transactionalIdPrefix`` filled in (the query id by default).
    schema : pyarrow.Schema
        The schema of every batch that `write` gets.

    Raises
    ------
    OptionError
        An option or a column is wrong. The constructor must be cheap and must not connect to the store.
    """

    supportsOverwrite: ClassVar[bool] = False
    """True if a batch write may replace the existing rows (``mode("overwrite")``)."""

    maxPrepared: int | None = None
    """The maximum number of micro-batches that may be prepared but undecided at the same time; None for no limit."""

    commitsTogether: ClassVar[bool] = False
    """True if a call of `commit` is atomic: readers see the rows of all its handles, or of none. If True, one call gets
    all handles of a checkpoint. If False, each call gets the handles of one micro-batch. The calls are in order, so
    that readers see the rows of each key in order."""

    replacesRows: bool = False
    """True if a row replaces the earlier row of its key (upserts). If True, a source must keep the order of rows."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        must_be_whole(cls)

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """Return the format's name, which users pass to ``writeStream.format(name)``. *Called in every process.*"""

    def close(self) -> None:
        """Close clients and connections. Prepared transactions stay prepared.

        *Called in every process, unless the process dies first.*
        """

    # -- executor, once per task ------------------------------------------------------------------------------------

    @abstractmethod
    def beginTransaction(self, context: TransactionContext) -> TransactionT:
        """Open a transaction. *Called on an executor, when a task gets its first row.*

        `sweep` must be able to find the transaction, even if the task dies immediately afterwards.
        """

    @abstractmethod
    def write(self, transaction: TransactionT, batch: pa.RecordBatch) -> None:
        """Write a batch of at least one row, so that readers can't see it yet.

        *Called on an executor, once per Arrow batch.* Many clients send a request again if they get no answer, and the
        store may then have the rows twice. So turn off the retries of your client, or make a repeated request harmless.
        If this method raises, the framework rolls back, and the rows are written again.
        """

    @abstractmethod
    def preCommit(self, transaction: TransactionT) -> HandleT | None:
        """Prepare the transaction: make all written rows durable, even if this process dies, but still invisible.

        *Called on an executor, once per task.* Durable rows survive a power failure. For files, call `sync_file` and
        `sync_folder` of `barrier_kafka.sinks`. If the store is a server, let `checkStart` and `identify` reject a
        server that answers before it has written the rows to disk.

        Returns
        -------
        HandleT or None
            A small JSON mapping with which any process can commit or abort the transaction. None if there is nothing to
            commit, because the rows are already visible (at-least-once).
        """

    def rollback(self, transaction: TransactionT) -> None:
        """Abort a transaction whose `preCommit` did not return. *Called on an executor, when a task has failed.*

        By default, do nothing, because `sweep` aborts the transaction later.
        """

    # -- driver, any process, any number of times -------------------------------------------------------------------

    def identify(self) -> Mapping[str, str]:
        """Check that the store can be used, and return its identity. By default, the identity is an empty mapping.

        *Called on the driver, at each planning.* Two keys have a meaning: ``cluster`` identifies the store, and
        ``topic`` identifies the target in the store.

        If transactions are unsettled, a different ``cluster`` is rejected. If the sink returns no ``cluster``, any
        change of the identity or of an option in `addressOptions` is rejected instead. If the user has changed an
        option in `addressOptions`, and none of these cases applies, the new identity is accepted as a new target. If
        the user has changed no such option, and a checkpoint is settled, every change of the identity is rejected.

        Returns
        -------
        Mapping[str, str]
            The identity of the store (cluster id, topic id, ...), which the journal records with the run.

        Raises
        ------
        OptionError
            An option does not fit the store.
        StoreError
            The store is unreachable, the target does not exist, or the user lacks a right. No row has been read yet.
        """
        return {}

    addressOptions: Collection[str] = ()
    """The names of the options that select the target, in lower case. If empty, all options select the target. While
    the values of these options stay the same, `identify` has to return the same target."""

    def isThere(self, route: str = "") -> bool:
        """Return whether the target and the sink's own data next to it exist; change nothing.

        *Called on the driver, before `identify`, if the journal has settled checkpoints in the store.* If the method
        returns False, the query stops, because `identify` might create an empty target. By default, return True.

        Parameters
        ----------
        route : str
            One of `Routes.routes`, for a sink that combines several; otherwise empty.
        """
        return True

    def newestCheckpoint(self, queryId: str, route: str = "") -> int | None:
        """Return the id of a query's newest checkpoint in the store.

        *Called on the driver, before a run, a rewind, and each commit.* The framework compares the id with the journal.
        If the store lacks a checkpoint, or has one that the journal does not know, the query stops before anything is
        written. Therefore `commit` has to store `DecidedCheckpoint.completed` and the rows atomically. Store it under
        the query id, not under the prefix, because users may change the prefix.

        Parameters
        ----------
        queryId : str
            The query's id, as `TransactionContext` has it.
        route : str
            One of `Routes.routes`, for a sink that combines several; otherwise empty.

        Returns
        -------
        int or None
            0 if the store holds no checkpoint. None (the default) if the store keeps no ids; then nothing is compared.
        """
        return None

    @abstractmethod
    def commit(self, handles: Sequence[HandleT], checkpoint: DecidedCheckpoint) -> None:
        """Commit the handles; skip those that are already committed.

        *Called on the driver; may be called again, even by another process.* When the method returns, all handles are
        committed. If some can never be committed, commit the others (none, if `commitsTogether` is true), and raise
        `TransactionLostError` with the lost handles. After any other error, the framework calls the method again with
        the same arguments.

        Raises
        ------
        TransactionLostError
            The handles in the error can never be committed. The framework inspects the other handles again.
        Exception
            Any other error means that the outcome is unknown: the method is called again with the same arguments.
        """

    @abstractmethod
    def abort(self, handles: Sequence[HandleT]) -> Sequence[HandleT]:
        """Abort the handles; return those that were already committed. *Called on the driver; may be called again.*

        The other handles can never be committed afterwards.
        """

    def inspect(self, handles: Sequence[HandleT]) -> Sequence[HandleState]:
        """Return the state of each handle, in order, with one request for all handles.

        *Called on the driver.* The default implementation reports each handle as prepared, without a timeout.
        """
        return [HandleState(Outcome.PREPARED) for _ in handles]

    @abstractmethod
    def sweep(self, known: Sequence[HandleT], before: Cutoff) -> int:
        """Abort the open and prepared transactions under the sink's prefix, except those in `known`; return how many.

        *Called on the driver.* `known` has the handles that may still be committed. If your sink records committed
        transactions, it may delete the record of each transaction that is not in `known` and for which
        `before.ends(...)` is true.

        A driver that was replaced may still call this method late. If your store can't make an abort and a commit of one
        transaction exclude each other (files, for example), abort only transactions for which `before.ends(...)` is true,
        because no driver will commit those.
        """


# -- functions for all sinks, with defaults for abilities that a sink does not have -----------------------------------


def routes_of(sink: TwoPhaseCommitSink[Any, Any]) -> Sequence[str]:
    """Return the routes of a sink that combines several sinks. For any other sink, return one route with an empty name."""
    return sink.routes if isinstance(sink, Routes) else ONE


def guard_run(sink: TwoPhaseCommitSink[Any, Any], mark: RunMark | None) -> RunMark:
    """Call the sink's `guardRun`, if it has one: claim the prefix (if `mark` is None), or check that this run still owns it.

    Return the value of `guardRun`, or an empty mapping if the sink has no such method.
    """
    return sink.guardRun(mark) if isinstance(sink, GuardsRuns) else {}


def history_seen(sink: TwoPhaseCommitSink[Any, Any], history: History) -> Mapping[str, Any]:
    """Compare the query's history with the store, and return the current state of the store, as JSON for the journal.

    Raise the same errors as `KeepsEvidence.checkHistory`.
    """
    if isinstance(sink, KeepsEvidence):
        return sink.checkHistory(history)
    return compared(history, sink.newestCheckpoint(history.queryId), sink.name())


def commit_calls(
    sink: TwoPhaseCommitSink[Any, HandleT], handles: Iterable[tuple[int, HandleT]], checkpoint: DecidedCheckpoint
) -> Iterator[tuple[list[HandleT], DecidedCheckpoint]]:
    """Yield the arguments of each call of the sink's `commit`: one call per micro-batch, or one for all if `commitsTogether`.

    Parameters
    ----------
    sink : TwoPhaseCommitSink
    handles : Iterable[tuple[int, Mapping[str, Any]]]
        The handles of a checkpoint with the numbers of their micro-batches, ordered by micro-batch.
    checkpoint : DecidedCheckpoint
        The checkpoint. Each call gets a copy; in all copies except the last, the field `last` is False.
    """
    calls = [list(group) for _, group in groupby(handles, lambda each: 0 if sink.commitsTogether else each[0])]
    for call in calls:
        yield [handle for _, handle in call], replace(checkpoint, last=checkpoint.last and call is calls[-1])


def lifetime_of(sink: TwoPhaseCommitSink[Any, Any]) -> float | None:
    """Return how many seconds the store keeps a prepared transaction; None if forever."""
    return sink.lifetime() if isinstance(sink, Expires) else None


def publishes_marks(sink: TwoPhaseCommitSink[Any, Any]) -> bool:
    """Return whether the sink publishes a mark for each checkpoint."""
    return isinstance(sink, MarksCheckpoints) and sink.publishesMarks


def restorable(sink: TwoPhaseCommitSink[Any, Any]) -> Restorable:
    """Return the sink as a `Restorable`, if it can roll its store back to an earlier checkpoint.

    Raises
    ------
    StoreError
        ``NOT_RESTORABLE``: the sink can't roll its store back.
    """
    if not isinstance(sink, Restorable):
        raise StoreError("NOT_RESTORABLE", sink=sink.name(), reason="it can't undo its commits")
    return sink
