"""Which process a driver is, and whether it still runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from connector.spark import process
from connector.spark.process import driver_process, is_alive, this_process
from tests.results import ROOT

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="Linux only; elsewhere nothing is recorded"
)

SAY = "import json; from connector.spark.process import driver_process; print(json.dumps(driver_process()))"


def run_under(tmp_path: Path, *names: str) -> tuple[dict[str, Any], list[int]]:
    """`driver_process` in a Python under processes of these names, the outermost first; with their pids."""
    shell = shutil.which("sh")
    assert shell is not None
    command = [sys.executable, "-c", SAY]
    for number, name in enumerate(reversed(names)):
        link = tmp_path / str(number) / name
        link.parent.mkdir()
        link.symlink_to(shell)
        # More than one command each: a shell becomes its last command.
        command = [str(link), "-c", 'echo $$; "$@"; true', name, *command]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *pids, said = ran.stdout.splitlines()
    return json.loads(said), [int(pid) for pid in pids]


def test_a_process_is_alive_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process._identity(child.pid)
    assert is_alive(identity) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_alive(identity) is False, "nobody has asked for its status yet, but it runs no more"
    child.communicate()
    assert is_alive(identity) is False


def test_this_process_is_alive_and_said_in_json() -> None:
    identity = this_process()
    assert identity["pid"] == os.getpid()
    assert is_alive(json.loads(json.dumps(identity))) is True


def test_another_process_with_the_same_pid_is_not_it() -> None:
    identity = this_process()
    assert is_alive({**identity, "started": identity["started"] - 1}) is False


@pytest.mark.parametrize("key", ["boot", "namespace"])
def test_of_another_machine_or_container_nothing_is_known(key: str) -> None:
    assert is_alive({**this_process(), key: "another"}) is None


@pytest.mark.parametrize("identity", [{}, {"host": "h", "boot": None, "namespace": None, "pid": None, "started": None}])
def test_where_nothing_was_recorded_nothing_is_known(identity: dict[str, Any]) -> None:
    assert is_alive(identity) is None


def test_without_proc_nothing_is_recorded_nor_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = this_process()
    monkeypatch.setattr(process, "_PROC", str(tmp_path))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    nothing = {"host": identity["host"], "boot": None, "namespace": None, "pid": None, "started": None}
    assert this_process() == driver_process() == nothing
    assert is_alive(identity) is None


def test_a_proc_of_another_namespace_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = tmp_path / "4711"  # this process there
    for folder in (outer / "ns", tmp_path / "sys/kernel/random"):
        folder.mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", tmp_path / "sys/kernel/random")
    (outer / "ns/pid").symlink_to("pid:[1]")
    (tmp_path / "self").symlink_to("4711")
    monkeypatch.setattr(process, "_PROC", str(tmp_path))
    assert this_process()["pid"] is None


@pytest.mark.parametrize(
    ("problem", "known"), [(PermissionError, None), (ProcessLookupError, False)], ids=["hidden", "gone"]
)
def test_a_process_that_is_hidden_from_this_user_may_live(
    problem: type[OSError], known: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, own, seen = this_process(), os.getpid(), process._started

    def kill(pid: int, signal: int) -> None:
        raise problem

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(process, "_started", lambda pid: seen(pid) if pid == own else None)
    assert is_alive({**identity, "pid": own + 1}) is known


def test_the_driver_is_the_nearest_java_above_the_worker(tmp_path: Path) -> None:
    identity, pids = run_under(tmp_path, "java", "java", "daemon) R 1 (")
    assert identity["pid"] == pids[1]
    assert is_alive(identity) is False


def test_without_java_above_only_the_host_is_known(tmp_path: Path) -> None:
    identity, _ = run_under(tmp_path, "javac")
    assert identity == {**this_process(), "boot": None, "namespace": None, "pid": None, "started": None}
