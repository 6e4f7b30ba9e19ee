"""The files of Spark's state stores: which there are, and which a version needs.

``state/<operator>/<partition>[/<name>]/`` holds a store: ``7.delta`` or ``7.changelog`` is what micro-batch 6 changed,
``7.snapshot`` or ``7.zip`` all that there was after it. A version is the nearest snapshot at or below it and every file of
changes after that. A RocksDB snapshot (``.zip``) lists the files in ``SSTs/`` and ``logs/`` that belong to it. With
``checkpointFormatVersion`` 2 names carry an id (``7_<id>.zip``), which ``commits/6`` names: there may be several files of a
version, of tasks or runs that lost, so all are taken.

Beside the stores: schemas and the operators' metadata (``_metadata``, ``_stateSchema``), some of them by micro-batch.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from connector.location.location import CheckpointLocation
from connector.location.spark_files import read_text

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
"""A state's file: its version, the file's id (if Spark gives one), its kind, and the rest of a name that is no such file's."""

CHANGES = ("delta", "changelog")

SHARED = ("SSTs", "logs")
"""Folders of a RocksDB store whose files several snapshots share."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def stores_of(location: CheckpointLocation) -> dict[str, list[str]]:
    """Return the files of every store, by its folder in the location.

    That is ``state/<operator>/<partition>``, or named folders in it (joins).
    """
    found: dict[str, list[str]] = {}
    above = set()
    for path in location.files.tree("state"):
        *folders, name = path.split("/")
        plain = list(takewhile(_is_plain, folders))
        store = "/".join(plain)
        if len(plain) > 2:
            found.setdefault(store, []).extend([name] if plain == folders else [])
            above.add("/".join(plain[:-1]))
    return {
        store: names
        for store, names in sorted(found.items())
        if store not in above or any(VERSIONED.fullmatch(name) for name in names)
    }


def shuffle_partitions(location: CheckpointLocation, batch: int) -> int | None:
    """Return the number of partitions of the state after a micro-batch, from its offsets; None if they do not hold it.

    Folders of higher partitions are of a time before, or after, Spark's repartition.
    """
    return partitions_of(metadata_line(location, batch))


def partitions_of(metadata: Mapping[str, Any] | None) -> int | None:
    """Return the number of partitions in an offset log's metadata; None if it holds none."""
    try:
        return int(metadata["conf"][SHUFFLE_PARTITIONS])  # type: ignore[index] # None has none either
    except (KeyError, TypeError, ValueError):
        return None


def metadata_line(location: CheckpointLocation, batch: int) -> dict[str, Any] | None:
    """Return the metadata in ``offsets/<batch>``; None if there is none. Raises LocationError, ``LOCATION_UNREADABLE``."""
    try:
        value = json.loads(read_text(location.files, f"offsets/{batch}").splitlines()[1])
    except (OSError, ValueError, IndexError):
        return None
    return value if isinstance(value, dict) else None


def is_of_partition(store: str, partitions: int | None) -> bool:
    """Return whether a store's folder, relative to the location, is of one of this number of partitions."""
    number = store.split("/")[2]
    return partitions is None or not number.isdigit() or int(number) < partitions


def state_files(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """List the files of ``state/`` that Spark needs to go on after a micro-batch, without snapshots' shared files."""
    partitions = shuffle_partitions(location, batch)
    version = batch + 1
    for store, names in stores_of(location).items():
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
                yield f"{store}/{match[0]}"
    yield from _beside_the_stores(location, batch)


def _is_plain(part: str) -> bool:
    """Return whether a folder's name may be a store's; in an object store names may hold anything, ``..`` too."""
    return part[:1] not in ("", ".", "_") and part not in SHARED


def _beside_the_stores(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """List schemas and metadata; of files that a micro-batch names, those up to this one."""
    for path in sorted(location.files.tree("state")):
        *folders, name = path.split("/")
        special = [part for part in folders if part[:1] == "_"]
        if not special or not all(_is_plain(part) or part in special for part in folders):
            continue
        if name[0] != "." and not (name.isdigit() and int(name) > batch):
            yield path


def files_of_snapshot(data: bytes) -> list[str] | None:
    """Return the shared files that a RocksDB snapshot lists, relative to its store's folder; None if it does not."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            text = archive.read("metadata").decode()
        value = json.loads(text.partition("\n")[2] if text.startswith("v") else text)
        tables = [("SSTs", str(each["dfsSstFileName"])) for each in value.get("sstFiles") or ()]
        logs = [("logs", str(each["dfsLogFileName"])) for each in value.get("logFiles") or ()]
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError):
        return None
    if any("/" in name or name in ("", ".", "..") for _, name in (*tables, *logs)):
        return None  # it would lead out of the store, for whoever copies it
    return ["/".join(each) for each in (*tables, *logs)]


def shared_files(location: CheckpointLocation, store: str) -> list[str]:
    """Return all that snapshots of a RocksDB store may share, relative to its folder."""
    return [f"{shared}/{name}" for shared in SHARED for name in sorted(location.files.names(f"{store}/{shared}"))]
