"""Temporary files of a first micro-batch, left by a driver that was killed: with them Spark starts no query at the location.

Spark writes ``offsets/0`` as ``offsets/.0.UUID.tmp`` and renames it. A driver that dies in between leaves the temporary file.
Before its first micro-batch, Spark wants ``offsets``, ``commits`` and ``state`` empty, and counts temporary files
(STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). Spark planned nothing from such a file, so no row was read: deleting it is exact.
Later micro-batches and Spark's other logs ignore temporary files.

A temporary file has no owner's name, and the journal has no run yet. So `start()` records its driver's process first, in
``barrier/starts``: a file that a driver writes is always younger than its record.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from connector.location.files import read_file
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest
from connector.spark.process import driver_text
from transactional.errors import FencedError
from transactional.journal.folders import make_folders

__all__ = ["clean", "has_begun", "left", "record_name", "record_start"]

log = logging.getLogger(__name__)

STARTS: Final = "barrier/starts"

CHECKED: Final = ("offsets", "commits")
"""Logs that Spark wants empty. It writes no state before ``offsets/0`` is there."""

_TEMPORARY = re.compile(r"\.+\d+\.[^.]+\.tmp(\.crc)?")
"""``.0.UUID.tmp``, and Hadoop's checksum of it."""


def left(location: CheckpointLocation) -> Sequence[str]:
    """Return the temporary files of a first micro-batch; none if Spark has begun one."""
    found = {log: location.files.names(log) for log in CHECKED}
    if any(name.isdigit() for names in found.values() for name in names):
        return []
    return sorted(f"{log}/{name}" for log, names in found.items() for name in names if _TEMPORARY.fullmatch(name))


def has_begun(location: CheckpointLocation) -> bool:
    """Return whether Spark has begun a query here, and written at least a part of its first micro-batch."""
    return newest(location, "offsets") >= 0 or bool(left(location))


def record_start(location: CheckpointLocation, process: Mapping[str, Any]) -> None:
    """Record the process that is about to let Spark start a query here. Can be repeated."""
    if location.is_local:
        make_folders(location.path, private=False)  # as Spark would; only `barrier` is closed to others
    data = json.dumps(process, sort_keys=True).encode()
    location.files.create(record_name(data), data)


def _start(location: CheckpointLocation, record: str) -> dict[str, Any]:
    """Return the process of a record; nothing of it if the file is not the one that has its name."""
    data = read_file(location.files, record)
    if record_name(data) != record:
        return {}
    process: dict[str, Any] = json.loads(data)
    return process


def record_name(data: bytes) -> str:
    """Return the name of a record of a start: it is made of its contents."""
    return f"{STARTS}/{hashlib.sha256(data).hexdigest()[:16]}.json"


def clean(
    location: CheckpointLocation, is_alive: Callable[[Mapping[str, Any]], bool | None], stopped: bool = False
) -> Sequence[str]:
    """Delete what dead drivers have left of a first micro-batch; return the deleted files. Can be repeated."""
    files = left(location)
    if not files:
        return []
    records = [f"{STARTS}/{name}" for name in location.files.names(STARTS) if name.endswith(".json")]
    starts = [_start(location, name) for name in records]
    if not stopped:
        for process in starts or [{}]:
            alive = is_alive(process)
            if alive is not False:
                raise FencedError(
                    "FIRST_START_LEFT",
                    location=location.path,
                    files=", ".join(files),
                    driver=driver_text(process, alive),
                )
    location.files.delete(files)
    location.files.delete(records)  # last: without them it is unknown whose files these were
    log.warning(
        "%s: deleted %s, temporary files of a first micro-batch that Spark never began", location.path, ", ".join(files)
    )
    return files
