"""``python -m integration.transfers``: transfers through three queries that are killed; then every version is read.

Exits with 0 only if the aligned table is right in every version, and the one without alignment is not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from connector.kafka.client.config import ClientConfig
from connector.kafka.sink.injector import Injector
from integration.broker import BrokerError, Cluster
from integration.demo.driver import Driver, DriverFailed
from integration.transfers.book import WAYS
from integration.transfers.judge import Finding, judge

ACCOUNTS, PARTITIONS = 100, 2

PARTS = ("debits", "credits", "tables")

FEED_SECONDS, BARRIER_SECONDS = 0.1, 1.0

ROWS = 20
"""Transfers that are fed at once."""

QUIET_SECONDS, LONGEST_SECONDS = 180.0, 3600.0
"""How long what is left may take when nothing is killed any more; limit of the whole."""

RESTARTS = 20
"""Starts of one driver again after it has ended by itself, as on a machine too busy for Spark to reach its Python workers."""

LINE_SECONDS = 30.0
"""From one line about the progress to the next."""


class Bank:
    """Feeds transfers, and injects barriers behind them."""

    def __init__(self, servers: str, chance: random.Random) -> None:
        self._chance = chance
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.transfers = 0

    def feed(self) -> None:
        """Write some transfers."""
        for number in range(self.transfers, self.transfers + ROWS):
            source, target = self._chance.sample(range(ACCOUNTS), 2)
            amount = self._chance.randint(1, 1000)
            value = f'{{"id":{number},"source":{source},"target":{target},"amount":{amount}}}'
            self._producer.produce("transfers", value, str(number))
        self.transfers += ROWS
        self._producer.flush(30)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo."""
    chosen = _parse(arguments)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="barrier-transfers-"))
    passed = False
    try:
        passed = _run(chosen, console, folder)
    except (BrokerError, DriverFailed) as problem:
        console.print(str(problem), markup=False, highlight=False)
    except KeyboardInterrupt:
        passed = True
        console.print("Interrupted.")
        return 130
    finally:
        if passed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"Logs, checkpoints, tables and the broker's data are kept in {folder}", soft_wrap=True)
    return 0 if passed else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.transfers", description="Checkpoints that agree.")
    parser.add_argument("--checkpoints", type=int, default=200, help="of the aligned query (default: 200)")
    parser.add_argument("--kills", type=int, default=12, help="kill -9 of one of the three drivers (default: 12)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    return parser.parse_args(arguments)


class Trial:
    """The three drivers, and who kills them."""

    def __init__(self, chosen: argparse.Namespace, console: Console, folder: Path, servers: str) -> None:
        self._chosen, self._console, self._folder, self._servers = chosen, console, folder, servers
        self._chance = random.Random(chosen.seed)
        self._drivers: dict[str, Driver] = {}
        self._restarts = dict.fromkeys(PARTS, 0)
        self._begin = time.monotonic()
        self.bank = Bank(servers, self._chance)
        self.kills = 0

    def run(self, injector: Injector) -> None:
        """Feed and kill until there are enough checkpoints and kills, and then wait until every table has all transfers.

        Raises
        ------
        DriverFailed
            One ended by itself again and again, or something hangs.
        """
        try:
            for part in PARTS:
                self._start(part)
            barrier_due, line_due = 0.0, 0.0
            while self.kills < self._chosen.kills or self.versions() <= self._chosen.checkpoints:
                now = time.monotonic()
                self.bank.feed()
                if now >= barrier_due:
                    barrier_due = now + BARRIER_SECONDS
                    injector.inject()
                if now >= line_due:
                    line_due = now + LINE_SECONDS
                    self._say(f"{self.bank.transfers:,} transfers, {self.versions()} versions, kills: {self.kills}")
                self._kill_perhaps()
                self._check(LONGEST_SECONDS, self._begin)
                time.sleep(FEED_SECONDS)
            injector.inject()
            last = time.monotonic()
            while not all(whole_transfers(self._folder, way) == self.bank.transfers for way in WAYS):
                self._check(QUIET_SECONDS, last)
                time.sleep(1.0)
        finally:
            for driver in self._drivers.values():
                driver.kill()

    def versions(self) -> int:
        """How many versions the aligned table has."""
        return len(list((table_of(self._folder, "exactly-once") / "_delta_log").glob("*.json")))

    def _start(self, part: str) -> None:
        words = [part, "--servers", self._servers, "--folder", str(self._folder)]
        scratch, log = self._folder / f"{part}-scratch", self._folder / f"{part}.log"
        self._drivers[part] = Driver(words, scratch, log, program="integration.transfers.book")

    def _kill_perhaps(self) -> None:
        """Kill one after the other, spread over the checkpoints, at a random moment; none before the first of them."""
        versions = self.versions()
        if (
            self.kills == self._chosen.kills
            or versions < 2 + self.kills * self._chosen.checkpoints // self._chosen.kills
        ):
            return
        time.sleep(self._chance.random() * 2)
        part = PARTS[self.kills % len(PARTS)]
        self._drivers[part].kill()
        self.kills += 1
        self._say(f"kill -9: {part}, at version {versions} of the aligned table")
        self._start(part)

    def _check(self, longest: float, since: float) -> None:
        for part, driver in [*self._drivers.items()]:
            if driver.alive:
                continue
            if self._restarts[part] == RESTARTS:
                raise DriverFailed(
                    f"{part} ended {RESTARTS + 1} times, now with {driver.exit_code}.\n{driver.log_tail()}"
                )
            self._restarts[part] += 1
            self._say(f"{part} ended with {driver.exit_code} and starts again")
            driver.kill()  # its JVM may live
            self._start(part)
        if time.monotonic() - since > longest:
            raise DriverFailed(f"it took longer than {longest:.0f} s; the aligned table has {self.versions()} versions")

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._begin:4.0f} s: {text}", highlight=False, soft_wrap=True)


