"""Mistakes at a sink: found where the user's program calls `start`, and else by the first planning."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

import connector
from connector.formats.table import FORMATS
from connector.kafka.client.topics import Partition
from connector.kafka.source import planned
from connector.location.location import CheckpointLocation
from connector.registration import data_sources, sessions
from connector.spark import internals
from connector.spark.host import HostedStreamWriter
from connector.spark.hosted_sink import HostedSink
from connector.spark.internals import StreamWrite
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, another_user, shared_folder, two_users
from tests.transactional.bodies import fact_of, run_body
from transactional.capabilities import Examines, Expires
from transactional.entry import EntryKind
from transactional.errors import (
    LocationError,
    OptionError,
    ProtocolError,
    RetriableError,
    StoreError,
    StoreUnreachableError,
    TwoPhaseCommitError,
)
from transactional.finding import Finding, good, unknown, warning
from transactional.sink import Options

VALUE = StructType([StructField("value", StringType())])
NUMBER = StructType([StructField("number", LongType())])
KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "checkpointLocation": "/nowhere"}


class Session:
    """Records what is registered; knows `known`."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.dataSource = SimpleNamespace(register=self._register)
        self.conf: dict[str, str] = {}
        self.version = "4.2.1"
        self.registered: list[str] = []

    def _register(self, source: Any) -> None:
        self.registered.append(source.name())
        self.known.add(source.name())


class CheckedSink(Examines, FileSink):
    """Its check of a start raises what a test wants."""

    problem: Exception | None = None
    prefixes: list[str | None] = []
    findings: list[Finding] = []

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "checked"

    def checkStart(self, prefix: str | None) -> None:
        """Raise it."""
        self.prefixes.append(prefix)
        if self.problem is not None:
            raise self.problem

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterator[Finding]:
        """Find what a test wants, and fail."""
        yield from self.findings
        raise OSError("the disk is away")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session("barrier-kafka", "2pc-kafka", "2pc-delta")
    monkeypatch.setattr(internals, "knows_format", lambda session, name: name in session.known)
    monkeypatch.setattr(internals, "be_active", lambda session: None)
    monkeypatch.setattr(internals, "stream_sources", lambda writer: [], raising=False)
    monkeypatch.setattr(data_sources, "_own", {})
    return session


Start = Callable[..., Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, session: Session) -> Iterator[Start]:
    """Call `start` of a writer that was given these; "started" once Spark is reached."""

    def plain(
        self: Any,
        path: Any = None,
        format: Any = None,  # noqa: A002 - PySpark's name
        outputMode: Any = None,
        queryName: Any = None,
        **options: Any,
    ) -> str:
        return "started"

    def option(writer: DataStreamWriter, key: str, value: str) -> DataStreamWriter:
        session.added[key] = value  # type: ignore[attr-defined]
        return writer

    session.added = {}  # type: ignore[attr-defined]
    monkeypatch.setattr(DataStreamWriter, "start", plain)
    monkeypatch.setattr(DataStreamWriter, "option", option)
    monkeypatch.setattr(CheckedSink, "problem", None)
    monkeypatch.setattr(CheckedSink, "prefixes", [])
    connector.register(session, CheckedSink)  # type: ignore[arg-type]

    def call(
        format_: str, options: Mapping[str, str], schema: StructType = VALUE, mode: str = "Append", **named: Any
    ) -> Any:
        monkeypatch.setattr(internals, "stream_write", lambda writer: StreamWrite(format_, mode, options, schema))
        writer = DataStreamWriter.__new__(DataStreamWriter)
        writer._spark = session  # type: ignore[assignment]
        return writer.start(**named)

    yield call
    assert getattr(DataStreamWriter.start, "checks_our_sinks", False)


@pytest.mark.parametrize(
    ("more", "schema", "mode", "condition"),
    [
        ({"transactionIdPrefix": "x"}, VALUE, "Append", "UNKNOWN_OPTION"),
        ({"maxBatchesPerCheckpoint": "many"}, VALUE, "Append", "INVALID_OPTION"),
        ({"checkpointLocation": None}, VALUE, "Append", "MISSING_OPTION"),
        ({"topic": None}, VALUE, "Append", "MISSING_OPTION"),
        ({"txnVersion": "1"}, VALUE, "Append", "FORBIDDEN_OPTION"),
        ({}, NUMBER, "Append", "COLUMNS_MISMATCH"),
        ({}, VALUE, "Complete", "OUTPUT_MODE"),
        ({}, VALUE, "Update", "OUTPUT_MODE"),
    ],
)
def test_start_itself_raises_a_mistake_in_one_sentence(
    start: Start, more: dict[str, str | None], schema: StructType, mode: str, condition: str
) -> None:
    options = {key: value for key, value in {**KAFKA, **more}.items() if value is not None}
    with pytest.raises(TwoPhaseCommitError) as raised:
        start("2pc-kafka", options, schema, mode)
    assert raised.value.condition == condition
    assert raised.value.__suppress_context__
    assert len(traceback.extract_tb(raised.value.__traceback__)) == 3  # the test, its helper, `start`


