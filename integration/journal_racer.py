"""One of several processes that race for a journal's numbers: ``python -m integration.journal_racer LOCATION NAME COUNT``.

It says ``ready``, waits for a line, appends COUNT runs, and prints their numbers as a list.
"""

from __future__ import annotations

import json
import sys

from connector.location.location import CheckpointLocation
from tests.transactional.bodies import fact_of, run_body
from transactional.entry import EntryKind
from transactional.journal import Journal

__all__ = ["race"]


def race(journal: Journal, name: str, count: int, fold: int = 1_000_000) -> list[int]:
    """Append so many runs by the driver `name`; returns their numbers."""
    body = run_body(driver=name, location="/l")
    found = []
    for _ in range(count):
        journal.load()
        found.append(journal.append(fact_of(EntryKind.RUN, body), lambda ledger: None).number)
        journal.fold(fold)
    return found


if __name__ == "__main__":
    place = CheckpointLocation(sys.argv[1]).journal()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(race(place, sys.argv[2], int(sys.argv[3]))), flush=True)
