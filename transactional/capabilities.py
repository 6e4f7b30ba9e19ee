"""What only some sinks can do. A sink that can is a subclass of the class here, too; on any other sink it is not called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transactional.history import History

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.checkpoint import CheckpointMark, DecidedCheckpoint
    from transactional.finding import Finding
    from transactional.transaction import Options, TransactionContext

__all__ = [
    "Examines",
    "Expires",
    "GuardsRuns",
    "KeepsEvidence",
    "MarksCheckpoints",
    "NamesDatasets",
    "ReportsOutput",
    "Restorable",
    "Routes",
    "ShowsLater",
    "WarmsUp",
    "WritesTopics",
    "must_be_whole",
]


class Examines(ABC):
    """The sink reports mistakes before the first micro-batch is planned, and to ``barrier doctor``."""

    @classmethod
    def ofOptions(cls, options: Options) -> Any:
        """Return a sink of options alone, as the columns of its rows are not known. *``barrier doctor``.*

        `checkStart` of it passes over what depends on columns. Default: a sink of rows without any column.

        Raises
        ------
        OptionError
        """
        import pyarrow as pa

        return cls(options, pa.schema([]))  # type: ignore[call-arg]

    @abstractmethod
    def checkStart(self, prefix: str | None) -> None:
        """Refuse what the first planning would refuse; change nothing. *User's driver program, once per ``start()``.*

        The first micro-batch is planned after ``start()`` has returned: what is raised here, ``start()`` itself raises. Called
        only in programs that have registered the sink, so `identify` has to refuse it, too. The sink has been constructed,
        which has checked options and columns.

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

        *User's driver program, at the first start at a location; ``barrier doctor``.* The program logs warnings and problems,
        and the command prints all findings.

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

    def tryOut(self) -> Iterable[Finding]:
        """Write, read and delete something of no consequence where the rows will be. *``barrier doctor``.* Default: nothing."""
        return ()


class NamesDatasets(ABC):
    """The sink says what lineage calls the places that its rows go to."""

    @classmethod
    @abstractmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the datasets that a checkpoint was written to. *User's driver program, with `barrier_kafka.LineageListener`.*

        Parameters
        ----------
        options : Options
            As the journal keeps them, so without secrets: an address that holds one is empty.
        output : Mapping[str, Any]
            What `ReportsOutput.output` returned for the checkpoint.

        Returns
        -------
        Collection[tuple[str, str]]
            Namespace and name of each, as OpenLineage has them. Empty if they can't be known.
        """


class WarmsUp(ABC):
    """The sink connects while a task waits for its first row."""

    @abstractmethod
    def warmUp(self, context: TransactionContext) -> None:
        """Get ready for `beginTransaction`: load, connect, ask, but change nothing at the store. *Executor.*

        Called in a thread while a task waits for its first row, if its partition id had rows in the last two micro-batches.
        It must end by itself, within seconds: the task waits for it. It has returned, or raised, before any other method is
        called; what it raised is logged, and dropped. Perhaps no row comes: then only `close` follows.
        """


class GuardsRuns(ABC):
    """The sink claims its prefix at the store, so that two queries never use one prefix at once."""

    @abstractmethod
    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Claim the prefix at the store, or check that it is still ours. *Driver, once per planning.*

        Parameters
        ----------
        mark : Mapping[str, Any] or None
            What this run's first call returned; None on a new run, which takes the prefix over.

        Returns
        -------
        Mapping[str, Any]
            To be journalled if it differs from `mark`.

        Raises
        ------
        FencedError
            Another query uses the prefix.
        StoreReplacedError
            The store is not as it was when the run began, as after a failover: a new run begins, and its history is compared.
        """


class KeepsEvidence(ABC):
    """The store keeps no ids of checkpoints (`newestCheckpoint`), but has other evidence of what was committed."""

    @abstractmethod
    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """Check that the store and the journal agree about this query. *Driver, once per new run, first.*

        Raise only if it is certain that the location was put back from an older copy.

        Returns
        -------
        Mapping[str, Any]
            What the store holds now, as JSON: recorded with the run, and passed as `seen` the next time.

        Raises
        ------
        PutBackError
            ``LOCATION_PUT_BACK``, with ``evidence``: a clause that says what the store holds. Nothing has been journalled or
            written. If the journal has grown meanwhile, it is called again.
        StoreError
            ``STORE_WENT_BACK``
        """

    def stamp(self, handles: Sequence[Any]) -> int:
        """Return when the newest of these committed transactions began, by a clock or counter of the store. *Driver.*

        Called when all of a checkpoint is committed; `checkHistory` gets the highest. Default: 0, not known.
        """
        return 0


