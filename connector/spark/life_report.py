"""What a driver process tells ``barrier run`` about its life: where its queries are, and why it ended.

A folder that the environment variable ``BARRIER_REPORT`` names, made by ``barrier run`` for each life. Without it nothing is
told; and a report that can't be written never fails a query.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from connector.location.location import CheckpointLocation
from connector.spark.process import is_alive, this_process
from transactional.errors import TwoPhaseCommitError
from transactional.failure import Failure, failure_of

__all__ = ["VARIABLE", "LifeReport", "is_kept_up", "supervising", "tell_failure", "tell_location", "telling"]

VARIABLE = "BARRIER_REPORT"

MOST_TEXT = 20_000
"""Characters of an error: Spark's have a plan and two tracebacks in front of what is looked for."""


def is_kept_up() -> bool:
    """Whether ``barrier run`` started this process, or one above it."""
    return bool(os.environ.get(VARIABLE))


def tell_location(location: CheckpointLocation, driver: str | None) -> None:
    """A query of ours runs there, in that driver. *Planning worker, or the program that supervises it.*"""
    name = hashlib.sha256(f"{location.path} {driver}".encode()).hexdigest()[:16]
    _tell(f"query-{name}.json", {"options": location.as_options(), "driver": driver}, once=True)


@contextmanager
def supervising() -> Iterator[None]:
    """The calling program has its queries stopped well itself, when it gets SIGTERM."""
    name = f"supervised-{os.getpid()}.json"
    _tell(name, {"process": this_process()})
    try:
        yield
    finally:
        folder = os.environ.get(VARIABLE)
        if folder:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


def tell_failure(who: str, problem: BaseException) -> None:
    """Why it failed.

    Parameters
    ----------
    who : str
        ``script``, the user's program; ``host``, a query's planning or commit, which the program may hide; ``thread``, a
        query that was supervised in a thread of the program, which may end well all the same.
    problem : BaseException
    """
    _tell(f"failed-{who}.json", {"text": f"{type(problem).__name__}: {problem}"[-MOST_TEXT:]})


@contextmanager
def telling(location: CheckpointLocation, driver: Callable[[], str]) -> Iterator[None]:
    """A query's planning or commit: where it is, and why it failed, if it does. *Driver, planning or commit worker.*"""
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
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # what lies in /tmp for long may have been deleted
        if not _is_ours(folder):
            return
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        os.replace(temporary, os.path.join(folder, name))
    except OSError:
        return


def _is_ours(folder: str) -> bool:
    """Whether nobody else can have written it: what it says decides which locations and processes are ended."""
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
        """Of the queries that ran: what makes their checkpoint locations, and in which driver."""
        return [(found["options"], found["driver"]) for found in self._all("query-")]

    def supervised(self) -> list[int]:
        """The living processes that stop their queries themselves."""
        told = [found["process"] for found in self._all("supervised-")]
        return [process["pid"] for process in told if process["pid"] is not None and is_alive(process)]

    def failure(self, *who: str) -> Failure | None:
        """Why it failed, as far as one of these has told, the first that did."""
        for each in who:
            found = self._read(f"failed-{each}.json")
            if found is not None:
                return failure_of(str(found["text"]))
        return None

    def _all(self, prefix: str) -> list[dict[str, Any]]:
        try:
            if not _is_ours(self.folder):  # made by another user, when it was deleted
                return []
            names = sorted(name for name in os.listdir(self.folder) if name.startswith(prefix))
        except FileNotFoundError:
            return []
        return [found for name in names if (found := self._read(name))]

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
                return found
        except (OSError, ValueError):
            return None
