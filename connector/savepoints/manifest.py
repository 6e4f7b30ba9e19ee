"""A savepoint's content: ``savepoint.json``, the files that it lists, and the journal as of its checkpoint.

::

    savepoint.json          what it is, and every file with its size and hash: created last, exclusively
    <id>/journal.json       the journal as of the checkpoint: nothing prepared, nothing unsettled
    <id>/checkpoint/        Spark's files of the checkpoint

A folder without ``savepoint.json`` is no savepoint. What a killed `take` has left in it stays beside the next one's files until
the savepoint is disposed of. Nothing in a savepoint is ever changed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from connector.location.files import GONE, LocationFiles, read_file
from connector.location.location import CheckpointLocation, local_path
from transactional.clock import Clock
from transactional.entry import UNFIT, canonical, checksum, decode
from transactional.errors import LocationError
from transactional.journal import snapshot_file
from transactional.ledger import CheckpointRecord, Ledger

__all__ = [
    "AT_ONCE",
    "CHECKPOINT",
    "MANIFEST",
    "SavedFile",
    "Savepoint",
    "copy_file",
    "find",
    "folder_of",
    "is_leftover",
    "read",
    "write",
]

FORMAT: Final = 2
"""Format 1 had the files in the folder itself, not in ``<id>``; it is read."""

MANIFEST: Final = "savepoint.json"
JOURNAL: Final = "journal.json"
CHECKPOINT: Final = "checkpoint"

AT_ONCE: Final = 16
"""Files that are copied at once: requests to an object store take tens of milliseconds."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""A name with a colon alone (``orders-12:30``) is a folder's."""

_LEFTOVER = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SavedFile:
    """One file of a savepoint.

    Parameters
    ----------
    path : str
        Relative to the savepoint, with slashes.
    size : int
        Bytes.
    sha256 : str
        Hexadecimal.
    """

    path: str
    size: int
    sha256: str


def copy_file(source: LocationFiles, name: str, target: LocationFiles | None, path: str) -> SavedFile:
    """Copy a file, and return its description."""
    digest, size = hashlib.sha256(), 0

    def seen() -> Iterator[bytes]:
        nonlocal size
        for chunk in source.chunks(name):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    if target is not None:
        target.put(path, seen())
    else:
        for _ in seen():
            pass
    return SavedFile(path, size, digest.hexdigest())


@dataclass(frozen=True)
class Savepoint:
    """The content of ``savepoint.json``.

    Parameters
    ----------
    folder : CheckpointLocation
        The folder that was read, on any store.
    id : str
    query : str
        Spark's id of the query.
    location : str
        The checkpoint location from which it was taken.
    checkpoint : int
        The checkpoint; its last micro-batch is `batch`.
    batch : int
    time : int
        Milliseconds since the epoch.
    prefix, sink : str
        Of the newest run.
    position : int
        Of the journal when it was taken.
    partitions : int or None
        ``spark.sql.shuffle.partitions`` of the state; None if the offsets do not hold it.
    stateful : bool
    files : Sequence[SavedFile]
        All but ``savepoint.json`` itself.
    """

    folder: CheckpointLocation = field(compare=False)
    id: str
    query: str
    location: str
    checkpoint: int
    batch: int
    time: int
    prefix: str
    sink: str
    position: int
    partitions: int | None
    stateful: bool
    files: Sequence[SavedFile]
    format: int = FORMAT

    @property
    def path(self) -> str:
        """Return the canonical name of its folder."""
        return self.folder.path

    @property
    def root(self) -> str:
        """Return the folder of its data, with which the names of its files begin."""
        return "" if self.format == 1 else f"{self.id}/"

    @property
    def size(self) -> int:
        """Return the size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON types, without the path and the files."""
        return {key: value for key, value in vars(self).items() if key not in ("folder", "files", "format")}

    def ledger(self) -> Ledger:
        """Return the journal as of the checkpoint."""
        data = _bytes(self.folder, f"{self.root}{JOURNAL}")
        return Ledger.from_json(decode(data, JOURNAL).body)

    def verify(self) -> None:
        """Read every file, and compare it with the manifest."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda file: self.copy(file, None, file.path), self.files))

    def copy(self, file: SavedFile, target: LocationFiles | None, name: str) -> None:
        """Copy one of its files, and compare what was read with the manifest."""
        try:
            found = copy_file(self.folder.files, file.path, target, name)
        except _GONE as error:
            raise _damaged(self.path, file.path, error.strerror or "it is gone") from error
        if (found.size, found.sha256) != (file.size, file.sha256):
            sizes = f"it has {found.size} bytes, {file.size} were written"
            raise _damaged(self.path, file.path, sizes if found.size != file.size else "its bytes changed")

    def checkpoint_files(self) -> dict[str, SavedFile]:
        """Return Spark's files, by their names in a checkpoint location."""
        prefix = f"{self.root}{CHECKPOINT}/"
        return {file.path[len(prefix) :]: file for file in self.files if file.path.startswith(prefix)}


