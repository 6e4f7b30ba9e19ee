"""A simulated Delta table: a folder of data files and notes, and a log whose versions are taken by exclusive create.

What deltalake does is said here once more: it writes the version after the one that it has read, and where that is taken, it
reads what took it and goes on to the next, unless that is of the same application. Versions of the log are cleaned up once no
transaction that is not over began before them: Delta keeps them for 30 days.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from tests.simulation.stores import ONCE, READ
from transactional.errors import StoreError
from transactional.journal import Journal, MemoryJournalStore

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

__all__ = ["SimulatedDataFiles", "SimulatedDelta", "SimulatedFolder"]

CREATE = (*ONCE, "late", "late")
KEPT = 6  # versions of the log
OTHERS = "another/application"

Action = Mapping[str, Any]


class SimulatedDelta:
    """The store of a world whose sink writes into a Delta table."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, bytes] = {}
        self.log: dict[int, list[Action]] = {}
        """What the folder has. A version from before `kept` that is written late is none of the table's."""
        self.kept = 0
        self.newest = -1
        self.added: set[str] = set()
        self.apps: dict[str, int] = {}
        self.looked: dict[str, list[Process]] = {}
        """Who has seen that a file is there."""

    # -- what a world does with it ----------------------------------------------------------------------------------------

    def open(self) -> list[str]:
        """Return the notes of transactions: whoever ends one deletes its note. (VACUUM finds a file without a note.)"""
        return sorted(path for path in self.files if path.startswith("_barrier"))

    def expire(self, note: str) -> None:
        """Nothing expires; somebody runs VACUUM, without any patience, but not between a commit's look and the commit."""
        self.world.did["loss"] += 1
        for path in json.loads(self.files[note])["files"]:
            if path not in self.added and not any(process.living for process in self.looked.get(path, ())):
                self.files.pop(path, None)

    def acts(self) -> Mapping[str, Callable[[], object]]:
        """Others write to the table, too, and clean its log up."""
        return {"store is hurt": self._disturb}

    def _disturb(self) -> None:
        if self.newest >= 0 and self.world.choices.below(4):
            self.world.see("table: another writer")
            self.take(self.newest + 1, [{"txn": {"appId": OTHERS, "version": self.newest}}])
        elif self.newest - self.kept > KEPT:
            self.world.see("table: the log is cleaned up")
            noted = [json.loads(data)["version"] for path, data in self.files.items() if path.startswith("_barrier")]
            known = [version for files in self.world.disk.values() for version in _known(files)]
            self.clean(min([self.newest - self.world.choices.below(KEPT), *noted, *known]))
            backups = [files for _, files in self.world.moves.backups]
            if any(version < self.kept for files in backups for version in _known(files)):
                self.world.did["clean up under a backup"] += 1

    def clean(self, before: int) -> None:
        """Delete the log's versions from before this one: a checkpoint of the log has them."""
        self.kept = max(self.kept, before)
        self.log = {version: actions for version, actions in self.log.items() if version >= self.kept}

    def well(self) -> None:
        """Nothing of it hurts when nobody sends requests."""

    # -- the log ----------------------------------------------------------------------------------------------------------

    def take(self, version: int, actions: Sequence[Action]) -> bool:
        """Create a version of the log, exclusively."""
        if version in self.log:
            return False
        self.log[version] = list(actions)
        if version == self.newest + 1:
            self.newest = version
            self._fold(version, actions)
        else:
            assert version < self.kept, "deltalake leaves no gap"
        return True

    def _fold(self, version: int, actions: Sequence[Action]) -> None:
        rows: list[int] = []
        for action in actions:
            if "txn" in action:
                self.apps[action["txn"]["appId"]] = action["txn"]["version"]
            elif "add" in action:
                path = action["add"]["path"]
                if path in self.added:
                    self.world.auditor.fail(
                        f"a table version adds a data file a second time: version {version}, {path}"
                    )
                if path not in self.files:
                    self.world.auditor.fail(f"a table version adds a data file that is gone: version {version}, {path}")
                self.added.add(path)
                rows += json.loads(self.files.get(path, b"[]"))
        if rows:
            self.world.auditor.appear(rows, "", version)

    def request(self, label: str, act: Callable[[], Any], kinds: Sequence[str] = READ) -> Any:
        """Send a request to the store of files."""
        return self.world.faults.request(label, act, kinds)


class Snapshot:
    """The table at a version, as `deltalake.DeltaTable` opens it."""

    def __init__(self, store: SimulatedDelta) -> None:
        self._store = store
        self._version, self._apps, self._added = store.newest, dict(store.apps), set(store.added)

    def version(self) -> int:
        """Return the version at which it is open."""
        return self._version

    def metadata(self) -> Any:
        """Return what the sink reads of it."""
        return TABLE

    def schema(self) -> None:
        """Nobody looks into it."""

    def transaction_version(self, app: str) -> int | None:
        """Return the version of an application's newest transaction."""
        return self._apps.get(app)

    def get_add_actions(self) -> pa.Table:
        """Return the files of the table."""
        return pa.table({"path": pa.array(sorted(self._added), pa.string())})

    def create_write_transaction(self, adds: Sequence[Any], *_: Any, commit_properties: Any) -> None:
        """Write a version with these files, after the one that is open, or after those that have come since."""
        mark, apps = commit_properties.custom_metadata, commit_properties.app_transactions
        actions: list[Action] = [{"commitInfo": mark}]
        actions += [{"txn": {"appId": app.app_id, "version": app.version}} for app in apps]
        actions += [{"add": {"path": add.path}} for add in adds]
        mine = {app.app_id for app in apps}
        version = self._version + 1
        while not self._store.request(f"create log {version}", partial(self._store.take, version, actions), CREATE):
            theirs = self._store.request(f"read log {version}", partial(self._store.log.get, version))
            if theirs is None:
                raise CommitFailedError(f"version {version} is gone")
            if mine & {action["txn"]["appId"] for action in theirs if "txn" in action}:
                raise CommitFailedError("a concurrent transaction of the same application")
            version += 1


