"""Spark's own logs, ``offsets/`` and ``commits/``, and its state, taken back when the query's driver has ended.

What Spark 4.2 needs to go on, as measured (integration/test_spark_rewind.py):

- It begins at the newest file of ``offsets/``, N, and stops with "batch N-1 doesn't exist" if ``offsets/<N-1>`` is gone.
  If ``commits/<N>`` is there it goes on with N+1, else it runs N again. ``commits/<N>`` also has the watermark, and the
  ids of the state's files if they have any. Spark never reads older files of either folder.
- If ``commits/`` goes further than ``offsets/``, Spark runs its last micro-batch again, though it was committed, and
  ends with CONCURRENT_STREAM_LOG_UPDATE. So ``commits/M`` goes before ``offsets/M``, from the highest M down: after every
  deletion the logs are those of a query that stopped there.
- With ``offsets/`` emptied it starts again at the source's ``initialOffset()``, another offset if ``startingOffsets`` is
  latest, and is refused if there is state (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). So the very beginning is
  ``offsets/0`` kept and ``commits/0`` deleted: micro-batch 0 runs again, with the start that our source recorded in it.
- After micro-batch N it reads version N+1 of the state: the nearest snapshot at or below, and every change file after it.
  **Later snapshots have to go**: Spark makes them from time to time only, so one of the old run can be the nearest to a
  version of the new run. Counts came out wrong, without an error: default store, and RocksDB with changelog.
- The stores of a stopped query live on in its application until their next maintenance (once a minute), which can write one
  more snapshot, of a version that was deleted: seen to give wrong counts. So **the driver must have ended**, or its stores
  must be closed; that the query has stopped is not enough.
- The log of Spark's file source (``sources/<i>/``) is never taken back: the first micro-batch after going back reads all
  files that the log holds beyond its start at once, above ``maxFilesPerTrigger``; none is lost or read twice.
- Spark's own repartition of a checkpoint adds a micro-batch (`repartitions_before`). Folders of partitions that there were
  only before it, or only after it, are no part of the state on its other side.
- A micro-batch without data (watermark) that was deleted is not made again at once: Spark makes one only after a
  micro-batch of the same run; the rows that it emitted come with the next one that has data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from connector.location.location import CheckpointLocation
from connector.location.offset_log import (
    TornOffsetsError,
    has_offsets,
    is_torn,
    lines_of,
    newest,
    offsets_text,
    repartitions_before,
    source_lines,
    spark_view,
)
from connector.location.state_files import CHANGES, VERSIONED, is_of_partition, shuffle_partitions, stores_of
from transactional import faults
from transactional.barrier import sources_digest
from transactional.errors import LocationError, RewindRequiredError
from transactional.ledger import Ledger
from transactional.recovery import check_sources
from transactional.rewind import Preview

__all__ = [
    "LocationLogs",
    "RewindTooFarError",
    "check_can_go_back",
    "check_target",
    "delete_after",
    "is_replaced",
    "plan_ends",
    "put_back",
    "replay",
    "torn_newest",
]


class RewindTooFarError(LocationError):
    """Spark keeps too few of its files for the query to go back this far."""


PLANNED = "planned"
"""The key of our source's line that lists the ends of the micro-batches after it, which `latestOffset` returns first."""

RETAINED = "spark.sql.streaming.minBatchesToRetain"

_ENTRY = re.compile(r"\.*(\d+)(?:\.[^.]+\.tmp)?(?:\.crc)?")
"""A log's file, Hadoop's checksum of it, and the leftover of a writer that died: 7, .7.crc, .7.UUID.tmp."""


class LocationLogs:
    """Spark's logs of a location on any store: this module's functions, as a `transactional.rewind.QueryLogs`."""

    def __init__(self, location: CheckpointLocation) -> None:
        self.highest = lambda: (newest(location, "offsets"), newest(location, "commits"))
        self.repartitions = partial(repartitions_before, location)
        self.check_can_go_back = partial(check_can_go_back, location)
        self.delete_after = partial(delete_after, location)
        self.replay = partial(replay, location)
        self.is_replaced = partial(is_replaced, location)
        self.put_back = partial(put_back, location)


