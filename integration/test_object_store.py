"""A query whose checkpoint location is in S3 or HDFS, with real Spark: killed twice, started again, read by the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from connector.location.location import CheckpointLocation
from integration.driver_process import DriverProcess, Place, wait_until
from integration.hdfs import HdfsServer, hdfs_for_users
from integration.jars import resolve_s3a
from integration.jobs import Job, newest
from integration.object_store import BUCKET, ObjectStoreServer
from transactional import faults
from transactional.entry import Entry, decode
from transactional.ledger import Ledger


@dataclass(frozen=True)
class RemotePlace(Place):
    """A place whose checkpoint location is in the store."""

    url: str = ""

    def entries(self) -> list[Entry]:
        """See `Place`."""
        store = CheckpointLocation(self.url).files.journal_store("barrier/log")
        numbers = sorted(int(name[:-5]) for name in store.names() if name[:-5].isdigit())
        return [decode(store.read(f"{number}.json"), f"{number}.json") for number in numbers]

    def ledger(self) -> Ledger:
        """See `Place`."""
        return CheckpointLocation(self.url).journal().load()

    def committed(self) -> int:
        """See `Place`."""
        return newest(self.url, "commits")


@dataclass(frozen=True)
class Store:
    """A store of checkpoint locations."""

    url: str  # A folder in it.
    conf: dict[str, str]  # Spark's, to find it.

    def driver(self, folder: Path, batches: int = 3) -> DriverProcess:
        """A driver whose query writes files to a local folder, and has its checkpoint location in the store."""
        url = f"{self.url}/{folder.name}/check point"
        driver = DriverProcess(folder, Job(url, str(folder / "output"), batches=batches, conf=self.conf))
        driver.place = RemotePlace(driver.place.location, driver.place.output, url)
        return driver


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "hdfs":
        server: HdfsServer = request.getfixturevalue("hdfs")
        return Store(f"{server.url}/queries", server.conf)
    s3: ObjectStoreServer = request.getfixturevalue("s3")
    conf = {
        "spark.jars": ",".join(map(str, resolve_s3a())),
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    return Store(f"s3a://{BUCKET}", conf)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_query_with_its_checkpoints_in_a_store_that_is_killed_twice_writes_every_row_once(
    store: Store, tmp_path: Path
) -> None:
    with store.driver(tmp_path) as driver:
        for point in ("decision.written", "commit.one"):
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point)
            driver.place.check_partial(driver.expected)
        assert len(driver.place.ledger().unsettled()) == 1
        driver.finish()
        ledger = driver.place.ledger()
        assert ledger.location == f"{store.url.replace('s3a:', 's3:')}/{tmp_path.name}/check point"
        command = [
            sys.executable,
            "-m",
            "connector.cli",
            "checkpoints",
            "list",
            driver.job.location,
            "--output",
            "json",
        ]
        listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert [each["id"] for each in listed["checkpoints"]] == sorted(ledger.checkpoints)
        command = [sys.executable, "-m", "connector.cli", "recover", driver.job.location, "--json"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        assert (said["status"], said["batch"]) == ("done", None)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_query_with_its_checkpoints_in_a_store_goes_back(store: Store, tmp_path: Path) -> None:
    with store.driver(tmp_path, batches=5) as driver:
        driver.start()
        driver.wait_committed(2)
        driver.kill()
        first = min(driver.place.ledger().checkpoints)
        driver.place.check_partial(driver.expected)
        command = [sys.executable, "-m", "connector.cli", "rewind", driver.job.location, "--to", str(first)]
        command += ["--allow-reemit", "--yes", "--output", "json"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        assert (said["status"], said["batch"]) == ("done", 0)
        assert (newest(driver.job.location, "offsets"), newest(driver.job.location, "commits")) == (0, 0)
        before = driver.place.output.rows()
        assert before == Counter(range(10 * (before.total() // 10))), "whole micro-batches, from the first"
        assert before.total() > 10
        driver.start()
        assert driver.wait_exit() == 0, driver.tail()
        assert driver.place.output.rows() == before + Counter(range(10, 50)), "what follows is written again"


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_query_in_a_store_goes_on_from_a_savepoint_at_another_location_in_it(store: Store, tmp_path: Path) -> None:
    """The restore is killed once before each of its entries; every row is written once."""
    here = f"{store.url}/{tmp_path.name}"
    with store.driver(tmp_path, batches=6) as driver:
        driver.start()
        driver.wait_committed(2)
        driver.kill()
        command = [sys.executable, "-m", "connector.cli"]
        stop = ["stop", driver.job.location, "--savepoint", f"{here}/saved", "--output", "json"]
        said = json.loads(subprocess.run([*command, *stop], capture_output=True, text=True, check=False).stdout)
        assert said["status"] == "done", said
        claim = ["restore", f"{here}/saved", f"{here}/new place", "--claim", "--yes"]
        for point in ("restore.begun", "restore.copied", "restore.moved"):
            driver.faults.arm(point, "kill")
            done = subprocess.run(
                [*command, *claim], env={**os.environ, faults.VARIABLE: str(driver.faults.folder)}, check=False
            )
            assert done.returncode == -signal.SIGKILL
        assert subprocess.run([*command, *claim], check=False).returncode == 0
        job, place = driver.job, driver.place
        driver.start()
        assert driver.wait_exit() != 0
        assert "LOCATION_MOVED_ON" in driver.error()
        driver.job = replace(job, location=f"{here}/new place")
        driver.place = RemotePlace(place.location, place.output, driver.job.location)
        driver.finish()


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_of_two_drivers_on_a_store_the_one_paused_before_its_decision_is_fenced_and_the_other_wins(
    store: Store, tmp_path: Path
) -> None:
    with store.driver(tmp_path) as first, store.driver(tmp_path) as second:
        second.folder = tmp_path / "second"
        second.faults = type(second.faults)(second.folder / "faults")
        first.faults.arm("commit.looked", "pause")
        first.start()
        first.wait_fired("commit.looked")
        second.start()
        second.wait_entry("settled")
        first.faults.resume("commit.looked")
        wait_until(first.error, "the end of the first driver")
        newest_run = second.place.ledger().newest_run
        assert newest_run is not None
        assert "RUN_SUPERSEDED" in first.error()
        assert f"replaced by run {newest_run.token}" in first.error()
        assert second.wait_exit() == 0, second.tail()
        second.place.check_whole(second.expected)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_query_lives_through_a_failover_of_hdfs(tmp_path: Path) -> None:
    """Its first NameNode is killed in the middle of a commit; then the second one serves."""
    with hdfs_for_users(namenodes=2) as hdfs, Store(f"{hdfs.url}/queries", hdfs.conf).driver(tmp_path, 6) as driver:
        driver.faults.arm("decision.written", "pause")
        driver.start()
        driver.wait_fired("decision.written")
        hdfs.fail_over()
        driver.faults.resume("decision.written")
        assert driver.wait_exit() == 0, driver.tail()
        driver.place.check_whole(driver.expected)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_of_two_namenodes_the_standby_is_asked_in_vain_and_its_files_are_those_of_the_other(tmp_path: Path) -> None:
    with hdfs_for_users(namenodes=2) as hdfs:
        active, standby = hdfs.endpoint.split(",")
        files = CheckpointLocation(f"{hdfs.url}/place", {"endpoint": f"{standby},{active}"}).files
        assert files.create("a", b"one")
        hdfs.fail_over()
        assert not files.create("a", b"two")
        assert files.create("b", b"three")
        assert (files.read("a"), files.read("b")) == (b"one", b"three")
