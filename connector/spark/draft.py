"""A folder that is being made: under a temporary name, beside the one that it will have."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import uuid

__all__ = ["Draft"]


class Draft:
    """A folder ``.NAME.DOING-<random>`` that will be renamed to NAME.

    It is locked as long as its process lives: so the next one tells what a death has left from what is at work.

    Parameters
    ----------
    target : str
        Canonical path of the folder to make.
    doing : str
        A word.

    Attributes
    ----------
    path : str
    """

    def __init__(self, target: str, doing: str) -> None:
        self._parent, name = os.path.split(target)
        self._names = f".{name}.{doing}-"
        self.path = os.path.join(self._parent, f"{self._names}{uuid.uuid4().hex[:8]}")
        self._lock: int | None = None

    def begin(self) -> None:
        """Delete what deaths have left under such names, and make the folder."""
        os.makedirs(self._parent, exist_ok=True)
        for leftover in glob.glob(os.path.join(glob.escape(self._parent), f"{glob.escape(self._names)}*")):
            lock = _locked(leftover)
            if lock is not None:
                shutil.rmtree(leftover, ignore_errors=True)
                os.close(lock)
        os.mkdir(self.path)
        self._lock = _locked(self.path)

    def drop(self) -> None:
        """Delete it, where it was not renamed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Unlock it, as the end of the process does."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: str) -> int | None:
    """A lock of a folder; None where another process has it, or nothing can be locked there."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return None
    return folder
