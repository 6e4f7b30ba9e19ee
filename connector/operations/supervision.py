"""The loop around a query's lives: a failure, what recovery it needs, the wait for the next start; in the end nothing is open.

There is one such loop. `supervise` runs it in the user's program, ``barrier run`` around whole driver programs; in a program
of ``barrier run``, `supervise` has one life only. systemd or Kubernetes can be the loop, too, with ``barrier recover`` before
each start.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping

from tenacity import Retrying, retry_if_exception, wait_fixed

from connector.operations.health import Health
from connector.operations.recovery import Upkeep, recover
from connector.operations.signals import StopWish
from connector.operations.stopping import FinalCheckpoint, Standing, end_run, standing
from connector.spark.location import CheckpointLocation
from transactional.clock import Clock, Deadline, Pace
from transactional.errors import TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.ledger import Ledger
from transactional.metadata import EntryKind
from transactional.restart import Restarts, RestartStrategy
from transactional.secrets import without_named_secrets

__all__ = ["LOOK_SECONDS", "Supervision", "record_restart"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""Between two looks at what lives."""

JOURNAL_SECONDS = 1.0
"""Between two looks into a journal for a stop that was asked for from outside: one listing of a folder."""

END_SECONDS = 10.0
"""How long an end is tried again that a store which does not answer prevents."""

AGAIN_SECONDS = 1.0
"""Between two such tries."""


