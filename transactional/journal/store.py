"""Stores of a journal's files, with the one operation that arbitrates between drivers."""

from __future__ import annotations

import os
import uuid
from typing import Protocol

from transactional.entry import torn
from transactional.errors import JournalError
from transactional.journal.folders import file_mode, make_folders, sync_folder

__all__ = ["JournalStore", "LocalJournalStore", "MemoryJournalStore", "closed_journal"]


class JournalStore(Protocol):
    """Files by name, with the one operation that arbitrates. Names are ``<n>.json`` and ``<n>.snapshot.json``."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file whole, durably, or not at all; False if the name is taken.

        Raises
        ------
        OSError
            It may be created or not. `Journal` reads it back, also if the name is taken: perhaps by this very call.
        """

    def names(self) -> list[str]:
        """Return all names, in any order."""

    def read(self, name: str) -> bytes:
        """Return a file's contents, or raise FileNotFoundError. After a create that failed, what it returns is durable."""

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone is no error."""


class LocalJournalStore:
    """A folder on a local disk: temporary file, fsync, link to the name, fsync of the folder.

    Parameters
    ----------
    folder : str
        Created with the first entry.
    location : str, optional
        A folder above it, created with it. Like those above, it has the modes that any program gives: only what is below
        is closed to others.
    """

    def __init__(self, folder: str, location: str = "") -> None:
        self.folder = folder
        self._location = location
        self._unsure = False  # whether a create has failed, and may have left a name that is not durable

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`. ``os.link`` fails if the name exists: rename would replace it."""
        if self._location:
            os.makedirs(self._location, exist_ok=True)
        make_folders(self.folder)
        temporary = os.path.join(self.folder, f".{name}.{uuid.uuid4().hex}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode(self.folder))
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, os.path.join(self.folder, name))
                created = True
            except FileExistsError:
                created = False
        finally:
            self._unsure = True
            os.unlink(temporary)
        self._sync()  # also if the name is taken: whoever took it may have died before this step
        return created

    def names(self) -> list[str]:
        """See `JournalStore`."""
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise closed_journal(error) from error

    def _sync(self) -> None:
        sync_folder(self.folder)
        self._unsure = False

    def read(self, name: str) -> bytes:
        """See `JournalStore`."""
        if self._unsure:
            self._sync()
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except PermissionError as error:
            raise closed_journal(error) from error
        except IsADirectoryError as error:
            raise torn(name, error) from error

    def delete(self, name: str) -> None:
        """See `JournalStore`."""
        try:
            os.unlink(os.path.join(self.folder, name))
        except FileNotFoundError:
            return


def closed_journal(error: PermissionError) -> JournalError:
    """Make the error of a journal that is another user's."""
    return JournalError("LOCATION_NOT_OURS", path=error.filename)


class MemoryJournalStore:
    """A dict; for tests of the protocol."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`."""
        return self.files.setdefault(name, data) is data

    def names(self) -> list[str]:
        """See `JournalStore`."""
        return list(self.files)

    def read(self, name: str) -> bytes:
        """See `JournalStore`."""
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def delete(self, name: str) -> None:
        """See `JournalStore`."""
        self.files.pop(name, None)
