"""What ``barrier run`` takes, and what it refuses before it starts a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.cli import main
from connector.cli.given import options_given

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
        ("restart-strategy.failure-rate.delay=10", "The restart strategy fixed-delay has no option"),
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


def test_a_script_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", str(tmp_path / "no_such.py")]) == 2
    assert "no_such.py" in "".join(capsys.readouterr().err.replace("│", "").split())


def test_a_script_behind_a_symbolic_link_finds_what_is_beside_the_script(tmp_path: Path) -> None:
    """As Python has it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "beside_it.py").write_text("VALUE = 17")
    (tmp_path / "real" / "program.py").write_text(
        f"import beside_it, sys\nopen({str(tmp_path / 'seen')!r}, 'w').write(f'{{beside_it.VALUE}} {{sys.argv[0]}}')"
    )
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "real" / "program.py")
    assert main(["run", "--strategy", "none", str(link)]) == 0
    assert (tmp_path / "seen").read_text() == f"17 {link}"


def test_an_options_file_of_windows_is_read(tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_bytes(b"\xef\xbb\xbfkafka.sasl.password=x\r\n# y\r\n\r\nkafka.ssl.key.password=z\r\n")
    assert options_given(None, str(file)) == {"kafka.sasl.password": "x", "kafka.ssl.key.password": "z"}


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--stop-timeout", "nan", "program.py"],
        ["stop", "place", "--timeout", "nan"],
        ["savepoint", "take", "place", "target", "--timeout", "NaN"],
        ["stop", "place", "--timeout", "-1"],
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_a_time_that_never_passes_is_wrong_usage(command: list[str], capsys: Capture) -> None:
    assert main(command) == 2
    assert "is no number of seconds from 0" in capsys.readouterr().err
