"""Create a new checkpoint location from a savepoint, on any store. The location is closed until the restore is finished.

N1 read both journals; reject requests that are impossible
N2 write `restoring`, the first entry of the new journal: from here on the location is closed
N3 copy Spark's files (if a repartition of the state is requested, Spark does it in a scratch folder first)
N4 for a claim: write `moved` into the origin's journal; this step moves the query to the new location
N5 write `opened` into the new journal

If a restore was killed at any point, run the same command again to finish it: it reads both journals, and every step
can be repeated. If the same command runs twice at the same time, both do the same steps. A query that starts at the new
location before N5 is rejected. After N4, the savepoint is no longer needed: the new journal's first entry contains the
saved ledger.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from connector.location.files import read_file
from connector.location.location import CheckpointLocation
from connector.savepoints.manifest import AT_ONCE, SavedFile, Savepoint, read
from connector.savepoints.repartition import refused, repartition
from transactional import entries, faults
from transactional.clock import SystemClock
from transactional.entry import canonical
from transactional.errors import FencedError, JournalError, LocationError, ProtocolError
from transactional.ledger import Ledger
from transactional.ownership import moved_on
from transactional.restore import begins_at, begins_far_above, may_move

OURS: Final = "barrier"
"""The journal's folder. It may exist without a journal, because a killed create may have left temporary files in it."""

LOGS: Final = ("commits", "offsets")

_SCHEMA_FILE = re.compile(rb'"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/(?:[^"\\]|\\.)*/state/(\d+)/_stateSchema/')


