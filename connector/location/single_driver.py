"""A checkpoint location opened with pyarrow, without exclusive create. The user must ensure that only one driver runs.

To create a file, this module checks that the name is free, writes a temporary file, and moves it to the name. So the file
is complete, or does not exist. But this does **not** prevent two drivers from creating the same file: pyarrow's move replaces
an existing file on every file system (on HDFS, it deletes the target first). If two drivers check at the same time, both
creates succeed, and each driver takes the file for its own. This module can't detect that. With ``singleDriver=true``,
the user confirms that there is never a second driver.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from connector.location.files import CHUNK, LocationFiles
from connector.location.urls import told_error
from transactional.errors import LocationError, OptionError
from transactional.journal import JournalStore

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NO_CLIENT = "Unable to load"
"""Part of pyarrow's error text if Hadoop's or Java's library is missing. Any other text means that the store can't be
reached."""


class FilesystemFiles:
    """Implements `connector.location.files.LocationFiles` with pyarrow.

    Executors get pickled copies of the object, so it holds no client.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri  # The location's URI, in the form that `pyarrow.fs.FileSystem.from_uri` accepts.

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`. Raises LocationError, ``LOCATION_UNREADABLE``."""
        from pyarrow.fs import FileSelector

        files, root = self.open()
        try:
            found = files.get_file_info(FileSelector(f"{root}/{folder}", allow_not_found=True))
        except OSError as error:
            raise LocationError("LOCATION_UNREADABLE", path=self.shown(folder), reason=told_error(error)) from error
        return [each.base_name for each in found]

    def read(self, name: str) -> bytes:
        """See `LocationFiles.read`."""
        files, root = self.open()
        with files.open_input_stream(f"{root}/{name}") as stream:
            return bytes(stream.read())

    def exists(self, name: str) -> bool:
        """See `LocationFiles.exists`."""
        from pyarrow.fs import FileType

        files, root = self.open()
        return bool(files.get_file_info(f"{root}/{name}").type is not FileType.NotFound)

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        return FilesystemJournalStore(self, folder)

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles.chunks`."""
        files, root = self.open()
        with files.open_input_stream(f"{root}/{name}") as stream:
            while chunk := stream.read(CHUNK):
                yield bytes(chunk)

    def mark(self, name: str) -> str | None:
        """See `LocationFiles.mark`."""
        from pyarrow.fs import FileType

        files, root = self.open()
        found = files.get_file_info(f"{root}/{name}")
        return None if found.type is FileType.NotFound else f"{found.size} {found.mtime_ns}"

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles.create`. Two processes that create the same file at the same time may both succeed."""
        if self.exists(name):
            return False
        self.put(name, data)
        return True

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`."""
        files, root = self.open()
        folder, _, file = f"{root}/{name}".rpartition("/")
        files.create_dir(folder, recursive=True)
        temporary = f"{folder}/.{file}.{uuid.uuid4().hex}.tmp"
        try:
            with files.open_output_stream(temporary) as stream:
                for chunk in (data,) if isinstance(data, bytes) else data:
                    stream.write(chunk)
            files.move(temporary, f"{folder}/{file}")
        except OSError:
            with contextlib.suppress(OSError):
                files.delete_file(temporary)
            raise

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles.delete`."""
        files, root = self.open()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.delete_file(f"{root}/{name}")

    def remove(self, folder: str) -> None:
        """See `LocationFiles.remove`."""
        files, root = self.open()
        if folder:
            files.delete_dir_contents(f"{root}/{folder}", missing_dir_ok=True)
        elif not self.names(""):
            files.delete_dir(root)

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles.tree`."""
        from pyarrow.fs import FileSelector, FileType

        files, root = self.open()
        selected = FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True, recursive=True)
        return [each.path[len(root) + 1 :] for each in files.get_file_info(selected) if each.type is FileType.File]

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return f"{self._uri}/{name}"

    def open(self) -> tuple[FileSystem, str]:
        """Return pyarrow's file system for the location, and the location's path in that file system."""
        from pyarrow.fs import FileSystem

        try:
            files, root = FileSystem.from_uri(self._uri)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and NO_CLIENT not in str(error):
                raise LocationError("LOCATION_UNREADABLE", path=self._uri, reason=told_error(error)) from None
            raise OptionError(
                "LOCATION_UNKNOWN_STORE", location=self._uri, reason=told_error(error), option="checkpointLocation"
            ) from None
        return files, root.rstrip("/")


class FilesystemJournalStore:
    """A `transactional.journal.JournalStore` on a pyarrow file system.

    If two drivers `create` the same file at the same time, both may succeed.
    """

    def __init__(self, files: LocationFiles, folder: str) -> None:
        self._files = files
        self._folder = folder  # The journal's folder, relative to the location.

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore.create`. Two processes that create the same file at the same time may both succeed."""
        return self._files.create(f"{self._folder}/{name}", data)

    def names(self) -> list[str]:
        """See `JournalStore.names`."""
        return self._files.names(self._folder)

    def read(self, name: str) -> bytes:
        """See `JournalStore.read`."""
        return self._files.read(f"{self._folder}/{name}")

    def delete(self, name: str) -> None:
        """See `JournalStore.delete`."""
        self._files.delete([f"{self._folder}/{name}"])
