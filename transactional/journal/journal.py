"""The journal: numbered entries, each with one fact. A process claims the next number by creating that number's file.

If two drivers create the same number, exactly one of them succeeds. A number is never used again, even after its entry was
folded into a snapshot and deleted.
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

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 64  # entries, so that a planning reads at most twice this number of small files
SNAPSHOT_BYTES = 1 << 20  # of entries: with hundreds of tasks, each entry has megabytes; parsing takes 15 ms per MB
RELIST = 20  # how often a load is tried, if a snapshot changes the files during each try

_NAME = re.compile(r"([1-9][0-9]*)\.(snapshot\.)?json")
_LEFTOVER = re.compile(r"\.(\d+)\.(?:snapshot\.)?json\.[0-9a-f]{32}")  # the temporary file of a killed create


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def snapshot_file(ledger: Ledger, clock: Clock, nonce: str = "") -> tuple[str, bytes]:
    """Return the name and the contents of a snapshot file for a ledger. A new journal can begin with this file."""
    nonce = nonce or uuid.uuid4().hex
    entry = Entry(ledger.position, EntryKind.SNAPSHOT, nonce, int(clock.now() * 1000), ledger.to_json())
    return f"{ledger.position}.snapshot.json", encode(entry)


class Journal:
    """Loads the journal into a ledger, appends entries, and folds old entries into snapshots."""

    def __init__(
        self,
        store: JournalStore,
        clock: Clock | None = None,
        nonce: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self.nonce = nonce  # Returns a new random string for each call. Every entry gets one as its nonce.
        self.ledger = Ledger()
        self._snapshots: list[int] = []
        self._anchor = ("", b"")  # name and digest of the last file that was folded into the ledger
        self._unfolded = 0  # bytes of the entries after the newest snapshot, as far as they were read
        self._unanswered: dict[str, int] = {}  # number by nonce, of creates that failed and may still arrive

    def load(self) -> Ledger:
        """Read the entries that are new since the last load, fold them into `ledger`, and return it.

        If the last file that was folded has changed, the folder was deleted or replaced by an older copy. In that case,
        everything is read again: the newest snapshot, and the entries after it.
        """
        for _ in range(RELIST):
            ledger = self._load_once()
            if ledger is not None:
                self.ledger = ledger
                return ledger
        raise JournalError("JOURNAL_UNREADABLE", times=RELIST)

    def _load_once(self) -> Ledger | None:
        """Try once to load the journal; return None if another process folded and deleted entries in the meantime."""
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
                return None  # entries were added or deleted during the listing; the fold refuses a lasting gap
            for number in numbers:
                name = f"{number}.json"
                data = self._read(name)
                apply(ledger, self._entry(data, name))
                anchor, unfolded = (name, _digest(data)), unfolded + len(data)
            if numbers and any(snapshot >= first for snapshot in self._list()[1]):
                return None  # entries were folded meanwhile, so a late create may have reused a number
        except FileNotFoundError:
            return None
        self._snapshots, self._anchor, self._unfolded = snapshots, anchor, unfolded
        return ledger

    def _known(self) -> Ledger:
        """Return a copy of the loaded ledger if the last file folded into it is unchanged; otherwise an empty ledger."""
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
            raise self._failed("the list of the journal's files", error) from error

    def _read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed(name, error) from error

    def _entry(self, data: bytes, name: str) -> Entry:
        """Decode a file, and check that the entry's number matches the file's name.

        They differ if the file is a copy of another one.
        """
        entry = decode(data, name)
        is_snapshot = entry.kind == EntryKind.SNAPSHOT
        if name != f"{entry.number}.{'snapshot.' if is_snapshot else ''}json":
            reason = f"{name} contains {'snapshot' if is_snapshot else 'entry'} {entry.number}"
            raise JournalError("JOURNAL_DAMAGED", reason=reason, file=name)
        return entry

    def _snapshot(self, data: bytes, name: str) -> Ledger:
        entry = self._entry(data, name)
        try:
            ledger = Ledger.from_json(entry.body)
        except UNFIT as error:
            raise torn(name, error) from error
        if ledger.position != entry.number:
            reason = f"{name} contains the entries up to {ledger.position}, not up to {entry.number}"
            raise JournalError("JOURNAL_DAMAGED", reason=reason, file=name)
        return ledger

    def append(self, fact: Fact, judge: Callable[[Ledger], None], nonce: str = "") -> Entry:
        """Write a fact as the journal's next entry, and return the entry.

        If another process takes the number, load its entry and try the next number. `judge` checks the ledger before
        each attempt, and raises if the fact must not be written.

        Raises
        ------
        JournalStoreError
            ``JOURNAL_STORE_FAILED``: the entry may still appear in the journal (see `late`).
        """
        nonce = nonce or self.nonce()
        while True:
            if self.ledger.moved is not None:  # no entry of any kind may follow
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
        """Return the entry of a failed `append` if the store has created its file after all; otherwise None.

        `nonce` is the nonce of that `append`, which raised ``JOURNAL_STORE_FAILED``.
        """
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
        """Append a request unless the journal already has it, and return the ledger that includes it.

        `due` returns the request that a ledger still needs, or None. `due` is called again before each attempt, because
        another process may have made the same request in the meantime. For `judge`, see `append`.
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
        """Create an entry's file. Return the file's contents if the entry is ours; None if another process took the number.

        If the create fails, or the number is taken, read the file: its nonce shows whose entry it is. A store's client
        may have repeated a create whose answer was lost. In that case, the store reports that the number is taken,
        although the entry is ours.
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
            if failure is None:  # another process's entry, which has since been folded and deleted
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
        """Raise if a snapshot covers our number: another entry had this number and was deleted, so ours has no effect."""
        _, snapshots = self._list()
        if snapshots and snapshots[-1] >= number:
            newer = (
                f"a newer run: another process took journal number {number}, and snapshot {snapshots[-1]} includes it"
            )
            raise SupersededError("RUN_SUPERSEDED", run="not numbered yet", newer=newer, number=number)

    def fold(self, every: int = SNAPSHOT_EVERY) -> None:
        """If at least `every` entries follow the last snapshot, write a new snapshot and delete old entries.

        Large entries are folded sooner, but only when everything is settled: the snapshot then needs no prepared parts.

        Entries are deleted up to the *previous* snapshot only, and the two newest snapshots stay. So a process that lists the
        files at the same time always finds an entry, or a snapshot that contains it.
        """
        last = self._snapshots[-1] if self._snapshots else 0
        large = self._unfolded >= SNAPSHOT_BYTES and not self.ledger.known_handles()
        if self.ledger.position - last < (1 if large else every):
            return
        name, data = snapshot_file(self.ledger, self._clock, self.nonce())
        try:
            self._store.create(name, data)
            self._delete_folded()
        except OSError as error:  # the file may exist or not; the entries stay, and the next planning tries again
            log.warning("the journal's snapshot could not be written (%s); the next planning tries again", error)

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
            if int(leftover[1]) <= snapshots[-2]:  # a create that still uses it is too late anyway
                self._store.delete(leftover[0])
