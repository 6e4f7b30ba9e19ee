"""Read the files that Spark writes into a checkpoint location, and compare each file with its Hadoop checksum.

Hadoop's local file system writes a file ``.<name>.crc`` beside every file. This file contains a magic word, the number of
bytes in a chunk, and each chunk's CRC-32. Spark does not compare these checksums when it reads its own logs, and the logs
have no other checksum. So a flipped bit in ``offsets/7`` would be a wrong offset. Object stores have no such files, and check
their data themselves.
"""

from __future__ import annotations

import struct
import zlib

from connector.location.files import GuardedFiles, LocalFiles, LocationFiles, read_file

MAGIC = b"crc\0"


class DamagedFileError(ValueError):
    """A file is damaged: its bytes are not the bytes that were written. The message gives the reason."""


def read_text(files: LocationFiles, name: str) -> str:
    """Return the text of a file that Spark has written. Raises DamagedFileError if the file is damaged."""
    data = read_file(files, name)
    if isinstance(files, GuardedFiles) and isinstance(files.inner, LocalFiles):
        _compare(files, name, data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(str(error)) from None


def _compare(files: LocationFiles, name: str, data: bytes) -> None:
    folder, slash, file = name.rpartition("/")
    try:
        checksums = read_file(files, f"{folder}{slash}.{file}.crc")
    except OSError:
        return
    if checksums[:4] == MAGIC and len(checksums) >= 8 and not _fits(data, checksums):
        raise DamagedFileError(f"it does not match its checksum, .{file}.crc")


def _fits(data: bytes, checksums: bytes) -> bool:
    (size,) = struct.unpack(">I", checksums[4:8])
    chunks = (data[at : at + size] for at in range(0, len(data), size)) if size else ()
    return b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks) == checksums[8:]