@pytest.mark.parametrize(
    "named", [{"format": "checked"}, {"format": "CHECKED", "outputMode": "append", "queryName": "q"}]
)
def test_what_start_is_given_counts_over_the_writer(start: Start, tmp_path: Path, named: dict[str, str]) -> None:
    given = {"checkpointLocation": str(tmp_path), "transactionalIdPrefix": "p", "path": str(tmp_path)}
    assert start("parquet", {"transactionalIdPrefix": "q"}, **named, **given) == "started"
    assert CheckedSink.prefixes == ["p"]
    with pytest.raises(OptionError, match="OUTPUT_MODE"):
        start("parquet", {}, **{**named, "outputMode": "complete"}, **given)


def test_a_wrong_value_of_an_option_of_every_sink_names_the_sink(start: Start, tmp_path: Path) -> None:
    given = {"checkpointLocation": str(tmp_path), "path": str(tmp_path), "retainedCheckpoints": "many"}
    with pytest.raises(OptionError, match=r"checked: .*retainedCheckpoints") as raised:
        start("parquet", {}, format="checked", **given)
    assert raised.value.parameters["owner"] == "checked"


def test_the_first_start_at_a_location_logs_what_may_hurt(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"checkpointLocation": str(tmp_path), "path": str(tmp_path)}
    found = [
        good("disk", "has space"),
        unknown("owner", "This user may not see the owner."),
        warning("disk", "The disk is nearly full.", "Buy one."),
        warning("login", "http://etl:s3cret-word@store answers slowly.", "Ask password=other-word."),
    ]
    monkeypatch.setattr(CheckedSink, "findings", found)
    assert start("checked", given) == "started", "advice that fails is no reason to fail"
    text = "checked [disk]: The disk is nearly full. Buy one."
    hidden = "checked [login]: http://etl:(hidden)@store answers slowly. Ask password=(hidden)"
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [text, hidden]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    assert start("checked", given) == "started"
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 2, "each is said once"


def test_a_query_without_a_prefix_has_none_to_be_checked_yet(start: Start, tmp_path: Path) -> None:
    assert start("checked", {"checkpointLocation": str(tmp_path), "path": str(tmp_path)}) == "started"
    assert CheckedSink.prefixes == [None]


