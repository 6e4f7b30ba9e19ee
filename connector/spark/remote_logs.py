"""Spark's logs of a location that is on no local disk, taken back: planned on a copy, then done there.

The copy, in a temporary folder, has the text of ``offsets/``, and of ``commits/`` and ``state/`` the names alone: nothing else
is looked at. What `connector.spark.offset_log` does to it says what is to be done at the store, in an order that leaves Spark a
log that it can read after every step; each step is whole or not at all, and all can be repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, cast

from connector.spark import offset_log
from connector.spark.location import CheckpointLocation
from connector.spark.location_files import LocationFiles
from transactional import faults
from transactional.errors import LocationError

__all__ = ["RemoteFiles", "RemoteLogs"]

AT_ONCE = 16
"""Requests to an object store; each takes tens of milliseconds."""

_LOG = re.compile(r"(commits|offsets)/\D*(\d+).*")


class RemoteFiles(LocationFiles, Protocol):
    """Files that can be changed one by one."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, over what is there."""

    def delete(self, name: str) -> None:
        """Deleting what is gone is no error."""

    def tree(self, folder: str) -> list[str]:
        """The names of all files in a folder and below, relative to the location; empty where there is none."""


class RemoteLogs:
    """See `transactional.rewind.QueryLogs`.

    Parameters
    ----------
    location : CheckpointLocation
        Not local.
    """

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location
        self._files = cast("RemoteFiles", location.files)

    def highest(self) -> tuple[int, int]:
        """See `SparkLogs`."""
        return offset_log.newest(self._location, "offsets"), offset_log.newest(self._location, "commits")

    def check_can_go_back(self, batch: int) -> None:
        """See `SparkLogs`."""
        with self._copy() as (copy, _):
            offset_log.check_can_go_back(copy, batch)

    def delete_after(self, batch: int) -> None:
        """See `SparkLogs`."""
        self._as_on_a_copy(lambda copy: offset_log.delete_after(copy, batch))

    def replay(self, first: int, last: int) -> None:
        """See `SparkLogs`."""
        self._as_on_a_copy(lambda copy: offset_log.replay(copy, first, last))

    def is_replaced(self, batch: int, text: str) -> bool:
        """See `SparkLogs`."""
        return offset_log.is_replaced(self._location, batch, text)

    def put_back(self, batch: int, text: str) -> None:
        """See `SparkLogs`."""
        self._files.put(f"offsets/{batch:d}", text.encode())

    # -- a copy -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _copy(self) -> Iterator[tuple[CheckpointLocation, Mapping[str, bytes]]]:
        """A local location, and what is in its files."""
        logs = [f"{log}/{name}" for log in ("offsets", "commits") for name in self._files.names(log)]
        state = self._files.tree("state")
        for name in (*logs, *state):
            if not {".", ".."}.isdisjoint(name.split("/")):  # an object may have any name, and a file of the copy not
                path = self._location.files.shown(name)
                raise LocationError(
                    "FILE_OUTSIDE",
                    f"{path} leads out of the location, and is no file of Spark's: delete that object",
                    path=path,
                )
        texts = ["metadata", *(name for name in logs if name.startswith("offsets/"))]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = dict.fromkeys([*logs, *state], b"")
            found.update(zip(texts, pool.map(self._files.read, texts), strict=True))
        with tempfile.TemporaryDirectory(prefix="barrier-rewind-") as folder:
            for name, data in found.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(data)
            copy = CheckpointLocation(folder)
            try:
                yield copy, found
            except LocationError as error:
                told = error.message.replace(copy.path, self._location.path)
                raise LocationError(error.condition, told, **error.parameters) from error

    def _as_on_a_copy(self, change: Callable[[CheckpointLocation], None]) -> None:
        with self._copy() as (copy, before):
            change(copy)
            gone = [name for name in before if not copy.files.exists(name)]
            kept = [name for name in before if name not in gone and name.startswith("offsets/")]
            changed = {name: data for name in kept if (data := copy.files.read(name)) != before[name]}
        for name, data in changed.items():
            folder, _, file = name.rpartition("/")
            self._files.delete(f"{folder}/.{file}.crc")  # of the former text
            self._files.put(name, data)
            faults.reach("rewind.planned")
        logs = {name: match for name in gone if (match := _LOG.fullmatch(name))}
        # From the highest micro-batch down, commits/M before offsets/M; the state when no log names it any more.
        for name in sorted(logs, key=lambda name: (-int(logs[name][2]), logs[name][1])):
            self._files.delete(name)
            faults.reach("rewind.commit-deleted" if logs[name][1] == "commits" else "rewind.offset-deleted")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._files.delete, [name for name in gone if name not in logs]))
