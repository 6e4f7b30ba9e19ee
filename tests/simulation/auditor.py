"""The judge of a run, who knows nothing of the product: only what readers see, and what the world did to the query."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from transactional.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["KEYS", "Auditor"]

KEYS = 3
"""Of the rows: row number n has the key n modulo this."""


class Auditor:
    """Sees every row that becomes visible to a reader, and every reason for which the query stops."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken = ""
        self.visible: Counter[int] = Counter()
        self._shown: dict[tuple[int, str], tuple[int, int]] = {}

    def appear(self, rows: list[int], route: str, transaction: int) -> None:
        """Rows of a transaction become visible; numbers of transactions are in the order in which they were begun."""
        self._world.note(f"readers see {rows}")
        for row in rows:
            self.visible[row] += 1
            if self.visible[row] > 1:
                self.fail(f"a row is visible more than once: row {row}, {self.visible[row]} times")
            last, written = self._shown.get((row % KEYS, route), (-1, 0))
            if last > row:
                self.fail(f"a row becomes visible after a newer row of the same key: row {row} after row {last}")
            elif written > transaction:
                self.fail(f"a row is stored before an older row of the same key: row {row} before row {last}")
            self._shown[row % KEYS, route] = row, transaction

    def stopped(self, who: str, error: Exception) -> None:
        """A query, or a command, ended with an error: its reason has to be true."""
        world = self._world
        condition = condition_of(error)
        world.see(f"ended by {condition}")
        world.note(f"{who} ended by {condition}: {error}")
        reason = TRUE_IF.get(condition)
        if reason is None:
            self.fail(f"{type(error).__name__}, which no event of the simulation can cause: {who}: {error!r}")
        elif not any(world.did[what] for what in reason):
            kind = f"{type(error).__name__}, although none of its possible causes occurred"
            self.fail(f"{kind}: {who}: {error!r}, and there was no {' or '.join(reason)}")

    def restored(self, state: int) -> None:
        """A hook got back the state of the first `state` rows."""
        behind = [row for row, copies in self.visible.items() if copies and row >= state]
        if behind:
            self.fail(f"readers see rows that a restored hook state does not contain: {behind}, after {state} rows")

    def again(self, first: int) -> None:
        """From here on a copy writes these rows, and all that follow, once more."""
        self._shown = {}
        for row in [row for row in self.visible if row >= first]:
            del self.visible[row]

    def judge(self) -> None:
        """Undisturbed, all is well in the end."""
        world = self._world
        missing = [row for row in range(world.query.read) if not self.visible[row]]
        if missing:
            self.fail(f"rows are missing: {missing} of {world.query.read}")
        left = world.store.open()
        if left:
            self.fail(f"transactions are still open at the end: {left}")

    def fail(self, what: str) -> None:
        """Note the first thing that is wrong."""
        self.broken = self.broken or what


def condition_of(error: BaseException) -> str:
    """Return an error's name."""
    return error.condition if isinstance(error, TwoPhaseCommitError) else type(error).__name__


FAULT = ("fault",)
RIVAL = ("rival", "interrupt")
LOSS = ("loss",)
STILL = (*FAULT, "freeze a process", "freeze a driver", "time passes")  # past a deadline of its own
DEATH = ("kill a process", "kill a driver", "start again")

TRUE_IF: dict[str, tuple[str, ...]] = {
    "SparkFailed": (*DEATH, *RIVAL, *FAULT),
    "OSError": FAULT,  # of Spark's own files, and of a sink's store
    "Interrupted": ("interrupt",),
    "LOCATION_UNREADABLE": FAULT,
    "LOCATION_UNWRITABLE": FAULT,
    "JOURNAL_STORE_FAILED": FAULT,
    "RUN_SUPERSEDED": RIVAL,
    "RUN_ENDED": RIVAL,
    "REWIND_NOT_DONE": ("command",),
    "LOGS_INCONSISTENT": RIVAL,
    "LOGS_AHEAD": RIVAL,
    "OFFSETS_REPLACED": RIVAL,
    "OFFSETS_DISAGREE": ("late", *RIVAL),
    "BATCHES_NOT_ACCOUNTED": RIVAL,
    "LOCATION_BUSY": ("command",),
    "LOCATION_MOVED_ON": ("move",),
    "LOCATION_PUT_BACK": ("put back",),
    "REWIND_TOO_FAR": ("rewind",),
    "ORIGIN_NOT_AT_SAVEPOINT": ("move",),
    "ORIGIN_UNREACHABLE": FAULT,
    "SAVEPOINT_NOT_READY": ("savepoint", "move"),
    "QUERY_RUNS": RIVAL,
    "CONCURRENT_COMMIT": (*RIVAL, "unsure"),
    "HOOK_FAILED": ("hook",),
    "KAFKA_TIMEOUT": STILL,
    "MARKERS_PENDING": STILL,
    "MARKERS_SKIPPED": ("marker skipped",),
    "OUTCOME_UNKNOWN": ("marker skipped", "clean up under a backup"),
    "DATABASE_UNREACHABLE": FAULT,
    "DATABASE_SLOW": (*STILL, *RIVAL, "lock of the dead"),  # a dead process's session holds its locks for a while
    "DATABASE_FAILED_OVER": ("fail over",),
    "TABLE_UNREACHABLE": FAULT,
    "DELTA_COMMIT_FAILED": STILL,
    "WRITE_FAILED": FAULT,
    "PRODUCER_FENCED": (*LOSS, *RIVAL, "store is hurt"),  # a coordinator that was replaced and does not know it yet
    "PREFIX_TAKEN": (*DEATH, *RIVAL),  # a planning had taken the prefix late, before its `mark`
    "STOP_REQUESTED": ("ask to stop",),
    "TRANSACTION_LOST": (*LOSS, *RIVAL),
    "HANDLE_NOT_ALIVE": (*LOSS, *RIVAL, "clock jumps"),
    "PREPARED_LOST": (*LOSS, "swept by another", "interrupt"),
    "LOST_AFTER_DECISION": (*LOSS, "swept by another", "interrupt"),
}
"""By condition: what must have happened in the world, one of these, for it to be true."""
