"""The base class of sinks: `TwoPhaseCommitSink`.

The contract is that of Flink's TwoPhaseCommitSinkFunction, except that the process that prepares is never the one that
commits: a *handle* (a small JSON mapping, which Flink calls a committable) is all that travels between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
    """A store that can make a task's rows durable but invisible, and visible or gone later.

    The host builds the sink in every process from ``(options, schema)``; it is never pickled. For each begun
    transaction either `preCommit` returns or `rollback` is called, unless the process dies.

    Parameters
    ----------
    options : Options
        The user's options, with ``transactionalIdPrefix`` filled in (the query id by default).
    schema : pyarrow.Schema
        Schema of every batch that `write` will get.

    Raises
    ------
    OptionError
        From the constructor, which must be cheap and offline.
    """

    supportsOverwrite: ClassVar[bool] = False
    """Whether a batch write may replace what is there (mode overwrite)."""

    maxPrepared: int | None = None
    """The number of micro-batches that may be prepared and undecided at once; None for any number."""

    commitsTogether: ClassVar[bool] = False
    """Whether one `commit` makes all its handles visible at once, or none: then it gets all of a checkpoint's. Else it gets
    those of one micro-batch, and the next one's after they are committed, so that readers see each key's rows in order."""

    replacesRows: bool = False
    """Whether a row replaces an earlier one of its key (upserts): then a source that gives up the order of rows is refused."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        must_be_whole(cls)

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """Return the format's name, as in ``writeStream.format(name)``. *Every process.*"""

    def close(self) -> None:
        """Drop clients; leave prepared transactions alone. *Every process, best effort.*"""

    # -- executor, once per task ------------------------------------------------------------------------------------

    @abstractmethod
    def beginTransaction(self, context: TransactionContext) -> TransactionT:
        """Open a transaction. *Executor, at a task's first row.*

        `sweep` has to find it even if the task dies at once.
        """

    @abstractmethod
    def write(self, transaction: TransactionT, batch: pa.RecordBatch) -> None:
        """Write a batch of at least one row; none becomes visible. *Executor, once per Arrow batch.*"""

    @abstractmethod
    def preCommit(self, transaction: TransactionT) -> HandleT | None:
        """Make everything written durable, invisible, and able to survive this process. *Executor, once per task.*

        Returns
        -------
        HandleT or None
            JSON mapping from which any process can commit or abort; None if the rows are visible already
            (at-least-once) and there is nothing to commit.
        """

    def rollback(self, transaction: TransactionT) -> None:
        """Give up a transaction whose `preCommit` did not return. *Executor, when a task failed.* Default: `sweep` will."""

    # -- driver, any process, any number of times -------------------------------------------------------------------

    def identify(self) -> Mapping[str, str]:
        """Check that the store can be used, and return which it is. *Driver, once per planning.* Default: an empty mapping.

        Returns
        -------
        Mapping[str, str]
            Identity of the store (cluster id, topic id, ...), recorded with the run. While entries are unsettled a
            run whose store has another identity is refused.

        Raises
        ------
        OptionError, StoreError
            Unreachable, unknown topic, missing rights: before the first row is read.
        """
        return {}

    addressOptions: Collection[str] = ()
    """The options that name the target, in lower case. While they stay, the target has to be the same. None named: all."""

    def isThere(self, route: str = "") -> bool:
        """Return whether the target, and what the sink keeps beside it, are there; change nothing. *Driver, before `identify`.*

        Asked if the journal has checkpoints in the store: if the target is gone, the query stops, and `identify` creates
        nothing. `route`: of a sink that is several, one of its `routes`. Default: yes.
        """
        return True

    def newestCheckpoint(self, queryId: str, route: str = "") -> int | None:
        """Return the newest checkpoint of a query that the store holds. *Driver, before a run begins and before each commit.*

        The framework compares it with the journal: a store that lacks a checkpoint, or has one that the journal does not know,
        stops the query before anything is written. So commit a checkpoint's id in one step with its rows, under the query's
        id alone: a user may change the prefix.

        Returns
        -------
        int or None
            0 if it holds none. None (the default) if it keeps no ids: then nothing is compared.
        """
        return None

    @abstractmethod
    def commit(self, handles: Sequence[HandleT], checkpoint: DecidedCheckpoint) -> None:
        """Commit the handles: on return all are committed, now or earlier. *Driver, any process, any number of times.*

        Raises
        ------
        TransactionLostError
            Those handles never will be committed. Of the others any may be: they are asked about again.
        Exception
            Anything else: unknown; it is called again with the same arguments.
        """

    @abstractmethod
    def abort(self, handles: Sequence[HandleT]) -> Sequence[HandleT]:
        """Abort the handles; return those that are committed. *Driver; repeatable.*

        All others can never be committed from now on.
        """

    def inspect(self, handles: Sequence[HandleT]) -> Sequence[HandleState]:
        """Return the state of each, in order, with one question to the store for all. *Driver.* Default: prepared, for ever."""
        return [HandleState(Outcome.PREPARED) for _ in handles]

    @abstractmethod
    def sweep(self, known: Sequence[HandleT], before: Cutoff) -> int:
        """Abort open and prepared transactions under our prefix that `known` does not name; return how many. *Driver.*

        A driver that was superseded may sweep late. If your store can't abort in one step against a commit of the same
        transaction (files), touch only transactions that `before` ends: these are never committed.
        """


# -- what a sink answers, whatever it can -----------------------------------------------------------------------------


def routes_of(sink: TwoPhaseCommitSink[Any, Any]) -> Sequence[str]:
    """Return the names of the sinks that it is; of most the one that has no name."""
    return sink.routes if isinstance(sink, Routes) else ONE


def guard_run(sink: TwoPhaseCommitSink[Any, Any], mark: RunMark | None) -> RunMark:
    """Claim the prefix, or check that it is still ours; an empty mark if the sink can't."""
    return sink.guardRun(mark) if isinstance(sink, GuardsRuns) else {}


def history_seen(sink: TwoPhaseCommitSink[Any, Any], history: History) -> Mapping[str, Any]:
    """Compare a history with what the store holds, and return that. Raises what `KeepsEvidence.checkHistory` raises."""
    if isinstance(sink, KeepsEvidence):
        return sink.checkHistory(history)
    return compared(history, sink.newestCheckpoint(history.queryId), sink.name())


def lifetime_of(sink: TwoPhaseCommitSink[Any, Any]) -> float | None:
    """Return the seconds that the store keeps a prepared transaction; None for ever."""
    return sink.lifetime() if isinstance(sink, Expires) else None


def publishes_marks(sink: TwoPhaseCommitSink[Any, Any]) -> bool:
    """Return whether each checkpoint has to be published."""
    return isinstance(sink, MarksCheckpoints) and sink.publishesMarks


def restorable(sink: TwoPhaseCommitSink[Any, Any]) -> Restorable:
    """Return a sink that can take its store back.

    Raises
    ------
    StoreError
        ``NOT_RESTORABLE``
    """
    if not isinstance(sink, Restorable):
        raise StoreError("NOT_RESTORABLE", sink=sink.name(), reason="it keeps what it has committed")
    return sink
