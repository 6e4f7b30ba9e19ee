"""A folder that is being made: under a temporary name, beside the one that it will have."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import uuid
from contextlib import suppress

__all__ = ["Draft"]


class Draft:
    """A folder ``.NAME.DOING-<random>`` that will be renamed to NAME.

    It is locked as long as its process lives: so the next one tells what a death has left from what is at work. Where nothing
    can be locked (some network disks), nothing that was left is deleted, either.

    Parameters
    ----------
    target : str
        Canonical path of the folder to make.
    doing : str
        A word.

    Attributes
    ----------
    path : str
        Known when it was begun.
    """

    def __init__(self, target: str, doing: str) -> None:
        self._target = target
        self._parent, name = os.path.split(target)
        self._names = f".{name}.{doing}-"
        self.path = self._new_path()
        self._lock: int | None = None

    def begin(self) -> None:
        """Delete what deaths have left under such names, and make the folder."""
        os.makedirs(self._parent, exist_ok=True)
        for leftover in glob.glob(os.path.join(glob.escape(self._parent), f"{glob.escape(self._names)}*")):
            with suppress(OSError):  # it is at work, gone by now, or can't be locked
                lock = _locked(leftover)
                shutil.rmtree(leftover, ignore_errors=True)
                os.close(lock)
        path = self.path
        while not self._made(path):
            path = self._new_path()
        self.path = path

    def publish(self) -> bool:
        """Rename it to the target; False where somebody has deleted it meanwhile.

        Raises
        ------
        FileExistsError
            The target is there by now, and no empty folder.
        """
        if self._lock is not None and not _is_at(self.path, self._lock):
            return False
        try:
            os.rename(self.path, self._target)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._target) from error
            raise
        return True

    def drop(self) -> None:
        """Delete it, where it was not renamed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Unlock it, as the end of the process does."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _new_path(self) -> str:
        return os.path.join(self._parent, f"{self._names}{uuid.uuid4().hex[:8]}")

    def _made(self, path: str) -> bool:
        """Make it and lock it; False where another process took it for a leftover in between."""
        os.mkdir(path)
        try:
            lock = _locked(path)
        except (BlockingIOError, FileNotFoundError):
            return False
        except OSError:  # nothing can be locked there
            return True
        if not _is_at(path, lock):
            os.close(lock)
            return False
        self._lock = lock
        return True


def _locked(path: str) -> int:
    """A lock of a folder.

    Raises
    ------
    OSError
        ``BlockingIOError`` where another process has it.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        raise
    return folder


def _is_at(path: str, folder: int) -> bool:
    """Whether an open folder has this path still."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(folder))
    except FileNotFoundError:
        return False
