"""Every release reads the files of the releases before it; see `integration.golden_release`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connector.kafka.source.offsets import SourceOffset
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from connector.savepoints.manifest import read
from tests.connector.cli_place import answer

RELEASES = sorted((Path(__file__).parent / "golden" / "release").iterdir())


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
def release(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def said(release: Path, command: str) -> Any:
    """What the command said when the files were made."""
    return json.loads((release / "said.json").read_text())[command]


def of_that_time(now: Any, then: Any) -> Any:
    """What is said now, without fields that were added since."""
    if isinstance(then, dict):
        return {key: of_that_time(now[key], value) for key, value in then.items()}
    if isinstance(then, list):
        return [of_that_time(*pair) for pair in zip(now, then, strict=True)]
    return now


@pytest.mark.parametrize("place", ["location", "prepared", "decided"])
def test_the_commands_say_of_its_journal_what_they_said(
    release: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    then = said(release, "checkpoints" if place == "location" else place)
    status, now, _ = answer(capsys, "checkpoints", "list", str(release / place))
    path = then["location"]
    assert status == 0
    assert of_that_time(now, then) | {"location": path} == then
    assert len(then["checkpoints"]) >= (3 if place == "location" else 1)


def test_the_journals_of_dead_drivers_say_what_has_to_be_recovered(release: Path) -> None:
    prepared, decided = (CheckpointLocation(str(release / state)).journal().load() for state in ("prepared", "decided"))
    assert [(len(each.parts) > 0, each.checkpoint) for each in prepared.undecided()] == [(True, None)] * 2
    assert prepared.unsettled() == []
    [checkpoint] = decided.unsettled()
    assert decided.undecided() == []
    assert checkpoint.handles, "they are committed by recovery"


def test_its_offsets_are_read_and_would_be_written_the_same(release: Path) -> None:
    location = CheckpointLocation(str(release / "location"))
    last = newest(location, "offsets")
    assert last >= 2
    for batch in range(last + 1):
        [line] = source_lines(location, batch)
        assert line.offset is not None
        assert SourceOffset.from_json(line.offset).to_json() == json.loads(line.text)


def test_its_savepoint_is_whole_and_has_the_journal_of_its_checkpoint(release: Path) -> None:
    savepoint = read(str(release / "savepoint"))
    savepoint.verify()
    assert savepoint.stateful
    completed = savepoint.ledger().completed
    assert completed is not None
    assert completed.id == savepoint.checkpoint
    [then] = said(release, "savepoints")["savepoints"]
    assert of_that_time({"path": then["path"], "size": savepoint.size, **savepoint.to_json()}, then) == then
