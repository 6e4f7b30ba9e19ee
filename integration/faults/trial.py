"""One trial: three brokers, each at a host of its own, a driver, perhaps a database, and faults that a seed draws."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.broker import Cluster
from integration.demo.driver import Driver
from integration.driver_process import Place, wait_until
from integration.faults.databases import Mariadb, Postgresql
from integration.faults.nemesis import DEEDS, DRIVER_HOST, KILLS, Nemesis
from integration.faults.network import Network
from integration.faults.query import Query, write_settings
from integration.faults.transfers import make_transfers
from integration.faults.workloads import Workload, make_workload
from integration.jobs import QUICK_JVM
from integration.preloaded import built

__all__ = ["Plan", "Result", "Stage", "Strike", "run"]

RECOVERY_SECONDS = 240.0
"""In which a query has to go on after a fault: a session of Spark's takes 10 to 20 s to start on a busy machine."""

CLOCK_JUMPS = Path(__file__).with_name("clock_jumps.c")

BROKER_DISK, LOCATION_DISK = "600m", "200m"

PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "4000",
    "controlled.shutdown.max.retries": "1",
    "log.segment.bytes": "16777216",
}


@dataclass(frozen=True)
class Plan:
    """What one trial does."""

    seed: int
    workload: str  # One of `integration.faults.workloads.WORKLOADS`.
    interval: bool
    stateful: bool
    deeds: Sequence[str]  # Of `DEEDS` and `KILLS`, in order.

    @classmethod
    def of(cls, seed: int, workload: str, deeds: int, *, kills: bool) -> Plan:
        """Draw a plan: kills only, or every kind of fault."""
        chance = random.Random(f"plan {seed} {workload}")
        kinds = list(KILLS) if kills else [*DEEDS, "kill broker", "kill driver", "kill database"]
        if workload not in ("postgresql", "mysql", "multi"):
            kinds = [kind for kind in kinds if "database" not in kind]
        if workload == "mysql":
            kinds = [kind for kind in kinds if "fail over" not in kind]
        drawn: list[str] = []
        while len(drawn) < deeds:  # each kind once before any comes twice
            drawn += chance.sample(kinds, len(kinds))
        state = chance.random() < 0.5 and workload not in ("multi", "chain", "transfers")
        interval = chance.random() < 0.5 and workload != "transfers"
        return cls(seed, workload, interval, state, drawn[:deeds])


@dataclass
class Strike:
    """A fault, and what came of it."""

    deed: str
    at: str  # The kind of the journal's newest entry then.
    held: float  # Seconds that it lasted.
    # Seconds from its end, or from a kill, to the next settled checkpoint of the last query; None if it never came.
    recovery: float | None = None


@dataclass
class Result:
    """How a trial went."""

    plan: Plan
    strikes: list[Strike] = field(default_factory=list)
    rows: int = 0
    wrong: list[str] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0


class Stage:
    """What trials share: hosts, brokers, databases that were started. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._databases: dict[str, Any] = {}

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network(DRIVER_HOST))
            data = self.folder / "brokers"
            self.disks = {
                f"broker-{node}": stack.enter_context(_disk(data / f"node-{node}", BROKER_DISK)) for node in (1, 2, 3)
            }
            self.disks["location"] = stack.enter_context(_disk(self.folder / "locations", LOCATION_DISK))
            self.cluster = stack.enter_context(Cluster(3, PROPERTIES, data, network=self.network))
            self.clock, self.clock_library = self.folder / "clock", built(CLOCK_JUMPS, self.folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def database(self, kind: str) -> Any:
        """Return the database of a workload, started once, reached from the driver's host."""
        kind = "postgresql" if kind == "multi" else kind
        if kind not in ("postgresql", "mysql"):
            return None
        if kind not in self._databases:
            host = self.network.address(0)
            made: Any = Postgresql(host, self.folder) if kind == "postgresql" else Mariadb(host)
            self._databases[kind] = self._stack.enter_context(made)
        return self._databases[kind]


