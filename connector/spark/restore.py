"""A new checkpoint location from a savepoint: whole or not at all.

N1 the place is free, and no mount point        N2 copy Spark's files next to it, under a temporary name
N3 Spark's repartition of the state, where it was asked for
N4 where a location is made anew: journal `rewind begun` in it, so that no query begins there any more;
   write the journal's snapshot, make all durable, rename

A location that was restored of the same savepoint, and on which no query has begun, is made anew: so a restore that was
killed, or refused at the query's start, is repeated by the same command. Its new journal begins at the number of that entry:
a query that had read the former journal loses at its next create, in whichever of the two folders.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import uuid

from connector.spark.alone import rewind_at_work
from connector.spark.draft import Draft
from connector.spark.location import CheckpointLocation
from connector.spark.manifest import CHECKPOINT, Savepoint, refuse_inside
from connector.spark.process import this_process
from connector.spark.saved_files import copy_file, sync_folders, write_file
from transactional import faults
from transactional.clock import Clock, SystemClock
from transactional.errors import JournalError, LocationError
from transactional.journal import snapshot_file, sync_folder
from transactional.ledger import MOVING, Ledger
from transactional.metadata import EntryKind
from transactional.restore import is_unused

__all__ = ["NewLocation", "refuse_unless_free"]

_SCHEMA_FILE = re.compile(rb'"(?:file:)?/(?:[^"\\]|\\.)*/state/(\d+)/_stateSchema/')


def refuse_unless_free(location: CheckpointLocation, savepoint: Savepoint, closed: bool = False) -> bool:
    """N1: the place is not there, empty, or was restored of this savepoint and never used; True for the last.

    Parameters
    ----------
    location : CheckpointLocation
    savepoint : Savepoint
    closed : bool
        The old place is closed, and names this one: no other will do.

    Raises
    ------
    LocationError
        ``LOCATION_NOT_EMPTY``, ``LOCATION_IS_MOUNTED``, ``INSIDE_A_SAVEPOINT``, ``INSIDE_THE_ORIGIN``
    """
    if os.path.ismount(location.path):
        raise _mounted(location)
    refuse_inside(location.path, "a checkpoint location")
    origin = CheckpointLocation(savepoint.location).path
    if location.path.startswith(origin + os.sep):
        raise LocationError(
            "INSIDE_THE_ORIGIN",
            f"{location.path} lies in {origin}, of which the savepoint was taken, and would be deleted with it. Name a folder "
            "beside it",
            path=location.path,
            origin=origin,
        )
    try:
        found = sorted(os.listdir(location.path))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        found = ["a file"]
    if not found:
        return False
    try:
        ledger = location.journal().load()
    except (JournalError, OSError):
        ledger = Ledger()
    if _can_be_made_anew(ledger, location, savepoint):
        return True
    way_out = (
        "The old place is closed and names this one: stop the query that was started here too early, move this folder away "
        "(what that query wrote stays written), and say the same command again"
        if closed
        else "Name one that is not there yet"
    )
    raise LocationError(
        "LOCATION_NOT_EMPTY",
        f"{location.path} holds {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}: a savepoint is restored into a "
        f"checkpoint location that is new. {way_out}",
        path=location.path,
    )


def _mounted(location: CheckpointLocation) -> LocationError:
    return LocationError(
        "LOCATION_IS_MOUNTED",
        f"{location.path} is a mount point: no folder can be renamed to its name, and the location has to appear whole or not "
        f"at all. Name a folder inside it ({os.path.join(location.path, 'checkpoint')})",
        path=location.path,
    )


def _can_be_made_anew(ledger: Ledger, location: CheckpointLocation, savepoint: Savepoint) -> bool:
    restored, begun = ledger.restored, ledger.rewinding
    if restored is None or restored.savepoint != savepoint.id or not is_unused(ledger):
        return False
    return begun is None or begun.request.get(MOVING) == _moving(location, savepoint)


def _moving(location: CheckpointLocation, savepoint: Savepoint) -> dict[str, str]:
    """In `rewind begun`: which restore has begun it."""
    return {"location": location.path, "savepoint": savepoint.id}


class NewLocation:
    """A location that is being made.

    Parameters
    ----------
    location : CheckpointLocation
        Where it will be.
    savepoint : Savepoint
        Verified.
    """

    def __init__(self, location: CheckpointLocation, savepoint: Savepoint) -> None:
        self._location = location
        self._savepoint = savepoint
        parent, name = os.path.split(location.path)
        self._parent, self._name = parent, name
        self._folder = Draft(location.path, "restoring")

    @property
    def draft(self) -> CheckpointLocation:
        """Where it is made, once its files are copied."""
        return CheckpointLocation(self._folder.path)

    def copy(self) -> None:
        """N2.

        Raises
        ------
        LocationError
            ``SAVEPOINT_DAMAGED``: a file changed since it was verified. ``LOCATION_IS_MOUNTED``
        """
        try:
            os.rmdir(
                self._location.path
            )  # an empty folder goes now: what can't be removed can't be replaced later, either
        except OSError as error:
            if error.errno == errno.EBUSY:  # also of a folder that holds something, and of one disk mounted twice
                raise _mounted(self._location) from error
        self._folder.begin()
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
        """N4.

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
            ``LOCATION_NOT_EMPTY``: somebody was here meanwhile.
        FencedError
            ``REWIND_RUNS``, ``REWIND_UNKNOWN``
        """
        assert ledger.restored is not None
        self._name_the_place(self._location.path)
        anew = refuse_unless_free(self._location, self._savepoint, closed)
        if anew:
            ledger.position = ledger.restored.position = max(ledger.position, self._fence(closed, stopped))
        name, data = snapshot_file(ledger, clock or SystemClock())
        write_file(os.path.join(self.draft.path, "barrier", "log", name), data)
        sync_folders(self.draft.path)
        faults.reach("restore.whole")
        if anew:
            former = os.path.join(self._parent, f".{self._name}.restoring-former")
            os.rename(self._location.path, former)  # a death here leaves no location: the same command makes it
            os.rename(self.draft.path, self._location.path)
            shutil.rmtree(former, ignore_errors=True)
        else:
            os.rename(self.draft.path, self._location.path)  # takes the place of an empty folder only
        sync_folder(self._parent)
        faults.reach("restore.named")

    def _fence(self, closed: bool, stopped: bool) -> int:
        """The number of an entry after which no query begins here, and none has."""
        journal = self._location.journal()
        journal.load()

        def judge(ledger: Ledger) -> None:
            if not _can_be_made_anew(ledger, self._location, self._savepoint):
                refuse_unless_free(self._location, self._savepoint, closed)
            other = rewind_at_work(ledger.rewinding, stopped) if ledger.rewinding is not None else None
            if other is not None:
                raise other

        moving = _moving(self._location, self._savepoint)
        body = {"checkpoint": None, MOVING: moving, "process": this_process()}
        return journal.append(EntryKind.REWIND_BEGUN, body, judge).number

    def drop(self) -> None:
        """Delete what is not finished."""
        self._folder.drop()

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
