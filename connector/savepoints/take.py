"""Savepoints: a copy of a query's newest completed checkpoint, made from outside, beside a query that runs or is dead.

S1 load the journal: a streaming query's, at this location, not moved on, with a completed checkpoint
S2 if something is prepared and the query may run: journal `request`, and wait for the checkpoint that it closes
S3 choose the newest completed checkpoint, and wait until Spark has the commit of its last micro-batch, N
S4 copy the files of N        S5 look again: they stand as they stood, the journal still holds the checkpoint
S6 write ``journal.json``, then create ``savepoint.json`` exclusively: from then on the folder is a savepoint

It copies Spark's metadata, offsets/N and offsets/N-1, commits/N, sources/, and of state/ what version N+1 needs; in location
and savepoint, on any store. What makes S4 sound beside a query that runs, as measured (integration/test_savepoint_files.py,
every state store): once ``commits/N`` is there, the files that version N+1 needs are not written again. But for one: if a
version was made twice (the micro-batch ran again, its commit was lost) maintenance may replace the snapshot late, by one of the
second run. And files are deleted in time. S5 sees both, and S3 begins again. A snapshot that is new to a version changes
nothing: it is not copied.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from connector.location.files import GuardedFiles, LocalFiles, read_file
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import RewindTooFarError, check_can_go_back
from connector.location.offset_log import source_lines
from connector.location.state_files import files_of_snapshot, shared_files, shuffle_partitions, state_files
from connector.savepoints.manifest import (
    AT_ONCE,
    CHECKPOINT,
    SavedFile,
    Savepoint,
    copy_file,
    folder_of,
    is_leftover,
    write,
)
from connector.spark.location_owner import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import is_alive
from transactional import faults
from transactional.clock import Clock, Deadline, SystemClock
from transactional.entries import Request
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ledger import CheckpointRecord, Ledger
from transactional.recovery import check_recorded
from transactional.restore import cut

__all__ = ["TIMEOUT", "free_folder", "take"]

TIMEOUT: Final = 60.0
"""Seconds to wait for a checkpoint: micro-batches are shorter, and a query without rows makes none."""

ATTEMPTS: Final = 5
"""Attempts at a copy: each further one needs a file that was replaced or deleted in the moment of the copy."""

CHANGED: Final = "changed"
"""The attempt made no savepoint: a file was replaced or deleted meanwhile."""

TAKEN: Final = "taken"
"""Another has made a savepoint in the folder meanwhile."""

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the journal: each reads its folder's names."""


def take(
    location: str, target: str, *, timeout: float = TIMEOUT, newest: bool = False, clock: Clock | None = None
) -> Savepoint:
    """Take a savepoint of a query's newest completed checkpoint. Needs no JVM; the query may run."""
    place = CheckpointLocation(location)
    folder = free_folder(place, target)
    clock = clock or SystemClock()
    deadline = Deadline(timeout, clock)
    journal = place.journal()
    # S1: it is a streaming query's location, with a completed checkpoint.
    _look(place, journal)
    if not newest:
        # S2: ask the query to close what is prepared.
        _close(place, journal, deadline, clock)
    for _ in range(ATTEMPTS):
        # S3: choose the newest completed checkpoint.
        chosen = _choose(place, journal, deadline, clock)
        identifier, done = uuid.uuid4().hex, False
        try:
            found = _copy(place, journal, chosen, folder, identifier, clock)
            done = isinstance(found, Savepoint)
        finally:
            if not done:
                folder.files.remove(identifier)
                folder.files.remove("")
        if isinstance(found, Savepoint):
            return found
        if found is TAKEN:
            raise _exists(folder.path)
    raise LocationError("SAVEPOINT_UNSTABLE", path=place.path, attempts=ATTEMPTS)


def free_folder(place: CheckpointLocation, target: str) -> CheckpointLocation:
    """Return a folder that can become a savepoint of this location."""
    folder = folder_of(target)
    if folder.is_local:
        folder.files = GuardedFiles(LocalFiles(folder.path, private=True))
    try:
        free = all(is_leftover(name) for name in folder.files.names(""))
    except NotADirectoryError:
        free = False
    if not free or f"{folder.path}/".startswith(f"{place.path}/"):
        raise _exists(folder.path)
    return folder


def _exists(folder: str) -> LocationError:
    return LocationError(
        "LOCATION_NOT_EMPTY", path=folder, reason="it already exists, or is inside the checkpoint location"
    )


# -- the steps -------------------------------------------------------------------------------------------------------


def _look(place: CheckpointLocation, journal: Journal) -> Ledger:
    """Load the journal and judge it: S1, and again at every look."""
    refuse_batch_writes(place, "each of its versions is written once")
    ledger = journal.load()
    if ledger.position:
        refuse_elsewhere(place, ledger)
    if ledger.rewinding is not None:
        raise LocationError("REWIND_NOT_DONE", rewind=ledger.rewinding.token)
    if ledger.completed is None:
        raise LocationError("SAVEPOINT_NOT_READY", path=place.path, reason="no checkpoint is settled yet", batches=[])
    return ledger


