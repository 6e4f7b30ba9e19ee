"""The transactional ids of one query: 64 for each partition id, ``<prefix>.<partition id>.<number>``.

A broker remembers every transactional id for a week, so ids that are never reused would fill its memory; ids that
are reused too soon would fence a transaction that still waits for its commit. Hence 64 ids per writer task.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import Description
from transactional.errors import RetriableError

__all__ = ["IDS", "MAX_PREPARED", "TransactionalId", "choose_id", "ids_under", "run_id"]

IDS: Final = 64
"""Transactional ids of one partition id."""

MAX_PREPARED: Final = 50
"""Micro-batches that may be prepared at once: the other ids are for retries, speculation and declined checkpoints."""

BUSY: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which InitProducerId would abort a transaction, or wait for its markers."""

DescribeIds = Callable[[list[str]], Mapping[str, Description]]


@dataclass(frozen=True)
class TransactionalId:
    """A transactional id in its parts."""

    prefix: str
    partition: int
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}.{self.partition}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Parse a whole id; return None if it is not one of a task. ``orders.x.1.2`` does not belong to ``orders``."""
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not parts[0]:
            return None
        prefix, partition, number = parts
        if not (_is_canonical(partition) and _is_canonical(number)) or int(number) >= IDS:
            return None
        return cls(prefix, int(partition), int(number))


def run_id(prefix: str) -> str:
    """Return the id whose epoch shows which run holds the prefix; it is never one of a task's."""
    return f"{prefix}.run"


def ids_under(prefix: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that are ids of tasks under a prefix, whole ids compared."""
    return [name for name in names if (parsed := TransactionalId.parse(name)) and parsed.prefix == prefix]


def choose_id(prefix: str, partition: int, task_attempt: int, nonce: str, describe: DescribeIds) -> str:
    """Choose a free id for a task: number ``taskAttemptId % 64``, else any by its nonce.

    Two attempts that run at once must not choose the same: the one that initialises it last aborts the other's transaction,
    which may be prepared by then. If both went on from a busy number to the next one, all attempts that begin within a
    block of prepared numbers would end at the same.
    """
    start = task_attempt % IDS
    order = [str(TransactionalId(prefix, partition, (start + step) % IDS)) for step in range(IDS)]
    turn = 1 + zlib.crc32(nonce.encode()) % (IDS - 1)
    # Nearly always the first is free: the others are asked about only when it is not.
    for candidates in (order[:1], order[turn:] + order[1:turn]):
        states = describe(candidates)
        for candidate in candidates:
            if candidate not in states or states[candidate].state not in BUSY:
                return candidate
    raise RetriableError("NO_FREE_LANE", count=IDS, prefix=prefix, partition=partition)


def _is_canonical(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text
