"""Savepoints: a copy of a query's newest completed checkpoint, made from outside, beside a query that runs or is dead.

::

    savepoint.json     what it is, and every file with its size and hash; written last
    journal.json       the journal as of the checkpoint: nothing prepared, nothing unsettled
    checkpoint/        Spark's metadata, offsets/N and offsets/N-1, commits/N, sources/, and of state/ what version N+1 needs

The folder is made under a temporary name, and renamed when it is whole. Nothing in it is ever changed again.

S1 load the journal: a streaming query's, at this place, not moved on, with a completed checkpoint
S2 where something is prepared and the query may run: journal `request`, and wait for the checkpoint that it closes
S3 choose the newest completed checkpoint, and wait until Spark has the commit of its last micro-batch, N
S4 copy the files of N        S5 look again: they stand as they stood, the journal still holds the checkpoint
S6 write journal.json and savepoint.json, see that all files are there, make it durable, rename

What makes S4 sound beside a query that runs, as measured (integration/test_savepoint_files.py, every state store): once
``commits/N`` is there, the files that version N+1 needs are not written again. But for one: of a version that was made twice
(the micro-batch ran again, its commit was lost) maintenance may replace the snapshot late, by one of the second run. And files
are deleted in time. S5 sees both, and S3 begins anew. A snapshot that is new to a version changes nothing: it is not copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from connector.spark.belonging import refuse_batch_writes, refuse_elsewhere
from connector.spark.disposal import dispose, finish_disposal
from connector.spark.draft import Draft
from connector.spark.location import CheckpointLocation
from connector.spark.manifest import (
    CHECKPOINT,
    MANIFEST,
    Savepoint,
    find,
    folder_of,
    read,
    refuse_inside,
    write,
)
from connector.spark.offset_log import check_can_go_back, source_lines
from connector.spark.process import is_alive
from connector.spark.saved_files import SavedFile, Still, copy_file, sync_folders
from connector.spark.state_files import files_of_snapshot, shared_files, shuffle_partitions, state_files
from transactional import faults
from transactional.clock import Clock, Deadline, SystemClock
from transactional.entry import EntryKind
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.journal.folders import sync_folder
from transactional.ledger import CheckpointRecord, Ledger
from transactional.recovery import check_recorded
from transactional.restore import cut

__all__ = ["MANIFEST", "Savepoint", "dispose", "find", "finish_disposal", "free_folder", "read", "take"]

TIMEOUT: Final = 60.0
"""Seconds to wait for a checkpoint: micro-batches are shorter, and a query without rows makes none."""

ATTEMPTS: Final = 5
"""Copies that are begun: each further one needs a file that was replaced or deleted in the moment of the copy."""

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the journal: each reads its folder's names."""


def take(
    location: str, target: str, *, timeout: float = TIMEOUT, newest: bool = False, clock: Clock | None = None
) -> Savepoint:
    """Take a savepoint of a query's newest completed checkpoint. Needs no JVM; the query may run.

    Parameters
    ----------
    location : str
        The query's ``checkpointLocation``.
    target : str
        The folder to make: not there yet.
    timeout : float
        Seconds to wait for a checkpoint that is asked for, or for Spark's commit of its last micro-batch.
    newest : bool
        Do not ask for a checkpoint: the newest completed one will do, whatever is prepared.
    clock : Clock, optional

    Raises
    ------
    LocationError
        ``SAVEPOINT_EXISTS``, ``INSIDE_A_SAVEPOINT``, ``NOTHING_TO_SAVE``, ``SAVEPOINT_NOT_CLOSED``,
        ``SAVEPOINT_NOT_COMMITTED``, ``SAVEPOINT_UNSTABLE``, ``REWIND_BEGUN``, ``LOCATION_NOT_LOCAL``,
        ``SAVEPOINT_NOT_LOCAL``; or the journal is not this place's.
    FencedError
        ``LOCATION_MOVED_ON``
    RewindRequiredError
        ``OFFSETS_REPLACED``: a driver that stood still has replaced the file; a rewind puts it back.
    """
    place = CheckpointLocation(location)
    folder = free_folder(place, target)
    clock = clock or SystemClock()
    deadline = Deadline(timeout, clock)
    journal = place.journal()
    _look(place, journal)  # S1
    if not newest:
        _close(place, journal, deadline, clock)  # S2
    for _ in range(ATTEMPTS):
        chosen = _choose(place, journal, deadline, clock)  # S3
        draft = Draft(folder, "taking", private=True)
        draft.begin()
        try:
            found = _copy(place, journal, chosen, draft.path, clock)
            if found is not None and found.is_whole():
                sync_folders(draft.path)
                if draft.publish():
                    break
        except FileExistsError as error:
            raise _exists(folder) from error
        finally:
            draft.drop()
    else:
        raise LocationError(
            "SAVEPOINT_UNSTABLE",
            f"files of {place.path}, or their copies, changed or vanished in each of {ATTEMPTS} attempts: is a folder being "
            "deleted or cleaned up? Raise spark.sql.streaming.minBatchesToRetain, or stop the query first",
            path=place.path,
        )
    sync_folders(folder)
    sync_folder(os.path.dirname(folder))
    return read(folder)


def free_folder(place: CheckpointLocation, target: str) -> str:
    """The canonical path of a folder that can be made for a savepoint of this location.

    Raises
    ------
    LocationError
        ``LOCATION_NOT_LOCAL``, ``SAVEPOINT_NOT_LOCAL``, ``SAVEPOINT_EXISTS``, ``INSIDE_A_SAVEPOINT``
    """
    place.must_be_local("a savepoint")
    folder = folder_of(target)
    if os.path.lexists(folder) or folder == place.path or folder.startswith(place.path + os.sep):
        raise _exists(folder)
    refuse_inside(folder, "a second savepoint")
    return folder


