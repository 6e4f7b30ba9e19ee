"""The requested end of a running query: the request in the journal, and how far the query is.

A running query ends itself: its next micro-batch closes the final checkpoint, and the planning after it journals `stopped`.
A query that gets no rows begins no micro-batch: it is stopped as it is, and what it has prepared is committed by
`connector.operations.recovery`.
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

__all__ = ["FinalCheckpoint", "Standing", "end_run", "request_stop", "standing"]

QUIET_SECONDS = 2.0
"""Seconds without a new micro-batch after which none is awaited: what is prepared is committed without one."""


@dataclass(frozen=True)
class Standing:
    """The progress of a query towards its end.

    Parameters
    ----------
    ledger : Ledger
    batch : int
        The newest micro-batch that Spark began; -1 if there is none.
    idle : bool
        Spark has committed every micro-batch that it began. If the stop was requested before this was looked at, no task
        of an earlier planning is running, and every later planning obeys the request.
    """

    ledger: Ledger
    batch: int
    idle: bool

    @property
    def run(self) -> RunRecord | None:
        """Return the newest run."""
        return self.ledger.newest_run

    @property
    def prepared(self) -> Sequence[int]:
        """Return the micro-batches that are prepared, and in no checkpoint yet."""
        return [record.batch for record in self.ledger.undecided()]

    @property
    def clean(self) -> bool:
        """Return whether everything is committed."""
        return not (self.prepared or self.ledger.unsettled() or self.ledger.rewinding)

    @property
    def stopped(self) -> bool:
        """Return whether the query came to its end, and everything is committed."""
        return self.clean and self.run is not None and self.run.ended == EntryKind.STOPPED


def standing(location: CheckpointLocation) -> Standing:
    """Return how far the location's query is."""
    committed, batch = offset_log.newest(location, "commits"), offset_log.newest(location, "offsets")
    return Standing(location.journal().load(), batch, committed == batch)


class FinalCheckpoint:
    """The end of one running query, which is requested repeatedly until it has come.

    Attributes
    ----------
    safe : bool
        At the last look no task of the query was running, nor will one be.
    """

    def __init__(
        self,
        location: CheckpointLocation,
        upkeep: Upkeep,
        look: Callable[[CheckpointLocation], Standing | None],
        clock: Clock,
    ) -> None:
        self.safe = False
        self._location = location
        self._upkeep = upkeep
        self._look = look
        self._clock = clock
        self._quiet: tuple[int, Deadline] | None = (
            None  # idle after this micro-batch, and when it is so for long enough
        )

    def has_come(self) -> bool:
        """Ask the query to stop; return whether waiting for it is over: it has ended, is idle, or is another driver's."""
        self.safe = False
        found = self._look(self._location)
        if found is None:  # the journal does not answer now
            return False
        run = found.run
        ours = run is not None and run.driver in self._upkeep.drivers
        if run is not None and (run.ended if ours else self._upkeep.is_alive(run.process) is not False):
            self.safe = run.ended == EntryKind.STOPPED
            return True
        try:
            asked = request_stop(self._location, run.driver) if run is not None and ours else None
        except FencedError:  # it is rewound, or was moved away
            return True
        except (TwoPhaseCommitError, OSError):
            return False
        self.safe = found.idle and asked is not None
        return self._is_quiet(found) and (found.clean or self._can_be_ended(run))

    def _is_quiet(self, found: Standing) -> bool:
        """Return whether it is idle, and after the same micro-batch as when it was last looked at."""
        same = found.idle and self._quiet is not None and self._quiet[0] == found.batch
        if not same:
            self._quiet = (found.batch, Deadline(QUIET_SECONDS, self._clock)) if found.idle else None
        return same

    def _can_be_ended(self, run: RunRecord | None) -> bool:
        """Return whether it is quiet for long enough, and what is prepared could be committed from here."""
        if run is None or self._quiet is None or not self._quiet[1].passed():
            return False
        try:
            return can_be_built(run, self._location, self._upkeep.given_for(run))
        except (TwoPhaseCommitError, OSError):
            return False


def request_stop(location: CheckpointLocation, driver: str | None = None) -> int | None:
    """Ask the newest run to stop; return its token, or None if there is none to ask. Asking again changes nothing.

    A run that has failed is asked, too: a supervisor that waits to start it again obeys that.
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
    """Journal that the newest run has ended, without its sink; return False if that is impossible, or was done already."""
    journal = location.journal()
    run = journal.load().newest_run
    if run is None or run.ended:
        return False
    try:
        journal.append(entries.Stopped(run=run.token), may_stop(run.token))
    except FencedError:  # something is open that the journal knows
        return False
    return True
