"""The outcomes of transactions, read from the table's log, which alone decides them for good."""

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
"""Key in ``commitInfo``: checkpoint, outcome, and the nonces of transactions that this commit excludes for ever."""


@dataclass
class Past:
    """The content of the log since a version.

    Attributes
    ----------
    added : set[str]
        Paths of files that were added, also of those that were removed later.
    aborted : set[str]
        Nonces of transactions that can't be committed any more.
    complete : bool
        False if commits of that time were cleaned up: an action that is not found may have been there.
    """

    added: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    complete: bool = True


def read_past(folder: TableFolder, table: DeltaTable, since: int) -> Past:
    """Read the commits after `since`, backwards from the version at which `table` is open.

    Logs are cleaned up from their beginning. So a commit that lies before a missing one is none of the table's: deltalake
    writes it if a process stood still until its version had been taken and cleaned up.
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
