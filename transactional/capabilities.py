"""Optional abilities of sinks. Each ability is a class; a sink that has the ability is also a subclass of that class.

The framework calls the method of an ability only if the sink is a subclass of the ability's class.
"""

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
    """A sink that finds mistakes before the first micro-batch: in ``start()`` and in ``barrier doctor``."""

    @classmethod
    def ofOptions(cls, options: Options) -> Any:
        """Build a sink from its options alone. *Called by ``barrier doctor``.*

        The columns of the rows are not known then, so the sink's `checkStart` has to skip every check that needs them.
        By default, the sink gets a schema without columns.

        Raises
        ------
        OptionError
            An option is missing or wrong.
        """
        import pyarrow as pa

        return cls(options, pa.schema([]))  # type: ignore[call-arg]

    @abstractmethod
    def checkStart(self, prefix: str | None) -> None:
        """Raise the errors that planning the first micro-batch would raise; change nothing.

        *Called in the user's driver program, once per ``start()``, and by ``barrier doctor``.* The call of ``start()``
        raises this method's errors. Without the method, users see such errors only after ``start()`` has returned, when
        the first micro-batch is planned. Only programs that have registered the sink call this method, so `identify`
        has to make the same checks. The constructor has already checked options and columns.

        Parameters
        ----------
        prefix : str or None
            The option ``transactionalIdPrefix``. None if the user has not set it: the default, the query id, is not known yet.

        Raises
        ------
        OptionError
            An option does not fit the store.
        StoreError
            The store is unreachable, the target does not exist, or the user lacks a right.
        """

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Look for problems that may appear later; change nothing. By default, return no findings.

        *Called in the user's driver program at the first start at a location, and by ``barrier doctor``.* If
        `checkStart` raises an error, this method is not called. The program logs warnings and problems; the command
        prints all findings.

        Parameters
        ----------
        prefix : str or None
            The same value as for `checkStart`.
        own : Collection[str]
            The prefixes of all runs at this location. Transactions with these prefixes belong to this query.
        intervalMs : int
            The source's ``barrierInterval`` in milliseconds; 0 if it is not known.

        Returns
        -------
        Iterable[Finding]
        """
        return ()

    def tryOut(self) -> Iterable[Finding]:
        """Write, read and delete a harmless test object in the place where rows will be written.

        *Called by ``barrier doctor``.* By default, do nothing.
        """
        return ()


class NamesDatasets(ABC):
    """A sink that names its targets for data lineage (OpenLineage)."""

    @classmethod
    @abstractmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the datasets that contain a checkpoint's rows.

        *Called in the user's driver program by `barrier_kafka.LineageListener`.*

        Parameters
        ----------
        options : Options
            The sink's options from the journal, without secrets. If an address contains a secret, its value is empty.
        output : Mapping[str, Any]
            The value that `ReportsOutput.output` returned for the checkpoint.

        Returns
        -------
        Collection[tuple[str, str]]
            The OpenLineage namespace and name of each dataset. Empty if they are unknown.
        """


class WarmsUp(ABC):
    """A sink that connects in advance, while a task waits for its first row."""

    @abstractmethod
    def warmUp(self, context: TransactionContext) -> None:
        """Prepare for `beginTransaction`: import modules and connect, but change nothing in the store.

        *Called on an executor, in a thread, while a task waits for its first row.* It is called only if the task's
        partition id had rows in each of the last two micro-batches. The method must return within seconds, because the
        task calls no other method before this one returns. If the method raises, the error is logged and ignored. If
        the task gets no row, only `close` follows.
        """


class GuardsRuns(ABC):
    """A sink that claims its prefix at the store, so that two queries never use one prefix at the same time."""

    @abstractmethod
    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Claim the prefix at the store (if `mark` is None), or check that this run still owns the prefix.

        *Called on the driver, at each planning.* A new claim ends the previous claim. If this run no longer owns the
        prefix, raise `FencedError`. If the store was replaced since the run began (by a failover or an older copy),
        raise `StoreReplacedError`.

        Parameters
        ----------
        mark : Mapping[str, Any] or None
            The value that this run's first call returned. None in a new run, which takes over the prefix.

        Returns
        -------
        Mapping[str, Any]
            A JSON mapping, which the coordinator writes into the journal if it differs from `mark`.

        Raises
        ------
        FencedError
            Another query uses the prefix.
        StoreReplacedError
            The store has changed since the run began, for example by a failover. A new run then starts, and compares the
            store with the journal.
        """


class KeepsEvidence(ABC):
    """A sink whose store keeps no checkpoint ids (`newestCheckpoint`), but has other evidence of its commits."""

    @abstractmethod
    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """Check that store and journal agree about this query; return the store's state.

        *Called on the driver, before a run or a rewind.* Raise only if it is certain that the location or the store was
        restored from an older copy.

        Parameters
        ----------
        history : History
            The query's past, from the journal.

        Returns
        -------
        Mapping[str, Any]
            The current state of the store, as JSON. The journal records this state with the run; the next run gets it as
            `history.seen`.

        Raises
        ------
        PutBackError
            ``LOCATION_PUT_BACK``: the store has data that the journal does not know. Describe the data in the parameter
            ``evidence``, as a clause: "the table has commit 7". The query stops before it writes anything. If the journal
            has grown in the meantime, the framework ignores the error and calls this method again.
        StoreError
            ``STORE_WENT_BACK``: the store lacks rows that the journal has settled.
        """

    def stamp(self, handles: Sequence[Any]) -> int:
        """Return when the newest of these committed transactions began, as a time or counter of the store.

        *Called on the driver, when all transactions of a checkpoint are committed.* `checkHistory` gets the highest
        value so far as `history.stamp`. By default, return 0, which means unknown.
        """
        return 0


class Expires(ABC):
    """A sink whose store aborts a prepared transaction after some time."""

    @abstractmethod
    def lifetime(self) -> float | None:
        """Return how many seconds the store keeps a prepared transaction; None if there is no limit.

        *Called on the driver, once per run.* The coordinator closes a checkpoint before its oldest transaction has used
        half of this time.
        """


class ShowsLater(ABC):
    """A sink whose store confirms a commit before readers can see the rows."""

    @abstractmethod
    def ensureVisible(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> Sequence[Mapping[str, Any]]:
        """Wait until readers can see all rows of a committed checkpoint; return the repairs.

        *Called on the driver, before the journal records the checkpoint as settled.* If the process dies before that,
        recovery calls this method again.

        Parameters
        ----------
        handles : Sequence[Mapping[str, Any]]
            The committed handles of the checkpoint.
        checkpoint : DecidedCheckpoint

        Returns
        -------
        Sequence[Mapping[str, Any]]
            The repairs that the store needed, as JSON for the journal. Empty if it needed none.

        Raises
        ------
        TwoPhaseCommitError
            Readers can't see some rows yet. The checkpoint stays unsettled, and the next start calls this method again.
        """


class ReportsOutput(ABC):
    """A sink that reports where the rows of a checkpoint are."""

    @abstractmethod
    def output(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Return the position of a committed checkpoint's rows in the store, as a small JSON mapping.

        *Called on the driver.* People read the mapping, and `Restorable` uses it to go back. For a table, for example,
        return the version. For a topic, return for each partition an offset that is after all rows of the checkpoint.
        """