def _close(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> None:
    """Bring what is prepared into a checkpoint, if a query may be running to close one: S2."""
    ledger = journal.ledger
    prepared = [record.batch for record in ledger.undecided() if record.parts]
    decided = [batch for checkpoint in ledger.unsettled() for batch in checkpoint.batches]
    waiting = [*decided, *prepared]
    run = ledger.newest_run
    stopped = run is None or run.ended is not None or is_alive(run.process) is False
    if not waiting or (stopped and not decided):
        return  # if no query runs to close one, take the newest: what is prepared is read again
    if prepared and not stopped:
        journal.ask(lambda now: Request(what="savepoint") if now.request is None else None, lambda _: None)

    def closed() -> bool:
        completed = _look(place, journal).completed
        return completed is not None and max(completed.batches) >= max(waiting)

    if stopped or not _wait(closed, deadline, clock):
        raise LocationError(
            "SAVEPOINT_NOT_READY",
            path=place.path,
            reason=f"micro-batches {waiting} are {'decided but not settled' if decided else 'prepared'}, and no "
            f"checkpoint with them was settled {'before the query ended' if stopped else 'in time'}",
            batches=waiting,
        )


def _choose(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> CheckpointRecord:
    """S3."""

    def committed() -> bool:
        chosen = _look(place, journal).completed
        return chosen is not None and place.files.exists(f"commits/{max(chosen.batches)}")

    run = _look(place, journal).newest_run
    stopped = run is None or run.ended is not None or is_alive(run.process) is False
    is_committed = committed() if stopped else _wait(committed, deadline, clock)  # no other process writes it
    chosen = journal.ledger.completed
    if chosen is None or not is_committed:
        batch = max(chosen.batches) if chosen is not None else -1
        raise LocationError(
            "SAVEPOINT_NOT_READY",
            path=place.path,
            reason=f"checkpoint {chosen.id if chosen else 0} is settled, but Spark has no commits/{batch}: the "
            "query died in between",
            batches=[batch],
        )
    return chosen


def _copy(
    place: CheckpointLocation,
    journal: Journal,
    chosen: CheckpointRecord,
    folder: CheckpointLocation,
    identifier: str,
    clock: Clock,
) -> Savepoint | str:
    """Do S4 to S6; return why there is no savepoint, if there is none: CHANGED, TAKEN."""
    batch = max(chosen.batches)
    marks: dict[str, str | None] = {}

    def saved(name: str) -> str:
        return f"{identifier}/{CHECKPOINT}/{name}"

    def copy(name: str) -> SavedFile:
        marks[name] = place.files.mark(name)
        return copy_file(place.files, name, folder.files, saved(name))

    try:
        if not _is_kept(place, journal, chosen):
            return CHANGED
        needed = [*_logs(place, batch), *state_files(place, batch)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            files = list(pool.map(copy, needed))
            shared = list(
                dict.fromkeys(path for name in needed if name.endswith(".zip") for path in _shared(place, name))
            )
            files += pool.map(copy, shared)
            faults.reach("savepoint.copied")
            # S5: nothing has gone back since the files were listed.
            ledger = _look(place, journal)
            held = ledger.checkpoints.get(chosen.id)
            if held is None or not held.settled or list(pool.map(place.files.mark, marks)) != [*marks.values()]:
                return CHANGED
            if None in pool.map(folder.files.mark, (file.path for file in files)):
                return CHANGED  # another process deletes the copy
    except FileNotFoundError:
        return CHANGED
    check_recorded(ledger, batch, source_lines(place, batch))
    query, partitions = place.query_id(), shuffle_partitions(place, batch)
    return write(folder, identifier, cut(ledger, chosen.id), chosen, query, partitions, files, clock) or TAKEN


def _is_kept(place: CheckpointLocation, journal: Journal, chosen: CheckpointRecord) -> bool:
    """Return False if Spark has purged what the checkpoint needs since it was chosen: the query has a newer one now."""
    try:
        check_can_go_back(place, max(chosen.batches))
    except RewindTooFarError:
        newest = _look(place, journal).completed
        if newest is None or newest.id == chosen.id:
            raise
        return False
    return True


def _shared(place: CheckpointLocation, name: str) -> list[str]:
    """Return the files that a RocksDB snapshot shares with others."""
    store = name.rpartition("/")[0]
    known = files_of_snapshot(read_file(place.files, name))
    return [f"{store}/{path}" for path in (known if known is not None else shared_files(place, store))]


def _logs(place: CheckpointLocation, batch: int) -> Iterator[str]:
    """List Spark's files beside the state. A source's own log is read from its start: later entries do no harm there."""
    yield "metadata"
    yield from (f"offsets/{number}" for number in (batch - 1, batch) if number >= 0)
    yield f"commits/{batch}"
    sources = sorted(place.files.tree("sources"))
    yield from (name for name in sources if all(part[:1] not in ("", ".") for part in name.split("/")))


def _wait(condition: Callable[[], bool], deadline: Deadline, clock: Clock) -> bool:
    while not condition():
        if deadline.passed():
            return False
        clock.sleep(min(LOOK_EVERY, max(deadline.left(), 0.01)))
    return True
