"""Notes of transactions that are not settled: with them the files of a dead task are found without listing the table.

``<table>/_barrier/<prefix>/<nonce>.json`` is written before the transaction's first file, again before each further one,
and deleted when the transaction is over. Readers and VACUUM pass by folders that start with ``_``.
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

__all__ = ["Note", "Notes"]

log = logging.getLogger(__name__)

VERSION: Final = 2
"""Notes of format 1 have no checksum; they are read."""


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
        value = {"format": VERSION, **asdict(note)}
        text = json.dumps({**value, "checksum": checksum(value)}, sort_keys=True)
        self._folder.put(self._path(note.nonce), text.encode())

    def delete(self, nonces: Sequence[str]) -> None:
        """Delete the notes of transactions that are over: nothing of them is left but what is committed."""
        self._folder.delete([self._path(nonce) for nonce in nonces])

    def all(self) -> Iterator[Note]:
        """Read every note. Leave one of a newer format alone, and one that is damaged: it may name any file."""
        for name in self._folder.names(self._place):
            if not name.endswith(".json"):
                continue
            try:
                note = _parsed(self._folder.read(f"{self._place}/{name}"))
            except FileNotFoundError:
                continue
            except UNFIT as error:
                log.warning(
                    "%s/%s/%s is damaged (%s), so it stays: after the transaction has ended, VACUUM deletes its files",
                    *(self._folder.uri, self._place, name, error),
                )
                continue
            if note is not None:
                yield note

    def _path(self, nonce: str) -> str:
        return f"{self._place}/{nonce}.json"


def _parsed(data: bytes) -> Note | None:
    """Parse a note; None if it is of a newer format. Raises one of `UNFIT` if it is damaged."""
    value = json.loads(data)
    known = value.pop("checksum", None)
    if value["format"] not in (1, VERSION):
        return None
    if value["format"] == VERSION and known != checksum(value):
        raise ValueError("its checksum does not match")
    del value["format"]
    return Note(**value)