class Table:
    """What a table's metadata says."""

    id = "table"
    partition_columns: Sequence[str] = ()
    configuration: Mapping[str, str] = {}


TABLE = Table()


class SimulatedFolder:
    """A `connector.delta.storage.TableFolder`."""

    uri = "/simulated/table"

    def __init__(self, store: SimulatedDelta) -> None:
        self._store = store

    def exists(self) -> bool:
        """See `TableFolder`."""
        return bool(self._store.request("look for the table", lambda: self._store.newest >= 0))

    def make(self) -> None:
        """Create the table, unless it is there."""
        self._store.request("create log 0", lambda: self._store.newest >= 0 or self._store.take(0, [{}]), ONCE)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """See `TableFolder`."""
        try:
            yield
        except OSError as problem:
            raise StoreError("TABLE_UNREACHABLE", table=self.uri, reason=str(problem)) from problem

    def open(self) -> Snapshot:
        """See `TableFolder`."""
        found: Snapshot = self._store.request("open the table", lambda: Snapshot(self._store))
        return found

    def log(self, version: int) -> Iterator[Action] | None:
        """See `TableFolder`."""
        actions = self._store.request(f"read log {version}", lambda: self._store.log.get(version))
        return None if actions is None else iter(actions)

    def sync_log(self) -> None:
        """See `TableFolder`."""
        self._store.world.step("sync the log")

    def put(self, path: str, data: bytes) -> None:
        """See `TableFolder`."""
        self._store.request(f"put {short(path)}", lambda: self._store.files.update({path: data}), ONCE)

    def close(self, path: str, data: bytes) -> None:
        """End a data file. One that was deleted meanwhile stays so, as on a disk."""
        files = self._store.files
        self._store.request(f"close {short(path)}", lambda: files.update({path: data} if path in files else {}), ONCE)

    def read(self, path: str) -> bytes:
        """See `TableFolder`."""
        data = self._store.request(f"read {short(path)}", lambda: self._store.files.get(path))
        if data is None:
            raise FileNotFoundError(path)
        return bytes(data)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        found: list[int | None] = self._store.request("look at files", lambda: list(map(self._size, paths)))
        return found

    def _size(self, path: str) -> int | None:
        store, current = self._store, self._store.world.scheduler.current
        if current is not None:
            store.looked.setdefault(path, []).append(current)
        return len(store.files[path]) if path in store.files else None

    def delete(self, paths: Iterable[str]) -> None:
        """See `TableFolder`."""
        for path in paths:
            self._store.request(f"delete {short(path)}", partial(self._delete, path), ONCE)

    def _delete(self, path: str) -> None:
        if path in self._store.added:
            self._store.world.auditor.fail(f"a data file of the table is deleted: {path}")
        self._store.files.pop(path, None)

    def names(self, folder: str) -> list[str]:
        """See `TableFolder`."""
        start = f"{folder}/"
        found: list[str] = self._store.request(
            "list notes", lambda: [path[len(start) :] for path in self._store.files if path.startswith(start)]
        )
        return found


class SimulatedDataFiles:
    """A `connector.delta.data_files.DataFiles` of one file, whose contents are its rows' numbers."""

    def __init__(
        self, *, folder: SimulatedFolder, name: str, announce: Callable[[Sequence[str]], None], **_: Any
    ) -> None:
        self._folder, self._path, self._announce = folder, f"{name}.parquet", announce
        self._rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows: a file that is not closed is half a file."""
        if not self._rows:
            self._announce([self._path])
            self._folder.put(self._path, b"half")
        self._rows += map(int, batch["value"].to_pylist())

    def finish(self) -> list[Any]:
        """Close the file."""
        if not self._rows:
            return []
        data = json.dumps(self._rows).encode()
        self._folder.close(self._path, data)
        fixed: dict[str, Any] = {"partitionValues": {}, "modificationTime": 0, "stats": "{}"}
        return [{"path": self._path, "size": len(data), **fixed}]

    def drop(self) -> None:
        """Delete the file."""
        if self._rows:
            self._folder.delete([self._path])


def short(path: str) -> str:
    """Return what tells a file from others: a note by its transaction, as the data file."""
    kind = "note" if path.startswith("_barrier") else "part"
    return f"{kind} {path.replace('/', '-').rsplit('-', 1)[-1][:6]}"


def _known(files: Mapping[str, bytes]) -> list[int]:
    """Return the versions at which transactions began that a location's journal does not know to be over."""
    store, prefix = MemoryJournalStore(), "barrier/log/"
    store.files = {path.removeprefix(prefix): data for path, data in files.items() if path.startswith(prefix)}
    return [handle["version"] for handle in Journal(store).load().known_handles()]
