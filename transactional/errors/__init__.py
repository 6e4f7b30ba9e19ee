"""Every error that this project raises on purpose: kinds here, conditions in ``conditions.json``, see `catalogue`.

::

    TwoPhaseCommitError
    ├── OptionError (also ValueError)      an option is missing, unknown or out of range
    ├── LocationError                      the checkpoint location and the journal do not belong together
    │   └── PutBackError                   the location, or the store, is an older copy
    ├── JournalError                       the journal can't be read or written, or is of an unknown version
    │   └── JournalStoreError              the journal's store failed: the same may work later
    ├── FencedError                        a newer run owns the location, or this run has ended
    │   └── SupersededError                a newer run owns the location
    ├── QueryStoppedError                  no failure: the query ends because it was asked to, and nothing is left open
    ├── ProtocolError                      a call or message arrived that the protocol excludes
    ├── StoreError                         the sink's store refused for good (rights, versions, missing topic)
    │   ├── RowRefusedError                the store refused a row (too large, wrong type)
    │   └── StoreUnreachableError          no connection to the store
    ├── RetriableError                     nothing is decided; the same batch can be written again
    │   └── StoreReplacedError             the store went on elsewhere, or from an older state: a new run has to look
    ├── TransactionLostError               prepared transactions that will never be committed
    ├── HookError                          a checkpoint hook raised: the checkpoint is declined
    ├── AmbiguousOutcomeError              the store can't say whether a transaction was committed
    ├── ReplayMismatchError                a repair's rows are not the recorded ones
    └── RewindRequiredError                lost parts belong to batches that the query has moved past
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from transactional.errors.catalogue import catalogue, shown

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
    """Root of the tree: a condition of the catalogue and its parameters.

    Raise it as ``JournalError("JOURNAL_UNREADABLE", times=3)``: the catalogue has the message and the remedy.

    Parameters
    ----------
    condition : str
        Stable upper-case name, e.g. ``"UNKNOWN_OPTION"``.
    message : str, optional
        What happened, and the remedy, of a condition that the catalogue does not have: a sink's own. Never contains a secret.
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
        """Return the same error with a sentence after its message."""
        return type(self)(self.condition, f"{self.message} {note}", **self.parameters)

    def getCondition(self) -> str:
        """Return the condition's name, as PySpark's errors do."""
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:
        """Return the parameters as they stand in the message, as PySpark's errors do."""
        return {name: shown(value) for name, value in self.parameters.items()}

    def getSqlState(self) -> str | None:
        """Return the condition's SQLSTATE; None for a condition that the catalogue does not have."""
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
    """The checkpoint location, the query's logs and the journal do not belong together."""


class PutBackError(LocationError):
    """The checkpoint location, or the sink's store, was put back from an older copy."""


class JournalError(TwoPhaseCommitError):
    """The journal can't be read or written, or was written by a newer version."""


class JournalStoreError(JournalError):
    """The store of the journal did not answer, or failed: the same request may succeed later."""


class FencedError(TwoPhaseCommitError):
    """A newer run owns the location (or another query the prefix); this one must stop."""


class SupersededError(FencedError):
    """A newer run owns the location; this one must stop."""


class QueryStoppedError(TwoPhaseCommitError):
    """The query ends because that was asked for: everything is committed, and no transaction is open."""


class ProtocolError(TwoPhaseCommitError):
    """A call or message arrived that the protocol excludes."""


class StoreError(TwoPhaseCommitError):
    """The sink's store refused for good: rights, versions, a missing topic or table."""


class RowRefusedError(StoreError):
    """The store refused a row: too large, or of a type that it can't hold."""


class StoreUnreachableError(StoreError):
    """No connection to the store can be made."""


class RetriableError(TwoPhaseCommitError):
    """Nothing was decided; the batch can be written again by the next run."""


class StoreReplacedError(RetriableError):
    """The store is not the one that the run has begun on, as after a failover: a new run compares it with the journal."""


class TransactionLostError(TwoPhaseCommitError):
    """These prepared transactions will never be committed; the others of the call are inspected again.

    ``parameters["handles"]`` holds the lost handles, as they were passed in.
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
    """A checkpoint hook raised, and nothing is decided; or it could not be restored."""


class AmbiguousOutcomeError(TwoPhaseCommitError):
    """The store can't say whether a transaction was committed: an operator has to (`resolve`)."""


class ReplayMismatchError(TwoPhaseCommitError):
    """The rows that a repair wrote are not the recorded ones: the plan or its parallelism changed."""


class RewindRequiredError(TwoPhaseCommitError):
    """Lost parts belong to batches that the query has moved past: go back to an earlier checkpoint."""
