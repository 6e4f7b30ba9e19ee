"""A new checkpoint location from a savepoint: whole or not at all.

N1 the place is free, and no mount point        N2 copy Spark's files next to it, under a temporary name
N3 Spark's repartition of the state, where it was asked for
N4 where a location is made anew: journal `rewind begun` in it, so that no query begins there any more
N5 write the journal's snapshot, make all durable        N6 a claim: note at the old place that the new one comes
N7 rename; where a location is made anew: exchange the two, and see that N4 has held

A location that was restored of the same savepoint in the same way, and on which no query has begun, is made anew: so a restore
that was killed, or refused at the query's start, is repeated by the same command. Its new journal begins at the number of that
entry: a query that had read the former journal loses at its next create, in whichever of the two folders.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import uuid

from connector.spark.alone import alone, rewind_at_work
from connector.spark.arrival import Arrival
from connector.spark.draft import Draft, delete_folder, leftovers, locked_folder, temporary
from connector.spark.exchange import exchange
from connector.spark.free_place import can_be_made_anew, is_missing, mounted, moving, refuse_unless_free
from connector.spark.location import CheckpointLocation
from connector.spark.manifest import CHECKPOINT, Savepoint
from connector.spark.process import this_process
from connector.spark.saved_files import copy_file, sync_folders, write_file
from transactional import faults
from transactional.clock import Clock, SystemClock
from transactional.entry import EntryKind
from transactional.errors import FencedError, JournalError, LocationError
from transactional.journal import Journal, snapshot_file
from transactional.journal.folders import sync_folder
from transactional.ledger import MOVING, Ledger
from transactional.ownership import must_own

__all__ = ["NewLocation", "open_again"]

log = logging.getLogger(__name__)

FORMER = "former"
"""In the name of a place that has given way, where the disk can't exchange two folders."""

_SCHEMA_FILE = re.compile(rb'"(?:file:)?/(?:[^"\\]|\\.)*/state/(\d+)/_stateSchema/')


def open_again(location: CheckpointLocation, journal: Journal) -> int:
    """Give up a restore that was to make the place anew, and ended before its end: it is as it was restored.

    Parameters
    ----------
    location : CheckpointLocation
    journal : Journal
        Loaded, of that place, where `is_made_anew`; that restore is not at work.

    Returns
    -------
    int
        The micro-batch after which a query goes on there.

    Raises
    ------
    FencedError
        ``REWIND_RUNS``
    """
    begun, restored = journal.ledger.rewinding, journal.ledger.restored
    assert begun is not None, "is_made_anew"
    assert restored is not None, "is_made_anew"
    with alone(location):
        body = {**begun.request, "checkpoint": None, "process": this_process()}
        token = journal.append(EntryKind.REWIND_BEGUN, body, must_own(begun.token)).number
        done = {"begun": token, "batch": restored.batch, "keep": None}
        journal.append(EntryKind.REWIND_DONE, done, must_own(token))
    return restored.batch


