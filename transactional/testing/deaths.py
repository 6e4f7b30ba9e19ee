"""Run a call in a forked process, which is killed at a chosen line of the sink's code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

from transactional.sink import TwoPhaseCommitSink

VISITS = 2
"""The maximum number of times that the same line is counted. With 2, processes are killed in both rounds of a loop over
two handles."""


def lines_until_death(sink: TwoPhaseCommitSink[Any, Any], act: Callable[[], object], line: int | None) -> int | None:
    """Call `act` in a forked process, which is killed before it runs the `line`-th line of the sink's code.

    The fork is safe, because this process has no threads yet: the sink was only constructed, and has not connected.

    Returns
    -------
    int or None
        The number of lines that the child ran, if `act` returned; None if the child was killed.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            counted = _Lines(type(sink), line)
            threading.settrace(counted.enter)
            sys.settrace(counted.enter)
            act()
            sys.settrace(None)
            os.write(write, str(counted.lines).encode())
        finally:
            os._exit(0)  # without the parent's exit handlers, and without closing clients
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or told, "the sink raised an error in the forked process"
    return int(told) if told else None


class _Lines:
    """Counts lines of a sink's code as they are about to run, and kills the process at one of them."""

    def __init__(self, kind: type, last: int | None) -> None:
        self.lines = 0
        self._last = last
        self._files, self._folders = _code_of(kind)
        self._visits: Counter[tuple[CodeType, int]] = Counter()

    def enter(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace a function if it belongs to the sink's code."""
        file = frame.f_code.co_filename
        return self._line if file in self._files or file.startswith(self._folders) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            at = frame.f_code, frame.f_lineno
            self._visits[at] += 1
            if self._visits[at] <= VISITS:
                self.lines += 1
                if self.lines == self._last:
                    os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def _code_of(kind: type) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the files and folders with the code of a sink's classes: a class's package or, without one, its file."""
    files, folders = set(), set()
    for each in kind.__mro__:
        module = sys.modules[each.__module__]
        file = getattr(module, "__file__", None)
        if file is None or not issubclass(each, TwoPhaseCommitSink) or each is TwoPhaseCommitSink:
            continue
        if module.__package__:
            folders.add(os.path.dirname(file) + os.sep)
        else:
            files.add(file)
    return files, tuple(folders)


def spread(count: int, most: int) -> list[int]:
    """Return the numbers from 1 to `count`. If there are more than `most`, return only `most` of them, evenly spread."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + number * (count - 1) // max(1, most - 1) for number in range(most)})
