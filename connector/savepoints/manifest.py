"""Read and write savepoints.

The folder of a savepoint contains::

    savepoint.json          the manifest: query, checkpoint, ..., and the size and hash of every file
    <id>/journal.json       the journal as of the checkpoint: nothing is prepared or unsettled
    <id>/checkpoint/        Spark's files of the checkpoint

``savepoint.json`` is created last, with an exclusive create. A folder without it is not a savepoint. If `take` is killed, its
files stay in the folder. The next `take` into the folder leaves them there, until the savepoint is disposed of. The files of a
savepoint never change.
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

FORMAT: Final = 2
"""The version of the savepoint format. Savepoints in other versions can't be read."""

MANIFEST: Final = "savepoint.json"
JOURNAL: Final = "journal.json"
CHECKPOINT: Final = "checkpoint"

AT_ONCE: Final = 16
"""The number of files that are copied in parallel, because each request to an object store takes tens of
milliseconds."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""The beginning of a URL. Text with a colon, but no slash after it (``orders-12:30``), is a folder's name."""

_LEFTOVER = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SavedFile:
    """One file of a savepoint."""

    path: str  # The file's path, relative to the savepoint's folder, with slashes.
    size: int  # The size in bytes.
    sha256: str  # The SHA-256 hash of the content, in hexadecimal.


def copy_file(source: LocationFiles, name: str, target: LocationFiles | None, path: str) -> SavedFile:
    """Copy a file, and return its size and hash. If `target` is None, the file is only read."""
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
    """A savepoint, as its ``savepoint.json`` describes it."""

    folder: CheckpointLocation = field(compare=False)  # The savepoint's folder, on any store.
    id: str  # The savepoint's random id, which is also the name of the folder with its files.
    query: str  # Spark's id of the query.
    location: str  # The checkpoint location from which the savepoint was taken.
    checkpoint: int  # The id of the saved checkpoint.
    batch: int  # The last micro-batch of the checkpoint.
    time: int  # When the savepoint was taken, in milliseconds since the epoch.
    # The transactional-id prefix and the sink of the query's newest run.
    prefix: str
    sink: str
    position: int  # The number of the newest journal entry when the savepoint was taken.
    # The number of shuffle partitions of the state; None if the offset file does not contain it.
    partitions: int | None
    stateful: bool  # True if the savepoint contains state.
    files: Sequence[SavedFile]  # All files except ``savepoint.json``.

    @property
    def path(self) -> str:
        """Return the canonical path or URL of the savepoint's folder."""
        return self.folder.path

    @property
    def size(self) -> int:
        """Return the size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the manifest as JSON types, without `folder` and `files`."""
        return {key: value for key, value in vars(self).items() if key not in ("folder", "files")}

    def ledger(self) -> Ledger:
        """Read the savepoint's ledger: everything that the query's journal contained as of the saved checkpoint."""
        data = _bytes(self.folder, f"{self.id}/{JOURNAL}")
        return Ledger.from_json(decode(data, JOURNAL).body)

    def verify(self) -> None:
        """Read every file, and compare it with the manifest. Raises LocationError (``SAVEPOINT_DAMAGED``)."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda file: self.copy(file, None, file.path), self.files))

    def copy(self, file: SavedFile, target: LocationFiles | None, name: str) -> None:
        """Copy a file of the savepoint, and compare it with the manifest. If `target` is None, only compare."""
        try:
            found = copy_file(self.folder.files, file.path, target, name)
        except _GONE as error:
            raise _damaged(self.path, file.path, error.strerror or "it is gone") from error
        if (found.size, found.sha256) != (file.size, file.sha256):
            sizes = f"it has {found.size} bytes, but {file.size} were written"
            raise _damaged(self.path, file.path, sizes if found.size != file.size else "its content has changed")

    def checkpoint_files(self) -> dict[str, SavedFile]:
        """Map the name that each of Spark's files has in a checkpoint location to the savepoint's file."""
        prefix = f"{self.id}/{CHECKPOINT}/"
        return {file.path[len(prefix) :]: file for file in self.files if file.path.startswith(prefix)}


_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def folder_of(text: str) -> CheckpointLocation:
    """Return a savepoint's folder, from a path, a ``file:`` URI, or the URL of an object store."""
    local = local_path(text) if _URL.match(text) else text
    return CheckpointLocation(os.path.realpath(local) if local is not None else text)


def is_leftover(name: str) -> bool:
    """Return whether this is the name of a data folder: the savepoint's own, or one that a killed `take` has left."""
    return _LEFTOVER.fullmatch(name) is not None


def read(path: str) -> Savepoint:
    """Return a savepoint from its manifest, without reading its other files.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_FOUND``, ``SAVEPOINT_DAMAGED``, ``FORMAT_UNKNOWN``, ``LOCATION_NOT_OURS``, ``LOCATION_UNREADABLE``
    """
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
            "SAVEPOINT_NOT_FOUND", path=folder.path, reason=f"the file {MANIFEST}, which is written last, is missing"
        ) from error
    try:
        value = json.loads(data)
        version, known = value["format"], value.pop("checksum")
    except UNFIT as error:
        raise _damaged(folder.path, MANIFEST, f"it is not a manifest ({error})") from error
    if version != FORMAT:
        raise LocationError("FORMAT_UNKNOWN", what=name, found=f"format {version}", known=f"format {FORMAT}")
    if known != checksum(value):
        raise _damaged(folder.path, MANIFEST, "its checksum does not match")
    del value["format"]
    files = [SavedFile(**file) for file in value.pop("files")]
    outside = [file.path for file in files if file.path.startswith("/") or ".." in file.path.split("/")]
    if outside:
        raise _damaged(folder.path, MANIFEST, f"it lists a file outside of the savepoint ({outside[0]})")
    return Savepoint(folder=folder, files=files, **value)


def find(folder: str) -> list[Savepoint | LocationError]:
    """Return an error for each savepoint in the folder that can't be read, then the other savepoints, oldest first."""
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
    """Finish a savepoint after its files were copied: write its journal, then its manifest.

    Return None if another process has already created a manifest in the folder.
    """
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
