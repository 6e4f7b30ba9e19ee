"""A journal in an object store or in HDFS. Journal entries never change, so each process fetches an entry only once."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from connector.location.files import AT_ONCE, LocationFiles
from transactional.errors import JournalError, JournalStoreError
from transactional.journal import closed_journal

PROBE = ".conditional-put"
"""The name of an empty test file in the journal's folder. The store must refuse to create this file a second time."""

KEPT = 1000
"""The maximum number of entries that a process caches, a few KB each: enough for several queries between two
snapshots."""

_ENTRY = re.compile(r"(\d+)\.(snapshot\.)?json")


class TaggedFiles(LocationFiles, Protocol):
    """The files in a store that gives each file a tag.

    The tag is an object's ETag, or an id that no other file in the store ever gets.
    """

    def listing(self, folder: str) -> Mapping[str, str]:
        """Map each name in a folder to its file's tag. For a subfolder, or a file without a tag, the tag is ``""``."""

    def create_tagged(self, name: str, data: bytes) -> str | None:
        """Create a file. Return its tag, which is never empty, or None if the name is taken."""

    def sync(self, folder: str) -> None:
        """Make sure that all files that this store now lists in a folder are durable."""


class ObjectJournalStore:
    """A `transactional.journal.JournalStore` in a store of tagged files.

    The journal is read again whenever a micro-batch is planned or committed, but its entries never change. So each
    process caches the entries by path and tag. If a process needs several entries that are not in its cache, it fetches
    them in parallel.
    """

    def __init__(self, files: TaggedFiles, folder: str) -> None:
        self._files = files
        self._folder = folder  # The journal's folder, relative to the location.
        self._tags: Mapping[str, str] = {}
        self._unsure = False  # True if a create failed, and may have left a file that is not durable

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore.create`."""
        self._see_that_it_arbitrates()
        try:
            tag = self._files.create_tagged(f"{self._folder}/{name}", data)
        except OSError:
            self._unsure = True
            raise
        if tag is not None:
            _KEPT.keep(self._key(name, tag), data)
        return tag is not None

    def names(self) -> list[str]:
        """See `JournalStore.names`."""
        self._tags = self._files.listing(self._folder)
        self._read_ahead()
        return list(self._tags)

    def read(self, name: str) -> bytes:
        """See `JournalStore.read`."""
        if self._unsure:
            self._files.sync(self._folder)
            self._unsure = False
        tag = self._tags.get(name, "")
        data = _KEPT.get(self._key(name, tag)) if tag else None
        if data is None:
            data = self._fetch(name)
            if tag:
                _KEPT.keep(self._key(name, tag), data)
        return data

    def delete(self, name: str) -> None:
        """See `JournalStore.delete`."""
        self._files.delete([f"{self._folder}/{name}"])

    def _key(self, name: str, tag: str) -> tuple[str, str]:
        return self._files.shown(f"{self._folder}/{name}"), tag

    def _fetch(self, name: str) -> bytes:
        try:
            return self._files.read(f"{self._folder}/{name}")
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise closed_journal(error) from error
        except OSError as error:
            raise JournalStoreError("JOURNAL_STORE_FAILED", file=name, reason=str(error)) from error

    def _read_ahead(self) -> None:
        """Cache the files that a journal reads next: the newest snapshot and the entries after it."""
        numbers = {match: int(match[1]) for match in filter(None, map(_ENTRY.fullmatch, self._tags))}
        folded = max((number for match, number in numbers.items() if match[2]), default=0)
        wanted = [match[0] for match, number in numbers.items() if number > folded or (match[2] and number == folded)]
        missing = [name for name in wanted if self._tags[name] and _KEPT.get(self._key(name, self._tags[name])) is None]
        if len(missing) < 2:
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._try_to_keep, missing))

    def _try_to_keep(self, name: str) -> None:
        with contextlib.suppress(OSError, JournalError):  # `read` tries again, and raises
            _KEPT.keep(self._key(name, self._tags[name]), self._fetch(name))

    def _see_that_it_arbitrates(self) -> None:
        """Check that the store refuses to create a file twice. Otherwise, two drivers could create the same entry."""
        probe = f"{self._folder}/{PROBE}"
        where = self._files.shown(probe)
        if where in _ARBITRATING:
            return
        if self._files.create(probe, b"") and self._files.create(probe, b""):
            raise JournalError("NO_CONDITIONAL_PUT", path=where)
        _ARBITRATING.add(where)


class _Kept:
    """A cache of file contents by name and tag. A changed file gets a new tag, so the cache is never stale."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, key: tuple[str, str]) -> bytes | None:
        """Return the cached content of a file; None if it is not in the cache."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def keep(self, key: tuple[str, str], data: bytes) -> None:
        """Add a file's content to the cache. If the cache is full, remove the least recently used content."""
        with self._lock:
            self._found[key] = data
            if len(self._found) > self._most:
                self._found.popitem(last=False)


_KEPT = _Kept(KEPT)

_ARBITRATING: set[str] = set()
"""Paths of the probe files that a store has refused to create twice. This process does not check these files again."""
