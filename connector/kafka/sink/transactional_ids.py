"""Lanes: the bounded set of transactional ids ``<prefix>.<partition id>.<lane>`` of one query.

A broker remembers every transactional id for a week, so names that are new for ever would fill its memory; names that
are reused too soon would fence a transaction that still waits for its commit. Hence 64 names per writer task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import Description
from transactional.errors import RetriableError

__all__ = ["LANES", "MAX_PREPARED", "TransactionalId", "choose_lane", "run_id"]

LANES: Final = 64

MAX_PREPARED: Final = 50
"""So many micro-batches may be prepared at once: the other lanes are for retries, speculation and declined checkpoints."""

BUSY: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which InitProducerId would abort somebody's transaction, or wait for its markers."""

DescribeIds = Callable[[list[str]], Mapping[str, Description]]


@dataclass(frozen=True)
class TransactionalId:
    """A transactional id in its parts."""

    prefix: str
    partition: int
    lane: int

    def __str__(self) -> str:
        return f"{self.prefix}.{self.partition}.{self.lane}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Read a whole name; None where it is not one of ours. ``orders.x.1.2`` does not belong to ``orders``."""
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not parts[0]:
            return None
        prefix, partition, lane = parts
        if not (_is_canonical(partition) and _is_canonical(lane)) or int(lane) >= LANES:
            return None
        return cls(prefix, int(partition), int(lane))


def run_id(prefix: str) -> str:
    """Name the id whose epoch says which run holds the prefix; never one of a task's."""
    return f"{prefix}.run"


def choose_lane(prefix: str, partition: int, task_attempt: int, describe: DescribeIds) -> str:
    """Choose a free id for a task, from ``taskAttemptId % 64`` on.

    Parameters
    ----------
    prefix, partition, task_attempt
        Of the task's `TransactionContext`.
    describe : Callable
        Asks the coordinators; ids that they don't know are absent (and free).

    Raises
    ------
    RetriableError
        ``NO_FREE_LANE``.
    """
    start = task_attempt % LANES
    order = [str(TransactionalId(prefix, partition, (start + step) % LANES)) for step in range(LANES)]
    # Nearly always the first is free: the others are asked about only when it is not.
    for candidates in (order[:1], order[1:]):
        states = describe(candidates)
        for candidate in candidates:
            if candidate not in states or states[candidate].state not in BUSY:
                return candidate
    raise RetriableError(
        "NO_FREE_LANE",
        f"All {LANES} transactional ids of {prefix}.{partition} hold open transactions. Look for "
        "tasks that fail again and again, or for checkpoints that are declined; `barrier rewind LOCATION` aborts all that no "
        "checkpoint has decided, and the query that is started then writes it again.",
        prefix=prefix,
        partition=partition,
    )


def _is_canonical(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text