def check_target(location: CheckpointLocation, ledger: Ledger, preview: Preview) -> None:
    """Check that Spark's files of the target are those that the journal recorded, or that the rewind can put them back: R1."""
    if preview.batch >= 0:
        with suppress(RewindRequiredError):  # the rewind puts back what the journal keeps
            try:
                check_sources(ledger, spark_view(location, preview.batch))
            except TornOffsetsError:
                needed = {number for number in (preview.batch, preview.batch - 1) if has_offsets(location, number)}
                if not needed <= set(ledger.logs):
                    raise


def torn_newest(location: CheckpointLocation, ledger: Ledger) -> int | None:
    """Return the micro-batch of the newest file of ``offsets/`` if the file is torn, and deleting it is exact; else None.

    It is if Spark has not committed the micro-batch, the journal has neither recorded nor voided it, and no rewind
    has planned ends in it. Then no row of it is decided, and Spark plans it again after the one before. Not the very first:
    Spark would ask the source again where to begin, and with startingOffsets=latest that is elsewhere by now.
    """
    batch = newest(location, "offsets")
    fresh = batch == ledger.accounted + 1 and not ledger.voided and ledger.replay is None and ledger.rewinding is None
    if batch < 1 or not fresh or newest(location, "commits") >= batch or not is_torn(location, batch):
        return None
    return batch


def check_can_go_back(location: CheckpointLocation, batch: int) -> None:
    """Check that Spark still has what it needs to go on after a micro-batch.

    Needed are ``offsets/<batch>``, ``offsets/<batch-1>``, ``commits/<batch>``, and, for every store of the state, a
    snapshot of version ``batch + 1`` or below with all change files after it. After -1, the very beginning: ``offsets/0``.
    The newest micro-batch needs no commit: Spark runs it again. As Spark purges, it can go back
    ``spark.sql.streaming.minBatchesToRetain`` - 1 micro-batches.

    This looks at file names only: Spark itself, when it starts, finds a torn state file, a RocksDB snapshot one of whose
    ``SSTs/`` was deleted, and a changed plan (state of an operator that had another schema meanwhile).
    """
    kept = _Kept.of(location)
    if not kept.offsets and batch == -1:
        return
    _check(kept, batch, -1, batch, kept.missing_after(batch))


def delete_after(location: CheckpointLocation, batch: int) -> None:
    """Make a micro-batch the last that Spark knows. Can be repeated, also after a death at any point.

    From the highest down: ``commits/M``, then ``offsets/M``, with their checksums and leftovers; then the state's files of
    later versions. After -1 it is `replay` of micro-batch 0.
    """
    if batch == -1:
        replay(location, 0, 0)
        return
    check_can_go_back(location, batch)
    _delete(location, offsets=batch, commits=batch, version=batch + 1)


def replay(location: CheckpointLocation, first: int, last: int) -> None:
    """Let Spark run micro-batches again with the ends that they had, and forget all later ones. Can be repeated.

    `plan_ends`, which is durable before the first deletion; then as `delete_after`, down to ``commits/<first>``. The number
    of each micro-batch stays, also of those without data: a planned end differs from the one before at least in what is
    left of the plan, and Spark makes a micro-batch of any difference in the text.
    """
    kept = _Kept.of(location)
    if not kept.offsets and first == 0:
        return
    _check(kept, first, 0, first - 1, kept.missing_to_run(first))
    plan_ends(location, first, last)
    _delete(location, offsets=first, commits=first - 1, version=first)


def is_replaced(location: CheckpointLocation, batch: int, text: str) -> bool:
    """Return whether ``offsets/<batch>`` is there, and torn or with other sources than this text of it, planned ends apart."""
    if not has_offsets(location, batch):
        return False
    if is_torn(location, batch):
        return True
    return sources_digest(source_lines(location, batch)) != sources_digest(lines_of(location, batch, text))


