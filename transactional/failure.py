"""Failures of queries: which ones a restart fixes, and which ones need a rewind or a person.

The engine passes a query's error to the user's program only as text, with the Python traceback of the process that raised it.
In that text, one of our errors is a line such as ``transactional.errors.RewindRequiredError: [PREPARED_LOST] ...``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from transactional import errors
from transactional.errors import TwoPhaseCommitError
from transactional.errors.catalogue import catalogue
from transactional.secrets import without_named_secrets

__all__ = ["Failure", "Remedy", "failure_of"]

MOST_TEXT = 500
"""The maximum length of `Failure.text` in characters. It is limited because journal entries and health files contain it."""


class Remedy(str, enum.Enum):
    """The response of a supervisor to a failure."""

    RESTART = "start the query again"
    REWIND = "rewind the query to the newest point from which no row is written twice, then start it again"
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


_BY_KIND = {
    "OptionError": Remedy.NONE,
    "LocationError": Remedy.NONE,
    "JournalError": Remedy.NONE,
    "StoreError": Remedy.NONE,
    "RowRefusedError": Remedy.NONE,
    "AmbiguousOutcomeError": Remedy.NONE,
    "ReplayMismatchError": Remedy.NONE,
    "RewindRequiredError": Remedy.REWIND,
    "QueryStoppedError": Remedy.STOPPED,
}
"""The remedy of each error class, for conditions that are not in the catalogue. For other classes: RESTART."""

_BY_ACTION = {
    "restart": Remedy.RESTART,
    "rewind": Remedy.REWIND,
    "none": Remedy.NONE,
    "stopped": Remedy.STOPPED,
}

_OURS = re.compile(rf"\b({'|'.join(errors.__all__)}): \[([A-Z][A-Z0-9_]*)\] ([^\n]*)")

_OFFSETS_GONE = "not found in offset log"
"""Part of the engine's error text if the previous driver wrote ``offsets/N`` after the query was rewound."""


def failure_of(problem: BaseException | str) -> Failure:
    """Return the condition, the shortened text and the remedy of an error or of an error's text."""
    if isinstance(problem, TwoPhaseCommitError):
        return _failure(type(problem).__name__, problem.condition, str(problem))
    text = str(problem)
    found = _OURS.findall(text)
    if found:  # the last error was raised; the errors before it are its causes
        kind, condition, message = found[-1]
        return _failure(kind, condition, f"[{condition}] {message}")
    remedy = Remedy.REWIND if _OFFSETS_GONE in text else Remedy.RESTART
    raised = _raised(text) or (text if isinstance(problem, str) else f"{type(problem).__name__}: {text}")
    return Failure("", without_named_secrets(raised.strip())[:MOST_TEXT], remedy)


def _raised(text: str) -> str:
    """Return the line that names the error in the last Python traceback of an error text; empty if there is no traceback."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    return next((line for line in rest.splitlines() if line[:1].strip()), "") if traceback else ""


def _failure(kind: str, condition: str, text: str) -> Failure:
    known = catalogue.get(condition)
    remedy = _BY_ACTION[known.action] if known else _BY_KIND.get(kind, Remedy.RESTART)
    return Failure(condition, text[:MOST_TEXT], remedy)
