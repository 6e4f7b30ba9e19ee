"""Arguments that several commands take: options of the sink that the journal does not keep, and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["GivenFile", "GivenOptions", "QueryStopped", "claims", "options_given", "seconds"]

GivenOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the sink that the journal does not keep, or that has changed. Other users of the machine can "
        "see it: secrets belong in the file.",
        show_default=False,
    ),
]
GivenFile = Annotated[
    str | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        help="Such options, a line each: KEY=VALUE; # begins a comment.",
        show_default=False,
    ),
]
QueryStopped = Annotated[
    bool,
    typer.Option(
        "--query-stopped",
        help="No query runs, though its driver's process does or can't be seen (it was in another container).",
    ),
]


def claims(claim: bool, no_claim: bool) -> bool:
    """Return whether ``--claim`` was passed, and not ``--no-claim``: exactly one of them is needed."""
    if claim is no_claim:
        raise typer.BadParameter(f"pass {'only ' if claim else ''}one of them: --claim or --no-claim")
    return claim


def seconds(number: float) -> float:
    """Check a duration: from 0, and not ``nan``, which not every version of typer refuses with ``min=0``."""
    if not number >= 0:  # so is nan, which compares with nothing
        raise typer.BadParameter(f"{number} is no number of seconds from 0")
    return number


def options_given(option: Sequence[str] | None, file: str | None) -> dict[str, str]:
    """Return the options that were given; a single option overrides the file."""
    return {**_from_file(file), **_pairs(option or [], "--option")}


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
