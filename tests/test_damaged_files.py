"""Damaged files of a checkpoint location, and calls that a disk refuses: an error names the file, or all rows are right."""

from __future__ import annotations

import builtins
import errno
import itertools
import json
import os
import random
import re
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.delta.staging import Note, Notes
from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.planning.data_loss import check_joint
from connector.kafka.source.planning.ranges import ranges_between
from connector.location.location import CheckpointLocation
from connector.savepoints.manifest import read
from connector.savepoints.take import take
from connector.spark import first_start
from connector.spark.host import data_source_for
from integration.engine import SCHEMA, Engine, Work
from integration.file_sink import FileSink, committed_rows
from tests.transactional.bodies import fact_of, run_body
from transactional import faults
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.entry import EntryKind, canonical, checksum
from transactional.errors import FencedError, JournalError, StoreError, TwoPhaseCommitError
from transactional.faults import InjectedFault
from transactional.journal import Journal, LocalJournalStore, folders

SEED = 7
INPUT = [Partition("input", 0), Partition("input", 1)]
SOURCES = {"OFFSETS_DISAGREE", "READ_FAILED", "DATA_LOST", "NOT_OUR_OFFSET", "FORMAT_UNKNOWN"}
"""Conditions of the source, which does not know the file of the offset that it gets."""
ROWS = 12
"""Of each partition; a micro-batch has four of them."""
Site = tuple[str, str, str]
TRUTH = Counter(range(2 * ROWS))
POINTS = {"commit.called": 2, "prepared.written": 1, "decision.written": 2, "commit.one": 3, "settled.written": 2}
"""Fault points, and how many times they are passed before the driver dies: prepared, decided, half committed, settled."""


