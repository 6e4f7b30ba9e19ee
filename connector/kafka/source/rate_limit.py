"""How many offsets a micro-batch reads, and how many each partition gets of its limit. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["TriggerLimits", "share_out"]

K = TypeVar("K", bound=Hashable)


def share_out(backlog: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Share a limit among partitions by their backlogs.

    Every partition with a backlog gets at least one offset while the limit lasts, so that a small one is not starved
    by large ones; the rest goes by backlog, largest remainders first. Where the limit is less than the number of
    partitions, they take turns.

    Parameters
    ----------
    backlog : Mapping[K, int]
        Offsets that wait, per partition, in a stable order.
    limit : int
        Offsets of all partitions together.
    turn : int
        A number that grows from micro-batch to micro-batch: who is first where not all can be.

    Returns
    -------
    dict[K, int]
        For each key at most its backlog; the sum is ``min(limit, sum(backlog))``.
    """
    waiting = [key for key, rows in backlog.items() if rows > 0]
    total = sum(backlog[key] for key in waiting)
    shares = dict.fromkeys(backlog, 0)
    if total <= limit:
        return {key: max(0, rows) for key, rows in backlog.items()}
    if limit < len(waiting):
        # Each turn begins where the one before it ended.
        first = turn * limit % len(waiting)
        for index in range(limit):
            shares[waiting[(first + index) % len(waiting)]] = 1
        return shares
    # One for each; the others by what is left of each backlog. All in integers: a float loses rows past 2**53.
    spare, rest = limit - len(waiting), total - len(waiting)
    remainders = []
    for position, key in enumerate(waiting):
        whole, part = divmod(spare * (backlog[key] - 1), rest)
        shares[key] = 1 + whole
        remainders.append((-part, position, key))
    for _, _, key in sorted(remainders, key=lambda entry: entry[:2])[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


@dataclass(frozen=True)
class TriggerLimits:
    """How much a micro-batch reads.

    Parameters
    ----------
    most : int or None
        ``maxOffsetsPerTrigger``.
    least : int or None
        ``minOffsetsPerTrigger``.
    delay_ms : int
        ``maxTriggerDelay``.
    """

    most: int | None = None
    least: int | None = None
    delay_ms: int = 900_000

    def hold_back(self, waiting: int, since: int | None, now: int) -> bool:
        """Whether the rows that wait are too few yet.

        Parameters
        ----------
        waiting : int
            Offsets of all partitions together.
        since : int or None
            When rows were last read, in milliseconds since the epoch; None before a run's first, which never waits.
        now : int
            A clock that went back to before `since` counts as if the wait were over.
        """
        if self.least is None or since is None or waiting >= self.least:
            return False
        return 0 <= now - since < self.delay_ms
