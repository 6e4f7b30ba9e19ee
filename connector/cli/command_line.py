"""The program ``barrier``: its commands, and how it ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from connector.cli import checkpoints
from connector.cli.adopt import adopt
from connector.cli.import_offsets import import_offsets
from connector.cli.report import EXIT_STATUS, Status
from connector.cli.resolve import resolve
from connector.cli.rewind import rewind

__all__ = ["main"]

# A traceback with the values of variables could show a password.
_SETTINGS: dict[str, Any] = {"add_completion": False, "no_args_is_help": True, "pretty_exceptions_enable": False}

app = typer.Typer(
    name="barrier",
    help="Look at the checkpoints of a PySpark query with two-phase-commit sinks, and the ways out that its errors name.",
    epilog=EXIT_STATUS,
    **_SETTINGS,
)
group = typer.Typer(help="A query's checkpoints, while it runs or after.", epilog=EXIT_STATUS, **_SETTINGS)
app.add_typer(group, name="checkpoints")

_COMMANDS: Sequence[tuple[typer.Typer, str, Callable[..., None]]] = (
    (group, "list", checkpoints.list_checkpoints),
    (group, "show", checkpoints.show),
    (group, "trigger", checkpoints.trigger),
    (app, "rewind", rewind),
    (app, "adopt", adopt),
    (app, "resolve", resolve),
    (app, "import-offsets", import_offsets),
)
for _app, _name, _command in _COMMANDS:
    _app.command(_name, epilog=EXIT_STATUS)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``barrier``; returns the exit status, see `connector.cli`."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="barrier")
    except SystemExit as end:
        return int(end.code or Status.DONE)  # it is always a number here
    except Exception:  # noqa: BLE001 - whatever it is, it must not look like a refusal.
        traceback.print_exc(file=sys.stderr)
        return int(Status.FAILED)
    return int(Status.DONE)
