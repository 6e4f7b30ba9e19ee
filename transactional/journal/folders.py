"""Folders of a journal: durable under their names, and closed to all but their owner.

The group may read and write, too, if it may write to the folder above: a location that several users of one group share
(setgid, umask 007) stays theirs. Even options that name no secret reveal where the data is.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

__all__ = ["file_mode", "folder_mode", "make_folders", "replace_file", "sync_folder"]

OWNER, GROUP = 0o700, 0o070


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str, private: bool = True) -> None:
    """Make a folder and those above it that are not there, durable.

    Parameters
    ----------
    path : str
    private : bool
        Closed to others; else with the modes that any program gives.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path) or "."
    for folder in reversed(missing):
        above = os.path.dirname(folder) or "."
        with suppress(FileExistsError):  # by another process
            os.mkdir(folder, folder_mode(above) if private else 0o777)
        sync_folder(above)  # else a power failure takes it away with what was synced into it


def file_mode(folder: str) -> int:
    """Return the mode of a new file in a folder: the group gets the folder's rights, others get none."""
    return 0o600 | (os.stat(folder).st_mode & 0o060)


def folder_mode(above: str) -> int:
    """Return the mode of a new folder: the group gets access if it, and not everyone, may write in the folder above."""
    return OWNER | (GROUP if os.stat(above).st_mode & 0o022 == 0o020 else 0)


def replace_file(path: str, data: bytes) -> None:
    """Write a file that readers see whole, the old or the new one. Not durable: for what a later write replaces.

    Raises
    ------
    OSError
        Nothing is left of it then.
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
