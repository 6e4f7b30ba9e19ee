"""The program ``barrier``: its commands, and its exit status."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from connector.cli import checkpoints, savepoint, transactions
from connector.cli.arguments import for_typer
from connector.cli.compile_pyspark import compile_pyspark
from connector.cli.doctor import doctor
from connector.cli.import_offsets import import_offsets
from connector.cli.marks import inject, offsets
from connector.cli.recover import recover_query
from connector.cli.report import EXIT_STATUS, LINES, Output, ReaderGoneError, Report, Status, writing
from connector.cli.resolve import resolve
from connector.cli.restore import restore
from connector.cli.rewind import rewind
from connector.cli.serve import serve
from connector.cli.stop import stop
from transactional.printable import printable

# typer's pretty tracebacks show the values of variables, perhaps a password. rich's help tables cut off option names.
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "epilog": EXIT_STATUS,
}

JSON = ("--output", Output.JSON.value)


class Program(TyperGroup):
    """The group of all commands. With ``--output json``, it also reports wrong usage as one JSON document.

    Without ``--output json``, typer reports wrong usage on standard error.
    """

    _json = False

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments before the command's name. ``--json`` is first replaced by ``--output json``."""
        args = spelt_out(args)
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
            # Depending on typer's version, UsageError is click's, or that of typer's own copy of click.
            if self._json and getattr(wrong, "exit_code", None) == Status.USAGE and hasattr(wrong, "format_message"):
                report = Report(Output.JSON)
                report.status = "wrong usage"
                report.facts.update(message=wrong.format_message())
                report.finish()
            raise


def spelt_out(words: Sequence[str]) -> list[str]:
    """Return the arguments with ``--output json`` in place of ``--json``."""
    options = words.index("--") if "--" in words else len(words)
    long = [part for word in words[:options] for part in (JSON if word == "--json" else (word,))]
    return [*long, *words[options:]]


def asks_json(words: Sequence[str]) -> bool:
    """Return whether the arguments contain ``--output json``, even if other arguments are wrong."""
    found = ""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == "--":
            break
        if word == "--output":
            found = following
        elif word.startswith("--output="):
            found = word.partition("=")[2]
    return found == Output.JSON.value


def show_version(asked: bool) -> None:
    """If `asked`, print the version of the package and exit."""
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
    help="Inspect the checkpoints of a PySpark query with two-phase-commit sinks, and apply the remedies that the query's "
    "errors name.",
    **_SETTINGS,
)


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version of barrier-kafka, and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of ``barrier`` that belong to no command, such as ``--version``."""


GROUPS: Mapping[str, str] = {
    "checkpoints": "To check on a query, running or stopped: list, show and request its checkpoints.",
    "savepoint": "Before you move or change a query: take, list and delete copies of its completed checkpoints.",
    "transactions": "When consumers are stuck: list, explain and abort the open Kafka transactions that block them.",
}

COMMANDS: Mapping[str, Callable[..., None]] = {
    "doctor": doctor,
    "recover": recover_query,
    "stop": stop,
    "checkpoints list": checkpoints.list_checkpoints,
    "checkpoints show": checkpoints.show,
    "checkpoints trigger": checkpoints.trigger,
    "transactions list": transactions.list_transactions,
    "transactions explain": transactions.explain,
    "transactions abort": transactions.abort_transaction,
    "savepoint take": savepoint.take,
    "savepoint list": savepoint.list_savepoints,
    "savepoint dispose": savepoint.dispose,
    "restore": restore,
    "rewind": rewind,
    "resolve": resolve,
    "import-offsets": import_offsets,
    "serve": serve,
    "inject": inject,
    "offsets": offsets,
    "compile-pyspark": compile_pyspark,
}
"""All commands, by name. Help, parsing and ``docs/commands.md`` are generated from their docstrings and arguments."""

_groups = {name: typer.Typer(help=text, **_SETTINGS) for name, text in GROUPS.items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name, short_help=GROUPS[_name])
for _words, _command in COMMANDS.items():
    _of, _, _name = _words.rpartition(" ")
    _when = (inspect.getdoc(_command) or "").partition("\n\n")[0]
    _groups.get(_of, app).command(_name, short_help=_when, epilog=EXIT_STATUS)(for_typer(_command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``barrier`` with these arguments (default: the process's arguments), and return the exit status (see `Status`)."""
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
        return int(end.code or Status.DONE)  # the code is always a number here
    except Exception:  # noqa: BLE001 - no unexpected error may look like a refusal.
        print(printable(traceback.format_exc(), LINES), end="", file=sys.stderr)
        return int(Status.FAILED)
    return int(Status.DONE)
