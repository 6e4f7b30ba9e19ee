"""Write a query's commits to its table.

Each commit contains an app transaction of Delta, whose id is made from the query id. The commit's ``commitInfo`` has an
entry of this sink (`MARK`), which names the committed checkpoint or the aborted transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connector.delta.columns import arrow_schema, columns_digest
from connector.delta.delta_log import MARK
from connector.delta.handles import DeltaHandle
from connector.delta.storage import TableFolder
from transactional import StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from transactional import DecidedCheckpoint


def check_unchanged(folder: TableFolder, table: DeltaTable, handles: Sequence[DeltaHandle]) -> None:
    """Check that the table's columns have not changed since the files were prepared. New nullable columns are allowed."""
    now, present = columns_digest(table), {field.name: field for field in arrow_schema(table)}
    for version in sorted({handle["version"] for handle in handles if handle["columns"] != now}):
        before = folder.open()
        before.load_as_version(version)
        former = {field.name: field for field in arrow_schema(before)}
        changed = [name for name, field in former.items() if present.get(name) != field]
        changed += [name for name, field in present.items() if name not in former and not field.nullable]
        same_folders = before.metadata().partition_columns == table.metadata().partition_columns
        if changed or not same_folders:
            columns = changed or ["its partition columns"]
            raise StoreError("TABLE_CHANGED", table=folder.uri, columns=columns)


def add_files(table: DeltaTable, handles: Sequence[DeltaHandle], checkpoint: DecidedCheckpoint) -> None:
    """Add the files of prepared transactions to the table, and record their checkpoint."""
    from deltalake.transaction import AddAction

    actions = [
        AddAction(file["path"], file["size"], file["partitionValues"], file["modificationTime"], True, file["stats"])
        for handle in handles
        for file in handle["files"]
    ]
    mark = {"checkpoint": checkpoint.id, "outcome": "committed", "batches": list(checkpoint.batches)}
    _write(table, actions, handles[0]["app"], checkpoint.id, mark)


def exclude(table: DeltaTable, handles: Sequence[DeltaHandle]) -> None:
    """Abort transactions with a commit that adds no files. After this commit, they can never be committed."""
    app = handles[0]["app"]
    mark = {"outcome": "aborted", "aborted": [handle["nonce"] for handle in handles]}
    _write(table, [], app, table.transaction_version(app) or 0, mark)


def _write(table: DeltaTable, actions: list[Any], app: str, version: int, mark: dict[str, Any]) -> None:
    """Write one commit. Raise if another process has committed with the same app id since `table` was opened."""
    from deltalake import CommitProperties, Transaction

    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=CommitProperties(custom_metadata={MARK: mark}, app_transactions=[Transaction(app, version)]),
    )
