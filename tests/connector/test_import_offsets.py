"""``barrier import-offsets`` on locations made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main
from connector.cli.report import Report
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from connector.location.location import CheckpointLocation
from connector.location.offset_log import source_lines, spark_view
from tests.connector.cli_place import answer
from transactional.recovery import check_account, check_location

KAFKA = '{"orders":{"1":4,"0":23}}'
FILES = '{"logOffset":3}'
METADATA = '{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"4"}}'


class Old:
    """A stopped query's location."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "old"
        self.path.mkdir()
        (self.path / "metadata").write_text('{"id":"old-query"}')

    def begun(self, batch: int, *lines: str) -> None:
        self._write("offsets", batch, "\n".join(["v1", METADATA, *lines]))

    def committed(self, batch: int, *lines: str, watermark: int = 0) -> None:
        self.begun(batch, *lines)
        self._write("commits", batch, f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')

    def _write(self, log: str, batch: int, text: str) -> None:
        (self.path / log).mkdir(exist_ok=True)
        (self.path / log / str(batch)).write_text(text)
        (self.path / log / f".{batch}.crc").write_bytes(b"crc")


@pytest.fixture
def old(tmp_path: Path) -> Old:
    return Old(tmp_path)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def run(
    capsys: pytest.CaptureFixture[str], old: Old, new: Path, *more: str, status: int = 0
) -> tuple[dict[str, Any], str]:
    found, document, said = answer(capsys, "import-offsets", str(old.path), str(new), "--yes", *more)
    assert found == status, said
    return document, said


def test_the_new_location_is_that_of_a_query_whose_first_micro_batch_ended_there(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.committed(41, '{"orders":{"0":1,"1":1}}')
    old.committed(42, KAFKA, watermark=9)
    before = {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()}
    document, said = run(capsys, old, new)
    assert document["offsets"] == [{"orders": {"0": 23, "1": 4}}]
    assert (document["batch"], document["uncommitted"], document["watermark"]) == (42, None, 9)
    assert "imported: start the new query" in said
    location = CheckpointLocation(str(new))
    assert location.query_id() == document["query"] != "old-query"
    assert (new / "offsets" / "0").read_text().splitlines()[1] == METADATA.replace('Ms":5', 'Ms":9')
    assert sorted(os.listdir(new)) == ["metadata", "offsets"]
    at = SourceOffset.from_json(source_lines(location, 0)[0].offset)
    assert at.topics == at.start == {Partition("orders", 0): 23, Partition("orders", 1): 4}
    assert (at.barrier.number if at.barrier else None, at.barrier_rows, at.barrier_empty) == (1, False, True)
    assert {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()} == before
    assert sorted(os.listdir(new.parent)) == ["new", "old"]


def test_a_two_phase_commit_sink_accepts_the_new_location(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.committed(0, KAFKA)
    new.mkdir()
    run(capsys, old, new)
    location = CheckpointLocation(str(new))
    ledger, view = location.journal().load(), spark_view(location)
    check_location(ledger, view)
    check_account(ledger, view)
    assert (ledger.accounted, view.committed, view.batch) == (-1, -1, 0)


def test_a_micro_batch_without_a_commit_is_read_again_unless_it_is_said_to_be_written(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.committed(0, '{"orders":{"0":10}}', watermark=6)
    old.begun(1, '{"orders":{"0":20}}')
    document, said = run(capsys, old, new)
    assert (document["batch"], document["uncommitted"], document["offsets"]) == (0, 1, [{"orders": {"0": 10}}])
    assert "DUPLICATED" in said
    document, said = run(capsys, old, new.with_name("other"), "--take-uncommitted")
    assert (document["batch"], document["offsets"], document["watermark"]) == (1, [{"orders": {"0": 20}}], 5)
    assert "LOST" in said


def test_where_nothing_was_committed_the_recorded_start_is_taken(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.begun(0, KAFKA)
    assert run(capsys, old, new, status=1)[0]["condition"] == "NOT_A_KAFKA_SOURCE"
    (old.path / "sources" / "0").mkdir(parents=True)
    (old.path / "sources" / "0" / "0").write_bytes(b'\0v1\n{"orders":{"0":3,"1":0}}')
    document, _ = run(capsys, old, new)
    assert (document["batch"], document["offsets"]) == (-1, [{"orders": {"0": 3, "1": 0}}])


def test_sources_that_are_not_kafkas_are_named_and_one_of_kafkas_can_be_taken_alone(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.committed(3, KAFKA, FILES, "17", '{"payments":{"0":1}}')
    document, said = run(capsys, old, new, status=1)
    assert document["condition"] == "NOT_A_KAFKA_SOURCE"
    assert 'source 1 ({"logOffset":3}), source 2 (17)' in said
    assert "The Kafka sources of this query: 0, 3" in said
    assert run(capsys, old, new, "--source", "1", status=1)[0]["condition"] == "NOT_A_KAFKA_SOURCE"
    assert run(capsys, old, new, "--source", "4", status=1)[0]["condition"] == "INVALID_OPTION"
    assert not new.exists()
    document, said = run(capsys, old, new, "--source", "3")
    assert (document["sources"], document["offsets"]) == ([3], [{"payments": {"0": 1}}])
    assert "Sources that are not imported: source 0" in said


def test_several_sources_of_kafka_keep_their_order(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(3, '{"payments":{"0":1}}', KAFKA)
    run(capsys, old, new)
    lines = [SourceOffset.from_json(line.offset) for line in source_lines(CheckpointLocation(str(new)), 0)]
    assert [sorted({each.topic for each in line.topics}) for line in lines] == [["payments"], ["orders"]]


def test_sources_keep_their_names(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(0, 'beta:{"b":{"0":2}}', 'alpha:{"a":{"0":1}}')
    file = old.path / "offsets" / "0"
    file.write_text(file.read_text().replace("v1", "v2", 1))
    run(capsys, old, new)
    assert (new / "offsets" / "0").read_text().startswith("v2\n")
    found = source_lines(CheckpointLocation(str(new)), 0)
    assert [(line.name, line.ends) for line in found] == [("beta", {"b": {"0": 2}}), ("alpha", {"a": {"0": 1}})]


def test_state_is_left_behind_only_when_it_is_said(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(0, KAFKA, watermark=9)
    (old.path / "state" / "0").mkdir(parents=True)
    document, _ = run(capsys, old, new, status=1)
    assert document["condition"] == "STATE_STAYS_BEHIND"
    document, said = run(capsys, old, new, "--drop-state")
    assert document["dropped_state"] is True
    assert "The watermark continues from 1970-01-01" in said


@pytest.mark.parametrize(
    ("lines", "condition"),
    [
        ([], "NOTHING_TO_IMPORT"),
        ([json.dumps(SourceOffset(topics={}, start={}).to_json())], "ALREADY_BARRIER_KAFKA"),
        (["-"], "NOT_A_KAFKA_SOURCE"),
        (['{"orders":{"0":-1}}'], "NOT_A_KAFKA_SOURCE"),
        (['{"orders":{"0":true}}'], "NOT_A_KAFKA_SOURCE"),
        (['{"path":"s3://bucket"}'], "NOT_A_KAFKA_SOURCE"),
    ],
)
def test_what_can_not_be_imported_is_refused_by_name_and_nothing_is_made(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str], lines: list[str], condition: str
) -> None:
    if lines:
        old.committed(0, *lines)
    assert run(capsys, old, new, status=1)[0]["condition"] == condition
    assert not new.exists()


def test_half_an_old_location_is_refused(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(4, KAFKA)
    old.begun(6, KAFKA)
    assert run(capsys, old, new, status=1)[0]["condition"] == "LOGS_INCONSISTENT"
    (old.path / "metadata").unlink()
    assert run(capsys, old, new, status=1)[0]["condition"] == "LOGS_INCONSISTENT"


def test_a_location_with_anything_in_it_is_refused(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(0, KAFKA)
    assert run(capsys, old, old.path, status=1)[0]["condition"] == "LOCATION_NOT_EMPTY"
    new.write_text("")
    assert run(capsys, old, new, status=1)[0]["condition"] == "LOCATION_NOT_EMPTY"


def test_a_query_that_takes_the_new_location_first_keeps_it(
    old: Old, new: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old.committed(0, KAFKA)

    def somebody_else(report: Report, yes: bool) -> None:
        new.mkdir(exist_ok=True)
        (new / "metadata").write_text('{"id":"other"}')

    monkeypatch.setattr(Report, "confirm", somebody_else)
    assert run(capsys, old, new, status=1)[0]["condition"] == "LOCATION_NOT_EMPTY"
    assert os.listdir(new) == ["metadata"]
    assert sorted(os.listdir(new.parent)) == ["new", "old"]


def test_without_an_answer_nothing_is_made(old: Old, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.committed(0, KAFKA)
    assert main(["import-offsets", str(old.path), str(new)]) == 3
    assert "can't see whether the old query has stopped" in capsys.readouterr().out
    assert not new.exists()
