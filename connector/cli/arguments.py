"""The arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from connector.cli.report import Output, reporting

Location = Annotated[
    str, typer.Argument(metavar="LOCATION", help="The query's checkpointLocation.", show_default=False)
]
Locations = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOCATION]...",
        help="The checkpointLocations of queries. Their journals show which query owns a transaction.",
        show_default=False,
    ),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help="The Kafka brokers to ask. By default, the brokers that the queries at the given locations write to.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
QueryStopped = Annotated[
    bool,
    typer.Option(
        "--query-stopped",
        help="Confirm that the query is not running. You need this if the driver's process is still alive, or can't be seen "
        "from here (for example, because it runs in another container).",
    ),
]

_GivenOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of readStream or writeStream that the journal does not have, or whose value has changed. Can be "
        "repeated. Other users of this machine can see it, so pass secrets with --options-file.",
        show_default=False,
    ),
]
_GivenFile = Annotated[
    str | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        help="A file with options like those of --option: one KEY=VALUE per line. A line that starts with # is a comment.",
        show_default=False,
    ),
]
_Output = Annotated[
    Output,
    typer.Option(
        "--output",
        help="Print text for people (table), or one JSON document on standard output (json; --json is the short form).",
    ),
]
_OF_SINKS = {"option": (_GivenOptions, None), "options_file": (_GivenFile, None)}
_OF_ALL = {"output": (_Output, Output.TABLE)}


def for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return a wrapper through which typer can call a command.

    The wrapper takes ``--output`` instead of `report`, and ``--option`` and ``--options-file`` instead of `given`.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    takes_options = own.pop("given", None) is not None
    del own["report"]

    @functools.wraps(command)
    def run(output: Output, option: Sequence[str] = (), options_file: str | None = None, **arguments: Any) -> None:
        given = options_given(option, options_file)
        with reporting(output, given) as report:
            command(report, **arguments, **({"given": given} if takes_options else {}))

    shared = {**(_OF_SINKS if takes_options else {}), **_OF_ALL}
    parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in own.values()]
    for name, (kind, default) in shared.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def seconds(number: float) -> float:
    """Check that a number of seconds is neither negative nor ``nan``, and return it."""
    if not number >= 0:  # also true for nan, because every comparison with nan is false
        raise typer.BadParameter(f"{number} is not a number of seconds, 0 or more")
    return number


def options_given(option: Sequence[str] | None, file: str | None) -> dict[str, str]:
    """Return the options of ``--options-file`` and ``--option``; if both have a key, ``--option`` wins."""
    return {**_from_file(file), **_pairs(option or (), "--option")}


def _pairs(lines: Sequence[str], where: str) -> dict[str, str]:
    """Parse lines of the form ``KEY=VALUE``. Errors do not quote a line, because it may be a secret."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{where}: option number {number} is not KEY=VALUE")  # the text may be a secret
        found[key.strip()] = value.strip()
    return found


def _from_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors on Windows put a byte order mark before the first key
            lines = [line.strip() for line in file]
    except OSError as problem:
        raise typer.BadParameter(f"--options-file {path}: {problem.strerror}") from problem
    except UnicodeDecodeError:  # neither shown nor kept as the cause: it quotes the file
        raise typer.BadParameter(f"--options-file {path}: the file is not UTF-8 text") from None
    return _pairs([line for line in lines if line and not line.startswith("#")], f"--options-file {path}")
