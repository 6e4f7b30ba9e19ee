"""What ``barrier run`` takes, and what it refuses before it starts a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A program that notes that it was started, and fails."""
    script = tmp_path / "failing.py"
    script.write_text(f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\nraise ValueError()")
    return script


def starts(script: Path) -> int:
    noted = script.parent / "starts"
    return len(noted.read_text()) if noted.exists() else 0


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("restart-stratgy.fixed-delay.attempts=10", "restart-strategy.fixed-delay.attempts"),
        ("fixed-delay.attempts=10", "restart-strategy.fixed-delay.attempts"),
        ("restart-strategy.fixed-delay.atempts=10", "restart-strategy.fixed-delay.attempts"),
        ("restart-strategy.failure-rate.delay=10", "the strategy is fixed-delay"),
    ],
)
def test_a_setting_that_would_count_for_nothing_is_wrong_usage(
    failing: Path, capsys: Capture, setting: str, told: str
) -> None:
    assert main(["run", "--strategy", "fixed-delay", "--set", setting, str(failing)]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert setting.partition("=")[0] in said
    assert told in said
    assert starts(failing) == 0


def test_settings_of_the_environment_hold_beside_those_of_the_command_line(
    failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS", "2")
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FIXED_DELAY_DELAY", "1 h")
    delay = ["--set", "restart-strategy.fixed-delay.delay=0"]  # over the environment's
    assert main(["run", "--strategy", "fixed-delay", *delay, str(failing)]) == 1
    assert starts(failing) == 3


def test_a_variable_that_is_misspelt_is_wrong_usage(
    failing: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATEMPTS", "5")
    assert main(["run", "--strategy", "none", str(failing)]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert "did you mean BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS?" in said
    assert starts(failing) == 0
