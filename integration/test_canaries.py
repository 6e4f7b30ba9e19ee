"""Secrets of an object store in a real Spark: its plans, UI, event log and progress, our journal, and what a kill leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration import ROOT
from integration.driver_process import Faults
from tests.connector.test_canaries import files_below, secret_options, seen_in
from transactional.faults import VARIABLE


def driver(folder: Path) -> tuple[int, str]:
    """Run the query; its exit status, and all that it said."""
    options = {key: value for key, value in secret_options().items() if key.startswith("storage.")}
    (folder / "job.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", "integration.canary_query", str(folder)]
    environment = {**os.environ, VARIABLE: str(folder / "faults")}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=240
    )
    return ended.returncode, ended.stdout.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "point",
    [
        "",
        *(
            pytest.param(point, marks=pytest.mark.matrix)
            for point in ("task.prepared", "decision.written", "commit.done")
        ),
    ],
)
def test_an_object_store_s_secrets_are_in_nothing_that_spark_or_we_write_say_or_show(
    point: str, tmp_path: Path
) -> None:
    faults = Faults(tmp_path / "faults")
    said = ""
    if point:
        faults.arm(point, "kill-jvm")
        status, said = driver(tmp_path)
        assert (status != 0, len(faults.fired(point))) == (True, 1), said[-3000:]
    status, more = driver(tmp_path)
    assert status == 0, more[-3000:]
    assert "PROGRESS [" in more
    assert "Physical Plan" in more
    assert "DEBUG" in more
    names = {name for name, _ in files_below(tmp_path)}
    assert {"1.json", "metadata", "0"} <= names
    assert any(name.startswith("events_") or "local-" in name for name in names), names
    assert seen_in(said + more) == []
    assert {name: seen for name, text in files_below(tmp_path) if (seen := seen_in(text))} == {}
