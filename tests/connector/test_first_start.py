"""Temporary files of a first micro-batch: a dead driver's are deleted, a living one's never."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover
from connector.spark.first_start import clean, left, record_start
from connector.spark.process import is_alive, this_process
from tests.connector.cli_place import answer, dead_process
from transactional.errors import FencedError

TEMPORARY = ".0.0f8fad5b-d9cb-469f-a165-70867728950e.tmp"
ELSEWHERE = {**this_process(), "boot": "another machine's"}


def first_start(folder: Path, *starts: Mapping[str, Any], log: str = "offsets") -> CheckpointLocation:
    """A location whose driver was killed before ``offsets/0`` had its name."""
    (folder / "metadata").write_text('{"id":"q"}')
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / log / TEMPORARY).write_text("v1\n{")
    (folder / log / f".{TEMPORARY}.crc").write_text("")
    location = CheckpointLocation(str(folder))
    for process in starts:
        record_start(location, process)
    return location


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_what_a_dead_driver_has_left_is_deleted(tmp_path: Path, log: str) -> None:
    location = first_start(tmp_path, dead_process(), log=log)
    assert len(left(location)) == 2
    assert clean(location, is_alive) == [f"{log}/{each}" for each in sorted([TEMPORARY, f".{TEMPORARY}.crc"])]
    assert not list((tmp_path / log).iterdir())
    assert not list((tmp_path / "barrier" / "starts").iterdir())
    assert not clean(location, is_alive)


@pytest.mark.parametrize(
    ("starts", "seen"),
    [
        ([this_process()], "running"),
        ([dead_process(), this_process()], "running"),
        ([ELSEWHERE], "can't be seen from here"),
        ([], "can't be seen from here"),  # it was started without `register`
    ],
)
def test_what_a_driver_writes_that_lives_or_may_stays_unless_an_operator_says_that_it_is_dead(
    tmp_path: Path, starts: list[Mapping[str, Any]], seen: str
) -> None:
    location = first_start(tmp_path, *starts)
    for cleaning in (lambda: clean(location, is_alive), lambda: recover(location)):
        with pytest.raises(FencedError, match=seen) as refused:
            cleaning()
        assert refused.value.condition == "FIRST_START_LEFT"
        assert f"barrier recover {location.path} --query-stopped" in str(refused.value)
    assert len(left(location)) == 2
    assert recover(location, query_stopped=True).deleted
    assert not left(location)


def test_a_single_driver_that_cant_be_seen_is_gone(tmp_path: Path) -> None:
    location = first_start(tmp_path, ELSEWHERE)
    assert recover(location, Upkeep({}, single_driver=True)).deleted


def test_the_command_deletes_them_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_start(tmp_path, dead_process())
    found = answer(capsys, "recover", str(tmp_path))
    assert "temporary files of a failed first start were deleted" in str(found)


def test_the_leftovers_of_a_later_micro_batch_stay(tmp_path: Path) -> None:
    """Spark ignores them, and a driver may be writing them."""
    location = first_start(tmp_path)
    (tmp_path / "offsets" / "0").write_text("v1\n{}\nline 0")
    assert not left(location)


def test_the_record_closes_no_folder_that_spark_leaves_open(tmp_path: Path) -> None:
    record_start(CheckpointLocation(str(tmp_path / "new")), this_process())
    modes = [(tmp_path / name).stat().st_mode & 0o005 for name in ("new", "new/barrier")]
    assert modes == [0o005 & ~umask(), 0]


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
