"""Copies of an input by an engine, each checked: every row of the input must have come out once."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from integration.benchmarks.accounts import Meter, ProcessTree
from integration.benchmarks.contests import FILES_PER_TRIGGER, Contestant
from integration.benchmarks.engines import Engine, Launch, spark
from integration.benchmarks.fill import check_output, fill, fill_folder
from integration.benchmarks.queries import rows_per_second
from integration.benchmarks.results import settle
from integration.broker import Cluster

__all__ = ["MICRO_BATCHES", "PARTITIONS", "ROW", "Copies", "Input"]

PARTITIONS = 4
ROW = 100
MICRO_BATCHES = 4
PARTS = ("triggerExecution", "latestOffset", "walCommit", "addBatch", "commitOffsets")
"""What Spark reports of a micro-batch that is shown."""

WatchT = TypeVar("WatchT", bound=AbstractContextManager[Any])


@dataclass(frozen=True)
class Input:
    """Rows that engines copy."""

    name: str  # Of the topic, and of the folder of Parquet files.
    rows: int
    size: int = ROW  # Bytes of a row's value.
    partitions: int = PARTITIONS  # Of the topic, and of those it is copied to.


class Copies:
    """One broker, and a folder for checkpoint locations, engines and files."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._numbers = itertools.count()
        self._broker = ProcessTree(cluster.brokers[0].pid)

    def engine(self, launch: Launch) -> Engine:
        """Return an engine, to be entered."""
        return Engine(launch, self._folder / f"engine-{next(self._numbers)}")

    def fill(self, rows: Input) -> None:
        """Write an input's topic."""
        self._cluster.create_topic(rows.name, partitions=rows.partitions)
        fill(self._cluster, rows.name, rows.rows, rows.size)

    def fill_files(self, rows: Input, micro_batches: int) -> None:
        """Write an input's Parquet files."""
        fill_folder(self._folder / rows.name, rows.rows, rows.size, micro_batches * FILES_PER_TRIGGER)

    def delete(self, rows: Input) -> None:
        """Delete an input's topic."""
        self._cluster.delete_topic(rows.name)

    def watched(
        self,
        contestants: Sequence[Contestant],
        rows: Input,
        warm: Input,
        patience: float,
        watch: Callable[[ProcessTree, ProcessTree], WatchT],
    ) -> dict[str, WatchT]:
        """Let each contestant copy `rows` while something looks on, in a Spark of its own that has copied `warm`.

        Parameters
        ----------
        contestants : Sequence[Contestant]
        rows, warm : Input
            Their topics are written first.
        patience : float
            Seconds to wait for a quiet machine.
        watch : Callable[[ProcessTree, ProcessTree], AbstractContextManager]
            Called with the engine's processes and the broker's.

        Returns
        -------
        dict[str, AbstractContextManager]
            What looked on, by the contestants' names.
        """
        self.fill(rows)
        self.fill(warm)
        settle(patience)
        found = {}
        for contestant in contestants:
            with self.engine(spark()) as engine:
                self.run(engine, contestant, warm, -(-warm.rows // 2))
                found[contestant.name] = watch(engine.tree, self._broker)
                self.run(engine, contestant, rows, -(-rows.rows // MICRO_BATCHES), found[contestant.name])
        return found

    def run(
        self,
        engine: Engine,
        contestant: Contestant,
        rows: Input,
        per_trigger: int | None = None,
        during: AbstractContextManager[Any] | None = None,
    ) -> dict[str, Any]:
        """Copy an input and return the engine's answer.

        Parameters
        ----------
        engine : Engine
        contestant : Contestant
        rows : Input
        per_trigger : int, optional
            Rows of a micro-batch; all of them by default.
        during : AbstractContextManager, optional
            Is entered while the engine copies, and not while the output is checked.

        Raises
        ------
        RuntimeError
            If the output is not the input.
        EngineError
            If the engine ended.
        """
        with self._output(contestant, rows) as target:
            query = self._query(contestant, rows, target, per_trigger)
            with during or nullcontext():
                answer = engine.ask("run", query)
            _check_triggers(answer, rows.rows)
        return answer

    def meter(self, engine: Engine) -> Meter:
        """Return a meter of an engine and of the broker, for `run`."""
        return Meter(engine.tree, [self._broker])

    def throughput(self, engine: Engine, contestant: Contestant, rows: Input, warm: Input) -> dict[str, float]:
        """Copy `warm`, then `rows`, and return the figures of the latter. Raises as `run`."""
        self.run(engine, contestant, warm, -(-warm.rows // 2))
        meter = self.meter(engine)
        answer = self.run(engine, contestant, rows, -(-rows.rows // MICRO_BATCHES), meter)
        rate = rows_per_second(answer["triggers"]) if "triggers" in answer else 1000 * rows.rows / answer["engine_ms"]
        return {
            "rows_per_second_wall": rows.rows / answer["seconds"],
            "rows_per_second_engine": rate,
            "query_us_per_row": 1e6 * meter.seconds / rows.rows,
            "broker_us_per_row": 1e6 * meter.beside_seconds[0] / rows.rows,
            "peak_mib": meter.peak_bytes / 2**20,
            "processes": meter.most_processes,
            "others_cores": meter.others_cores,
        }

    def small(
        self, engine: Engine, contestant: Contestant, rows: Input, warm: Input, per_trigger: int, first: int
    ) -> dict[str, float]:
        """Copy `warm`, then `rows` in small micro-batches; return what one takes, without the `first`. Raises as `run`."""
        self.run(engine, contestant, warm)
        meter = self.meter(engine)
        triggers = self.run(engine, contestant, rows, per_trigger, meter)["triggers"]
        kept = [each["durationMs"] for each in triggers if each["numInputRows"]][first:]
        return {
            **{f"{part}_ms": statistics.median(each.get(part, 0) for each in kept) for part in PARTS},
            "micro_batches": len(kept),
            "processor_ms_per_micro_batch": 1000 * meter.seconds / len(triggers),
            "broker_ms_per_micro_batch": 1000 * meter.beside_seconds[0] / len(triggers),
            "others_cores": meter.others_cores,
        }

    def _query(
        self, contestant: Contestant, rows: Input, target: str, per_trigger: int | None = None
    ) -> dict[str, Any]:
        place = str(self._folder / rows.name) if contestant.source == "parquet" else rows.name
        location = str(self._folder / f"checkpoint-{next(self._numbers)}")
        return contestant.query(self._cluster.bootstrap_servers, place, target, location, rows.rows, per_trigger)

    @contextmanager
    def _output(self, contestant: Contestant, rows: Input) -> Iterator[str]:
        """Yield a topic that must hold each row once in the end, and is deleted then; nothing if no topic is written."""
        if not contestant.writes:
            yield ""
            return
        topic = f"output-{next(self._numbers)}"
        self._cluster.create_topic(topic, partitions=rows.partitions)
        yield topic
        check_output(self._cluster, topic, rows.partitions, rows.rows)
        self._cluster.delete_topic(topic)


def _check_triggers(answer: Mapping[str, Any], rows: int) -> None:
    """Check that Spark reports that many rows: all that is known of what went to noop."""
    if "triggers" in answer and (read := sum(each["numInputRows"] for each in answer["triggers"])) != rows:
        raise RuntimeError(f"the query read {read:,} rows instead of {rows:,}")
