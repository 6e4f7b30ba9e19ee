"""Fault points."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from transactional import faults
from transactional.faults import ALL_POINTS, POINTS, VARIABLE, InjectedFault, reach


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_points_are_inert_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for point in POINTS:
        reach(point)


def test_an_armed_file_fires_once(folder: Path) -> None:
    (folder / "task.begun.1").write_text("raise")
    (folder / "task.begun.2").write_text("raise\n")
    reach("task.written")
    for _ in range(2):
        with pytest.raises(InjectedFault, match=r"task\.begun"):
            reach("task.begun")
    reach("task.begun")
    assert sorted(path.name for path in folder.iterdir()) == ["task.begun.1.fired", "task.begun.2.fired"]


def test_a_paused_point_goes_on_when_it_is_told_to(folder: Path) -> None:
    (folder / "commit.looked.1").write_text("pause")
    thread = threading.Thread(target=reach, args=("commit.looked",))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    (folder / "commit.looked.resume").touch()
    thread.join(60)
    assert not thread.is_alive()
    reach("commit.looked")


def test_kill_is_sigkill(folder: Path) -> None:
    (folder / "decision.written.1").write_text("kill")
    program = "from transactional.faults import reach; reach('decision.written'); print('alive')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, b"")
    assert (folder / "decision.written.1.fired").exists()


def test_an_unknown_point_is_an_error_wherever_points_are_armed(folder: Path) -> None:
    with pytest.raises(ValueError, match="decision"):
        reach("decision")


def test_a_folder_that_is_gone_arms_nothing(folder: Path) -> None:
    folder.rmdir()
    reach("task.begun")


def passed_in(*tops: Path) -> set[str]:
    """The points that code in these folders passes, but for the protocol's doubles: those are in `transactional.testing`."""
    found: set[str] = set()
    for top in tops:
        for path in top.rglob("*.py"):
            if "testing" in path.relative_to(top).parts:
                continue
            found.update(
                argument.value
                for call in ast.walk(ast.parse(path.read_text()))
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "faults.reach"
                for argument in ast.walk(call)
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )
    return found


def test_every_point_is_passed_by_the_product() -> None:
    root = Path(faults.__file__).parent.parent
    assert set(ALL_POINTS) - passed_in(root / "transactional", root / "connector") == set()


def test_a_point_that_only_a_double_passes_or_that_only_a_comment_names_is_not_passed(tmp_path: Path) -> None:
    (tmp_path / "testing").mkdir()
    (tmp_path / "testing" / "double.py").write_text('faults.reach("task.begun")')
    (tmp_path / "code.py").write_text('# faults.reach("task.written")\nif done: faults.reach("task.prepared")')
    assert passed_in(tmp_path) == {"task.prepared"}
