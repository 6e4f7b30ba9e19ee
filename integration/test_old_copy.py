"""A consistent older copy of the location, put back at its own path: only the store knows that the query was further.

A volume's snapshot, a virtual machine that was restored, a folder that was copied back. `integration.engine` makes Spark's
calls; `connector.cli` is what an operator types.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main
from connector.kafka.sink.transactional_ids import run_id
from connector.location.location import CheckpointLocation
from connector.savepoints.manifest import read
from connector.savepoints.restore import Restore
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine import Engine, MortalSink
from integration.engine_query import KafkaQuery
from transactional import faults
from transactional.checkpoint import DecidedCheckpoint
from transactional.entries import Fact, MarkTaken
from transactional.errors import LocationError
from transactional.faults import InjectedFault
from transactional.journal import Journal
from transactional.sink import TransactionContext

BATCHES = 5


class Query(KafkaQuery):
    """A query whose location is copied and put back."""

    def __init__(self, kafka: Cluster, folder: Path) -> None:
        super().__init__(kafka, folder, partitions=2, batches=BATCHES)
        self.folder, self.location = folder, self.place.location

    def copy(self) -> None:
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.location, self.folder / "copy")

    def put_back(self) -> None:
        shutil.rmtree(self.location)
        shutil.copytree(self.folder / "copy", self.location)

    def rows(self) -> Counter[int]:
        wait_until(self.output.is_quiet, "markers", 30)
        return self.output.rows()

    def must_refuse(self, micro_batches: int) -> None:
        """However often it is started: nothing is written, and the journal does not grow."""
        entries = self.place.kinds()
        for _ in range(2):
            with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*barrier restore --as-is LOCATION --claim"):
                self.engine().run()
        assert self.place.kinds() == entries
        assert self.rows() == Counter(range(micro_batches * self.work.rows))


@pytest.fixture
def query(kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    found = Query(kafka, tmp_path)
    yield found
    found.close()
    MortalSink.bury()


@pytest.mark.parametrize("after", [1, 2])
def test_a_copy_is_refused_after_the_query_has_run_again(query: Query, after: int) -> None:
    query.engine().run(2)
    query.copy()
    for number in range(after):
        query.engine().run(3 + number)
    query.put_back()
    query.must_refuse(2 + after)


def test_a_copy_that_was_made_while_the_query_ran_on_is_refused(query: Query) -> None:
    engine = query.engine()
    engine.run(2)
    query.copy()
    engine.run(3)
    query.put_back()
    query.must_refuse(3)


def test_a_copy_with_a_decision_that_was_not_settled_yet_is_refused(query: Query) -> None:
    query.engine().run(1)
    query.die("decision.written")
    query.copy()
    query.engine().run(3)
    query.put_back()
    query.must_refuse(3)


def test_who_has_accepted_the_copy_goes_on_with_it(query: Query) -> None:
    engine = query.engine()
    engine.run(2)
    query.copy()
    engine.run(3)
    query.put_back()
    query.must_refuse(3)
    assert main(["restore", "--as-is", str(query.location), "--claim", "--yes"]) == 0
    query.engine().run(4)
    query.engine().run()  # what has been accepted once is not asked for again
    rows = query.work.rows
    assert query.rows() == Counter(range(BATCHES * rows)) + Counter(range(2 * rows, 3 * rows))


@pytest.mark.parametrize(
    "point", ["recovery.claimed", "recovery.swept", "decision.written", "commit.one", "commit.done"]
)
def test_a_query_that_died_goes_on(query: Query, point: str) -> None:
    """Twice at each point: what a dead driver has committed or initialised is no other place's."""
    query.engine().run(1)
    for _ in range(2):
        query.die(point)
    query.finish()


