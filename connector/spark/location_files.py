"""The files of a checkpoint location, as far as they are only read, and the store of its journal."""

from __future__ import annotations

import os
from typing import Protocol

from transactional.journal import JournalStore, LocalJournalStore

__all__ = ["LocalFiles", "LocationFiles"]


class LocationFiles(Protocol):
    """Names are relative to the location, with ``/``. No method changes a file of Spark's."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, folders too, in any order; empty where there is none."""

    def read(self, name: str) -> bytes:
        """A whole file. Raises OSError; FileNotFoundError where there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of that name."""

    def journal_store(self, folder: str) -> JournalStore:
        """The files of a folder of ours, with exclusive create."""

    def shown(self, name: str) -> str:
        """A file's whole name, for messages."""


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
        return os.path.exists(os.path.join(self._path, name))

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles`."""
        return LocalJournalStore(os.path.join(self._path, folder))

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return os.path.join(self._path, name)
