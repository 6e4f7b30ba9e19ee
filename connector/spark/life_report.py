"""What a driver process tells ``barrier run`` about its life: where its queries are, and why it ended.

A folder that the environment variable ``BARRIER_REPORT`` names, made by ``barrier run`` for each life. Without it nothing is
told; and a report that can't be written never fails a query.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transactional.errors import TwoPhaseCommitError
from transactional.failure import Failure, failure_of

__all__ = ["VARIABLE", "LifeReport", "is_kept_up", "tell_failure", "tell_location", "tell_supervised", "telling"]

VARIABLE = "BARRIER_REPORT"

MOST_TEXT = 20_000
"""Characters of an error: Spark's have a plan and two tracebacks in front of what is looked for."""


def is_kept_up() -> bool:
    """Whether ``barrier run`` started this process, or one above it."""
    return bool(os.environ.get(VARIABLE))


def tell_location(location: str) -> None:
    """A query of ours runs there. *Planning worker, or the program that supervises it.*"""
    _tell(f"query-{hashlib.sha256(location.encode()).hexdigest()[:16]}.json", {"location": location}, once=True)


def tell_supervised() -> None:
    """The calling program has its queries stopped well itself, when it gets SIGTERM."""
    _tell("supervised.json", {"pid": os.getpid()})


def tell_failure(who: str, problem: BaseException) -> None:
    """Why it failed: ``script``, the user's program; ``host``, a query's planning or commit, which the program may hide."""
    _tell(f"failed-{who}.json", {"text": f"{type(problem).__name__}: {problem}"[-MOST_TEXT:]})


@contextmanager
def telling(location: str) -> Iterator[None]:
    """A query's planning or commit: where it is, and why it failed, if it does. *Driver, planning or commit worker.*"""
    tell_location(location)
    try:
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
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        os.replace(temporary, os.path.join(folder, name))
    except OSError:
        return


class LifeReport:
    """The report as ``barrier run`` reads it.

    Parameters
    ----------
    folder : str
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def locations(self) -> list[str]:
        """Checkpoint locations of the queries that ran."""
        names = sorted(name for name in os.listdir(self.folder) if name.startswith("query-"))
        return [found["location"] for name in names if (found := self._read(name))]

    def supervised(self) -> int | None:
        """The process that stops its queries itself; None where none does."""
        found = self._read("supervised.json")
        return None if found is None else int(found["pid"])

    def failure(self) -> Failure | None:
        """Why it failed, as far as anybody has told: the program first, then what its queries met."""
        for who in ("script", "host"):
            found = self._read(f"failed-{who}.json")
            if found is not None:
                return failure_of(str(found["text"]))
        return None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
                return found
        except (OSError, ValueError):
            return None
