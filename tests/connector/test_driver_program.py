"""`barrier run` with programs that start no JVM: what is started again, how often, and what is told about it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main
from connector.location.location import CheckpointLocation
from connector.operations import driver_program, supervision
from connector.operations.driver_program import DriverProgram
from connector.operations.driver_tree import DriverTree
from connector.operations.health import Health
from connector.operations.signals import StopWish
from connector.operations.stopping import Standing, end_run, request_stop, standing
from connector.operations.supervision import Supervision
from connector.spark import life_report
from connector.spark.life_report import LifeReport
from connector.spark.process import session_members, this_process
from connector.spark.sinks import ALLOW
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, dead_process
from transactional.clock import Clock, SystemClock
from transactional.errors import FencedError
from transactional.failure import Failure
from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from transactional.testing import FakeClock

SECONDS = 180.0


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

    def keeper(
        self, strategy: RestartStrategy, clock: Clock | None = None, single_driver: bool = False
    ) -> DriverProgram:
        command = [sys.executable, "-m", "connector.operations.script", str(self.script)]
        clock = clock or SystemClock()
        health = Health(str(self.health), clock)
        supervised = Supervision(
            "barrier run", strategy, {}, self.said.append, single_driver, StopWish(), health, clock, lambda: 0.5
        )
        return DriverProgram(command, supervised, SECONDS)

    def started(self) -> int:
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    def told(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.health.read_text())
        return found


def tell(place: CliPlace, driver: str | None = None) -> str:
    """What a query's planning tells of itself."""
    return (
        "from connector.spark.life_report import tell_location\nfrom connector.location.location import CheckpointLocation\n"
        f"tell_location(CheckpointLocation({str(place)!r}), {driver!r})"
    )


class BrokenSink(FileSink):
    """Its store does not answer at all."""

    @classmethod
    def name(cls) -> str:
        return "2pc-broken"

    def inspect(self, handles: Sequence[Any]) -> Any:
        raise OSError("no route to host")


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
    program = Program(tmp_path, f"{tell(CliPlace(tmp_path))}\nraise ValueError(f'failure {{number}}')")
    failure = program.keeper(strategy, Watched()).run()
    assert failure is not None
    assert f"failure {restarts + 1}" in failure.text
    assert program.started() == restarts + 1
    told = program.told()
    assert (told["state"], told["restarts"], told["driver"]) == ("failed", restarts, None)
    assert f"the restart strategy gives up, after {restarts} restarts" in program.said[-1]


def test_delays_between_lives_are_those_of_the_strategy(tmp_path: Path) -> None:
    program = Program(tmp_path, f"{tell(CliPlace(tmp_path))}\nsys.exit(0 if number == 5 else 7)")
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
def test_what_no_restart_fixes_is_not_started_again(tmp_path: Path, error: str) -> None:
    program = Program(tmp_path, f"from transactional.errors import *\nraise {error}")
    failure = program.keeper(FixedDelay(9, 0)).run()
    assert failure is not None
    assert program.started() == 1
    assert "no restart helps" in program.said[-1]


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("sys.exit(7)", 7, "exit status 7"),
        ("os.kill(os.getpid(), 11)", 139, "signal SIGSEGV"),
    ],
)
def test_a_script_that_dies_on_its_first_lines_ends_barrier_run_with_its_status_and_its_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, status: int, shown: str
) -> None:
    program = Program(tmp_path, body)
    settings = ["--set", "restart-strategy.exponential-delay.initial-backoff=1 ms"]
    assert main(["run", *settings, "--health-file", str(program.health), str(program.script)]) == status
    said = capsys.readouterr().err
    assert "died 3 times before it planned any query, and is not started again" in said
    assert shown in said
    assert program.started() == 3
    assert program.told()["state"] == "failed"


@pytest.mark.parametrize(
    "body",
    [
        "from transactional.errors import StoreError\nraise StoreError('BROKERS_UNREACHABLE', 'away')",
        "raise ValueError(number)",
    ],
    ids=["the brokers are away", "it has worked before"],
)
def test_a_script_that_may_work_the_next_time_is_started_again_for_ever(tmp_path: Path, body: str) -> None:
    known = tell(CliPlace(tmp_path)) if "ValueError" in body else ""
    lines = f"if number == 1:\n    {known.replace(chr(10), chr(10) + '    ') or 'pass'}\nif number < 6:\n    "
    program = Program(tmp_path, lines + body.replace("\n", "\n    "))
    assert program.keeper(FixedDelay(9, 0)).run() is None
    assert program.started() == 6


