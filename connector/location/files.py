"""The files of a checkpoint location, or of a savepoint: one interface for local disks, object stores and HDFS."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import BinaryIO, Final, Protocol, cast

from transactional.errors import LocationError
from transactional.journal import JournalStore, LocalJournalStore, closed_journal
from transactional.journal.folders import file_mode, make_folders, sync_folder

CHUNK: Final = 1 << 20
"""The number of bytes per read."""

AT_ONCE: Final = 16
"""The maximum number of parallel requests to a store. A request takes a few to tens of milliseconds."""

SPOOLED: Final = 16 << 20
"""The size, in bytes, up to which a file is buffered in memory before it is written to a store. Larger files are
buffered on a local disk."""


class LocationFiles(Protocol):
    """The files of a checkpoint location or a savepoint, on any store.

    Names are relative to the location, and have ``/`` between folders. When a method returns, its changes are durable.
    """

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, in any order; empty if the folder does not exist."""

    def tree(self, folder: str) -> list[str]:
        """Return the names of all files in a folder and its subfolders, relative to the location; empty if there are none."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError if the file does not exist, OSError if it can't be read."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's content in pieces. Raises the same errors as `read`."""

    def exists(self, name: str) -> bool:
        """Return whether a file or folder with this name exists. Raises OSError if that can't be determined."""

    def mark(self, name: str) -> str | None:
        """Return a fingerprint of a file, which changes when the file is replaced; None if the file does not exist."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, completely or not at all; return False if the name is taken. After an OSError, the file may exist."""

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file, completely or not at all. An existing file of this name is replaced."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Files that do not exist are skipped."""

    def remove(self, folder: str) -> None:
        """Delete a folder and its content. If `folder` is ``""``, delete the location, but only if it contains no files."""

    def journal_store(self, folder: str) -> JournalStore:
        """Return a `JournalStore` for the files in a folder."""

    def shown(self, name: str) -> str:
        """Return a file's full path or URL, for messages."""


GONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""The errors that are raised if a file does not exist."""


def read_file(files: LocationFiles, name: str) -> bytes:
    """Return a file's content. Raise an error in `GONE` if there is no such file, LocationError if it can't be read."""
    try:
        return files.read(name)
    except GONE:
        raise
    except OSError as error:
        path = files.shown(name)
        raise LocationError("LOCATION_UNREADABLE", path=path, reason=str(error)) from error


@contextmanager
def _converted(failed: Callable[[OSError], LocationError]) -> Iterator[None]:
    """Convert the errors of a block: PermissionError to JournalError, other OSErrors with the function `failed`.

    Errors in `GONE`, which mean that a file does not exist, are raised unchanged.
    """
    try:
        yield
    except GONE:
        raise
    except PermissionError as error:
        raise closed_journal(error) from error
    except OSError as error:
        raise failed(error) from error


def reading(path: str) -> AbstractContextManager[None]:
    """Return a context in which OSErrors become errors that name `path`, for code that reads this file or folder.

    Errors in `GONE`, which mean that a file does not exist, are raised unchanged.
    """
    return _converted(lambda error: LocationError("LOCATION_UNREADABLE", path=path, reason=str(error)))


@contextmanager
def spooled(pieces: Iterable[bytes]) -> Iterator[BinaryIO]:
    """Buffer a file's content for a block, so that the content can be sent in one piece, and again if needed."""
    with tempfile.SpooledTemporaryFile(SPOOLED) as file:
        file.writelines(pieces)
        file.seek(0)
        yield cast("BinaryIO", file)


class GuardedFiles:
    """The files of any store, with errors that name the file, so that no command ends with a bare ``OSError``.

    Two methods leave errors unchanged: `read`, because `read_file` converts them, and `journal_store`, because the journal
    handles its store's errors itself.

    Raises
    ------
    LocationError
        ``LOCATION_UNREADABLE``, or ``LOCATION_UNWRITABLE``. After ``LOCATION_UNWRITABLE``, the file may or may not have
        been changed.
    JournalError
        ``LOCATION_NOT_OURS``: this user has no access to the file.
    """

    def __init__(self, inner: LocationFiles) -> None:
        self.inner = inner

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`."""
        with self._reading(folder):
            return self.inner.names(folder)

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles.tree`."""
        with self._reading(folder):
            return self.inner.tree(folder)

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles.chunks`."""
        with self._reading(name):
            yield from self.inner.chunks(name)

    def exists(self, name: str) -> bool:
        """See `LocationFiles.exists`."""
        with self._reading(name):
            return self.inner.exists(name)

    def mark(self, name: str) -> str | None:
        """See `LocationFiles.mark`."""
        with self._reading(name):
            return self.inner.mark(name)

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles.create`."""
        with self._changing(name):
            return self.inner.create(name, data)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`."""
        with self._changing(name):
            self.inner.put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles.delete`."""
        with self._changing(""):
            self.inner.delete(names)

    def remove(self, folder: str) -> None:
        """See `LocationFiles.remove`."""
        with self._changing(folder):
            self.inner.remove(folder)

    def read(self, name: str) -> bytes:
        """See `LocationFiles.read`."""
        return self.inner.read(name)

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        return self.inner.journal_store(folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return self.inner.shown(name)

    def _reading(self, name: str) -> AbstractContextManager[None]:
        return reading(self.shown(name))

    def _changing(self, name: str) -> AbstractContextManager[None]:
        path = self.shown(name)
        return _converted(lambda error: LocationError("LOCATION_UNWRITABLE", path=path, reason=str(error)))


class LocalFiles:
    """Implements `LocationFiles` for a local disk."""

    def __init__(self, path: str, private: bool = False) -> None:
        self._path = path
        # True to give new files the restricted permissions of a journal's files (`transactional.journal.folders`), False to
        # give them the permissions of Spark's files.
        self._private = private

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`."""
        try:
            return os.listdir(self.shown(folder))
        except FileNotFoundError:
            return []

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles.tree`."""

        def failed(error: OSError) -> None:
            with suppress(FileNotFoundError):
                raise error  # os.walk skips folders that it can't list, so their files would be missing

        found = []
        for above, _, names in os.walk(self.shown(folder), onerror=failed):
            inside = os.path.relpath(above, self._path)
            found += [os.path.normpath(os.path.join(inside, name)) for name in names]
        return found

    def read(self, name: str) -> bytes:
        """See `LocationFiles.read`."""
        with open(self.shown(name), "rb") as file:
            return file.read()

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles.chunks`."""
        with open(self.shown(name), "rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def exists(self, name: str) -> bool:
        """See `LocationFiles.exists`."""
        try:
            os.stat(self.shown(name))  # os.path.exists also returns False if the disk does not answer
        except GONE:
            return False
        return True

    def mark(self, name: str) -> str | None:
        """See `LocationFiles.mark`."""
        try:
            found = os.stat(self.shown(name))
        except GONE:
            return None
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles.create`."""
        folder, _, file = name.rpartition("/")
        return LocalJournalStore(self.shown(folder)).create(file, data)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`. Raises OSError."""
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
        """See `LocationFiles.delete`."""
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
        """See `LocationFiles.remove`."""
        path = self.shown(folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if folder else _remove_empty(path)
            sync_folder(os.path.dirname(path))

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        return LocalJournalStore(self.shown(folder), self._path)

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return os.path.join(self._path, name) if name else self._path


def _remove_empty(path: str) -> None:
    """Remove all empty subfolders of a folder, then the folder if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
