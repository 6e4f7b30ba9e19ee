"""A claimed copy beside its origin, frozen and thawed at random: the origin stops for good, the output is exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from connector.savepoints.manifest import read
from integration.driver_process import Place, wait_until
from integration.jobs import Job
from integration.test_two_drivers import Schedule, play_ten
from integration.warm_driver import WarmDriver

AT_OLD = frozenset({"LOCATION_MOVED_ON", "REWIND_NOT_DONE", "LOGS_AHEAD"})
"""With what the origin may end, beside what ends one of two drivers."""

TRIES = 12
"""At a claim: where the origin has committed something after the savepoint, it is refused."""

AT_LAST = 3
"""The last of these tries: the origin stays frozen until its location is claimed, so it can commit nothing."""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WarmDriver, WarmDriver]]:
    folder = tmp_path_factory.mktemp("drivers")
    with WarmDriver(folder, "origin") as first, WarmDriver(folder, "copy") as second:
        yield first, second


@dataclass
class Claim(Schedule):
    """The first driver runs the origin, the second what a savepoint of it was restored to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.origin = self.job
        self.copy = replace(self.job, location=str(self.folder / "copy"))
        self.claimed = False
        self.met = False
        """Whether the origin's query was there, running or standing still, when its location was claimed."""

    expected = Schedule.expected | AT_OLD

    def job_of(self, driver: WarmDriver) -> Job:
        """See `Schedule`."""
        return self.origin if driver is self.drivers[0] else self.copy

    def workers(self) -> Sequence[WarmDriver]:
        """See `Schedule`."""
        return self.drivers[1:]

    def play(self) -> None:
        """The origin runs, is frozen anywhere, is claimed, and both are disturbed until the origin has stopped."""
        origin, _ = self.drivers
        self.do(origin, "start")
        origin_place = self.place
        for number in range(TRIES):
            if not origin.running:
                self.do(origin, "start")
            self.let_them()
            self.reach(origin_place, number)
            at_last = number >= TRIES - AT_LAST
            if origin.running:
                self.do(origin, self.chance.choice(["freeze", "freeze in a rename", *(() if at_last else ("stand",))]))
            self.let_them()
            self.claimed = self.claim(self.folder / f"savepoint-{number}", 0 if at_last else 0.3)
            if origin.frozen:
                self.do(origin, "thaw")
            self.do(origin, "go on")
            if self.claimed:
                break
            self.look()
        assert self.claimed, str(self)
        self.place, self.job = Place(Path(self.copy.location), self.place.output), self.copy
        self.ledger = self.place.ledger()  # its journal begins with a snapshot
        super().play()
        self.origin_stays_closed()

    def reach(self, place: Place, batch: int) -> None:
        """So many micro-batches of the origin, or its end."""
        origin, _ = self.drivers
        wait_until(lambda: place.committed() >= batch or self.ended(origin), f"a micro-batch\n{self}")

    def claim(self, savepoint: Path, thaws: float) -> bool:
        """Take a savepoint, let the origin go on or not, and claim it; False where it had written more meanwhile."""
        origin, _ = self.drivers
        took, _ = self.command("savepoint", "take", self.origin.location, str(savepoint), "--newest")
        if not took:
            return False
        if origin.frozen and self.chance.random() < thaws:
            self.do(origin, "thaw")
            self.let_them()
        self.met = origin.running
        checkpoint = str(read(str(savepoint)).checkpoint)
        rewound, said = self.command("rewind", self.origin.location, "--to", checkpoint, "--query-stopped", "--yes")
        if said in ("REWIND_NOT_DONE", "LOCATION_BUSY"):
            self.command("recover", self.origin.location, "--query-stopped")
        if rewound and origin.frozen and self.chance.random() < thaws:
            self.do(origin, "thaw")
            self.let_them()
        return self.command("restore", str(savepoint), self.copy.location, "--claim", "--yes")[0]

    def command(self, *arguments: str) -> tuple[bool, str]:
        """``barrier ...``: whether it was done, and what it said."""
        self.said.append(f"barrier {' '.join(arguments[:2])}")
        command = [sys.executable, "-m", "connector.cli", *arguments, "--output", "json"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            said = json.loads(found.stdout)
        except ValueError:
            raise AssertionError(f"{found.stdout}{found.stderr}\n{self}") from None
        told = str(said.get("condition") or said.get("status"))
        self.said[-1] += f": {told}"
        return found.returncode == 0, told

    def origin_stays_closed(self) -> None:
        """Who starts it again is told where the query has gone."""
        origin, _ = self.drivers
        if origin.running:
            wait_until(lambda: self.ended(origin), f"the end of the origin\n{self}")
        self.do(origin, "start")
        wait_until(lambda: self.ended(origin), f"the end of the origin\n{self}")
        assert "LOCATION_MOVED_ON" in self.errors[-1], self.errors[-1]
        assert self.copy.location in self.errors[-1]


@pytest.mark.matrix
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_fifty_schedules_of_a_claimed_copy_beside_its_origin_write_every_row_once(
    drivers: tuple[WarmDriver, WarmDriver], tmp_path: Path, first: int
) -> None:
    """Ten at a time."""
    claims: list[Claim] = []

    def make(seed: int, folder: Path) -> Claim:
        claims.append(Claim(seed, folder, drivers))
        return claims[-1]

    seen = play_ten(first, tmp_path, make)
    assert len(claims) == 10
    assert seen["LOCATION_MOVED_ON"] >= 10, "an origin was started again, and nobody stopped it"
    assert sum(claim.met for claim in claims) >= 3, "the copies hardly met their origins"
