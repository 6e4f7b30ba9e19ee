"""`barrier run` and signals, with whole drivers: what is killed comes back, what is stopped leaves nothing open."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector.spark.process import session_members
from integration.broker import Cluster
from integration.driver_process import DriverProcess, wait_until
from integration.jobs import Job
from integration.test_crash_matrix_files import POINTS, PROVOKED_BY, REPAIRS
from integration.test_interval_crashes import interval_job, pile_up
from integration.test_kafka_spark_crashes import produce
from integration.test_rewind import barrier
from integration.test_supervisor import nothing_is_open

SECONDS = 180.0
SUPERVISED = ("-m", "integration.supervised")
PLAIN = str(Path(__file__).parent / "jobs.py")
WITH_SUPERVISE = str(Path(__file__).parent / "supervised.py")

# -- SIGTERM to a supervised driver -----------------------------------------------------------------------------------


def terminate_at(driver: DriverProcess, point: str) -> None:
    """One life that gets SIGTERM while something stands still at the point."""
    before = len(driver.faults.fired(point))
    resumed = driver.faults.folder / f"{point}.resume"
    resumed.unlink(missing_ok=True)
    driver.faults.arm(point, "pause")
    driver.start()
    driver.wait_fired(point, before + 1)
    driver.signal()
    driver.faults.resume(point)
    assert driver.wait_exit(SECONDS) == 0, driver.tail()
    driver.faults.clear()
    nothing_is_open(driver.place)
    driver.place.check_partial(driver.expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_supervised_driver_that_gets_sigterm_leaves_nothing_open(tmp_path: Path) -> None:
    """At every point, with both signals, and what comes after: `make matrix`; in a session: test_supervisor."""
    with DriverProcess(tmp_path, program=SUPERVISED) as driver:
        terminate_at(driver, "task.written")


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("point", POINTS)
def test_a_signal_at_every_point_leaves_nothing_open(tmp_path: Path, point: str, number: signal.Signals) -> None:
    with DriverProcess(tmp_path) as driver:
        if point in (*REPAIRS, "recovery.settling"):
            before = PROVOKED_BY[point][0]
            driver.faults.arm(before, "kill-jvm")
            driver.start()
            driver.wait_death(before)
            if point in REPAIRS:
                driver.place.output.lose(driver.place.output.open_transactions())
        if point == "abort.journalled":
            driver.faults.arm("task.written", "raise")
        driver.program = SUPERVISED
        driver.faults.arm(point, "pause")
        driver.start()
        driver.wait_fired(point)
        driver.signal(number)
        driver.faults.resume(point)
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        driver.faults.clear()
        nothing_is_open(driver.place)
        driver.program = ("-m", "integration.jobs")
        driver.finish()


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
        driver.program = ("-m", "integration.jobs")
        driver.finish()


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["source.latest", "task.written", "prepared.written", "commit.looked"])
def test_a_driver_on_kafka_that_gets_sigterm_leaves_no_transaction_of_its_prefix_open(
    kafka: Cluster, topic_name: str, tmp_path: Path, point: str
) -> None:
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    job = replace(job, batches=1000)
    produce(kafka, f"{topic_name}-in", range(300))  # thirty micro-batches: it passes the point again, however far it is
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
    driver.program = ("-m", "integration.jobs")
    driver.faults.release()
    driver.start(trigger="availableNow", source={**driver.job.source, "maxOffsetsPerTrigger": "1000"})
    assert driver.wait_exit(SECONDS) == 0, driver.tail()
    driver.place.check_whole(rows)


# -- barrier recover ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("point", ["task.written", "decision.written", "commit.one"])
def test_barrier_recover_leaves_nothing_of_a_dead_driver_open_and_the_next_goes_on(
    tmp_path: Path, point: str, lost: bool
) -> None:
    """As systemd's ExecStartPre, or an init container."""
    with DriverProcess(tmp_path) as driver:
        driver.faults.arm(point, "kill-jvm")
        driver.start()
        driver.wait_death(point)
        if lost:
            driver.place.output.lose(driver.place.output.open_transactions())
        recovered = barrier("recover", str(driver.place.location))
        assert recovered.returncode == 0, recovered.stdout + recovered.stderr
        assert driver.place.ledger().undecided() == []
        assert not driver.place.output.open_transactions()
        driver.place.check_partial(driver.expected)
        driver.finish()


# -- barrier run --------------------------------------------------------------------------------------------------------


def kept_up(folder: Path, script: str, *options: str, attempts: int = 5) -> tuple[str, ...]:
    """`barrier run` of a script."""
    health = ("--health-file", str(folder / "health.json"))
    keys = {"attempts": str(attempts), "delay": "100 ms"}
    settings = [word for key, text in keys.items() for word in ("--set", f"restart-strategy.fixed-delay.{key}={text}")]
    return ("-m", "connector.cli", "run", "--strategy", "fixed-delay", *settings, *health, *options, script)


def health(folder: Path) -> dict[str, Any]:
    """What the health file says."""
    found: dict[str, Any] = json.loads((folder / "health.json").read_text())
    return found


@contextmanager
def keeper(folder: Path, script: str = PLAIN, **changed: Any) -> Iterator[DriverProcess]:
    """A place on which `barrier run` keeps a driver up."""
    with DriverProcess(folder, program=kept_up(folder, script), **changed) as driver:
        try:
            yield driver
        finally:
            kill_driver(folder)


