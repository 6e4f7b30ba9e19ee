"""Processor time of a process tree, with children that have ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.benchmarks.accounts import Meter, ProcessTree

BURNT = 0.1

PARENT = f"""
import os, signal, sys, time

def burn():
    end = time.process_time() + {BURNT}
    while time.process_time() < end:
        pass

def say(word):
    os.write(1, word.encode() + b"\\n")

how = sys.argv[1]
if how == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as PySpark's daemon does
if not os.fork():
    if how == "orphaned" and os.fork():
        os.read(0, 1)
        os._exit(0)
    if how == "orphaned":
        above = os.getppid()
        say("born")
        while os.getppid() == above:
            time.sleep(0.01)
    burn()
    say("burnt")
    os.read(0, 1)
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    pass
say("ended")
os.read(0, 1)
"""


@contextmanager
def parent(how: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-ISc", PARENT, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def heard(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()


@pytest.mark.parametrize("how", ["waited", "ignored"])
def test_a_child_that_has_ended_counts_once(how: str) -> None:
    with parent(how) as process:
        tree = ProcessTree(process.pid)
        assert heard(process) == b"burnt"
        before = tree.look()
        assert len(tree.processes()) == 2
        go_on(process)
        assert heard(process) == b"ended"
        after = tree.look()
        assert len(tree.processes()) == 1
    assert before >= BURNT - 0.02  # the kernel counts hundredths
    assert before <= after < before + BURNT / 2


def test_what_outlives_its_parent_is_followed() -> None:
    with parent("orphaned") as process:
        assert heard(process) == b"born"
        tree = ProcessTree(process.pid)
        assert len(tree.processes()) == 3
        go_on(process)
        assert {heard(process), heard(process)} == {b"ended", b"burnt"}
        assert tree.look() >= BURNT - 0.02
        assert len(tree.processes()) == 2


def test_a_meter_counts_what_happens_inside_its_block() -> None:
    with parent("waited") as process:
        tree = ProcessTree(process.pid)
        with Meter(tree) as burning:
            assert heard(process) == b"burnt"
        with Meter(tree) as resting:
            pass
    assert burning.seconds >= BURNT / 2
    assert burning.peak_bytes > 1 << 20
    assert burning.most_processes == 2
    assert resting.seconds < BURNT / 2
