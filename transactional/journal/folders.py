"""Functions that make the journal's files and folders durable, and deny access to other users.

The group has access only if it may write to the parent folder, so that several users of one group can share a location
(setgid, umask 007). Other users have no access, because even options without secrets reveal where the data is.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from contextlib import suppress

log = logging.getLogger(__name__)

OWNER, GROUP = 0o700, 0o070

DISK_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors after which the disk may have lost data. Other errors mean only that this user can't open or sync a folder."""

_refused: set[str] = set()
"""Folders that the file system can't sync. The warning about a folder is logged only once."""

_durable: set[str] = set()
"""Folders whose names this process has synced to disk, together with the names of all of their parent folders."""


def sync_folder(folder: str) -> None:
    """Sync a folder, so that the names of its files survive a power failure.

    If the file system can't sync folders, log a warning: a power failure may then remove new files.
    """
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
    """Sync a file, so that its contents survive a power failure, even if another process wrote them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str, private: bool = True) -> None:
    """Create a folder and its missing parent folders, and make the names of all of them durable.

    An existing folder is synced as well, once per process: another process, such as Spark, may have created it without a sync.
    If `private` is true, other users have no access to the new folders (see `folder_mode`).
    """
    path = os.path.abspath(path)
    missing = []
    folder = path
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        _durable.discard(folder)
        with suppress(FileExistsError):  # another process created it
            os.mkdir(folder, folder_mode(os.path.dirname(folder)) if private else 0o777)
    unsure = []
    folder = path
    while folder not in _durable and os.path.dirname(folder) != folder:
        unsure.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(unsure):
        # perhaps this user may not read a folder above, or its file system can't sync it
        try:
            sync_folder(os.path.dirname(folder))  # otherwise a power failure may remove it with all its files
        except OSError as error:  # noqa: PERF203 - one folder may fail, and the next may not
            if folder in missing or error.errno in DISK_FAILED:
                raise
    _durable.update(unsure)


def file_mode(folder: str) -> int:
    """Return the mode of a new file: the group has the same rights as in the folder, and other users have none."""
    return 0o600 | (os.stat(folder).st_mode & 0o060)


def folder_mode(above: str) -> int:
    """Return the mode of a new folder.

    The group gets access only if it may write to the parent folder and other users may not.
    """
    return OWNER | (GROUP if os.stat(above).st_mode & 0o022 == 0o020 else 0)


def replace_file(path: str, data: bytes) -> None:
    """Replace a file in one step, so that readers see either the old or the new contents.

    The new contents are not synced, so a power failure may lose them.
    """
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
