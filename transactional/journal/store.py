"""Stores for a journal's files. Only one process can create a file of a given name, so the store decides which driver wins."""

from __future__ import annotations

import os
import uuid
from typing import Protocol

from transactional.entry import torn
from transactional.errors import JournalError
from transactional.journal.folders import file_mode, make_folders, sync_folder


class JournalStore(Protocol):
    """Stores the files of a journal: ``<n>.json`` and ``<n>.snapshot.json``. Only one driver can `create` a file."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a complete, durable file, or no file at all. Return False if the name is taken.

        If the name is taken, `Journal` reads the file: a client may have repeated a create whose answer was lost, so the file
        may still be ours.

        Raises
        ------
        OSError
            The file may have been created or not. `Journal` reads it to find out.
        """

    def names(self) -> list[str]:
        """Return the names of all files, in any order."""

    def read(self, name: str) -> bytes:
        """Return a file's contents, or raise FileNotFoundError. If an earlier `create` failed, first make the file durable."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""


class LocalJournalStore:
    """Stores a journal in a folder on a local disk.

    A create writes a temporary file, syncs it, links it to the name, and syncs the folder.
    """

    def __init__(self, folder: str, location: str = "") -> None:
        self.folder = folder  # The journal's folder. It is created with the first entry.
        # A folder above `folder`. If it does not exist, it is created with the usual access rights. Only the folders below it
        # are closed to other users.
        self._location = location
        self._unsure = False  # True if a create failed, and may have left a name that is not durable

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore.create`. ``os.link`` fails if the name exists, whereas a rename would replace the file."""
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
        self._sync()  # also if the name is taken: the process that took it may have died before this step
        return created

    def names(self) -> list[str]:
        """See `JournalStore.names`."""
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
        """See `JournalStore.read`."""
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
        """See `JournalStore.delete`."""
        try:
            os.unlink(os.path.join(self.folder, name))
        except FileNotFoundError:
            return


def closed_journal(error: PermissionError) -> JournalError:
    """Return the error for a journal that this user may not read."""
    return JournalError("LOCATION_NOT_OURS", path=error.filename)


class MemoryJournalStore:
    """Stores a journal in a dict, for tests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore.create`."""
        return self.files.setdefault(name, data) is data

    def names(self) -> list[str]:
        """See `JournalStore.names`."""
        return list(self.files)

    def read(self, name: str) -> bytes:
        """See `JournalStore.read`."""
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def delete(self, name: str) -> None:
        """See `JournalStore.delete`."""
        self.files.pop(name, None)
