"""The end of a running query that was asked for: the request in the journal, and how far the query is.

A running query ends itself: its next micro-batch closes the final checkpoint, and the planning after it journals `stopped`.
A query that gets no rows begins no micro-batch: it is stopped as it is, and what it has prepared is committed by
`connector.operations.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connector.operations.recovery import Upkeep
from connector.spark import offset_log
from connector.spark.location import CheckpointLocation
from connector.spark.recorded import can_be_built, fitting
from transactional.clock import Clock, Deadline
from transactional.errors import FencedError, TwoPhaseCommitError
from transactional.ledger import Ledger
from transactional.metadata import EntryKind
from transactional.ownership import Judge, may_stop, newest_run, rewinding, superseded

__all__ = ["FinalCheckpoint", "Standing", "end_run", "request_stop", "standing"]

QUIET_SECONDS = 2.0
"""How long Spark begins no micro-batch until none is waited for: what is prepared is committed without one."""


@dataclass(frozen=True)
class Standing:
    """How far a query is from its end.

    Parameters
    ----------
    ledger : Ledger
    batch : int
        The newest that Spark began.
    idle : bool
        Spark has committed every micro-batch that it began. If the stop was requested before this was looked at, no task
        of an earlier planning is running, and every later planning obeys the request.
    """

    ledger: Ledger
    batch: int
    idle: bool

    @property
    def run(self) -> int:
        """The newest; 0 if there is none."""
        return self.ledger.newest_run.token if self.ledger.newest_run else 0

    @property
    def driver(self) -> str:
        """Whose it is."""
        return self.ledger.newest_run.driver if self.ledger.newest_run else ""

    @property
    def process(self) -> Mapping[str, Any]:
        """That driver's process."""
        return self.ledger.newest_run.process if self.ledger.newest_run else {}

    @property
    def ended(self) -> str | None:
        """What ended the newest run."""
        return self.ledger.newest_run.ended if self.ledger.newest_run else None

    @property
    def drivers(self) -> Mapping[str, int]:
        """The newest run of each driver that the journal knows."""
        return {run.driver: token for token, run in sorted(self.ledger.runs.items())}

    @property
    def prepared(self) -> Sequence[int]:
        """Micro-batches that are prepared, and in no checkpoint yet."""
        return [record.batch for record in self.ledger.undecided()]

    @property
    def clean(self) -> bool:
        """Everything is committed."""
        return not (self.prepared or self.ledger.unsettled() or self.ledger.rewinding)

    @property
    def stopped(self) -> bool:
        """It came to its end, and everything is committed."""
        return self.clean and self.ended == EntryKind.STOPPED


def standing(location: CheckpointLocation) -> Standing:
    """Return how far the location's query is.

    Raises
    ------
    JournalError
    """
    committed, batch = offset_log.newest(location, "commits"), offset_log.newest(location, "offsets")
    return Standing(location.journal().load(), batch, committed == batch)


class FinalCheckpoint:
    """The end of one running query, asked for again and again until it has come.

    Parameters
    ----------
    location : CheckpointLocation
    upkeep : Upkeep
    look : Callable[[CheckpointLocation], Standing or None]
        `standing`; None if the journal does not answer now.
    clock : Clock

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
        self._quiet: tuple[int, Deadline] | None = None  # idle after this micro-batch, until it is so for long enough

    def has_come(self) -> bool:
        """Ask the query to stop; return whether waiting for it is over: it has ended, is idle, or is no one's here."""
        found = self._look(self._location)
        self.safe = False
        if found is None:
            return False
        ours = found.driver in self._upkeep.drivers
        others = found.run and not ours and self._upkeep.is_alive(found.process) is not False
        if found.ledger.moved or others or (ours and found.ended):
            return True
        try:
            asked = request_stop(self._location, found.driver) if ours else None
        except FencedError:  # it is rewound, or was moved away
            return True
        except (TwoPhaseCommitError, OSError):
            return False
        self.safe = found.idle and asked == found.run
        return self._is_quiet(found) and (found.clean or self._can_be_ended(found))

    def _is_quiet(self, found: Standing) -> bool:
        """Return whether it is idle, and after the same micro-batch as at the look before."""
        same = found.idle and self._quiet is not None and self._quiet[0] == found.batch
        if not same:
            self._quiet = (found.batch, Deadline(QUIET_SECONDS, self._clock)) if found.idle else None
        return same

    def _can_be_ended(self, found: Standing) -> bool:
        """Return whether it is quiet for long enough, and what is prepared could be committed from here."""
        run = found.ledger.newest_run
        if run is None or self._quiet is None or not self._quiet[1].passed():
            return False
        try:
            return can_be_built(run, self._location, fitting(run, self._upkeep.given))
        except (TwoPhaseCommitError, OSError):
            return False


def request_stop(location: CheckpointLocation, driver: str | None = None) -> int | None:
    """Ask the newest run to stop; return its token, or None if there is none to ask. To ask again changes nothing.

    A run that has failed is asked, too: a supervisor that waits to start it again obeys that.

    Parameters
    ----------
    location : CheckpointLocation
    driver : str, optional
        Only if the run is this driver's.

    Raises
    ------
    FencedError
        ``REWIND_NOT_DONE``, ``LOCATION_MOVED_ON``
    JournalError
    """
    journal = location.journal()
    while True:
        ledger = journal.load()
        run = ledger.newest_run
        if run is None or run.ended == EntryKind.STOPPED or driver not in (None, run.driver):
            return None
        if ledger.stop_asked:
            return run.token
        try:
            journal.append(EntryKind.REQUEST, {"what": "stop", "run": run.token}, _of_newest(run.token))
        except FencedError as fenced:
            if fenced.condition != "RUN_SUPERSEDED":
                raise
            continue  # another run since it was looked at
        return run.token


def _of_newest(token: int) -> Judge:
    def judge(ledger: Ledger) -> None:
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        if newest_run(ledger).token != token:
            raise superseded(token, ledger)

    return judge


def end_run(location: CheckpointLocation) -> bool:
    """Journal that the newest run has ended, if it has left nothing open that the journal knows; without its sink.

    Returns
    -------
    bool
        False if it can't be said, or was said already.
    """
    journal = location.journal()
    run = journal.load().newest_run
    if run is None or run.ended:
        return False
    try:
        journal.append(EntryKind.STOPPED, {"run": run.token}, may_stop(run.token))
    except FencedError:
        return False
    return True
