"""Remedies are followed in the state that raised them, and do what they promise: see tests/test_remedies_followed.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from connector.spark.process import process_of
from integration.file_sink import FileHandle, FileSink
from tests.connector.cli_place import answer, dead_process
from tests.connector.followed_query import FollowedQuery
from transactional.entry import EntryKind
from transactional.errors import TwoPhaseCommitError
from transactional.sink import HandleState, Outcome

Capture = pytest.CaptureFixture[str]


def does(capsys: Capture, *arguments: str) -> str:
    """Run a command of a remedy, which must succeed; return what it prints."""
    status, document, said = answer(capsys, *arguments)
    assert status == 0, (arguments, document, said)
    return said


def names(error: TwoPhaseCommitError, condition: str, command: str) -> bool:
    """Whether the error is of the condition, and its text names the command."""
    assert error.condition == condition, error
    return f"`barrier {command}" in str(error)


def lose(query: FollowedQuery, batch: int) -> None:
    """Delete a prepared file of a micro-batch, as a store's timeout does."""
    next((query.output / "pending").glob(f"p~{batch}~*")).unlink()


@pytest.fixture
def query(tmp_path: Path) -> FollowedQuery:
    """Micro-batches 0 to 2 are settled checkpoints."""
    return FollowedQuery(tmp_path).start(3)


def test_prepared_lost(query: FollowedQuery, capsys: Capture) -> None:
    query.start(2, closes=False)
    lose(query, 3)
    assert names(query.refused(), "PREPARED_LOST", "recover LOCATION")
    does(capsys, "recover", str(query))
    assert query.start(2).has_all_of(0, 1, 2, 3, 4)


def test_logs_ahead(query: FollowedQuery, capsys: Capture) -> None:
    """Spark has planned micro-batches that it has not committed, and that the journal does not know."""
    for batch in (3, 4):
        (query.path / "offsets" / str(batch)).write_text(query.planned(batch))
    assert names(query.refused(), "LOGS_AHEAD", "recover LOCATION")
    does(capsys, "recover", str(query))
    assert query.start(2).has_all_of(0, 1, 2, 3, 4)


@pytest.mark.parametrize("remedy", [("recover",), ("restore", "--as-is", "--claim", "--yes")])
def test_offsets_replaced(query: FollowedQuery, capsys: Capture, remedy: tuple[str, ...]) -> None:
    (query.path / "offsets" / "2").write_text(query.planned(2).replace('"0": 6', '"0": 5'))
    error = query.refused()
    assert names(error, "OFFSETS_REPLACED", "recover LOCATION")
    assert names(error, "OFFSETS_REPLACED", "restore --as-is LOCATION --claim")
    if (query.path / "offsets" / "3").exists():  # Spark has planned the refused micro-batch
        (query.path / "offsets" / "3").unlink()
    does(capsys, remedy[0], str(query), *remedy[1:])
    assert ('"0": 6' in (query.path / "offsets" / "2").read_text()) is (remedy[0] == "recover")
    assert query.start().has_all_of(0, 1, 2, 3)


@pytest.mark.parametrize("claim", [True, False])
def test_location_moved(query: FollowedQuery, tmp_path: Path, capsys: Capture, claim: bool) -> None:
    query.moved_to(query.path.rename(tmp_path / "moved"))
    assert names(query.refused(), "LOCATION_MOVED", "restore --as-is LOCATION --claim")
    does(capsys, "restore", "--as-is", str(query), "--claim" if claim else "--no-claim", "--yes")
    if not claim:
        assert query.refused().condition == "PREFIX_OF_THE_ORIGINAL"
        query.prefix = "another"  # its remedy
    assert query.start().has_all_of(0, 1, 2, 3)


def test_location_put_back(query: FollowedQuery, tmp_path: Path, capsys: Capture) -> None:
    copy = shutil.copytree(query.path, tmp_path / "copy")
    query.start(2)
    shutil.copytree(query.path, tmp_path / "newest")
    shutil.rmtree(query.path)
    shutil.copytree(copy, query.path)
    assert names(query.refused(), "LOCATION_PUT_BACK", "restore --as-is LOCATION --claim")
    shutil.rmtree(query.path)
    shutil.copytree(tmp_path / "newest", query.path)  # "restore the newest one"
    assert query.start().has_all_of(0, 1, 2, 3, 4, 5)
    shutil.rmtree(query.path)
    shutil.copytree(copy, query.path)
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().rows()[6:10] == [30, 30, 31, 31], "accepted: rows are doubled"


