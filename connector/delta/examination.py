"""What `barrier doctor` finds out about a table's folder by writing there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from connector.delta.storage import TableFolder, plain
from connector.delta.write_options import WriteOptions
from connector.sinks import good, nearest, problem
from transactional import Finding

__all__ = ["try_out"]

PROBE = ".barrier-doctor"
"""Readers of Delta pass over such names; removed in the end. One that may not be deleted is written over the next time."""


def try_out(settings: WriteOptions) -> Iterator[Finding]:
    """Check that files can be written, read and deleted in the table's folder.

    A local folder that is not there yet is not made: the nearest one above it is on the same disk.
    """
    folder, path = TableFolder(settings), settings.path
    if folder.exists():
        table = folder.open()
        yield good("table", f"{path} is at version {table.version()}, with {len(table.schema().fields)} columns")
    else:
        yield good("table", f"{path} is not a table yet: the query's first start creates it")
    step, folder = "written", TableFolder(replace(settings, path=nearest(path) if settings.local else path))
    try:
        folder.put(PROBE, b"1")
        step = "read"
        folder.read(PROBE)
        step = "deleted"
        folder.delete([PROBE])
    except Exception as error:  # noqa: BLE001 - each object store's client has its own
        advice = "Check the path, and grant this user to write, read and delete files there."
        yield problem("table", f"Files in {folder.uri} can't be {step}: {plain(error)}", advice)
    else:
        yield good("table", f"files in {folder.uri} can be written, read and deleted")
