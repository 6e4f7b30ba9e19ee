"""The loop that restarts a failed query. If needed, it rewinds the query first. After a stop, no transaction stays open.

`supervise` runs this loop in the user's program. If systemd or Kubernetes restarts the whole program instead, ``barrier
recover`` should run before each start.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenacity import Retrying, retry_if_exception, wait_fixed

from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover
from connector.operations.signals import StopRequest
from connector.operations.stopping import FinalCheckpoint, Standing, end_run, standing
from transactional.clock import Clock, Deadline, Pace, SystemClock
from transactional.entries import Restarted
from transactional.errors import TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.ledger import Ledger
from transactional.restart import Restarts, RestartStrategy
from transactional.secrets import without_named_secrets

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""Seconds between two checks of the running query."""

JOURNAL_SECONDS = 1.0
"""Seconds between two reads of the journal, to find requests of ``barrier stop``. Each read lists one folder."""

SILENT_SECONDS = 60.0
"""Seconds between two warnings that the journal can't be read."""

END_SECONDS = 10.0
"""The number of seconds for which the final recovery is repeated if a store does not answer."""

AGAIN_SECONDS = 1.0
"""Seconds between two attempts at the final recovery."""


@dataclass
class Supervision:
    """The restart loop of a query. Each start of the query begins a new *life*, which lasts until the query ends."""

    by: str  # The supervisor's name, which the journal records with each restart.
    strategy: RestartStrategy
    given: Mapping[str, str]  # Sink options that the journal does not keep (secrets).
    say: Callable[[str], None]  # Called with each message for the user.
    single_driver: bool = False  # See `Upkeep`.
    # The stop request, the clock, and a function that returns random numbers from 0 to 1.
    wish: StopRequest = field(default_factory=StopRequest)
    clock: Clock = field(default_factory=SystemClock)
    chance: Callable[[], float] = random.random
    location: CheckpointLocation | None = None  # The query's checkpoint location; None until it is known.

    def __post_init__(self) -> None:
        self._restarts = Restarts(self.strategy, self.clock, self.chance)
        self._drivers: set[str] = set()
        self._upkeep = Upkeep(self.given, self._drivers, self.single_driver, shared=True)
        self._seen: int | None = None  # the newest run when the journal was last read
        self._since: int | None = None  # the newest run when the last life began
        self._looks, self._complaints = Pace(JOURNAL_SECONDS, self.clock), Pace(SILENT_SECONDS, self.clock)

    def run(self, live: Callable[[], Failure | None]) -> Failure | None:
        """Call `live` until the query ends or is stopped; then end its open transactions, and return None.

        If the query fails and must not be restarted, return its failure, and leave its transactions as they are.
        """
        failure: Failure | None = None
        while not self.wish.asked():
            self._restarts.began()
            self._since = self._seen
            failure = live()
            if failure is None or failure.remedy is Remedy.STOPPED:
                break
            if self.wish.asked():
                self.say(f"the query failed while it was being stopped: {failure.text}")
            elif not self._prepare_restart(failure):
                return failure
        self._end(whole=failure is not None or self.wish.asked())
        return None

    # -- while it runs ----------------------------------------------------------------------------------------------

    def meet(self, location: CheckpointLocation, driver: str | None) -> None:
        """Record the location of the query and, unless `driver` is None, the driver in which it runs."""
        if driver is not None:
            self._drivers.add(driver)
        if self.location is None:
            self.location = location
            if self._look(location) is not None:
                self._since = self._seen

    def final_checkpoint(self, location: CheckpointLocation) -> FinalCheckpoint:
        """Return a `FinalCheckpoint` that asks the running query to stop."""
        return FinalCheckpoint(location, self._upkeep, self._look, self.clock)

    def listen(self, now: bool = False) -> None:
        """Read the journal, at most once a second unless `now` is True, and obey a request of ``barrier stop``."""
        if (self._looks.due() or now) and self.location is not None and self._was_stopped(self.location):
            self.wish.request()

    def _was_stopped(self, location: CheckpointLocation) -> bool:
        """Return whether the query was asked to stop, or has stopped since it was last started."""
        found = self._look(location)
        if found is None or found.run is None:
            return False
        ours = [token for token, run in found.ledger.runs.items() if run.driver in self._drivers]
        if self._since is None:
            self._since = max(ours, default=found.run.token)
        asked = found.ledger.stop_asked and found.run.driver in self._drivers
        return asked or (found.stopped and found.run.token > self._since)

    def _look(self, location: CheckpointLocation) -> Standing | None:
        """Return the progress of the query; None if its journal can't be read now."""
        try:
            found = standing(location)
        except (TwoPhaseCommitError, OSError) as problem:
            if self._complaints.due():
                self.say(f"the journal of {location.path} can't be read now: {problem}")
            return None
        self._seen = found.run.token if found.run else 0
        return found

    # -- after a failure --------------------------------------------------------------------------------------------

    def _prepare_restart(self, failure: Failure) -> bool:
        """Rewind the query if needed, and wait for the delay before the restart. Return False if it must not be restarted."""
        delay = self._restarts.failed() if failure.remedy is not Remedy.NONE else None
        number = self._restarts.number
        if delay is None:
            why = (
                "a restart can't help"
                if failure.remedy is Remedy.NONE
                else "the restart strategy allows no more restarts"
            )
            self.say(f"the query is not restarted: {why}, after {number} restarts: {failure.text}")
            return False
        self.say(f"restart {number} in {delay:.1f} s: {failure.text}")
        if self.location is not None:
            record_restart(self.location, self.by, number, delay, failure, self._go_back(self.location, failure))
        deadline = Deadline(delay, self.clock)
        while not self.wish.asked():
            waited = deadline.passed()
            self.listen(now=waited)
            if waited:
                break
            self.clock.sleep(min(LOOK_SECONDS, deadline.left()))
        return True

    def _go_back(self, location: CheckpointLocation, failure: Failure) -> bool:
        """Rewind the query if its failure or an unfinished rewind requires it; return whether that was done.

        Every other recovery is left to the next start, because a start has all options, even those that the journal lacks.
        """
        if failure.remedy is not Remedy.REWIND:
            found = self._look(location)
            if found is None or found.ledger.rewinding is None:
                return False
        try:
            done = recover(location, self._upkeep, go_back=True)
        except (TwoPhaseCommitError, OSError) as problem:
            if failure_of(problem).remedy is Remedy.NONE:
                raise
            self.say(f"the rewind failed; the next restart tries it again: {problem}")
            return False
        if done:
            self.say(f"{location.path}: {done}")
        return bool(done)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _end(self, whole: bool) -> None:
        """End all unfinished transactions of the query. Call this only when the query is not running.

        If `whole` is False (the query ended by itself) and every micro-batch is settled, change nothing. Otherwise,
        also abort the open transactions of failed tasks.
        """
        location = self.location
        if location is None:
            if whole:
                self.say("no query was started: transactions of an earlier program may stay open until the next start")
            return
        deadline = Deadline(END_SECONDS, self.clock)
        again = Retrying(
            retry=retry_if_exception(lambda problem: failure_of(problem).remedy is Remedy.RESTART),
            wait=wait_fixed(AGAIN_SECONDS),
            stop=lambda _: deadline.passed(),
            sleep=self.clock.sleep,
            reraise=True,
        )
        try:
            again(self._end_one, location, whole)
        except Exception as problem:
            self.say(f"transactions of {location.path} could not be ended: {without_named_secrets(str(problem))}")
            raise

    def _end_one(self, location: CheckpointLocation, whole: bool) -> None:
        """Try once to end the unfinished transactions. If another driver owns the query and may run, change nothing."""
        found = standing(location)
        run = found.run
        if run is None or found.stopped or (found.clean and not whole):
            return
        alive = False if run.driver in self._drivers else self._upkeep.is_alive(run.process)
        ours = any(each.driver in self._drivers for each in found.ledger.runs.values())
        if found.ledger.moved or alive or (alive is None and (found.clean or ours)):
            owner = f"run {run.token} of another driver has taken over the query"
            why = "the query was moved to another location" if found.ledger.moved else owner
            self.say(f"{location.path}: {why}, so its transactions are not ended here")
            return
        try:
            recover(location, self._upkeep)
        except TwoPhaseCommitError as problem:
            if found.clean and end_run(location):
                self.say(
                    f"all rows are committed, but the open transactions of failed tasks were not aborted: {problem}"
                )
                return
            self.say(f"{location.path}: micro-batches {found.prepared} are prepared but not committed")
            raise


def record_restart(
    location: CheckpointLocation, by: str, number: int, delay: float, failure: Failure, rewound: bool
) -> None:
    """Write the reason for a restart to the journal, unless the journal has no run yet.

    If the journal can't be written now, perhaps because of the same outage, only log a warning, so that the restart goes
    ahead.
    """
    fact = Restarted(
        by=by,
        number=number,
        delay=round(delay, 3),
        condition=failure.condition,
        reason=failure.text,
        rewound=rewound,
    )
    try:
        journal = location.journal()
        if journal.load().newest_run is not None:
            journal.append(fact, _anyone)
    except (TwoPhaseCommitError, OSError) as problem:
        log.warning("the reason for this restart could not be written to the journal: %s", problem)


def _anyone(ledger: Ledger) -> None:
    """Accept every ledger, so that the entry is always written."""