def put_back(location: CheckpointLocation, batch: int, text: str) -> None:
    """Write ``offsets/<batch>`` as the journal keeps it, whole or not at all. Can be repeated."""
    _replace(location, batch, text)


def plan_ends(location: CheckpointLocation, first: int, last: int) -> None:
    """Write the recorded ends of the micro-batches after `first`, up to `last`, into ``offsets/<first>``.

    Every line gets the key ``planned``: a list of end offsets, in order, the same number in every line; ends that
    ``offsets/<last>`` has planned itself come after. The text is Spark's own, ``json.dumps`` of the source's dict with its
    keys in alphabetical order, and Spark hands it to `latestOffset` as it stands. The checksum file is deleted: Spark does
    not look at it here, other readers of Hadoop's do.

    A plan that is there already stays: it covers what was deleted since, or reaches further.
    """
    if first >= last:
        return
    begin = _our_offsets(location, first)
    later = {
        batch: _our_offsets(location, batch) for batch in range(first + 1, last + 1) if has_offsets(location, batch)
    }
    plans: list[list[Any] | None] = [None]
    if all(len(offsets) == len(begin) for offsets in later.values()):
        columns = [{batch: offsets[index] for batch, offsets in later.items()} for index in range(len(begin))]
        plans = [_plan(first, last, *line) for line in zip(begin, columns, strict=True)]
    if None in plans or len({len(plan or ()) for plan in plans}) > 1:
        raise LocationError("PLANNED_ENDS_UNKNOWN", first=first, last=last, found=sorted(later))
    lines = [{**offset, PLANNED: plan} for offset, plan in zip(begin, plans, strict=True)]
    if lines != begin:
        # Inner keys keep their order: partitions stand in the order of their numbers.
        texts = [json.dumps({key: offset[key] for key in sorted(offset)}) for offset in lines]
        _replace(location, first, "\n".join([*offsets_text(location, first).split("\n")[:2], *texts]))


def _plan(first: int, last: int, line: Mapping[str, Any], ends: Mapping[int, Mapping[str, Any]]) -> list[Any] | None:
    """Return one line's plan: the one that it has, or the recorded ends; None if neither is whole."""
    planned = list(line.get(PLANNED, []))
    recorded = {batch: {key: end[key] for key in end if key != PLANNED} for batch, end in ends.items()}
    if len(recorded) == last - first:
        whole = [*recorded.values(), *ends[last].get(PLANNED, [])]
        return planned if planned[: len(whole)] == whole else whole
    fits = all(planned[batch - first - 1 : batch - first] == [end] for batch, end in recorded.items())
    return planned if fits and len(planned) >= last - first else None


def _our_offsets(location: CheckpointLocation, batch: int) -> list[dict[str, Any]]:
    found = []
    for line in source_lines(location, batch):
        if line.offset is None:
            raise LocationError("REWIND_FOREIGN_SOURCE", batch=batch)
        found.append(dict(line.offset))
    return found


def _replace(location: CheckpointLocation, batch: int, text: str) -> None:
    """Write ``offsets/<batch>``, without the checksum of its former text."""
    location.files.delete([f"offsets/.{batch:d}.crc"])
    faults.reach("rewind.planned")
    location.files.put(f"offsets/{batch:d}", text.encode())
    faults.reach("rewind.planned")


def _delete(location: CheckpointLocation, offsets: int, commits: int, version: int) -> None:
    """Delete all files above these numbers, in an order that leaves Spark a log that it can read after every deletion."""
    files = {log: _entries(location, log) for log in ("commits", "offsets")}
    later = {batch for batch in (*files["commits"], *files["offsets"]) if batch > commits}
    for batch in sorted(later, reverse=True):
        for name in files["commits"].get(batch, []):
            location.files.delete([f"commits/{name}"])
            faults.reach("rewind.commit-deleted")
        for name in files["offsets"].get(batch, []) if batch > offsets else []:
            location.files.delete([f"offsets/{name}"])
            faults.reach("rewind.offset-deleted")
    for store, names in stores_of(location).items():
        found = [match for match in map(VERSIONED.fullmatch, sorted(names)) if match and int(match[1]) > version]
        if found:
            location.files.delete([f"{store}/{match[0]}" for match in found])
            faults.reach("rewind.deleted")


