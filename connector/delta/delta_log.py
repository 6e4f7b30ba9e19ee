"""Read the outcomes of transactions from the table's log. Only the log decides whether a transaction is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from connector.delta.storage import TableFolder

if TYPE_CHECKING:
    from deltalake import DeltaTable

MARK: Final = "barrierKafka"
"""The key of the sink's mark in ``commitInfo``. The mark of a commit names the checkpoint and its micro-batches. The
mark of an abort has the nonces of the aborted transactions, and the mark of a rewind has the rewind's number."""


@dataclass
class Past:
    """The files that the table's log added, and the transactions that it aborted, after a version."""

    # Paths of all files that were added, including files that were removed later.
    added: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)  # Nonces of transactions that can never be committed.
    # False if the log no longer has all commits after this version. Then `added` and `aborted` may be incomplete.
    complete: bool = True


def read_past(folder: TableFolder, table: DeltaTable, since: int) -> Past:
    """Read the commits after version `since`, backward from the version at which `table` is open.

    Stop at the first missing commit. The oldest commits expire first, so a commit file before a missing commit is not part of
    the table. deltalake can write such a file after a long pause, if another process had already written the same version, and
    that version has expired.
    """
    past = Past()
    for version in range(table.version(), since, -1):
        actions = folder.log(version)
        if actions is None:
            past.complete = False
            break
        _take(past, actions)
    if not past.complete:
        past.added.update(unquote(path) for path in table.get_add_actions().column("path").to_pylist())
    return past


def _take(past: Past, actions: Iterable[Mapping[str, Any]]) -> None:
    for action in actions:
        if file := action.get("add") or action.get("remove"):  # a file that was removed had been added
            past.added.add(unquote(file["path"]))
        elif MARK in action.get("commitInfo", ()):
            past.aborted.update(action["commitInfo"][MARK].get("aborted", ()))
