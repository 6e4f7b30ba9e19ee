"""``barrier rewind`` on locations made by hand, with the file sink."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from connector.cli import main
from connector.cli.report import Report
from connector.delta.sink import DeltaSink
from connector.location.location import CheckpointLocation
from connector.location.offset_log import spark_view
from connector.spark.process import this_process
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, RestorableSink, answer, dead_process
from transactional.checkpoint import DecidedCheckpoint
from transactional.entry import EntryKind
from transactional.errors import RetriableError, RewindRequiredError, StoreError
from transactional.recovery import check_sources
from transactional.sink import Options


def three_checkpoints(folder: Path, sink: type[FileSink] = FileSink, **run: Any) -> CliPlace:
    """Micro-batches 0 to 2 are three settled checkpoints, 3 and 4 are prepared; the driver is dead."""
    place = CliPlace(folder, sink)
    place.run(**{"process": dead_process(), **run})
    for batch in range(3):
        output = {"orders-0": 10 * batch + 10, f"orders-{batch + 1}": batch}
        place.decided(batch, rows=batch + 1, output=output)
    place.prepared(3)
    place.prepared(4, in_spark=False)
    return place


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    return three_checkpoints(tmp_path)


Capture = pytest.CaptureFixture[str]


def newest(place: CliPlace) -> tuple[str, ...]:
    """The command that goes back to the newest checkpoint."""
    return ("rewind", str(place), "--to", str(place.checkpoints[-1]))


def test_the_newest_checkpoint_is_a_target_and_what_is_undecided_is_given_up(place: CliPlace, capsys: Capture) -> None:
    status, document, said = answer(capsys, *newest(place), "--yes")
    assert (status, document["status"], document["batch"], document["checkpoint"]) == (
        0,
        "done",
        2,
        place.checkpoints[-1],
    )
    assert (document["rewritten"], document["aborted"], document["emitted"]) == ([3, 4], [3, 4], [])
    assert "start the query: it continues after micro-batch 2" in said
    assert (place.files("committed"), place.files("aborted"), place.files("pending")) == ([0, 1, 2], [3, 4], [])
    assert (place.spark("offsets"), place.spark("commits")) == ([0, 1, 2], [0, 1, 2])
    found = place.ledger()
    assert (found.accounted, found.rewinding, sorted(found.checkpoints)) == (2, None, place.checkpoints)


def test_without_a_target_it_is_wrong_usage_that_names_recover(place: CliPlace, capsys: Capture) -> None:
    before = place.ledger().position
    status, document, _ = answer(capsys, "rewind", str(place), "--yes")
    assert (status, document["status"], place.ledger().position) == (2, "wrong usage", before)
    assert "or to finish an interrupted rewind, run `barrier recover LOCATION`" in document["message"]


def test_output_behind_a_named_target_is_told_and_has_to_be_allowed(place: CliPlace, capsys: Capture) -> None:
    target = place.checkpoints[0]
    before = place.ledger().position
    status, document, said = answer(capsys, "rewind", str(place), "--to", str(target), "--yes")
    assert (status, document["condition"]) == (1, "OUTPUT_COMMITTED")
    assert "5 rows in 2 checkpoints after checkpoint 2" in document["message"]
    assert "checkpoint 4: orders-0: 20, orders-2: 1; checkpoint 6: orders-0: 30" in document["message"]
    assert "--restore-tables" not in document["message"], "this sink has no tables"
    assert [each["checkpoint"] for each in document["emitted"]] == place.checkpoints[1:]
    assert document["emitted"][0]["output"] == {"orders-0": 20, "orders-2": 1}
    assert document["ranges"] == {"orders-0": [10, 30], "orders-2": [None, 1], "orders-3": [None, 2]}
    assert "orders-0: from 10 to 30" in said
    assert "is committed, and will be written AGAIN. Output: orders-0: 20, orders-2: 1" in said
    assert place.ledger().position == before
    allowed = ("rewind", str(place), "--to", str(target), "--allow-reemit", "--yes")
    status, document, _ = answer(capsys, *allowed)
    assert (status, document["status"], document["batch"]) == (0, "done", 0)
    assert document["gone"] == place.checkpoints[1:]
    assert (place.spark("offsets"), place.spark("commits")) == ([0], [0])
    assert (place.ledger().accounted, place.files("committed")) == (0, [0, 1, 2])


def test_a_dry_run_says_what_it_would_need_and_changes_nothing(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, process=this_process())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    target = str(place.checkpoints[1])
    status, document, said = answer(capsys, "rewind", str(place), "--to", target, "--dry-run")
    assert (status, document["status"], document["batch"]) == (0, "dry run", 1)
    assert document["needs"] == ["QUERY_RUNS", "OUTPUT_COMMITTED"]
    assert said.count("the rewind would be refused") == 2
    _, document, _ = answer(capsys, *newest(place), "--dry-run", "--query-stopped")
    assert (document["needs"], document["rewritten"]) == ([], [3, 4])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_dry_run_of_a_rewind_that_goes_on_says_that_the_location_is_an_older_copy(
    tmp_path: Path, capsys: Capture
) -> None:
    place = three_checkpoints(tmp_path, process=dead_process(), seen={"checkpoint": 0})
    target = place.checkpoints[0]
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": target, "allowReemit": True, "process": dict(dead_process())})
    asked = ("rewind", str(place), "--to", str(target), "--allow-reemit")
    assert answer(capsys, *asked, "--dry-run")[1]["needs"] == []
    (place.output / "newest").mkdir(exist_ok=True)
    (place.output / "newest" / "q").write_text("99")
    assert answer(capsys, *asked, "--dry-run")[1]["needs"] == ["LOCATION_PUT_BACK"]
    before = place.ledger().position
    assert answer(capsys, *asked, "--yes")[1]["condition"] == "LOCATION_PUT_BACK"
    assert place.ledger().position == before


def test_nobody_is_taken_back_without_a_yes(place: CliPlace, capsys: Capture) -> None:
    before = place.ledger().position
    status, document, _ = answer(capsys, *newest(place))
    assert (status, document["status"], place.ledger().position) == (3, "not answered", before)


def test_a_decided_checkpoint_is_committed_first(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path)
    target = newest(place)
    (place.path / "commits" / "4").write_text("v1\n{}")
    decided = place.decided(5, settle=False)
    assert answer(capsys, *target, "--yes")[1]["condition"] == "OUTPUT_COMMITTED"
    status, document, said = answer(capsys, *target, "--allow-reemit", "--yes")
    assert (status, document["settled"], document["gone"], document["batch"]) == (0, [decided], [decided], 2)
    assert "is decided, perhaps committed, and will be written AGAIN" in said
    assert place.files("committed") == [0, 1, 2, 3, 4, 5]
    assert place.spark("offsets") == [0, 1, 2]


def test_a_decided_checkpoint_whose_transactions_were_lost_is_void(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path)
    target = newest(place)
    (place.path / "commits" / "4").write_text("v1\n{}")
    decided = place.decided(5, settle=False)
    for path in (place.output / "pending").iterdir():
        path.unlink()
    status, document, _ = answer(capsys, *target, "--allow-reemit", "--yes")
    assert (status, document["settled"], document["gone"], document["batch"]) == (0, [], [decided], 2)


@pytest.mark.parametrize("replaced", [1, 2])
def test_offsets_that_a_driver_has_replaced_late_are_put_back_and_nothing_is_emitted_again(
    tmp_path: Path, capsys: Capture, replaced: int
) -> None:
    """Spark would go on where the late file ends: what lies between the two ends would be lost, or written twice."""
    place = CliPlace(tmp_path)
    place.keeps_logs = True
    place.run(process=dead_process())
    for batch in range(3):
        place.decided(batch)
    (place.path / "offsets" / "3").write_text("v1\n{}\nwhat follows the late file")
    late = place.path / "offsets" / str(replaced)
    late.write_text("v1\n{}\nline of a driver that stood still")
    (place.path / "offsets" / f".{replaced}.crc").write_text("of the late file")
    with pytest.raises(RewindRequiredError, match="OFFSETS_REPLACED"):
        check_sources(place.ledger(), spark_view(CheckpointLocation(str(place)), min(replaced + 1, 3)))
    _, _, said = answer(capsys, "restore", "--as-is", str(place), "--claim")
    assert ("are LOST, or DUPLICATED" in said) is (replaced == 2)
    status, document, _ = answer(capsys, "recover", str(place))
    assert (status, document["status"], document["batch"]) == (0, "done", 2)
    assert place.spark("offsets") == [0, 1, 2]
    assert late.read_text() == f"v1\n{{}}\nline {replaced}"
    check_sources(place.ledger(), spark_view(CheckpointLocation(str(place))))
    assert (place.files("committed"), place.files("pending")) == ([0, 1, 2], [])
    assert [answer(capsys, "recover", str(place))[1]["status"] for _ in range(2)] == ["done", "nothing to do"]


# -- who else is at work --------------------------------------------------------------------------------------------


def test_a_query_with_state_goes_back_only_when_its_driver_has_ended(tmp_path: Path, capsys: Capture) -> None:
    """Its state stores write snapshots a minute after the query has stopped."""
    place = three_checkpoints(tmp_path, process=this_process())
    (place.path / "state").mkdir()
    status, document, said = answer(capsys, *newest(place), "--yes", "--query-stopped")
    assert (status, document["condition"]) == (1, "DRIVER_HOLDS_STATE")
    assert "in a notebook, restart the kernel" in said


def test_a_query_whose_driver_runs_is_not_taken_back(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, process=this_process())
    status, document, said = answer(capsys, *newest(place), "--yes")
    assert (status, document["condition"]) == (1, "QUERY_RUNS")
    assert f"host {socket.gethostname()}, pid {os.getpid()}" in said
    assert "--query-stopped" in said
    assert "ends at its next micro-batch" in said
    assert place.ledger().newest_run is not None
    assert place.ledger().newest_run.ended is None  # type: ignore[union-attr]
    assert answer(capsys, *newest(place), "--yes", "--query-stopped")[0] == 0


def test_nor_while_an_earlier_driver_runs_that_may_not_know_that_it_is_superseded(
    tmp_path: Path, capsys: Capture
) -> None:
    place = three_checkpoints(tmp_path, process=this_process())
    place.run(process=dead_process(), driver="later")
    status, document, said = answer(capsys, *newest(place), "--yes")
    assert (status, document["condition"]) == (1, "QUERY_RUNS")
    assert f"pid {os.getpid()}" in said
    assert answer(capsys, *newest(place), "--yes", "--query-stopped")[0] == 0


@pytest.mark.parametrize("process", [{}, {"host": "elsewhere", "boot": "b", "namespace": "n", "pid": 7, "started": 1}])
def test_nor_one_of_whose_driver_nobody_can_tell(tmp_path: Path, process: dict[str, Any], capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, process=process)
    status, document, said = answer(capsys, *newest(place), "--yes")
    assert (status, document["condition"]) == (1, "DRIVER_UNKNOWN")
    assert f"host {process.get('host', 'unknown')}" in said
    assert answer(capsys, *newest(place), "--yes", "--query-stopped")[0] == 0


@pytest.mark.parametrize("by", ["the same command", "recover"])
def test_a_rewind_that_was_killed_is_finished(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch, capsys: Capture, by: str
) -> None:
    def killed(self: object, handles: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "abort", killed)
        status, document, said = answer(capsys, *newest(place), "--yes")
    assert (status, document["status"]) == (130, "interrupted")
    assert "run `barrier recover LOCATION` to finish it" in said
    begun = place.ledger().rewinding
    assert begun is not None
    assert begun.request == {"restoreTables": False, "allowReemit": False, "process": this_process()}
    for other in (("--to", "2", "--allow-reemit"), (*newest(place)[2:], "--restore-tables")):
        status, document, _ = answer(capsys, "rewind", str(place), *other, "--yes")
        assert (status, document["condition"]) == (1, "REWIND_NOT_DONE")
        assert "`barrier recover LOCATION`" in document["message"]
    again = ("recover", str(place)) if by == "recover" else (*newest(place), "--yes")
    status, document, said = answer(capsys, *again)
    assert (status, document["status"], document["batch"]) == (0, "done", 2)
    assert ("was started (journal entry" in said) is (by != "recover")
    assert place.ledger().rewinding is None


def other_process() -> dict[str, Any]:
    """A process of this machine that runs, and is not this one."""
    import connector.spark.process as processes

    return {**this_process(), "pid": os.getppid(), "started": processes._started(os.getppid())}


def test_a_rewind_that_runs_is_not_finished_by_another(place: CliPlace, capsys: Capture) -> None:
    begun = {"checkpoint": place.checkpoints[-1], "restoreTables": False}
    place.append(EntryKind.REWIND_BEGUN, {**begun, "process": other_process()})
    for more in ([], ["--query-stopped"]):
        status, document, said = answer(capsys, *newest(place), "--yes", *more)
        assert (status, document["condition"]) == (1, "LOCATION_BUSY")
        assert f"pid {os.getppid()}" in said
    place.append(EntryKind.REWIND_BEGUN, {**begun, "process": {"host": "elsewhere"}})
    assert answer(capsys, *newest(place), "--yes")[1]["condition"] == "REWIND_UNKNOWN"
    assert answer(capsys, *newest(place), "--dry-run")[1]["needs"] == ["REWIND_UNKNOWN"]
    assert answer(capsys, *newest(place), "--yes", "--query-stopped")[0] == 0


def test_two_rewinds_are_never_at_work_at_once(place: CliPlace, capsys: Capture) -> None:
    folder = os.open(place.path / "barrier" / "log", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert answer(capsys, *newest(place), "--yes")[1]["condition"] == "LOCATION_BUSY"
        assert place.ledger().rewinding is None
    finally:
        os.close(folder)
    assert answer(capsys, *newest(place), "--yes")[0] == 0


# -- taking output back ---------------------------------------------------------------------------------------------


def test_output_is_taken_back_where_the_sink_can(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, RestorableSink)
    target = str(place.checkpoints[0])
    assert "--restore-tables" in answer(capsys, "rewind", str(place), "--to", target)[1]["message"]
    status, document, said = answer(capsys, "rewind", str(place), "--to", target, "--restore-tables", "--yes")
    assert (status, document["restoreTables"]) == (0, True)
    assert "is committed, and will be ROLLED BACK" in said
    begun = place.ledger().position - 1
    assert (place.output / "restored").read_text() == f'[{{"orders-0": 10, "orders-1": 0}}, {begun}]'


def test_what_can_not_be_taken_back_is_refused_before_anything_is_begun(tmp_path: Path, capsys: Capture) -> None:
    asked = ["--to", "2", "--restore-tables", "--yes"]
    place = three_checkpoints(tmp_path / "fixed")
    status, document, _ = answer(capsys, "rewind", str(place), *asked)
    assert (status, document["condition"]) == (1, "NOT_RESTORABLE")
    status, document, _ = answer(capsys, "rewind", str(place), "--to", "2", "--yes")
    assert (status, document["condition"]) == (1, "OUTPUT_COMMITTED")
    assert "--restore-tables" not in document["message"]
    assert place.ledger().rewinding is None
    empty = CliPlace(tmp_path / "empty", RestorableSink)
    empty.run(process=dead_process())
    empty.decided(0)
    empty.decided(1)
    status, document, said = answer(capsys, "rewind", str(empty), *asked)
    assert (status, document["condition"]) == (1, "NOT_RESTORABLE")
    assert "does not contain the output's position" in said
    assert empty.ledger().rewinding is None


def never(sink: FileSink, output: Mapping[str, Any], rewind: int = 0) -> None:
    raise StoreError("NOT_RESTORABLE", sink=sink.name(), reason="it keeps what it has committed")


def away(sink: FileSink, output: Mapping[str, Any]) -> None:
    raise RetriableError("KAFKA_TIMEOUT", reason="away")


@pytest.mark.parametrize("refuse", [never, away])
def test_what_would_be_refused_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, refuse: Callable[..., None]
) -> None:
    """As by several sinks, one of which can't go back, or whose store is away."""
    place = three_checkpoints(tmp_path, RestorableSink)
    monkeypatch.setattr(RestorableSink, "checkRestore", refuse)
    document = answer(capsys, "rewind", str(place), "--to", "2", "--yes")[1]
    assert document["condition"] == "OUTPUT_COMMITTED"
    assert "--restore-tables" not in document["message"]


