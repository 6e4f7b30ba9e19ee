"""``python -m integration.benchmarks.peers``: ours beside Spark's own Kafka connector and Flink SQL, on the same rows.

How to read it: all contestants take turns in each round, on one broker, each in a process of its own that has already run a
quarter of the rows to warm up; the median of the rounds is printed. Every output is read and counted. By wall: from the
query's start to its end. By engine: the sum of triggerExecution; of Flink the job's net run time. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.benchmarks import engines
from integration.benchmarks.contests import CONTESTS, COPY, FLOORS, OURS, SINK, SOURCE, SPARK, Contestant
from integration.benchmarks.copies import MICRO_BATCHES, Copies, Input
from integration.benchmarks.engines import Engine, Launch
from integration.benchmarks.queries import Trigger
from integration.benchmarks.results import Results, add_options, arguments_of, data_plane, settle
from integration.broker import Cluster

SMALL, COLD = "micro-batches of 10 rows", "a cold session"
SMALL_ROWS, SMALL_BATCHES, SMALL_FIRST = 10, 40, 10
"""Rows of a small micro-batch; how many are measured, and how many before them are left out."""
COLD_ROWS, FURTHER = 1000, 3
"""Rows of a cold session's first micro-batch; queries in that session after it."""

KEYS = {"copy": COPY, "source": SOURCE, "sink": SINK, "small": SMALL, "cold": COLD}


def main() -> int:
    """Run all of it, print the tables and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(KEYS), help=f"some of {','.join(KEYS)}")
    parser.add_argument("--who", default="", help="contestants whose names contain this; all by default")
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    chosen = [KEYS[key] for key in given.only.split(",")]
    flink, problem = engines.flink(given.flink, given.with_flink)
    print("Our source moves rows as {source}, our sink as {sink}.".format(**data_plane()), problem, flush=True)
    results = Results("peers", ("rows_per_second_wall", "rows/s"), arguments_of(vars(given)))
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        launches = {False: engines.spark(), True: flink}
        bench = Peers(Copies(cluster, Path(folder)), given.rows, results, launches)
        bench.prepare(chosen)
        for number in range(given.rounds):
            load = settle(given.settle)
            for what in chosen:
                for contestant in bench.turns(what, number, given.who):
                    figures = bench.measure(what, contestant)
                    results.add(what, contestant.name, number, load, figures)
    results.report(given.json)
    return 0


class Peers:
    """One broker, one input, and a process for each measurement.

    Parameters
    ----------
    copies : Copies
    rows : int
    results : Results
        Is given Flink's version.
    launches : Mapping[bool, Launch or None]
        How Spark and (True) Flink are started.
    """

    def __init__(self, copies: Copies, rows: int, results: Results, launches: Mapping[bool, Launch | None]) -> None:
        self._copies, self._results, self._launches = copies, results, launches
        self._input, self._warm = Input("input", rows), Input("warm", max(rows // 4, 1000))
        self._few = Input("small", SMALL_ROWS * (SMALL_BATCHES + SMALL_FIRST))
        self._first = Input("cold", COLD_ROWS)

    def prepare(self, chosen: Sequence[str]) -> None:
        """Write the input of what was chosen."""
        for rows in (self._input, self._warm, self._few, self._first):
            self._copies.fill(rows)
        if SINK in chosen:
            self._copies.fill_files(self._input, MICRO_BATCHES)
            self._copies.fill_files(self._warm, 2)

    def turns(self, what: str, number: int, who: str) -> list[Contestant]:
        """Return the contestants of a round whose names contain `who`, each round with another one first."""
        there = (
            each for each in CONTESTS.get(what, (OURS, SPARK, *FLOORS)) if self._launches[each.is_flink] is not None
        )
        entered = [each for each in there if who in each.name]
        first = number % max(len(entered), 1)
        return entered[first:] + entered[:first]

    def measure(self, what: str, contestant: Contestant) -> dict[str, float]:
        """Return the figures of one measurement. Raises as `Copies.run`."""
        launch = self._launches[contestant.is_flink]
        assert launch is not None
        with self._copies.engine(launch) as engine:
            if contestant.is_flink:
                self._results.versions["Flink"] = engine.ready["version"]
            if what == SMALL:
                return self._copies.small(engine, contestant, self._few, self._first, SMALL_ROWS, SMALL_FIRST)
            if what == COLD:
                return self._cold(engine, contestant)
            return self._copies.throughput(engine, contestant, self._input, self._warm)

    def _cold(self, engine: Engine, contestant: Contestant) -> dict[str, float]:
        first, *further = (self._copies.run(engine, contestant, self._first) for _ in range(1 + FURTHER))
        return {
            "session_ms": 1000 * engine.ready["session"],
            "load_ms": 1000 * first["load_seconds"],
            "first_trigger_ms": _trigger_ms(first["triggers"]),
            "session_to_end_ms": 1000 * (engine.ready["session"] + first["load_seconds"] + first["seconds"]),
            "further_query_outside_triggers_ms": statistics.median(
                1000 * (each["load_seconds"] + each["seconds"]) - _trigger_ms(each["triggers"]) for each in further
            ),
        }


def _trigger_ms(triggers: Sequence[Trigger]) -> float:
    return sum(float(each["durationMs"]["triggerExecution"]) for each in triggers)


if __name__ == "__main__":
    sys.exit(main())
