"""A power failure, simulated: what a disk holds if it fails after the k-th file call of a process.

A preloaded library (`integration/durable_calls.c`) records the calls. A `Disk` repeats them, and knows what was made durable:
a file's bytes by an fsync of the file, names by an fsync of their folder. Nothing else is promised by POSIX.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration.preloaded import built

__all__ = ["Call", "Disk", "Kept", "record_calls"]

SOURCE: Final = Path(__file__).with_name("durable_calls.c")

Kept = str
"""What survives of that which was not synced: ``nothing``, or ``names`` (of empty files), or ``names and half``."""

Call = tuple[str, ...]
"""An operation and its arguments; of a write, the last is the bytes in latin-1."""


def record_calls(
    command: Sequence[str], root: Path, work: Path, environment: Mapping[str, str] | None = None
) -> list[Call]:
    """Run a command to its end, and return the calls that it made below a folder, in order.

    Raises
    ------
    AssertionError
        No C compiler is there, or the command failed.
    """
    library, log = built(SOURCE, work), work / "file_calls.log"
    preloaded = {"LD_PRELOAD": str(library), "FILE_CALLS_ROOT": str(root), "FILE_CALLS_LOG": str(log)}
    done = subprocess.run(
        command, env={**os.environ, **(environment or {}), **preloaded}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return list(_parsed(log.read_bytes()))


def _parsed(log: bytes) -> Iterator[Call]:
    at = 0
    while at < len(log):
        end = log.index(b"\n", at)
        call = log[at:end].decode().split("\t")
        at = end + 1
        if call[0] == "write":
            size = int(call.pop())
            call.append(log[at : at + size].decode("latin-1"))
            at += size
        yield tuple(call)


@dataclass
class File:
    """A file: what was written, and what of it is durable."""

    written: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Folder:
    """A folder: its names, and those that are durable."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """The disk below a folder that is there, and empty, at first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._files: dict[str, File] = {}

    def take(self, call: Call) -> None:
        """Repeat a call."""
        operation, first, *rest = call
        if operation == "create":
            self._files[rest[0]] = file = File()
            self._put(first, file)
        elif operation == "mkdir":
            self._put(first, Folder())
        elif operation == "write":
            content, at, data = self._files[first].written, int(rest[0]), rest[1].encode("latin-1")
            content.extend(bytes(max(0, at - len(content))))
            content[at : at + len(data)] = data
        elif operation == "truncate":
            content = self._files[first].written
            size = int(rest[0])
            content[:] = content[:size].ljust(size, b"\0")
        elif operation == "sync":
            self._files[first].durable = bytes(self._files[first].written)
        elif operation == "sync_folder":
            folder = self._find(first)
            assert isinstance(folder, Folder)
            folder.durable = dict(folder.names)
        else:
            above, name = self._above(first)
            node = above.names[name]
            if operation in ("rename", "unlink"):
                del above.names[name]
            if operation in ("rename", "link"):
                self._put(rest[0], node)

    def after_failure(self, kept: Kept = "nothing") -> None:
        """Make the folder hold what a power failure leaves now."""
        shutil.rmtree(self._root)
        self._build(self._top, self._root, kept)

    def _build(self, folder: Folder, path: Path, kept: Kept) -> None:
        path.mkdir()
        for name, node in (folder.durable if kept == "nothing" else folder.names).items():
            if isinstance(node, Folder):
                self._build(node, path / name, kept)
                continue
            half = bytes(node.written[: len(node.written) // 2]) if kept == "names and half" else b""
            (path / name).write_bytes(max(node.durable, half, key=len))

    def _find(self, path: str) -> File | Folder:
        node: File | Folder = self._top
        for name in Path(path).relative_to(self._root).parts:
            assert isinstance(node, Folder)
            node = node.names[name]
        return node

    def _above(self, path: str) -> tuple[Folder, str]:
        folder = self._find(os.path.dirname(path))
        assert isinstance(folder, Folder)
        return folder, os.path.basename(path)

    def _put(self, path: str, node: File | Folder) -> None:
        above, name = self._above(path)
        above.names[name] = node
