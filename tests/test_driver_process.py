"""What watches a driver must not take one end for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.driver_process import DriverProcess

WITHOUT_JAVA = """
import json
from transactional import faults
try:
    faults.reach("commit.one")
except faults.InjectedFault as fault:
    print(json.dumps({"event": "failed", "error": repr(fault)}), flush=True)
"""
"""A driver that passes a fault point, and has no JVM."""

NAMED_JAVA = """
import ctypes
ctypes.CDLL(None).prctl(15, b"java", 0, 0, 0)
"""

LIKE_JAVA = (
    NAMED_JAVA
    + """
import os
from transactional import faults
if os.fork() == 0:
    faults.reach("commit.one")
    os._exit(0)
os.wait()
print('{"event": "finished"}', flush=True)
"""
)
"""Another, whose leader has the name of a JVM, above the process that passes the point."""


@pytest.mark.parametrize("action", ["raise", "kill"])
def test_a_driver_that_ends_by_an_injected_failure_is_not_taken_for_a_killed_one(tmp_path: Path, action: str) -> None:
    with DriverProcess(tmp_path, program=("-c", WITHOUT_JAVA)) as driver:
        driver.faults.arm("commit.one", action)
        driver.start()
        with pytest.raises(AssertionError, match="did not kill the JVM"):
            driver.wait_death("commit.one")


def test_a_kill_that_finds_no_jvm_is_no_death(tmp_path: Path) -> None:
    with DriverProcess(tmp_path, program=("-c", NAMED_JAVA + WITHOUT_JAVA)) as driver:
        driver.faults.arm("commit.one", "kill-jvm")
        driver.start()
        with pytest.raises(AssertionError, match="not killed, but ended by itself"):
            driver.wait_death("commit.one")


def test_a_killed_jvm_is_a_death(tmp_path: Path) -> None:
    with DriverProcess(tmp_path, program=("-c", LIKE_JAVA)) as driver:
        driver.faults.arm("commit.one", "kill-jvm")
        driver.start()
        driver.wait_death("commit.one")
