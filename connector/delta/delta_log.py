"""Read the outcomes of transactions from the table's log. Only the log decides whether a transaction is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from connector.delta.storage import TableFolder

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["MARK", "Past", "read_past"]

MARK: Final = "barrierKafka"
"""The key of our mark in ``commitInfo``. The mark has the checkpoint, the outcome, and the nonces of aborted transactions."""


@dataclass
class Past:
    """The facts that a table's log contains after a version.

    Attributes
    ----------
    added : set[str]
        Paths of all files that were added, including files that were removed later.
    aborted : set[str]
        Nonces of transactions that can never be committed.
    complete : bool
        False if some commits after this version were cleaned up from the log, so that `added` and `aborted` may be incomplete.
    """

    added: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    complete: bool = True


def read_past(folder: TableFolder, table: DeltaTable, since: int) -> Past:
    """Read the commits after version `since`, backward from the version at which `table` is open.

    Logs are cleaned up from their beginning. So if a commit is missing, an older commit file is not part of the table.
    deltalake writes such a file if its process was paused until another process had written the same version, and the log
    was cleaned up.
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
