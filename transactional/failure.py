"""A supervisor's response to a failure, read from the error's text: nothing else reaches the user's program.

The engine passes a query's error on as text, with the Python traceback of the process in which it was raised: ours end in a
line ``transactional.errors.RewindRequiredError: [PREPARED_LOST] ...``.
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
"""Characters of an error that a journal entry or a health file keeps."""


class Remedy(str, enum.Enum):
    """The response of a supervisor to a failure."""

    RESTART = "started again, the query may go on"
    REWIND = "the query has to go back first, to where nothing is written twice"
    NONE = "no restart fixes it: a person has to look"
    STOPPED = "no failure: it was asked to stop"


@dataclass(frozen=True)
class Failure:
    """The reason why a query ended.

    Parameters
    ----------
    condition : str
        Of our error; empty if it is none of ours.
    text : str
        The error, cut short; never a secret, if it is ours or names the secret that it quotes.
    remedy : Remedy
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
"""The remedies of conditions that no catalogue has. All others: RESTART."""

_BY_ACTION = {
    "restart": Remedy.RESTART,
    "rewind": Remedy.REWIND,
    "none": Remedy.NONE,
    "stopped": Remedy.STOPPED,
}

_OURS = re.compile(rf"\b({'|'.join(errors.__all__)}): \[([A-Z][A-Z0-9_]*)\] ([^\n]*)")

_OFFSETS_GONE = "not found in offset log"
"""The engine's own words if a rewound query's former driver has written ``offsets/N`` late."""


def failure_of(problem: BaseException | str) -> Failure:
    """Return a supervisor's response to an error."""
    if isinstance(problem, TwoPhaseCommitError):
        return _failure(type(problem).__name__, problem.condition, str(problem))
    text = str(problem)
    found = _OURS.findall(text)
    if found:  # the last is the one that was raised; those before it are its causes
        kind, condition, message = found[-1]
        return _failure(kind, condition, f"[{condition}] {message}")
    remedy = Remedy.REWIND if _OFFSETS_GONE in text else Remedy.RESTART
    raised = _raised(text) or (text if isinstance(problem, str) else f"{type(problem).__name__}: {text}")
    return Failure("", without_named_secrets(raised.strip())[:MOST_TEXT], remedy)


def _raised(text: str) -> str:
    """Return the last line of the last Python traceback in a text; empty if there is none."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    return next((line for line in rest.splitlines() if line[:1].strip()), "") if traceback else ""


def _failure(kind: str, condition: str, text: str) -> Failure:
    known = catalogue.get(condition)
    remedy = _BY_ACTION[known.action] if known else _BY_KIND.get(kind, Remedy.RESTART)
    return Failure(condition, text[:MOST_TEXT], remedy)
