"""What a terminal shows of a mistake: little, nothing of the JVM, and the sentence at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from integration import ROOT
from integration.broker import Cluster
from integration.lost_formats import killed_once
from integration.mistakes import BEGIN, RETURNED, Mistake
from integration.secured import Right
from integration.test_missing_rights import IDS, PASSWORD, SINK, SOURCE, WRITES, Users, guarded, users

__all__ = ["guarded", "users"]

MOST_LINES = 45
JVM_FRAME = re.compile(r"^\s+(at [\w.$<>]+[\w$<>]\(|\.\.\. \d+ more)")
UNREACHABLE = "127.0.0.1:1"
DESCRIBES: Right = ("transactional_id", "q*", "describe")


@dataclass(frozen=True)
class Seen:
    """What a terminal showed of one mistake."""

    lines: list[str]

    @property
    def frames(self) -> int:
        """Lines that name a frame of the JVM."""
        return sum(1 for line in self.lines if JVM_FRAME.match(line))

    @property
    def start_raised(self) -> bool:
        """Whether `start`, or `load`, has raised."""
        return RETURNED not in self.lines

    @property
    def last(self) -> str:
        """The last line, but for the SQLSTATE that Spark adds to what a worker raises at ``load()``."""
        return next((line for line in reversed(self.lines) if not line.startswith(" SQLSTATE: ")), "")

    def position(self, condition: str) -> list[int]:
        """Where the condition stands, counted from 1."""
        return [number for number, line in enumerate(self.lines, 1) if f"[{condition}]" in line]


def seen(mistakes: list[Mistake], folder: Path, *arguments: str) -> dict[str, Seen]:
    """Let a program make them."""
    file = folder / "mistakes.json"
    file.write_text(json.dumps([mistake.to_json() for mistake in mistakes]))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "integration.mistakes", str(file), *arguments]
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, timeout=600, check=False
    )
    (folder / "terminal.txt").write_text(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Seen] = {}
    for part in done.stderr.split(BEGIN)[1:]:
        name, _, text = part.partition("\n")
        found[name] = Seen([line for line in text.splitlines() if line.strip()])
    return found


def mistakes_of(cluster: Cluster, users: Users, folder: Path) -> list[tuple[Mistake, str]]:
    """Every mistake of the page's list, with the condition that names it."""
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}

    def sink(name: str, **changed: str | None) -> dict[str, str]:
        plain = {**servers, "topic": SINK, "checkpointLocation": str(folder / name)}
        return {key: value for key, value in {**plain, **changed}.items() if value is not None}

    def user(name: str, missing: Right | None = None, also: Sequence[Right] = ()) -> dict[str, str]:
        options = users.with_rights({*also, *(right for right in WRITES if right != missing)})
        return sink(name, **options, transactionalIdPrefix="q2")

    def table(name: str, **changed: str) -> dict[str, str]:
        return {"path": str(folder / "table"), "checkpointLocation": str(folder / name), **changed}

    DeltaTable.create(str(folder / "table"), Schema.from_arrow(pa.schema([("other", pa.string())])))
    source = {**servers, "subscribe": SOURCE}
    strange = json.dumps({SOURCE: {str(partition): -2 for partition in range(99)}})
    count = ("CAST(count AS STRING) AS value",)
    return [
        (Mistake("sink option", sink("a", transactionIdPrefix="x")), "UNKNOWN_OPTION"),
        (Mistake("source option", sink("b"), source={**source, "subscirbe": "x"}), "UNKNOWN_OPTION"),
        (Mistake("value", sink("c", maxBatchesPerCheckpoint="many")), "INVALID_OPTION"),
        (Mistake("no topic", sink("d", topic=None)), "MISSING_OPTION"),
        (Mistake("unknown topic", sink("e", topic="no-such-topic")), "UNKNOWN_TOPIC"),
        (Mistake("unknown source topic", sink("f"), source={**source, "subscribe": "no"}), "UNKNOWN_TOPIC"),
        (Mistake("no location", sink("g", checkpointLocation=None)), "MISSING_OPTION"),
        (Mistake("no broker", sink("h", **{"kafka.bootstrap.servers": UNREACHABLE})), "BROKERS_UNREACHABLE"),
        (Mistake("wrong password", {**user("i"), "kafka.sasl.password": "x"}), "AUTHENTICATION_FAILED"),
        (Mistake("no WRITE", user("j", ("topic", SINK, "write"))), "MISSING_RIGHT"),
        (Mistake("no READ", user("k", ("topic", SINK, "read"))), "MISSING_RIGHT"),
        (Mistake("no ids", user("l", IDS)), "MISSING_RIGHT"),
        (Mistake("ids to describe only", user("m", IDS, [DESCRIBES])), "MISSING_RIGHT"),
        (Mistake("no value", sink("n"), columns=("CAST(value AS STRING) AS key",)), "COLUMNS_MISMATCH"),
        (Mistake("column type", sink("o"), columns=("value",)), "COLUMNS_MISMATCH"),
        (Mistake("complete mode", sink("p"), columns=count, mode="complete"), "OUTPUT_MODE"),
        (Mistake("update mode", sink("p2"), mode="update"), "OUTPUT_MODE"),
        (Mistake("timeout", sink("q", **{"kafka.transaction.timeout.ms": "900001"})), "INVALID_OPTION"),
        (Mistake("table option", table("r", mergeSchemas="true"), "2pc-delta"), "UNKNOWN_OPTION"),
        (Mistake("no path", {"checkpointLocation": str(folder / "s")}, "2pc-delta"), "MISSING_OPTION"),
        (Mistake("complete table", table("t"), "2pc-delta", columns=count, mode="complete"), "OUTPUT_MODE"),
        (Mistake("table column", table("u"), "2pc-delta"), "COLUMNS_MISMATCH"),
        (Mistake("one too many", sink("v"), source={**source, "startingOffsets": strange}), "INVALID_OPTION"),
        (Mistake("interval", sink("w"), source={**source, "barrierInterval": "10h"}), "INTERVAL_NOT_POSSIBLE"),
        (Mistake("file", sink("x", checkpointLocation=str(folder / "mistakes.json" / "x"))), "LOCATION_NOT_A_FOLDER"),
    ]


