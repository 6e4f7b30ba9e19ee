"""All errors that this project raises on purpose: classes here, conditions in ``conditions.json`` (see `catalogue`).

::

    TwoPhaseCommitError
    ├── OptionError (also ValueError)      an option is missing, unknown or out of range
    ├── LocationError                      the checkpoint location and the journal do not belong together
    │   └── PutBackError                   the location, or the store, is an older copy
    ├── JournalError                       the journal can't be read or written, or is of an unknown version
    │   └── JournalStoreError              the journal's store failed: the same request may succeed later
    ├── FencedError                        a newer run owns the location, or this run has ended
    │   └── SupersededError                a newer run owns the location
    ├── QueryStoppedError                  no failure: the query was stopped on request, and no transaction is open
    ├── ProtocolError                      an unexpected call or message arrived
    ├── StoreError                         the store rejected a request; a retry does not help (rights, version, topic)
    │   ├── RowRefusedError                the store rejected a row (too large, wrong type)
    │   └── StoreUnreachableError          no connection to the store
    ├── RetriableError                     a temporary failure: the next run writes the missing rows
    │   └── StoreReplacedError             the store changed after the run began (a failover): a new run checks it
    ├── TransactionLostError               some prepared transactions can never be committed
    ├── HookError                          a checkpoint hook raised an exception
    ├── AmbiguousOutcomeError              the store can't say whether a transaction was committed
    ├── ReplayMismatchError                a micro-batch that was computed again has different rows
    └── RewindRequiredError                rows were lost in micro-batches that the query has moved past
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transactional.errors.catalogue import catalogue, shown

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AmbiguousOutcomeError",
    "FencedError",
    "HookError",
    "JournalError",
    "JournalStoreError",
    "LocationError",
    "OptionError",
    "ProtocolError",
    "PutBackError",
    "QueryStoppedError",
    "ReplayMismatchError",
    "RetriableError",
    "RewindRequiredError",
    "RowRefusedError",
    "StoreError",
    "StoreReplacedError",
    "StoreUnreachableError",
    "SupersededError",
    "TransactionLostError",
    "TwoPhaseCommitError",
]


class TwoPhaseCommitError(Exception):
    """Base class of all errors of this package: a named condition and its parameters.

    Raise a subclass, such as ``JournalError("JOURNAL_UNREADABLE", times=3)``. The catalogue of conditions
    (``docs/errors.md``) adds the message and the remedy.

    Parameters
    ----------
    condition : str
        A stable upper-case name, such as ``"UNKNOWN_OPTION"``.
    message : str, optional
        Message and remedy, for a condition of your own sink that is not in the catalogue. It must not contain secrets.
    **parameters
        The values in the message, for programs; JSON types only.
    """

    def __init__(self, condition: str, message: str = "", /, **parameters: Any) -> None:
        if not message:
            known = catalogue.get(condition)
            message = known.text(parameters) if known is not None else condition
        super().__init__(condition, message)
        self.condition = condition
        self.message = message
        self.parameters = parameters

    def with_note(self, note: str) -> Self:
        """Return a copy of the error with a sentence added to its message."""
        return type(self)(self.condition, f"{self.message} {note}", **self.parameters)

    def getCondition(self) -> str:
        """Return the condition's name. PySpark's errors have the same method."""
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:
        """Return the parameters as strings, formatted as in the message. PySpark's errors have the same method."""
        return {name: shown(value) for name, value in self.parameters.items()}

    def getSqlState(self) -> str | None:
        """Return the condition's SQLSTATE; None if the condition is not in the catalogue."""
        known = catalogue.get(self.condition)
        return known.sql_state if known is not None else None

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.condition, self.message, self.parameters)


def _rebuild(kind: type[TwoPhaseCommitError], condition: str, message: str, parameters: dict[str, Any]) -> Exception:
    return kind(condition, message, **parameters)


class OptionError(TwoPhaseCommitError, ValueError):
    """An option is missing, unknown, forbidden or out of range."""


class LocationError(TwoPhaseCommitError):
    """The checkpoint location can't be used: its files, the query's logs and the journal do not belong together."""


class PutBackError(LocationError):
    """The checkpoint location, or the sink's store, was restored from an older copy."""


class JournalError(TwoPhaseCommitError):
    """The journal can't be read or written, or a newer release wrote it."""


class JournalStoreError(JournalError):
    """The store of the journal did not answer, or failed: the same request may succeed later."""


class FencedError(TwoPhaseCommitError):
    """Another run owns the location, another query owns the prefix, or this run has ended: the process must stop."""


class SupersededError(FencedError):
    """A newer run owns the location. This run must stop."""


class QueryStoppedError(TwoPhaseCommitError):
    """The query was stopped on request: everything is committed, and no transaction is open. This is not a failure."""


class ProtocolError(TwoPhaseCommitError):
    """An unexpected call or message arrived: a bug, or an unsupported version of Spark."""


class StoreError(TwoPhaseCommitError):
    """The store can't be used or has rejected a request, for example because a right, a topic or a table is missing.

    The remedy of the error says whether a restart helps.
    """


class RowRefusedError(StoreError):
    """The store rejected a row, for example because it is too large or has an unsupported type."""


class StoreUnreachableError(StoreError):
    """The sink can't connect to the store. When the store answers again, start the query again."""


class RetriableError(TwoPhaseCommitError):
    """A temporary failure: if you start the query again, it writes the missing rows."""


class StoreReplacedError(RetriableError):
    """The store changed after the run began, for example by a failover. The next run compares the store with the journal."""


class TransactionLostError(TwoPhaseCommitError):
    """Some prepared transactions can never be committed.

    If `commit` raises this error, the framework inspects the other handles of this call again.

    Parameters
    ----------
    condition : str
        A stable upper-case name, such as ``"TRANSACTION_LOST"``.
    message : str, optional
        Message and remedy, for a condition of your own sink that is not in the catalogue. It must not contain secrets.
    handles : Sequence[Mapping[str, Any]]
        The lost handles, unchanged. The error keeps them as ``handles`` and in ``parameters["handles"]``.
    **parameters
        The values in the message, for programs; JSON types only.
    """

    def __init__(
        self, condition: str, message: str = "", /, handles: Sequence[Mapping[str, Any]] = (), **parameters: Any
    ) -> None:
        super().__init__(condition, message, handles=[dict(h) for h in handles], **parameters)

    @property
    def handles(self) -> list[dict[str, Any]]:
        """The lost handles."""
        return list(self.parameters["handles"])


class HookError(TwoPhaseCommitError):
    """A checkpoint hook raised an exception: the checkpoint is not decided, or the query does not start."""


class AmbiguousOutcomeError(TwoPhaseCommitError):
    """The store can't show whether a transaction was committed. You have to decide with ``barrier resolve``."""


class ReplayMismatchError(TwoPhaseCommitError):
    """A micro-batch was computed again and has different rows, for example because its plan or parallelism changed."""


class RewindRequiredError(TwoPhaseCommitError):
    """Rows were lost in micro-batches that the query has moved past. Run ``barrier recover``, which rewinds the query."""
