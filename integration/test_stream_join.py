"""A stream-stream join under kills: each of its checkpoints has exactly the pairs that the origin had at one barrier."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from integration.broker import Cluster
from integration.dag import Stage, read_rows
from integration.driver_process import Faults, wait_until
from integration.session import kill_group
from integration.test_cuts import Origin, as_it_is, credit, debit
from transactional import faults

POINTS = (
    "source.latest",
    "task.prepared",
    "commit.looked",
    "prepared.written",
    "decision.written",
    "commit.one",
    "settled.written",
)
"""A driver dies at each of these points, some more than once."""


class Join(Stage):
    """The join as another stage, which real Spark runs."""

    def begin(self, folder: Path) -> None:
        self.log, self.faults = folder / "join.log", Faults(folder / "join-faults")
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths, self.seen = 0, 0

    def live(self) -> None:
        """Start the query if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        self.deaths += self.process is not None
        config = {
            "servers": self.kafka.bootstrap_servers,
            "topics": [each.topic for each in self.inputs],
            "barriers": [each.barriers for each in self.inputs],
            "target": self.topic,
            "targetBarriers": self.barriers,
            "location": self.work.location,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "integration.joining_query", json.dumps(config)],
                env={**os.environ, faults.VARIABLE: str(self.faults.folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def exact(self) -> int:
        """How many of its checkpoints are at a cut, as far as a reader can see now."""
        with suppress(KafkaException):  # a busy broker
            self.seen = sum(mark["exact"] for mark in self.marks())
        return self.seen

    def is_done(self, origin: Origin) -> bool:
        """Whether its newest checkpoint has all of the origin. A query that has died is started again."""
        self.live()
        marks = [mark for mark in self.marks() if mark["exact"]]
        return bool(marks) and origin.before(marks[-1]) == origin.rows

    def check(self, origin: Origin) -> int:
        """Compare each checkpoint with the origin at its barrier; return how many there are."""
        count = 0
        for mark, rows in self.contents(exact=False):
            assert mark["exact"], mark
            pairs = [(*debit("", row), *credit("", row)) for row in origin.before(mark)]
            assert sorted(rows) == sorted(f"{one} {other}" for (_, one), (_, other) in pairs)
            count += 1
        return count


@pytest.fixture
def join(kafka: Cluster, tmp_path: Path) -> Iterator[tuple[Origin, Stage, Stage, Join]]:
    with Origin(kafka, "s") as origin:
        a, b = Stage(kafka, tmp_path, "a", [origin], debit), Stage(kafka, tmp_path, "b", [origin], credit)
        found = Join(kafka, tmp_path, "join", [a, b], as_it_is)
        found.begin(tmp_path)
        yield origin, a, b, found
        if found.process is not None:
            kill_group(found.process)
    Stage.bury()


@pytest.mark.matrix
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("checkpoints", "kills"), [(4, 1), (200, 12)])
def test_each_checkpoint_of_a_stream_stream_join_has_whole_pairs(
    join: tuple[Origin, Stage, Stage, Join], checkpoints: int, kills: int
) -> None:
    origin, a, b, query = join
    chance, armed = random.Random(7), 0
    while query.exact() < checkpoints or query.deaths < kills:
        query.live()
        if len(origin.upto) - query.exact() < 6:
            origin.feed(chance.randint(1, 5))
            for stage in chance.sample([a, b], 2):
                if chance.random() < 0.7:
                    stage.run()
        if armed <= query.deaths and armed < kills and query.exact() >= armed * checkpoints // kills:
            query.faults.arm(POINTS[armed % len(POINTS)], "kill-jvm")
            armed += 1
    a.run()
    b.run()
    wait_until(lambda: query.is_done(origin), "the join has all rows", deadline=300)
    assert query.deaths >= kills
    assert query.check(origin) >= checkpoints
    assert read_rows(query.kafka.bootstrap_servers, query.topic)
