"""The place that a savepoint was taken of, as a restore finds it."""

from __future__ import annotations

from contextlib import suppress

from connector.cli.place import load_journal
from connector.spark.arrival import Arrival
from connector.spark.free_place import is_missing
from connector.spark.location import CheckpointLocation
from connector.spark.savepoint import Savepoint
from transactional.errors import JournalError, LocationError
from transactional.ledger import Moved

__all__ = ["OldPlace"]


class OldPlace:
    """What it says of the query, and of the new place.

    Parameters
    ----------
    savepoint : Savepoint
    new : CheckpointLocation
        Where the query, or a copy of it, is to go on.

    Attributes
    ----------
    location : CheckpointLocation
    """

    def __init__(self, savepoint: Savepoint, new: CheckpointLocation) -> None:
        self.location = CheckpointLocation(savepoint.location)
        self._savepoint = savepoint
        self._new = new
        self._arrival = Arrival(self.location, new)

    def closed(self) -> bool:
        """The old place is closed, and names this one, and this savepoint."""
        moved = self._moved()
        return moved is not None and (moved.location, moved.savepoint) == (self._new.path, self._savepoint.id)

    def goes_on_here(self) -> bool:
        """The old place is closed, and names this one, made of whatever savepoint."""
        moved = self._moved()
        return moved is not None and moved.location == self._new.path

    def arrived(self) -> bool:
        """The new place was there, of which the old one is closed."""
        return self._arrival.happened()

    def note_what_is_there(self) -> None:
        """The new place may have been made while the old one, closed before, could not be reached."""
        if not self.closed():
            return
        with suppress(JournalError, LocationError, OSError):  # of who has no right to write here
            made = load_journal(self._new).ledger.restored
            if made is not None and (made.savepoint, made.claim) == (self._savepoint.id, True):
                self._arrival.expect(self._new.path, there=True)

    def _moved(self) -> Moved | None:
        try:
            return load_journal(self.location).ledger.moved
        except (JournalError, LocationError, OSError):
            return None

    def lost(self) -> LocationError | None:
        """Why nobody can see what was committed after the savepoint; None where the query can go on as it should."""
        return self._unreachable() or self._gone()

    def _unreachable(self) -> LocationError | None:
        """Why the old place can't be closed; None where it can."""
        saved, origin = self._savepoint, self.location
        why = ""
        try:
            query, ledger = origin.query_id(), load_journal(origin).ledger
            if origin.path == self._new.path:
                why = "is where it is to be restored"
            elif not ledger.position:
                why = "holds no journal"
            elif query != saved.query:
                why = f"is of another query ({query})"
            elif ledger.identity_suffix != saved.ledger().identity_suffix:
                why = "is a copy with an identity of its own by now (`barrier adopt --no-claim`)"
            elif ledger.location not in (saved.location, origin.path):
                why = f"holds the journal of {ledger.location}: the query was moved there, or this is a copy of that place"
        except (LocationError, JournalError, OSError) as problem:
            why = f"can't be read ({problem})"
        if not why:
            return None
        return LocationError(
            "ORIGIN_UNREACHABLE",
            f"{origin.path}, of which the savepoint was taken, {why}: it can't be closed, and nobody can see what was "
            "committed there since. --no-claim makes a copy with an identity of its own; --force goes on as the query",
            origin=origin.path,
        )

    def _gone(self) -> LocationError | None:
        """Why the new place can't be made once more; None where it is there, or never was."""
        if not (self.closed() and is_missing(self._new) and self.arrived()):
            return None
        return LocationError(
            "CLAIMED_PLACE_GONE",
            f"{self._new.path}, where the query went on from {self.location.path}, is not there any more: nobody can see "
            "what was committed from there. Put it back, if it was moved, or lies in a backup; --no-claim makes a copy at "
            "another place, with an identity of its own; --force goes on as the query",
            path=self._new.path,
            origin=self.location.path,
        )