class NewLocation:
    """A location that is being made.

    Parameters
    ----------
    location : CheckpointLocation
        Where it will be.
    savepoint : Savepoint
        Verified.
    claim : bool
        The query itself is to go on there.
    """

    def __init__(self, location: CheckpointLocation, savepoint: Savepoint, claim: bool) -> None:
        self._location = location
        self._savepoint = savepoint
        self._claim = claim
        self._arrival = Arrival(CheckpointLocation(savepoint.location), location)
        self._parent = os.path.dirname(location.path)
        self._folder = Draft(location.path, "restoring")

    @property
    def draft(self) -> CheckpointLocation:
        """The place, under its temporary name."""
        return CheckpointLocation(self._folder.path)

    def copy(self) -> None:
        """N2.

        Raises
        ------
        LocationError
            ``SAVEPOINT_DAMAGED``: a file changed since it was verified. ``LOCATION_IS_MOUNTED``, ``LOCATION_NOT_OURS``
        """
        try:
            os.rmdir(self._location.path)  # an empty folder: what can't be removed can't be replaced later, either
        except OSError as error:
            if error.errno == errno.EBUSY:  # also of a folder that holds something, and of one disk mounted twice
                raise mounted(self._location) from error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise LocationError(
                    "LOCATION_NOT_OURS",
                    f"{self._location.path} is there, and can't be replaced by another folder ({error.strerror}): name one "
                    "that is not there yet, or have this one removed by its owner",
                    path=self._location.path,
                ) from error
        self._folder.begin(self._arrival.forget)
        self._delete_former()
        recorded = {file.path: file for file in self._savepoint.files}
        for path in self._savepoint.checkpoint_files():
            name = f"{CHECKPOINT}/{path}"
            source = os.path.join(self._savepoint.path, *name.split("/"))
            if copy_file(source, os.path.join(self.draft.path, *path.split("/")), name) != recorded[name]:
                raise LocationError(
                    "SAVEPOINT_DAMAGED",
                    f"{name} of the savepoint {self._savepoint.path} changed while it was read: restore another savepoint",
                    path=name,
                    savepoint=self._savepoint.path,
                )
        self._name_the_place(self.draft.path)  # Spark's repartition reads them
        faults.reach("restore.copied")

    def give_new_identity(self) -> str:
        """Another id of the query in Spark's ``metadata``; returns it."""
        query = str(uuid.uuid4())
        write_file(os.path.join(self.draft.path, "metadata"), json.dumps({"id": query}).encode())
        return query

    def finish(self, ledger: Ledger, closed: bool = False, stopped: bool = False, clock: Clock | None = None) -> None:
        """N4 to N7.

        Parameters
        ----------
        ledger : Ledger
            With which the journal begins.
        closed : bool
            See `refuse_unless_free`.
        stopped : bool
            No other restore is at work on this place, though that can't be seen.
        clock : Clock, optional

        Raises
        ------
        LocationError
            ``LOCATION_NOT_EMPTY``: somebody was here meanwhile. ``LOCATION_BUSY``: say it again.
        FencedError
            ``REWIND_RUNS``, ``REWIND_UNKNOWN``
        """
        self._name_the_place(self._location.path)
        anew = refuse_unless_free(self._location, self._savepoint, self._claim, closed)
        with alone(self._location) if anew else contextlib.nullcontext():
            fence = self._fence(closed, stopped) if anew else 0
            self._write(ledger, max(ledger.position, fence), clock)
            if closed:
                self._arrival.expect(self.draft.path, there=anew)  # N6
            faults.reach("restore.whole")
            if anew:
                self._replace(fence, closed)
            else:
                self._appear(closed)
        sync_folder(self._parent)
        faults.reach("restore.named")
        self._delete_former()

    def _write(self, ledger: Ledger, position: int, clock: Clock | None) -> None:
        """N5."""
        assert ledger.restored is not None
        ledger.position = ledger.restored.position = position
        name, data = snapshot_file(ledger, clock or SystemClock())
        write_file(os.path.join(self.draft.path, "barrier", "log", name), data, private=True)
        sync_folders(self.draft.path)

    def _appear(self, closed: bool) -> None:
        """N7."""
        try:
            appeared = self._folder.publish()
        except FileExistsError as error:
            refuse_unless_free(self._location, self._savepoint, self._claim, closed)
            raise LocationError(
                "LOCATION_NOT_EMPTY",
                f"{self._location.path} was made by another restore of this savepoint meanwhile: nothing is left to do",
                path=self._location.path,
            ) from error
        if not appeared:
            raise self._vanished()

    def _vanished(self) -> LocationError:
        return LocationError(
            "LOCATION_BUSY",
            f"{self.draft.path}, which was to become {self._location.path}, was deleted meanwhile: say the same again",
            path=self._location.path,
        )

    def _replace(self, fence: int, closed: bool) -> None:
        """N7 where the place is made anew: it is there at every moment, as it was or as it will be.

        But for disks that can't exchange two folders: there it is away between two renames.
        """
        if self._exchange(fence):
            return  # what has the temporary name now is deleted by `drop`
        log.warning("the disk of %s can't exchange two folders: the place is away for a moment", self._location.path)
        former = CheckpointLocation(temporary(self._location.path, FORMER))
        os.rename(self._location.path, former.path)
        try:
            self._must_be_fenced(former, fence)
        except BaseException:
            self._put_back(former)
            raise
        if closed:
            self._arrival.start_over(self.draft.path)
        self._appear(closed)

    def _exchange(self, fence: int) -> bool:
        """False where the disk can't."""
        with locked_folder(self._location.path):  # under its next name it is nobody's leftover before it was looked at
            self._must_be_fenced(self._location, fence)
            try:
                exchanged = exchange(self.draft.path, self._location.path)
            except FileNotFoundError as error:
                raise self._vanished() from error
            if exchanged:
                try:
                    self._must_be_fenced(self.draft, fence)
                except BaseException:
                    exchange(self.draft.path, self._location.path)
                    raise
        return exchanged

    def _put_back(self, former: CheckpointLocation) -> None:
        if not is_missing(self._location):
            raise LocationError(
                "LOCATION_NOT_EMPTY",
                f"a query began at {self._location.path} while that was made anew, and its place is at {former.path} now: "
                f"stop the query, move what is at {self._location.path} away, and rename that folder back",
                path=self._location.path,
                former=former.path,
            )
        os.rename(former.path, self._location.path)

    def _delete_former(self) -> None:
        """What N7 has replaced on a disk that can't exchange: where no query has begun in it."""
        for path in leftovers(self._location.path, FORMER):
            former = CheckpointLocation(path)
            with contextlib.suppress(FencedError, JournalError, OSError):  # at work, or none of ours
                with alone(former):
                    ledger = former.journal().load()
                if ledger.rewinding and can_be_made_anew(ledger, self._location, self._savepoint, self._claim):
                    delete_folder(path, self._location.path)

    def _must_be_fenced(self, former: CheckpointLocation, fence: int) -> None:
        """What N4 has journalled still keeps queries away."""
        rewinding = former.journal().load().rewinding
        if rewinding is None or rewinding.token != fence:
            raise LocationError(
                "LOCATION_NOT_EMPTY",
                f"what keeps queries away from {self._location.path} while it is made anew was ended by somebody, and a "
                "query may have begun there: it is left as it is",
                path=self._location.path,
            )

    def _fence(self, closed: bool, stopped: bool) -> int:
        """The number of an entry after which no query begins here, and none has."""
        journal = self._location.journal()
        journal.load()

        def judge(ledger: Ledger) -> None:
            if not can_be_made_anew(ledger, self._location, self._savepoint, self._claim):
                refuse_unless_free(self._location, self._savepoint, self._claim, closed)
            other = rewind_at_work(ledger.rewinding, stopped) if ledger.rewinding is not None else None
            if other is not None:
                raise other

        body = {"checkpoint": None, MOVING: moving(self._location, self._savepoint), "process": this_process()}
        return journal.append(EntryKind.REWIND_BEGUN, body, judge).number

    def drop(self) -> None:
        """Delete what is not finished."""
        try:
            if not self._folder.is_published():
                self._arrival.forget(self.draft.path)
            self._folder.drop()
        except OSError as problem:  # it stays, with its note, and is deleted by the next restore to this place
            log.warning("%s is not deleted: %s", self.draft.path, problem)
            self._folder.release()

    def _name_the_place(self, path: str) -> None:
        """Operators' metadata of ``transformWithState`` names its schema files by their whole path, wherever they were."""
        named = b'"file:' + json.dumps(path, ensure_ascii=False)[1:-1].encode()
        for folder, _, names in os.walk(os.path.join(self.draft.path, "state")):
            if "_metadata" not in folder.split(os.sep):
                continue
            for name in (name for name in names if name[0] != "."):
                file = os.path.join(folder, name)
                with open(file, "rb") as reading:
                    before = reading.read()
                after = _SCHEMA_FILE.sub(lambda found: named + b"/state/" + found[1] + b"/_stateSchema/", before)
                if after != before:
                    write_file(file, after)
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, f".{name}.crc"))