@pytest.mark.parametrize(
    "problem", [StoreError("MISSING_RIGHT", "no"), StoreUnreachableError("BROKERS_UNREACHABLE", "no")]
)
def test_what_the_store_refuses_start_raises(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    monkeypatch.setattr(CheckedSink, "problem", problem)
    with pytest.raises(StoreError) as raised:
        start("checked", {"checkpointLocation": str(tmp_path), "path": str(tmp_path)})
    assert raised.value is problem


@pytest.mark.parametrize(
    "problem",
    [
        RetriableError("KAFKA_TIMEOUT", "a coordinator moves"),
        StoreError("NO_TOKEN", "its server restarts"),
        ProtocolError("UNKNOWN_SPARK", "another name for a field of DataStreamWriter"),
        OptionError("MISSING_PACKAGE", "the workers may have it"),
        ImportError("confluent_kafka"),
        ConnectionError("whatever a sink of somebody else raises"),
    ],
)
def test_what_only_the_planning_can_judge_does_not_keep_a_query_from_its_start(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    monkeypatch.setattr(CheckedSink, "problem", problem)
    assert start("checked", {"checkpointLocation": str(tmp_path), "path": str(tmp_path)}) == "started"
    assert CheckedSink.prefixes == [None]


class ReplacingSink(Expires, CheckedSink):
    """Its transactions live a minute, and its rows replace earlier ones."""

    replacesRows = True

    def lifetime(self) -> float:
        """Return a minute."""
        return 60.0


KEEPS = {"barrierInterval": "30 s"}
READS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


@pytest.mark.parametrize(
    ("sources", "condition", "said"),
    [
        ([("barrier-kafka", {**READS, "barrierInterval": "31 s"})], "INTERVAL_NOT_POSSIBLE", "half of that, 30 s"),
        ([("barrier-kafka", {**READS, "minPauseBetweenCheckpoints": "31 s"})], "INTERVAL_NOT_POSSIBLE", "half of that"),
        ([("barrier-kafka", {**READS, **KEEPS}), ("rate", {})], "INTERVAL_NOT_POSSIBLE", "does not support barriers"),
        ([("barrier-kafka", {**READS, "minPartitions": "9", "allowReordering": "true"})], "INVALID_OPTION", "replaces"),
        ([("barrier-kafka", {**READS, "alignOn": "b"}), ("barrier-kafka", READS)], "NOT_ALIGNED", "2 sources"),
        ([("barrier-kafka", {**READS, "minPartitions": "9"})], "FORBIDDEN_OPTION", "allowReordering"),
    ],
)
def test_a_source_that_does_not_fit_the_sink_is_reported_by_start(
    start: Start,
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: Sequence[tuple[str, dict[str, str]]],
    condition: str,
    said: str,
) -> None:
    monkeypatch.setattr(internals, "stream_sources", lambda writer: sources)
    connector.register(session, ReplacingSink)  # type: ignore[arg-type]
    options = {"checkpointLocation": str(tmp_path / "new"), "path": str(tmp_path / "out")}
    with pytest.raises(OptionError, match=said) as raised:
        start("checked", options)
    assert raised.value.condition == condition
    assert "rewind" not in str(raised.value), "nothing is planned yet"
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(internals, "stream_sources", lambda writer: [("barrier-kafka", {**READS, **KEEPS})])
    assert start("checked", options) == "started", "it fits"


@pytest.mark.parametrize("option", ["startingOffsets", "startingTimestamp"])
def test_a_first_start_compares_its_bounds_with_the_partitions_that_there_are(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    key = "startingOffsetsByTimestamp" if option == "startingTimestamp" else option
    options = {"checkpointLocation": str(tmp_path / "q"), "path": str(tmp_path / "out")}

    def begins(at: str) -> Any:
        source = ("barrier-kafka", {**READS, key: at})
        monkeypatch.setattr(internals, "stream_sources", lambda writer: [source])
        return start("checked", options)

    monkeypatch.setattr(planned, "partitions_of", lambda read: [Partition("t", 0), Partition("t", 1)])
    assert begins('{"t": {"0": 5, "1": 6}}') == "started"
    with pytest.raises(OptionError, match=rf"{key} is 'without t-1'; expected every partition"):
        begins('{"t": {"0": 5}}')
    with pytest.raises(OptionError, match=rf"{key} is 't-2'; expected partitions that this source reads"):
        begins('{"t": {"0": 5, "1": 6, "2": 7}}')
    (tmp_path / "q" / "offsets").mkdir(parents=True)
    (tmp_path / "q" / "offsets" / "0").write_text("v1\n{}\n-")
    assert begins('{"t": {"0": 5}}') == "started", "a later start reads where the former one ended"


def test_a_location_that_can_not_be_made_or_written_is_reported_by_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = {"checkpointLocation": str(tmp_path / "file" / "q"), "path": str(tmp_path / "out")}
    with pytest.raises(LocationError, match=rf"LOCATION_NOT_A_FOLDER.*{tmp_path}/file is a file"):
        start("checked", options)


@two_users
def test_a_location_that_is_closed_to_this_user_is_reported_by_start(start: Start) -> None:
    with shared_folder() as folder:
        for name in ("ours", "ours/q"):
            (folder / name).mkdir(mode=0o755)
        (folder / "ours").chmod(0o755)
        for location in (folder / "ours" / "q", folder / "ours" / "new"):
            with another_user(), pytest.raises(LocationError, match=r"LOCATION_NOT_OURS.*no access to"):
                start("checked", {"checkpointLocation": str(location), "path": str(folder / "out")})
            assert not (folder / "ours" / "new").exists()


def test_other_formats_are_left_alone(start: Start) -> None:
    assert start("parquet", {"no": "option"}, NUMBER, "Complete") == "started"


def test_a_start_tells_the_planning_where_the_journal_ends(start: Start, session: Session, tmp_path: Path) -> None:
    at = {"checkpointLocation": str(tmp_path / "q"), "path": str(tmp_path / "out")}
    start("checked", at)
    assert session.added == {"startedAfter": "0"}  # type: ignore[attr-defined]
    journal = CheckpointLocation.from_options(at).journal()
    journal.append(fact_of(EntryKind.RUN, run_body(driver="d")), lambda ledger: None)
    start("checked", {**at, "startedAfter": "0"})
    assert session.added == {"startedAfter": "1"}  # type: ignore[attr-defined]
    (tmp_path / "q/barrier/log/1.json").write_bytes(b"{")
    start("checked", at)
    assert session.added == {"startedAfter": ""}  # type: ignore[attr-defined]
    assert HostedSink(CheckedSink, Options({**at, "startedAfter": "7"}), VALUE).started == 7


def test_to_register_again_checks_once(start: Start, session: Session) -> None:
    checked = DataStreamWriter.start
    connector.register(session, CheckedSink)  # type: ignore[arg-type]
    assert DataStreamWriter.start is checked


@pytest.mark.parametrize("lacks", [True, False])
def test_workers_without_the_package_are_named_by_register(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture, lacks: bool
) -> None:
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {"-I -S" if lacks else ""} "$@"\n')
    program.chmod(0o755)
    session.sparkContext = SimpleNamespace(pythonExec=str(program), _python_includes=[])  # type: ignore[attr-defined]
    connector.register(session)  # type: ignore[arg-type]
    told = [record.getMessage() for record in caplog.records if "workers" in record.getMessage()]
    assert len(told) == lacks
    for each in told:
        assert f"run {program}" in each
        assert "No module named 'connector'" in each
        assert f"PYSPARK_PYTHON={sys.executable}" in each


def test_ours_are_registered_over_formats_of_the_same_name(start: Start, session: Session) -> None:
    """Rows would go to another package's writer, and nothing would say so."""
    session.registered.clear()
    connector.register(session, CheckedSink)  # type: ignore[arg-type]
    assert sorted(session.registered) == sorted([*(each.name for each in FORMATS), "checked"])


def test_a_session_that_has_lost_the_formats_gets_them_again(start: Start, session: Session) -> None:
    session.registered.clear()
    session.known -= {"barrier-kafka", "checked"}
    sessions.register_lost(session)  # type: ignore[arg-type]
    assert sorted(session.registered) == ["barrier-kafka", "checked"]
    sessions.register_lost(session)  # type: ignore[arg-type]
    assert len(session.registered) == 2
    sessions.register_lost(None)


# -- the first planning ---------------------------------------------------------------------------------------------


def refused(place: CliPlace) -> str:
    options = Options({"checkpointLocation": str(place), "path": str(place)})
    with pytest.raises(OptionError) as raised:
        HostedStreamWriter(HostedSink(FileSink, options, VALUE)).prepare(overwrite=True)
    return str(raised.value)


def test_the_first_planning_says_what_spark_has_recorded_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "location" / "offsets").mkdir(parents=True)
    offsets = tmp_path / "location" / "offsets" / "0"
    offsets.write_text("v1")
    said = refused(tmp_path / "location")  # type: ignore[arg-type]
    assert f"Nothing was written. Spark has already recorded in {offsets}" in said
    assert "\n" not in said
    assert offsets.exists()


def test_a_later_planning_says_nothing_of_a_start(place: CliPlace) -> None:
    place.prepared(0)
    assert "Nothing was written" not in refused(place)


def test_a_version_of_spark_s_offset_log_that_no_later_planning_could_read_is_refused_before_it_is_written(
    start: Start, session: Session, tmp_path: Path
) -> None:
    options = {"checkpointLocation": str(tmp_path), "path": str(tmp_path / "out")}
    session.conf["spark.sql.streaming.offsetLog.formatVersion"] = "1"
    assert start("checked", options) == "started"
    session.conf["spark.sql.streaming.offsetLog.formatVersion"] = "3"
    with pytest.raises(OptionError, match=r"SPARK_OFFSETS_UNKNOWN.*formatVersion.*version 3"):
        start("checked", options)
    session.conf["spark.sql.streaming.offsetLog.formatVersion"] = "2"
    assert start("checked", options) == "started"
    session.version = "4.2.0"
    with pytest.raises(OptionError, match=r"SPARK_OFFSETS_UNKNOWN.*version 2.*4\.2\.0 can't start.*4\.2\.1 can"):
        start("checked", options)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()  # the location keeps the version that it began with
    assert start("checked", options) == "started"


def test_settings_that_make_every_query_slow_are_named(
    start: Start, session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"checkpointLocation": str(tmp_path), "path": str(tmp_path / "out")}
    session.conf.update({"spark.sql.execution.arrow.compression.codec": "none", "spark.python.worker.reuse": "true"})
    assert start("checked", options) == "started"
    assert not caplog.records
    session.conf.update({"spark.sql.execution.arrow.compression.codec": "LZ4", "spark.python.worker.reuse": "false"})
    assert start("checked", options) == "started"
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == [
        "spark.sql.execution.arrow.compression.codec=LZ4",
        "spark.python.worker.reuse=false",
    ]
