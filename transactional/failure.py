"""Failures of queries: which failures a restart fixes, and which failures need a rewind or an operator.

Spark passes a query's error to the user's program only as text, with the Python traceback of the process that raised it. In
that text, one of our errors is a line such as ``transactional.errors.RewindRequiredError: [PREPARED_LOST] ...``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from transactional import errors
from transactional.errors import TwoPhaseCommitError
from transactional.errors.catalogue import catalogue
from transactional.secrets import without_named_secrets

MOST_TEXT = 500
"""The maximum length of `Failure.text` in characters. It is limited because journal entries and health files contain it."""


class Remedy(str, enum.Enum):
    """The response of a supervisor to a failure."""

    RESTART = "start the query again"
    REWIND = "rewind the query to the newest point from which it can continue without writing a row twice, then start it again"
    NONE = "leave the query stopped, because no restart fixes the failure: a person must act"
    STOPPED = "do nothing, because the query was asked to stop and has not failed"


@dataclass(frozen=True)
class Failure:
    """The reason why a query ended.

    Parameters
    ----------
    condition : str
        The condition of the error; empty if the error is not one of ours.
    text : str
        The error, at most 500 characters. Our errors contain no secrets. In other errors, secrets are hidden if the text names
        them (``password=...``).
    remedy : Remedy
        The supervisor's response.
    """

    condition: str
    text: str
    remedy: Remedy


_BY_KIND: Final[Mapping[type, Remedy]] = {
    errors.OptionError: Remedy.NONE,
    errors.LocationError: Remedy.NONE,
    errors.JournalError: Remedy.NONE,
    errors.JournalStoreError: Remedy.RESTART,
    errors.StoreError: Remedy.NONE,
    errors.StoreUnreachableError: Remedy.RESTART,
    errors.SupersededError: Remedy.NONE,
    errors.AmbiguousOutcomeError: Remedy.NONE,
    errors.ReplayMismatchError: Remedy.NONE,
    errors.RewindRequiredError: Remedy.REWIND,
    errors.QueryStoppedError: Remedy.STOPPED,
}
"""The remedy for each error class and its subclasses, if the error's condition is not in the catalogue. The remedy for
any other class is RESTART."""

_BY_ACTION = {
    "restart": Remedy.RESTART,
    "rewind": Remedy.REWIND,
    "none": Remedy.NONE,
    "stopped": Remedy.STOPPED,
}

_RAISED = re.compile(r"\b(\w+Error): \[([A-Z][A-Z0-9_]*)\] ([^\n]*)")
"""Matches a line that reports an error with a condition. The error is ours if `errors` defines its class or the
catalogue has its condition. The latter covers classes that other packages derive from ours."""

_OFFSETS_GONE = "not found in offset log"
"""A part of the engine's error message. The engine raises this error if the previous driver wrote ``offsets/N`` after
the query was rewound."""


def failure_of(problem: BaseException | str) -> Failure:
    """Return the condition, the shortened text and the remedy of an error. `problem` is the error or its text."""
    if isinstance(problem, TwoPhaseCommitError):
        return _failure(type(problem), problem.condition, str(problem))
    text = str(problem)
    found = [each for each in _RAISED.findall(text) if each[0] in errors.__all__ or each[1] in catalogue]
    if found:  # the last error was raised; the errors before it are its causes
        kind, condition, message = found[-1]
        return _failure(getattr(errors, kind, Exception), condition, f"[{condition}] {message}")
    remedy = Remedy.REWIND if _OFFSETS_GONE in text else Remedy.RESTART
    raised = _raised(text) or (text if isinstance(problem, str) else f"{type(problem).__name__}: {text}")
    return Failure("", without_named_secrets(raised.strip())[:MOST_TEXT], remedy)


def _raised(text: str) -> str:
    """Return the line that names the error in the last Python traceback of an error text; empty if there is no traceback."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    return next((line for line in rest.splitlines() if line[:1].strip()), "") if traceback else ""


def _failure(kind: type[BaseException], condition: str, text: str) -> Failure:
    known = catalogue.get(condition)
    by_kind = next((_BY_KIND[each] for each in kind.__mro__ if each in _BY_KIND), Remedy.RESTART)
    remedy = _BY_ACTION[known.action] if known else by_kind
    return Failure(condition, text[:MOST_TEXT], remedy)
