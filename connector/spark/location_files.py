"""The files of a checkpoint location, as far as they are only read, and the store of its journal."""

from __future__ import annotations

import os
from typing import Protocol

from transactional.errors import LocationError
from transactional.journal import JournalStore, LocalJournalStore, closed_journal

__all__ = ["LocalFiles", "LocationFiles", "read_file"]


class LocationFiles(Protocol):
    """Names are relative to the location, with ``/``. No method changes a file of Spark's."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, folders too, in any order; empty where there is none."""

    def read(self, name: str) -> bytes:
        """A whole file. Raises OSError; FileNotFoundError where there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of that name. Raises OSError where nothing tells."""

    def journal_store(self, folder: str) -> JournalStore:
        """The files of a folder of ours, with exclusive create."""

    def shown(self, name: str) -> str:
        """A file's whole name, for messages."""


_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def read_file(files: LocationFiles, name: str) -> bytes:
    """A whole file, where what is gone for good is told from what can't be read at this moment.

    Raises
    ------
    FileNotFoundError, NotADirectoryError, IsADirectoryError
        There is no such file.
    LocationError
        ``LOCATION_UNREADABLE``: the disk or the store does not give it now.
    """
    try:
        return files.read(name)
    except _GONE:
        raise
    except OSError as error:
        path = files.shown(name)
        raise LocationError("LOCATION_UNREADABLE", f"{path} can't be read now: {error}", path=path) from error


class LocalFiles:
    """On a local disk.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        try:
            return os.listdir(os.path.join(self._path, folder))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """See `LocationFiles`."""
        with open(os.path.join(self._path, name), "rb") as file:
            return file.read()

    def exists(self, name: str) -> bool:
        """See `LocationFiles`."""
        try:
            os.stat(os.path.join(self._path, name))  # os.path.exists says no, too, where the disk does not answer
        except _GONE:
            return False
        except PermissionError as error:
            raise closed_journal(error) from error
        return True

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles`."""
        return LocalJournalStore(os.path.join(self._path, folder), self._path)

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return os.path.join(self._path, name)
