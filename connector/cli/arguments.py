"""The arguments that several commands take, each declared once, and the options of every command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from connector.cli.report import Output, reporting

__all__ = ["Location", "Locations", "QueryStopped", "Servers", "Yes", "for_typer", "seconds"]

Location = Annotated[
    str, typer.Argument(metavar="LOCATION", help="The query's checkpointLocation.", show_default=False)
]
Locations = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LOCATION]...", help="Checkpoint locations, whose journals are read.", show_default=False),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help="The brokers to ask; by default those of the locations' sinks.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
QueryStopped = Annotated[
    bool,
    typer.Option(
        "--query-stopped",
        help="You know that no query runs, though its driver's process lives or can't be seen (as in another container).",
    ),
]

_GivenOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the sink that the journal does not keep, or that has changed. Other users of the machine can "
        "see it: put secrets into the file.",
        show_default=False,
    ),
]
_GivenFile = Annotated[
    str | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        help="A file with such options, a line each: KEY=VALUE; # begins a comment.",
        show_default=False,
    ),
]
_Output = Annotated[
    Output,
    typer.Option("--output", help="A text for people, or one JSON document on standard output (--json for short)."),
]
_OF_SINKS = {"option": (_GivenOptions, None), "options_file": (_GivenFile, None)}
_OF_ALL = {"output": (_Output, Output.TABLE)}


def for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer calls it: with ``--output`` in place of `report`, the sink's options in place of `given`."""
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
    """Check a duration: from 0, and not ``nan``, which not every version of typer refuses with ``min=0``."""
    if not number >= 0:  # so is nan, which compares with nothing
        raise typer.BadParameter(f"{number} is no number of seconds from 0")
    return number


def options_given(option: Sequence[str] | None, file: str | None) -> dict[str, str]:
    """Return the options that were given; a single option overrides the file."""
    return {**_from_file(file), **_pairs(option or (), "--option")}


def _pairs(lines: Sequence[str], where: str) -> dict[str, str]:
    """Parse lines KEY=VALUE."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{where}: number {number} is not KEY=VALUE")  # never the text: it may be a secret
        found[key.strip()] = value.strip()
    return found


def _from_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8-sig") as file:  # Windows' editors put a mark before the first key
            lines = [line.strip() for line in file]
    except OSError as problem:
        raise typer.BadParameter(f"--options-file {path}: {problem.strerror}") from problem
    except UnicodeDecodeError:  # not shown, nor kept as the cause: it holds what is in the file
        raise typer.BadParameter(f"--options-file {path}: it is not text in UTF-8") from None
    return _pairs([line for line in lines if line and not line.startswith("#")], f"--options-file {path}")
