"""What a savepoint says of itself: ``savepoint.json``, the files that it lists, and the journal as of its checkpoint.

``savepoint.json`` is written last: a folder without it is no savepoint. Nothing in one is ever changed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.spark.location import local_path
from connector.spark.saved_files import SavedFile, describe, write_file
from transactional.clock import Clock
from transactional.entry import canonical, decode
from transactional.errors import LocationError
from transactional.journal import snapshot_file
from transactional.ledger import CheckpointRecord, Ledger

__all__ = ["CHECKPOINT", "MANIFEST", "Savepoint", "find", "folder_of", "read", "refuse_inside", "write"]

FORMAT: Final = 1
MANIFEST: Final = "savepoint.json"
JOURNAL: Final = "journal.json"
CHECKPOINT: Final = "checkpoint"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""A name with a colon alone (``orders-12:30``) is a folder's."""


@dataclass(frozen=True)
class Savepoint:
    """What ``savepoint.json`` says.

    Parameters
    ----------
    path : str
        The folder that was read.
    id : str
    query : str
        Spark's id of the query.
    location : str
        The checkpoint location that it was taken of.
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
        ``spark.sql.shuffle.partitions`` of the state; None where the offsets do not say.
    stateful : bool
    files : Sequence[SavedFile]
        All but ``savepoint.json`` itself.
    """

    path: str
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

    @property
    def size(self) -> int:
        """Bytes, of all files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """JSON types; without the path and the files."""
        return {key: value for key, value in vars(self).items() if key not in ("path", "files")}

    def ledger(self) -> Ledger:
        """The journal as of the checkpoint.

        Raises
        ------
        LocationError
            ``SAVEPOINT_DAMAGED``
        JournalError
            Of a newer format.
        """
        data = _bytes(os.path.join(self.path, JOURNAL))
        return Ledger.from_json(decode(data, JOURNAL).body)

    def verify(self) -> None:
        """Read every file, and compare it with the manifest.

        Raises
        ------
        LocationError
            ``SAVEPOINT_DAMAGED``: names the file.
        """
        for recorded in self.files:
            try:
                found = describe(os.path.join(self.path, *recorded.path.split("/")), recorded.path)
            except OSError as error:
                raise _damaged(self.path, recorded.path, error.strerror or str(error)) from error
            if found != recorded:
                told = f"it has {found.size} bytes, {recorded.size} were written"
                raise _damaged(self.path, recorded.path, told if found.size != recorded.size else "its bytes changed")

    def is_whole(self) -> bool:
        """Whether all files are there, with the sizes that the manifest says; none is read."""
        try:
            sizes = [os.path.getsize(os.path.join(self.path, *file.path.split("/"))) for file in self.files]
        except OSError:
            return False
        return sizes == [file.size for file in self.files] and os.path.isfile(os.path.join(self.path, MANIFEST))

    def must_be_whole(self) -> None:
        """See `is_whole`.

        Raises
        ------
        LocationError
            ``SAVEPOINT_DAMAGED``
        """
        if not self.is_whole():
            raise LocationError(
                "SAVEPOINT_DAMAGED",
                f"files of the savepoint {self.path} are not there any more: restore another savepoint",
                savepoint=self.path,
            )

    def checkpoint_files(self) -> list[str]:
        """The paths of Spark's files, relative to a checkpoint location."""
        return [file.path.removeprefix(f"{CHECKPOINT}/") for file in self.files if file.path != JOURNAL]


def folder_of(text: str) -> str:
    """The canonical path of a savepoint's folder, which lies on a local disk; ``file:`` may stand before it.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_LOCAL``
    """
    path = local_path(text) if _URL.match(text) else text
    if path is None:
        raise LocationError(
            "SAVEPOINT_NOT_LOCAL",
            f"{text} is no folder of a local disk, and a savepoint is: take it to a disk, and copy the folder (aws s3 sync, "
            "hadoop fs -put). A folder whose name has a colon: put ./ before it",
            path=text,
        )
    return os.path.realpath(path)


