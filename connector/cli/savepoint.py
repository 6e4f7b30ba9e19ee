"""``barrier savepoint``: take, list and delete copies of a query's completed checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.arguments import Location, Yes, seconds
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.savepoints import dispose as disposal
from connector.savepoints import manifest
from connector.savepoints import take as taking
from connector.savepoints.manifest import Savepoint
from connector.savepoints.take import TIMEOUT
from connector.views.words import time_text

QUERY = 8
"""The number of characters of a query's id that a table shows. The JSON document has the whole id."""


def take(
    report: Report,
    location: Location,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The folder to create for the savepoint. It must not exist yet, or must be empty.",
            show_default=False,
        ),
    ],
    timeout: Annotated[
        float,
        typer.Option(
            callback=seconds, help="How many seconds to wait for a running query to close the requested checkpoint."
        ),
    ] = TIMEOUT,
    newest: Annotated[
        bool,
        typer.Option(
            "--newest",
            help="Copy the newest completed checkpoint, even if later rows are prepared. Do not request another checkpoint.",
        ),
    ] = False,
) -> None:
    """Before an upgrade, a move or a risky change: copy the query's newest completed checkpoint, with Spark's state and logs.

    You can run the command while the query runs, and after the query has died. If micro-batches are prepared but not
    committed (with the option barrierInterval), the command first asks the query to close a checkpoint that contains them.
    """
    open_journal(location, "there is no checkpoint to copy")
    found = taking.take(location, target, timeout=timeout, newest=newest)
    _tell(found, report)
    report.say(f"taken: {found.path}")


def list_savepoints(
    report: Report,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The folder that contains the savepoints.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show only the savepoint in this subfolder of FOLDER.", show_default=False
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read every file of the savepoint NAME, and compare it with its recorded hash."),
    ] = False,
) -> None:
    """To find or check a savepoint before you need it: list the savepoints in a folder, oldest first, or show one of them."""
    if name is None:
        if verify:
            raise typer.BadParameter("--verify checks one savepoint: also pass its NAME")
        _list(folder, report)
        return
    found = manifest.read(f"{folder.rstrip('/')}/{name}")
    if verify:
        found.verify()
        report.say(f"all {len(found.files)} files match their recorded hashes")
    _tell(found, report)


def _list(folder: str, report: Report) -> None:
    found = manifest.find(folder)
    whole = [each for each in found if isinstance(each, Savepoint)]
    broken = [each for each in found if not isinstance(each, Savepoint)]
    report.facts.update(
        folder=folder,
        savepoints=[{"path": each.path, "size": each.size, **each.to_json()} for each in whole],
        unreadable=[{"condition": each.condition, "message": each.message} for each in broken],
    )
    heads = ("SAVEPOINT", "AT", "CHECKPOINT", "BATCH", "QUERY", "BYTES")
    report.table(heads, [_row(each) for each in whole], wraps=("SAVEPOINT",))
    if not found:
        report.say(f"there is no savepoint in {folder}")
    for each in broken:
        report.say(str(each))


def _row(found: Savepoint) -> tuple[str, ...]:
    name, time = found.path.rpartition("/")[2], time_text(found.time)
    return name, time, str(found.checkpoint), str(found.batch), found.query[:QUERY], str(found.size)


def dispose(
    report: Report,
    saved: Annotated[
        str, typer.Argument(metavar="SAVEPOINT", help="The folder of the savepoint to delete.", show_default=False)
    ],
    yes: Yes = False,
) -> None:
    """When you no longer need a savepoint: delete it. Queries that were restored from the savepoint do not need it.

    The command keeps other files in the savepoint's folder.
    """
    if disposal.delete_leftovers(saved):
        report.say("deleted the files that an interrupted command had left in the folder")
        return
    found = manifest.read(saved)
    _tell(found, report)
    report.say("This savepoint will be deleted.")
    report.confirm(yes)
    disposal.dispose(found)
    report.say("deleted")


def _tell(found: Savepoint, report: Report) -> None:
    report.facts.update(path=found.path, size=found.size, **found.to_json())
    partitions = "" if found.partitions is None else f", {found.partitions} shuffle partitions"
    report.pairs(
        f"Savepoint {found.path}",
        [
            ("query", f"{found.query}, at {found.location}"),
            ("checkpoint", f"{found.checkpoint}: micro-batches up to {found.batch}"),
            ("taken", time_text(found.time)),
            ("sink", f"{found.sink or '-'}, transactional id prefix {found.prefix or '-'}"),
            ("state", f"yes{partitions}" if found.stateful else "none"),
            ("files", f"{len(found.files)}, {found.size} bytes"),
        ],
    )
