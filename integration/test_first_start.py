"""A driver killed anywhere in Spark's first start: the next start goes on, and every row is committed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connector.location.location import CheckpointLocation
from connector.operations.recovery import recover
from connector.spark.first_start import clean, left, record_start
from connector.spark.process import is_alive, this_process
from integration import ROOT
from integration.object_store import BUCKET, ObjectStoreServer
from integration.preloaded import built
from tests.connector.cli_place import dead_process
from transactional.errors import FencedError

LEFT = ".0.0f8fad5b-d9cb-469f-a165-70867728950e.tmp"


def states(folder: Path, url: str = "") -> list[tuple[list[str], str, list[str]]]:
    """Start from the states in which a kill leaves a first start; what each came to."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    if not url:
        environment |= {
            "LD_PRELOAD": str(built(ROOT / "integration" / "file_calls.c", folder)),
            "FILE_CALLS_ROOT": str(folder / "root" / ""),
            "FILE_CALLS_STATES": str(folder / "states"),
        }
    at = url or str(folder / "root" / "location")
    command = [sys.executable, "-m", "integration.first_start", str(folder), at]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=900, check=False
    )
    (folder / "log").write_text(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    first, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == ["", ["1", "2", "3"]], first
    return [(shape, problem, rows) for shape, problem, rows in others]


def all_go_on(found: list[tuple[list[str], str, list[str]]]) -> None:
    for shape, problem, rows in found:
        assert (problem, rows) == ("", ["1", "2", "3"]), shape
        begun = any(name.startswith("location/offsets/0 ") for name in shape)
        assert begun or not any(name.startswith(("location/state/", "location/commits/")) for name in shape), shape
    print(f"{len(found)} states")


@pytest.mark.matrix
def test_a_kill_at_any_file_call_of_the_first_start_loses_and_doubles_nothing(tmp_path: Path) -> None:
    found = states(tmp_path)
    all_go_on(found)
    assert any("location/offsets/.0.*.tmp" in name for shape, _, _ in found for name in shape), found


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_kill_at_any_request_of_the_first_start_on_s3_loses_and_doubles_nothing(
    s3: ObjectStoreServer, tmp_path: Path
) -> None:
    found = states(tmp_path, f"s3a://{BUCKET}/first start of a query")
    all_go_on(found)
    assert any(name.startswith("location/state/") for shape, _, _ in found for name in shape), found
    assert len({tuple(shape) for shape, _, _ in found}) > 20


@pytest.mark.usefixtures("s3")
def test_on_s3_too_only_a_dead_driver_s_files_are_deleted() -> None:
    location = CheckpointLocation(f"s3a://{BUCKET}/first start")
    location.files.put(f"offsets/{LEFT}", b"v1")
    location.files.put("metadata", b'{"id":"q"}')
    record_start(location, dead_process())
    record_start(location, this_process())
    with pytest.raises(FencedError, match="FIRST_START_LEFT"):
        clean(location, is_alive)
    assert left(location) == [f"offsets/{LEFT}"]
    assert recover(location, query_stopped=True).deleted == [f"offsets/{LEFT}"]
    assert not left(location)
