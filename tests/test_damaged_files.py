"""Files of a checkpoint location that a disk damages, and calls that it refuses: named, or survived with exactly the right rows."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import random
import re
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.delta.staging import Note, Notes
from connector.delta.storage import TableFolder
from connector.delta.write_options import WriteOptions
from connector.kafka.client.topics import Partition
from connector.kafka.source.data_loss import check_joint
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.ranges import ranges_between
from connector.location.location import CheckpointLocation
from connector.savepoints.manifest import read
from connector.savepoints.take import take
from connector.spark import first_start
from connector.spark.host import data_source_for
from integration.engine import SCHEMA, Engine, Work
from integration.file_sink import FileSink, committed_rows
from transactional import faults
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.entry import canonical, checksum
from transactional.errors import FencedError, StoreError, TwoPhaseCommitError
from transactional.faults import InjectedFault
from transactional.journal import Journal, LocalJournalStore
from transactional.ledger import Ledger

SEED = 7
INPUT = [Partition("input", 0), Partition("input", 1)]
ROWS = 12
"""Of each partition; a micro-batch has four of them."""
TRUTH = Counter(range(2 * ROWS))
POINTS = {"commit.called": 2, "prepared.written": 1, "decision.written": 2, "commit.one": 3, "settled.written": 2}
"""Fault points, and how many times they are passed before the driver dies: prepared, decided, half committed, settled."""


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

    def __init__(self, folder: Path, fold: int = 1000) -> None:
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

        with patch.context() as dying, pytest.raises(InjectedFault):
            dying.setattr(faults, "reach", reach)
            self.run()

    def judge(self, file: str, undo: Callable[[], Any]) -> str:
        """Start a driver on what is there: the condition that refuses it by the file's name, or nothing if all is right."""
        try:
            self.run()
        except TwoPhaseCommitError as refusal:
            assert file in str(refusal), f"{file} is not named: {refusal}"
            assert self.rows() <= TRUTH
            undo()
            self.run()
            assert self.rows() == TRUTH, f"after {refusal}"
            return refusal.condition
        assert self.rows() == TRUTH, file
        return ""


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
        numbers = [int(match[1]) for match in map(re.compile(r"barrier/log/(\d+)\.json").fullmatch, self.files) if match]
        self.last = max(numbers)
        self.snapshots = sorted((n for n in self.files if "snapshot" in n), key=lambda name: int(re.findall(r"\d+", name)[0]))

    def experiment(self, name: str, data: bytes | None) -> str:
        """Damage one file of the copy, or delete it, and start a driver."""
        shutil.rmtree(self.life.location.parent)
        shutil.copytree(self._folder, self.life.location.parent)
        path, whole = self.life.location / name, self.files.get(name)
        path.unlink() if data is None else path.write_bytes(data)
        undo = path.unlink if whole is None else lambda: path.write_bytes(whole)
        numbered = name.startswith("barrier/log") and data is None
        return self.life.judge(str(self.last) if numbered else name.removeprefix("barrier/log/"), undo)


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
        for _ in range(3):
            bit = chance.randrange(8 * len(data))
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert copy.experiment(name, bytes(flipped)) in ALLOWED[name.split("/")[0]], (name, bit)
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
        f"{log}/0{last}.json": [entry] if f"{log}/{last}.json" > copy.snapshots[-1] else [],
    }
    for name, contents in damaged.items():
        for data in contents:
            assert copy.experiment(name, data) == "JOURNAL_DAMAGED", (name, data)
    for data in (next_entry(format=3), next_entry(kind="hologram")):
        assert copy.experiment(f"{log}/{last + 1}.json", data) == "FORMAT_UNKNOWN"
