"""What an examination of a sink and its store has found."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Level", "good", "problem", "unknown", "warning"]


class Level(enum.Enum):
    """How bad a finding is."""

    GOOD = "good"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One finding.

    Parameters
    ----------
    check : str
        What was checked: a section of ``docs/doctor.md``, or a word of the sink's own.
    level : Level
    sentence : str
    remedy : str
        What to do; empty if nothing is to be done.
    condition : str
        Of the error that a query would fail with; empty if it would not.
    """

    check: str
    level: Level
    sentence: str
    remedy: str = ""
    condition: str = ""


def good(check: str, sentence: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Level.GOOD, sentence)


def unknown(check: str, sentence: str, remedy: str = "") -> Finding:
    """Return that it can't be known."""
    return Finding(check, Level.UNKNOWN, sentence, remedy)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """Return something with which a query runs, and that may hurt."""
    return Finding(check, Level.WARNING, sentence, remedy)


def problem(check: str, sentence: str, remedy: str, condition: str = "") -> Finding:
    """Return something with which the query fails, or loses what it promises."""
    return Finding(check, Level.PROBLEM, sentence, remedy, condition)
