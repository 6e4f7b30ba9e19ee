"""Find the version of the table that a checkpoint created, and roll the table back to that version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from connector.delta.delta_log import MARK
from connector.delta.storage import TableFolder
from transactional import FencedError, StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable


def version_of(folder: TableFolder, table: DeltaTable, since: int, app: str, checkpoint: int) -> int | None:
    """Return the version after `since` that added a checkpoint's files; None if the log does not contain it."""
    for version in range(table.version(), since, -1):
        actions = folder.log(version)
        if actions is None:
            return None
        apps, mark = _whose(actions)
        if app in apps and mark.get("checkpoint") == checkpoint:
            return version
    return None


def check_restorable(folder: TableFolder, version: int, app: str) -> None:
    """Check, before a rewind begins, that the table can be rolled back: no other writer has committed a later version."""
    others, _ = _others(folder, folder.open(), version, app)
    if others:
        raise _refusal(folder, version, others)


def restore_version(folder: TableFolder, version: int, app: str, rewind: int) -> None:
    """Write a commit that rolls the table back to a version. Do nothing if this rewind has already written it.

    Raise if another writer has committed a later version, or if the query has committed a checkpoint since this rewind began.
    """
    from deltalake import CommitProperties

    table = folder.open()
    others, done = _others(folder, table, version, app, rewind)
    if done or version == table.version():  # deltalake does not restore the newest version
        return
    if others:
        raise _refusal(folder, version, others)
    mark = {"rewind": rewind, "app": app}
    table.restore(version, commit_properties=CommitProperties(custom_metadata={MARK: mark}))


def _others(
    folder: TableFolder, table: DeltaTable, version: int, app: str, rewind: int | None = None
) -> tuple[list[int], bool]:
    """Return the later versions that neither `app` nor its rewinds committed, and whether this rewind's commit exists.

    Rewinds and checkpoints have the numbers of their journal entries. Raise if one of them is newer than this rewind: another
    process has resumed and finished it.
    """
    others: list[int] = []
    for later in range(table.version(), version, -1):
        apps, mark = _whose(folder.log(later) or ())
        rewound = "rewind" in mark and mark.get("app", app) == app  # rewinds of version 0.9 name no app
        if app not in apps and not rewound:
            others.insert(0, later)
        elif rewind is not None:
            number = mark.get("rewind", mark.get("checkpoint", 0))
            if number > rewind:
                raise FencedError("LOCATION_BUSY", reason=f"another process has finished the rewind, see {folder.uri}")
            if mark.get("rewind") == rewind:
                return others, True
    return others, False


def _refusal(folder: TableFolder, version: int, others: list[int]) -> StoreError:
    return StoreError("TABLE_HAS_OTHER_COMMITS", table=folder.uri, version=version, versions=others[:10])


def _whose(actions: Iterable[Mapping[str, Any]]) -> tuple[set[str], Mapping[str, Any]]:
    """Return the ids in a commit's app transactions, and the sink's own entry (`MARK`) in ``commitInfo``, empty if missing."""
    apps: set[str] = set()
    mark: Mapping[str, Any] = {}
    for action in actions:
        if "txn" in action:
            apps.add(action["txn"]["appId"])
        mark = action.get("commitInfo", {}).get(MARK, mark)
    return apps, mark
