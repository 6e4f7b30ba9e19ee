"""The files of Spark's state stores: which there are, and which a version needs.

``state/<operator>/<partition>[/<name>]/`` holds a store: ``7.delta`` or ``7.changelog`` is what micro-batch 6 changed,
``7.snapshot`` or ``7.zip`` all that there was after it. A version is the nearest snapshot at or below it and every file of
changes after that. A RocksDB snapshot (``.zip``) lists the files in ``SSTs/`` and ``logs/`` that belong to it. With
``checkpointFormatVersion`` 2 names carry an id (``7_<id>.zip``), which ``commits/6`` names: there may be several files of a
version, of tasks or runs that lost, so all are taken.

Beside the stores: schemas and the operators' metadata (``_metadata``, ``_stateSchema``), some of them by micro-batch.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from connector.spark.location import CheckpointLocation
from connector.spark.location_files import read_file

__all__ = [
    "CHANGES",
    "SHUFFLE_PARTITIONS",
    "VERSIONED",
    "files_of_snapshot",
    "is_of_partition",
    "metadata_line",
    "partitions_of",
    "shared_files",
    "shuffle_partitions",
    "state_files",
    "stores_of",
]

VERSIONED = re.compile(r"\.*(\d+)(?:_[^.]+)?\.(delta|changelog|snapshot|zip)(\..+)?")
"""A state's file: its version, the file's id (where Spark gives one), its kind, and the rest of what is no such file."""

CHANGES = ("delta", "changelog")

SHARED = ("SSTs", "logs")
"""Folders of a RocksDB store whose files several snapshots share."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def stores_of(location: CheckpointLocation) -> dict[str, list[str]]:
    """The files in the folder of every store: ``state/<operator>/<partition>``, or named folders in it (joins)."""
    found = {}
    root = os.path.join(location.path, "state")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] not in "._" and name not in SHARED)
        inside = os.path.relpath(folder, root).count(os.sep) >= 1
        if inside and (not folders or any(VERSIONED.fullmatch(name) for name in names)):
            found[folder] = names
    return found


def shuffle_partitions(location: CheckpointLocation, batch: int) -> int | None:
    """The number of partitions that the state has after a micro-batch, as its offsets say; None where they do not.

    Folders of higher partitions are of a time before, or after, Spark's repartition.
    """
    return partitions_of(metadata_line(location, batch))


def partitions_of(metadata: Mapping[str, Any] | None) -> int | None:
    """The same, of an offset log's metadata."""
    try:
        return int(metadata["conf"][SHUFFLE_PARTITIONS])  # type: ignore[index] # None has none either
    except (KeyError, TypeError, ValueError):
        return None


def metadata_line(location: CheckpointLocation, batch: int) -> dict[str, Any] | None:
    """The metadata in ``offsets/<batch>``; None where there is none. Raises LocationError, ``LOCATION_UNREADABLE``."""
    try:
        value = json.loads(read_file(location.files, f"offsets/{batch}").decode("utf-8").splitlines()[1])
    except (OSError, ValueError, IndexError):
        return None
    return value if isinstance(value, dict) else None


def is_of_partition(store: str, partitions: int | None) -> bool:
    """Whether a store's folder, relative to the location, is one of so many partitions."""
    number = store.split(os.sep)[2]
    return partitions is None or not number.isdigit() or int(number) < partitions


def state_files(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """What Spark needs of ``state/`` to go on after a micro-batch, relative to the location; snapshots' shared files apart.

    Parameters
    ----------
    location : CheckpointLocation
    batch : int
        Committed; `connector.spark.offset_log.check_can_go_back` has found its files.
    """
    partitions = shuffle_partitions(location, batch)
    version = batch + 1
    for folder, names in stores_of(location).items():
        store = os.path.relpath(folder, location.path)
        if not is_of_partition(store, partitions):
            continue
        files = [match for name in names if name[0] != "." and (match := VERSIONED.fullmatch(name))]
        whole = [match for match in files if not match[3]]
        snapshots = [int(match[1]) for match in whole if match[2] not in CHANGES and int(match[1]) <= version]
        first = max(snapshots, default=0)
        if any("_" in match[0].partition(".")[0] for match in whole):
            first = 0  # which of the files with an id counts, only Spark knows
        for match in files:
            number, changes = int(match[1]), match[2] in CHANGES
            if first < number <= version or (number == first and not changes):
                yield os.path.join(store, match[0])
    yield from _beside_the_stores(location, batch)


def _beside_the_stores(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """Schemas and metadata; of files that are named by a micro-batch, those up to this one."""
    root = os.path.join(location.path, "state")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SHARED)
        inside = os.path.relpath(folder, root).split(os.sep)
        if not any(part.startswith("_") for part in inside):
            continue
        for name in sorted(names):
            if name[0] == "." or (name.isdigit() and int(name) > batch):
                continue
            yield os.path.relpath(os.path.join(folder, name), location.path)


def files_of_snapshot(path: str) -> list[str] | None:
    """The shared files that a RocksDB snapshot (a ``.zip``) lists, relative to its store's folder; None where it does not."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("metadata").decode()
        value = json.loads(text.partition("\n")[2] if text.startswith("v") else text)
        tables = [("SSTs", str(each["dfsSstFileName"])) for each in value.get("sstFiles") or ()]
        logs = [("logs", str(each["dfsLogFileName"])) for each in value.get("logFiles") or ()]
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError):
        return None
    if any(os.path.basename(name) != name or name in ("", ".", "..") for _, name in (*tables, *logs)):
        return None  # it would lead out of the store, for whoever copies it
    return [os.path.join(*each) for each in (*tables, *logs)]


def shared_files(folder: str) -> list[str]:
    """All that snapshots of a RocksDB store may share, relative to its folder."""
    return [
        os.path.join(shared, name)
        for shared in SHARED
        if os.path.isdir(os.path.join(folder, shared))
        for name in sorted(os.listdir(os.path.join(folder, shared)))
    ]
