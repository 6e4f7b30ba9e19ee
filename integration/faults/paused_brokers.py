"""Brokers that pause, die or restart at a chosen step of the protocol: three of them, every topic with three replicas.

One seed is one run: which step, which broker (the output's leader, the coordinator of the transactions, one after the other),
what happens to it and for how long, and how many micro-batches a checkpoint has. The query's lives follow one another as under
`supervise`: a failure that a restart fixes is followed by a restart. At the end every row is there once, nothing is open, and
no error has called for a person.

``python -m integration.faults.paused_brokers --runs 500`` prints a line a run, and at the end a table by fault point.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from integration.broker import Cluster
from integration.driver_process import Faults, Place, wait_until
from integration.engine import Engine, MortalSink, Work
from integration.topic_output import TopicOutput
from transactional import faults
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.failure import Remedy, failure_of

__all__ = ["POINTS", "Run", "Story", "cluster_of_three", "run_of"]

POINTS = (
    "task.begun",
    "task.written",
    "task.prepared",
    "commit.called",
    "commit.looked",
    "decision.written",
    "commit.one",
    "commit.done",
    "settled.written",
    "recovery.claimed",
    "recovery.settling",
)
"""Where a broker is hit; the last two are passed by the start of a query whose driver has died after a decision."""

VICTIMS = ("leader", "coordinator", "apart", "together")
DEEDS = ("freeze", "freeze", "freeze", "kill", "stop")

LIVES = 12
"""Starts that one run may take: a broker that comes back slowly on a busy machine can cost several."""

KAFKA_SESSION_MS = "9000"
QUICK_SESSION_MS = "2000"


@dataclass(frozen=True)
class Story:
    """What happens in one run."""

    seed: int
    point: str
    victims: str
    deed: str
    seconds: float
    batches_a_checkpoint: int

    @classmethod
    def of(cls, seed: int) -> Story:
        """The story of a seed."""
        rng = random.Random(seed)
        return cls(
            seed,
            POINTS[seed % len(POINTS)],
            rng.choice(VICTIMS),
            rng.choice(DEEDS),
            round(rng.uniform(1.0, 6.0), 2),
            rng.choice((1, 3)),
        )


@dataclass
class Run:
    """How a run went: the failures of its lives, and what is wrong at its end."""

    story: Story
    failures: list[str]
    calls: list[str]
    wrong: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was lost or doubled, and nobody was called."""
        return not self.wrong and not self.calls


@dataclass(frozen=True)
class LongWork(Work):
    """Work whose checkpoints have several micro-batches: only every so manyth ends with a barrier."""

    every: int = 1

    def offset(self, batch: int) -> str:
        """See `Work.offset`."""
        source = Partition("input", 0)
        closed = min(batch + 1, self.batches) if batch + 1 == self.batches else (batch + 1) // self.every
        number = max(1, closed)
        barrier = CheckpointBarrier(number, BarrierKind.CHECKPOINT, 0) if closed else None
        return json.dumps(SourceOffset({source: (batch + 1) * self.rows}, {source: 0}, barrier).to_json())


def cluster_of_three(session_ms: str = QUICK_SESSION_MS) -> Cluster:
    """Three brokers with replicated topics."""
    return Cluster(
        3,
        properties={
            "broker.session.timeout.ms": session_ms,
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "4000",
            "controlled.shutdown.max.retries": "1",
        },
    )


class _Scene:
    """One run's topic, location and faults."""

    def __init__(self, cluster: Cluster, folder: Path, story: Story) -> None:
        self.cluster = cluster
        self.story = story
        topic = f"paused-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic, partitions=2, replication=3, config={"min.insync.replicas": "2"})
        location = folder / f"location-{topic}"
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": topic,
            "transactionalIdPrefix": f"q-{topic}",
        }
        self.work = LongWork(
            str(location), options, batches=3, rows=12, writers=2, partitions=2, every=story.batches_a_checkpoint
        )
        self.output = TopicOutput(cluster.bootstrap_servers, topic, f"q-{topic}")
        self.place = Place(location, self.output)
        self.faults = Faults(folder / f"faults-{topic}")
        os.environ[faults.VARIABLE] = str(self.faults.folder)

    def victims(self) -> list[int]:
        """Numbers of the nodes that are hit, from 0: the leader of partition 0, the coordinator of the ids' transactions."""
        admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": self.cluster.bootstrap_servers}))
        try:
            name = f"{self.output.prefix}.0.0"
            coordinator = admin.coordinators([name])[name]
            place = Partition(self.output.topic, 0)
            leader = admin.topics([place.topic], [place])[place.topic].leaders[0]
        finally:
            admin.close()
        named = {"leader": [leader], "coordinator": [coordinator], "together": [leader], "apart": [leader, coordinator]}
        if self.story.victims == "apart" and leader == coordinator:
            # Two of three brokers must not go at once: the quorum would be gone, and that is no pause of a leader.
            return [leader - 1]
        return sorted({node - 1 for node in named[self.story.victims]})

    def hit(self) -> None:
        """Do the deed, and undo it after its time: in a thread, as the query goes on."""
        hit = self.victims()
        threads = [
            threading.Thread(target=self._deed, args=(node, delay), daemon=True) for delay, node in enumerate(hit)
        ]
        for thread in threads:
            thread.start()
        self._threads = threads

    def _deed(self, node: int, delay: int) -> None:
        story, broker = self.story, self.cluster.brokers[node]
        # Of two brokers the second is hit when the first is back: one after the other, as in a rolling restart.
        time.sleep(delay * (story.seconds + 1.0))
        if story.deed == "freeze":
            broker.pause()
            time.sleep(story.seconds)
            broker.resume()
            return
        if story.deed == "kill":
            broker.kill()
        else:
            broker.terminate()
            broker.wait(20)
        time.sleep(story.seconds / 2)
        broker.spawn()

    def joined(self) -> None:
        """Wait until the brokers are back."""
        for thread in getattr(self, "_threads", []):
            thread.join()
        self.cluster.wait_until_ready()


