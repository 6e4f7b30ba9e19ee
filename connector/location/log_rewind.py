"""Rewind Spark's own logs (``offsets/`` and ``commits/``) and its state, after the query's driver has ended.

Spark 4.2 behaves as follows (measured by integration/test_spark_rewind.py):

- Spark begins at the newest file of ``offsets/``, N. If ``offsets/<N-1>`` is missing, it stops with "batch N-1 doesn't
  exist". If ``commits/<N>`` exists, it continues with N+1, otherwise it runs N again. ``commits/<N>`` also contains the
  watermark and, if the state's files have ids, these ids. Spark never reads older files of either folder.
- If ``commits/`` reaches further than ``offsets/``, Spark runs its last micro-batch again, although it was committed, and
  ends with CONCURRENT_STREAM_LOG_UPDATE. So a rewind deletes ``commits/M`` before ``offsets/M``, from the highest M down.
  After every deletion, the logs look like those of a query that stopped there.
- If ``offsets/`` is empty, Spark starts again at the source's ``initialOffset()``. If ``startingOffsets`` is latest, this is
  now a different offset. If the query has state, Spark refuses to start (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). So
  to go back to the very beginning, a rewind keeps ``offsets/0`` and deletes ``commits/0``. Then micro-batch 0 runs again,
  with the start that our source recorded in it.
- After micro-batch N, Spark reads version N+1 of the state: the nearest snapshot at or below that version, and every change
  file after the snapshot. **Later snapshots must be deleted**: Spark writes a snapshot only from time to time, so a snapshot
  of the old run can be the nearest one to a version of the new run. In tests, counts were then wrong, without an error
  (default store, and RocksDB with changelog).
- The state stores of a stopped query stay in memory until their next maintenance (once a minute). This
  maintenance can write a snapshot of a version that was deleted, which gave wrong counts. So **the driver must have ended**,
  or its stores must be closed. It is not enough that the query has stopped.
- The log of Spark's file source (``sources/<i>/``) is never rolled back. The first micro-batch after a rewind reads all files
  that the log lists after its start offset, even if they are more than ``maxFilesPerTrigger``. No file is lost or read twice.
- Spark's own repartition of a checkpoint adds a micro-batch (`repartitions_before`). If a partition's folder existed only
  before the repartition, the folder does not belong to the state after the repartition. The reverse is also true.
- If a micro-batch without data (for a watermark) was deleted, Spark does not repeat it immediately, because Spark adds such
  micro-batches only after another micro-batch of the same run. The rows that the deleted micro-batch emitted come with the
  next micro-batch that has data.
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
    text_of_line,
)
from connector.location.state_files import CHANGES, VERSIONED, is_of_partition, shuffle_partitions, stores_of
from transactional import faults
from transactional.barrier import by_name, sources_digest
from transactional.errors import LocationError, RewindRequiredError
from transactional.ledger import Ledger
from transactional.recovery import check_sources
from transactional.rewind import Preview


class RewindTooFarError(LocationError):
    """The query can't go back to this micro-batch, because Spark's logs no longer contain it, or files are missing."""


PLANNED = "planned"
"""The key for the planned end offsets in a ``barrier-kafka`` source's line: `latestOffset` returns these first."""

RETAINED = "spark.sql.streaming.minBatchesToRetain"

_ENTRY = re.compile(r"\.*(\d+)(?:\.[^.]+\.tmp)?(?:\.crc)?")
"""Matches the names of a micro-batch's files in the folder of a log.

For example: the file 7, its checksum .7.crc, and a dead writer's temporary file .7.UUID.tmp.
"""


class LocationLogs:
    """Implements `transactional.rewind.QueryLogs` for Spark's logs at a location, with the functions of this module."""

    def __init__(self, location: CheckpointLocation) -> None:
        self.highest = lambda: (newest(location, "offsets"), newest(location, "commits"))
        self.repartitions = partial(repartitions_before, location)
        self.check_can_go_back = partial(check_can_go_back, location)
        self.delete_after = partial(delete_after, location)
        self.replay = partial(replay, location)
        self.is_replaced = partial(is_replaced, location)
        self.put_back = partial(put_back, location)


def check_target(location: CheckpointLocation, ledger: Ledger, preview: Preview) -> None:
    """Check that ``offsets/`` at a rewind's target matches the journal, or can be restored from the journal (R1)."""
    if preview.batch >= 0:
        with suppress(RewindRequiredError):  # the rewind restores the files that the journal keeps
            try:
                check_sources(ledger, spark_view(location, preview.batch))
            except TornOffsetsError:
                needed = {number for number in (preview.batch, preview.batch - 1) if has_offsets(location, number)}
                if not needed <= set(ledger.logs):
                    raise