def test_store_gone(query: FollowedQuery, tmp_path: Path, capsys: Capture) -> None:
    query.output.rename(tmp_path / "unmounted")
    assert names(query.refused(), "STORE_GONE", "restore --as-is LOCATION --claim")
    assert not query.output.exists(), "the refused start has made one"
    (tmp_path / "unmounted").rename(query.output)  # "mount the volume"
    assert query.start().has_all_of(0, 1, 2, 3)
    shutil.rmtree(query.output)
    assert query.refused().condition == "STORE_GONE"
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().has_all_of(4)


def test_store_went_back(query: FollowedQuery, tmp_path: Path, capsys: Capture) -> None:
    """The message names the number of the checkpoint to go back to: every row is there again."""
    copy = shutil.copytree(query.output, tmp_path / "copy")
    query.start(2)
    shutil.rmtree(query.output)
    shutil.copytree(copy, query.output)
    error = query.refused()
    assert names(error, "STORE_WENT_BACK", "restore --as-is LOCATION --claim")
    rewind = re.search(r"`barrier rewind LOCATION --to (\d+) --allow-reemit`", str(error))
    assert rewind, error
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    does(capsys, "rewind", str(query), "--to", rewind[1], "--allow-reemit", "--yes")
    assert query.start(3).has_all_of(0, 1, 2, 3, 4, 5)


class ReplaceableSink(FileSink):
    """Its folder has an identity, a file in it."""

    def identify(self) -> dict[str, str]:
        """Make the folder if there is none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        mark = self._folder / "identity"
        if not mark.exists():
            mark.write_text(os.urandom(8).hex())
        return {"folder": mark.read_text()}


def test_store_replaced(tmp_path: Path, capsys: Capture) -> None:
    query = FollowedQuery(tmp_path, ReplaceableSink).start(3)
    former = query.output.rename(tmp_path / "former")
    query.output.mkdir()
    error = query.refused()
    assert names(error, "STORE_REPLACED", "restore --as-is LOCATION --claim")
    shutil.rmtree(query.output)
    former.rename(query.output)  # "put the former target back"
    assert query.start().has_all_of(0, 1, 2, 3)
    shutil.rmtree(query.output)
    query.output.mkdir()
    assert query.refused().condition == "STORE_REPLACED"
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().has_all_of(4)


def test_no_journal(query: FollowedQuery, capsys: Capture) -> None:
    """The query had another sink until now: the new one begins where Spark's logs are."""
    shutil.rmtree(query.path / "barrier")
    shutil.rmtree(query.output)
    assert names(query.refused(), "NO_JOURNAL", "restore --as-is LOCATION --claim")
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().has_all_of(3)


def test_batches_not_accounted(query: FollowedQuery, capsys: Capture) -> None:
    """Spark's logs were rewound by hand, without the journal."""
    backup = {(log, name): (query.path / log / name).read_text() for log in ("offsets", "commits") for name in "12"}
    for log, name in backup:
        (query.path / log / name).unlink()
    assert names(query.refused(), "BATCHES_NOT_ACCOUNTED", "restore --as-is LOCATION --claim")
    for (log, name), text in backup.items():  # "restore them from a backup"
        (query.path / log / name).write_text(text)
    assert query.start().has_all_of(0, 1, 2, 3)
    for log in ("offsets", "commits"):
        for name in "23":
            (query.path / log / name).unlink()
    assert query.refused().condition == "BATCHES_NOT_ACCOUNTED"
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().rows()[4:8] == [20, 20, 21, 21], "accepted: rows are doubled"


def test_rewind_not_done(query: FollowedQuery, capsys: Capture) -> None:
    query.journals(EntryKind.REWIND_BEGUN, {"checkpoint": None, "process": dict(dead_process())})
    assert names(query.refused(), "REWIND_NOT_DONE", "recover LOCATION")
    does(capsys, "recover", str(query))
    assert query.start().has_all_of(0, 1, 2, 3)


def test_unknown_checkpoint(query: FollowedQuery, capsys: Capture) -> None:
    status, document, _ = answer(capsys, "rewind", str(query), "--to", "999", "--yes")
    assert (status, document["condition"]) == (1, "UNKNOWN_CHECKPOINT")
    assert "`barrier checkpoints list LOCATION`" in document["message"]
    kept = answer(capsys, "checkpoints", "list", str(query))[1]["checkpoints"]
    newest = str(max(each["id"] for each in kept))
    does(capsys, "rewind", str(query), "--to", newest, "--yes")
    assert query.start().has_all_of(0, 1, 2, 3)


def test_output_committed(query: FollowedQuery, capsys: Capture) -> None:
    first = str(min(query.checkpoints()))
    status, document, _ = answer(capsys, "rewind", str(query), "--to", first, "--yes")
    assert (status, document["condition"]) == (1, "OUTPUT_COMMITTED")
    assert "--allow-reemit" in document["message"]
    does(capsys, "rewind", str(query), "--to", first, "--allow-reemit", "--yes")
    assert query.start(2).rows() == [0, 1, 10, 10, 11, 11, 20, 20, 21, 21]


