"""The types between a sink and its host: options, a transaction's context, the states of handles."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["ONE", "Cutoff", "HandleState", "Options", "Outcome", "TransactionContext"]

ONE: Final[Sequence[str]] = ("",)
"""The routes of a sink that is one."""


class Options(Mapping[str, str]):
    """Options as the engine passes them: keys are case-insensitive, values are strings."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {key.lower(): value for key, value in options.items()}

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._values

    def replaced(self, **values: str) -> Options:
        """Return a copy with these values set."""
        return Options({**self._values, **values})

    def __repr__(self) -> str:  # values may be secrets
        return f"Options({sorted(self._values)})"


class Outcome(str, enum.Enum):
    """State of a handle at its store."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    """It can't be committed whole: it was given up, or the store still calls it open and a part of it is gone."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class HandleState:
    """One handle's state at the store.

    Parameters
    ----------
    outcome : Outcome
    seconds_left : float or None
        For `PREPARED`: seconds until the store gives the transaction up; None if it never does.
    margin : float
        For `PREPARED`: seconds that must be left for a decision to be taken.
    evidence : str
        How it is known, in a few words; goes into the journal with a verdict.
    """

    outcome: Outcome
    seconds_left: float | None = None
    margin: float = 0.0
    evidence: str = ""

    @property
    def ready(self) -> bool:
        """True when a decision may rest on it."""
        return self.outcome is Outcome.PREPARED and (self.seconds_left is None or self.seconds_left > self.margin)


@dataclass(frozen=True)
class Cutoff:
    """A point in a query's life: nothing that began before it can be decided any more, unless it is decided already.

    Parameters
    ----------
    queryId : str
        As in `TransactionContext`.
    run : int
        Transactions of earlier runs are over.
    batch : int
        Of this run, those of earlier micro-batches are over.
    """

    queryId: str
    run: int
    batch: int

    def ends(self, queryId: str, run: int, batch: int) -> bool:
        """Return whether a transaction of that query, run and micro-batch is over."""
        return queryId == self.queryId and (run, batch) < (self.run, self.batch)


@dataclass(frozen=True)
class TransactionContext:
    """The task for which `beginTransaction` opens a transaction. *Made on an executor, once per task.*

    A store whose names must be a bounded set makes them from `prefix`, `partitionId` and `taskAttemptId`; one
    whose names must be new for ever (PostgreSQL gids, files) takes `nonce` in.

    Parameters
    ----------
    queryId : str
        The query's, with a suffix if the location is a copy that was adopted.
    batchId, partitionId, taskAttemptId : int
    prefix : str
        The option ``transactionalIdPrefix``.
    nonce : str
        16 hexadecimal digits that no other transaction has.
    run : int
        The driver's claim on the location; grows with every claim.
    route : str
        Of a sink that is several: for which of them; else empty.
    """

    queryId: str
    batchId: int
    partitionId: int
    taskAttemptId: int
    prefix: str
    nonce: str
    run: int = 0
    route: str = ""
