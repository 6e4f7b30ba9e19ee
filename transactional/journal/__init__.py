"""The journal: numbered entries, each with one fact. A process claims the next number by creating that number's file."""

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