def torn_newest(location: CheckpointLocation, ledger: Ledger) -> int | None:
    """Return the micro-batch of the newest file in ``offsets/`` if that file is damaged and may be deleted; otherwise None.

    The file may be deleted if Spark has not committed the micro-batch, the journal has neither recorded nor voided it,
    and no rewind has written planned ends into the file. In that case, nothing is decided about the micro-batch's rows,
    and Spark plans the micro-batch again. ``offsets/0`` must never be deleted: Spark would ask the source again where
    to begin, and with startingOffsets=latest the answer would now be a different offset.
    """
    batch = newest(location, "offsets")
    fresh = batch == ledger.accounted + 1 and not ledger.voided and ledger.replay is None and ledger.rewinding is None
    if batch < 1 or not fresh or newest(location, "commits") >= batch or not is_torn(location, batch):
        return None
    return batch


def check_can_go_back(location: CheckpointLocation, batch: int) -> None:
    """Check that Spark still has the files that it needs to continue after a micro-batch.

    Spark needs ``offsets/<batch>``, ``offsets/<batch-1>`` and ``commits/<batch>``. For every state store, Spark needs a
    snapshot of version ``batch + 1`` or below, with all change files after it. For -1, the very beginning, Spark only needs
    ``offsets/0``. The newest micro-batch needs no commit, because Spark runs it again. Spark purges old files, so it can go
    back at most ``spark.sql.streaming.minBatchesToRetain`` - 1 micro-batches.

    This function checks only the names of files. Only Spark's next start can find out that a state file is damaged, that a
    file in ``SSTs/`` that a RocksDB snapshot needs was deleted, or that the schema of an operator's state has changed.

    Raises
    ------
    RewindTooFarError
        ``REWIND_TOO_FAR``
    """
    kept = _Kept.of(location)
    if not kept.offsets and batch == -1:
        return
    _check(kept, batch, -1, batch, kept.missing_after(batch))


def delete_after(location: CheckpointLocation, batch: int) -> None:
    """Make a micro-batch the last one that Spark knows. The call can be repeated, even if an earlier call was killed.

    The function deletes ``commits/M``, then ``offsets/M``, from the highest micro-batch M down, with their checksums and
    temporary files. Then it deletes the state files of later versions. If `batch` is -1, micro-batch 0 is replayed instead
    (see `replay`).
    """
    if batch == -1:
        replay(location, 0, 0)
        return
    check_can_go_back(location, batch)
    _delete(location, offsets=batch, commits=batch, version=batch + 1)


def replay(location: CheckpointLocation, first: int, last: int) -> None:
    """Make Spark run micro-batches `first` to `last` again with the same end offsets, and forget all later ones.

    The call can be repeated. First, `plan_ends` writes the end offsets durably. Then files are deleted as in
    `delete_after`, down to ``commits/<first>``. Each micro-batch keeps its number, even without data: Spark runs a
    micro-batch whenever the text of the end offset changes, and this text contains the rest of the plan, which gets
    shorter each time.
    """
    kept = _Kept.of(location)
    if not kept.offsets and first == 0:
        return
    _check(kept, first, 0, first - 1, kept.missing_to_run(first))
    plan_ends(location, first, last)
    _delete(location, offsets=first, commits=first - 1, version=first)


def is_replaced(location: CheckpointLocation, batch: int, text: str) -> bool:
    """Return whether ``offsets/<batch>`` exists, but is damaged or has source lines that differ from those in `text`.

    Planned ends are ignored.
    """
    if not has_offsets(location, batch):
        return False
    if is_torn(location, batch):
        return True
    return sources_digest(source_lines(location, batch)) != sources_digest(lines_of(location, batch, text))


def put_back(location: CheckpointLocation, batch: int, text: str) -> None:
    """Write `text`, the journal's copy of ``offsets/<batch>``, completely or not at all. The call can be repeated."""
    _replace(location, batch, text)


def plan_ends(location: CheckpointLocation, first: int, last: int) -> None:
    """Write the end offsets of the micro-batches after `first`, up to `last`, into ``offsets/<first>``.

    Every source line gets the key ``planned``: a list of end offsets, in order, with the same length in every line. Planned
    ends in ``offsets/<last>`` are appended to the list. The line has Spark's form: ``json.dumps`` of the source's dict, with
    the keys in alphabetical order. Spark passes the line to `latestOffset` unchanged. The file's checksum is deleted: Spark
    does not read it here, but other Hadoop clients do.

    If ``offsets/<first>`` already has a plan that begins with these ends, that plan is kept: it may extend further, or contain
    ends whose own offset files have since been deleted.
    """
    if first >= last:
        return
    begin = _our_offsets(location, first)
    later = {
        batch: _our_offsets(location, batch) for batch in range(first + 1, last + 1) if has_offsets(location, batch)
    }
    plans: dict[str, list[Any] | None] = {"": None}
    if begin and all(offsets.keys() == begin.keys() for offsets in later.values()):
        ends = {name: {batch: offsets[name] for batch, offsets in later.items()} for name in begin}
        plans = {name: _plan(first, last, offset, ends[name]) for name, offset in begin.items()}
    if None in plans.values() or len({len(plan or ()) for plan in plans.values()}) > 1:
        raise LocationError("PLANNED_ENDS_UNKNOWN", first=first, last=last, found=sorted(later))
    planned = {name: {**offset, PLANNED: plans[name]} for name, offset in begin.items()}
    if planned != begin:
        # Inner keys keep their order, because partitions are sorted by their numbers.
        texts = {name: json.dumps({key: offset[key] for key in sorted(offset)}) for name, offset in planned.items()}
        version, metadata, *_ = offsets_text(location, first).split("\n")
        lines = [text_of_line(version, name, text) for name, text in texts.items()]
        _replace(location, first, "\n".join([version, metadata, *lines]))


