"""The types that a sink and the framework exchange: options, the context of a transaction, the state of a handle."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ONE: Final[Sequence[str]] = ("",)
"""The routes of a sink that does not combine several sinks: one route with an empty name."""


class Options(Mapping[str, str]):
    """A sink's options as Spark passes them: keys are case-insensitive, values are strings.

    Parameters
    ----------
    options : Mapping[str, str]
    """

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
        """Return a copy in which the options in `values` have new values."""
        return Options({**self._values, **values})

    def __repr__(self) -> str:  # values may be secrets
        return f"Options({sorted(self._values)})"


class Outcome(str, enum.Enum):
    """The outcome of a transaction according to its store: prepared, committed, lost or unknown."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    """The transaction can't be committed completely: it was aborted, or the store has lost a part of it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class HandleState:
    """The state of one handle at the store, as `TwoPhaseCommitSink.inspect` returns it.

    Parameters
    ----------
    outcome : Outcome
    seconds_left : float or None
        For `PREPARED`: the number of seconds until the store aborts the transaction; None if it never does.
    margin : float
        For `PREPARED`: a checkpoint with this handle is decided only if more than this number of seconds is left.
    evidence : str
        The sink's reason for this outcome, in a few words. If the framework has to judge the transaction
        (committed or lost), the journal records this text.
    """

    outcome: Outcome
    seconds_left: float | None = None
    margin: float = 0.0
    evidence: str = ""

    @property
    def ready(self) -> bool:
        """True if a checkpoint with this handle may be decided."""
        return self.outcome is Outcome.PREPARED and (self.seconds_left is None or self.seconds_left > self.margin)


@dataclass(frozen=True)
class Cutoff:
    """A point in a query's life. A transaction before this point is over, unless a decided checkpoint contains it.

    No driver will ever commit a transaction that is over, so `TwoPhaseCommitSink.sweep` can abort it safely.

    Parameters
    ----------
    queryId : str
        The query's id, as `TransactionContext` has it.
    run : int
        All transactions of earlier runs are over.
    batch : int
        Transactions of this run that belong to earlier micro-batches are over.
    """

    queryId: str
    run: int
    batch: int

    def ends(self, queryId: str, run: int, batch: int) -> bool:
        """Return whether a transaction with the given query id, run and micro-batch is over."""
        return queryId == self.queryId and (run, batch) < (self.run, self.batch)


@dataclass(frozen=True)
class TransactionContext:
    """The task for which `beginTransaction` opens a transaction. *Made on an executor, once per task.*

    Use the fields to name the transaction. If the number of names must be bounded, build them from `prefix`, `partitionId` and
    a small number. If names must never repeat (PostgreSQL gids, files), include `nonce`.

    Parameters
    ----------
    queryId : str
        The query's id. If the location is a copy (``barrier restore --no-claim``), the id has a suffix.
    batchId, partitionId, taskAttemptId : int
        Spark's numbers of the micro-batch, the partition and the task attempt.
    prefix : str
        The value of the option ``transactionalIdPrefix``.
    nonce : str
        16 hexadecimal digits that no other transaction has.
    run : int
        The number of the run: the driver's claim on the location. Every later run has a higher number.
    route : str
        If the sink combines several sinks, the name of the transaction's route (one of `Routes.routes`); otherwise empty.
    """

    queryId: str
    batchId: int
    partitionId: int
    taskAttemptId: int
    prefix: str
    nonce: str
    run: int = 0
    route: str = ""
