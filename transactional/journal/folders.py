"""Folders of a journal: durable under their names, and closed to all but their owner.

The group may read and write, too, if it may write to the folder above: a location that several users of one group share
(setgid, umask 007) stays theirs. Even options that name no secret reveal where the data is.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from contextlib import suppress

__all__ = ["file_mode", "folder_mode", "make_folders", "replace_file", "sync_file", "sync_folder"]

log = logging.getLogger(__name__)

OWNER, GROUP = 0o700, 0o070

DISK_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that may have lost what it was given; others say that a folder can't be opened or synced by this user."""

_refused: set[str] = set()
"""Folders on file systems that can't sync them; each is logged once."""

_durable: set[str] = set()
"""Folders that this process has made durable under their names, with all folders above them."""


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable. If the file system can't do this, it is logged: a kill takes nothing away even so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
        if folder not in _refused:
            log.warning(
                "%s: the file system can't sync a folder (%s), so a power failure may remove new files", folder, error
            )
            _refused.add(folder)
    finally:
        os.close(descriptor)


def sync_file(path: str) -> None:
    """Make a file's bytes durable, whichever process has written them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str, private: bool = True) -> None:
    """Make a folder and those above it that are not there, and make all of them durable under their names.

    A folder that is there counts as not durable, until this process has synced the folder above it: another process may
    have made it, and Spark does so without any fsync.
    """
    path = os.path.abspath(path)
    missing = []
    folder = path
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        _durable.discard(folder)
        with suppress(FileExistsError):  # by another process
            os.mkdir(folder, folder_mode(os.path.dirname(folder)) if private else 0o777)
    unsure = []
    folder = path
    while folder not in _durable and os.path.dirname(folder) != folder:
        unsure.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(unsure):
        # a folder above may be one that this user may not read, or that can't be synced
        try:
            sync_folder(os.path.dirname(folder))  # else a power failure takes it away with what was synced into it
        except OSError as error:  # noqa: PERF203 - each folder above is another one
            if folder in missing or error.errno in DISK_FAILED:
                raise
    _durable.update(unsure)


def file_mode(folder: str) -> int:
    """Return the mode of a new file in a folder: the group gets the folder's rights, others get none."""
    return 0o600 | (os.stat(folder).st_mode & 0o060)


def folder_mode(above: str) -> int:
    """Return the mode of a new folder: the group gets access if it, and not everyone, may write in the folder above."""
    return OWNER | (GROUP if os.stat(above).st_mode & 0o022 == 0o020 else 0)


def replace_file(path: str, data: bytes) -> None:
    """Write a file that readers see whole, the old or the new one. Not durable: for what a later write replaces."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