def test_nothing_to_rewind(query: FollowedQuery, capsys: Capture) -> None:
    """The journal was made by an adoption, and no query has run on it yet."""
    shutil.rmtree(query.path / "barrier")
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    status, document, _ = answer(capsys, "rewind", str(query), "--to", "1", "--yes")
    assert (status, document["condition"]) == (1, "NOTHING_TO_REWIND")
    query.start()
    does(capsys, "rewind", str(query), "--to", str(max(query.checkpoints())), "--yes")
    assert query.start().has_all_of(0, 1, 2, 3, 4)


def test_spark_offsets_torn(query: FollowedQuery, capsys: Capture) -> None:
    file = query.path / "offsets" / "3"
    file.write_text(query.planned(3)[:20])
    error = query.refused()
    assert names(error, "SPARK_OFFSETS_TORN", f"recover {query}")
    does(capsys, "recover", str(query))
    assert not file.exists()
    assert query.start().has_all_of(0, 1, 2, 3)


class ForgottenSink(FileSink):
    """No process that runs a command knows it."""

    @classmethod
    def name(cls) -> str:
        """Return a name that nobody has registered."""
        return "2pc-forgotten"


def test_unknown_sink(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    query = FollowedQuery(tmp_path, ForgottenSink, known=False).start().start(closes=False)
    status, document, _ = answer(capsys, "recover", str(query))
    assert (status, document["condition"]) == (1, "UNKNOWN_SINK")
    allowed = re.search(r"BARRIER_ALLOW=([\w.:]+)", document["message"])
    assert allowed, document
    monkeypatch.setenv("BARRIER_ALLOW", allowed[1])
    does(capsys, "recover", str(query))
    assert query.start().has_all_of(0, 1, 2)


def test_lost_after_decision(query: FollowedQuery, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it again writes the lost rows again, and no others."""
    commit = FileSink.commit

    def loses(self: FileSink, handles: object, checkpoint: object) -> None:
        lose(query, 3)
        commit(self, handles, checkpoint)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "commit", loses)
        assert query.refused().condition == "LOST_AFTER_DECISION"
    assert query.start(2).has_all_of(0, 1, 2, 3, 4)


def test_already_barrier_kafka(query: FollowedQuery, tmp_path: Path, capsys: Capture) -> None:
    copied = tmp_path / "copied"
    status, document, _ = answer(capsys, "import-offsets", str(query), str(copied), "--yes")
    assert (status, document["condition"]) == (1, "ALREADY_BARRIER_KAFKA")
    assert query.start().has_all_of(0, 1, 2, 3), "start the query as it is"
    query.moved_to(query.path.rename(copied))
    does(capsys, "restore", "--as-is", str(query), "--claim", "--yes")
    assert query.start().has_all_of(0, 1, 2, 3, 4)


class OpaqueSink(FileSink):
    """While it is `opaque`, nobody can see what became of a file."""

    opaque = False

    def inspect(self, handles: Sequence[FileHandle]) -> Sequence[HandleState]:
        """Look, and see nothing."""
        if self.opaque:
            return [HandleState(Outcome.UNKNOWN, evidence="the store has forgotten it") for _ in handles]
        return super().inspect(handles)


def test_outcome_unknown(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    query = FollowedQuery(tmp_path, OpaqueSink).start(3)

    def loses_its_store(*_: object) -> None:
        raise OSError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(OpaqueSink, "commit", loses_its_store)
        with pytest.raises(OSError, match="does not answer"):
            query.start()
    monkeypatch.setattr(OpaqueSink, "opaque", True)
    assert names(query.refused(), "OUTCOME_UNKNOWN", "resolve LOCATION")
    [part] = answer(capsys, "resolve", str(query))[1]["parts"]
    chosen = (
        "--checkpoint",
        str(part["checkpoint"]),
        "--part",
        f"{part['batch']}/{part['partition']}",
        "--as",
        "accept-loss",
    )
    does(capsys, "resolve", str(query), *chosen, "--unchecked", "--yes")
    monkeypatch.setattr(OpaqueSink, "opaque", False)
    assert query.start(2).has_all_of(0, 1, 2, 4), "accepted: rows are lost"


def test_driver_holds_state(query: FollowedQuery, capsys: Capture) -> None:
    (query.path / "state").mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        query.process = process_of(driver.pid)
        query.start(2, closes=False)
        lose(query, 3)
        status, document, _ = answer(capsys, "recover", str(query), "--query-stopped")
        assert (status, document["condition"]) == (1, "DRIVER_HOLDS_STATE")
        assert "`barrier recover LOCATION`" in document["message"]
        driver.communicate(b"\n")
    does(capsys, "recover", str(query))
    assert query.start(2).has_all_of(0, 1, 2, 3, 4)