class Restore:
    """The restore of one savepoint at a new location. The constructor checks the request (N1); `run` does N2 to N5.

    Parameters
    ----------
    saved : str
        The savepoint's folder.
    location : CheckpointLocation
        The new location. It must be empty, or contain an interrupted attempt at the same restore.
    claim : bool
        True if the query itself continues at the new location. False if the new location is a copy with its own identity.
    force : bool
        True to claim even if it is unknown which rows were committed after the savepoint.
    partitions : int or None
        The new number of shuffle partitions for the state; None to keep the present number.

    Attributes
    ----------
    savepoint : Savepoint or None
        The savepoint; None if it can't be read and is no longer needed.
    is_open : bool
        True if this restore is already finished, so that nothing is left to do.
    lost : LocationError or None
        The reason why it is unknown which rows were committed after the savepoint; None if this is known. With `force`, the
        restore continues anyway.
    repartitioned : int or None
        The micro-batch that Spark's repartition has added; None if there was no repartition.
    is_begun : bool
        True if the location is closed because a restore was started there and is not finished.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_FOUND``, ``SAVEPOINT_DAMAGED``, ``LOCATION_NOT_EMPTY``, ``REPARTITION_REFUSED``. For a claim, also
        ``ORIGIN_UNREACHABLE``, ``ORIGIN_NOT_AT_SAVEPOINT``.
    FencedError
        ``LOCATION_MOVED_ON``: the query at the origin, or at the new location, was moved to a different location.
    """

    def __init__(
        self, saved: str, location: CheckpointLocation, claim: bool, force: bool = False, partitions: int | None = None
    ) -> None:
        self._location = location
        self._claim, self._force, self._partitions = claim, force, partitions
        self._journal = location.journal()
        self.lost: LocationError | None = None
        self.repartitioned: int | None = None
        self._look(saved)

    @property
    def is_begun(self) -> bool:
        """Return whether a restore was started at the location and is not finished."""
        return self._journal.ledger.restoring is not None

    # -- N1 -----------------------------------------------------------------------------------------------------------

    def _look(self, saved: str) -> None:
        names = self._names()
        ledger = self._journal.load() if OURS in names else Ledger()
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        found = ledger.restoring
        self._origin = CheckpointLocation(found.origin) if found is not None else None
        self._moved = self._is_moved()
        self.savepoint = self._read(saved)
        self.is_open = ledger.restored is not None
        self._refuse_unless_free(ledger, names)
        if self.savepoint is None or self.is_open:
            return
        self._saved = self.savepoint.ledger()
        self._origin = CheckpointLocation(self.savepoint.location)
        if self._location.path.startswith(f"{self._origin.path}/"):
            raise LocationError(
                "LOCATION_NOT_EMPTY",
                path=self._location.path,
                reason=f"it is inside {self._origin.path}, where the savepoint was taken, and would be deleted together "
                "with that location",
                origin=self._origin.path,
            )
        self._check_partitions(self.savepoint)
        if self._claim:
            self._judge_origin(self.savepoint, self._origin)
        if not self._moved:
            self.savepoint.verify()

    def _names(self) -> list[str]:
        try:
            return self._location.files.names("")
        except NotADirectoryError:
            raise self._not_empty("it is a file") from None

    def _read(self, saved: str) -> Savepoint | None:
        """Return the savepoint; None if it can't be read, but this claim no longer needs it (N4 is already done)."""
        try:
            return read(saved)
        except LocationError:
            if self._claim and self._moved:
                return None
            raise

    def _is_moved(self) -> bool:
        """Return whether this restore has already moved the query (N4), so that only N5 remains."""
        begun = self._journal.ledger.restoring
        if begun is None or begun.forced or not begun.claim or self._origin is None:
            return False
        try:
            moved = self._origin.journal().load().moved
        except (LocationError, JournalError, OSError):
            return False
        return moved is not None and (moved.location, moved.savepoint) == (self._location.path, begun.savepoint)

    def _refuse_unless_free(self, ledger: Ledger, names: list[str]) -> None:
        begun, done = ledger.restoring, ledger.restored
        if begun is not None:
            if self.savepoint is None or (begun.savepoint, begun.claim, begun.partitions) == (
                self.savepoint.id,
                self._claim,
                self._partitions,
            ):
                return
            raise self._not_empty(
                "it contains an unfinished restore of the savepoint "
                f"{begun.savepoint}{' --claim' if begun.claim else ' --no-claim'}"
                f"{f' --shuffle-partitions {begun.partitions}' if begun.partitions is not None else ''}: run that command "
                "again, or delete the location"
            )
        if done is not None:
            if self.savepoint is not None and (done.savepoint, done.claim) == (self.savepoint.id, self._claim):
                return
            raise self._not_empty("it contains a restored query")
        if ledger.position or set(names) - {OURS}:
            raise self._not_empty(f"it contains {', '.join(sorted(names)[:5])}")

    def _not_empty(self, reason: str) -> LocationError:
        return LocationError("LOCATION_NOT_EMPTY", path=self._location.path, reason=reason)

    def _check_partitions(self, savepoint: Savepoint) -> None:
        if self._partitions is not None and not savepoint.stateful:
            raise refused(self._partitions, f"the query of the savepoint {savepoint.path} has no state")

    def _judge_origin(self, savepoint: Savepoint, origin: CheckpointLocation) -> None:
        why = ""
        ledger = Ledger()
        try:
            query, ledger = origin.query_id(), origin.journal().load()
            if origin.path == self._location.path:
                why = "is also the new location of this restore"
            elif not ledger.position:
                why = "has no journal"
            elif query != savepoint.query:
                why = f"belongs to another query ({query})"
            elif ledger.identity_suffix != self._saved.identity_suffix:
                why = "is now a copy with its own identity (`barrier restore --as-is --no-claim`)"
            elif ledger.location not in (savepoint.location, origin.path):
                why = f"has the journal of {ledger.location}: one of the two is a copy of the other, or was moved"
        except (LocationError, JournalError, OSError) as problem:
            why = f"can't be read ({problem})"
        moved = ledger.moved
        if why:
            self.lost = LocationError("ORIGIN_UNREACHABLE", origin=origin.path, reason=why)
        elif moved is None:
            self._may_move(savepoint)(ledger)
        elif (moved.location, moved.savepoint) != (self._location.path, savepoint.id):
            raise moved_on(moved)
        elif not self._is_claimed():
            self.lost = LocationError(
                "ORIGIN_UNREACHABLE",
                origin=origin.path,
                reason=f"was moved to {self._location.path}, which no longer exists",
                path=self._location.path,
            )
        if self.lost is not None and not self._force:
            raise self.lost

    def _is_claimed(self) -> bool:
        """Return whether this claim, perhaps in another process, wrote `moved` into the origin's journal."""
        ledger = self._journal.load()
        begun = ledger.restoring
        return ledger.restored is not None or (begun is not None and not begun.forced)

    def _may_move(self, savepoint: Savepoint) -> Callable[[Ledger], None]:
        return may_move(self._saved, savepoint.id, savepoint.checkpoint, self._location.path)

    # -- N2 to N5 -----------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Do the remaining steps, and return Spark's id of the query at the new location."""
        savepoint = self.savepoint
        if savepoint is not None and not self._moved:
            # N2: write "restoring", the first entry of the new journal. No query may start there.
            self._begin(savepoint)
        begun = self._journal.ledger.restoring
        if begun is not None and savepoint is not None and not self._moved:
            # N3: copy Spark's files.
            self._copy(savepoint, begun.query)
            faults.reach("restore.copied")
            if self._claim and self.lost is None and self._is_still(begun):
                # N4: write "moved" into the origin. From here its query never starts again.
                self._move(savepoint)
                faults.reach("restore.moved")
        if begun is not None and self._is_still(begun):
            # N5: write "opened". From here the query may start.
            self._open(begun)
        return self._location.query_id()

    def _is_still(self, begun: entries.RestoreBegun) -> bool:
        """Return whether this restore is still unfinished; False if another process has finished it.

        Raises LocationError (``LOCATION_BUSY``) if another program has deleted the location.
        """
        ledger = self._journal.load()
        if ledger.restoring == begun or ledger.restored is not None:
            return ledger.restored is None
        raise LocationError(
            "LOCATION_BUSY",
            reason=f"another program deleted {self._location.path} while a savepoint was being restored there",
            path=self._location.path,
        )

    def _begin(self, savepoint: Savepoint) -> None:
        query = savepoint.query if self._claim else str(uuid.uuid4())
        fact = entries.RestoreBegun(
            savepoint=savepoint.id,
            origin=savepoint.location,
            checkpoint=savepoint.checkpoint,
            claim=self._claim,
            location=self._location.path,
            query=query,
            partitions=self._partitions,
            forced=self.lost is not None,
            ledger=json.loads(canonical(self._saved.to_json())),
        )

        def judge(ledger: Ledger) -> None:
            if ledger.position:
                raise self._not_empty("a query was started there in the meantime")

        try:
            self._journal.append(fact, judge)
        except LocationError:
            ledger = self._journal.load()
            if ledger.restoring is None and ledger.restored is None:
                raise
            self._refuse_unless_free(ledger, [OURS])
        faults.reach("restore.begun")

    def _copy(self, savepoint: Savepoint, query: str) -> None:
        files = self._location.files
        with self._source(savepoint, query) as (names, put):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(put, [name for name in names if name.startswith("state/")]))
            for name in sorted((name for name in names if not name.startswith("state/")), reverse=True):
                put(name)
        # Delete the logs of a query that was started here before the first file was copied, and was refused.
        lowest = min(_number(name) for name in names if _number(name) >= 0)
        strays = (f"{log}/{name}" for log in LOGS for name in files.names(log))
        files.delete([name for name in strays if -1 < _number(name) < lowest])

    @contextmanager
    def _source(self, savepoint: Savepoint, query: str) -> Iterator[tuple[list[str], Callable[[str], None]]]:
        """Yield the names of the files to copy, and a function that copies one file to the new location.

        The function copies from the savepoint or, if the state is repartitioned, from a scratch folder.
        """
        saved = savepoint.checkpoint_files()
        if self._partitions is None:
            yield [*saved], lambda name: self._put(savepoint, saved[name], name, query, self._location)
            return
        with tempfile.TemporaryDirectory(prefix="barrier-restore-") as folder:
            scratch = CheckpointLocation(os.path.realpath(folder))
            for name, file in saved.items():
                self._put(savepoint, file, name, query, scratch)
            self.repartitioned = repartition(scratch, self._partitions)
            names = [name for name in scratch.files.tree("") if name.rpartition("/")[2][0] != "."]
            yield names, lambda name: self._put_named(read_file(scratch.files, name), name, self._location)

    def _put(self, savepoint: Savepoint, file: SavedFile, name: str, query: str, target: CheckpointLocation) -> None:
        if name == "metadata":
            target.files.put(name, json.dumps({"id": query}).encode())
        elif "_metadata" in name.split("/"):
            self._put_named(read_file(savepoint.folder.files, file.path), name, target)
        else:
            savepoint.copy(file, target.files, name)

    @staticmethod
    def _put_named(data: bytes, name: str, target: CheckpointLocation) -> None:
        """Write a file. In operators' metadata, replace the old location by the new one.

        The metadata of ``transformWithState`` contains the full paths of schema files.
        """
        if "_metadata" in name.split("/"):
            named = b'"' + json.dumps(target.as_hadoop(), ensure_ascii=False)[1:-1].encode()
            data = _SCHEMA_FILE.sub(lambda found: named + b"/state/" + found[1] + b"/_stateSchema/", data)
        target.files.put(name, data)

    def _move(self, savepoint: Savepoint) -> None:
        journal = CheckpointLocation(savepoint.location).journal()
        journal.load()
        fact = entries.Moved(location=self._location.path, savepoint=savepoint.id, checkpoint=savepoint.checkpoint)
        try:
            journal.append(fact, self._may_move(savepoint))
        except FencedError:
            if not self._is_moved():  # otherwise, the same command in another process has done this step
                raise

    def _open(self, begun: entries.RestoreBegun) -> None:
        def judge(ledger: Ledger) -> None:
            if ledger.restoring is None:
                raise self._not_empty("it contains the restored query, and nothing is left to do")

        try:
            self._journal.append(self._opening(begun), judge)
        except LocationError:
            if self._journal.load().restored is None:
                raise
        faults.reach("restore.opened")

    def _opening(self, begun: entries.RestoreBegun) -> entries.Opened:
        """Return the entry `opened`: the number at which the journal continues and, for a claim, the origin's runs."""
        saved = Ledger.from_json(begun.ledger)
        if not begun.claim:
            return entries.Opened(position=saved.position)
        if self.lost is not None:
            return entries.Opened(position=begins_far_above(saved.position, int(SystemClock().now() * 1000)))
        origin = CheckpointLocation(begun.origin).journal().load()
        if origin.moved is None:
            raise ProtocolError(
                "PROTOCOL_VIOLATED", reason=f"{begun.origin} was opened again after this restore had closed it"
            )
        return entries.Opened(position=begins_at(origin.moved.entry, saved), origin=origin.store_record())


def _number(name: str) -> int:
    """Return the micro-batch of a file in Spark's logs; -1 for any other file."""
    log, _, number = name.partition("/")
    return int(number) if log in LOGS and number.isdigit() else -1