def read(path: str) -> Savepoint:
    """A savepoint's manifest; its files are not read.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_FOUND``, ``SAVEPOINT_NOT_LOCAL``, ``SAVEPOINT_DAMAGED``, ``SAVEPOINT_FORMAT_UNKNOWN``,
        ``LOCATION_NOT_OURS``
    """
    folder = folder_of(path)
    name = os.path.join(folder, MANIFEST)
    if os.path.isdir(folder) and not os.access(folder, os.X_OK, effective_ids=True):
        raise LocationError(
            "LOCATION_NOT_OURS",
            f"{folder} is closed to this user: a savepoint holds its query's journal, and is its owner's. Run this as its "
            "owner",
            path=folder,
        )
    if not os.path.isfile(name):
        raise LocationError(
            "SAVEPOINT_NOT_FOUND",
            f"{folder} is no savepoint: it has no {MANIFEST}, which is written last. Name the folder that `barrier savepoint "
            "take` has made (`barrier savepoint list FOLDER`)",
            path=folder,
        )
    try:
        value = json.loads(_bytes(name))
        version, checksum = value["format"], value.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, MANIFEST, f"it is no manifest ({error})") from error
    if version != FORMAT:
        raise LocationError(
            "SAVEPOINT_FORMAT_UNKNOWN",
            f"{name} has format {version}; this version reads format {FORMAT}: use the version that took it, or a newer one",
            path=name,
            format=version,
        )
    if checksum != _checksum(value):
        raise _damaged(folder, MANIFEST, "its checksum does not match")
    files = [SavedFile(**file) for file in value.pop("files")]
    outside = [file.path for file in files if file.path.startswith("/") or ".." in file.path.split("/")]
    if outside:
        raise _damaged(folder, MANIFEST, f"it names a file outside of the savepoint ({outside[0]})")
    return Savepoint(path=folder, files=files, **{key: each for key, each in value.items() if key != "format"})


def find(folder: str) -> list[Savepoint | LocationError]:
    """The savepoints in a folder, oldest first; of those that can't be read, why."""
    found: list[Savepoint | LocationError] = []
    root = folder_of(folder)
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LocationError("SAVEPOINT_NOT_FOUND", f"{root} is no folder", path=root) from error
    for name in names:
        if name[0] == "." or not os.path.isfile(os.path.join(root, name, MANIFEST)):
            continue
        try:
            found.append(read(os.path.join(root, name)))
        except LocationError as problem:
            found.append(problem)
    return sorted(found, key=lambda each: each.time if isinstance(each, Savepoint) else -1)


def refuse_inside(path: str, what: str) -> None:
    """A path lies in no savepoint.

    Parameters
    ----------
    path : str
        Canonical; it need not be there.
    what : str
        Of the path, for the message.

    Raises
    ------
    LocationError
        ``INSIDE_A_SAVEPOINT``
    """
    folder = path
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.isfile(os.path.join(folder, MANIFEST)):
            raise LocationError(
                "INSIDE_A_SAVEPOINT",
                f"{path} lies in the savepoint {folder}: {what} there would be deleted with it. Name a folder beside it",
                path=path,
                savepoint=folder,
            )


def write(
    draft: str,
    ledger: Ledger,
    chosen: CheckpointRecord,
    query: str,
    partitions: int | None,
    files: Sequence[SavedFile],
    clock: Clock,
) -> Savepoint:
    """Finish a folder that holds a checkpoint's files: the journal, then the manifest.

    Parameters
    ----------
    draft : str
    ledger : Ledger
        Cut to the checkpoint.
    chosen : CheckpointRecord
    query : str
        Spark's id of the query.
    partitions : int or None
        See `Savepoint`.
    files : Sequence[SavedFile]
        That were copied.
    clock : Clock
    """
    now, run = int(clock.now() * 1000), ledger.newest_run
    _, data = snapshot_file(ledger, clock)
    journal = write_file(os.path.join(draft, JOURNAL), data, JOURNAL, private=True)
    found = Savepoint(
        path=draft,
        id=uuid.uuid4().hex,
        query=query,
        location=ledger.location,
        checkpoint=chosen.id,
        batch=max(chosen.batches),
        time=now,
        prefix=run.prefix if run else "",
        sink=run.sink if run else "",
        position=ledger.position,
        partitions=partitions,
        stateful=any(file.path.startswith(f"{CHECKPOINT}/state/") for file in files),
        files=[journal, *sorted(files, key=lambda file: file.path)],
    )
    value = {**found.to_json(), "format": FORMAT, "files": [file.to_json() for file in found.files]}
    text = canonical({**value, "checksum": _checksum(value)}) + "\n"
    write_file(os.path.join(draft, MANIFEST), text.encode())
    return found


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _damaged(os.path.dirname(path), os.path.basename(path), error.strerror or str(error)) from error


def _damaged(folder: str, path: str, why: str) -> LocationError:
    return LocationError(
        "SAVEPOINT_DAMAGED",
        f"{path} of the savepoint {folder} can't be used: {why}. Nothing was changed. Restore another savepoint, or this one "
        "from a backup",
        path=path,
        savepoint=folder,
    )
