"""Notes of transactions that are not settled: with them the files of a dead task are found without listing the table.

``<table>/_barrier/<prefix>/<nonce>.json`` is written before the transaction's first file, again before each further one,
and deleted when the transaction is over. Readers and VACUUM pass by folders that start with ``_``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import quote

from connector.delta.storage import TableFolder
from transactional.sink import TransactionContext

__all__ = ["Note", "Notes"]

VERSION: Final = 1


@dataclass(frozen=True)
class Note:
    """A note of a transaction whose task may be dead.

    Parameters
    ----------
    nonce, queryId : str
    run, batch, partition : int
    table : str
        The table's id.
    version : int
        The table's version before the transaction began: it can't be committed in that or an earlier one.
    files : Sequence[str]
        Every file that it has, or is about to make.
    """

    nonce: str
    queryId: str
    run: int
    batch: int
    partition: int
    table: str
    version: int
    files: Sequence[str] = ()

    @classmethod
    def of(cls, context: TransactionContext, table: str, version: int) -> Note:
        """Return the note of a transaction that begins."""
        return cls(context.nonce, context.queryId, context.run, context.batchId, context.partitionId, table, version)


class Notes:
    """The notes of one prefix.

    Parameters
    ----------
    folder : TableFolder
    prefix : str
    """

    def __init__(self, folder: TableFolder, prefix: str) -> None:
        self._folder = folder
        self._place = f"_barrier/{quote(prefix, safe='').replace('.', '%2E')}"

    def put(self, note: Note) -> None:
        """Write a note, or replace it."""
        text = json.dumps({"format": VERSION, **asdict(note)}, sort_keys=True)
        self._folder.put(self._path(note.nonce), text.encode())

    def delete(self, nonces: Sequence[str]) -> None:
        """Delete the notes of transactions that are over: nothing of them is left but what is committed."""
        self._folder.delete([self._path(nonce) for nonce in nonces])

    def all(self) -> Iterator[Note]:
        """Read every note. Leave one of a newer format alone."""
        for name in self._folder.names(self._place):
            if not name.endswith(".json"):
                continue
            try:
                value = json.loads(self._folder.read(f"{self._place}/{name}"))
            except FileNotFoundError:
                continue
            if value.pop("format") == VERSION:
                yield Note(**value)

    def _path(self, nonce: str) -> str:
        return f"{self._place}/{nonce}.json"