def test_a_program_that_lives_on_when_a_query_has_failed_in_a_thread_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_program, "CRIPPLED_SECONDS", 0.5)
    body = (
        "import threading\nfrom connector import supervise\n"
        "def start(): raise RuntimeError('the broker is away')\n"
        "if number == 1:\n    threading.Thread(target=supervise, args=(start,)).start()\n    time.sleep(1000)"
    )
    program = Program(tmp_path, body)
    assert program.keeper(FixedDelay(1, 0)).run() is None
    assert program.started() == 2
    assert "the broker is away" in program.said[0]


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
        f"{tell(place)}\nfrom transactional.errors import RewindRequiredError\n"
        "if number == 1:\n    raise RewindRequiredError('PREPARED_LOST', 'micro-batch 1 is lost')",
    )
    assert program.keeper(FixedDelay(3, 0)).run() is None
    assert (program.started(), place.spark("offsets"), place.files("pending")) == (2, [0], [])
    assert f"{place}: it went back, and goes on after micro-batch 0" in program.said
    [restart] = place.ledger().restarts
    assert (restart.by, restart.number, restart.condition, restart.rewound) == ("barrier run", 1, "PREPARED_LOST", True)
    assert program.told()["locations"] == [str(place)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_driver_and_then_what_its_query_has_left(tmp_path: Path, number: signal.Signals) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    place.prepared(1)
    program = Program(tmp_path, f"{tell(place)}\ntime.sleep(1000)")
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
    from transactional.errors import RetriableError

    report = LifeReport(str(tmp_path))
    assert (report.failure("script", "host"), report.queries()) == (None, [])
    monkeypatch.setenv(life_report.VARIABLE, str(tmp_path))
    with pytest.raises(RetriableError), life_report.telling(CheckpointLocation("/place"), lambda: "d1"):
        raise RetriableError("HANDLE_NOT_ALIVE", "too old")
    found = report.failure("script", "host")
    assert found is not None
    assert (found.condition, report.queries()) == ("HANDLE_NOT_ALIVE", [({"checkpointLocation": "/place"}, "d1")])
    life_report.tell_failure("script", ValueError("what the program made of it"))
    assert report.failure("script", "host") == Failure("", "ValueError: what the program made of it", found.remedy)


def test_a_report_that_can_t_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    (tmp_path / "file").touch()
    monkeypatch.setenv(life_report.VARIABLE, str(tmp_path / "file" / "gone"))
    with life_report.telling(CheckpointLocation("/place"), lambda: "d1"):
        pass


# -- what others may do meanwhile ------------------------------------------------------------------------------------


def prepared_place(folder: Path, sink: type[FileSink] = FileSink) -> CliPlace:
    place = CliPlace(folder, sink)
    place.run(process=dead_process())
    place.decided(0)
    place.prepared(1)
    return place


def as_a_shell_starts_it() -> None:
    """``nohup`` and a script's ``&`` have signals ignored, which a child inherits."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def barrier_run(program: Program, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process, until its program is at work."""
    command = [sys.executable, "-m", "connector.cli", "run", "--health-file", str(program.health), *options]
    keeper = subprocess.Popen(
        [*command, str(program.script)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_a_shell_starts_it,  # noqa: PLW1509 - no thread of ours is at work
    )
    try:
        wait_for(lambda: program.started() and program.told()["state"] != "starting")
        yield keeper
    finally:
        keeper.kill()
        for pid in program.starts.read_text().split() if program.starts.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_a_signal_asks_no_run_of_another_driver_to_stop(tmp_path: Path) -> None:
    """A rolling update: the new pod has taken the query over, and the old one gets SIGTERM."""
    place = CliPlace(tmp_path)
    place.run(process=dead_process(), driver="old pod")
    place.decided(0)
    program = Program(tmp_path, f"{tell(place, 'old pod')}\ntime.sleep(1000)")
    with barrier_run(program) as keeper:
        new = place.run(process=this_process(), driver="new pod")
        keeper.send_signal(signal.SIGTERM)
        _, said = keeper.communicate(timeout=SECONDS)
    run = place.ledger().newest_run
    assert run is not None
    assert (keeper.returncode, run.token, run.ended, place.ledger().stop_asked) == (0, new, None, False)
    assert "has taken it over" in said


@pytest.mark.parametrize(
    "signals", [[signal.SIGHUP], [signal.SIGQUIT], [signal.SIGINT] * 3], ids=lambda many: many[0].name
)
def test_no_signal_leaves_a_driver_to_nobody(tmp_path: Path, signals: list[signal.Signals]) -> None:
    program = Program(tmp_path, f"{tell(CliPlace(tmp_path))}\ntime.sleep(1000)")
    with barrier_run(program) as keeper:
        for number in signals:
            keeper.send_signal(number)
            time.sleep(0.03)
        keeper.communicate(timeout=SECONDS)
        wait_for(lambda: session_members(int(program.starts.read_text())) == {})


def test_a_health_file_that_can_t_be_written_is_refused_at_the_start_and_later_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(tmp_path, "")
    missing = tmp_path / "missing"
    assert main(["run", "--health-file", str(missing / "health.json"), str(program.script)]) == 1
    said = capsys.readouterr().err
    assert "INVALID_OPTION" in said
    assert f"--health-file is '{missing}/health.json'" in said
    assert program.started() == 0
    missing.mkdir()
    health = Health(str(missing / "health.json"))
    shutil.rmtree(missing)
    health.tell("running")
    assert health.facts["state"] == "running"


@pytest.mark.slow
def test_a_stop_that_can_not_be_made_whole_is_no_success_and_keeps_no_other_query_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query's output does not answer; whichever comes first, the second one is ended."""
    monkeypatch.setenv(ALLOW, f"{__name__}:BrokenSink,integration.file_sink:FileSink")
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    broken, whole = prepared_place(folders[0], BrokenSink), prepared_place(folders[1])
    program = Program(tmp_path, f"{tell(broken)}\n{tell(whole)}\ntime.sleep(1000)")
    with barrier_run(program) as keeper:
        wait_for(lambda: len(program.told()["locations"]) == 2)  # type: ignore[arg-type]
        keeper.send_signal(signal.SIGTERM)
        _, said = keeper.communicate(timeout=SECONDS)
    assert keeper.returncode != 0
    assert (whole.files("pending"), broken.files("pending")) == ([], [1])
    assert f"{broken} is not ended" in said
    assert program.told()["state"] == "failed"


def test_a_program_that_ends_as_one_of_its_queries_was_stopped_leaves_nothing_of_the_other_open(tmp_path: Path) -> None:
    place = prepared_place(tmp_path)
    body = "from transactional.errors import QueryStoppedError\nraise QueryStoppedError('STOP_REQUESTED', 'the other')"
    assert Program(tmp_path, f"{tell(place)}\n{body}").keeper(FixedDelay(9, 0)).run() is None
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


def test_a_program_that_ends_well_leaves_nothing_prepared(tmp_path: Path) -> None:
    place = prepared_place(tmp_path)
    assert Program(tmp_path, tell(place)).keeper(FixedDelay(9, 0)).run() is None
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


def test_a_stop_before_the_first_planning_says_that_it_knows_of_no_query(tmp_path: Path) -> None:
    program = Program(tmp_path, "time.sleep(1000)")
    keeper = program.keeper(FixedDelay(9, 0))
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGTERM]).start()
    assert keeper.run() is None
    assert "no query was planned" in program.said[-1]


