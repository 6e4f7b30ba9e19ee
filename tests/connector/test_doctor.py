"""The doctor's checks, without brokers."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from connector.doctor.examine import examine_location, examine_options
from connector.doctor.finding import CHECKS, failed
from connector.doctor.store import check_store
from connector.formats import discovery
from connector.formats.table import format_of
from connector.kafka.sink.examination import check_replicas, check_timeout
from connector.location.location import CheckpointLocation
from tests.connector.cli_place import CliPlace
from transactional.capabilities import Examines
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import StoreError
from transactional.errors.catalogue import catalogue
from transactional.finding import Finding, Level, good, problem
from transactional.testing import RecordingSink


def test_each_check_has_its_section() -> None:
    page = Path("docs/doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\S+)$", page, re.MULTILINE) == list(CHECKS)


def test_each_finding_is_of_a_check() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path("connector").rglob("*.py")]
    found = {
        name for text in texts for name in re.findall(r"\b(?:good|unknown|warning|problem)\(\s*\"([a-z-]+)\"", text)
    }
    assert found == set(CHECKS)


@pytest.mark.parametrize(
    ("condition", "check"),
    [
        ("BROKERS_UNREACHABLE", "brokers"),
        ("MISSING_RIGHT", "rights"),
        ("UNKNOWN_TOPIC", "topic"),
        ("NO_EXCLUSIVE_CREATE", "store"),
        ("LOCATION_MOVED_ON", "location"),
        ("UNKNOWN_OPTION", "options"),
        ("COLUMNS_MISMATCH", "sink"),
    ],
)
def test_an_error_becomes_a_finding_of_its_check(condition: str, check: str) -> None:
    found = failed(StoreError(condition))
    assert (found.check, found.level, found.condition) == (check, Level.PROBLEM, condition)
    assert condition in catalogue


@pytest.mark.parametrize(
    ("replicas", "least", "level", "says"),
    [
        ({0: (3, 3), 1: (3, 3)}, 2, Level.GOOD, "3 replicas"),
        ({0: (3, 3), 1: (3, 1)}, 2, Level.PROBLEM, "partitions [1] accept no rows"),
        ({0: (3, 2)}, 5, Level.PROBLEM, "accept no rows"),
        ({0: (3, 3)}, 5, Level.WARNING, "With min.insync.replicas=5, brokers before Kafka 3.7 accept no rows at all"),
        ({0: (3, 3)}, 3, Level.WARNING, "if one broker is down, the query stops."),
        ({0: (1, 1)}, 2, Level.WARNING, "lost for good. With min.insync.replicas=2, brokers before Kafka 3.7 accept"),
        ({0: (3, 3)}, 1, Level.WARNING, "even if only one replica has them"),
    ],
)
def test_replicas_are_compared_as_brokers_do(
    replicas: dict[int, tuple[int, int]], least: int, level: Level, says: str
) -> None:
    [found] = check_replicas("t", replicas, least)
    assert (found.level, says in found.sentence) == (level, True)


class Allowing:
    """Brokers with a limit."""

    def __init__(self, most: int | None) -> None:
        self.most = most

    def longest_timeout_ms(self) -> int | None:
        return self.most


@pytest.mark.parametrize(
    ("most", "asked", "interval", "level"),
    [
        (900_000, None, 0, Level.GOOD),
        (900_000, None, 450_000, Level.GOOD),
        (900_000, None, 450_001, Level.PROBLEM),
        (3_600_000, 3_600_000, 900_000, Level.GOOD),
        (300_000, None, 200_000, Level.PROBLEM),
        (900_000, 59_000, 0, Level.WARNING),
        (None, None, 0, Level.UNKNOWN),
        (None, None, 600_000, Level.PROBLEM),
        (None, 30_000, 0, Level.WARNING),
        (2**31 - 1, 2**31 - 1, 2**31 - 2, Level.GOOD),
    ],
)
def test_a_checkpoint_has_half_of_the_timeout(most: int | None, asked: int | None, interval: int, level: Level) -> None:
    assert check_timeout(Allowing(most), asked, interval).level is level  # type: ignore[arg-type]


def test_a_timeout_without_an_end_is_named() -> None:
    found = check_timeout(Allowing(2**31 - 1), 2**31 - 1, 0)  # type: ignore[arg-type]
    assert found.sentence == "prepared transactions never expire"


def test_a_store_that_replaces_files_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = CheckpointLocation(str(tmp_path))
    assert [each.level for each in check_store(location)] == [Level.GOOD, Level.GOOD]

    def replace(self: object, name: str, data: bytes) -> bool:
        return True

    monkeypatch.setattr(type(location.files.journal_store("x")), "create", replace)
    found = list(check_store(location))
    assert (found[0].check, found[0].level, found[0].condition) == ("store", Level.PROBLEM, "NO_EXCLUSIVE_CREATE")
    assert list(tmp_path.iterdir()) == []


class ExaminedSink(Examines, RecordingSink):
    """A sink of a user's, which options alone describe."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "examined"

    def checkStart(self, prefix: str | None) -> None:
        """Find nothing wrong."""
        assert prefix is None

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> list[Finding]:
        """Find the interval."""
        return [good("interval", f"{intervalMs} ms, {sorted(own)}")]

    def tryOut(self) -> list[Finding]:
        """Find what can't be written."""
        return [problem("disk", "It is full.", "Buy one.")]


