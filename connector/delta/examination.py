"""The check in which `barrier doctor` writes a file to a table's folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from connector.delta.storage import TableFolder, plain
from connector.delta.write_options import WriteOptions
from connector.sinks import good, nearest, problem
from transactional import Finding

PROBE = ".barrier-doctor"
"""The name of the file that the check writes. Delta's readers ignore it. If it can't be deleted, the next check replaces it."""


def try_out(settings: WriteOptions) -> Iterator[Finding]:
    """Check that files can be written, read and deleted in the table's folder.

    If a local folder does not exist, the check creates no folder: it uses the nearest existing parent folder.
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
    except Exception as error:  # noqa: BLE001 - each object store's client has its own errors
        advice = "Check the path, and give this user the right to write, read and delete files there."
        yield problem("table", f"Files in {folder.uri} can't be {step}: {plain(error)}", advice)
    else:
        yield good("table", f"files in {folder.uri} can be written, read and deleted")
