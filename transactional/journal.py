"""The journal: every fact that binds takes the next number by exclusive create.

Exclusive create is the arbiter between drivers: of two creates of one number exactly one succeeds, and a number once
taken stays taken, also after its entry was folded into a snapshot and deleted.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from transactional import faults
from transactional.clock import Clock, SystemClock
from transactional.errors import FencedError, JournalError
from transactional.ledger import Ledger
from transactional.metadata import Entry, EntryKind, decode, encode, torn
from transactional.ownership import moved_on

__all__ = ["Journal", "JournalStore", "LocalJournalStore", "MemoryJournalStore", "snapshot_file", "sync_folder"]

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 64  # entries: planning reads at most twice as many small files
RELIST = 20  # times a listing that a snapshot changed meanwhile is taken again

_NAME = re.compile(r"(\d+)\.(snapshot\.)?json")
_LEFTOVER = re.compile(r"\.(\d+)\.(?:snapshot\.)?json\.[0-9a-f]{32}")  # of a create that was killed


class JournalStore(Protocol):
    """Files by name, with the one operation that arbitrates. Names are ``<n>.json`` and ``<n>.snapshot.json``."""

    def create(self, name: str, data: bytes) -> bool:
        """Create whole, durably, or not at all; False where the name is taken.

        Raises
        ------
        OSError
            It may be created or not. `Journal` reads it back, also where the name is taken: it may be so by this very call.
        """

    def names(self) -> list[str]:
        """All names, in any order."""

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """Deleting what is gone is no error."""


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def snapshot_file(ledger: Ledger, clock: Clock, nonce: str = "") -> tuple[str, bytes]:
    """Name and contents of a ledger's snapshot: a journal can begin with it."""
    nonce = nonce or uuid.uuid4().hex
    entry = Entry(ledger.position, EntryKind.SNAPSHOT, nonce, int(clock.now() * 1000), ledger.to_json())
    return f"{ledger.position}.snapshot.json", encode(entry)


