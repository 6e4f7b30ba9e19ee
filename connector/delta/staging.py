"""Notes about unfinished transactions. If a task dies, a note lists the task's files, so that they can be deleted.

A task writes the note ``<table>/_barrier/<prefix>/<nonce>.json`` before the transaction's first file, and again before each
further file. The note is deleted when the transaction is over. Readers and VACUUM ignore folders that start with ``_``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import quote

from connector.delta.storage import TableFolder
from connector.sinks import UNFIT, checksum
from transactional import TransactionContext

log = logging.getLogger(__name__)

VERSION: Final = 2
"""The version of the format of notes."""


@dataclass(frozen=True)
class Note:
    """A note that lists the files of an unfinished transaction, so that they can be deleted if the task dies."""

    nonce: str
    queryId: str
    run: int
    batch: int
    partition: int
    table: str  # The table's id.
    version: int  # The table's version before the transaction began. Only a later version can commit the transaction.
    files: Sequence[str] = ()  # Paths of all files that the transaction has created or is about to create.

    @classmethod
    def of(cls, context: TransactionContext, table: str, version: int) -> Note:
        """Return the note of a new transaction, which has no files yet."""
        return cls(context.nonce, context.queryId, context.run, context.batchId, context.partitionId, table, version)


class Notes:
    """The notes of one prefix."""

    def __init__(self, folder: TableFolder, prefix: str) -> None:
        self._folder = folder
        self._place = f"_barrier/{quote(prefix, safe='').replace('.', '%2E')}"

    def put(self, note: Note) -> None:
        """Write a note in place of the transaction's earlier note."""
        value = {"format": VERSION, **asdict(note)}
        text = json.dumps({**value, "checksum": checksum(value)}, sort_keys=True)
        self._folder.put(self._path(note.nonce), text.encode())

    def delete(self, nonces: Sequence[str]) -> None:
        """Delete the notes of ended transactions, whose files have already been committed or deleted."""
        self._folder.delete([self._path(nonce) for nonce in nonces])

    def all(self) -> Iterator[Note]:
        """Yield all notes.

        Skip notes in another format, and damaged notes, because a damaged note could name any file.
        """
        for name in self._folder.names(self._place):
            if not name.endswith(".json"):
                continue
            try:
                note = _parsed(self._folder.read(f"{self._place}/{name}"))
            except FileNotFoundError:
                continue
            except UNFIT as error:
                log.warning(
                    "skipped the damaged note %s/%s/%s (%s). If the transaction was not committed, VACUUM deletes its files",
                    *(self._folder.uri, self._place, name, error),
                )
                continue
            if note is not None:
                yield note

    def _path(self, nonce: str) -> str:
        return f"{self._place}/{nonce}.json"


def _parsed(data: bytes) -> Note | None:
    """Return the parsed note; None if it has another format.

    Raise one of the errors in `UNFIT` if the note is damaged.
    """
    value = json.loads(data)
    known = value.pop("checksum", None)
    if value["format"] != VERSION:
        return None
    if known != checksum(value):
        raise ValueError("its checksum does not match")
    del value["format"]
    return Note(**value)
