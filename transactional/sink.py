"""The base class of sinks: `TwoPhaseCommitSink`.

The contract is that of Flink's TwoPhaseCommitSinkFunction, except that the process that prepares is never the one that
commits: a *handle* (a small JSON mapping, which Flink calls a committable) is all that travels between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from transactional.errors import StoreError
from transactional.history import Handle, History, RunMark, compared
from transactional.transaction import ONE, Cutoff, HandleState, Options, Outcome, TransactionContext

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.checkpoint import CheckpointMark, DecidedCheckpoint
    from transactional.finding import Finding

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

    routes: Sequence[str] = ONE
    """The names of the sinks that it is: a task has a transaction for each, and the journal a part (``2pc-multi``). Only a
    sink that is several overrides it, with `route`, `History.routes` and `DecidedCheckpoint.routes`."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """Return the format's name, as in ``writeStream.format(name)``."""

    def close(self) -> None:
        """Drop clients. *Called in every process, best effort.* Must not touch prepared transactions."""

    # -- executor, once per task ------------------------------------------------------------------------------------

    def warmUp(self, context: TransactionContext) -> None:
        """Get ready for `beginTransaction`: load, connect, ask, but change nothing at the store. *Executor.*

        Called in a thread while a task waits for its first row, if its partition id had rows in the last two micro-batches.
        It must end by itself, within seconds: the task waits for it. It has returned, or raised, before any other method is
        called; what it raised is logged, and dropped. Perhaps no row comes: then only `close` follows. Default: nothing.
        """

    @abstractmethod
    def beginTransaction(self, context: TransactionContext) -> TransactionT:
        """Open a transaction. *Called on an executor, once per task, at its first row.*"""

    @abstractmethod
    def write(self, transaction: TransactionT, batch: pa.RecordBatch) -> None:
        """Write a batch of at least one row. *Called on an executor, once per Arrow batch.*"""

    @abstractmethod
    def preCommit(self, transaction: TransactionT) -> HandleT | None:
        """Make everything written durable, invisible, and able to survive this process. *Executor, once per task.*

        Returns
        -------
        HandleT or None
            JSON mapping from which any process can commit or abort; None if the rows are visible already
            (at-least-once) and there is nothing to commit.
        """

    def route(self, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Return which of `routes` gets which rows of a task, none of them empty. *Executor.* Default: the one, all.

        A replay calls it, too, and must get the same answer.
        """
        return ((ONE[0], batch),)

    def rollback(self, transaction: TransactionT) -> None:
        """Give up a transaction whose `preCommit` did not return. Default: leave it to `sweep`."""

    # -- driver, any process, any number of times -------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Refuse what the first planning would refuse; change nothing. *User's driver program, once per* ``start()``.

        The first micro-batch is planned after ``start()`` has returned: what is raised here, ``start()`` itself raises. Called
        only in programs that have registered the sink, so `identify` has to refuse it, too. Default: nothing, but the sink has
        been constructed, which checks options and columns.

        Parameters
        ----------
        prefix : str or None
            The option ``transactionalIdPrefix``; None if it is not set: the name that the query will have is not known yet.

        Raises
        ------
        OptionError, StoreError
        """

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Look for what may hurt later, after `checkStart` found nothing wrong; change nothing. Default: nothing.

        *User's driver program, at the first start at a new location*, where warnings and problems are logged; *and the
        command* ``barrier doctor``, which prints all findings.

        Parameters
        ----------
        prefix : str or None
            As in `checkStart`.
        own : Collection[str]
            Prefixes of the location's own runs.
        intervalMs : int
            The source's ``barrierInterval``; 0 if it is not known.
        """
        return ()

    def identify(self) -> Mapping[str, str]:
        """Check that the store can be used, and return which it is. *Called on the driver, once per planning.*

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
        """Return whether the target, and what the sink keeps beside it, are there; change nothing. *Driver, before* `identify`.

        Asked if the journal has checkpoints in it: then `identify` must not create what is missing. `route`: of a sink that
        is several, one of `routes`. Default: yes.
        """
        return True

    def newestCheckpoint(self, queryId: str, route: str = "") -> int | None:
        """Return the newest checkpoint of a query that the store holds. *Driver: before a run begins, before each commit.*

        The framework compares it with the journal: a store that lacks a checkpoint, or has one that the journal does not know,
        stops the query before anything is written. So commit a checkpoint's id in one step with its rows, under the query's
        id alone: a user may change the prefix.

        Returns
        -------
        int or None
            0 if it holds none. None (the default) if it keeps no ids: then nothing is compared.
        """
        return None

    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """Check that the store and the journal agree about this query. *Driver, once per new run, first.*

        Default: compares `newestCheckpoint` with the journal. Override it if the store has other evidence that the location
        was put back from an older copy; raise only if that is certain.

        Returns
        -------
        Mapping[str, Any]
            What the store holds now, as JSON: recorded with the run, and passed as `seen` the next time.

        Raises
        ------
        LocationError
            ``LOCATION_PUT_BACK``, made by `transactional.history.put_back`. Nothing has been journalled or written. If the
            journal has grown meanwhile, it is called again.
        StoreError
            ``STORE_WENT_BACK``
        """
        return compared(history, self.newestCheckpoint(history.queryId), self.name())

    def stamp(self, handles: Sequence[HandleT]) -> int:
        """Return when the newest of these committed transactions began, by a clock or counter of the store. *Driver.*

        Called when all of a checkpoint is committed, for each of `routes` with its own; `checkHistory` gets the highest.
        Default: 0, not known.
        """
        return 0

    def guardRun(self, mark: RunMark | None) -> RunMark:
        """Claim the prefix at the store, or check that it is still ours. *Driver, once per planning.*

        Parameters
        ----------
        mark : RunMark or None
            What this run's first call returned; None on a new run, which takes the prefix over.

        Returns
        -------
        RunMark
            To be journalled if it differs from `mark`.

        Raises
        ------
        FencedError
            Another query uses the prefix.
        StoreReplacedError
            The store is not as it was when the run began, as after a failover: a new run begins, and `checkHistory` is called.
        """
        return {}

    def lifetime(self) -> float | None:
        """Return the seconds that the store keeps a prepared transaction. *Driver, once per run.* Default: None, for ever.

        A checkpoint is closed before its oldest transaction has lived half of it.
        """
        return None

    def targets(self, handles: Sequence[HandleT]) -> Collection[str]:
        """Return the ids of the topics that the handles' rows are in, if they are in any. *Driver.* Default: none."""
        return ()

    def output(self, handles: Sequence[HandleT], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Return where a committed checkpoint's rows are: small JSON for people, and for `restoreOutput`. *Driver.*

        A version of a table, say, or for each partition of a topic an offset before which all of them are. Default: nothing.
        """
        return {}

    def checkRestore(self, output: Mapping[str, Any]) -> None:
        """Refuse what `restoreOutput` would refuse, if that is known; change nothing. *Driver, before a rewind is begun.*

        Raises
        ------
        StoreError
            Why, and what to do before anything was begun. Default: if `restoreOutput` is not overridden.
        """
        if type(self).restoreOutput is TwoPhaseCommitSink.restoreOutput:
            self.restoreOutput(output, 0)

    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        """Take the store back to what `output` said after an earlier checkpoint. *Driver; repeated after a crash.*

        Parameters
        ----------
        output : Mapping[str, Any]
        rewind : int
            Distinguishes this rewind from others: what was done for it is not done again.

        Raises
        ------
        StoreError
            It can't, or others have written since. Default: always.
        """
        raise StoreError("NOT_RESTORABLE", sink=self.name(), reason="it keeps what it has committed")

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
        """Abort the handles; return those that are committed. All others can never be committed from now on."""

    def inspect(self, handles: Sequence[HandleT]) -> Sequence[HandleState]:
        """Return the state of each, in order. Default: prepared, for ever."""
        return [HandleState(Outcome.PREPARED) for _ in handles]

    def ensureVisible(self, handles: Sequence[HandleT], checkpoint: DecidedCheckpoint) -> Sequence[Mapping[str, Any]]:
        """Wait until readers can see every row of a checkpoint whose handles are all committed. *Driver; repeatable.*

        Called once per checkpoint before it is recorded as settled, and again by recovery if that was interrupted.
        Override it if the store's answer to a commit does not promise that committed readers see the rows. Default:
        they see them.

        Parameters
        ----------
        handles : Sequence[HandleT]
            Every handle of the checkpoint that is committed.
        checkpoint : DecidedCheckpoint

        Returns
        -------
        Sequence[Mapping[str, Any]]
            What had to be repaired at the store for it, as JSON; it is kept in the journal. Empty if nothing.

        Raises
        ------
        TwoPhaseCommitError
            Some rows can't be seen. The checkpoint stays unsettled, and the next start calls it again.
        """
        return ()

    @property
    def publishesMarks(self) -> bool:
        """Whether `publishMark` does anything: then checkpoints without rows are published, too. Default: no."""
        return False

    def publishMark(self, mark: CheckpointMark, handles: Sequence[HandleT], confirm: Callable[[], None]) -> None:
        """Make known, to readers outside of the query, that a checkpoint's rows can be read. *Driver; repeatable.*

        Called after `ensureVisible` and a sweep, before the checkpoint is recorded as settled, and again by recovery if that
        was interrupted: readers may find it twice.

        Parameters
        ----------
        mark : CheckpointMark
        handles : Sequence[HandleT]
            Every handle of the checkpoint that is committed.
        confirm : Callable[[], None]
            Raises if another process has gone on with the query meanwhile. Call it after the last question to the store, and
            before the mark is written: what the store holds may be of a later checkpoint else.

        Raises
        ------
        TwoPhaseCommitError
            The checkpoint stays unsettled, and the next start calls it again.
        """

    @abstractmethod
    def sweep(self, known: Sequence[HandleT], before: Cutoff) -> int:
        """Abort open and prepared transactions under our prefix that `known` does not name; return how many. *Driver.*

        A driver that was superseded may sweep late. If your store can't abort in one step against a commit of the same
        transaction (files), touch only transactions that `before` ends: these are never committed.
        """
