"""What would hurt a query that writes into a table's folder: found by writing there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from connector.delta.storage import TableFolder
from connector.delta.write_options import WriteOptions
from transactional.finding import Finding, good, problem

__all__ = ["check_table"]

PROBE = ".barrier-doctor"
"""Readers of Delta pass over such names; removed in the end."""


def check_table(settings: WriteOptions) -> Iterator[Finding]:
    """Check that files can be written, read and deleted in the table's folder.

    A local folder that is not there yet is not made: the nearest one above it is on the same disk.
    """
    folder, path = TableFolder(settings), settings.path
    if folder.exists():
        table = folder.open()
        yield good("table", f"{path} is at version {table.version()}, with {len(table.schema().fields)} columns")
    else:
        yield good("table", f"{path} is no table yet: the query's first start creates it")
    while settings.local and not os.path.lexists(path):
        path = os.path.dirname(path)
    folder, probe = TableFolder(replace(settings, path=path)), f"{PROBE}-{uuid.uuid4().hex[:8]}"
    try:
        folder.put(probe, b"1")
        folder.read(probe)
        folder.delete([probe])
    except Exception as error:  # noqa: BLE001 - each object store's client has its own
        yield problem(
            "table",
            f"Files in {path} can't be written, read and deleted: {error}",
            "Check the path, and grant this user all three.",
        )
        with suppress(Exception):
            folder.delete([probe])
    else:
        yield good("table", f"files in {path} can be written, read and deleted")