_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def folder_of(text: str) -> CheckpointLocation:
    """Return a savepoint's folder; ``file:`` may stand before a path."""
    local = local_path(text) if _URL.match(text) else text
    return CheckpointLocation(os.path.realpath(local) if local is not None else text)


def is_leftover(name: str) -> bool:
    """Return whether a name in a savepoint's folder is one of `take`'s data: the savepoint's own, or a killed one's."""
    return _LEFTOVER.fullmatch(name) is not None


def read(path: str) -> Savepoint:
    """Read a savepoint's manifest, none of its files."""
    folder = folder_of(path)
    name = folder.files.shown(MANIFEST)
    try:
        data = read_file(folder.files, MANIFEST)
    except LocationError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        raise LocationError("LOCATION_NOT_OURS", path=folder.path) from error
    except OSError as error:
        raise LocationError(
            "SAVEPOINT_NOT_FOUND", path=folder.path, reason=f"it has no {MANIFEST}, which is written last"
        ) from error
    try:
        value = json.loads(data)
        version, known = value["format"], value.pop("checksum")
    except UNFIT as error:
        raise _damaged(folder.path, MANIFEST, f"it is not a manifest ({error})") from error
    if version not in (1, FORMAT):
        raise LocationError("FORMAT_UNKNOWN", what=name, found=f"format {version}", known=f"formats 1 to {FORMAT}")
    if known != checksum(value):
        raise _damaged(folder.path, MANIFEST, "its checksum does not match")
    files = [SavedFile(**file) for file in value.pop("files")]
    outside = [file.path for file in files if file.path.startswith("/") or ".." in file.path.split("/")]
    if outside:
        raise _damaged(folder.path, MANIFEST, f"it names a file outside of the savepoint ({outside[0]})")
    return Savepoint(folder=folder, files=files, **value)


def find(folder: str) -> list[Savepoint | LocationError]:
    """Return the savepoints in a folder, oldest first, with an error in place of each that can't be read."""
    found: list[Savepoint | LocationError] = []
    root = folder_of(folder)
    try:
        names = sorted(root.files.names(""))
    except NotADirectoryError:
        names = []
    if not names and not (root.is_local and os.path.isdir(root.path)):
        raise LocationError("SAVEPOINT_NOT_FOUND", path=root.path, reason="it is not a folder")
    for name in names:
        if name[0] == "." or not root.files.exists(f"{name}/{MANIFEST}"):
            continue
        try:
            found.append(read(root.files.shown(name)))
        except LocationError as problem:
            found.append(problem)
    return sorted(found, key=lambda each: each.time if isinstance(each, Savepoint) else -1)


def write(
    folder: CheckpointLocation,
    identifier: str,
    ledger: Ledger,
    chosen: CheckpointRecord,
    query: str,
    partitions: int | None,
    files: Iterable[SavedFile],
    clock: Clock,
) -> Savepoint | None:
    """Finish a savepoint whose files exist: write its journal, then its manifest."""
    now, run = int(clock.now() * 1000), ledger.newest_run
    _, data = snapshot_file(ledger, clock)
    folder.files.put(f"{identifier}/{JOURNAL}", data)
    journal = SavedFile(f"{identifier}/{JOURNAL}", len(data), hashlib.sha256(data).hexdigest())
    saved = sorted(files, key=lambda file: file.path)
    found = Savepoint(
        folder=folder,
        id=identifier,
        query=query,
        location=ledger.location,
        checkpoint=chosen.id,
        batch=max(chosen.batches),
        time=now,
        prefix=run.prefix if run else "",
        sink=run.sink if run else "",
        position=ledger.position,
        partitions=partitions,
        stateful=any(file.path.startswith(f"{identifier}/{CHECKPOINT}/state/") for file in saved),
        files=[journal, *saved],
    )
    value = {**found.to_json(), "format": FORMAT, "files": [asdict(file) for file in found.files]}
    data = (canonical({**value, "checksum": checksum(value)}) + "\n").encode()
    # An object store's client repeats a create whose answer was lost; the store then answers that the name is taken.
    ours = folder.files.create(MANIFEST, data) or read_file(folder.files, MANIFEST) == data
    return found if ours else None


def _bytes(folder: CheckpointLocation, name: str) -> bytes:
    try:
        return read_file(folder.files, name)
    except GONE as error:
        raise _damaged(folder.path, name, error.strerror or str(error)) from error


def _damaged(folder: str, path: str, why: str) -> LocationError:
    return LocationError("SAVEPOINT_DAMAGED", savepoint=folder, path=path, reason=why)
