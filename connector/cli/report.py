"""The answer of a command: sentences and tables for people, or one JSON document; and the exit status."""

from __future__ import annotations

import enum
import io
import json
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from transactional.errors import TwoPhaseCommitError
from transactional.printable import printable
from transactional.secrets import hiding, secrets_of

__all__ = [
    "EXIT_STATUS",
    "LINES",
    "MEANINGS",
    "Output",
    "ReaderGoneError",
    "Report",
    "Status",
    "reporting",
    "writing",
]

LINES = "\n\t"
"""Control characters that stand in a sentence or a traceback."""

WIDTH = 160
"""Columns of a table that goes into a file or a pipe, unless ``COLUMNS`` is set: wide enough to cut nothing."""


class Status(enum.IntEnum):
    """Exit status of the program."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    NOT_ANSWERED = 3
    FAILED = 4
    PENDING = 5
    INTERRUPTED = 130
    READER_GONE = 141


MEANINGS = {
    Status.DONE: "done, or nothing to do",
    Status.REFUSED: "refused, the condition is named; nothing was changed unless the message says otherwise",
    Status.USAGE: "wrong usage",
    Status.NOT_ANSWERED: "a question was not answered (no terminal and no --yes), or with no",
    Status.FAILED: "failed: an error of a disk or a store, safe to repeat",
    Status.PENDING: "asked for, and not done yet when --timeout was over",
    Status.INTERRUPTED: "interrupted from the keyboard",
    Status.READER_GONE: "standard output is a pipe whose reader has gone, as head does: it may not be done, safe to repeat",
}
"""Every exit status, for each --help."""

EXIT_STATUS = f"Exit status: {'; '.join(f'{status.value} {meaning}' for status, meaning in MEANINGS.items())}."


class Output(str, enum.Enum):
    """The form of a command's answer."""

    TABLE = "table"
    JSON = "json"


class NotAnsweredError(Exception):
    """The question was not answered with yes."""


class Report:
    """One command's answer.

    Parameters
    ----------
    output : Output

    Attributes
    ----------
    facts : dict[str, Any]
        Of the JSON document, beside its ``status``.
    """

    def __init__(self, output: Output) -> None:
        self.json = output is Output.JSON
        self.facts: dict[str, Any] = {}
        self.status = "done"
        self.exit = Status.DONE

    def pending(self, status: str) -> None:
        """Record that a query was asked for it and has not done it yet."""
        self.status, self.exit = status, Status.PENDING

    def say(self, *lines: str) -> None:
        """Print sentences for people: on standard output, or on standard error beside a JSON document."""
        for line in lines:
            if self.json:
                self.complain(line)
            else:
                self._print(printable(line, LINES))

    def complain(self, line: str) -> None:
        """Print what went wrong on standard error."""
        print(printable(line, LINES), file=sys.stderr)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], wraps: Collection[str]) -> None:
        """Print rows under heads; only the columns of these heads may take several lines."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in heads:
            table.add_column(head, overflow="fold", no_wrap=head not in wraps)
        for row in rows:
            table.add_row(*map(printable, row))
        self._draw(table)

    def pairs(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print a title, and names with their values."""
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(f"  {printable(name)}", printable(value))
        if not self.json:
            self._print(printable(title))
        self._draw(table)

    def _draw(self, table: Any) -> None:
        from rich.console import Console

        if self.json or sys.stdout is None:
            return
        terminal = sys.stdout.isatty()
        width = None if terminal or "COLUMNS" in os.environ else WIDTH
        drawn = io.StringIO()  # rich ends the program by itself when a pipe's reader has gone
        console = Console(file=drawn, force_terminal=terminal, markup=False, highlight=False, emoji=False, width=width)
        console.print(table)
        self._print(drawn.getvalue(), end="")

    def _print(self, text: str, end: str = "\n") -> None:
        with writing():
            print(text, end=end)

    def confirm(self, yes: bool) -> None:
        """Ask whether to go on."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise NotAnsweredError("pass --yes: there is no terminal to ask on")
        print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise NotAnsweredError("nothing was changed")

    def finish(self) -> None:
        """Write the document."""
        if self.json:
            self._print(json.dumps({"status": self.status, **self.facts}, indent=2, default=str))


class ReaderGoneError(Exception):
    """Standard output is a pipe whose reader has gone, as after ``| head``; nothing more is written there."""


@contextmanager
def writing() -> Iterator[None]:
    """Turn a pipe without a reader into `ReaderGoneError`, in code that writes to standard output."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise ReaderGoneError from None


@contextmanager
def reporting(output: Output, given: Mapping[str, str] | None = None) -> Iterator[Report]:
    """Run a command's body: an error that it raises becomes its answer and its exit status."""
    report = Report(output)
    status = Status.DONE
    try:
        with hiding(secrets_of(given or {})):
            yield report
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except TwoPhaseCommitError as error:
        report.complain(f"refused: {error}")
        report.status, status = "refused", Status.REFUSED
        report.facts.update(condition=error.condition, message=error.message)
    except NotAnsweredError as reason:
        report.complain(f"not answered: {reason}")
        report.status, status = "not answered", Status.NOT_ANSWERED
    except ReaderGoneError:
        raise typer.Exit(Status.READER_GONE) from None
    except KeyboardInterrupt:
        report.complain("interrupted")
        report.status, status = "interrupted", Status.INTERRUPTED
    except Exception as problem:  # noqa: BLE001 - whatever it is, it must not look like a refusal.
        report.complain(traceback.format_exc().rstrip("\n"))
        report.complain(f"failed: {type(problem).__name__}")
        report.status, status = "failed", Status.FAILED
        report.facts.update(error=type(problem).__name__)
    try:
        report.finish()
    except ReaderGoneError:
        raise typer.Exit(Status.READER_GONE if status is Status.DONE else status) from None
    status = report.exit if status is Status.DONE else status
    if status is not Status.DONE:
        raise typer.Exit(status)