# -- the present files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """Which micro-batches Spark has of its logs, and which files of its state.

    Parameters
    ----------
    location : CheckpointLocation
    offsets, commits : frozenset[int]
    stores : Mapping[str, tuple[frozenset[int], frozenset[int]]]
        Per store, relative to the location: versions with a snapshot, versions with a file of changes.
    """

    location: CheckpointLocation
    offsets: frozenset[int]
    commits: frozenset[int]
    stores: Mapping[str, tuple[frozenset[int], frozenset[int]]]

    @classmethod
    def of(cls, location: CheckpointLocation) -> _Kept:
        stores = {}
        for store, names in stores_of(location).items():
            files = [
                match for name in names if (match := VERSIONED.fullmatch(name)) and name[0] != "." and not match[3]
            ]
            changes = frozenset(int(match[1]) for match in files if match[2] in CHANGES)
            snapshots = frozenset(int(match[1]) for match in files if match[2] not in CHANGES)
            stores[store] = (snapshots, changes)
        logs = (_entries(location, log).items() for log in ("offsets", "commits"))
        offsets, commits = (frozenset(batch for batch, names in log if str(batch) in names) for log in logs)
        return cls(location, offsets, commits, stores)

    def missing_after(self, batch: int) -> list[str]:
        """Return the files that Spark would need to go on after a micro-batch, and does not have."""
        if batch == -1 or (batch not in self.commits and batch == max(self.offsets, default=-1)):
            return self.missing_to_run(max(batch, 0))
        return self._missing((batch, batch - 1), batch, batch + 1)

    def missing_to_run(self, batch: int) -> list[str]:
        """Return the files that Spark would need to run a micro-batch again, and does not have."""
        return self._missing((batch, batch - 1), batch - 1, batch)

    def _missing(self, offsets: Iterable[int], commit: int, version: int) -> list[str]:
        found = [f"offsets/{batch}" for batch in offsets if batch >= 0 and batch not in self.offsets]
        found += [f"commits/{commit}"] if commit >= 0 and commit not in self.commits else []
        partitions = shuffle_partitions(self.location, version - 1) if self.stores else None
        for store, (snapshots, changes) in self.stores.items():
            if not is_of_partition(store, partitions):
                continue
            start = max((number for number in snapshots if number <= version), default=0)
            if not changes.issuperset(range(start + 1, version + 1)):
                found.append(f"version {version} of {store}")
        return found


def _check(kept: _Kept, named: int, lowest: int, batch: int, missing: Sequence[str]) -> None:
    """Raise if there is no such micro-batch, or something is missing to go on after `batch`."""
    highest = max(kept.offsets, default=-1)
    if not lowest <= named <= highest:
        raise RewindTooFarError(
            "REWIND_TOO_FAR", batch=named, reason=f"its logs hold micro-batches {lowest} to {highest}", newest=highest
        )
    if not missing:
        return
    oldest = next((number for number in sorted({-1, *kept.offsets}) if not kept.missing_after(number)), None)
    reach = (
        "it can go back to none"
        if oldest is None
        else f"the oldest that it can go back to is {'the very beginning' if oldest == -1 else f'micro-batch {oldest}'}"
    )
    raise RewindTooFarError(
        "REWIND_TOO_FAR",
        batch=batch,
        oldest=oldest,
        missing=list(missing[:10]),
        reason=f"it needs {', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}, "
        f"and keeps the newest {RETAINED} (100 by default) micro-batches only, after a restore none before its savepoint; "
        f"{reach}",
    )


def _entries(location: CheckpointLocation, log: str) -> dict[int, list[str]]:
    """List a log's files by micro-batch, checksums and leftovers first."""
    found: dict[int, list[str]] = {}
    for match in filter(None, map(_ENTRY.fullmatch, location.files.names(log))):
        found.setdefault(int(match[1]), []).append(match[0])
    return {batch: sorted(names) for batch, names in found.items()}
