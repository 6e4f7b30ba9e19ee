"""``python -m integration.benchmarks.peers``: ours beside Spark's own Kafka connector and Flink SQL, on the same rows.

How to read it: all contestants take turns in each round, on one broker, each in a process of its own that has already run a
quarter of the rows to warm up; the median of the rounds is printed. Every output is read and counted. By wall: from the
query's start to its end. By engine: the sum of triggerExecution; of Flink the job's net run time. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.benchmarks import engines
from integration.benchmarks.accounts import Meter, ProcessTree
from integration.benchmarks.contests import (
    CONTESTS,
    COPY,
    FILES_PER_TRIGGER,
    FLOOR,
    OURS,
    SINK,
    SOURCE,
    SPARK,
    Contestant,
)
from integration.benchmarks.engines import Engine, Launch
from integration.benchmarks.fill import check_output, fill, fill_folder
from integration.benchmarks.queries import Trigger, rows_per_second
from integration.benchmarks.results import Results, add_options, arguments_of, data_plane, settle
from integration.broker import Cluster

PARTITIONS = 4
ROW = 100
MICRO_BATCHES = 4
SMALL, COLD = "micro-batches of 10 rows", "a cold session"
SMALL_ROWS, SMALL_BATCHES, SMALL_FIRST = 10, 40, 10
"""Rows of a small micro-batch; how many are measured, and how many before them are left out."""
PARTS = ("triggerExecution", "latestOffset", "walCommit", "addBatch", "commitOffsets")
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
        bench = Peers(cluster, Path(folder), given.rows, results, {False: engines.spark(), True: flink})
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
    cluster : Cluster
    folder : Path
    rows : int
    results : Results
        Is given Flink's version.
    launches : Mapping[bool, Launch or None]
        How Spark and (True) Flink are started.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, rows: int, results: Results, launches: Mapping[bool, Launch | None]
    ) -> None:
        self._cluster, self._folder, self._rows, self._results = cluster, folder, rows, results
        self._warm_rows = max(rows // 4, 1000)
        self._inputs = {
            "input": rows,
            "warm": self._warm_rows,
            "small": SMALL_ROWS * (SMALL_BATCHES + SMALL_FIRST),
            "cold": COLD_ROWS,
        }
        self._launches = launches
        self._numbers = itertools.count()
        self._broker = ProcessTree(cluster.brokers[0].pid)

    def prepare(self, chosen: Sequence[str]) -> None:
        """Write the input of what was chosen."""
        for topic, rows in self._inputs.items():
            self._cluster.create_topic(topic, partitions=PARTITIONS)
            fill(self._cluster, topic, rows, ROW)
        if SINK in chosen:
            fill_folder(self._folder / "input", self._rows, ROW, MICRO_BATCHES * FILES_PER_TRIGGER)
            fill_folder(self._folder / "warm", self._warm_rows, ROW, 2 * FILES_PER_TRIGGER)

    def turns(self, what: str, number: int, who: str) -> list[Contestant]:
        """Return the contestants of a round whose names contain `who`, each round with another one first."""
        there = (each for each in CONTESTS.get(what, (OURS, SPARK, FLOOR)) if self._launches[each.is_flink] is not None)
        entered = [each for each in there if who in each.name]
        first = number % max(len(entered), 1)
        return entered[first:] + entered[:first]

    def measure(self, what: str, contestant: Contestant) -> dict[str, float]:
        """Return the figures of one measurement.

        Raises
        ------
        RuntimeError
            If the output is not the input.
        EngineError
            If the engine ended.
        """
        launch = self._launches[contestant.is_flink]
        assert launch is not None
        with Engine(launch, self._folder / f"engine-{next(self._numbers)}") as engine:
            if contestant.is_flink:
                self._results.versions["Flink"] = engine.ready["version"]
            if what == SMALL:
                return self._small(engine, contestant)
            if what == COLD:
                return self._cold(engine, contestant)
            return self._throughput(engine, contestant)

    def _throughput(self, engine: Engine, contestant: Contestant) -> dict[str, float]:
        self._run(engine, contestant, "warm", self._warm_rows, self._warm_rows // 2)
        with self._output(contestant, self._rows) as target:
            query = self._query(contestant, "input", target, -(-self._rows // MICRO_BATCHES))
            with Meter(engine.tree, [self._broker]) as meter:
                answer = engine.ask("run", query)
            _check_triggers(answer, self._rows)
        engine_rate = (
            rows_per_second(answer["triggers"]) if "triggers" in answer else self._rows / (answer["engine_ms"] / 1000)
        )
        return {
            "rows_per_second_wall": self._rows / answer["seconds"],
            "rows_per_second_engine": engine_rate,
            "query_us_per_row": 1e6 * meter.seconds / self._rows,
            "broker_us_per_row": 1e6 * meter.beside_seconds[0] / self._rows,
            "peak_mib": meter.peak_bytes / 2**20,
            "processes": meter.most_processes,
            "others_cores": meter.others_cores,
        }

    def _small(self, engine: Engine, contestant: Contestant) -> dict[str, float]:
        self._run(engine, contestant, "cold", COLD_ROWS)
        with self._output(contestant, SMALL_ROWS * (SMALL_BATCHES + SMALL_FIRST)) as target:
            query = self._query(contestant, "small", target, SMALL_ROWS)
            with Meter(engine.tree, [self._broker]) as meter:
                triggers = engine.ask("run", query)["triggers"]
        kept = [each["durationMs"] for each in triggers if each["numInputRows"]][SMALL_FIRST:]
        return {
            **{f"{part}_ms": statistics.median(each.get(part, 0) for each in kept) for part in PARTS},
            "micro_batches": len(kept),
            "processor_ms_per_micro_batch": 1000 * meter.seconds / len(triggers),
            "others_cores": meter.others_cores,
        }

    def _cold(self, engine: Engine, contestant: Contestant) -> dict[str, float]:
        first = self._run(engine, contestant, "cold", COLD_ROWS)
        further = [self._run(engine, contestant, "cold", COLD_ROWS) for _ in range(FURTHER)]
        return {
            "session_ms": 1000 * engine.ready["session"],
            "load_ms": 1000 * first["load_seconds"],
            "first_trigger_ms": _trigger_ms(first["triggers"]),
            "session_to_end_ms": 1000 * (engine.ready["session"] + first["load_seconds"] + first["seconds"]),
            "further_query_outside_triggers_ms": statistics.median(
                1000 * (each["load_seconds"] + each["seconds"]) - _trigger_ms(each["triggers"]) for each in further
            ),
        }

    def _run(
        self, engine: Engine, contestant: Contestant, source: str, rows: int, per_trigger: int | None = None
    ) -> dict[str, Any]:
        with self._output(contestant, rows) as target:
            answer = engine.ask("run", self._query(contestant, source, target, per_trigger))
            _check_triggers(answer, rows)
        return answer

    def _query(
        self, contestant: Contestant, source: str, target: str, per_trigger: int | None = None
    ) -> dict[str, Any]:
        place = str(self._folder / source) if contestant.source == "parquet" else source
        location = str(self._folder / f"checkpoint-{next(self._numbers)}")
        servers, rows = self._cluster.bootstrap_servers, self._inputs[source]
        return contestant.query(servers, place, target, location, rows, per_trigger)

    @contextmanager
    def _output(self, contestant: Contestant, rows: int) -> Iterator[str]:
        """Yield a topic that must hold each row once in the end, and is deleted then; nothing if no topic is written."""
        if not contestant.writes:
            yield ""
            return
        topic = f"output-{next(self._numbers)}"
        self._cluster.create_topic(topic, partitions=PARTITIONS)
        yield topic
        check_output(self._cluster, topic, PARTITIONS, rows)
        self._cluster.delete_topic(topic)


def _check_triggers(answer: Mapping[str, Any], rows: int) -> None:
    """Check that Spark reports that many rows: all that is known of what went to noop."""
    if "triggers" in answer and (read := sum(each["numInputRows"] for each in answer["triggers"])) != rows:
        raise RuntimeError(f"the query read {read:,} rows instead of {rows:,}")


def _trigger_ms(triggers: Sequence[Trigger]) -> float:
    return sum(float(each["durationMs"]["triggerExecution"]) for each in triggers)


if __name__ == "__main__":
    sys.exit(main())
