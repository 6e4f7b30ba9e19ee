"""Which options' values are secret, and texts without them: what others raise may quote what they were given."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from transactional.errors import TwoPhaseCommitError

__all__ = ["HIDDEN", "hides_value", "hiding", "masked", "secrets_of", "without_named_secrets"]

HIDDEN = "(hidden)"

_NAME = (
    r"password|passphrase|secret|sasl\.jaas|token(?!\.(?:endpoint|provider))|oauthbearer\.config|ssl\.key(?!\.location)|keystore\.key|"
    r"private\.key|credential"
)

_SECRET = re.compile(_NAME, re.IGNORECASE)

_NAMED = re.compile(
    rf"""((?:{_NAME})[\w.-]*["']?\s*[=:]\s*)   # a name that says so, whatever stands around it
         ("[^"]*"|'[^']*'|[^\s,;&"')\]}}]+)    # and its value""",
    re.IGNORECASE | re.VERBOSE,
)

_IN_URL = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")


def hides_value(key: str) -> bool:
    """Whether the value of this option may never be shown."""
    return _SECRET.search(key) is not None


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """The values of options that may never be shown."""
    return [value for key, value in options.items() if hides_value(key) and value.strip()]


def masked(text: str, secrets: Collection[str]) -> str:
    """The text without these values."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, HIDDEN)
    return text


def without_named_secrets(text: str) -> str:
    """A text of somebody else without what looks like a secret in it: ``password=...``, ``://user:...@host``.

    It can't know a secret that nothing names: where an option's value is at hand, `hiding` does.
    """
    return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}@", text))


@contextmanager
def hiding(secrets: Collection[str]) -> Iterator[None]:
    """Raise an error that quotes one of these values, or whose causes do, without it and without its causes.

    Ours keep their kind and condition; others become a RuntimeError that names theirs.
    """
    try:
        yield
    except Exception as problem:
        told = "".join(traceback.format_exception(problem))
        if masked(told, secrets) == told:
            raise
        if not isinstance(problem, TwoPhaseCommitError):
            raise RuntimeError(f"{type(problem).__name__}: {masked(str(problem), secrets)}") from None
        parameters = {
            key: masked(value, secrets) if isinstance(value, str) else value
            for key, value in problem.parameters.items()
        }
        raise type(problem)(problem.condition, masked(problem.message, secrets), **parameters) from None
