"""Stop a running query gracefully: write the request into the journal, and watch the query until it has ended.

A running query ends itself: its next micro-batch closes the final checkpoint. When Spark then plans another
micro-batch, the query journals `stopped` and ends. A query that gets no rows starts no micro-batch. Such a query is
stopped without a final checkpoint, and `connector.operations.recovery` commits its prepared rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep
from connector.spark.recorded_sink import can_be_built
from transactional import entries
from transactional.clock import Clock, Deadline
from transactional.entry import EntryKind
from transactional.errors import FencedError, TwoPhaseCommitError
from transactional.ledger import Ledger, RunRecord
from transactional.ownership import may_stop, newest_run, rewinding

QUIET_SECONDS = 2.0
"""Seconds to wait for a new micro-batch. If none starts, the prepared rows are committed without one."""


@dataclass(frozen=True)
class Standing:
    """The progress of a query at one moment, according to its journal and Spark's logs."""

    ledger: Ledger
    batch: int  # The newest micro-batch that Spark has started; -1 if there is none.
    # True if Spark has committed every micro-batch that it has started. If the stop was requested before Spark's logs were
    # read, then no task is running, and the next planning obeys the request.
    idle: bool

    @property
    def run(self) -> RunRecord | None:
        """Return the query's newest run; None if it has none."""
        return self.ledger.newest_run

    @property
    def prepared(self) -> Sequence[int]:
        """Return the micro-batches that are prepared, but in no checkpoint yet."""
        return [record.batch for record in self.ledger.undecided()]

    @property
    def clean(self) -> bool:
        """Return whether all micro-batches are settled, and no rewind is unfinished."""
        return not (self.prepared or self.ledger.unsettled() or self.ledger.rewinding)

    @property
    def stopped(self) -> bool:
        """Return whether the newest run has stopped, and all micro-batches are settled."""
        return self.clean and self.run is not None and self.run.ended == EntryKind.STOPPED


def standing(location: CheckpointLocation) -> Standing:
    """Read the progress of a location's query from Spark's logs and the journal."""
    committed, batch = offset_log.newest(location, "commits"), offset_log.newest(location, "offsets")
    return Standing(location.journal().load(), batch, committed == batch)


class FinalCheckpoint:
    """Asks a running query for its final checkpoint, and waits: call `has_come` repeatedly until it returns True."""

    def __init__(
        self,
        location: CheckpointLocation,
        upkeep: Upkeep,
        look: Callable[[CheckpointLocation], Standing | None],
        clock: Clock,
    ) -> None:
        # True if the last call of `has_come` found that no task of the query is running, and none will start.
        self.safe = False
        self._location = location
        self._upkeep = upkeep
        self._look = look
        self._clock = clock
        self._quiet: tuple[int, Deadline] | None = (
            None  # the micro-batch after which the query is idle, and the time when it has been idle long enough
        )

    def has_come(self) -> bool:
        """Ask the query to stop. Return True if the query has ended or is idle, or if another process has taken it over."""
        self.safe = False
        found = self._look(self._location)
        if found is None:  # the journal can't be read now
            return False
        run = found.run
        ours = run is not None and run.driver in self._upkeep.drivers
        if run is not None and (run.ended if ours else self._upkeep.is_alive(run.process) is not False):
            self.safe = run.ended == EntryKind.STOPPED
            return True
        try:
            asked = request_stop(self._location, run.driver) if run is not None and ours else None
        except FencedError:  # the query is being rewound, or was moved to another location
            return True
        except (TwoPhaseCommitError, OSError):
            return False
        self.safe = found.idle and asked is not None
        return self._is_quiet(found) and (found.clean or self._can_be_ended(run))

    def _is_quiet(self, found: Standing) -> bool:
        """Return whether the query is idle, and has started no micro-batch since the previous call."""
        same = found.idle and self._quiet is not None and self._quiet[0] == found.batch
        if not same:
            self._quiet = (found.batch, Deadline(QUIET_SECONDS, self._clock)) if found.idle else None
        return same

    def _can_be_ended(self, run: RunRecord | None) -> bool:
        """Return whether the query has been idle for `QUIET_SECONDS`, and its prepared rows can be committed from here."""
        if run is None or self._quiet is None or not self._quiet[1].passed():
            return False
        try:
            return can_be_built(run, self._location, self._upkeep.given_for(run))
        except (TwoPhaseCommitError, OSError):
            return False


def request_stop(location: CheckpointLocation, driver: str | None = None) -> int | None:
    """Ask the newest run to stop. Return its token, or None if there is no run to stop. A second request changes nothing.

    A run that has failed is asked as well, because a supervisor that waits before a restart obeys the request. If `driver` is
    given, only a run of this driver is asked.
    """

    def is_meant(ledger: Ledger) -> bool:
        run = ledger.newest_run
        return run is not None and run.ended != EntryKind.STOPPED and driver in (None, run.driver)

    def due(ledger: Ledger) -> entries.Request | None:
        asks = is_meant(ledger) and not ledger.stop_asked
        return entries.Request(what="stop", run=newest_run(ledger).token) if asks else None

    def judge(ledger: Ledger) -> None:
        if ledger.rewinding is not None:
            raise rewinding(ledger)

    journal = location.journal()
    journal.load()
    ledger = journal.ask(due, judge)
    return newest_run(ledger).token if is_meant(ledger) else None


def end_run(location: CheckpointLocation) -> bool:
    """Write `stopped` for the newest run into the journal, without using the run's sink.

    Return False if the run has already ended, or if the journal contains an open transaction.
    """
    journal = location.journal()
    run = journal.load().newest_run
    if run is None or run.ended:
        return False
    try:
        journal.append(entries.Stopped(run=run.token), may_stop(run.token))
    except FencedError:  # the journal knows an open transaction
        return False
    return True
