"""The stores of a run: a location's files, and transactions; requests are refused, answers are lost, effects come late."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from connector.location.single_driver import FilesystemJournalStore
from transactional.sink import Outcome, TransactionContext
from transactional.testing import MemoryTransactions

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

__all__ = ["LIFETIME", "MARGIN", "ONCE", "READ", "Faults", "SimulatedFiles", "SimulatedTransactions"]


Answer = TypeVar("Answer")

LIFETIME = 100.0
"""Seconds that the store keeps a transaction."""

MARGIN = 10.0
"""Seconds that must be left of a transaction for a decision."""

READ = ("refused", "refused", "refused", "all refused")
ONCE = (*READ, "answer lost")
CHANGE = (*ONCE, "repeated", "late")
ENTRIES, LOOKS = "barrier/log", 4


class Faults:
    """What may become of a request, by the choices of the run."""

    SIDES = 1024
    DELAYS = (0.1, 1.0, 5.0, 30.0, 130.0)

    def __init__(self, world: World) -> None:
        self._world = world
        self.weight = 0  # Of `SIDES`: how often something does.
        self.until = 0.0
        self._looks: Counter[Process | None] = Counter()

    def request(self, label: str, act: Callable[[], Answer], kinds: Sequence[str] = READ) -> Answer:
        """Take a step that sends a request; return its answer, or raise `OSError`: it may be done or not.

        Parameters
        ----------
        label : str
        act : Callable[[], Answer]
        kinds : Sequence[str]
            What may become of it.
        """
        world = self._world
        self._looks[world.scheduler.current] -= 1
        world.step(label)
        if world.time < self.until:
            world.see("request: refused, as others before it")
            raise self._failed(label)
        weight = self.weight * (4 if kinds is CHANGE else 1)
        if not weight or world.choices.below(self.SIDES) < self.SIDES - weight:
            return act()
        kind = world.choices.one_of(kinds)
        world.see(f"request: {kind}")
        world.note(f"{label}: {kind}")
        if kind == "all refused":
            self.until = world.time + world.choices.one_of(self.DELAYS)
        elif kind == "answer lost":
            act()
        elif kind == "late":
            world.did["late"] += 1
            self._send_later(label, act)
        elif kind == "repeated":  # by the client, which hides it
            act()
            return act()
        raise self._failed(label)

    def created(self, name: str) -> None:
        """Note that the process at work has made an entry of the journal: its next requests are looks at it."""
        if name.startswith(ENTRIES):
            self._looks[self._world.scheduler.current] = LOOKS

    def _failed(self, label: str) -> OSError:
        """Return the error of a request. Who can't look at an entry that it has just made does not know whether it counts."""
        world = self._world
        world.did["unsure"] += self._looks[world.scheduler.current] > 0 and ENTRIES in label
        return OSError(f"no answer to {label}")

    def _send_later(self, label: str, act: Callable[[], Any]) -> None:
        world = self._world
        delay = world.choices.one_of(self.DELAYS)

        def arrives() -> None:
            world.step(f"{label}, late")
            act()

        world.spawn("network", arrives).until = world.time + delay

    def well(self) -> None:
        """From here on requests are answered."""
        self.weight, self.until = 0, 0.0


