"""The journal: every fact that binds takes the next number by exclusive create.

Exclusive create is the arbiter between drivers: of two creates of one number exactly one succeeds, and a number once
taken stays taken, also after its entry was folded into a snapshot and deleted.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Callable

from transactional import faults
from transactional.clock import Clock, SystemClock
from transactional.entries import Fact, Opened, Request
from transactional.entry import UNFIT, Entry, EntryKind, decode, encode, torn
from transactional.errors import JournalError, JournalStoreError, SupersededError
from transactional.journal.store import JournalStore
from transactional.ledger import Ledger, apply
from transactional.ownership import moved_on, unfinished

__all__ = [
    "Journal",
    "snapshot_file",
]

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 64  # entries: planning reads at most twice as many small files
SNAPSHOT_BYTES = 1 << 20  # of entries: hundreds of writer tasks make megabytes each; parsing takes 15 ms a megabyte
RELIST = 20  # times that a listing which a snapshot changed meanwhile is repeated

_NAME = re.compile(r"([1-9][0-9]*)\.(snapshot\.)?json")
_LEFTOVER = re.compile(r"\.(\d+)\.(?:snapshot\.)?json\.[0-9a-f]{32}")  # of a create that was killed


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def snapshot_file(ledger: Ledger, clock: Clock, nonce: str = "") -> tuple[str, bytes]:
    """Return name and contents of a ledger's snapshot: a journal can begin with it."""
    nonce = nonce or uuid.uuid4().hex
    entry = Entry(ledger.position, EntryKind.SNAPSHOT, nonce, int(clock.now() * 1000), ledger.to_json())
    return f"{ledger.position}.snapshot.json", encode(entry)


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
        self.nonce = nonce
        self.ledger = Ledger()
        self._snapshots: list[int] = []
        self._anchor = ("", b"")  # name and digest of the last file that was folded into the ledger
        self._unfolded = 0  # bytes of the entries after the newest snapshot, as far as they were read
        self._unanswered: dict[str, int] = {}  # nonce and number of creates that failed, and may still take place

    def load(self) -> Ledger:
        """List, read what is new (a snapshot and the entries after it), fold it; the state is also kept in `ledger`.

        A journal that was loaded before reads only what came since, if the last file that it folded is still there as it was:
        the folder may have been deleted, or replaced by an older copy.
        """
        for _ in range(RELIST):
            ledger = self._load_once()
            if ledger is not None:
                self.ledger = ledger
                return ledger
        raise JournalError("JOURNAL_UNREADABLE", times=RELIST)

    def _load_once(self) -> Ledger | None:
        """Try once; None if a snapshot deleted entries in the meantime."""
        entries, snapshots = self._list()
        try:
            folded = snapshots[-1] if snapshots else 0
            ledger, anchor, unfolded = self._known(), self._anchor, self._unfolded
            if folded > ledger.position:
                name = f"{folded}.snapshot.json"
                data = self._read(name)
                ledger, anchor, unfolded = self._snapshot(data, name), (name, _digest(data)), 0
            numbers = [n for n in entries if n > ledger.position]
            first = ledger.position + 1
            if numbers != list(range(first, first + len(numbers))) and self._list() != (entries, snapshots):
                return None  # the listing was taken while entries came or went; the fold refuses a lasting gap
            for number in numbers:
                name = f"{number}.json"
                data = self._read(name)
                apply(ledger, self._entry(data, name))
                anchor, unfolded = (name, _digest(data)), unfolded + len(data)
            if numbers and any(snapshot >= first for snapshot in self._list()[1]):
                return None  # folded and deleted while it was read: a late create may have taken a number again
        except FileNotFoundError:
            return None
        self._snapshots, self._anchor, self._unfolded = snapshots, anchor, unfolded
        return ledger

    def _known(self) -> Ledger:
        """Return a copy of the loaded ledger if the last file that was folded into it is as it was; an empty one if not."""
        name, digest = self._anchor
        try:
            if name and _digest(self._read(name)) == digest:
                return self.ledger.copy()
        except FileNotFoundError:
            pass
        return Ledger()

    def _list(self) -> tuple[list[int], list[int]]:
        entries: list[int] = []
        snapshots: list[int] = []
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match:
                (snapshots if match.group(2) else entries).append(int(match.group(1)))
        return sorted(entries), sorted(snapshots)

    def _names(self) -> list[str]:
        try:
            return self._store.names()
        except OSError as error:
            raise self._failed("the list of its files", error) from error

    def _read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed(name, error) from error

    def _entry(self, data: bytes, name: str) -> Entry:
        """Decode a file, and check that it is the one that its name says: a copy under another name is whole, too."""
        entry = decode(data, name)
        is_snapshot = entry.kind == EntryKind.SNAPSHOT
        if name != f"{entry.number}.{'snapshot.' if is_snapshot else ''}json":
            reason = f"{name} holds {'the snapshot' if is_snapshot else 'entry'} {entry.number}"
            raise JournalError("JOURNAL_DAMAGED", reason=reason, file=name)
        return entry

    def _snapshot(self, data: bytes, name: str) -> Ledger:
        entry = self._entry(data, name)
        try:
            ledger = Ledger.from_json(entry.body)
        except UNFIT as error:
            raise torn(name, error) from error
        if ledger.position != entry.number:
            reason = f"{name} holds the entries up to {ledger.position}"
            raise JournalError("JOURNAL_DAMAGED", reason=reason, file=name)
        return ledger

    def append(self, fact: Fact, judge: Callable[[Ledger], None], nonce: str = "") -> Entry:
        """Take the next number for a fact; return its entry, as it is in the journal."""
        nonce = nonce or self.nonce()
        while True:
            if self.ledger.moved is not None:  # nothing follows it, whatever its kind
                raise moved_on(self.ledger.moved)
            if self.ledger.restoring is not None and not isinstance(fact, Opened):
                raise unfinished(self.ledger.restoring)
            judge(self.ledger)
            number = self.ledger.position + 1
            entry = Entry(number, fact.kind, nonce, int(self._clock.now() * 1000), fact.to_json())
            after = self.ledger.copy()
            apply(after, entry)  # an entry that does not fold is never written
            sent = encode(entry)
            data = self._create(entry, sent)
            if data is not None:
                self._check_not_folded(number)
                if data != sent:
                    entry, after = decode(data, f"{number}.json"), self.ledger.copy()
                    apply(after, entry)
                self.ledger, self._unfolded = after, self._unfolded + len(data)
                self._anchor = (f"{number}.json", _digest(data))
                faults.reach("journal.created")
                return entry
            self.load()

    def late(self, nonce: str) -> Entry | None:
        """Return the entry of an `append` that ended with ``JOURNAL_STORE_FAILED``, if it has come late, and load it."""
        number = self._unanswered.get(nonce)
        if number is None:
            return None
        name = f"{number}.json"
        try:
            entry = self._entry(self._read(name), name)
        except FileNotFoundError:
            return None
        if entry.nonce != nonce:
            return None
        self._check_not_folded(number)
        if self.ledger.position < number:
            self.load()
        return entry

    def ask(self, due: Callable[[Ledger], Request | None], judge: Callable[[Ledger], None]) -> Ledger:
        """Append the request that is due, and return the ledger that no longer needs one.

        The journal may grow, or be folded, at this moment: whether the request is still due is judged at every number. If the
        snapshot holds it, or another process has made it, it is not made again.
        """
        while (request := due(self.ledger)) is not None:

            def still_due(ledger: Ledger, request: Request = request) -> None:
                judge(ledger)
                if due(ledger) != request:
                    raise SupersededError("RUN_SUPERSEDED", run=request.run, newer="a newer entry")

            try:
                self.append(request, still_due)
            except SupersededError:
                self.load()
        return self.ledger

    def _create(self, entry: Entry, data: bytes) -> bytes | None:
        """Exclusive create; a lost answer is settled by reading back, also if the store's client has hidden it.

        A client that sends a create again, because the first answer was lost, is answered that the number is taken: by us.
        Returns what the entry holds if it is ours; None if the number is another's.
        """
        name = f"{entry.number}.json"
        failure: Exception | None = None
        try:
            if self._store.create(name, data):
                return data
        except OSError as error:
            failure = error
            self._unanswered[entry.nonce] = entry.number
        try:
            held = self._read(name)
            return held if decode(held, name).nonce == entry.nonce else None
        except FileNotFoundError as error:
            if failure is None:  # taken, folded and deleted since
                return None
            raise self._failed(name, failure) from error
        except JournalStoreError as error:
            if failure is None:
                raise
            raise self._failed(name, failure) from error

    @staticmethod
    def _failed(name: str, failure: Exception) -> JournalStoreError:
        return JournalStoreError("JOURNAL_STORE_FAILED", file=name, reason=str(failure))

    def _check_not_folded(self, number: int) -> None:
        """Raise if a snapshot is at or above our number: it had been taken and deleted, and our entry counts for nothing."""
        _, snapshots = self._list()
        if snapshots and snapshots[-1] >= number:
            newer = (
                f"a newer run: another process took journal number {number}, and snapshot {snapshots[-1]} includes it"
            )
            raise SupersededError("RUN_SUPERSEDED", run="not numbered yet", newer=newer, number=number)

    def fold(self, every: int = SNAPSHOT_EVERY) -> None:
        """Write a snapshot when `every` entries follow the last, and delete what two snapshots cover.

        Large entries are folded sooner, once everything is settled: a snapshot forgets what was prepared then.

        Entries are deleted up to the *previous* snapshot only, and the two newest snapshots stay, so that no listing,
        however it interleaves, sees neither an entry nor a snapshot that folded it.
        """
        last = self._snapshots[-1] if self._snapshots else 0
        large = self._unfolded >= SNAPSHOT_BYTES and not self.ledger.known_handles()
        if self.ledger.position - last < (1 if large else every):
            return
        name, data = snapshot_file(self.ledger, self._clock, self.nonce())
        try:
            self._store.create(name, data)
            self._delete_folded()
        except OSError as error:  # it may be there or not; the entries stay, and the next planning tries again
            log.warning("no snapshot of the journal was written now; a later one follows: %s", error)

    def _delete_folded(self) -> None:
        entries, snapshots = self._list()
        self._snapshots, self._unfolded = snapshots, 0
        if len(snapshots) < 2:
            return
        for stale in snapshots[:-2]:
            self._store.delete(f"{stale}.snapshot.json")
        for stale in [n for n in entries if n <= snapshots[-2]]:
            self._store.delete(f"{stale}.json")
        for leftover in filter(None, map(_LEFTOVER.fullmatch, self._store.names())):
            if int(leftover[1]) <= snapshots[-2]:  # a create that still uses it comes too late anyway
                self._store.delete(leftover[0])