def _exists(folder: str) -> LocationError:
    return LocationError(
        "SAVEPOINT_EXISTS",
        f"{folder} is there already, or lies in the checkpoint location: name a folder that is made for this savepoint",
        path=folder,
    )


# -- the steps -------------------------------------------------------------------------------------------------------


def _look(place: CheckpointLocation, journal: Journal) -> Ledger:
    """S1, and again at every look."""
    refuse_batch_writes(place, "each of its versions is written once")
    ledger = journal.load()
    if ledger.position:
        refuse_elsewhere(place, ledger)
    if ledger.rewinding is not None:
        raise LocationError(
            "REWIND_BEGUN",
            f"a rewind was begun (journal entry {ledger.rewinding.token}) and is not done: finish it first (`barrier rewind "
            "LOCATION --resume`)",
            rewind=ledger.rewinding.token,
        )
    if ledger.completed is None:
        raise LocationError(
            "NOTHING_TO_SAVE",
            f"{place.path} has no completed checkpoint yet: start the query, and wait for the first one",
            path=place.path,
        )
    return ledger


def _close(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> None:
    """S2: what is prepared comes into a checkpoint, where a query may be there to close one."""
    ledger = journal.ledger
    prepared = [record.batch for record in ledger.undecided() if record.parts]
    decided = [batch for checkpoint in ledger.unsettled() for batch in checkpoint.batches]
    waiting = [*decided, *prepared]
    run = ledger.newest_run
    stopped = run is None or run.ended is not None or is_alive(run.process) is False
    if not waiting or (stopped and not decided):
        return  # where nobody is there to close one, the newest it is: what is prepared is read again
    if prepared and not stopped and ledger.request is None:
        journal.append(EntryKind.REQUEST, {"what": "savepoint"}, lambda _: None)

    def closed() -> bool:
        completed = _look(place, journal).completed
        return completed is not None and max(completed.batches) >= max(waiting)

    if stopped or not _wait(closed, deadline, clock):
        raise LocationError(
            "SAVEPOINT_NOT_CLOSED",
            f"micro-batches {waiting} are {'decided and not settled' if decided else 'prepared'}, and no checkpoint over them "
            f"was completed {'before the query ended' if stopped else 'in time'}: the query has no new rows, is stuck, or does "
            "not run. Start it, or wait longer (--timeout). --newest takes the newest completed checkpoint as it is; the query "
            "that is restored from that reads their rows again, and writes AGAIN what is committed of them",
            batches=waiting,
        )


def _choose(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> CheckpointRecord:
    """S3."""

    def committed() -> bool:
        chosen = _look(place, journal).completed
        return chosen is not None and place.files.exists(f"commits/{max(chosen.batches)}")

    if not _wait(committed, deadline, clock):
        chosen = journal.ledger.completed
        batch = max(chosen.batches) if chosen is not None else -1
        raise LocationError(
            "SAVEPOINT_NOT_COMMITTED",
            f"checkpoint {chosen.id if chosen else 0} is completed, and Spark has no commits/{batch} at {place.path}: the "
            "query died in between. Start it once: it goes on after that micro-batch without writing it again; then take the "
            "savepoint",
            batch=batch,
        )
    chosen = journal.ledger.completed
    assert chosen is not None
    return chosen


def _copy(
    place: CheckpointLocation, journal: Journal, chosen: CheckpointRecord, draft: str, clock: Clock
) -> Savepoint | None:
    """S4 to S6; None where something changed meanwhile."""
    batch = max(chosen.batches)
    still = Still(place.path)
    files: list[SavedFile] = []

    def add(path: str) -> str:
        still.look(path)
        name = f"{CHECKPOINT}/{path.replace(os.sep, '/')}"
        target = os.path.join(draft, *name.split("/"))
        files.append(copy_file(os.path.join(place.path, path), target, name))
        return target

    try:
        check_can_go_back(place, batch)
        for path in _logs(place, batch):
            add(path)
        for path in list(state_files(place, batch)):
            copied = add(path)
            if path.endswith(".zip"):
                folder = os.path.dirname(path)
                known = files_of_snapshot(copied)
                for name in known if known is not None else shared_files(os.path.join(place.path, folder)):
                    add(os.path.join(folder, name))
    except FileNotFoundError:
        return None
    faults.reach("savepoint.copied")
    ledger = _look(place, journal)  # S5
    held = ledger.checkpoints.get(chosen.id)
    if held is None or not held.settled or still.changed():
        return None
    check_recorded(ledger, batch, source_lines(place, batch))
    query, partitions = place.query_id(), shuffle_partitions(place, batch)
    return write(draft, cut(ledger, chosen.id), chosen, query, partitions, files, clock)


def _logs(place: CheckpointLocation, batch: int) -> Iterator[str]:
    """Spark's files beside the state. A source's own log is read from its start: what came later is no fault there."""
    yield "metadata"
    yield from (os.path.join("offsets", str(number)) for number in (batch - 1, batch) if number >= 0)
    yield os.path.join("commits", str(batch))
    for folder, folders, names in os.walk(os.path.join(place.path, "sources")):
        folders.sort()
        for name in sorted(names):
            if name[0] != ".":
                yield os.path.relpath(os.path.join(folder, name), place.path)


def _wait(condition: Callable[[], bool], deadline: Deadline, clock: Clock) -> bool:
    while not condition():
        if deadline.passed():
            return False
        clock.sleep(min(LOOK_EVERY, max(deadline.left(), 0.01)))
    return True