def test_a_query_that_is_stopped_between_two_lives_stays_so_and_yesterday_s_stop_counts_for_nothing(
    tmp_path: Path,
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    location = CheckpointLocation(str(place))
    request_stop(location)
    assert end_run(location)
    place.prepared(1)
    program = Program(tmp_path, f"{tell(place)}\nif number < 3: raise ValueError(number)")

    class Stopping(Watched):
        """Somebody stops it while the second restart is waited for."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if program.started() == 2 and not standing(location).stopped:
                main(["stop", str(place)])

    assert program.keeper(FixedDelay(9, 30), Stopping()).run() is None
    assert program.started() == 2


def test_a_query_that_fails_in_a_thread_of_its_program_is_a_failure(tmp_path: Path) -> None:
    body = (
        "import threading\nfrom connector import supervise\n"
        "def start(): raise RuntimeError('the broker is away')\n"
        "thread = threading.Thread(target=supervise, args=(start,))\nthread.start()\nthread.join()"
    )
    program = Program(tmp_path, body)
    failure = program.keeper(FixedDelay(1, 0)).run()
    assert failure is not None
    assert ("the broker is away" in failure.text, program.started()) == (True, 2)


def test_a_full_or_a_cleaned_folder_for_temporary_files_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = tempfile.mkdtemp

    def mkdtemp(prefix: str) -> str:
        made.append(prefix)
        if len(made) == 2:
            raise OSError(28, "No space left on device")
        return real(prefix=prefix)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    deletes = f"shutil.rmtree(os.environ['{life_report.VARIABLE}'])\ntime.sleep(1)"
    program = Program(tmp_path, f"import shutil\nif number == 1: raise ValueError()\n{deletes}")
    assert program.keeper(FixedDelay(5, 0)).run() is None
    assert (program.started(), len(made)) == (2, 3)
    assert "No space left" in program.said[-1]


def test_a_program_that_used_a_tool_in_java_and_has_no_query_yet_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_program, "CRIPPLED_SECONDS", 0.5)
    shutil.copy(str(shutil.which("sleep")), tmp_path / "java")
    program = Program(
        tmp_path, f"import subprocess\nsubprocess.run([{str(tmp_path / 'java')!r}, '0.5'])\ntime.sleep(2)"
    )
    assert program.keeper(FixedDelay(5, 0)).run() is None
    assert program.started() == 1


def test_a_program_without_its_jvm_is_not_waited_for_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query is in the middle of a micro-batch for ever, as the journal has it."""
    monkeypatch.setattr(driver_program, "CRIPPLED_SECONDS", 0.5)
    shutil.copy(str(shutil.which("sleep")), tmp_path / "java")
    place = CliPlace(tmp_path)
    place.run(process=dead_process(), driver="d")
    place.decided(0)
    place.prepared(1, in_spark=False)
    program = Program(
        tmp_path,
        f"{tell(place, 'd')}\nimport subprocess\nsubprocess.run([{str(tmp_path / 'java')!r}, '3'])\ntime.sleep(1000)",
    )
    keeper = program.keeper(FixedDelay(9, 0))
    threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGTERM]).start()
    began = time.monotonic()
    assert keeper.run() is None
    assert time.monotonic() - began < SECONDS / 2
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


