"""Processor time and memory of a process and of everything that it starts.

How time is counted: a living process counts with its own time and with that of the children it has waited for, which the
kernel adds up (``cutime``, ``cstime``). Children that a parent never waits for, as those of PySpark's daemon (it ignores
SIGCHLD), vanish from these sums: the tree is looked at every `INTERVAL` seconds, and a process that vanished without its
nearest living ancestor's sum growing by its time keeps the time that it had when it was last seen. What is lost: at most
`INTERVAL` of each such process, and such processes that live shorter than that. A process whose parent ended is followed
on. Linux only: memory is PSS, in which pages that several processes share are counted once.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import psutil

__all__ = ["INTERVAL", "Machine", "Meter", "ProcessTree"]

INTERVAL = 0.25
"""Seconds between two looks. A look reads a line of every process on the machine: 2 ms with 130 of them."""

LOOKS_PER_WEIGHING = 4
"""PSS is read every second: the kernel walks a process's whole memory for it."""


@dataclass(frozen=True)
class _Member:
    parent: int
    own: float
    waited: float

    @property
    def seconds(self) -> float:
        return self.own + self.waited


class ProcessTree:
    """A process and everything that it starts, also what outlives its parent."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)  # The process's id.
        self._members: dict[psutil.Process, _Member] = {}
        self._unwaited = 0.0
        self.look()

    def look(self) -> float:
        """Look at all processes, and return their processor seconds, those of ended ones included."""
        now = self._living()
        self._unwaited += self._vanished_without_trace(now)
        self._members = now
        return self._unwaited + sum(member.seconds for member in now.values())

    def processes(self) -> list[psutil.Process]:
        """Return the processes that lived at the last look."""
        return list(self._members)

    def memory(self) -> int:
        """Return the PSS in bytes of the processes that lived at the last look."""
        total = 0
        for process in self.processes():
            try:
                total += int(process.memory_full_info().pss)
            except psutil.Error:  # noqa: PERF203 - it has ended meanwhile
                continue
        return total

    def _living(self) -> dict[psutil.Process, _Member]:
        now: dict[psutil.Process, _Member] = {}
        for ancestor in (self._root, *self.processes()):
            if ancestor in now:
                continue
            try:
                family = [ancestor, *ancestor.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                if (member := _member(process)) is not None:
                    now[process] = member
        return now

    def _vanished_without_trace(self, now: Mapping[psutil.Process, _Member]) -> float:
        gone = {process.pid: member for process, member in self._members.items() if process not in now}
        stayed = {process.pid: process for process in self._members if process in now}
        missing: dict[psutil.Process | None, float] = defaultdict(float)
        for member in gone.values():
            above = member.parent
            while above in gone:
                above = gone[above].parent
            missing[stayed.get(above)] += member.seconds
        return sum(
            max(0.0, seconds - (now[above].waited - self._members[above].waited if above is not None else 0.0))
            for above, seconds in missing.items()
        )


def _member(process: psutil.Process) -> _Member | None:
    try:
        with process.oneshot():
            times, parent = process.cpu_times(), process.ppid()
    except psutil.Error:
        return None
    return _Member(parent, times.user + times.system, times.children_user + times.children_system)


class Meter:
    """Measures a process tree between the two ends of a ``with`` block, from a thread of its own.

    Parameters
    ----------
    tree : ProcessTree
    beside : Sequence[ProcessTree]
        Trees whose time is not that of others on the machine, such as the broker's.
    sampling : bool
        Whether to look in between. Without it memory is that of the end, nothing disturbs the calling process, and processes
        that end meanwhile without being waited for are lost.

    Attributes
    ----------
    seconds : float
        Processor seconds of the tree.
    beside_seconds : list[float]
        Those of the trees beside it.
    others_cores : float
        Busy cores, on average, that belong neither to these trees nor to this process: neighbours, time stolen by
        them, the kernel. Without interrupts.
    peak_bytes : int
        The largest PSS of the tree.
    most_processes : int
    """

    def __init__(self, tree: ProcessTree, beside: Sequence[ProcessTree] = (), *, sampling: bool = True) -> None:
        self._tree, self._beside, self._sampling = tree, tuple(beside), sampling
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._machine = Machine()
        self.seconds, self.others_cores = 0.0, 0.0
        self.beside_seconds: list[float] = []
        self.peak_bytes, self.most_processes = 0, 0

    def __enter__(self) -> Meter:
        self._begin = [tree.look() for tree in (self._tree, *self._beside)]
        self._machine = Machine()
        if self._sampling:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampling:
            self._over.set()
            self._thread.join()
        spent = [tree.look() - begin for tree, begin in zip((self._tree, *self._beside), self._begin, strict=True)]
        self.seconds, self.beside_seconds = spent[0], spent[1:]
        self.others_cores = self._machine.others(sum(spent))
        self._weigh()

    def _watch(self) -> None:
        looks = 0
        while not self._over.wait(INTERVAL):
            self._tree.look()
            looks += 1
            if looks % LOOKS_PER_WEIGHING == 0:
                self._weigh()

    def _weigh(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._tree.memory())
        self.most_processes = max(self.most_processes, len(self._tree.processes()))


class Machine:
    """The whole machine's busy time since this object was made."""

    def __init__(self) -> None:
        self._start = _machine_times()

    def others(self, ours: float) -> float:
        """Return the average number of cores that others kept busy.

        Parameters
        ----------
        ours : float
            Processor seconds since then that are not others'. Those of this process and of the children that it has waited
            for are added.
        """
        busy, total, own = (now - then for now, then in zip(_machine_times(), self._start, strict=True))
        seconds = total / (os.cpu_count() or 1)
        return max(0.0, busy - own - ours) / seconds if seconds else 0.0


def _machine_times() -> tuple[float, float, float]:
    times, mine = psutil.cpu_times(), os.times()
    # Interrupts are left out: the kernel does not say whose they are, and our packets on the loopback make most of them.
    busy = times.user + times.nice + times.system + times.steal
    total = busy + times.irq + times.softirq + times.idle + times.iowait
    return busy, total, mine.user + mine.system + mine.children_user + mine.children_system