def test_a_restoration_that_fails_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    place = three_checkpoints(tmp_path, RestorableSink)
    with monkeypatch.context() as patch:
        patch.setattr(RestorableSink, "restoreOutput", never)
        status, document, said = answer(capsys, "rewind", str(place), "--to", "2", "--restore-tables", "--yes")
        assert (status, document["condition"]) == (1, "NOT_RESTORABLE")
        assert "has started but not finished" in said
        assert answer(capsys, "recover", str(place))[1]["condition"] == "NOT_RESTORABLE"
        assert "This rewind also rolls tables back" in answer(capsys, "rewind", str(place), "--to", "2", "--yes")[2]
        status, document, said = answer(capsys, "rewind", str(place), "--to", "2", "--allow-reemit")
        assert (status, document["status"]) == (3, "not answered")
        assert "written AGAIN" in said
        status, document, said = answer(capsys, "rewind", str(place), "--to", "2", "--allow-reemit", "--yes")
    assert (status, document["batch"]) == (0, 0)
    assert not (place.output / "restored").exists()


class DeltaPlace(CliPlace):
    """Writes to a Delta table, of which each checkpoint makes a version."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, DeltaSink)  # type: ignore[arg-type]
        self.made().identify()

    def made(self) -> DeltaSink:
        return DeltaSink(Options({"path": str(self.output), "transactionalIdPrefix": "p"}), VALUES)

    def checkpoint(self, batch: int) -> int:
        """One of a single micro-batch."""
        return self.decided(batch, output={"table": str(self.output), "version": batch + 1, "app": "q/2pc-delta"})

    def _move(self, handle: Any, folder: str) -> None:
        number = max(self.ledger().checkpoints)
        self.made().commit([handle], DecidedCheckpoint(number, (0,), 5, "q", "p"))

    def version(self) -> int:
        return int(DeltaTable(str(self.output)).version())

    def written_by_another(self) -> None:
        write_deltalake(str(self.output), pa.table({"value": [99]}), mode="append")


VALUES = pa.schema([("value", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> DeltaPlace:
    """Three checkpoints, versions 1 to 3 of a table."""
    place = DeltaPlace(tmp_path)
    place.run(process=dead_process())
    for batch in range(3):
        place.checkpoint(batch)
    assert place.version() == 3
    return place


def test_a_table_is_taken_back(table: DeltaPlace, capsys: Capture) -> None:
    asked = ("rewind", str(table), "--to", str(table.checkpoints[0]), "--restore-tables")
    assert answer(capsys, *asked, "--dry-run")[1]["needs"] == []
    assert answer(capsys, *asked, "--yes")[0] == 0
    assert (table.version(), DeltaTable(str(table.output)).to_pyarrow_table().num_rows) == (4, 5)


def test_a_table_that_others_have_written_to_is_refused_before_anything_is_begun(
    table: DeltaPlace, capsys: Capture
) -> None:
    table.written_by_another()
    before = table.ledger().position
    asked = ("rewind", str(table), "--to", str(table.checkpoints[0]), "--restore-tables")
    status, document, said = answer(capsys, *asked, "--dry-run")
    assert (status, document["needs"]) == (0, ["TABLE_HAS_OTHER_COMMITS"])
    assert "the rewind would be refused: [TABLE_HAS_OTHER_COMMITS]" in said
    status, document, _ = answer(capsys, *asked, "--yes")
    assert (status, document["condition"]) == (1, "TABLE_HAS_OTHER_COMMITS")
    assert "would undo the versions 4, and the table's log does not show that this query" in document["message"]
    assert "with --allow-reemit and without --restore-tables" in document["message"]
    assert (table.ledger().position, table.version()) == (before, 4)
    assert answer(capsys, *asked[:-1], "--allow-reemit", "--yes")[0] == 0
    assert table.version() == 4


def test_a_table_that_another_writes_to_meanwhile_has_a_way_out(
    table: DeltaPlace, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    asked = ("rewind", str(table), "--to", str(table.checkpoints[0]), "--restore-tables")
    monkeypatch.setattr(Report, "confirm", lambda report, yes: table.written_by_another())
    status, document, _ = answer(capsys, *asked)
    monkeypatch.undo()
    assert (status, document["condition"]) == (1, "TABLE_HAS_OTHER_COMMITS")
    assert "rewind to the same checkpoint with --allow-reemit" in document["message"]
    assert table.ledger().rewinding is not None
    status, document, _ = answer(capsys, *asked[:-1], "--allow-reemit", "--yes")
    assert (status, document["batch"], table.version()) == (0, 0, 4)


# -- where it is refused --------------------------------------------------------------------------------------------


def test_only_a_streaming_query_at_its_own_place_is_taken_back(
    place: CliPlace, tmp_path: Path, capsys: Capture
) -> None:
    def condition(path: Path | str = str(place), *more: str) -> str:
        status, document, _ = answer(capsys, "rewind", str(path), "--yes", *(more or newest(place)[2:]))
        assert status == 1
        found: str = document["condition"]
        return found

    assert condition(tmp_path) == "NO_JOURNAL"
    assert condition("viewfs://host/place") == "NO_EXCLUSIVE_CREATE"
    assert condition(str(place), "--to", "99") == "UNKNOWN_CHECKPOINT"
    mark = place.path / "barrier" / "batch-writer.json"
    mark.write_text("{}")
    assert condition() == "LOCATION_TAKEN"
    mark.unlink()
    (place.path / "offsets" / "2").write_text("v1\n{}\nanother line")
    assert condition() == "BATCHES_NOT_ACCOUNTED"
    moved = place.path.rename(tmp_path / "moved")
    assert condition(moved) == "LOCATION_MOVED"
    (moved / "metadata").write_text('{"id":"another"}')
    assert condition(moved) == "LOCATION_MOVED"
    (moved / "metadata").unlink()
    assert condition(moved) == "LOGS_INCONSISTENT"


def test_a_copy_on_which_nothing_has_run_touches_nothing_of_its_original(place: CliPlace, capsys: Capture) -> None:
    assert main(["restore", "--as-is", str(place), "--no-claim", "--yes"]) == 0
    assert answer(capsys, "rewind", str(place), "--yes", "--to", "2")[1]["condition"] == "ADOPTED_NOT_STARTED"
    assert place.files("pending") == [3, 4]


def test_a_run_of_an_older_version_has_not_recorded_its_sink(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, setup={})
    assert answer(capsys, *newest(place), "--yes")[1]["condition"] == "SINK_NOT_RECORDED"


# -- options of the sink --------------------------------------------------------------------------------------------


class PasswordSink(FileSink):
    """Wants an option that the journal does not keep."""

    def __init__(self, options: Any, schema: Any) -> None:
        super().__init__(options, schema)
        if schema.names:  # the host's; the tests' own has no columns
            assert options["kafka.sasl.password"] == "hunter2"
            assert options["path"]


def test_options_are_given_anew_and_never_shown(tmp_path: Path, capsys: Capture) -> None:
    place = three_checkpoints(tmp_path, PasswordSink)
    file = tmp_path / "options"
    file.write_text("# secrets\n\nkafka.sasl.password = hunter2\n")
    status, document, said = answer(capsys, *newest(place), "--dry-run", "--options-file", str(file))
    assert (status, document["status"]) == (0, "dry run")
    given = ["--option", "kafka.sasl.password=hunter2", "--option", "other=a=b"]
    status, document, said = answer(capsys, *newest(place), "--yes", *given)
    assert status == 0
    assert "hunter2" not in str(document) + said + str(place.ledger().to_json())


@pytest.mark.parametrize("how", ["--option", "--options-file"])
def test_an_option_that_is_none_is_wrong_usage_and_not_repeated(
    place: CliPlace, tmp_path: Path, how: str, capsys: Capture
) -> None:
    file = tmp_path / "options"
    file.write_text("a=b\nhunter2\n")
    assert main([*newest(place), how, "hunter2" if how == "--option" else str(file)]) == 2
    assert main([*newest(place), "--options-file", str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err


def test_a_file_of_options_that_is_no_text_is_wrong_usage(place: CliPlace, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "options"
    file.write_bytes(b"\x7fELF\xff\xfe")
    status, document, said = answer(capsys, *newest(place), "--options-file", str(file))
    assert (status, document["status"]) == (2, "wrong usage")
    assert document["message"].endswith(f"--options-file {file}: the file is not UTF-8 text")
    assert "Traceback" not in said
