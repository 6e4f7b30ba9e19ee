"""What the old place of a claimed query knows of the new one: whether that has ever been there.

A claim closes the old place, makes the new one under a temporary name, notes that name at the old place, and renames. So who
finds the old place closed and no new one can tell: without a note, or with the folder that it names still there, the new place
never was, and the same command makes it. With the note and without that folder it was: a query may have gone on there, and what
it has committed nobody can see.
"""

from __future__ import annotations

import json
import os
import uuid

from connector.spark.location import CheckpointLocation
from connector.spark.saved_files import write_file
from transactional.journal import sync_folder

__all__ = ["Arrival"]

NAME = "arrival.json"


class Arrival:
    """The note at an old place, which is on a local disk.

    Parameters
    ----------
    origin : CheckpointLocation
    """

    def __init__(self, origin: CheckpointLocation) -> None:
        self._folder = os.path.join(origin.path, "barrier")
        self._path = os.path.join(self._folder, NAME)

    def happened(self) -> bool:
        """Whether the new place was there, or nobody can tell."""
        draft, before = self._read()
        return before or (draft is not None and not os.path.isdir(draft))

    def expect(self, draft: str) -> None:
        """The folder is about to become the new place."""
        note = {"draft": draft, "before": self.happened()}
        temporary = f"{self._path}.{uuid.uuid4().hex[:8]}.tmp"
        write_file(temporary, json.dumps(note).encode())
        os.replace(temporary, self._path)
        sync_folder(self._folder)

    def withdraw(self) -> None:
        """The folder that was to become the new place goes away: that never was there, unless it had been before."""
        draft, before = self._read()
        if draft is not None and not before:
            os.unlink(self._path)
            sync_folder(self._folder)

    def _read(self) -> tuple[str | None, bool]:
        """The folder that was to become the new place; whether that had been there before."""
        try:
            with open(self._path, encoding="utf-8") as file:
                note = json.load(file)
            return str(note["draft"]), bool(note["before"])
        except FileNotFoundError:
            return None, False
        except (ValueError, KeyError, TypeError):  # changed by hand
            return "", True
