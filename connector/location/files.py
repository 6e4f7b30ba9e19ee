"""The files of a checkpoint location, or of a savepoint: one interface for local disks, object stores and HDFS."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol

from transactional.errors import LocationError
from transactional.journal import JournalStore, LocalJournalStore, closed_journal
from transactional.journal.folders import file_mode, make_folders, sync_folder

__all__ = ["CHUNK", "GONE", "GuardedFiles", "LocalFiles", "LocationFiles", "read_file"]

CHUNK: Final = 1 << 20
"""Bytes per read."""


class LocationFiles(Protocol):
    """Files of a location on any store. Names are relative to it, with ``/``; every change is durable on return."""

    def names(self, folder: str) -> list[str]:
        """List a folder, folders in it too, in any order; empty if there is none."""

    def tree(self, folder: str) -> list[str]:
        """List all files in a folder and below, by their names in the location; empty if there is none."""

    def read(self, name: str) -> bytes:
        """Read a whole file. Raises OSError; FileNotFoundError if there is none."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a file piece by piece. Raises as `read`."""

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of that name. Raises OSError if that is unknown."""

    def mark(self, name: str) -> str | None:
        """Return a mark that changes when the file is replaced; None if there is no file."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file whole, or not at all; return False if the name is taken. Raises OSError: it may be done or not."""

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file, whole or not at all, over what is there."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Deleting what is gone is no error."""

    def remove(self, folder: str) -> None:
        """Delete a folder with everything in it. The empty name stands for the location, which is deleted if it has no file."""

    def journal_store(self, folder: str) -> JournalStore:
        """Return the files of a folder of ours, with exclusive create."""

    def shown(self, name: str) -> str:
        """Return a file's whole name, for messages."""


GONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""There is no such file."""


def read_file(files: LocationFiles, name: str) -> bytes:
    """Read a whole file; distinguish a file that is gone from one that can't be read at this moment."""
    try:
        return files.read(name)
    except GONE:
        raise
    except OSError as error:
        path = files.shown(name)
        raise LocationError("LOCATION_UNREADABLE", path=path, reason=str(error)) from error


@contextmanager
def _guarded(failed: Callable[[OSError], LocationError]) -> Iterator[None]:
    """Raise this error if the disk or the store fails, JournalError if another user's rights forbid it."""
    try:
        yield
    except GONE:
        raise
    except PermissionError as error:
        raise closed_journal(error) from error
    except OSError as error:
        raise failed(error) from error


class GuardedFiles:
    """Files of any store; an error of the disk or the store names the file: no command ends with a bare ``OSError``.

    Only `read` passes an ``OSError`` on, for `read_file`; and `journal_store`, as a journal judges its store's errors itself.

    Parameters
    ----------
    inner : LocationFiles

    Raises
    ------
    LocationError
        ``LOCATION_UNREADABLE``, or ``LOCATION_UNWRITABLE``: then a change may be done or not.
    JournalError
        ``LOCATION_NOT_OURS``
    """

    def __init__(self, inner: LocationFiles) -> None:
        self.inner = inner

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        with self._reading(folder):
            return self.inner.names(folder)

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        with self._reading(folder):
            return self.inner.tree(folder)

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles`."""
        with self._reading(name):
            yield from self.inner.chunks(name)

    def exists(self, name: str) -> bool:
        """See `LocationFiles`."""
        with self._reading(name):
            return self.inner.exists(name)

    def mark(self, name: str) -> str | None:
        """See `LocationFiles`."""
        with self._reading(name):
            return self.inner.mark(name)

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles`."""
        with self._changing(name):
            return self.inner.create(name, data)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles`."""
        with self._changing(name):
            self.inner.put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles`."""
        with self._changing(""):
            self.inner.delete(names)

    def remove(self, folder: str) -> None:
        """See `LocationFiles`."""
        with self._changing(folder):
            self.inner.remove(folder)

    def read(self, name: str) -> bytes:
        """See `LocationFiles`."""
        return self.inner.read(name)

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles`."""
        return self.inner.journal_store(folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return self.inner.shown(name)

    def _reading(self, name: str) -> AbstractContextManager[None]:
        path = self.shown(name)
        return _guarded(lambda error: LocationError("LOCATION_UNREADABLE", path=path, reason=str(error)))

    def _changing(self, name: str) -> AbstractContextManager[None]:
        path = self.shown(name)
        return _guarded(lambda error: LocationError("LOCATION_UNWRITABLE", path=path, reason=str(error)))


class LocalFiles:
    """Files on a local disk.

    Parameters
    ----------
    path : str
    private : bool
        Files are closed to others than their owner, as a journal's are (`transactional.journal.folders`); else with the modes
        that Spark gives.
    """

    def __init__(self, path: str, private: bool = False) -> None:
        self._path = path
        self._private = private

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        try:
            return os.listdir(self.shown(folder))
        except FileNotFoundError:
            return []

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles`."""

        def failed(error: OSError) -> None:
            with suppress(FileNotFoundError):
                raise error  # os.walk passes over folders that it can't list, and their files would be missing

        found = []
        for above, _, names in os.walk(self.shown(folder), onerror=failed):
            inside = os.path.relpath(above, self._path)
            found += [os.path.normpath(os.path.join(inside, name)) for name in names]
        return found

    def read(self, name: str) -> bytes:
        """See `LocationFiles`."""
        with open(self.shown(name), "rb") as file:
            return file.read()

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles`."""
        with open(self.shown(name), "rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def exists(self, name: str) -> bool:
        """See `LocationFiles`."""
        try:
            os.stat(self.shown(name))  # os.path.exists returns False, too, if the disk does not answer
        except GONE:
            return False
        return True

    def mark(self, name: str) -> str | None:
        """See `LocationFiles`."""
        try:
            found = os.stat(self.shown(name))
        except GONE:
            return None
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles`."""
        folder, _, file = name.rpartition("/")
        return LocalJournalStore(self.shown(folder)).create(file, data)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles`. Raises OSError."""
        path = self.shown(name)
        folder, file = os.path.split(path)
        make_folders(folder, self._private)
        temporary = os.path.join(folder, f".{file}.{uuid.uuid4().hex}.tmp")
        try:
            mode = file_mode(folder) if self._private else 0o666
            with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as writing:
                writing.writelines((data,) if isinstance(data, bytes) else data)
                writing.flush()
                os.fsync(writing.fileno())
            with suppress(FileNotFoundError):
                shutil.copymode(path, temporary)
            os.rename(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        sync_folder(folder)

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles`."""
        folders = set()
        for name in names:
            path = self.shown(name)
            folders.add(os.path.dirname(path))
            with suppress(FileNotFoundError):
                os.unlink(path)
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def remove(self, folder: str) -> None:
        """See `LocationFiles`."""
        path = self.shown(folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if folder else _remove_empty(path)
            sync_folder(os.path.dirname(path))

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles`."""
        return LocalJournalStore(self.shown(folder), self._path)

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return os.path.join(self._path, name) if name else self._path


def _remove_empty(path: str) -> None:
    """Remove the empty folders in a folder, and the folder itself if nothing else is in it."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