def test_a_sink_of_a_user_is_checked_by_its_options_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(discovery._registered, "examined", ExaminedSink)
    found = {each.check: each for each in examine_options({"format": "examined", "barrierInterval": "30 s"})}
    assert {"options", "sink", "interval", "disk"} <= set(found)
    assert found["interval"].sentence == "30000 ms, []"
    assert found["disk"].level is Level.PROBLEM


def test_a_sink_that_can_t_be_checked_by_options_alone_and_an_unknown_one_get_different_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(discovery._registered, "plain", RecordingSink)
    answers = {}
    for name in ("plain", "2pc-kafak"):
        [found] = [each for each in examine_options({"format": name}) if each.condition == "INVALID_OPTION"]
        answers[name] = found.sentence
    assert "the option format is 'plain'; expected a sink that is an Examines" in answers["plain"]
    assert "2pc-kafka" not in answers["plain"]
    assert "2pc-kafka, " in answers["2pc-kafak"]
    assert "BARRIER_ALLOW=" in answers["2pc-kafak"]


def test_a_target_that_was_deleted_or_restored_is_found_at_the_location(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(seen={})
    place.decided(0)
    older = shutil.copytree(place.output, tmp_path / "older")
    last = place.decided(1)

    def found() -> list[tuple[str, str]]:
        findings = examine_location(CheckpointLocation(str(place)), {})
        return [(each.level.name, each.condition) for each in findings if each.check == "target"]

    assert found() == [("GOOD", "")]
    elsewhere = examine_location(CheckpointLocation(str(place)), {"path": str(tmp_path / "elsewhere")})
    assert "target" not in {each.check for each in elsewhere}, "the next run would take this as a new target"
    shutil.move(place.output, tmp_path / "newest")
    assert found() == [("PROBLEM", "STORE_GONE")]
    shutil.move(older, place.output)
    assert found() == [("PROBLEM", "STORE_WENT_BACK")]
    shutil.rmtree(place.output)
    shutil.move(tmp_path / "newest", place.output)
    assert found() == [("GOOD", "")]
    place.made().commit([], DecidedCheckpoint(last + 7, (), 0, "q", "p"))
    findings = list(examine_location(CheckpointLocation(str(place)), {}))
    assert ("location", "LOCATION_PUT_BACK") in [(each.check, each.condition) for each in findings]


def test_a_target_that_no_checkpoint_has_reached_is_not_asked_for(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(seen={})
    place.prepared(0)
    shutil.rmtree(place.output)
    found = [each for each in examine_location(CheckpointLocation(str(place)), {}) if each.level is Level.PROBLEM]
    assert found == []
    assert not place.output.exists()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"url": "postgresql://server/shop"}, "2pc-postgresql"),
        ({"url": "jdbc:postgresql://server/shop", "dbtable": "t"}, "2pc-postgresql"),
        ({"url": "MariaDB://server/shop"}, "2pc-mysql"),
        ({"url": "jdbc:mysql://server/shop", "dbtable": "t"}, "2pc-mysql"),
        ({"url": "oracle://server/shop", "dbtable": "t"}, "2pc-postgresql"),
        ({"path": "/table"}, "2pc-delta"),
        ({"sinks": "a,b", "a.topic": "t"}, "2pc-multi"),
        ({"url": "http://registry:8081"}, None),
        ({}, None),
    ],
)
def test_options_show_their_format(options: Mapping[str, str], kind: str | None) -> None:
    assert format_of(options) == kind


def test_a_package_that_is_missing_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.delta.sink.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    found = [each for each in examine_options({"path": str(tmp_path / "table")}) if each.level is Level.PROBLEM]
    assert [each.condition for each in found] == ["MISSING_PACKAGE"]
    assert "barrier-kafka[delta]" in f"{found[0].sentence} {found[0].remedy}"
