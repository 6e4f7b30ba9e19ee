"""What the old place of a claimed query knows of the new one: whether that has ever been there.

A claim closes the old place, makes the new one under a temporary name, notes that name at the old place, and renames. So who
finds the old place closed and no new one can tell: without a note, or where each folder that has one is still there, the new
place never was, and the same command makes it. Where one of those folders is not there, it was: a query may have gone on there,
and what it has committed nobody can see.

::

    barrier/arrivals/<name of the temporary folder>     a note each: an empty file, which is deleted before its folder is

"""

from __future__ import annotations

import os
from contextlib import suppress

from connector.spark.location import CheckpointLocation
from connector.spark.saved_files import write_file
from transactional.journal.folders import sync_folder

__all__ = ["Arrival"]

BEFORE = "was-there-before"
"""The note of a place that was made before the old one was closed."""


class Arrival:
    """The notes at an old place, which is on a local disk.

    Parameters
    ----------
    origin, new : CheckpointLocation
    """

    def __init__(self, origin: CheckpointLocation, new: CheckpointLocation) -> None:
        self._folder = os.path.join(origin.path, "barrier", "arrivals")
        self._parent = os.path.dirname(new.path)

    def happened(self) -> bool:
        """Whether the new place was there."""
        return any(not os.path.isdir(os.path.join(self._parent, name)) for name in self._noted())

    def expect(self, draft: str, there: bool) -> None:
        """A folder is about to become the new place; where that is there already, it is noted that it was."""
        if not self.happened():
            self._note(BEFORE if there else os.path.basename(draft))

    def forget(self, draft: str) -> None:
        """A folder goes away that did not become the new place."""
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(self._folder, os.path.basename(draft)))
            sync_folder(self._folder)

    def start_over(self, draft: str) -> None:
        """What was there was seen to be unused, and is away; the folder is about to become the new place."""
        former = self._noted()
        self._note(os.path.basename(draft))
        for name in former:
            self.forget(name)

    def _noted(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _note(self, name: str) -> None:
        write_file(os.path.join(self._folder, name), b"")
        sync_folder(self._folder)
        sync_folder(os.path.dirname(self._folder))
