"""`barrier run` with programs that start no JVM: what is started again, how often, and what is told about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from connector.cli import main
from connector.spark.driver_tree import DriverTree
from connector.spark.health import Health
from connector.spark.keeper import DriverKeeper
from connector.spark.life_report import LifeReport
from connector.spark.process import session_members
from tests.connector.cli_place import CliPlace, dead_process
from transactional.clock import Clock
from transactional.failure import Failure
from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from transactional.testing import FakeClock

SECONDS = 60.0


class Program:
    """A script that adds a line to a file each time that it is started."""

    def __init__(self, folder: Path, body: str) -> None:
        self.script = folder / "program.py"
        self.starts = folder / "starts"
        self.health = folder / "health.json"
        self.said: list[str] = []
        self.script.write_text(
            f"import os, sys, time\nopen({str(self.starts)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            f"number = len(open({str(self.starts)!r}).readlines())\n{body}\n"
        )

    def keeper(self, strategy: RestartStrategy, clock: Clock | None = None) -> DriverKeeper:
        command = [sys.executable, "-m", "connector.spark.script", str(self.script)]
        health = Health(str(self.health), clock)
        return DriverKeeper(command, strategy, {}, SECONDS, self.said.append, health, clock, lambda: 0.5)

    def started(self) -> int:
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    def told(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.health.read_text())
        return found


class Watched(FakeClock):
    """Waits for real a little, so that a program gets on, and adds up what was waited for between two lives."""

    def sleep(self, seconds: float) -> None:
        time.sleep(0.01)
        super().sleep(seconds)


@pytest.mark.parametrize(
    ("strategy", "restarts"),
    [(NoRestart(), 0), (FixedDelay(2, 30), 2), (FailureRate(3, 3600, 5), 3), (FixedDelay(0, 1), 0)],
    ids=str,
)
def test_a_program_that_always_fails_is_started_as_often_as_its_strategy_says(
    tmp_path: Path, strategy: RestartStrategy, restarts: int
) -> None:
    program = Program(tmp_path, "raise ValueError(f'failure {number}')")
    failure = program.keeper(strategy, Watched()).run()
    assert failure is not None
    assert f"failure {restarts + 1}" in failure.text
    assert program.started() == restarts + 1
    told = program.told()
    assert (told["state"], told["restarts"], told["driver"]) == ("failed", restarts, None)
    assert f"the restart strategy gives up, after {restarts} restarts" in program.said[-1]


def test_delays_between_lives_are_those_of_the_strategy(tmp_path: Path) -> None:
    program = Program(tmp_path, "sys.exit(0 if number == 5 else 7)")
    assert program.keeper(ExponentialDelay(10, 50, 2, 1e9, 0), Watched()).run() is None
    delays = [said.split(" s:")[0].split("in ")[1] for said in program.said]
    assert (program.started(), delays) == (5, ["10.0", "20.0", "40.0", "50.0"])
    assert "the driver program ended: exit status 7" in program.said[0]
    assert program.told()["state"] == "stopped"


@pytest.mark.parametrize(
    "error",
    [
        "OptionError('UNKNOWN_OPTION', 'no such option')",
        "StoreError('MISSING_RIGHT', 'no right')",
        "ReplayMismatchError('REPLAY_DIFFERS', 'other rows')",
    ],
)
def test_what_no_restart_mends_is_not_started_again(tmp_path: Path, error: str) -> None:
    program = Program(tmp_path, f"from transactional.errors import *\nraise {error}")
    failure = program.keeper(FixedDelay(9, 0)).run()
    assert failure is not None
    assert program.started() == 1
    assert "no restart mends this" in program.said[-1]


def test_a_query_that_ended_as_it_was_asked_to_is_not_started_again(tmp_path: Path) -> None:
    body = "from transactional.errors import QueryStoppedError\nraise QueryStoppedError('STOP_REQUESTED', 'as asked')"
    program = Program(tmp_path, body)
    assert program.keeper(FixedDelay(9, 0)).run() is None
    assert program.started() == 1


def test_a_program_that_is_killed_is_started_again_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    """Its child is in a process group of its own, as Spark's daemon of Python workers is."""
    child = "import subprocess\nsubprocess.Popen(['sleep', '1000'], process_group=0)\n"
    body = f"{child}if number < 3:\n    os.kill(os.getpid(), 9)"
    if sys.version_info < (3, 11):
        body = body.replace("process_group=0", "preexec_fn=os.setpgrp")
    program = Program(tmp_path, body)
    assert program.keeper(FixedDelay(5, 0)).run() is None
    assert program.started() == 3
    assert "the driver program ended: signal SIGKILL" in program.said[0]
    for pid in map(int, program.starts.read_text().split()):
        assert session_members(pid) == {}


