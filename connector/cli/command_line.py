"""The program ``barrier``: its commands, and how it ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from connector.cli import checkpoints, savepoint, transactions
from connector.cli.adopt import adopt
from connector.cli.doctor import doctor
from connector.cli.import_offsets import import_offsets
from connector.cli.inject import inject
from connector.cli.offsets import offsets
from connector.cli.recover import recover_query
from connector.cli.report import EXIT_STATUS, LINES, Output, ReaderGoneError, Report, Status, writing
from connector.cli.resolve import resolve
from connector.cli.restore import restore
from connector.cli.rewind import rewind
from connector.cli.serve import serve
from connector.cli.stop import stop
from transactional.printable import printable

__all__ = ["main"]

# A traceback with the values of variables could show a password; rich's tables cut the names of options.
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "epilog": EXIT_STATUS,
}

JSON = ("--output", Output.JSON.value)


class Program(TyperGroup):
    """Report wrong usage, too, as one document if ``--output json`` was given; typer reports it on standard error."""

    _json = False

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments of the program itself."""
        self._json = asks_json(args)
        with self._answering():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of a command, and run it."""
        with self._answering():
            return super().invoke(ctx)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except Exception as wrong:
            # UsageError is click's, or that of the click inside typer: by version.
            if self._json and getattr(wrong, "exit_code", None) == Status.USAGE and hasattr(wrong, "format_message"):
                report = Report(Output.JSON)
                report.status = "wrong usage"
                report.facts.update(message=wrong.format_message())
                report.finish()
            raise


class Command(TyperCommand):
    """Take ``--json`` for ``--output json``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments of the command."""
        if any(parameter.name == "output" for parameter in self.params):
            args = spelt_out(args)
        return super().parse_args(ctx, args)


def spelt_out(words: Sequence[str]) -> list[str]:
    """Return the arguments with ``--output json`` in place of ``--json``."""
    options = words.index("--") if "--" in words else len(words)
    long = [part for word in words[:options] for part in (JSON if word == "--json" else (word,))]
    return [*long, *words[options:]]


def asks_json(words: Sequence[str]) -> bool:
    """Return whether ``--output json`` is among the arguments, which need not make sense otherwise."""
    found, long = "", spelt_out(words)
    for word, following in zip(long, [*long, ""][1:], strict=True):
        if word == "--":
            break
        if word == "--output":
            found = following
        elif word.startswith("--output="):
            found = word.partition("=")[2]
    return found == Output.JSON.value


def show_version(asked: bool) -> None:
    """Print the version of the package, and end."""
    if asked:
        try:
            version = metadata.version("barrier-kafka")
        except metadata.PackageNotFoundError:  # a zip, or a checkout that is not installed
            version = "not installed"
        print(f"barrier-kafka {version}")
        raise typer.Exit


app = typer.Typer(
    name="barrier",
    cls=Program,
    help="Look at the checkpoints of a PySpark query with two-phase-commit sinks, and apply the remedies that its errors name.",
    **_SETTINGS,
)
group = typer.Typer(help="A query's checkpoints, while it runs or after.", **_SETTINGS)
app.add_typer(group, name="checkpoints")
saved = typer.Typer(help="Copies of a query's completed checkpoints.", **_SETTINGS)
app.add_typer(saved, name="savepoint")
opened = typer.Typer(
    help="Open Kafka transactions: who holds readers back, and what may be done about it.", **_SETTINGS
)
app.add_typer(opened, name="transactions")


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Take options that belong to no command."""


_COMMANDS: Sequence[tuple[typer.Typer, str, Callable[..., None]]] = (
    (group, "list", checkpoints.list_checkpoints),
    (group, "show", checkpoints.show),
    (group, "trigger", checkpoints.trigger),
    (saved, "take", savepoint.take),
    (saved, "list", savepoint.list_savepoints),
    (saved, "show", savepoint.show),
    (saved, "dispose", savepoint.dispose),
    (opened, "list", transactions.list_transactions),
    (opened, "describe", transactions.describe),
    (opened, "explain", transactions.explain),
    (opened, "abort", transactions.abort_transaction),
    (app, "doctor", doctor),
    (app, "serve", serve),
    (app, "restore", restore),
    (app, "stop", stop),
    (app, "recover", recover_query),
    (app, "rewind", rewind),
    (app, "adopt", adopt),
    (app, "resolve", resolve),
    (app, "import-offsets", import_offsets),
    (app, "inject", inject),
    (app, "offsets", offsets),
)
for _app, _name, _command in _COMMANDS:
    _app.command(_name, cls=Command, epilog=EXIT_STATUS)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``barrier``; returns the exit status, see `connector.cli`."""
    status = _run(arguments)
    try:
        with writing():
            if sys.stdout is not None:
                sys.stdout.flush()
    except ReaderGoneError:
        return status or int(Status.READER_GONE)
    return status


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(args=None if arguments is None else list(arguments), prog_name="barrier")
    except SystemExit as end:
        return int(end.code or Status.DONE)  # it is always a number here
    except Exception:  # noqa: BLE001 - whatever it is, it must not look like a refusal.
        print(printable(traceback.format_exc(), LINES), end="", file=sys.stderr)
        return int(Status.FAILED)
    return int(Status.DONE)