class LocalJournalStore:
    """A folder on a local disk: temporary file, fsync, link to the name, fsync of the folder.

    Parameters
    ----------
    folder : str
        Made at the first create.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`. ``os.link`` fails where the name exists: rename would replace it."""
        os.makedirs(self.folder, exist_ok=True)
        temporary = os.path.join(self.folder, f".{name}.{uuid.uuid4().hex}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, os.path.join(self.folder, name))
            except FileExistsError:
                return False
        finally:
            os.unlink(temporary)
        sync_folder(self.folder)
        return True

    def names(self) -> list[str]:
        """See `JournalStore`."""
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """See `JournalStore`."""
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except IsADirectoryError as error:
            raise torn(name, error) from error

    def delete(self, name: str) -> None:
        """See `JournalStore`."""
        try:
            os.unlink(os.path.join(self.folder, name))
        except FileNotFoundError:
            return


class MemoryJournalStore:
    """A dict; for tests of the protocol."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`."""
        return self.files.setdefault(name, data) is data

    def names(self) -> list[str]:
        """See `JournalStore`."""
        return list(self.files)

    def read(self, name: str) -> bytes:
        """See `JournalStore`."""
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def delete(self, name: str) -> None:
        """See `JournalStore`."""
        self.files.pop(name, None)


class Journal:
    """Reads, folds and appends.

    Parameters
    ----------
    store : JournalStore
    clock : Clock, optional
    nonce : Callable[[], str], optional
        Source of entries' nonces.
    """

    def __init__(
        self,
        store: JournalStore,
        clock: Clock | None = None,
        nonce: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._nonce = nonce
        self.ledger = Ledger()
        self._snapshots: list[int] = []

    def load(self) -> Ledger:
        """List, read what is new (a snapshot and the entries after it), fold it; the state is also kept in `ledger`."""
        for _ in range(RELIST):
            ledger = self._load_once()
            if ledger is not None:
                self.ledger = ledger
                return ledger
        raise JournalError("JOURNAL_UNREADABLE", "entries of the journal vanish while it is read: is it being deleted?")

    def _load_once(self) -> Ledger | None:
        """One attempt; None where a snapshot deleted entries in the meantime."""
        entries, snapshots = self._list()
        try:
            folded = snapshots[-1] if snapshots else 0
            ledger = self._snapshot(folded) if folded > self.ledger.position else self.ledger.copy()
            numbers = [n for n in entries if n > ledger.position]
            first = ledger.position + 1
            if numbers != list(range(first, first + len(numbers))) and self._list() != (entries, snapshots):
                return None  # the listing was taken while entries came or went; a lasting gap is told by the fold
            for number in numbers:
                ledger.apply(self._entry(number))
            if numbers and any(snapshot >= first for snapshot in self._list()[1]):
                return None  # folded and deleted while it was read: a late create may have taken a number again
        except FileNotFoundError:
            return None
        self._snapshots = snapshots
        return ledger

    def _list(self) -> tuple[list[int], list[int]]:
        entries: list[int] = []
        snapshots: list[int] = []
        for name in self._store.names():
            match = _NAME.fullmatch(name)
            if match:
                (snapshots if match.group(2) else entries).append(int(match.group(1)))
        return sorted(entries), sorted(snapshots)

    def _entry(self, number: int) -> Entry:
        return decode(self._store.read(f"{number}.json"), f"{number}.json")

    def _snapshot(self, number: int) -> Ledger:
        name = f"{number}.snapshot.json"
        return Ledger.from_json(decode(self._store.read(name), name).body)

    def append(self, kind: str, body: Mapping[str, Any], judge: Callable[[Ledger], None]) -> Entry:
        """Take the next number for a fact.

        Parameters
        ----------
        kind : str
        body : Mapping[str, Any]
        judge : Callable[[Ledger], None]
            Called with the folded state before every try, also after the number was found taken; raises where the
            fact may not be recorded any more.

        Raises
        ------
        FencedError
            By `judge`; or the number had been folded into a snapshot: a newer run has gone on; or the query was moved.
        JournalError
            ``JOURNAL_STORE_FAILED``: the store failed, and a read shows that the entry is not there, or failed, too.
        """
        nonce = self._nonce()
        while True:
            if self.ledger.moved is not None:  # nothing follows it, whoever asks
                raise moved_on(self.ledger)
            judge(self.ledger)
            number = self.ledger.position + 1
            entry = Entry(number, kind, nonce, int(self._clock.now() * 1000), body)
            self.ledger.copy().apply(entry)  # an entry that does not fold is never written
            if self._create(entry):
                self._check_not_folded(number)
                self.ledger.apply(entry)
                faults.reach("journal.created")
                return entry
            self.load()

    def _create(self, entry: Entry) -> bool:
        """Exclusive create; a lost answer is settled by reading back, also one that the store's client has hidden.

        A client that sends a create again, because the first answer was lost, finds the number taken: by ourselves.
        """
        name = f"{entry.number}.json"
        failure: Exception | None = None
        try:
            if self._store.create(name, encode(entry)):
                return True
        except OSError as error:
            failure = error
        try:
            return self._entry(entry.number).nonce == entry.nonce
        except FileNotFoundError as error:
            if failure is None:  # taken, folded and deleted since
                return False
            raise self._failed(name, failure) from error
        except JournalError as error:
            if failure is None or error.condition != "JOURNAL_STORE_FAILED":
                raise
            raise self._failed(name, failure) from error

    @staticmethod
    def _failed(name: str, failure: Exception) -> JournalError:
        return JournalError("JOURNAL_STORE_FAILED", f"writing {name} failed: {failure}", file=name, reason=str(failure))

    def _check_not_folded(self, number: int) -> None:
        """A snapshot at or above our number: it was taken before, deleted, and our entry counts for nothing."""
        _, snapshots = self._list()
        if snapshots and snapshots[-1] >= number:
            raise FencedError(
                "RUN_SUPERSEDED",
                f"journal number {number} had been taken and folded into snapshot {snapshots[-1]}: a newer run has gone on",
                number=number,
                snapshot=snapshots[-1],
            )

    def fold(self, every: int = SNAPSHOT_EVERY) -> None:
        """Write a snapshot when `every` entries follow the last, and delete what two snapshots cover.

        Entries are deleted up to the *previous* snapshot only, and the two newest snapshots stay, so that no listing,
        however it interleaves, sees neither an entry nor a snapshot that folded it.
        """
        last = self._snapshots[-1] if self._snapshots else 0
        if self.ledger.position - last < every:
            return
        name, data = snapshot_file(self.ledger, self._clock, self._nonce())
        try:
            self._store.create(name, data)
        except (
            OSError
        ) as error:  # it may be there or not; the entries stay either way, and the next planning tries again
            log.warning("the journal is not folded now: %s", error)
            return
        entries, snapshots = self._list()
        self._snapshots = snapshots
        if len(snapshots) < 2:
            return
        for stale in snapshots[:-2]:
            self._store.delete(f"{stale}.snapshot.json")
        for stale in [n for n in entries if n <= snapshots[-2]]:
            self._store.delete(f"{stale}.json")
        for leftover in filter(None, map(_LEFTOVER.fullmatch, self._store.names())):
            if int(leftover[1]) <= snapshots[-2]:  # a create that still is at work with it comes too late anyway
                self._store.delete(leftover[0])
