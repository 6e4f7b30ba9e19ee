"""What a reader of each version of a table finds: whole transfers, or halves of some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

__all__ = ["Finding", "judge", "versions"]

Booking = tuple[int, int, int]
"""Transfer, account, amount."""


@dataclass(frozen=True)
class Finding:
    """What the versions of one table hold.

    Parameters
    ----------
    checkpoints : int
        Versions with bookings.
    torn : int
        Those that hold one half of a transfer without the other.
    off_by : int
        The largest sum over all accounts, which is 0 if only whole transfers are there.
    transfers : int
        Whole ones, in the newest version.
    doubled : int
        Bookings in the newest version that are there more than once.
    """

    checkpoints: int
    torn: int
    off_by: int
    transfers: int
    doubled: int


def judge(table: Path) -> Finding:
    """Read every version of a table."""
    checkpoints = torn = off_by = total = doubled = 0
    taken: set[int] = set()
    given: set[int] = set()
    for bookings in versions(table):
        checkpoints += 1
        for transfer, _, amount in bookings:
            side = taken if amount < 0 else given
            doubled += transfer in side
            side.add(transfer)
            total += amount
        torn += taken != given
        off_by = max(off_by, abs(total))
    return Finding(checkpoints, torn, off_by, len(taken & given), doubled)


def versions(table: Path) -> Iterator[Sequence[Booking]]:
    """Yield what each version of a table adds, in order; those without rows are passed over."""
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        files = [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
        rows = [row for file in files for row in pq.read_table(file, columns=["id", "account", "amount"]).to_pylist()]
        if rows:
            yield [(row["id"], row["account"], row["amount"]) for row in rows]