class Expires(ABC):
    """The store gives a prepared transaction up after a time."""

    @abstractmethod
    def lifetime(self) -> float | None:
        """Return the seconds that the store keeps a prepared transaction; None for ever. *Driver, once per run.*

        A checkpoint is closed before its oldest transaction has lived half of it.
        """


class ShowsLater(ABC):
    """The store answers a commit before committed readers can see the rows."""

    @abstractmethod
    def ensureVisible(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> Sequence[Mapping[str, Any]]:
        """Wait until readers can see every row of a checkpoint whose handles are all committed. *Driver; repeatable.*

        Called once per checkpoint before it is recorded as settled, and again by recovery if that was interrupted.

        Parameters
        ----------
        handles : Sequence[Mapping[str, Any]]
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


class ReportsOutput(ABC):
    """The sink says where the rows of a checkpoint are."""

    @abstractmethod
    def output(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Return where a committed checkpoint's rows are: small JSON for people, and for `Restorable`. *Driver.*

        A version of a table, say, or for each partition of a topic an offset before which all of them are.
        """


class Restorable(ReportsOutput):
    """The sink can take its store back to an earlier checkpoint (``barrier rewind --restore-tables``)."""

    def checkRestore(self, output: Mapping[str, Any]) -> None:
        """Refuse what `restoreOutput` would refuse, if that is known; change nothing. *Driver, before a rewind is begun.*

        Raises
        ------
        StoreError
            Why, and what to do before anything was begun.
        """

    @abstractmethod
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
            It can't, or others have written since.
        """


class WritesTopics(ABC):
    """The rows go to topics, which may be created again under their names."""

    @abstractmethod
    def targets(self, handles: Sequence[Any]) -> Collection[str]:
        """Return the ids of the topics that the handles' rows are in. *Driver.*"""


class MarksCheckpoints(ABC):
    """The sink publishes a mark of each checkpoint, which other queries follow (``barrierTopic``)."""

    @property
    @abstractmethod
    def publishesMarks(self) -> bool:
        """Whether `publishMark` does anything: then checkpoints without rows are published, too."""

    @abstractmethod
    def publishMark(self, mark: CheckpointMark, handles: Sequence[Any], confirm: Callable[[], None]) -> None:
        """Make known, to readers outside of the query, that a checkpoint's rows can be read. *Driver; repeatable.*

        Called when the rows are visible and a sweep is done, before the checkpoint is recorded as settled, and again by
        recovery if that was interrupted: readers may find it twice.

        Parameters
        ----------
        mark : CheckpointMark
        handles : Sequence[Mapping[str, Any]]
            Every handle of the checkpoint that is committed.
        confirm : Callable[[], None]
            Raises if another process has gone on with the query meanwhile. Call it after the last question to the store, and
            before the mark is written: what the store holds may be of a later checkpoint else.

        Raises
        ------
        TwoPhaseCommitError
            The checkpoint stays unsettled, and the next start calls it again.
        """


class Routes(ABC):
    """The sink is several: a task has a transaction for each, and the journal a part (``2pc-multi``)."""

    routes: Sequence[str]
    """Their names. `History.routes` and `DecidedCheckpoint.routes` have what belongs to each."""

    @abstractmethod
    def route(self, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Return which of `routes` gets which rows of a task, none of them empty. *Executor.*

        A replay calls it, too, and must get the same answer.
        """


_ALL = (
    Examines,
    Expires,
    GuardsRuns,
    KeepsEvidence,
    MarksCheckpoints,
    NamesDatasets,
    ReportsOutput,
    Restorable,
    Routes,
    ShowsLater,
    WarmsUp,
    WritesTopics,
)


def must_be_whole(sink: type) -> None:
    """Refuse a sink with a method of a class here that is no subclass of it: the method would never be called.

    Raises
    ------
    TypeError
    """
    for capability in _ALL:
        for name in vars(capability):
            if not name.startswith("_") and hasattr(sink, name) and not issubclass(sink, capability):
                raise TypeError(
                    f"{sink.__name__} has {name}, and is no subclass of {capability.__name__}: it is never called"
                )
