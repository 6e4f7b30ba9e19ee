"""Marks of a query's checkpoints in a barrier topic, on a real broker: each is where a whole checkpoint ends, whoever died."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from connector.cli import main
from integration import ROOT
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine import Engine, MortalSink
from integration.engine_query import MarkedQuery, reader
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import OptionError, StoreError

MakeQuery = Callable[..., MarkedQuery]


@pytest.fixture
def make_query(kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeQuery]:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    yield lambda **changes: MarkedQuery(kafka, tmp_path, **changes)
    MortalSink.bury()


def marks_of(query: MarkedQuery) -> list[dict[str, Any]]:
    """All records of the barrier topic."""
    with closing(reader(query.servers)) as consumer:
        place = TopicPartition(query.barriers, 0, 0)
        _, high = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        found = []
        while consumer.position([place])[0].offset < high:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(json.loads(message.value() or b""))
        return found


def test_a_mark_names_its_checkpoint_and_the_one_before(make_query: MakeQuery) -> None:
    query = make_query(batches=3)
    query.die_at("mark.published", error=False)
    query.finish()
    ledger = query.place.ledger()
    identifiers = sorted(ledger.checkpoints)
    marks = marks_of(query)
    # The first is published again by the recovery: the same checkpoint, an end that is as good.
    assert [mark["checkpoint"] for mark in marks] == [identifiers[0], *identifiers]
    assert [mark["after"] for mark in marks] == [0, 0, *identifiers[:-1]]
    assert all(mark["lineage"] == {mark["query"]: mark["checkpoint"]} and mark["exact"] for mark in marks)
    assert [mark["rows"] for mark in marks] == [query.work.rows] * 4
    assert not any(mark["restarted"] for mark in marks)


def test_a_rewind_that_writes_rows_again_says_so(make_query: MakeQuery) -> None:
    query = make_query(batches=3)
    Engine(query.work).run()
    first, second, third = sorted(query.place.ledger().checkpoints)
    words = ["rewind", query.work.location, "--to", str(first), "--allow-reemit", "--yes", "--query-stopped"]
    assert main(words) == 0
    Engine(query.work).run()
    again = [(mark["after"], mark["restarted"]) for mark in marks_of(query)][3:]
    assert again[0] == (first, True)
    assert [restarted for _, restarted in again[1:]] == [False]
    assert {second, third}.isdisjoint(mark["checkpoint"] for mark in marks_of(query)[3:])


def test_the_command_prints_what_batch_readers_take(make_query: MakeQuery, capsys: pytest.CaptureFixture[str]) -> None:
    query = make_query(batches=1)
    query.finish()
    capsys.readouterr()
    assert main(["offsets", query.barriers, "--bootstrap-server", query.servers]) == 0
    ends = {str(number): end for number, end in query.complete()[query.topic].items()}
    assert json.loads(capsys.readouterr().out) == {query.topic: ends}


def test_the_example_of_a_loader_has_whole_checkpoints_each_row_once(make_query: MakeQuery, tmp_path: Path) -> None:
    query = make_query(batches=3)
    text = (ROOT / "examples" / "load_whole.py").read_text()
    program = tmp_path / "load_whole.py"
    program.write_text(text.replace("/tmp/barrier", str(tmp_path)))
    command = [sys.executable, str(program), query.topic, query.barriers]

    def load() -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout

    environment = {**os.environ, "BROKERS": query.servers, "PYTHONPATH": str(ROOT)}
    query.die("commit.one")
    assert load() == "0 rows of whole checkpoints\n", "the checkpoint is not whole"
    query.finish()
    assert load() == f"{query.work.expected} rows of whole checkpoints\n"
    assert load() == "0 rows of whole checkpoints\n"
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as database:
        values = [int(value) for (value,) in database.execute("SELECT value FROM loaded")]
    assert sorted(values) == list(range(query.work.expected))


def test_no_mark_is_written_by_a_driver_whose_query_goes_on_elsewhere(make_query: MakeQuery) -> None:
    """It stood still after the commit; the next run has published the checkpoint, and later ones, since."""
    query = make_query(batches=3)
    query.faults.arm("commit.done", "pause")
    with ThreadPoolExecutor(1) as pool:
        life = pool.submit(Engine(query.work).run)
        wait_until(lambda: query.faults.fired("commit.done") or life.done(), "the commit")
        Engine(query.work).run()
        before = marks_of(query)
        query.faults.resume("commit.done")
        with pytest.raises(Exception, match=r"FENCED|SUPERSEDED|CONCURRENT_COMMIT|RUN_"):
            life.result()
    assert marks_of(query) == before
    query.check()


def test_a_mark_lies_behind_the_rows_although_a_lost_attempt_holds_readers_back(make_query: MakeQuery) -> None:
    """The first attempt of a task has written before the one that won, and its transaction is open: rows hide behind it."""
    query = make_query(batches=2)
    lost: list[Producer] = []

    class Retried(Engine):
        def _rows(self, batch: int) -> Any:
            if batch == 1:
                name = f"{query.work.options['transactionalIdPrefix']}.0.40"
                lost.append(Producer({"bootstrap.servers": query.servers, "transactional.id": name, "log_level": 0}))
                lost[0].init_transactions()
                lost[0].begin_transaction()
                for partition in range(query.PARTITIONS):
                    lost[0].produce(query.topic, b"-1", partition=partition)
                assert lost[0].flush(30) == 0
            return super()._rows(batch)

    Retried(query.work).run()
    assert lost
    query.check()


def test_marks_that_were_left_out_for_a_while_are_no_gap(make_query: MakeQuery) -> None:
    query = make_query(batches=4)
    Engine(query.work).run(1)
    without = {key: value for key, value in query.work.options.items() if key != "barrierTopic"}
    Engine(replace(query.work, options=without)).run(3)
    Engine(query.work).run()
    first, last = marks_of(query)
    assert (first["after"], last["after"]) == (0, first["checkpoint"])
    assert len(query.place.ledger().checkpoints) == 4
    query.whole()


def test_a_location_that_was_put_back_publishes_no_older_marks(make_query: MakeQuery, tmp_path: Path) -> None:
    """Those who follow it have read rows behind the copy, which are written again."""
    query = make_query(batches=3)
    Engine(query.work).run(1)
    copy = tmp_path / "copy"
    shutil.copytree(query.work.location, copy)
    Engine(query.work).run()
    before = marks_of(query)
    shutil.rmtree(query.work.location)
    shutil.copytree(copy, query.work.location)
    assert main(["restore", "--as-is", query.work.location, "--claim", "--yes"]) == 0
    with pytest.raises(StoreError, match=rf"BARRIER_TOPIC_AHEAD.*{query.barriers}"):
        Engine(query.work).run()
    assert marks_of(query) == before
    Engine(replace(query.work, options={**query.work.options, "barrierTopic": f"{query.barriers}-2"})).run()
    assert query.place.ledger().unsettled() == []


def test_a_checkpoint_without_rows_has_a_mark(make_query: MakeQuery) -> None:
    query = make_query(batches=2, rows=0)
    Engine(query.work).run()
    assert [mark["rows"] for mark in marks_of(query)] == [0, 0]
    assert query.place.kinds().count(EntryKind.SETTLED) == 2


def test_a_barrier_topic_has_one_query(make_query: MakeQuery) -> None:
    first, second = make_query(batches=1), make_query(batches=1)
    first.finish()
    options = {**second.work.options, "barrierTopic": first.barriers}
    with pytest.raises(StoreError, match=rf"BARRIER_TOPIC_TAKEN.*{first.barriers}"):
        Engine(replace(second.work, options=options)).run()
    first.check()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"barrierTopic": "rows", "topic": "rows"}, "a topic other than the rows' topic"),
        ({"deliveryGuarantee": "at-least-once"}, "no value with deliveryGuarantee=at-least-once"),
        ({"barrierTopic": "not a name"}, "the name of one topic"),
    ],
)
def test_a_barrier_topic_that_can_not_be_is_refused(make_query: MakeQuery, options: dict[str, str], said: str) -> None:
    query = make_query()
    with pytest.raises(OptionError, match=said):
        Engine(replace(query.work, options={**query.work.options, **options})).run()


def test_a_barrier_topic_with_several_partitions_is_refused(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query()
    kafka.create_topic(query.barriers, partitions=2)
    with pytest.raises(OptionError, match=r"barrierTopic.*one partition"):
        Engine(query.work).run()


def test_what_is_no_mark_is_not_read_as_one(make_query: MakeQuery) -> None:
    query = make_query(batches=1)
    query.finish()
    producer = Producer({"bootstrap.servers": query.servers})
    producer.produce(query.barriers, b'{"version": 2}', b"key")
    producer.flush()
    with pytest.raises(ValueError, match="not a mark of version 1"):
        query.complete()
