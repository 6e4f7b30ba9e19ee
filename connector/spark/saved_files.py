"""Files that are copied whole: with size and hash, durable, and from a place where somebody is at work."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transactional.journal.folders import file_mode, make_folders, sync_folder

__all__ = ["SavedFile", "Still", "copy_file", "describe", "sync_folders", "write_file"]

CHUNK = 1 << 20
"""Bytes that are read at once."""


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

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return asdict(self)


def copy_file(source: str, target: str, path: str) -> SavedFile:
    """Copy a file, durably, with its folders; the folders themselves are synced by `sync_folders`.

    The copy can be written by its owner, though who guards a savepoint may have made the source read-only.

    Parameters
    ----------
    source, target : str
    path : str
        Of the answer.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as writing:
        found = describe(source, path, writing.write)
        writing.flush()
        os.fsync(writing.fileno())
    os.chmod(target, stat.S_IMODE(os.stat(source).st_mode) | stat.S_IWUSR)
    return found


def write_file(target: str, data: bytes, path: str = "", private: bool = False) -> SavedFile:
    """Write a file, durably, with its folders.

    Parameters
    ----------
    target : str
    data : bytes
    path : str, optional
        Of the answer.
    private : bool
        A file of the journal's: see `transactional.journal.folders`. Others are as Spark would make them.
    """
    folder = os.path.dirname(target)
    make_folders(folder) if private else os.makedirs(folder, exist_ok=True)
    mode = file_mode(folder) if private else 0o666
    with open(target, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(path, len(data), hashlib.sha256(data).hexdigest())


def describe(source: str, path: str, also: Callable[[bytes], object] | None = None) -> SavedFile:
    """What stands in a file now.

    Parameters
    ----------
    source : str
    path : str
        Of the answer.
    also : Callable[[bytes], object], optional
        Gets all of it, piece by piece.

    Raises
    ------
    OSError
        It can't be read.
    """
    digest, size = hashlib.sha256(), 0
    with open(source, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if also is not None:
                also(chunk)
    return SavedFile(path, size, digest.hexdigest())


def sync_folders(root: str) -> None:
    """Make the names in a folder, and in all folders below it, durable."""
    for folder, _, _ in os.walk(root):
        sync_folder(folder)


class Still:
    """Files that must stand as they were first seen.

    Parameters
    ----------
    root : str
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: dict[str, tuple[int, int, int] | None] = {}

    def look(self, path: str) -> None:
        """Remember how a file stands now.

        Raises
        ------
        FileNotFoundError
            It is gone.
        """
        self._seen[path] = found = self._stands(path)
        if found is None:
            raise FileNotFoundError(path)

    def changed(self) -> Sequence[str]:
        """Files that are gone, or others by now."""
        return [path for path, seen in self._seen.items() if self._stands(path) != seen]

    def _stands(self, path: str) -> tuple[int, int, int] | None:
        try:
            found = os.stat(os.path.join(self._root, path))
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino
