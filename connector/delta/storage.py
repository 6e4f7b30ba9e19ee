"""A Delta table's folder: access to its files and its log, on a local disk or in an object store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final

import pyarrow as pa
from pyarrow import fs

from connector.delta.write_options import WRITE_OPTIONS, WriteOptions
from connector.sinks import make_folders, nearest, replace_file, sync_file, sync_folder
from transactional import StoreError, StoreUnreachableError

if TYPE_CHECKING:
    from deltalake import DeltaTable

ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
"""The codes for terminal colors in the errors of deltalake."""

MOST_SAID: Final = 600
"""The maximum number of characters that are shown of an error of deltalake or of a store's client."""

REQUESTS_AT_ONCE: Final = 16
"""The maximum number of parallel HEAD or DELETE requests to an object store. Each takes tens of milliseconds."""


class TableFolder:
    """The files in a table's folder. Paths are relative to the folder, with ``/``."""

    _durable: ClassVar[dict[str, int]] = {}
    """Table -> the newest version that this process has made durable, together with all earlier versions."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._filesystem: fs.FileSystem | None = None

    # -- the table --------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """Return the table's path or URI, in the form that deltalake and Spark accept."""
        return self._options.path

    def exists(self) -> bool:
        """Return whether the folder contains a Delta table. Raise if a local path leads to a file."""
        from deltalake import DeltaTable

        if self._options.local and not os.path.isdir(found := nearest(self.uri)):
            raise WRITE_OPTIONS.invalid("path", self.uri, f"a folder, but {found} is a file")

        return DeltaTable.is_deltatable(self.uri, self.storage_options())

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Run the ``with`` block.

        If the block raises ``OSError``, raise the error ``TABLE_UNREACHABLE`` instead, which names the table.
        """
        try:
            yield
        except OSError as problem:
            raise StoreUnreachableError("TABLE_UNREACHABLE", table=self.uri, reason=plain(problem)) from problem

    def open(self) -> DeltaTable:
        """Open the table at its newest version."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.uri, storage_options=self.storage_options())
        except TableNotFoundError:
            raise StoreUnreachableError("TABLE_UNREACHABLE", table=self.uri, reason="there is no Delta table") from None

    def storage_options(self) -> dict[str, str] | None:
        """Return the user's options for the object store, as deltalake expects them; None if there are none."""
        return dict(self._options.storage) or None

    def log(self, version: int) -> Iterator[Mapping[str, Any]] | None:
        """Return the actions of one commit; None if the commit's file has expired."""
        try:
            data = self.read(f"_delta_log/{version:020d}.json")
        except FileNotFoundError:
            return None
        return map(json.loads, data.splitlines())

    # -- durability: an object store needs no calls -----------------------------------------------------------------

    def sync_log(self) -> None:
        """Make the table's newest version durable: sync all log files that readers need, including those of other writers.

        deltalake and Spark write the log without fsync. Readers need the log's newest checkpoint and all later commits.
        """
        if not self._options.local:
            return
        log = os.path.join(self.uri, "_delta_log")
        make_folders(log, private=False)
        versions = {name: int(name[:20]) for name in os.listdir(log) if name[:20].isdigit()}
        newest = max(versions.values(), default=0)
        known = self._durable.get(self.uri, 0)
        checkpoint = max((version for name, version in versions.items() if ".checkpoint" in name), default=0)
        since = min(checkpoint, newest) if newest < known else max(checkpoint, known)
        for name in [*(name for name, version in versions.items() if version >= since), "_last_checkpoint"]:
            with suppress(FileNotFoundError):  # expired meanwhile
                sync_file(os.path.join(log, name))
        sync_folder(log)
        self._durable[self.uri] = newest

    def sync_names(self, paths: Iterable[str]) -> None:
        """Sync the folders of files, so that the files' names are durable. The contents must already be durable."""
        if self._options.local:
            for folder in sorted({os.path.dirname(self._inside(path)) for path in paths}):
                sync_folder(folder)

    # -- files ------------------------------------------------------------------------------------------------------

    def create(self, path: str) -> BinaryIO | pa.NativeFile:
        """Create a file to write to. On a local disk, also create the folders above it."""
        if self._options.local:
            return open(self._with_folders(path), "xb")
        return self._files().open_output_stream(path)

    def put(self, path: str, data: bytes) -> None:
        """Write a small file atomically: a reader sees the old file or the whole new file."""
        if self._options.local:
            replace_file(self._with_folders(path), data)
            return
        stream = self._files().open_output_stream(path)
        stream.write(data)
        stream.close()  # not after an error: an unclosed file does not appear

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise `FileNotFoundError` if it does not exist."""
        if self._options.local:
            with open(self._inside(path), "rb") as file:
                return file.read()
        with self._files().open_input_stream(path) as stream:
            return bytes(stream.read())

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes; None if the file does not exist."""
        if self._options.local:
            return [_size(self._inside(path)) for path in paths]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            found = pool.map(lambda path: self._files().get_file_info([path])[0], paths)
            return [info.size if info.type == fs.FileType.File else None for info in found]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; ignore files that do not exist."""
        whole = [self._inside(path) for path in paths]
        if self._options.local:
            for path in whole:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            return

        def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                self._files().delete_file(path)

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(delete, paths))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder; empty if the folder does not exist."""
        if self._options.local:
            try:
                return os.listdir(os.path.join(self.uri, folder))
            except FileNotFoundError:
                return []
        selector = fs.FileSelector(folder, allow_not_found=True)
        return [info.base_name for info in self._files().get_file_info(selector) if info.type == fs.FileType.File]

    def _inside(self, path: str) -> str:
        """Return a file's path on a local disk. Reject a path outside the folder: a forged journal could contain one."""
        if os.path.isabs(path) or ".." in path.split("/"):
            raise StoreError("FILE_OUTSIDE", path=path, folder=self.uri)
        return os.path.join(self.uri, path)

    def _with_folders(self, path: str) -> str:
        whole = self._inside(path)
        make_folders(os.path.dirname(whole), private=False)
        return whole

    def _files(self) -> fs.FileSystem:
        if self._filesystem is None:
            from deltalake.fs.fs_handler import DeltaStorageHandler

            class Handler(DeltaStorageHandler):
                """A handler of deltalake, changed so that its streams accept any pyarrow buffer, not only bytes."""

                def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
                    return pa.PythonFile(_BytesOnly(self._handler.open_output_stream(path, metadata)), mode="w")

            self._filesystem = fs.PyFileSystem(Handler(self.uri, self.storage_options()))
        return self._filesystem


class _BytesOnly:
    """A stream that converts data to bytes, and passes these bytes to another stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> None:
        self._stream.write(data if isinstance(data, bytes) else bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def plain(problem: BaseException) -> str:
    """Return an error's text on one line, without color codes, and cut to at most `MOST_SAID` characters."""
    return " ".join(ANSI.sub("", str(problem)).split())[:MOST_SAID]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
