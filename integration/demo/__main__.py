"""``python -m integration.demo``: feed, run under kills, read, compare. See `integration.demo.report`.

Exits with 0 only where exactly-once held and at-least-once did not.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from integration.broker import BrokerError, Cluster
from integration.demo.driver import DriverFailed
from integration.demo.feed import FeedError, feed
from integration.demo.flights import ALL_FLIGHTS, FlightsMissingError, events, expected_rows, load_flights
from integration.demo.killer import FaultPoint, RandomMoments
from integration.demo.output import OutputError, OutputTopic
from integration.demo.progress import ProgressBoard
from integration.demo.report import Report, tally
from integration.demo.trial import Trial

PARTITIONS = 4

BATCHES = 14
"""Micro-batches of the killed query; so many are enough for ten kills, and few enough for three minutes."""

SLICE_BATCHES = 3
"""Micro-batches of the comparison: one kill in the first shows it."""

POINT = "task.prepared"
"""A task has written everything and the query does not know it yet. At-least-once has published its rows by then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code says whether it showed what it has to."""
    chosen = _parse(arguments)
    console = Console()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="barrier-kafka-demo-"))
    keep = True
    try:
        report = _run(chosen, console, folder)
        console.print(report.table())
        console.print(report.verdict(), highlight=False, soft_wrap=True)
        keep = not report.passed
    except KeyboardInterrupt:
        keep = False
        console.print("Interrupted.")
        return 130
    except (BrokerError, DriverFailed, FeedError, FlightsMissingError, OutputError) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
    finally:
        if keep:
            console.print(f"Logs, checkpoints and the broker's data are kept in {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if keep else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.demo", description="Exactly-once under kill -9.")
    parser.add_argument("--seed", type=int, help="of the kills' moments; random by default, and printed")
    parser.add_argument("--rows", type=int, default=ALL_FLIGHTS, help="how many of the flights (default: all)")
    parser.add_argument("--kills", type=int, default=3, choices=range(1, 11), metavar="1..10")
    chosen = parser.parse_args(arguments)
    if not 1000 <= chosen.rows <= ALL_FLIGHTS:
        parser.error(f"--rows wants 1000 to {ALL_FLIGHTS}")
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1_000_000)
    return chosen


def _run(chosen: argparse.Namespace, console: Console, folder: Path) -> Report:
    begin = time.monotonic()
    console.print(f"{chosen.rows:,} flights, {chosen.kills} kills, seed {chosen.seed}. Starting Kafka ...")
    flights = load_flights(chosen.rows)
    part = flights[: chosen.rows // 8]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(data=folder / "broker"))
        servers = cluster.bootstrap_servers
        for topic in ("flights", "flights-slice", "departed", "departed-at-least-once"):
            cluster.create_topic(topic, partitions=PARTITIONS)
        feed(servers, "flights", events(flights), PARTITIONS)
        feed(servers, "flights-slice", events(part), PARTITIONS)
        console.print(f"Fed after {time.monotonic() - begin:.0f} s.")

        output = OutputTopic(servers, "departed", PARTITIONS)
        expected = expected_rows(flights)
        trial = Trial("exactly-once", folder, "flights", output, "exactly-once", -(-chosen.rows // BATCHES))
        killer = RandomMoments(random.Random(chosen.seed), chosen.kills, BATCHES, trial.batches)
        with ProgressBoard(console, trial.name, len(expected)) as board:
            killed = trial.run(killer, board)
        exactly_once = tally(expected, output.read_all())

        output = OutputTopic(servers, "departed-at-least-once", PARTITIONS)
        expected = expected_rows(part)
        per_batch = -(-len(part) // SLICE_BATCHES)
        trial = Trial("at-least-once", folder, "flights-slice", output, "at-least-once", per_batch)
        with ProgressBoard(console, trial.name, len(expected)) as board:
            compared = trial.run(FaultPoint(folder / "faults", POINT), board)
        at_least_once = tally(expected, output.read_all())
    console.print(f"All of it took {time.monotonic() - begin:.0f} s.")
    return Report(chosen.seed, exactly_once, at_least_once, killed, compared, POINT)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Everything that was started is ended by the same way out as after Ctrl-C.
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