@pytest.mark.parametrize("single_driver", [False, True])
def test_a_rewind_after_a_container_that_is_gone_is_done_where_nothing_else_starts_the_query(
    tmp_path: Path, single_driver: bool
) -> None:
    place = prepared_place(tmp_path)
    place.run(driver="the former", process={**this_process(), "namespace": "pid:[4026530001]"})
    place.prepared(2, in_spark=False)
    next((place.output / "pending").glob("p~1~*")).unlink()
    lost = "from transactional.errors import *\nif number == 1: raise RewindRequiredError('PREPARED_LOST', 'lost')"
    program = Program(tmp_path, f"{tell(place)}\n{lost}")
    keeper = program.keeper(FixedDelay(5, 0), single_driver=single_driver)
    if single_driver:
        assert keeper.run() is None
        assert f"{place}: it went back" in program.said[1]
    else:
        with pytest.raises(FencedError, match="--single-driver"):
            keeper.run()
    assert program.started() == 1 + single_driver


def wait_for(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_journal_that_does_not_answer_between_two_lives_is_asked_seldom_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    program = Program(tmp_path, f"{tell(place)}\nif number == 1: raise ValueError(number)")
    clock, looks = Watched(), list[float]()

    def away(location: CheckpointLocation) -> Standing:
        if program.told()["state"] != "waiting":
            return standing(location)
        looks.append(clock.monotonic())
        if len(looks) > 10:
            return standing(location)
        raise OSError("no route to host")

    monkeypatch.setattr(supervision, "standing", away)
    assert program.keeper(FixedDelay(1, 20), clock).run() is None
    assert 15 <= len(looks) <= 22
    assert sum("can't be looked at now: no route to host" in said for said in program.said) == 1


def test_a_report_that_another_user_may_have_written_ends_nothing(tmp_path: Path) -> None:
    """The folder in /tmp is made by somebody else after it was deleted there: it may name any process of ours."""
    folder = tmp_path / "report"
    folder.mkdir(0o700)
    (folder / "query-1.json").write_text(json.dumps({"options": {"checkpointLocation": "/place"}, "driver": "d"}))
    report = LifeReport(str(folder))
    assert len(report.queries()) == 1
    folder.chmod(0o777)
    assert report.queries() == []
