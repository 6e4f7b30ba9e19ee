"""One query run to its end, however often its driver is killed on the way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from integration.demo.driver import Driver, DriverFailed
from integration.demo.killer import FaultPoint, Killer
from integration.demo.micro_batches import MicroBatches
from integration.demo.output import OutputTopic, RowCounter
from integration.demo.progress import ProgressBoard

__all__ = ["Trial", "TrialResult"]

LOOK_SECONDS = 0.01
"""Between two looks at the checkpoint location: a micro-batch takes some hundred times that."""

SILENCE_SECONDS = 180.0
"""A driver that commits no micro-batch for so long hangs. Its start and its first batch take 10 s on two free cores."""


@dataclass(frozen=True)
class TrialResult:
    """What a trial cost."""

    kills: int
    batches: int
    seconds: float


class Trial:
    """A query, its checkpoint location and who kills it.

    Parameters
    ----------
    name : str
        For people, and for its files in `folder`.
    folder : Path
    source : str
        The input topic.
    output : OutputTopic
    guarantee : str
        ``deliveryGuarantee``.
    rows_per_batch : int
        ``maxOffsetsPerTrigger``.
    options : Mapping[str, str], optional
        More of the sink; what begins with ``kafka.`` is the source's, too.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        source: str,
        output: OutputTopic,
        guarantee: str,
        rows_per_batch: int,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.location = folder / f"{name}-checkpoint"
        self.batches = MicroBatches(self.location)
        self._scratch = folder / f"{name}-scratch"
        self._output = output
        self._arguments = [
            *("--servers", output.servers),
            *("--input", source),
            *("--output", output.name),
            *("--location", str(self.location)),
            *("--guarantee", guarantee),
            *("--rows-per-batch", str(rows_per_batch)),
            *(f"--option={key}={text}" for key, text in (options or {}).items()),
        ]

    def run(self, killer: Killer, board: ProgressBoard) -> TrialResult:
        """Start a driver, and another after every kill, until one ends by itself.

        Raises
        ------
        DriverFailed
            One ended with an error, hung, or the query ended before all kills were done.
        """
        begin = time.monotonic()
        with RowCounter(self._output) as counter:
            while (kill := self._drive(killer, board, counter)) is not None:
                board.kill(kill)
            board.rows(counter.rows)
        if not killer.done:
            raise DriverFailed(f"the query ended after {killer.kills} kills, before the next one's moment had come")
        return TrialResult(killer.kills, self.batches.count(), time.monotonic() - begin)

    def _drive(self, killer: Killer, board: ProgressBoard, counter: RowCounter) -> str | None:
        """Run one driver; return what killed it, or None when the query has ended."""
        faults = killer.folder if isinstance(killer, FaultPoint) else None
        driver = Driver(self._arguments, self._scratch, self.log, faults)
        try:
            count, since = self.batches.count(), time.monotonic()
            while True:
                alive = driver.alive  # before the strike: whom a fault point killed is dead, and no failure
                kill = killer.strike(driver)
                if kill is not None:
                    return kill
                if not alive:
                    break
                board.rows(counter.rows)
                if self.batches.count() != count:
                    count, since = self.batches.count(), time.monotonic()
                elif time.monotonic() - since > SILENCE_SECONDS:
                    raise DriverFailed(f"{self.name}: no micro-batch in {SILENCE_SECONDS:.0f} s.\n{driver.log_tail()}")
                time.sleep(LOOK_SECONDS)
            if driver.exit_code != 0:
                raise DriverFailed(f"{self.name}: the driver ended with {driver.exit_code}.\n{driver.log_tail()}")
            return None
        finally:
            driver.kill()