def _plan(first: int, last: int, line: Mapping[str, Any], ends: Mapping[int, Mapping[str, Any]]) -> list[Any] | None:
    """Return the planned end offsets of one source; None if they are not completely known.

    If the existing plan in `line` fits, return its offsets; otherwise return the recorded offsets, `ends`.
    """
    planned = list(line.get(PLANNED, []))
    recorded = {batch: {key: end[key] for key in end if key != PLANNED} for batch, end in ends.items()}
    if len(recorded) == last - first:
        whole = [*recorded.values(), *ends[last].get(PLANNED, [])]
        return planned if planned[: len(whole)] == whole else whole
    fits = all(planned[batch - first - 1 : batch - first] == [end] for batch, end in recorded.items())
    return planned if fits and len(planned) >= last - first else None


def _our_offsets(location: CheckpointLocation, batch: int) -> dict[str, dict[str, Any]]:
    """Map each source of a micro-batch to its offset; return an empty mapping if a source is not ``barrier-kafka``."""
    lines = by_name(source_lines(location, batch))
    offsets = {name: dict(line.offset) for name, line in lines.items() if line.offset is not None}
    return offsets if len(offsets) == len(lines) else {}


def _replace(location: CheckpointLocation, batch: int, text: str) -> None:
    """Write ``offsets/<batch>``, after deleting the checksum of its old text."""
    location.files.delete([f"offsets/.{batch:d}.crc"])
    faults.reach("rewind.planned")
    location.files.put(f"offsets/{batch:d}", text.encode())
    faults.reach("rewind.planned")


def _delete(location: CheckpointLocation, offsets: int, commits: int, version: int) -> None:
    """Delete Spark's log and state files with higher numbers than these.

    After every single deletion, Spark can still read its logs.
    """
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
    """The micro-batches that Spark's logs contain, and the versions that its state stores contain."""

    location: CheckpointLocation
    # The micro-batches with a file in ``offsets/``, and in ``commits/``.
    offsets: frozenset[int]
    commits: frozenset[int]
    # For each store's folder, relative to the location: the versions with a snapshot, and the versions with a change file.
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
        """Return the missing files that Spark would need to continue after a micro-batch."""
        if batch == -1 or (batch not in self.commits and batch == max(self.offsets, default=-1)):
            return self.missing_to_run(max(batch, 0))
        return self._missing((batch, batch - 1), batch, batch + 1)

    def missing_to_run(self, batch: int) -> list[str]:
        """Return the missing files that Spark would need to run a micro-batch again."""
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
    """Raise RewindTooFarError if `named` is not between `lowest` and the newest micro-batch, or if `missing` is not empty.

    `missing` lists the files that Spark would need to continue after micro-batch `batch`, and that do not exist.
    """
    highest = max(kept.offsets, default=-1)
    if not lowest <= named <= highest:
        raise RewindTooFarError(
            "REWIND_TOO_FAR",
            batch=named,
            reason=f"its logs contain micro-batches {lowest} to {highest}",
            newest=highest,
        )
    if not missing:
        return
    oldest = next((number for number in sorted({-1, *kept.offsets}) if not kept.missing_after(number)), None)
    reach = (
        "the query can't be rewound to any micro-batch"
        if oldest is None
        else f"the oldest point to rewind to is {'the very beginning' if oldest == -1 else f'micro-batch {oldest}'}"
    )
    raise RewindTooFarError(
        "REWIND_TOO_FAR",
        batch=batch,
        oldest=oldest,
        missing=list(missing[:10]),
        reason=f"files are missing ({', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}). "
        f"Spark keeps only the newest {RETAINED} (default: 100) micro-batches, and a restored location has none from before "
        f"the savepoint. So {reach}",
    )


def _entries(location: CheckpointLocation, log: str) -> dict[int, list[str]]:
    """Map each micro-batch to the names of its files in a log's folder; checksum and temporary files come first."""
    found: dict[int, list[str]] = {}
    for match in filter(None, map(_ENTRY.fullmatch, location.files.names(log))):
        found.setdefault(int(match[1]), []).append(match[0])
    return {batch: sorted(names) for batch, names in found.items()}