def test_a_query_that_died_between_its_init_and_its_mark_goes_on(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def die(journal: Journal, fact: Fact, *arguments: Any) -> Any:
        if isinstance(fact, MarkTaken):
            raise InjectedFault("mark")
        return append(journal, fact, *arguments)

    query.engine().run(1)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", die)
            with pytest.raises(InjectedFault):
                query.engine().run(2)
    query.engine().run(2)
    query.finish()


def test_another_prefix_and_the_former_one_again_are_no_other_place_s(query: Query) -> None:
    query.engine().run(1)
    other = f"{query.prefix}-other"
    query.engine(transactionalIdPrefix=other).run(2)
    query.engine().run(3)
    query.engine(transactionalIdPrefix=other).run(4)
    query.finish()


def test_a_driver_that_changes_its_settings_is_no_other_place_s(query: Query) -> None:
    engine = query.engine()
    engine.run(2)
    other: dict[str, Any] = {"kafka.linger.ms": "1"}
    changed = query.engine(**other)
    changed._driver = engine._driver
    changed.run()
    query.check()


def test_a_copy_is_refused_by_a_stop_too(query: Query, tmp_path: Path) -> None:
    engine = query.engine()
    engine.run(2)
    query.copy()
    engine.run(3)
    query.put_back()
    entries = query.place.kinds()
    assert main(["stop", str(query.location), "--query-stopped"]) == 1
    assert query.place.kinds()[: len(entries)] == entries
    assert "stopped" not in query.place.kinds()
    query.must_refuse(3)


@pytest.mark.parametrize("what", ["origin", "new location", "new location, closed"])
def test_a_claim_does_not_make_an_older_copy_the_query(query: Query, tmp_path: Path, what: str) -> None:
    """Of the origin, put back before the claim; of the new location, from before its first run, put back afterwards."""
    query.engine().run(2)
    assert main(["stop", str(query.location), "--query-stopped", "--savepoint", str(tmp_path / "saved")]) == 0
    new, restore = tmp_path / "new", ["restore", str(tmp_path / "saved"), str(tmp_path / "new"), "--claim", "--yes"]
    moved = replace(query.work, location=str(new))
    if what == "origin":
        query.copy()
        query.engine().run(3)
        assert main(["stop", str(query.location), "--query-stopped"]) == 0
        query.put_back()
        assert main(restore) == 0
    else:
        if what == "new location, closed":
            query.faults.arm("restore.copied", "raise")
            with pytest.raises(InjectedFault):
                Restore(str(tmp_path / "saved"), CheckpointLocation(str(new)), True).run()
        else:
            assert main(restore) == 0
        shutil.copytree(new, tmp_path / "backup")
        assert main(restore) == 0
        Engine(moved).run(3)
        shutil.rmtree(new)
        shutil.copytree(tmp_path / "backup", new)
        assert main(restore) == 0
    for _ in range(2):
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*barrier restore --as-is LOCATION --claim"):
            Engine(moved).run()
    assert query.rows() == Counter(range(3 * query.work.rows))


def test_a_claimed_query_goes_on_whatever_runs_its_origin_had_since_the_savepoint(query: Query, tmp_path: Path) -> None:
    query.engine().run(2)
    assert main(["savepoint", "take", str(query.location), str(tmp_path / "saved")]) == 0
    for _ in range(2):
        assert main(["stop", str(query.location), "--query-stopped"]) == 0
        query.engine().run(2)
    query.engine().run(3)
    assert main(["stop", str(query.location), "--query-stopped"]) == 0
    checkpoint = str(read(str(tmp_path / "saved")).checkpoint)
    rewind = ["rewind", str(query.location), "--to", checkpoint, "--query-stopped", "--allow-reemit", "--yes"]
    assert main(rewind) == 0
    new = str(tmp_path / "new")
    assert main(["restore", str(tmp_path / "saved"), new, "--claim", "--yes"]) == 0
    Engine(replace(query.work, location=new)).run()
    rows = query.work.rows
    assert query.rows() == Counter(range(BATCHES * rows)) + Counter(range(2 * rows, 3 * rows)), (
        "as the rewind has named"
    )


def test_the_broker_says_of_a_committed_transaction_when_it_began(query: Query) -> None:
    """What the stamp of a checkpoint rests on."""
    prefix = query.prefix
    with closing(query.sink()) as sink:
        transaction = sink.beginTransaction(TransactionContext("q", 0, 0, 0, prefix, "n"))
        sink.write(transaction, next(query.work.task(0, 0)))
        handle = sink.preCommit(transaction)
        assert handle is not None
        sink.commit([handle], DecidedCheckpoint(1, (0,), 0, "q", prefix))
        name = handle["transactionalId"]
        admin = sink._driver_admin()
        wait_until(lambda: admin.describe([name])[name].state == "CompleteCommit", "the commit")
        assert admin.describe([name])[name].started_ms == sink.stamp([handle]) > 0
        assert run_id(prefix) not in admin.describe([run_id(prefix)])