class SimulatedFiles:
    """The files of a location: a `connector.location.files.LocationFiles`."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self._path = path
        self._files = world.disk.setdefault(path, {})

    def _do(self, verb: str, name: str, act: Callable[[], Answer], kinds: Sequence[str] = READ) -> Answer:
        return self._world.faults.request(f"{verb} {name}", act, kinds)

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        return self._do("list", folder, lambda: self._in(folder))

    def _in(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        return list(dict.fromkeys(name[len(start) :].split("/")[0] for name in self._files if name.startswith(start)))

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        start = f"{folder}/" if folder else ""
        return self._do("list", folder, lambda: [name for name in self._files if name.startswith(start)])

    def read(self, name: str) -> bytes:
        """See `LocationFiles`."""

        def found() -> bytes:
            if name not in self._files:
                raise FileNotFoundError(name)
            return self._files[name]

        return self._do("read", name, found)

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles`."""
        yield self.read(name)

    def exists(self, name: str) -> bool:
        """See `LocationFiles`."""
        return self._do("look for", name, lambda: name in self._files or bool(self._in(name)))

    def mark(self, name: str) -> str | None:
        """See `LocationFiles`."""
        return self._do("look at", name, lambda: str(zlib.crc32(self._files[name])) if name in self._files else None)

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles`."""

        def created() -> bool:
            if name in self._files:
                return False
            self._files[name] = data
            self._world.faults.created(name)
            return True

        return self._do("create", name, created, CHANGE)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles`."""
        whole = data if isinstance(data, bytes) else b"".join(data)
        self._do("put", name, lambda: self._files.update({name: whole}), ONCE)

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles`."""
        for name in list(names):
            self._do("delete", name, partial(self._files.pop, name, None), ONCE)

    def remove(self, folder: str) -> None:
        """See `LocationFiles`."""
        for name in self.tree(folder):
            self.delete([name])

    def journal_store(self, folder: str) -> FilesystemJournalStore:
        """See `LocationFiles`."""
        return FilesystemJournalStore(self, folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return f"{self._path}/{name}"


class SimulatedTransactions:
    """A store of transactions as a sink's client reaches it: every call is a request. The auditor sees what readers see."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows: dict[int, list[int]] = {}
        self._aborted: set[int] = set()
        self._owners: dict[int, Process | None] = {}
        self.server = MemoryTransactions(world.scheduler, LIFETIME)

    # -- what a world does with it ----------------------------------------------------------------------------------------

    def open(self) -> list[int]:
        """Return the transactions that are open or prepared."""
        return self.server.unfinished()

    def expire(self, number: int) -> None:
        """Let a transaction's time be over."""
        self.server.expire(number)

    def acts(self) -> Mapping[str, Callable[[], object]]:
        """It has no parts that could be hurt."""
        return {}

    def well(self) -> None:
        """Its requests are what can be hurt."""

    # -- what a client asks -----------------------------------------------------------------------------------------------

    def begin(self, context: TransactionContext) -> int:
        """See `MemoryTransactions`."""
        head = self._world.head()

        def begun() -> int:
            number = self.server.begin(context)
            self._owners[number] = head
            return number

        return self._do("begin", begun, CHANGE)

    def write(self, number: int, rows: Any) -> None:
        """See `MemoryTransactions`."""

        def written() -> None:
            self._note_loss(number)
            self.server.write(number, rows)
            self._rows.setdefault(number, []).extend(int(row["value"]) for row in rows)

        self._do(f"write {number}", written, ONCE)

    def prepare(self, number: int) -> None:
        """See `MemoryTransactions`."""

        def prepared() -> None:
            self._note_loss(number)
            self.server.prepare(number)

        self._do(f"prepare {number}", prepared, ONCE)

    def _note_loss(self, number: int) -> None:
        """Note a loss if a transaction that is still in use has expired."""
        self._world.did["loss"] += number not in self.server.unfinished() and number not in self._aborted

    def commit(self, number: int) -> Outcome:
        """See `MemoryTransactions`."""

        def committed() -> Outcome:
            before, after = self.server.outcome(number), self.server.commit(number)
            self._world.did["loss"] += after is Outcome.LOST and number not in self._aborted
            if after is Outcome.COMMITTED and before is not after:
                self._world.auditor.appear(self._rows[number], self.server.context(number).route, number)
            return after

        return self._do(f"commit {number}", committed, CHANGE)

    def abort(self, number: int) -> Outcome:
        """See `MemoryTransactions`."""

        def aborted() -> Outcome:
            if number in self.server.unfinished():
                self._aborted.add(number)
            if self.server.outcome(number) is Outcome.PREPARED:
                self._world.did["swept by another"] += self._owners[number] is not self._world.head()
            return self.server.abort(number)

        return self._do(f"abort {number}", aborted, CHANGE)

    def outcome(self, number: int) -> Outcome:
        """See `MemoryTransactions`."""

        def told() -> Outcome:
            outcome, left = self.server.outcome(number), self.server.seconds_left(number)
            ended = outcome is Outcome.LOST and number not in self._aborted
            if ended or (outcome is Outcome.PREPARED and left is not None and left < MARGIN):
                self._world.did["loss"] += 1
            return outcome

        return self._do(f"ask {number}", told)

    def seconds_left(self, number: int) -> float | None:
        """See `MemoryTransactions`. It comes with the answer to `outcome`."""
        return self.server.seconds_left(number)

    def unfinished(self, prefix: str | None = None) -> list[int]:
        """See `MemoryTransactions`."""
        return self._do("list transactions", lambda: self.server.unfinished(prefix))

    def _do(self, label: str, act: Callable[[], Answer], kinds: Sequence[str] = READ) -> Answer:
        return self._world.faults.request(label, act, kinds)
