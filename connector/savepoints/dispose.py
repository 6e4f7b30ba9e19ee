"""Dispose of a savepoint: delete its files."""

from __future__ import annotations

from connector.savepoints.manifest import MANIFEST, Savepoint, folder_of, is_leftover


def dispose(savepoint: Savepoint) -> None:
    """Delete a savepoint, and the leftovers of killed commands in its folder. Other files in the folder stay.

    The manifest is deleted first: from then on, the folder is no longer a savepoint.
    """
    files = savepoint.folder.files
    files.delete([MANIFEST])
    files.delete([file.path for file in savepoint.files])
    files.remove("")
    delete_leftovers(savepoint.path)


def delete_leftovers(path: str) -> bool:
    """Delete the leftovers of killed commands in a folder that is not a savepoint; return whether there were any."""
    folder = folder_of(path)
    try:
        names = folder.files.names("")
    except NotADirectoryError:
        names = []
    found = [name for name in names if is_leftover(name)] if MANIFEST not in names else []
    for name in found:
        folder.files.remove(name)
    if found:
        folder.files.remove("")
    return bool(found)
