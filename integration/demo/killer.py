"""When a driver is killed: at random moments of random micro-batches, or at a fault point."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from integration.demo.driver import Driver
from integration.demo.micro_batches import MicroBatches

__all__ = ["FaultPoint", "Killer", "RandomMoments"]

FIRST_GUESS_SECONDS = 0.8
"""How long a micro-batch takes, until one was seen from its beginning to its end."""


class Killer(Protocol):
    """Looks at a running driver again and again."""

    kills: int

    @property
    def done(self) -> bool:
        """Whether all kills are done."""

    def strike(self, driver: Driver) -> str | None:
        """Kill the driver if the moment has come, and say what was killed; else return None."""


class RandomMoments:
    """Kills in the middle of micro-batches: their offsets are written, their commit is not.

    Which micro-batches, and how far into them, is drawn from the seed. One that ends before its moment gets away, and
    the next is tried.

    Parameters
    ----------
    random : Random
    kills : int
        How many.
    batches : int
        How many micro-batches there will be, about; the last is left alone, as it may be short.
    seen : MicroBatches
    clock : Callable[[], float]
        Monotonic seconds.
    """

    def __init__(
        self,
        random: Random,
        kills: int,
        batches: int,
        seen: MicroBatches,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._random = random
        self._seen = seen
        self._clock = clock
        # Not the first, where most of the time goes into starting Python, nor the last three: what got away needs room.
        self._targets = sorted(random.sample(range(1, batches - 3), kills))
        self._typical = FIRST_GUESS_SECONDS
        self._batch: int | None = None
        self._since = 0.0
        self._moment = 0.0
        self._spared = -1
        self.kills = 0

    @property
    def done(self) -> bool:
        """See `Killer`."""
        return self.kills == len(self._targets)

    def strike(self, driver: Driver) -> str | None:
        """See `Killer`."""
        now = self._clock()
        batch = self._seen.running()
        if batch != self._batch:
            if self._batch is not None and self._batch > self._spared:
                self._typical = now - self._since
            self._batch, self._since = batch, now
            self._moment = self._random.random() * self._typical
        if self.done or batch is None or batch <= self._spared or batch < self._targets[self.kills]:
            return None
        if now - self._since < self._moment:
            return None
        driver.freeze()
        if self._seen.committed(batch):
            driver.thaw()
            return None
        driver.kill()
        self.kills += 1
        # Its replay is left alone: from here nobody sees when the new driver takes it up.
        self._spared = batch
        return f"micro-batch {batch}, {now - self._since:.2f} s in, {self._seen.reached(batch)}"


class FaultPoint:
    """Kills at one place in the code, by its name; see `transactional.faults`."""

    def __init__(self, folder: Path, point: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder  # Goes to the driver; made here.
        self._point = point
        self._armed = folder / f"{point}.1"
        self._armed.write_text("kill-jvm")
        self.kills = 0

    @property
    def done(self) -> bool:
        """See `Killer`."""
        return self.kills == 1

    def strike(self, driver: Driver) -> str | None:
        """See `Killer`. The point has killed the JVM itself; this ends what is left."""
        if self.done or not self._armed.with_name(self._armed.name + ".fired").exists():
            return None
        driver.kill()
        self.kills += 1
        return f"at the fault point {self._point}"
