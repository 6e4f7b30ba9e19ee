"""Drivers under a platform, as docs/recover.md has it: what is killed comes back, what gets SIGTERM leaves nothing open."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from integration.broker import Cluster
from integration.crash_matrix import PLAIN, SUPERVISED, nothing_is_open
from integration.driver_process import DriverProcess, wait_until
from integration.test_interval_crashes import pile_up
from integration.test_rewind import barrier
from integration.topic_jobs import interval_job, produce_keyed

SECONDS = 180.0
PAGE = Path(__file__).parent.parent / "docs" / "recover.md"

# -- SIGTERM to a supervised driver -----------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["task.begun", "task.prepared", "commit.one"])
def test_a_second_signal_does_not_wait_and_leaves_nothing_open(tmp_path: Path, point: str) -> None:
    """What stands still in a commit is waited for by Spark: the third ends it, and the next start recovers."""
    with DriverProcess(tmp_path, program=SUPERVISED) as driver:
        driver.faults.arm(point, "pause", 2)
        driver.start()
        driver.wait_fired(point)
        driver.signal()
        wait_until(lambda: driver.place.ledger().stopping, "the request")
        driver.signal()
        if point == "commit.one":
            driver.faults.resume(point)
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        nothing_is_open(driver.place)
        driver.faults.release()
        driver.program = PLAIN
        driver.finish()


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["source.latest", "task.written", "prepared.written", "commit.looked"])
def test_a_driver_on_kafka_that_gets_sigterm_leaves_no_transaction_of_its_prefix_open(
    kafka: Cluster, topic_name: str, tmp_path: Path, point: str
) -> None:
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    job = replace(job, batches=1000)
    produce_keyed(
        kafka, f"{topic_name}-in", range(300)
    )  # thirty micro-batches: it passes the point again, however far it is
    with DriverProcess(tmp_path, job, output, program=SUPERVISED) as driver:
        driver.start()
        pile_up(driver.place, 2)
        driver.faults.arm(point, "pause")
        driver.wait_fired(point)
        driver.signal()
        driver.faults.resume(point)
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        nothing_is_open(driver.place)
        rest(driver, 300)


def rest(driver: DriverProcess, rows: int) -> None:
    """Read the rest, and end at a final barrier."""
    driver.program = PLAIN
    driver.faults.release()
    driver.start(trigger="availableNow", source={**driver.job.source, "maxOffsetsPerTrigger": "1000"})
    assert driver.wait_exit(SECONDS) == 0, driver.tail()
    driver.place.check_whole(rows)


# -- what a unit runs before each start -------------------------------------------------------------------------------


def commands_of_the_page() -> dict[str, list[str]]:
    """What systemd's ExecStartPre and the container run before the program, as the page has them."""
    page = PAGE.read_text()
    unit = re.findall(r"^ExecStartPre=(.+)$", page, re.MULTILINE)
    container = re.findall(r'^    command: \["sh", "-c", "(barrier .+) && exec python job.py"\]$', page, re.MULTILINE)
    assert (len(unit), len(container)) == (1, 1)
    return {"systemd": shlex.split(unit[0]), "kubernetes": shlex.split(container[0])}


def before_a_start(driver: DriverProcess, platform: str = "systemd") -> str:
    """Run it for the driver's location, without secrets; what it says."""
    program, command, *arguments = commands_of_the_page()[platform]
    assert (Path(program).name, command) == ("barrier", "recover")
    options = arguments.index("--options-file")
    ran = barrier(command, *arguments[:options], str(driver.place.location))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_platform_that_recovers_before_each_start_leaves_no_row_out(tmp_path: Path) -> None:
    """The very first start, and one after the death of the JVM, which ends a plain program."""
    with DriverProcess(tmp_path) as driver:
        before_a_start(driver, "kubernetes")
        driver.faults.arm("commit.one", "kill-jvm")
        driver.start()
        driver.wait_death("commit.one")
        before_a_start(driver)
        assert driver.place.ledger().unsettled() == []
        driver.finish()


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("point", ["task.written", "decision.written", "commit.one"])
def test_what_runs_before_a_start_leaves_nothing_of_a_dead_driver_open(tmp_path: Path, point: str, lost: bool) -> None:
    with DriverProcess(tmp_path) as driver:
        driver.faults.arm(point, "kill-jvm")
        driver.start()
        driver.wait_death(point)
        if lost:
            driver.place.output.lose(driver.place.output.open_transactions())
        before_a_start(driver)
        assert driver.place.ledger().undecided() == []
        assert not driver.place.output.open_transactions()
        driver.place.check_partial(driver.expected)
        driver.finish()


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("decided", [False, True], ids=["prepared", "decided"])
def test_a_query_that_was_down_for_longer_than_its_timeout_goes_back_before_its_start(
    kafka: Cluster, topic_name: str, tmp_path: Path, decided: bool
) -> None:
    """The broker itself gives its transactions up; of a decided checkpoint one had been committed."""
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, "1 min", batches=4 if decided else 50)
    # A checkpoint has to close at half of it: time for two micro-batches, on a busy machine too.
    job = replace(job, batches=1000, sink={**job.sink, "kafka.transaction.timeout.ms": "120000"})
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with DriverProcess(tmp_path, job, output) as driver:
        driver.start()
        pile_up(driver.place, 2)  # of a decided one the first is of one micro-batch: it would be repaired in place
        if decided:
            driver.faults.arm("commit.one", "kill-jvm")
            driver.wait_death("commit.one")
            assert driver.place.ledger().unsettled()
        else:
            driver.kill()
            assert driver.place.ledger().undecided()
        wait_until(lambda: not output.open_transactions(), "expiry")
        assert "the query was rewound" in before_a_start(driver)
        assert "rewind done" in driver.place.kinds()
        rest(driver, 100)


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_query_with_state_is_taken_back_between_two_drivers(kafka: Cluster, topic_name: str, tmp_path: Path) -> None:
    """`supervise` can't do it, because the driver holds the state."""
    job, output = interval_job(kafka, topic_name, "2pc-delta", tmp_path, batches=50)
    job = replace(job, name="counted", batches=1000)
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with DriverProcess(tmp_path, job, output, program=SUPERVISED) as driver:
        driver.start()
        pile_up(driver.place, 3)
        driver.kill()
        output.lose(output.open_transactions())
        assert "the query was rewound" in before_a_start(driver)
        driver.start(trigger="availableNow", source={**job.source, "maxOffsetsPerTrigger": "1000"})
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        found = output.rows()
        assert sorted(found.elements()) == sorted(key * 1000 + number for key in range(5) for number in range(20))