class _Trial:
    """One trial's world: see `integration.faults.nemesis.World`."""

    def __init__(self, stage: Stage, plan: Plan, told: Callable[[Strike], None]) -> None:
        self._stage, self.plan, self._told = stage, plan, told
        self.cluster, self.network, self.clock, self.disks = stage.cluster, stage.network, stage.clock, stage.disks
        self.database = stage.database(plan.workload)
        self.name = f"{plan.workload}-{plan.seed}-{uuid.uuid4().hex[:4]}"
        self.folder = stage.folder / "trials" / self.name
        self.folder.mkdir(parents=True)
        self.locations = stage.disks["location"] / self.name
        self.locations.mkdir()
        self.workload = self._made()
        self.topic = next(iter(self.workload.topics), self.workload.source)
        self.result = Result(plan)
        self.driver: Driver
        self._chance = random.Random(f"strikes {plan.seed}")

    def _made(self) -> Workload:
        if self.plan.workload == "transfers":
            return make_transfers(self.cluster, self.locations, self.name)
        given = (self.plan.workload, self.cluster, self.locations, self.database, self.name)
        return make_workload(*given, interval=self.plan.interval, stateful=self.plan.stateful)

    def run(self) -> Result:
        """Run the trial; leave nothing running, and the faults healed."""
        began = time.monotonic()
        self.clock.write_bytes(bytes(8))
        write_settings(self.workload.queries, self.folder / "settings")
        feed = self.workload.feed()
        self._start()
        try:
            self._wait_for_progress(-1, RECOVERY_SECONDS, "the first checkpoint")
            nemesis = Nemesis(self, self._chance)
            for deed in self.plan.deeds:
                self._strike(nemesis, deed)
            feed.finish()
            self.cluster.wait_until_ready()
            self._drain()
            self.result.wrong += self.workload.wrong()
        except AssertionError as problem:
            self.result.wrong.append(str(problem))
        finally:
            self.network.heal()
            with contextlib.suppress(AssertionError):
                feed.finish()
            self.driver.kill()
            self.result.rows = self.workload.fed()
            self.result.seconds = time.monotonic() - began
        if not self.result.wrong:
            shutil.rmtree(self.locations, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.result

    def _start(self) -> None:
        words = ["--settings", str(self.folder / "settings")]
        more = {
            "LD_PRELOAD": str(self._stage.clock_library),
            "CLOCK_JUMPS": str(self.clock),
            "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        }
        self.driver = Driver(
            words,
            self.folder / "scratch",
            self.folder / "driver.log",
            program="integration.faults.query",
            entrance=self.network.entrance(DRIVER_HOST),
            environment=more,
        )
        self.result.starts += 1

    def _strike(self, nemesis: Nemesis, deed: str) -> None:
        self._wait_a_while(self._chance.uniform(0.5, 4.0))
        before, begun = self._settled(), time.monotonic()
        at = self._newest_entry()
        with nemesis.do(deed):
            done = time.monotonic()
            if deed not in KILLS or deed == "kill broker":
                self._wait_a_while(self._chance.uniform(2.0, 12.0))
        self._look_after()
        ended = time.monotonic()
        strike = Strike(deed, at, ended - done)
        self.result.strikes.append(strike)
        # What was settled while it lasted is no recovery.
        self._wait_for_progress(max(before, self._settled()), RECOVERY_SECONDS, f"recovery from {deed}")
        strike.recovery = time.monotonic() - (begun if deed in KILLS else ended)
        self._told(strike)

    def _wait_a_while(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look_after()
            time.sleep(0.1)

    def _wait_for_progress(self, since: int, seconds: float, what: str) -> None:
        def on() -> bool:
            self._look_after()
            return self._settled() > since

        wait_until(on, f"{what} of {self.name}", seconds)

    def _look_after(self) -> None:
        """Start a driver that has ended, as a platform does; if it ends for a reason that needs a person, say so."""
        if not self.driver.alive:
            self._start_again()

    def _start_again(self) -> None:
        said = self.driver.log.read_text(errors="replace")
        self.driver.kill()
        needy = [line for line in said.splitlines() if line.startswith("NEEDS A PERSON")]
        # Only a platform survives the end of the JVM.
        needy = [line for line in needy if "Py4J" not in line and "ConnectionRefused" not in line]
        assert not needy, f"a person was called: {needy[-1][:1500]}"
        self._start()

    def _settled(self) -> int:
        """The newest settled checkpoint of the last query; -1 if there is none."""
        newest = _place(self.workload.queries[-1]).ledger().completed
        return -1 if newest is None else newest.id

    def _newest_entry(self) -> str:
        return next(reversed(_place(self.workload.queries[-1]).kinds()), "")

    def _drain(self) -> None:
        rows = self.workload.fed()

        def whole() -> bool:
            self._look_after()
            time.sleep(0.5)
            return self.workload.is_whole(rows)

        wait_until(whole, f"all {rows} rows of {self.name}", RECOVERY_SECONDS)
        status = self.driver.stop(RECOVERY_SECONDS)
        said = self.driver.log_tail()
        assert status == 0, f"the driver ended with {status}, when it was asked to stop:\n{said}"
        for query in self.workload.queries:
            ledger = _place(query).ledger()
            assert ledger.unsettled() == [], f"unsettled in {query.location}"
            assert ledger.undecided() == [], f"undecided in {query.location}"


def run(stage: Stage, plan: Plan, told: Callable[[Strike], None]) -> Result:
    """Run a trial; `told` is called after each fault from which the query has recovered."""
    return _Trial(stage, plan, told).run()


def _place(query: Query) -> Place:
    """Return a query's location, to look at its journal alone."""
    return Place(Path(query.location), None)  # type: ignore[arg-type]


@contextmanager
def _disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, in memory: it can be filled."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "barrier", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def stage() -> Iterator[Stage]:
    """A stage in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="barrier-faults-", dir="/tmp"))  # PostgreSQL's own user has to come in
    try:
        with Stage(folder) as made:
            yield made
    finally:
        kept = [path for path in (folder / "trials").glob("*/driver.log") if path.stat().st_size]
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
