"""What a sink or a hook of somebody else raises, where it quotes the options that it was given."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from connector.location.offset_log import spark_view
from connector.spark.hosted_sink import HostedSink, SinkType
from connector.spark.recorded_sink import naming_secrets
from integration.file_sink import FileSink, FileTransaction
from tests.connector.cli_place import CliPlace
from transactional.checkpoint import Mode, TaskPlan
from transactional.errors import HookError
from transactional.hooks import CheckpointHook, HookContext
from transactional.sink import Options

SECRET = "n0body-kn0ws"
SCHEMA = StructType([StructField("value", LongType())])


class TalkingSink(FileSink):
    """Its client quotes what it logs in with."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._login = options.get("db.password", "")

    def identify(self) -> Mapping[str, str]:
        """Raises."""
        raise ConnectionError(f"admin/{self._login} was refused")

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """Raises."""
        raise ConnectionError(f"admin/{self._login} was refused")


class TalkingHook(CheckpointHook):
    """The same of a hook."""

    def __init__(self, options: Options) -> None:
        self._login = options["db.password"]

    def identifier(self) -> str:
        """Its name."""
        return "talking"

    def trigger(self, context: HookContext) -> bytes:
        """Raises."""
        raise ConnectionError(f"admin/{self._login} was refused")

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        """Nothing."""


def hosted(place: CliPlace, sink: SinkType = TalkingSink, **more: str) -> HostedSink:
    options = {"path": str(place.output), "checkpointLocation": str(place), "db.password": SECRET, **more}
    return HostedSink(sink, Options(options), SCHEMA)


def text_of(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem))


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    made = CliPlace(tmp_path)
    (made.path / "offsets" / "0").write_text("v1\n{}\nline 0")
    return made


def test_a_sink_that_quotes_a_secret_in_planning_is_not_quoted(place: CliPlace) -> None:
    sink = hosted(place)
    with (
        pytest.raises(RuntimeError, match=r"ConnectionError: admin/\(hidden\) was refused") as found,
        sink.coordinator(spark_view(sink.location), "d", {}) as coordinator,
    ):
        coordinator.plan()
    assert SECRET not in text_of(found.value)


def test_a_sink_that_quotes_a_secret_in_a_task_is_not_quoted(place: CliPlace) -> None:
    plan = TaskPlan(1, 0, Mode.WRITE, "q", "q", "p")
    rows = pa.record_batch({"value": [1]})
    with pytest.raises(RuntimeError, match=r"admin/\(hidden\)") as found:
        hosted(place).write(plan, iter([rows]), 0, 0)
    assert SECRET not in text_of(found.value)


def test_a_hook_that_quotes_a_secret_is_not_quoted(place: CliPlace, caplog: pytest.LogCaptureFixture) -> None:
    """Nor in the warnings while the decision is tried again, or in what the journal would keep of a declined checkpoint."""
    sink = hosted(place, FileSink, checkpointHooks=f"{__name__}:TalkingHook", commitTimeoutMs="200")
    with sink.coordinator(spark_view(sink.location), "d", {}) as coordinator:
        plan = coordinator.plan()
    acknowledged = sink.write(plan, iter([pa.record_batch({"value": [1]})]), 0, 0)
    with (
        pytest.raises(HookError, match=r"HOOK_FAILED.*admin/\(hidden\) was refused") as found,
        sink.coordinator(spark_view(sink.location), "d", {}) as coordinator,
    ):
        coordinator.commit([acknowledged], 0)
    assert SECRET not in text_of(found.value)
    assert "admin/(hidden) was refused" in caplog.text
    assert SECRET not in caplog.text


def test_what_is_done_while_no_query_runs_quotes_no_secret_that_was_given(place: CliPlace) -> None:
    place.run(setup={"hidden": []})
    run = place.ledger().newest_run
    assert run is not None
    with pytest.raises(RuntimeError, match=r"admin/\(hidden\)") as found, naming_secrets(run, {"db.password": SECRET}):
        raise ConnectionError(f"admin/{SECRET} was refused")
    assert SECRET not in str(found.value)