def kill_driver(folder: Path) -> None:
    """The driver's tree is in a session of its own, which the keeper's end does not end where a test has failed."""
    path = folder / "health.json"
    pid = health(folder)["driver"] if path.exists() else None
    for member in session_members(pid) if pid else ():
        os.kill(member, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_barrier_run_survives_the_death_of_the_jvm(tmp_path: Path) -> None:
    """The driver program is a plain one; it notices, and ends."""
    with keeper(tmp_path) as driver:
        driver.faults.arm("commit.one", "kill-jvm")
        driver.start()
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        driver.place.check_whole(driver.expected)
        assert driver.faults.fired("commit.one")
        told = health(tmp_path)
        assert (told["state"], told["restarts"]) == ("stopped", 1)
        [restart] = driver.place.ledger().restarts
        assert (restart.by, restart.rewound) == ("barrier run", False)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_barrier_run_survives_the_death_of_the_driver_program(tmp_path: Path) -> None:
    """Its JVM lives on for a moment: it is gone before the next one starts."""
    with keeper(tmp_path) as driver:
        driver.faults.arm("task.written", "pause")
        driver.start()
        driver.wait_fired("task.written")
        former = health(tmp_path)["driver"]
        os.kill(former, signal.SIGKILL)
        wait_until(lambda: health(tmp_path)["driver"] not in (None, former), "another driver")
        assert not Path(f"/proc/{former}").exists()
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        driver.place.check_whole(driver.expected)
        assert "signal SIGKILL" in driver.place.ledger().restarts[0].reason


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", [PLAIN, WITH_SUPERVISE], ids=["plain", "supervised"])
@pytest.mark.parametrize(
    "point", ["recovery.claimed", "task.written", "commit.looked", "commit.one", "settled.written"]
)
def test_barrier_run_that_gets_sigterm_leaves_nothing_open(tmp_path: Path, script: str, point: str) -> None:
    with keeper(tmp_path, script, job=Job("", "", batches=1000)) as driver:
        driver.faults.arm(point, "pause")
        driver.start()
        driver.wait_fired(point)
        driver.signal()
        wait_until(lambda: health(tmp_path)["state"] == "stopping", "the signal")
        driver.faults.resume(point)
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        nothing_is_open(driver.place)
        driver.place.check_partial(driver.expected)
        newest = driver.place.ledger().newest_run
        assert newest is not None
        assert newest.ended == "stopped"
        assert health(tmp_path)["state"] == "stopped"


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["task.begun", "task.prepared", "commit.one", "decision.written"])
def test_barrier_run_that_does_not_wait_kills_the_driver_and_ends_its_query(tmp_path: Path, point: str) -> None:
    with keeper(tmp_path, job=Job("", "", batches=1000)) as driver:
        driver.faults.arm(point, "pause")
        driver.start()
        driver.wait_fired(point)
        driver.signal()
        wait_until(lambda: health(tmp_path)["state"] == "stopping", "the signal")
        driver.signal()
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        nothing_is_open(driver.place)
        driver.place.check_partial(driver.expected)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", [PLAIN, WITH_SUPERVISE], ids=["plain", "supervised"])
@pytest.mark.parametrize("decided", [False, True], ids=["prepared", "decided"])
def test_a_query_that_was_down_for_longer_than_its_timeout_comes_back_and_goes_back_by_itself(
    kafka: Cluster, topic_name: str, tmp_path: Path, decided: bool, script: str
) -> None:
    """The broker itself gives its transactions up; of a decided checkpoint one had been committed."""
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, "1 min", batches=4 if decided else 50)
    # A checkpoint has to close at half of it: time for two micro-batches, on a busy machine too.
    job = replace(job, batches=1000, sink={**job.sink, "kafka.transaction.timeout.ms": "120000"})
    produce(kafka, f"{topic_name}-in", range(100))
    with DriverProcess(tmp_path, job, output) as driver:
        if decided:
            driver.start()
            pile_up(driver.place, 2)  # the first checkpoint is of one micro-batch: it would be repaired in place
            driver.faults.arm("commit.one", "kill-jvm")
            driver.wait_death("commit.one")
            assert driver.place.ledger().unsettled()
        else:
            driver.start()
            pile_up(driver.place, 2)
            driver.kill()
            assert driver.place.ledger().undecided()
        wait_until(lambda: not output.open_transactions(), "expiry")
    with keeper(tmp_path, script, job=job, output=output) as driver:
        driver.start(trigger="availableNow", source={**job.source, "maxOffsetsPerTrigger": "1000"})
        if script == WITH_SUPERVISE:
            wait_until(lambda: sum(output.rows().values()) == 100, "all rows")
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        driver.place.check_whole(100)
        restarts = driver.place.ledger().restarts
        assert restarts[0].condition in ("PREPARED_LOST", "PREPARED_LOST")
        assert restarts[0].rewound
        assert "rewind done" in driver.place.kinds()


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_query_with_state_is_taken_back_between_two_drivers(kafka: Cluster, topic_name: str, tmp_path: Path) -> None:
    """`supervise` can't do it, because the driver holds the state; `barrier run` can."""
    job, output = interval_job(kafka, topic_name, "2pc-delta", tmp_path, batches=50)
    job = replace(job, name="counted", batches=1000)
    produce(kafka, f"{topic_name}-in", range(100))
    with DriverProcess(tmp_path, job, output) as driver:
        driver.start()
        pile_up(driver.place, 3)
        driver.kill()
        output.lose(output.open_transactions())
    with keeper(tmp_path, WITH_SUPERVISE, job=job, output=output) as driver:
        driver.start(trigger="availableNow", source={**job.source, "maxOffsetsPerTrigger": "1000"})
        assert driver.wait_exit(SECONDS) == 0, driver.tail()
        found = output.rows()
        assert sorted(found.elements()) == sorted(key * 1000 + number for key in range(5) for number in range(20))
        assert driver.place.ledger().restarts[0].rewound
