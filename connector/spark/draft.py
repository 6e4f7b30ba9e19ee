"""A folder that is being made, or deleted: under a temporary name, beside the one that it will have, or had."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from transactional.journal.folders import folder_mode, sync_folder

__all__ = ["Draft", "delete_folder", "delete_leftovers", "leftovers", "locked_folder", "temporary"]

DISPOSING: Final = "disposing"

_RANDOM = re.compile(r"[0-9a-f]{8}")


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
    private : bool
        Its owner's alone, and its group's where the folder above is: see `transactional.journal.folders`.

    Attributes
    ----------
    path : str
        Known when it was begun.
    """

    def __init__(self, target: str, doing: str, private: bool = False) -> None:
        self._target, self._doing, self._private = target, doing, private
        self._parent = os.path.dirname(target)
        self.path = temporary(target, doing)
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def begin(self, before: Callable[[str], object] = lambda leftover: None) -> None:
        """Delete what deaths have left under such names, or of the target when it was deleted, and make the folder.

        Parameters
        ----------
        before : Callable[[str], object], optional
            Called before a leftover under such a name is deleted, which stays where it raises OSError.
        """
        os.makedirs(self._parent, exist_ok=True)
        for doing, first in ((self._doing, before), (DISPOSING, lambda leftover: None)):
            for leftover in leftovers(self._target, doing):
                with suppress(OSError):  # at work, gone by now, or not to be deleted
                    _delete_leftover(leftover, first)
        path = self.path
        while not self._made(path):
            path = temporary(self._target, self._doing)
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
            return self.is_published()  # a network disk may have done it, and was asked once more
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._target) from error
            raise
        return True

    def is_published(self) -> bool:
        """Whether the folder has the target's name by now, however it came there."""
        return self._identity is not None and self._identity == _identity(self._target)

    def drop(self) -> None:
        """Delete it, where it was not renamed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Unlock it, as the end of the process does."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _made(self, path: str) -> bool:
        """Make it and lock it; False where another process took it for a leftover in between."""
        os.mkdir(path, folder_mode(self._parent) if self._private else 0o777)
        self._identity = _identity(path)
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


def delete_folder(path: str, target: str = "") -> None:
    """Delete a folder: under its name it is there whole, or not at all. What a death leaves, `delete_leftovers` deletes.

    Parameters
    ----------
    path : str
        Canonical.
    target : str, optional
        With which name it is a leftover; its own by default.
    """
    with locked_folder(path):
        aside = temporary(target or path, DISPOSING)
        os.rename(path, aside)
        sync_folder(os.path.dirname(path))
        shutil.rmtree(aside)


@contextmanager
def locked_folder(path: str) -> Iterator[None]:
    """A folder is at work, whatever its name; where nothing can be locked, or it is locked already, it is not locked."""
    lock = None
    with suppress(OSError):
        lock = _locked(path)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def delete_leftovers(path: str) -> bool:
    """Delete what deaths have left of a folder that was deleted; whether there was any.

    Parameters
    ----------
    path : str
        Canonical, of that folder.

    Raises
    ------
    OSError
        It can't be deleted.
    """
    found = False
    for leftover in leftovers(path, DISPOSING):
        with suppress(BlockingIOError, FileNotFoundError):  # at work, or gone by now
            _delete_leftover(leftover)
            found = True
    return found


def temporary(target: str, doing: str) -> str:
    """A new temporary path beside a folder."""
    return f"{_names(target, doing)}{uuid.uuid4().hex[:8]}"


def leftovers(target: str, doing: str) -> list[str]:
    """What is there under such paths, at work or not."""
    names = _names(target, doing)
    return [found for found in glob.glob(f"{glob.escape(names)}*") if _RANDOM.fullmatch(found[len(names) :])]


def _delete_leftover(leftover: str, before: Callable[[str], object] = lambda leftover: None) -> None:
    lock = _locked(leftover)
    try:
        before(leftover)
        shutil.rmtree(leftover)
    finally:
        os.close(lock)


def _names(target: str, doing: str) -> str:
    """How temporary paths beside a folder begin."""
    parent, name = os.path.split(target)
    return os.path.join(parent, f".{name}.{doing}-")


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


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_at(path: str, folder: int) -> bool:
    """Whether an open folder has this path still."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(folder))
    except FileNotFoundError:
        return False
