"""``barrier savepoint``: copies of a query's completed checkpoints, taken from outside."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.given import seconds
from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, Report, Yes, reporting
from connector.savepoints import dispose as disposal
from connector.savepoints import manifest
from connector.savepoints import take as taking
from connector.savepoints.manifest import Savepoint
from connector.savepoints.take import TIMEOUT
from connector.views.words import time_text

__all__ = ["dispose", "list_savepoints", "show", "take"]

QUERY = 8
"""Characters of a query's id in a table; the JSON document has all."""

Saved = Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its folder.", show_default=False)]


def take(
    location: Location,
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The folder that is made: not there yet, or empty.", show_default=False),
    ],
    timeout: Annotated[
        float,
        typer.Option(callback=seconds, help="Seconds to wait for the checkpoint that a running query is asked for."),
    ] = TIMEOUT,
    newest: Annotated[
        bool,
        typer.Option(
            "--newest", help="The newest completed checkpoint will do, whatever is prepared since: do not ask."
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy a query's newest completed checkpoint, Spark's state and logs with it, into a folder of its own.

    Works while the query runs, and after it died. If micro-batches are prepared (barrierInterval), the query is asked to
    close a checkpoint over them first.
    """
    with reporting(output) as report:
        open_journal(location, "there is no checkpoint to copy")
        found = taking.take(location, target, timeout=timeout, newest=newest)
        _tell(found, report)
        report.say(f"taken: {found.path}")


def list_savepoints(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The folder that holds savepoints.", show_default=False)
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """List the savepoints in a folder, oldest first."""
    with reporting(output) as report:
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
            report.say(f"no savepoint lies in {folder}")
        for each in broken:
            report.say(str(each))


def _row(found: Savepoint) -> tuple[str, ...]:
    name, time = found.path.rpartition("/")[2], time_text(found.time)
    return name, time, str(found.checkpoint), str(found.batch), found.query[:QUERY], str(found.size)


def show(
    saved: Saved,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file, and compare it with its hash.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a savepoint holds."""
    with reporting(output) as report:
        found = manifest.read(saved)
        if verify:
            found.verify()
            report.say(f"all {len(found.files)} files are as they were written")
        _tell(found, report)


def dispose(saved: Saved, yes: Yes = False, output: OutputOption = Output.TABLE) -> None:
    """Delete a savepoint. Queries that were restored from it do not need it. Other files in its folder stay."""
    with reporting(output) as report:
        if disposal.delete_leftovers(saved):
            report.say("what an interrupted command had left there is deleted")
            return
        found = manifest.read(saved)
        _tell(found, report)
        report.say("It will be deleted.")
        report.confirm(yes)
        disposal.dispose(found)
        report.say("deleted")


def _tell(found: Savepoint, report: Report) -> None:
    report.facts.update(path=found.path, size=found.size, **found.to_json())
    partitions = "" if found.partitions is None else f", {found.partitions} shuffle partitions"
    report.pairs(
        f"Savepoint {found.path}",
        [
            ("query", f"{found.query}, of {found.location}"),
            ("checkpoint", f"{found.checkpoint}: micro-batches up to {found.batch}"),
            ("taken", time_text(found.time)),
            ("sink", f"{found.sink or '-'}, transactions under {found.prefix or '-'}"),
            ("state", f"yes{partitions}" if found.stateful else "none"),
            ("files", f"{len(found.files)}, {found.size} bytes"),
        ],
    )