def report(found: Mapping[str, Seen]) -> str:
    """Lines and frames of each, for whoever compares two releases."""
    return "\n".join(
        f"{each.start_raised} {len(each.lines)} {each.frames} {name}: {each.last}" for name, each in found.items()
    )


@pytest.mark.slow
def test_start_raises_every_mistake_and_the_sentence_is_the_last_of_few_lines(
    guarded: Cluster, users: Users, tmp_path: Path
) -> None:
    mistakes = mistakes_of(guarded, users, tmp_path)
    rights = {**users.with_rights(WRITES), "topic": SINK, "transactionalIdPrefix": "q3"}
    right = Mistake("none", {**rights, "checkpointLocation": str(tmp_path / "right")})
    found = seen([*(mistake for mistake, _ in mistakes), right], tmp_path)
    told = report(found)
    print(told)
    assert "registered data source" not in (tmp_path / "terminal.txt").read_text(), "register replaces what Spark found"
    for mistake, condition in mistakes:
        one = found[mistake.name]
        assert one.start_raised, told
        assert f"[{condition}] " in one.last, told
        assert len(one.lines) <= MOST_LINES, told
        assert one.frames == 0, told
        assert PASSWORD not in "".join(one.lines)
        # What Spark keeps of a start would win over a corrected startingOffsets.
        location = mistake.sink.get("checkpointLocation")
        assert location is None or not Path(location).exists(), told
    assert not found["none"].start_raised, told
    assert (tmp_path / "right" / "commits" / "0").exists(), told
    listed = re.findall(r"^\| (`[A-Z_]+`.*?) \|", (ROOT / "docs" / "doctor.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"[A-Z_]{3,}", " ".join(listed))) == {condition for _, condition in mistakes}


@pytest.mark.matrix
def test_without_the_call_the_first_micro_batch_says_what_spark_has_recorded(
    guarded: Cluster, users: Users, tmp_path: Path
) -> None:
    mistake, condition = mistakes_of(guarded, users, tmp_path)[0]
    one = seen([mistake], tmp_path, "--unregistered")[mistake.name]
    print(report({mistake.name: one}))
    assert not one.start_raised
    said = "\n".join(one.lines)
    assert re.search(rf"\[{condition}\] .*Nothing was written.*a/offsets/0.*barrier_kafka\.register\(spark\)", said), (
        said
    )
    assert (tmp_path / "a" / "offsets" / "0").exists()


@pytest.mark.matrix
def test_a_session_that_has_lost_the_formats_finds_them_when_it_is_supervised(tmp_path: Path) -> None:
    killed_once(tmp_path)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    command = [sys.executable, "-m", "integration.lost_formats", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    first, again, supervised, afterwards = done.stdout.splitlines()
    lost = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: barrier-kafka."
    assert lost in first
    assert lost in again
    for found in (supervised, afterwards):
        assert "[MISSING_OPTION] barrier-kafka" in found
    assert lost in (ROOT / "docs" / "doctor.md").read_text()
