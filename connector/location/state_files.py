"""Find the files of Spark's state stores, and the files that one version of the state needs.

``state/<operator>/<partition>[/<name>]/`` is the folder of one store. ``7.delta`` or ``7.changelog`` contains the changes of
micro-batch 6; ``7.snapshot`` or ``7.zip`` contains the whole state after micro-batch 6. To read a version, Spark needs the
nearest snapshot at or below this version, and every change file after that snapshot. A RocksDB snapshot (``.zip``) lists the
files in ``SSTs/`` and ``logs/`` that belong to it. With ``checkpointFormatVersion`` 2, names contain an id (``7_<id>.zip``),
and ``commits/6`` names the valid id. Other attempts of a task, or earlier runs, may have written more files of the same
version, so a savepoint copies all of them.

In addition to the stores, ``state/`` contains schemas and the operators' metadata (``_metadata``, ``_stateSchema``). Some of
these files are numbered by micro-batch.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from connector.location.location import CheckpointLocation
from connector.location.spark_files import read_text

VERSIONED = re.compile(r"\.*(\d+)(?:_[^.]+)?\.(delta|changelog|snapshot|zip)(\..+)?")
"""The name of a state file: version, id (optional), kind, and a suffix that only temporary and checksum files have."""

CHANGES = ("delta", "changelog")

SHARED = ("SSTs", "logs")
"""The folders of a RocksDB store with the files that several snapshots may share."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def stores_of(location: CheckpointLocation) -> dict[str, list[str]]:
    """Map each state store's folder (its path in the location) to the names of the files in it.

    The folder is ``state/<operator>/<partition>`` or, for joins, a named folder in it.
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
    """Return the number of state partitions after a micro-batch, from its offset file; None if the file does not contain it.

    Folders with higher partition numbers are not part of this state: Spark leaves them there after a repartition to
    fewer partitions, or creates them in a later repartition to more partitions.
    """
    return partitions_of(metadata_line(location, batch))


def partitions_of(metadata: Mapping[str, Any] | None) -> int | None:
    """Return the number of shuffle partitions in an offset file's metadata; None if the metadata does not contain it."""
    try:
        return int(metadata["conf"][SHUFFLE_PARTITIONS])  # type: ignore[index] # None raises TypeError
    except (KeyError, TypeError, ValueError):
        return None


def metadata_line(location: CheckpointLocation, batch: int) -> dict[str, Any] | None:
    """Return the metadata in ``offsets/<batch>``; None if the file is missing or has no valid metadata.

    Raises
    ------
    LocationError
        ``LOCATION_UNREADABLE``
    """
    try:
        value = json.loads(read_text(location.files, f"offsets/{batch}").splitlines()[1])
    except (OSError, ValueError, IndexError):
        return None
    return value if isinstance(value, dict) else None


def is_of_partition(store: str, partitions: int | None) -> bool:
    """Return whether a store's folder belongs to one of the first `partitions` partitions; True if `partitions` is None."""
    number = store.split("/")[2]
    return partitions is None or not number.isdigit() or int(number) < partitions


def _newest_snapshot(files: Iterable[re.Match[str]], version: int) -> int:
    """Return the version of the newest snapshot at or below `version`; 0 if there is none."""
    found = [int(match[1]) for match in files if match[2] not in CHANGES and int(match[1]) <= version]
    return max(found, default=0)


def state_files(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """Yield the files in ``state/`` that Spark needs after micro-batch `batch`, except files that snapshots share."""
    partitions = shuffle_partitions(location, batch)
    version = batch + 1
    for store, names in stores_of(location).items():
        if not is_of_partition(store, partitions):
            continue
        files = [match for name in names if name[0] != "." and (match := VERSIONED.fullmatch(name))]
        whole = [match for match in files if not match[3]]
        with_ids = any("_" in match[0].partition(".")[0] for match in whole)
        # Only Spark knows which of the files with an id is valid.
        first = 0 if with_ids else _newest_snapshot(whole, version)
        for match in files:
            number, changes = int(match[1]), match[2] in CHANGES
            if first < number <= version or (number == first and not changes):
                yield f"{store}/{match[0]}"
    yield from _beside_the_stores(location, batch)


def _is_plain(part: str) -> bool:
    """Return whether a folder of this name can be in a state store's path. In object stores, even ``..`` is a name."""
    return part[:1] not in ("", ".", "_") and part not in SHARED


def _beside_the_stores(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """Yield the files with schemas and operators' metadata, except those numbered higher than `batch`."""
    for path in sorted(location.files.tree("state")):
        *folders, name = path.split("/")
        special = [part for part in folders if part[:1] == "_"]
        if not special or not all(_is_plain(part) or part in special for part in folders):
            continue
        if name[0] != "." and not (name.isdigit() and int(name) > batch):
            yield path


def files_of_snapshot(data: bytes) -> list[str] | None:
    """Return the shared files that a RocksDB snapshot lists, relative to its store's folder; None if it has no valid list."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            text = archive.read("metadata").decode()
        value = json.loads(text.partition("\n")[2] if text.startswith("v") else text)
        tables = [("SSTs", str(each["dfsSstFileName"])) for each in value.get("sstFiles") or ()]
        logs = [("logs", str(each["dfsLogFileName"])) for each in value.get("logFiles") or ()]
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError):
        return None
    if any("/" in name or name in ("", ".", "..") for _, name in (*tables, *logs)):
        return None  # a copy would read or write outside the store's folder
    return ["/".join(each) for each in (*tables, *logs)]


def shared_files(location: CheckpointLocation, store: str) -> list[str]:
    """Return all files that snapshots of a RocksDB store may share, relative to the store's folder."""
    return [f"{shared}/{name}" for shared in SHARED for name in sorted(location.files.names(f"{store}/{shared}"))]