def run_of(cluster: Cluster, folder: Path, story: Story) -> Run:
    """Run a story to its end."""
    scene = _Scene(cluster, folder, story)
    run = Run(story, [], [])
    began = time.monotonic()
    if story.point.startswith("recovery."):
        scene.faults.arm("decision.written", "raise")
        with contextlib.suppress(faults.InjectedFault):
            Engine(scene.work).run()
    scene.faults.arm(story.point, "pause")
    done = threading.Event()

    def lives() -> None:
        ended = any(_life(scene, run) for _ in range(LIVES))
        run.wrong = "" if ended else f"not done after {LIVES} lives"
        done.set()

    life = threading.Thread(target=lives, daemon=True)
    life.start()
    wait_until(lambda: scene.faults.fired(story.point) or done.is_set(), story.point)
    scene.hit()
    time.sleep(0.2)  # so that the deed is done when the query goes on
    scene.faults.resume(story.point)
    life.join()
    scene.joined()
    scene.faults.release()
    try:
        if not run.wrong:
            scene.place.check_whole(scene.work.expected)
    except AssertionError as problem:
        run.wrong = str(problem)
    MortalSink.bury()
    run.seconds = time.monotonic() - began
    return run


def _life(scene: _Scene, run: Run) -> bool:
    """Live one driver's life; return whether it came to the end of the work."""
    try:
        Engine(scene.work).run(error=True)
    except Exception as problem:  # noqa: BLE001 - it is what is looked at
        failure = failure_of(problem)
        run.failures.append(f"{failure.condition or type(problem).__name__}: {failure.text}")
        if failure.remedy is not Remedy.RESTART:
            run.calls.append(failure.text)
        return False
    return True


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of a table by fault point."""
    yield "| point | runs | a person called | rows lost or doubled | lives a run |"
    yield "|---|---|---|---|---|"
    by_point: Mapping[str, list[Run]] = {point: [run for run in runs if run.story.point == point] for point in POINTS}
    for point, of_point in [*by_point.items(), ("all", list(runs))]:
        if of_point:
            lives = sum(len(run.failures) + 1 for run in of_point) / len(of_point)
            yield (
                f"| {point} | {len(of_point)} | {sum(bool(run.calls) for run in of_point)} | "
                f"{sum(bool(run.wrong) for run in of_point)} | {lives:.2f} |"
            )


def main() -> int:
    """Run the stories of seeds, and print how they went; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=33)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first run")
    parser.add_argument(
        "--session-ms", default=QUICK_SESSION_MS, help=f"brokers' session; Kafka's is {KAFKA_SESSION_MS}"
    )
    given = parser.parse_args()
    print(f"seeds from {given.seed}, session {given.session_ms} ms", flush=True)
    runs: list[Run] = []
    with cluster_of_three(given.session_ms) as cluster, tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.runs):
            run = run_of(cluster, Path(folder), story := Story.of(seed))
            runs.append(run)
            verdict = "ok" if run.good else f"WRONG {run.wrong} {run.calls}"
            print(
                f"{story.seed} {story.point} {story.victims} {story.deed} {story.seconds} s, "
                f"{story.batches_a_checkpoint} a checkpoint: {run.seconds:.1f} s, {verdict}",
                *(f"    {text[:600]}" for text in run.failures),
                sep="\n",
                flush=True,
            )
    print(*table(runs), sep="\n")
    print("conditions:", dict(Counter(text.split(":")[0] for run in runs for text in run.failures)))
    return int(any(not run.good for run in runs))


if __name__ == "__main__":
    sys.exit(main())
