"""A new checkpoint location from a savepoint: whole or not at all.

N1 the place is free, and no mount point        N2 copy Spark's files next to it, under a temporary name
N3 Spark's repartition of the state, where it was asked for
N4 where a location is made anew: journal `rewind begun` in it, so that no query begins there any more
N5 write the journal's snapshot, make all durable        N6 a claim: note at the old place that the new one comes
N7 where a location is made anew: rename it away, and see that N4 still holds        N8 rename

A location that was restored of the same savepoint in the same way, and on which no query has begun, is made anew: so a restore
that was killed, or refused at the query's start, is repeated by the same command. Its new journal begins at the number of that
entry: a query that had read the former journal loses at its next create, in whichever of the two folders.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence

from connector.spark.alone import alone, rewind_at_work
from connector.spark.arrival import Arrival
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

__all__ = ["NewLocation", "is_missing", "refuse_unless_free"]

DRAFT, FORMER = "restoring", "former"
"""In the names of the place that is being made, and of the one that it replaces."""

SPARKS = frozenset({"metadata", "offsets", "commits", "sources", "state", "barrier"})
"""What Spark and the journal have in a checkpoint location."""

_SCHEMA_FILE = re.compile(rb'"(?:file:)?/(?:[^"\\]|\\.)*/state/(\d+)/_stateSchema/')


def is_missing(location: CheckpointLocation) -> bool:
    """Whether the place is not there, or empty."""
    try:
        return not os.listdir(location.path)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def refuse_unless_free(location: CheckpointLocation, savepoint: Savepoint, claim: bool, closed: bool = False) -> bool:
    """N1: the place is not there, empty, or was restored of this savepoint and never used; True for the last.

    Parameters
    ----------
    location : CheckpointLocation
    savepoint : Savepoint
    claim : bool
        The query itself is to go on there.
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
    if is_missing(location):
        return False
    try:
        found = sorted(os.listdir(location.path))
    except NotADirectoryError:
        found = ["a file"]
    unreadable = ""
    try:
        ledger = location.journal().load()
    except (JournalError, OSError) as problem:
        ledger, unreadable = Ledger(), f"Its journal can't be read: {problem}"
    more = [name for name in found if name not in SPARKS and not (name[0] == "." and name.endswith(".crc"))]
    anew = _can_be_made_anew(ledger, location, savepoint, claim)
    if anew and not more:
        return True
    restored = ledger.restored
    if unreadable:
        way_out = unreadable
    elif anew:
        way_out = f"{_listed(more)} would be deleted with it: move that away, and say the same command again"
    elif claim and restored is not None and (restored.savepoint, restored.claim) == (savepoint.id, True):
        way_out = (
            "This savepoint was restored here, and the query has gone on here since: nothing is left to do. Where it does not "
            "run, start it here"
        )
    elif not claim and restored is not None and restored.claim:
        way_out = "It is where a query itself goes on: name another place for the copy"
    elif closed:
        way_out = (
            "The old place is closed and names this one: stop the query that was started here too early, move this folder "
            "away (what that query wrote stays written), and say the same command again"
        )
    else:
        way_out = "Name one that is not there yet"
    raise LocationError(
        "LOCATION_NOT_EMPTY",
        f"{location.path} holds {_listed(found)}: a savepoint is restored into a checkpoint location that is new. {way_out}",
        path=location.path,
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _mounted(location: CheckpointLocation) -> LocationError:
    return LocationError(
        "LOCATION_IS_MOUNTED",
        f"{location.path} is a mount point: no folder can be renamed to its name, and the location has to appear whole or not "
        f"at all. Name a folder inside it ({os.path.join(location.path, 'checkpoint')})",
        path=location.path,
    )


def _can_be_made_anew(ledger: Ledger, location: CheckpointLocation, savepoint: Savepoint, claim: bool) -> bool:
    restored, begun = ledger.restored, ledger.rewinding
    if restored is None or (restored.savepoint, restored.claim) != (savepoint.id, claim) or not is_unused(ledger):
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
    claim : bool
        The query itself is to go on there.
    """

    def __init__(self, location: CheckpointLocation, savepoint: Savepoint, claim: bool) -> None:
        self._location = location
        self._savepoint = savepoint
        self._claim = claim
        self._arrival: Arrival | None = None
        self._parent, self._name = os.path.split(location.path)
        self._folder = Draft(location.path, DRAFT)

    @property
    def draft(self) -> CheckpointLocation:
        """The place, under its temporary name."""
        return CheckpointLocation(self._folder.path)

    @property
    def _former(self) -> CheckpointLocation:
        """What is replaced, under a name by which a death tells whose place it was to give way to."""
        return CheckpointLocation(self._beside(FORMER, self._folder.path))

    def _beside(self, what: str, other: str) -> str:
        """The name, beside the place, with the same end as another such name."""
        return os.path.join(self._parent, f".{self._name}.{what}-{other.rsplit('-', 1)[1]}")

    def put_back(self) -> None:
        """A death between N7 and N8 has left the place under another name; one after N8, what it had been.

        Raises
        ------
        FencedError
            ``REWIND_RUNS``: the restore that has renamed it is at work.
        """
        for path in glob.glob(glob.escape(os.path.join(self._parent, f".{self._name}.{FORMER}-")) + "*"):
            former = CheckpointLocation(path)
            with alone(former):
                if os.path.isdir(self._beside(DRAFT, path)) and is_missing(self._location):  # N8 renames the draft
                    os.rename(path, self._location.path)
                elif is_unused(former.journal().load()):
                    self._delete(former)

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
                raise _mounted(self._location) from error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise LocationError(
                    "LOCATION_NOT_OURS",
                    f"{self._location.path} is there, and can't be replaced by another folder ({error.strerror}): name one "
                    "that is not there yet, or have this one removed by its owner",
                    path=self._location.path,
                ) from error
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

    def finish(
        self,
        ledger: Ledger,
        origin: CheckpointLocation | None = None,
        stopped: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """N4 to N8.

        Parameters
        ----------
        ledger : Ledger
            With which the journal begins.
        origin : CheckpointLocation, optional
            The old place, where it was closed for this one.
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
        self._name_the_place(self._location.path)
        if refuse_unless_free(self._location, self._savepoint, self._claim, origin is not None):
            with alone(self._location):
                fence = self._fence(origin is not None, stopped)
                self._write(ledger, max(ledger.position, fence), origin, clock)
                with self._away(fence):
                    self._appear(origin)
            self._delete(self._former)
        else:
            self._write(ledger, ledger.position, origin, clock)
            self._appear(origin)

    def _write(self, ledger: Ledger, position: int, origin: CheckpointLocation | None, clock: Clock | None) -> None:
        """N5, N6."""
        assert ledger.restored is not None
        ledger.position = ledger.restored.position = position
        name, data = snapshot_file(ledger, clock or SystemClock())
        write_file(os.path.join(self.draft.path, "barrier", "log", name), data)
        sync_folders(self.draft.path)
        if origin is not None:
            self._arrival = Arrival(origin)
            self._arrival.expect(self.draft.path)
        faults.reach("restore.whole")

    def _appear(self, origin: CheckpointLocation | None) -> None:
        """N8."""
        try:
            appeared = self._folder.publish()
        except FileExistsError as error:
            refuse_unless_free(self._location, self._savepoint, self._claim, origin is not None)
            raise LocationError(
                "LOCATION_NOT_EMPTY",
                f"{self._location.path} was made by another restore of this savepoint meanwhile: nothing is left to do",
                path=self._location.path,
            ) from error
        if not appeared:
            raise LocationError(
                "LOCATION_BUSY",
                f"{self.draft.path}, which was to become {self._location.path}, was deleted meanwhile: say the same again",
                path=self._location.path,
            )
        sync_folder(self._parent)
        faults.reach("restore.named")

    @contextlib.contextmanager
    def _away(self, fence: int) -> Iterator[None]:
        """N7: the place has another name; its own again where N8 is not done."""
        os.rename(self._location.path, self._former.path)
        try:
            rewinding = self._former.journal().load().rewinding
            if rewinding is None or rewinding.token != fence:
                raise LocationError(
                    "LOCATION_NOT_EMPTY",
                    f"what keeps queries away from {self._location.path} while it is made anew was ended by somebody, and a "
                    "query may have begun there: it is left as it is",
                    path=self._location.path,
                )
            yield
        except BaseException:
            if is_missing(self._location):
                os.rename(self._former.path, self._location.path)
            raise

    def _delete(self, former: CheckpointLocation) -> None:
        """What was replaced, or what a death has left of it: under a name that tells that it is nothing but a leftover."""
        gone = self._beside(DRAFT, former.path)
        os.rename(former.path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _fence(self, closed: bool, stopped: bool) -> int:
        """The number of an entry after which no query begins here, and none has."""
        journal = self._location.journal()
        journal.load()

        def judge(ledger: Ledger) -> None:
            if not _can_be_made_anew(ledger, self._location, self._savepoint, self._claim):
                refuse_unless_free(self._location, self._savepoint, self._claim, closed)
            other = rewind_at_work(ledger.rewinding, stopped) if ledger.rewinding is not None else None
            if other is not None:
                raise other

        moving = _moving(self._location, self._savepoint)
        body = {"checkpoint": None, MOVING: moving, "process": this_process()}
        return journal.append(EntryKind.REWIND_BEGUN, body, judge).number

    def drop(self) -> None:
        """Delete what is not finished."""
        if self._arrival is not None and os.path.isdir(self.draft.path):
            self._arrival.withdraw()
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
