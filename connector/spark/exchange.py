"""Two folders change names in one step, where the system and the disk can do that."""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["exchange"]

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux; see renameat2(2)."""


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two folders, at once for everybody.

    Parameters
    ----------
    one, other : str
        Paths on one disk.

    Returns
    -------
    bool
        False where it can't be done: another system than Linux, NFS, some disks of containers. Nothing was changed then.

    Raises
    ------
    OSError
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), one, None, other)