def flip(data: bytes, bit: int) -> bytes:
    return bytes(byte ^ (bit // 8 == at) << bit % 8 for at, byte in enumerate(data))


class Reading(Engine):
    """Reads what its offsets say, as the source does, and writes Hadoop's checksums as Spark does."""

    def _offset(self, batch: int) -> SourceOffset:
        text = (Path(self.work.location) / f"offsets/{batch}").read_text()
        return SourceOffset.from_json(json.loads(text.splitlines()[2]))

    def _line(self, batch: int) -> str | None:
        begin = self._offset(batch - 1) if batch else SourceOffset(dict.fromkeys(INPUT, 0), {})
        ends = {partition: min(ROWS, at + 4) for partition, at in begin.topics.items()}
        barrier = begin.barrier if batch == 1 else CheckpointBarrier(batch + 1, BarrierKind.CHECKPOINT, batch)
        line = SourceOffset(ends, begin.topics, barrier, ids={"input": "i"})
        return None if ends == begin.topics else json.dumps(line.to_json())

    def _rows(self, batch: int) -> Sequence[Iterator[pa.RecordBatch]]:
        return [self._part(batch, partition) for partition in INPUT]

    def _part(self, batch: int, wanted: Partition) -> Iterator[pa.RecordBatch]:
        end = self._offset(batch)
        if batch and (before := self._offset(batch - 1)).barrier is not None:
            check_joint(before.topics, end)
        for found in ranges_between(end.start, end.topics):
            if found.partition not in INPUT or found.end > ROWS:
                raise StoreError("READ_FAILED", f"{found} is not there")  # a broker's answer
            if found.partition == wanted:
                values = [str(2 * at + wanted.number) for at in range(found.start, found.end)]
                yield pa.RecordBatch.from_pydict(
                    {"key": values, "value": values, "partition": [0] * len(values)}, schema=SCHEMA
                )

    def _write(self, name: str, text: str) -> None:
        super()._write(name, text)
        path, data = Path(self.work.location) / name, text.encode()
        sums = [struct.pack(">I", zlib.crc32(data[at : at + 512])) for at in range(0, len(data), 512)]
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + b"".join(sums))


class Life:
    """A query, and what is on its disk."""

    def __init__(self, folder: Path) -> None:
        self.location, self.output = folder / "location", folder / "output"
        options = {"path": str(self.output), "transactionalIdPrefix": "p", "commitTimeoutMs": "1"}
        self.work = Work(str(self.location), options, batches=100, format=FileSink.name())
        data_source_for(FileSink)

    def run(self) -> None:
        Reading(self.work).run()

    def rows(self) -> Counter[int]:
        return Counter(int(row["value"]) for row in committed_rows(self.output))

    def die_at(self, point: str, patch: pytest.MonkeyPatch) -> None:
        left = [POINTS[point]]

        def reach(passed: str) -> None:
            left[0] -= passed == point
            if not left[0]:
                raise InjectedFault(point)

        with patch.context() as dying:
            dying.setattr(faults, "reach", reach)
            with pytest.raises(InjectedFault):
                self.run()

    def judge(self, file: str, undo: Callable[[], Any]) -> str:
        """Start a driver on what is there: the condition that refuses it by the file's name, or nothing if all is right."""
        refused = None
        try:
            self.run()
        except TwoPhaseCommitError as refusal:
            refused = refusal
        if refused is not None:
            assert file in str(refused) or refused.condition in SOURCES, f"{file} is not named: {refused}"
            assert self.rows() <= TRUTH
            undo()
            self.run()
        assert self.rows() == TRUTH, f"{file}: {refused}"
        return refused.condition if refused is not None else ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and snapshots come soon."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(Journal.fold, "__defaults__", (3,))


class Copy:
    """A copy of a query that died, from which every experiment begins."""

    def __init__(self, life: Life, folder: Path) -> None:
        self.life, self._folder = life, folder
        shutil.copytree(life.location.parent, folder)
        names = [path.relative_to(life.location) for path in life.location.rglob("*") if path.is_file()]
        self.files = {str(name): (life.location / name).read_bytes() for name in sorted(names) if name.name[0] != "."}
        numbers = [
            int(match[1]) for match in map(re.compile(r"barrier/log/(\d+)\.json").fullmatch, self.files) if match
        ]
        self.last = max(numbers)
        self.snapshots = sorted(
            (n for n in self.files if "snapshot" in n), key=lambda name: int(re.findall(r"\d+", name)[0])
        )

    def experiment(self, name: str, data: bytes) -> str:
        """Damage one file of the copy, or add one, and start a driver."""
        shutil.rmtree(self.life.location.parent)
        shutil.copytree(self._folder, self.life.location.parent)
        path, whole = self.life.location / name, self.files.get(name)
        path.write_bytes(data)
        undo = path.unlink if whole is None else lambda: path.write_bytes(whole)
        return self.life.judge(name.removeprefix("barrier/log/"), undo)


@pytest.fixture(params=POINTS)
def copy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    life = Life(tmp_path / "life")
    life.die_at(request.param, monkeypatch)
    return Copy(life, tmp_path / "copy")


ALLOWED = {
    "barrier": {"", "JOURNAL_DAMAGED", "FORMAT_UNKNOWN"},
    "offsets": {"", "SPARK_OFFSETS_TORN"},
    "commits": {""},  # only their names are read
    "metadata": {"LOGS_INCONSISTENT"},
}


def test_a_flipped_bit_or_a_cut_is_refused_by_the_files_name_or_changes_nothing(copy: Copy) -> None:
    chance = random.Random(SEED)
    for name, data in copy.files.items():
        for bit in chance.sample(range(8 * len(data)), 2):
            assert copy.experiment(name, flip(data, bit)) in ALLOWED[name.split("/")[0]], (name, bit)
        for size in (0, chance.randrange(len(data))):
            assert copy.experiment(name, data[:size]) in ALLOWED[name.split("/")[0]], (name, size)


def test_a_journals_file_under_another_name_or_from_the_future_is_refused(copy: Copy) -> None:
    log, last = "barrier/log", copy.last
    newest = json.loads(copy.files[f"{log}/{last}.json"])
    del newest["checksum"]

    def next_entry(**changes: Any) -> bytes:
        value = {**newest, "number": last + 1, **changes}
        return canonical({**value, "checksum": checksum(value)}).encode()

    entry, snapshot = copy.files[f"{log}/{last}.json"], copy.files[copy.snapshots[-1]]
    damaged = {
        f"{log}/{last + 1}.json": [entry, snapshot, next_entry(kind=[]), next_entry(body=[1])],
        f"{log}/{last + 1000}.json": [entry],
        f"{log}/{last + 1000}.snapshot.json": [snapshot, entry],
    }
    for name, contents in damaged.items():
        for data in contents:
            assert copy.experiment(name, data) == "JOURNAL_DAMAGED", (name, data)
    assert copy.experiment(f"{log}/0{last}.json", snapshot) == "", "no entry has such a name"
    for data in (next_entry(format=3), next_entry(kind="hologram")):
        assert copy.experiment(f"{log}/{last + 1}.json", data) == "FORMAT_UNKNOWN"


@pytest.mark.parametrize("file", ["offsets/0", "offsets/1"])
def test_without_checksum_files_the_journal_and_the_source_find_other_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """As in an object store: the journal has the digest of offsets/0; offsets/1 is new, and is all that says where it ends."""
    life, chance = Life(tmp_path / "life"), random.Random(SEED)
    life.die_at("commit.called", monkeypatch)
    for path in life.location.rglob(".*.crc"):
        path.unlink()
    copy = Copy(life, tmp_path / "copy")
    whole = copy.files[file]
    found = {copy.experiment(file, flip(whole, bit)) for bit in chance.sample(range(8 * len(whole)), 25)}
    assert found & {"SPARK_OFFSETS_TORN", "OFFSETS_REPLACED"}
    assert found <= {"", "SPARK_OFFSETS_TORN", "OFFSETS_REPLACED", *SOURCES}


def test_each_call_that_a_full_or_a_failing_disk_refuses_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of call, from every function, on every kind of file: refused once, while a query lives its whole life."""
    life, sites, planted = Life(tmp_path / "life"), set[Site](), dict[Site, int]()

    def refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *more: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
            caller = sys._getframe(1).f_code
            if path.startswith(str(life.location)) and {"connector", "transactional"} & {
                *Path(caller.co_filename).parts
            }:
                site = (name, caller.co_name, re.sub(r"[0-9a-f]{32}|\d+", "N", path.removeprefix(str(life.location))))
                sites.add(site)
                if site in planted:
                    raise OSError(planted.pop(site), "planted", path)
            return real(what, *more, **named)

        return call

    for name in ("open", "fdopen", "fsync", "link", "unlink", "listdir", "stat", "mkdir"):
        monkeypatch.setattr(os, name, refusing(name, getattr(os, name)))
    monkeypatch.setattr(builtins, "open", refusing("read", open))
    life.run()
    conditions = Counter[str]()
    for site, code in itertools.product(sorted(sites), (errno.ENOSPC, errno.EIO)):
        shutil.rmtree(life.location.parent)
        monkeypatch.setattr(folders, "_durable", set())
        planted[site] = code
        try:
            life.run()
        except TwoPhaseCommitError as refusal:
            conditions[refusal.condition] += 1
        assert not planted, f"{site} was not reached"
        life.run()
        assert life.rows() == TRUTH, site
    assert set(conditions) == {"JOURNAL_STORE_FAILED", "LOCATION_UNREADABLE"}


def test_an_entry_whose_name_cannot_be_made_durable_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read back, but a power failure would take a decision away whose rows are committed."""
    journal, fails = Journal(LocalJournalStore(str(tmp_path / "log"))), [True]
    body, nonce = run_body(location="/l"), journal.nonce()
    (tmp_path / "log").mkdir()

    def fsync(descriptor: int) -> None:
        if fails[0] and os.readlink(f"/proc/self/fd/{descriptor}").endswith("log"):
            raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(JournalError, match=r"JOURNAL_STORE_FAILED.*1\.json.*planted"):
        journal.append(fact_of(EntryKind.RUN, body), lambda ledger: None, nonce)
    assert (tmp_path / "log" / "1.json").exists()
    fails[0] = False
    assert journal.append(fact_of(EntryKind.RUN, body), lambda ledger: None, nonce).number == 1


def test_a_damaged_savepoint_is_never_restored(tmp_path: Path) -> None:
    life, chance = Life(tmp_path / "life"), random.Random(SEED)
    life.run()
    saved = Path(take(str(life.location), str(tmp_path / "saved")).path)
    for path in [path for path in saved.rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        for bit in chance.sample(range(8 * len(whole)), 15):
            path.write_bytes(flip(whole, bit))
            with pytest.raises(TwoPhaseCommitError, match=rf"(SAVEPOINT_DAMAGED|FORMAT_UNKNOWN).*{path.name}"):
                read(str(saved)).verify()
        path.write_bytes(whole)
    read(str(saved)).verify()


def test_a_damaged_note_of_a_delta_transaction_is_left_alone(tmp_path: Path) -> None:
    """A flipped bit may have changed the files that it names, and the sweep deletes those."""
    notes, chance = Notes(TableFolder(parse_write_options({"path": str(tmp_path)})), "p"), random.Random(SEED)
    note = Note("n", "q", 1, 2, 0, "t", 3, ["part-0.parquet"])
    notes.put(note)
    (path,) = tmp_path.glob("_barrier/p/*.json")
    whole = path.read_bytes()
    assert list(notes.all()) == [note]
    for bit in chance.sample(range(8 * len(whole)), 100):
        path.write_bytes(flip(whole, bit))
        assert not list(notes.all()), bit
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert not list(notes.all())


def test_a_damaged_record_of_a_start_is_a_driver_that_nobody_knows(tmp_path: Path) -> None:
    location = CheckpointLocation(str(tmp_path))
    first_start.record_start(location, {"pid": 7})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / ".0.f.tmp").write_text("")
    (record,) = (tmp_path / "barrier" / "starts").iterdir()
    for data in (b"", b'{"pid": 6}', b"\xff"):
        record.write_bytes(data)
        with pytest.raises(FencedError, match="FIRST_START_LEFT"):
            first_start.clean(location, lambda process: False if process else None)
    assert (tmp_path / "offsets" / ".0.f.tmp").exists()
