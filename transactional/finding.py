"""Findings: the results of checks of a sink and its store."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The severity of a finding: good, unknown, warning or problem."""

    GOOD = "good"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One result of a check. ``barrier doctor`` prints it, and a program that starts a query logs it.

    Parameters
    ----------
    check : str
        The name of the check: a section of ``docs/doctor.md``, or a word that your sink chooses.
    level : Level
    sentence : str
        The result, in one sentence.
    remedy : str
        The user's next step; empty if there is none.
    condition : str
        The condition of the error with which a query would fail; empty if the query would not fail.
    """

    check: str
    level: Level
    sentence: str
    remedy: str = ""
    condition: str = ""


def good(check: str, sentence: str) -> Finding:
    """Return a finding for a check that has passed."""
    return Finding(check, Level.GOOD, sentence)


def unknown(check: str, sentence: str, remedy: str = "") -> Finding:
    """Return a finding for a check whose result can't be determined."""
    return Finding(check, Level.UNKNOWN, sentence, remedy)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """Return a finding about something that does not stop the query from running, but may cause trouble later."""
    return Finding(check, Level.WARNING, sentence, remedy)


def problem(check: str, sentence: str, remedy: str, condition: str = "") -> Finding:
    """Return a finding about something that makes the query fail, or breaks one of its guarantees."""
    return Finding(check, Level.PROBLEM, sentence, remedy, condition)
