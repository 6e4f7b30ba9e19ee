"""The journal: numbered entries, one for each binding fact. A process takes the next number by exclusive create."""

from transactional.journal.folders import sync_folder
from transactional.journal.journal import Journal, snapshot_file
from transactional.journal.store import JournalStore, LocalJournalStore, MemoryJournalStore, closed_journal

__all__ = [
    "Journal",
    "JournalStore",
    "LocalJournalStore",
    "MemoryJournalStore",
    "closed_journal",
    "snapshot_file",
    "sync_folder",
]
