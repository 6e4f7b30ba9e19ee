"""Delete the temporary files of a driver that was killed in its first micro-batch. With these files, Spark can't start.

Spark writes ``offsets/0`` as ``offsets/.0.UUID.tmp`` and renames it. A driver that dies in between leaves the temporary file.
Before its first micro-batch, Spark requires that ``offsets``, ``commits`` and ``state`` contain no files, not even temporary
ones (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). Spark has planned nothing from such a file, so no row was read, and it is
safe to delete the file. Later micro-batches and Spark's other logs ignore temporary files.

A temporary file does not name its owner, and the journal has no run yet. So `start()` first records its driver's process in
``barrier/starts``. Every file that a driver writes is therefore newer than the driver's record.
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

log = logging.getLogger(__name__)

STARTS: Final = "barrier/starts"

CHECKED: Final = ("offsets", "commits")
"""Logs that must be empty before the first micro-batch. Spark writes ``state`` later than ``offsets/0``."""

_TEMPORARY = re.compile(r"\.+\d+\.[^.]+\.tmp(\.crc)?")
"""Matches ``.0.UUID.tmp``, and the name of Hadoop's checksum file for it."""


def left(location: CheckpointLocation) -> Sequence[str]:
    """Return the temporary files of a first micro-batch; none if Spark has already recorded the first micro-batch."""
    found = {log: location.files.names(log) for log in CHECKED}
    if any(name.isdigit() for names in found.values() for name in names):
        return []
    return sorted(f"{log}/{name}" for log, names in found.items() for name in names if _TEMPORARY.fullmatch(name))


def has_begun(location: CheckpointLocation) -> bool:
    """Return whether Spark has started a query here: at least a temporary file of its first micro-batch exists."""
    return newest(location, "offsets") >= 0 or bool(left(location))


def record_start(location: CheckpointLocation, process: Mapping[str, Any]) -> None:
    """Record the process that is about to start a query here. The call can be repeated."""
    if location.is_local:
        make_folders(location.path, private=False)  # with the rights that Spark would set; only `barrier` is private
    data = json.dumps(process, sort_keys=True).encode()
    location.files.create(record_name(data), data)


def _start(location: CheckpointLocation, record: str) -> dict[str, Any]:
    """Return the process in a record; empty if the record's name does not match its contents."""
    data = read_file(location.files, record)
    if record_name(data) != record:
        return {}
    process: dict[str, Any] = json.loads(data)
    return process


def record_name(data: bytes) -> str:
    """Return the file name for a record of a start, which is computed from the record's contents."""
    return f"{STARTS}/{hashlib.sha256(data).hexdigest()[:16]}.json"


def clean(
    location: CheckpointLocation, is_alive: Callable[[Mapping[str, Any]], bool | None], stopped: bool = False
) -> Sequence[str]:
    """Delete the temporary files that dead drivers left when they began the first micro-batch; return the deleted files.

    The call can be repeated. `stopped` is true if the operator has confirmed that all these drivers are dead.

    Raises
    ------
    FencedError
        ``FIRST_START_LEFT``: a driver that may have written the files is alive, or can't be seen from here.
    """
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
        "%s: deleted %s. These temporary files were left by a driver that died before the first micro-batch started",
        location.path,
        ", ".join(files),
    )
    return files
