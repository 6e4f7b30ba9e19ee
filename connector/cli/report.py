"""The output of a command (text for people, or one JSON document), and its exit status."""

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

LINES = "\n\t"
"""The only control characters that are printed unchanged, because sentences and tracebacks contain them."""

WIDTH = 160
"""Width, in characters, of a table in a file or a pipe, unless ``COLUMNS`` is set. At this width, nothing is cut off."""


class Status(enum.IntEnum):
    """The exit statuses of the program; `MEANINGS` explains them."""

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
    Status.REFUSED: "refused (the output names the condition; unless the message says otherwise, nothing was changed)",
    Status.USAGE: "wrong usage",
    Status.NOT_ANSWERED: "not confirmed: the answer was no, or there was no terminal to ask on and no --yes",
    Status.FAILED: "failed with an error (for example of a disk or a store): you can safely run the command again",
    Status.PENDING: "the query was asked to stop, but did not stop within --timeout",
    Status.INTERRUPTED: "interrupted with Ctrl-C",
    Status.READER_GONE: "the program that reads the output (such as head) has ended: you can safely run the command again",
}
"""The meaning of every exit status, which each ``--help`` prints."""

EXIT_STATUS = f"Exit status: {'; '.join(f'{status.value} = {meaning}' for status, meaning in MEANINGS.items())}."


class Output(str, enum.Enum):
    """The formats in which a command can print its output."""

    TABLE = "table"
    JSON = "json"


class NotAnsweredError(Exception):
    """The user did not confirm the command with yes."""


class Report:
    """The output and the exit status of one command.

    Parameters
    ----------
    output : Output
        The format of the output.

    Attributes
    ----------
    json : bool
        True if standard output gets one JSON document instead of text.
    facts : dict[str, Any]
        The fields of the JSON document, except for ``status``.
    status : str
        The ``status`` of the JSON document.
    exit : Status
        The exit status, if the command raises no error.
    """

    def __init__(self, output: Output) -> None:
        self.json = output is Output.JSON
        self.facts: dict[str, Any] = {}
        self.status = "done"
        self.exit = Status.DONE

    def pending(self, status: str) -> None:
        """Record that a query has not yet done what the command asked for. The JSON document gets this `status`."""
        self.status, self.exit = status, Status.PENDING

    def say(self, *lines: str) -> None:
        """Print text for people on standard output. With JSON output, print it on standard error instead."""
        for line in lines:
            if self.json:
                self.complain(line)
            else:
                self._print(printable(line, LINES))

    def complain(self, line: str) -> None:
        """Print a line on standard error."""
        print(printable(line, LINES), file=sys.stderr)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], wraps: Collection[str]) -> None:
        """Print a table with these column headers. Only columns whose headers are in `wraps` may wrap onto several lines."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in heads:
            table.add_column(head, overflow="fold", no_wrap=head not in wraps)
        for row in rows:
            table.add_row(*map(printable, row))
        self._draw(table)

    def pairs(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print a title, then each name with its value."""
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
        drawn = io.StringIO()  # not stdout: if a pipe's reader has gone, rich would end the program
        console = Console(file=drawn, force_terminal=terminal, markup=False, highlight=False, emoji=False, width=width)
        console.print(table)
        self._print(drawn.getvalue(), end="")

    def _print(self, text: str, end: str = "\n") -> None:
        with writing():
            print(text, end=end)

    def confirm(self, yes: bool) -> None:
        """Ask the user whether to continue, unless `yes` is set. If the answer is not yes, raise `NotAnsweredError`."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise NotAnsweredError("there is no terminal to ask on. To confirm, pass --yes")
        print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise NotAnsweredError("nothing was changed")

    def finish(self) -> None:
        """Print the JSON document, if the output format is JSON."""
        if self.json:
            self._print(json.dumps({"status": self.status, **self.facts}, indent=2, default=str))


class ReaderGoneError(Exception):
    """Standard output is a pipe whose reader has ended, for example ``| head``. Nothing more is written to it."""


@contextmanager
def writing() -> Iterator[None]:
    """Run a block that writes to standard output. If the reader of a pipe has ended, raise `ReaderGoneError`."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise ReaderGoneError from None


@contextmanager
def reporting(output: Output, given: Mapping[str, str] | None = None) -> Iterator[Report]:
    """Run the body of a command as a block. If the block raises an error, print it, and exit with its status."""
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
    except Exception as problem:  # noqa: BLE001 - no unexpected error may look like a refusal.
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