def test_the_end_of_a_tree_tells_the_status_of_its_program(tmp_path: Path) -> None:
    tree = DriverTree([sys.executable, "-c", "import time; time.sleep(1000)"], dict(os.environ))
    assert (tree.status(), tree.lost_jvm()) == (None, False)
    assert tree.end() == -signal.SIGKILL
    assert tree.end() == -signal.SIGKILL


def test_a_rewind_that_a_query_asked_for_is_done_between_two_lives_and_each_restart_leaves_its_reason(
    tmp_path: Path,
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    place.prepared(1)
    place.prepared(2, in_spark=False)
    next((place.output / "pending").glob("p~1~*")).unlink()
    program = Program(
        tmp_path,
        "from connector.spark.life_report import tell_location\nfrom transactional.errors import RewindRequiredError\n"
        f"tell_location({str(place)!r})\n"
        "if number == 1:\n    raise RewindRequiredError('PREPARED_LOST', 'micro-batch 1 is lost')",
    )
    assert program.keeper(FixedDelay(3, 0)).run() is None
    assert (program.started(), place.spark("offsets"), place.files("pending")) == (2, [0], [])
    assert f"{place} went back: it goes on after micro-batch 0" in program.said
    [restart] = place.ledger().restarts
    assert (restart.by, restart.number, restart.condition, restart.rewound) == ("barrier run", 1, "PREPARED_LOST", True)
    assert program.told()["locations"] == [str(place)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_driver_and_then_what_its_query_has_left(tmp_path: Path, number: signal.Signals) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    place.prepared(1)
    tell = f"from connector.spark.life_report import tell_location\ntell_location({str(place)!r})"
    program = Program(tmp_path, f"{tell}\ntime.sleep(1000)")
    command = [sys.executable, "-m", "connector.cli", "run", "--health-file", str(program.health), str(program.script)]
    keeper = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: program.health.exists() and program.told()["state"] == "running")
        keeper.send_signal(number)
        _, said = keeper.communicate(timeout=SECONDS)
    finally:
        keeper.kill()
    assert keeper.returncode == 0, said
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])
    assert program.told()["state"] == "stopped"
    assert session_members(int(program.starts.read_text())) == {}


def test_a_program_under_barrier_run_has_its_own_arguments_and_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 17")
    told = "f'{sys.argv[1:]} {beside.VALUE} {__name__}'"
    program = Program(tmp_path, f"import beside\nopen({str(tmp_path / 'seen')!r}, 'w').write({told})")
    assert main(["run", "--strategy", "none", str(program.script), "--set", "a=b", "--", "-x"]) == 0
    assert (tmp_path / "seen").read_text() == "['--set', 'a=b', '--', '-x'] 17 __main__"


def test_a_strategy_that_does_not_exist_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--strategy", "sometimes", "program.py"]) == 2
    assert "exponential-delay" in capsys.readouterr().err


def test_barrier_run_that_gives_up_says_why_by_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(tmp_path, "raise ValueError('it can not be')")
    settings = ["--set", "restart-strategy.fixed-delay.attempts=1", "--set", "restart-strategy.fixed-delay.delay=0"]
    assert main(["run", "--strategy", "fixed-delay", *settings, str(program.script)]) == 1
    assert "it can not be" in capsys.readouterr().err
    assert program.started() == 2


def test_a_report_tells_the_program_s_error_before_its_query_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from connector.spark import life_report
    from transactional.errors import RetriableError

    report = LifeReport(str(tmp_path))
    assert (report.failure(), report.locations(), report.supervised()) == (None, [], None)
    monkeypatch.setenv(life_report.VARIABLE, str(tmp_path))
    with pytest.raises(RetriableError), life_report.telling("/place"):
        raise RetriableError("HANDLE_NOT_ALIVE", "too old")
    found = report.failure()
    assert found is not None
    assert (found.condition, report.locations()) == ("HANDLE_NOT_ALIVE", ["/place"])
    life_report.tell_failure("script", ValueError("what the program made of it"))
    assert report.failure() == Failure("", "ValueError: what the program made of it", found.remedy)


def test_a_report_that_can_t_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from connector.spark import life_report

    monkeypatch.setenv(life_report.VARIABLE, str(tmp_path / "gone"))
    with life_report.telling("/place"):
        pass


def wait_for(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