class Restorable(ReportsOutput):
    """A sink that can roll its store back to an earlier checkpoint (``barrier rewind --restore-tables``)."""

    def checkRestore(self, output: Mapping[str, Any]) -> None:
        """Raise the errors of `restoreOutput` that can be known in advance; change nothing.

        *Called on the driver, before a rewind starts.*

        Parameters
        ----------
        output : Mapping[str, Any]
            The value that `output` returned after the earlier checkpoint.

        Raises
        ------
        StoreError
            The store can't go back. The message says why, and what the user can do instead.
        """

    @abstractmethod
    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        """Take the store back to its state after an earlier checkpoint. *Called on the driver; repeated after a crash.*

        Parameters
        ----------
        output : Mapping[str, Any]
            The value that `output` returned after that checkpoint.
        rewind : int
            Identifies this rewind. Use it to skip steps that an interrupted call has already done.

        Raises
        ------
        StoreError
            The store can't go back, or other writers have changed it since that checkpoint.
        """


class WritesTopics(ABC):
    """A sink that writes to topics, and reports their ids, because a topic may be deleted and created again."""

    @abstractmethod
    def targets(self, handles: Sequence[Any]) -> Collection[str]:
        """Return the ids of the topics that contain the rows of these handles. *Called on the driver.*"""


class MarksCheckpoints(ABC):
    """A sink that publishes a mark for each checkpoint, so that other queries can follow this query (``barrierTopic``)."""

    @property
    @abstractmethod
    def publishesMarks(self) -> bool:
        """True if the user has configured marks. The sink then publishes a mark even for a checkpoint without rows."""

    @abstractmethod
    def publishMark(self, mark: CheckpointMark, handles: Sequence[Any], confirm: Callable[[], None]) -> None:
        """Publish a mark, from which other programs learn that a checkpoint's rows can be read.

        *Called on the driver, after the rows are visible and `sweep` has returned.* The journal does not record the
        checkpoint as settled before this method has returned. If the process dies before that, recovery calls this
        method again, so readers may find a mark twice.

        Parameters
        ----------
        mark : CheckpointMark
        handles : Sequence[Mapping[str, Any]]
            The committed handles of the checkpoint.
        confirm : Callable[[], None]
            Raises if another process has taken over the query. Call it after you have read everything for the mark from
            the store, and before you write the mark. Otherwise the mark may include rows of a later checkpoint.

        Raises
        ------
        TwoPhaseCommitError
            The mark was not published. The checkpoint stays unsettled, and the next start calls this method again.
        """


class Routes(ABC):
    """A sink that combines several sinks (``2pc-multi``): each task has one transaction per route (the name of a sink)."""

    routes: Sequence[str]
    """The names of the sinks. `History.routes` and `DecidedCheckpoint.routes` have an entry for each name."""

    @abstractmethod
    def route(self, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Split a batch by route. *Called on an executor.*

        A replay calls this method again and must get the same result.

        Returns
        -------
        Iterable[tuple[str, pyarrow.RecordBatch]]
            Pairs of a route (one of `routes`) and the rows for this route. No pair has an empty batch.
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
    """Check that a sink class is a subclass of every ability class of which it has a method or an attribute.

    If the sink is not such a subclass, the framework would never use the method.

    Raises
    ------
    TypeError
        The sink has a method or an attribute of an ability's class, but is not a subclass of that class.
    """
    for capability in _ALL:
        for name in vars(capability):
            if not name.startswith("_") and hasattr(sink, name) and not issubclass(sink, capability):
                raise TypeError(
                    f"{sink.__name__} has {name}, but is not a subclass of {capability.__name__}, "
                    "so the framework would never use it"
                )