class Supervision:
    """One life after the other, of one or several queries.

    Parameters
    ----------
    by : str
        Who starts them again, in their journals.
    strategy : RestartStrategy
    given : Mapping[str, str]
        Options of their sinks that journals do not keep.
    single_driver : bool
        As in `Upkeep`.
    say : Callable[[str], None]
        Takes sentences for people.
    wish : StopWish
    health : Health
    clock : Clock
    chance : Callable[[], float]
        Numbers at random from 0 to 1.

    Attributes
    ----------
    locations : dict[str, CheckpointLocation]
        Of all queries that were met, by path.
    """

    def __init__(
        self,
        by: str,
        strategy: RestartStrategy,
        given: Mapping[str, str],
        single_driver: bool,
        say: Callable[[str], None],
        wish: StopWish,
        health: Health,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.locations: dict[str, CheckpointLocation] = {}
        self.wish = wish
        self.say = say
        self.health = health
        self.clock = clock
        self._by = by
        self._restarts = Restarts(strategy, clock, chance)
        self._drivers: set[str] = set()
        self._upkeep = Upkeep(given, self._drivers, single_driver)
        self._before: dict[str, int] = {}  # the newest run of each location when a life began, if known
        self._silent: dict[str, str] = {}  # why a location's journal does not answer
        self._pace = Pace(JOURNAL_SECONDS, clock)

    def run(self, live: Callable[[], Failure | None]) -> Failure | None:
        """Run one life after the other.

        Parameters
        ----------
        live : Callable[[], Failure or None]
            One life, until it ends or was stopped: None if it ended well.

        Returns
        -------
        Failure or None
            None if the queries were stopped well or have ended by themselves, else the last failure.

        Raises
        ------
        TwoPhaseCommitError
            What a rewind, or the end of a query, raised.
        """
        failure: Failure | None = None
        while not self.wish.asked():
            self._restarts.began()
            self._before.clear()
            for location in self.locations.values():
                self._note_run(location)
            failure = live()
            if failure is None or failure.remedy is Remedy.STOPPED:
                break
            if self.wish.asked():
                self.say(f"failed while it was being stopped: {failure.text}")
            elif not self._prepare_restart(failure):
                return failure
        with self.health.during("stopping"):
            self._end(whole=failure is not None or self.wish.asked())
        return None

    # -- what lives -------------------------------------------------------------------------------------------------

    def meet(self, location: CheckpointLocation, driver: str | None) -> None:
        """Take up that a query runs there, in that driver."""
        if driver is not None:
            self._drivers.add(driver)
        if location.path not in self.locations:
            self.locations[location.path] = location
            self._note_run(location)

    def final_checkpoint(self, location: CheckpointLocation) -> FinalCheckpoint:
        """Return the end of a query that runs, to be asked for."""
        return FinalCheckpoint(location, self._upkeep, self._look, self.clock)

    def listen(self) -> None:
        """Take the wish of ``barrier stop`` from the journals, now and then: an idle query would not see it."""
        if not self.wish.asked() and self._pace.due():
            found = [self._look(location) for location in self.locations.values()]
            if found and all(each and each.ledger.stop_asked and each.driver in self._drivers for each in found):
                self.wish.request()

    def _note_run(self, location: CheckpointLocation) -> None:
        found = self._look(location)
        if found is not None:
            self._before[location.path] = found.run

    def _look(self, location: CheckpointLocation) -> Standing | None:
        """Return how far the query is; None if its journal does not answer now, which is said once."""
        try:
            found = standing(location)
        except (TwoPhaseCommitError, OSError) as problem:
            why = str(problem)
            if self._silent.get(location.path) != why:
                self.say(f"{location.path} can't be looked at now: {why}")
            self._silent[location.path] = why
            return None
        if self._silent.pop(location.path, None) is not None:
            self.say(f"{location.path} can be looked at again")
        return found

    # -- after a failure --------------------------------------------------------------------------------------------

    def _prepare_restart(self, failure: Failure) -> bool:
        """Do what the next life needs, and wait for it; return False if there is to be none."""
        self.health.failed(failure)
        delay = self._restarts.failed() if failure.remedy is not Remedy.NONE else None
        if delay is None:
            why = "no restart mends this" if failure.remedy is Remedy.NONE else "the restart strategy gives up"
            self.say(f"{why}, after {self._restarts.number} restarts: {failure.text}")
            return False
        number = self._restarts.number
        self.say(f"restart {number} in {delay:.1f} s: {failure.text}")
        for location in self.locations.values():
            rewound = self._needs_rewind(location, failure) and self._go_back(location)
            record_restart(location, self._by, number, delay, failure, rewound)
        self.health.tell("waiting", driver=None, restarts=number)
        deadline, pace = Deadline(delay, self.clock), Pace(JOURNAL_SECONDS, self.clock)
        while not self.wish.asked():
            waited = deadline.passed()
            if (pace.due() or waited) and self._all_were_stopped():
                self.wish.request()  # by `barrier stop`
            if waited:
                break
            self.health.beat()
            self.clock.sleep(min(LOOK_SECONDS, deadline.left()))
        return True

    def _needs_rewind(self, location: CheckpointLocation, failure: Failure) -> bool:
        found = None if failure.remedy is Remedy.REWIND else self._look(location)
        return failure.remedy is Remedy.REWIND or (found is not None and found.ledger.rewinding is not None)

    def _go_back(self, location: CheckpointLocation) -> bool:
        """Recover what a start can't; all else a start does by itself, without options that the journal does not keep."""
        try:
            with self.health.during("rewinding"):
                done = recover(location, self._upkeep, go_back=True)
        except (TwoPhaseCommitError, OSError) as problem:
            if failure_of(problem).remedy is Remedy.NONE:
                raise
            self.say(f"the rewind is not done, and tried again with the next restart: {problem}")
            return False
        if done.batch is not None:
            self.say(f"{location.path}: {done}")
        return done.batch is not None

    def _all_were_stopped(self) -> bool:
        stopped = [self._was_stopped(location) for location in self.locations.values()]  # looks at each
        return bool(stopped) and all(stopped)

    def _was_stopped(self, location: CheckpointLocation) -> bool:
        """Return whether the life that failed was asked to stop, or what it left was ended: that is to stay so."""
        found = self._look(location)
        if found is None:
            return False
        if location.path not in self._before:
            # The run before our drivers' first of this life can't be told any more. Of drivers that have no run in the
            # journal no stop can be told from one of before their time, and counts for nothing.
            ours = [token for driver, token in found.drivers.items() if driver in self._drivers]
            self._before[location.path] = max(ours) - 1 if ours else found.run
        return found.ledger.stop_asked or (found.stopped and found.run > self._before[location.path])

    # -- the end ----------------------------------------------------------------------------------------------------

    def _end(self, whole: bool) -> None:
        """Leave nothing open; no driver is left, or no query runs in it.

        Parameters
        ----------
        whole : bool
            Also what a task may have left of a query that has committed everything; one that has ended by itself did not
            leave such.
        """
        if whole and not self.locations:
            self.say("no query was planned: what an earlier program may have left open is open until the next start")
        problems: list[Exception] = []
        for location in self.locations.values():
            deadline = Deadline(END_SECONDS, self.clock)
            again = Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_fixed(AGAIN_SECONDS),
                stop=lambda _, deadline=deadline: deadline.passed(),  # type: ignore[misc]
                sleep=self.clock.sleep,
                reraise=True,
            )
            try:
                again(self._end_one, location, whole)
            except Exception as problem:  # noqa: BLE001 - the others are to be ended, too
                self.say(f"{location.path} is not ended{self._open(location)}: {without_named_secrets(str(problem))}")
                problems.append(problem)
        if problems:
            raise problems[0]

    def _open(self, location: CheckpointLocation) -> str:
        found = self._look(location)
        if found is None or found.clean:
            return ""
        return f" (prepared: micro-batches {found.prepared}; decided: checkpoints {[c.id for c in found.ledger.unsettled()]})"

    def _end_one(self, location: CheckpointLocation, whole: bool) -> None:
        """End what a driver of ours has left, or one that is gone; leave alone what another runs."""
        found = standing(location)
        if found.run == 0 or found.stopped or (found.clean and not whole):
            return
        if found.ledger.moved or _is_anothers(found, self._drivers, self._upkeep.is_alive(found.process)):
            owner = f"run {found.run} of another driver has taken it over"
            self.say(
                f"{location.path}: {'the query goes on elsewhere' if found.ledger.moved else owner}; nothing is ended"
            )
            return
        try:
            recover(location, self._upkeep)
        except TwoPhaseCommitError as problem:
            if not found.clean or not end_run(location):
                raise
            self.say(f"everything is committed; what a task may have left open was not looked for: {problem}")


def _is_anothers(found: Standing, drivers: Collection[str], alive: bool | None) -> bool:
    """Return whether a driver that is not ours runs the query; of one that can't be seen, whether it came after ours."""
    if found.driver in drivers or alive is False:
        return False
    return alive is True or found.clean or any(driver in drivers for driver in found.drivers)


def _may_pass(problem: BaseException) -> bool:
    return isinstance(problem, TwoPhaseCommitError) and failure_of(problem).remedy is Remedy.RESTART


def record_restart(
    location: CheckpointLocation, by: str, number: int, delay: float, failure: Failure, rewound: bool
) -> None:
    """Leave in the journal why the query is started again; nothing if no run is in it yet.

    A journal that does not answer now, perhaps because of the same outage, does not keep the query down.
    """
    body = {
        "by": by,
        "number": number,
        "delay": round(delay, 3),
        "condition": failure.condition,
        "reason": failure.text,
        "rewound": rewound,
    }
    try:
        journal = location.journal()
        if journal.load().newest_run is not None:
            journal.append(EntryKind.RESTARTED, body, _anyone)
    except (TwoPhaseCommitError, OSError) as problem:
        log.warning("why the query is started again is not in its journal: %s", problem)


def _anyone(ledger: Ledger) -> None:
    """It binds nothing."""
