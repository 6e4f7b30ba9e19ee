"""Who is compared in what: the same rows through our formats, Spark's own and Flink SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from integration.benchmarks.queries import Query, topic_options

__all__ = ["CONTESTS", "COPY", "FLINK", "FLOORS", "OURS", "SINK", "SOURCE", "SPARK", "Contestant"]

COPY, SOURCE, SINK = "topic to topic", "topic to noop", "Parquet to topic"
FILES_PER_TRIGGER = 4
TUNED_PRODUCER = {"kafka.linger.ms": "20", "kafka.batch.size": "262144", "kafka.compression.type": "none"}
"""What a Java producer wants for throughput: its defaults are 5 ms and 16 KB, and many small batches are the broker's work."""


@dataclass(frozen=True)
class Contestant:
    """One way of moving rows."""

    name: str  # For tables.
    # Spark's formats. Both empty: Flink SQL.
    source: str = ""
    sink: str = ""
    # Options beside topics and servers.
    read: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_floor(self) -> bool:
        """Whether it moves rows without a broker, see `integration.benchmarks.floor`."""
        return self.source == "floor-source"

    @property
    def writes(self) -> bool:
        """Whether its rows come to a topic."""
        return self.sink != "noop" and not self.is_floor

    @property
    def is_flink(self) -> bool:
        """Whether Flink runs it."""
        return not self.source

    def query(
        self, servers: str, source: str, target: str, location: str, rows: int, per_trigger: int | None = None
    ) -> dict[str, Any]:
        """Return the query that an engine is asked to run.

        Parameters
        ----------
        servers : str
        source : str
            A topic, or a folder of Parquet files.
        target : str
            A topic; not used by ``noop``.
        location : str
            A checkpoint location that nothing has used.
        rows : int
            Rows of the source.
        per_trigger : int, optional
            Rows of a micro-batch from a topic.
        """
        if self.is_flink:
            return {"servers": servers, "source": source, "target": target}
        read = (
            {"path": source, "maxFilesPerTrigger": str(FILES_PER_TRIGGER)}
            if self.source == "parquet"
            else topic_options(servers, source, per_trigger, **self.read)
        )
        if self.is_floor:
            read = {"rows": str(rows), "per_trigger": str(per_trigger or 0), **self.read}
        if not self.writes:
            return asdict(
                Query(self.source, read, location, self.sink, columns=("key", "value") if self.is_floor else ())
            )
        write = {"kafka.bootstrap.servers": servers, "topic": target, **self.write}
        return asdict(Query(self.source, read, location, self.sink, write, ("key", "value")))


OURS = Contestant("ours, exactly-once", "barrier-kafka", "2pc-kafka")
SPARK = Contestant("Spark's own, at-least-once", "kafka", "kafka")
FLOORS = tuple(
    Contestant(
        f"Spark's Python API alone, no Kafka, tasks: {tasks}", "floor-source", "floor-sink", read={"tasks": str(tasks)}
    )
    for tasks in (1, 2, 4)
)
FLINK = Contestant("Flink SQL, exactly-once, checkpoint 1 s")

CONTESTS: Mapping[str, Sequence[Contestant]] = {
    COPY: (
        OURS,
        Contestant("ours, columns=key,value", "barrier-kafka", "2pc-kafka", read={"columns": "key,value"}),
        SPARK,
        Contestant("Spark's own, tuned producer", "kafka", "kafka", write=TUNED_PRODUCER),
        FLINK,
        *FLOORS,
    ),
    SOURCE: (Contestant("ours", "barrier-kafka", "noop"), Contestant("Spark's own", "kafka", "noop")),
    SINK: (
        Contestant("ours, exactly-once", "parquet", "2pc-kafka"),
        Contestant("Spark's own, at-least-once", "parquet", "kafka"),
    ),
}
