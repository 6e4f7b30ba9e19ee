"""The report of a driver process to ``barrier run``: the locations of its queries, and why it ended.

It is a folder that the environment variable ``BARRIER_REPORT`` names, made by ``barrier run`` for each life. Without it
nothing is reported; and a report that can't be written never fails a query.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from connector.location.location import CheckpointLocation
from transactional.errors import TwoPhaseCommitError
from transactional.failure import Failure, failure_of
from transactional.journal.folders import replace_file
from transactional.secrets import without_named_secrets

__all__ = ["VARIABLE", "LifeReport", "is_kept_up", "tell_failure", "tell_location", "telling"]

VARIABLE = "BARRIER_REPORT"

MOST_TEXT = 20_000
"""Characters of an error, from its end: Spark's have a plan and two tracebacks before the cause."""

LAST_LINES = 10
"""Lines of a script's traceback that are shown if it can't be started."""


def is_kept_up() -> bool:
    """Return whether ``barrier run`` started this process or one of its ancestors."""
    return bool(os.environ.get(VARIABLE))


def tell_location(location: CheckpointLocation, driver: str | None) -> None:
    """Report that a query of ours runs there, in that driver. *Planning worker, or the program that supervises it.*"""
    name = hashlib.sha256(f"{location.path} {driver}".encode()).hexdigest()[:16]
    _tell(f"query-{name}.json", {"options": location.as_options(), "driver": driver}, once=True)


def tell_failure(who: str, problem: BaseException) -> None:
    """Report why a part of the driver failed.

    Parameters
    ----------
    who : str
        ``script``, the user's program; ``host``, a query's planning or commit, which the program may hide; ``thread``, a
        query that was supervised in a thread of the program, which may end well all the same.
    problem : BaseException
    """
    lines = "".join(traceback.format_exception(problem)).rstrip().splitlines()[-LAST_LINES:]
    _tell(f"failed-{who}.json", {"text": f"{type(problem).__name__}: {problem}"[-MOST_TEXT:], "lines": lines})


@contextmanager
def telling(location: CheckpointLocation, driver: Callable[[], str]) -> Iterator[None]:
    """Report a query's planning or commit: its location, and why it fails, if it does. *Driver, planning or commit worker.*"""
    try:
        if is_kept_up():
            tell_location(location, driver())
        yield
    except TwoPhaseCommitError as problem:
        tell_failure("host", problem)
        raise


def _tell(name: str, facts: dict[str, Any], once: bool = False) -> None:
    folder = os.environ.get(VARIABLE)
    if not folder or (once and os.path.exists(os.path.join(folder, name))):
        return
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # what lies in /tmp for long may have been deleted
        if _is_ours(folder):
            replace_file(os.path.join(folder, name), json.dumps(facts).encode())
    except OSError:
        return


def _is_ours(folder: str) -> bool:
    """Return whether no other user can have written it: its content decides which queries are ended."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


class LifeReport:
    """The report as ``barrier run`` reads it.

    Parameters
    ----------
    folder : str
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def queries(self) -> list[tuple[Mapping[str, str], str | None]]:
        """Return, for each query that ran, the options of its checkpoint location, and its driver."""
        return [(each["options"], each["driver"]) for each in self._all("query-")]

    def failure(self, *who: str) -> Failure | None:
        """Return the failure that the first of `who` with a report has reported; None if none has one."""
        for each in who:
            for found in self._all(f"failed-{each}"):
                return failure_of(str(found["text"]))
        return None

    def last_lines(self) -> Sequence[str]:
        """Return the end of the script's traceback; nothing if it was ended otherwise."""
        return [without_named_secrets(line) for found in self._all("failed-script") for line in found["lines"]]

    def _all(self, prefix: str) -> list[dict[str, Any]]:
        found = []
        with suppress(OSError):  # the folder was deleted
            if _is_ours(self.folder):  # and not made by another user since
                for name in sorted(name for name in os.listdir(self.folder) if name.startswith(prefix)):
                    with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                        found.append(json.load(file))
        return found
