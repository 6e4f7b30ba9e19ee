"""The handle of a prepared transaction. The handle's state comes from the table's log and from the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from connector.delta.data_files import AddedFile
from connector.delta.delta_log import Past
from transactional import HandleState, Outcome

if TYPE_CHECKING:
    from deltalake import DeltaTable

FORMAT: Final = 1


class DeltaHandle(TypedDict):
    """The handle of a prepared transaction: the table, the table's version before the transaction, and the files to add."""

    format: int
    app: str
    nonce: str
    table: str
    version: int
    columns: str
    files: list[AddedFile]


def outcome(table: DeltaTable, past: Past, handle: DeltaHandle, sizes: Sequence[int | None]) -> HandleState:
    """Return the state of a handle, from the table's log and from the files' present sizes (None for a missing file)."""
    if handle["format"] != FORMAT:
        return HandleState(
            Outcome.UNKNOWN,
            evidence=f"the handle has format {handle['format']}, but this release reads only format {FORMAT}",
        )
    if not is_of(table, handle):
        return HandleState(Outcome.UNKNOWN, evidence="the table was deleted and created again")
    if is_added(past, handle):
        return HandleState(Outcome.COMMITTED, evidence="the files are in the log")
    if half := half_added(past, handle):
        return HandleState(Outcome.UNKNOWN, evidence=half)
    if handle["nonce"] in past.aborted:
        return HandleState(Outcome.LOST, evidence="the abort is in the log")
    if not past.complete:
        return HandleState(
            Outcome.UNKNOWN, evidence=f"the log no longer has all commits after version {handle['version']}"
        )
    wrong = [f["path"] for f, size in zip(handle["files"], sizes, strict=True) if size != f["size"]]
    if wrong:
        return HandleState(Outcome.LOST, evidence=f"{len(wrong)} files are missing or incomplete, first {wrong[0]}")
    return HandleState(Outcome.PREPARED, evidence="the files exist, and are not in the log yet")


def is_of(table: DeltaTable, handle: DeltaHandle) -> bool:
    """Return whether the handle was prepared for this table, not for an older table at the same path."""
    return str(table.metadata().id) == handle["table"]


def is_added(past: Past, handle: DeltaHandle) -> bool:
    """Return whether all files of the handle were added to the table. One commit adds all of them."""
    return bool(handle["files"]) and len(added(past, handle)) == len(handle["files"])


def half_added(past: Past, handle: DeltaHandle) -> str:
    """Return an explanation if some, but not all, of the handle's files were added to the table; otherwise empty."""
    found, files = added(past, handle), handle["files"]
    if not 0 < len(found) < len(files):
        return ""
    other = next(file["path"] for file in files if file["path"] not in found)
    gone = "" if past.complete else " (the log no longer has all commits of that time)"
    return f"only {len(found)} of the transaction's {len(files)} files are in the log{gone}; {other} is missing"


def added(past: Past, handle: DeltaHandle) -> list[str]:
    """Return the paths of the handle's files that were added to the table."""
    return [file["path"] for file in handle["files"] if file["path"] in past.added]
