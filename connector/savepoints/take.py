"""Take a savepoint: copy the newest completed checkpoint of a query, which may be running, from outside Spark.

S1 load the journal; it must belong to a streaming query at this location, and have a completed checkpoint
S2 if a micro-batch is prepared and the query may be running: journal `request`, and wait for the checkpoint that it closes
S3 choose the newest completed checkpoint, and wait until Spark has written the commit of its last micro-batch, N
S4 copy the files of N
S5 check that no copied file has changed and the journal still has the checkpoint; otherwise go back to S3
S6 write ``journal.json``, then create ``savepoint.json`` exclusively: from then on the folder is a savepoint

S4 copies Spark's metadata, offsets/N, offsets/N-1, commits/N, sources/, and the files in state/ that version N+1 needs. The
location and the savepoint can be on any store.

S4 is safe while the query runs, as measured (integration/test_savepoint_files.py, every state store). When ``commits/N``
exists, Spark does not write the files of version N+1 again, with one exception. If a version was made twice (its commit was
lost, so the micro-batch ran again), maintenance may later replace the snapshot with one of the second run. Also, Spark deletes
old files. S5 detects both, and S3 begins again. If a version gets a snapshot only after S4 has listed the files, nothing
changes, because this snapshot is not copied.
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

TIMEOUT: Final = 60.0
"""Seconds to wait for a checkpoint: longer than most micro-batches. A query that gets no rows closes no checkpoint."""

ATTEMPTS: Final = 5
"""The maximum number of attempts to copy the files. Another attempt is needed only if a file was replaced or deleted
during the copy."""

CHANGED: Final = "changed"
"""The result of `_copy` if there is no savepoint because a file was replaced or deleted during the copy."""

TAKEN: Final = "taken"
"""The result of `_copy` if there is no savepoint because another process has created one in the folder."""

LOOK_EVERY: Final = 0.2
"""Seconds between two reads of the journal. Each read lists the journal's folder."""


def take(
    location: str, target: str, *, timeout: float = TIMEOUT, newest: bool = False, clock: Clock | None = None
) -> Savepoint:
    """Take a savepoint of a query's newest completed checkpoint. The query may be running. No JVM is needed.

    Parameters
    ----------
    location : str
        The query's checkpoint location.
    target : str
        The folder of the new savepoint.
    timeout : float
        Seconds to wait for the checkpoint.
    newest : bool
        True to save the newest completed checkpoint as it is. By default, the query is asked to close another checkpoint
        first if rows are prepared.
    clock : Clock, optional

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_READY``, ``SAVEPOINT_UNSTABLE``, ``LOCATION_NOT_EMPTY``, ``REWIND_NOT_DONE``, ...
    """
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
    """Return the folder `target`, if it can become a savepoint of `place`. Raises LocationError (``LOCATION_NOT_EMPTY``)."""
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
    """Load the journal, and check that a savepoint can be taken (S1). Later steps repeat this check."""
    refuse_batch_writes(place, "df.write needs no savepoint, because each version is written only once")
    ledger = journal.load()
    if ledger.position:
        refuse_elsewhere(place, ledger)
    if ledger.rewinding is not None:
        raise LocationError("REWIND_NOT_DONE", rewind=ledger.rewinding.token)
    if ledger.completed is None:
        raise LocationError("SAVEPOINT_NOT_READY", path=place.path, reason="no checkpoint is settled yet", batches=[])
    return ledger


def _close(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> None:
    """Ask a running query to close a checkpoint, and wait until a completed checkpoint contains all prepared rows (S2).

    If the query has stopped, do not wait. Raises LocationError (``SAVEPOINT_NOT_READY``) if the checkpoint is not
    settled in time, or if a stopped query left a checkpoint that is decided but not settled.
    """
    ledger = journal.ledger
    prepared = [record.batch for record in ledger.undecided() if record.parts]
    decided = [batch for checkpoint in ledger.unsettled() for batch in checkpoint.batches]
    waiting = [*decided, *prepared]
    run = ledger.newest_run
    stopped = run is None or run.ended is not None or is_alive(run.process) is False
    if not waiting or (stopped and not decided):
        return  # if no query can close a checkpoint, save the newest one; prepared rows are read again
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
            f"checkpoint that contains them was settled {'before the query ended' if stopped else 'in time'}",
            batches=waiting,
        )


def _choose(place: CheckpointLocation, journal: Journal, deadline: Deadline, clock: Clock) -> CheckpointRecord:
    """Return the newest completed checkpoint, after waiting until Spark has committed its last micro-batch (S3)."""

    def committed() -> bool:
        chosen = _look(place, journal).completed
        return chosen is not None and place.files.exists(f"commits/{max(chosen.batches)}")

    run = _look(place, journal).newest_run
    stopped = run is None or run.ended is not None or is_alive(run.process) is False
    is_committed = committed() if stopped else _wait(committed, deadline, clock)  # a stopped query writes no commit
    chosen = journal.ledger.completed
    if chosen is None or not is_committed:
        batch = max(chosen.batches) if chosen is not None else -1
        raise LocationError(
            "SAVEPOINT_NOT_READY",
            path=place.path,
            reason=f"checkpoint {chosen.id if chosen else 0} is settled, but Spark has no commits/{batch}, because the "
            "query died before Spark wrote that file",
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
    """Copy the files and write the savepoint (S4 to S6). If that fails, return the reason: `CHANGED` or `TAKEN`."""
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
            lines, partitions = source_lines(place, batch), shuffle_partitions(place, batch)
            faults.reach("savepoint.copied")
            # S5: check that nothing was replaced or deleted since the files were listed.
            ledger = _look(place, journal)
            held = ledger.checkpoints.get(chosen.id)
            if held is None or not held.settled or list(pool.map(place.files.mark, marks)) != [*marks.values()]:
                return CHANGED
            if None in pool.map(folder.files.mark, (file.path for file in files)):
                return CHANGED  # another process deletes the copy
    except FileNotFoundError:
        return CHANGED
    except LocationError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return CHANGED
        raise
    check_recorded(ledger, batch, lines)
    query = place.query_id()
    return write(folder, identifier, cut(ledger, chosen.id), chosen, query, partitions, files, clock) or TAKEN


def _is_kept(place: CheckpointLocation, journal: Journal, chosen: CheckpointRecord) -> bool:
    """Return whether Spark still has all files of the chosen checkpoint.

    Raises RewindTooFarError if files are missing although the query has not completed a newer checkpoint.
    """
    try:
        check_can_go_back(place, max(chosen.batches))
    except RewindTooFarError:
        newest = _look(place, journal).completed
        if newest is None or newest.id == chosen.id:
            raise
        return False
    return True


def _shared(place: CheckpointLocation, name: str) -> list[str]:
    """Return the files that a RocksDB snapshot needs and may share with other snapshots."""
    store = name.rpartition("/")[0]
    known = files_of_snapshot(read_file(place.files, name))
    return [f"{store}/{path}" for path in (known if known is not None else shared_files(place, store))]


def _logs(place: CheckpointLocation, batch: int) -> Iterator[str]:
    """Yield the files to copy outside ``state/``. A source's own log is copied whole: later entries do no harm."""
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
