"""The transactional ids of one query: 64 for each partition id, ``<prefix>.<partition id>.<number>``.

A broker remembers every transactional id for a week, so ids that are never reused would fill its memory. Ids that
are reused too soon would fence a transaction that still waits for its commit. So each writer task has 64 ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import Description
from transactional.errors import RetriableError

IDS: Final = 64
"""The number of transactional ids for each partition id."""

MAX_PREPARED: Final = 50
"""The maximum number of micro-batches that may be prepared at the same time. The other ids are reserved for retries,
speculation and declined checkpoints."""

BUSY: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which InitProducerId would abort a transaction, or wait for its markers."""

DescribeIds = Callable[[list[str]], Mapping[str, Description]]


@dataclass(frozen=True)
class TransactionalId:
    """A task's transactional id, split into its parts."""

    prefix: str
    partition: int
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}.{self.partition}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Parse a transactional id; return None if it is not a task's. The prefix of ``orders.x.1.2`` is ``orders.x``."""
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not parts[0]:
            return None
        prefix, partition, number = parts
        if not (_is_canonical(partition) and _is_canonical(number)) or int(number) >= IDS:
            return None
        return cls(prefix, int(partition), int(number))


def run_id(prefix: str) -> str:
    """Return the transactional id whose epoch shows which run owns the prefix. No task has this id."""
    return f"{prefix}.run"


def trial_id(prefix: str) -> str:
    """Return the transactional id that ``barrier doctor --try-transaction`` uses. No task has this id."""
    return f"{prefix}.doctor"


def ids_under(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the names that are transactional ids of tasks with exactly this prefix."""
    return [name for name in names if (parsed := TransactionalId.parse(name)) and parsed.prefix == prefix]


def choose_id(prefix: str, partition: int, task_attempt: int, nonce: str, describe: DescribeIds) -> str:
    """Choose an unused id for a task: number ``taskAttemptId % 64`` or, if that is busy, one chosen by the nonce.

    Two concurrent attempts must not choose the same id. The attempt that initializes the id last would abort the other
    attempt's transaction, which may be prepared by then. If each attempt tried the number after a busy one, all attempts that
    begin within a block of busy numbers would choose the same id.
    """
    start = task_attempt % IDS
    order = [str(TransactionalId(prefix, partition, (start + step) % IDS)) for step in range(IDS)]
    turn = 1 + zlib.crc32(nonce.encode()) % (IDS - 1)
    # The first id is nearly always free, so ask about the others only if it is not.
    for candidates in (order[:1], order[turn:] + order[1:turn]):
        states = describe(candidates)
        for candidate in candidates:
            if candidate not in states or states[candidate].state not in BUSY:
                return candidate
    raise RetriableError("NO_FREE_LANE", count=IDS, prefix=prefix, partition=partition)


def _is_canonical(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text