def _run(chosen: argparse.Namespace, console: Console, folder: Path) -> bool:
    console.print(f"{chosen.kills} kills, seed {chosen.seed}. Starting Kafka ...")
    with Cluster(data=folder / "broker") as cluster:
        servers = cluster.bootstrap_servers
        for topic in ("transfers", "debits", "credits"):
            cluster.create_topic(topic, partitions=PARTITIONS)
        for topic in ("debits-marks", "credits-marks"):  # C may start before A and B have created them
            cluster.create_topic(topic, config={"cleanup.policy": "delete"})
        trial = Trial(chosen, console, folder, servers)
        with Injector(ClientConfig("demo", {"bootstrap.servers": servers}), "transfers", "transfers-marks") as injector:
            trial.run(injector)
    findings = {way: judge(table_of(folder, way)) for way in WAYS}
    console.print(_table(findings, trial.kills, chosen.seed))
    return _verdict(findings, console)


def table_of(folder: Path, way: str) -> Path:
    """Return the folder of a table of C's."""
    return folder / f"{way.replace(' ', '-')}-table"


def whole_transfers(folder: Path, way: str) -> int:
    """Return how many transfers a table has."""
    table = table_of(folder, way)
    return judge(table).transfers if table.exists() else 0


def _table(findings: dict[str, Finding], kills: int, seed: int) -> Table:
    table = Table("C's checkpoints", title=f"What each version of C's table holds ({kills} kills, seed {seed})")
    for way in findings:
        table.add_column(way, justify="right")
    lines = {
        "versions": [f.checkpoints for f in findings.values()],
        "torn: one half of a transfer": [f.torn for f in findings.values()],
        "largest sum over all accounts": [f.off_by for f in findings.values()],
        "whole transfers in the end": [f.transfers for f in findings.values()],
        "bookings there twice": [f.doubled for f in findings.values()],
    }
    for name, numbers in lines.items():
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table


def _verdict(findings: dict[str, Finding], console: Console) -> bool:
    aligned, plain = findings["exactly-once"], findings["without alignOn"]
    if aligned.torn or aligned.off_by or any(found.doubled for found in findings.values()):
        console.print("The aligned checkpoints are not what they should be.")
        return False
    if not plain.torn:
        console.print("Without alignment no version was torn: this run proves little.")
        return False
    console.print("Aligned, the sum over all accounts is 0 in every version. Without alignment, it is not.")
    return True


if __name__ == "__main__":
    sys.exit(main())
