"""Secrets in options: which options are secret, and how to hide their values in strings, such as errors of libraries."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from transactional.errors import TwoPhaseCommitError
from transactional.errors.catalogue import catalogue
from transactional.finding import Finding

HIDDEN = "(hidden)"

LONG: Final = 20
"""A secret of at least this many characters is also hidden inside longer words. None of our own words is that long."""

OUR_WORDS: Final = frozenset({"owner", "option", "format", "sink"})
"""Parameters of our errors that are shown unchanged, because they never contain a library's text."""

MOST_ESCAPES: Final = 3
"""The maximum number of times that a value is unescaped (``%3d`` to ``=``) to search it for secrets."""

_NAME = (
    r"password|passphrase|passwd|secret|sasl\.jaas|token(?!\.(?:endpoint|provider))|oauthbearer\.config|ssl\.key(?!\.location)|"
    r"keystore\.key|private[._-]?key|credential|(?:access|account|api|sas|shared|encryption|signing)[._-]?key|"
    r"(?<![a-z])sas(?=[._-]|$)|connection[._-]?string|user[._-]?info|proxy[._-]?url|bearer[._-]?auth|"
    r"(?<![a-z])(?:pass|pwd|pw|sig|signature)(?![a-z])|authorization|(?:master|ssl)[._-]?key(?!\.?location)|"
    r"(?<=[._-])key(?=[\"']?\s*(?:[=:]|%3d|$))"
)

_SECRET = re.compile(_NAME, re.IGNORECASE)

_STORAGE = re.compile(
    r"""(?:\w+\.)?storage\.(?!(?:aws_|aws_s3_|azure_|azure_storage_|google_)?
        (?:region|default_region|endpoint|endpoint_url|allow_http|virtual_hosted_style_request|allow_unsafe_rename|
        conditional_put|locking_provider|timeout|connect_timeout|max_retries)$)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the object-store options that are treated as secret: all but a few harmless ones, because clients accept
hundreds of names."""

_TRIVIAL = re.compile(r"true|false|\d{1,5}", re.IGNORECASE)
"""Matches values of object-store options that are too simple to be secrets. If they were hidden, messages would become
unreadable."""

_NAMED = re.compile(
    rf"""((?:{_NAME})[\w.-]*["']?\s*(?:[=:]|%3d)\s*)   # the name of a secret, with any characters around it
         ("[^"]*"|'[^']*'|(?:(?:basic|bearer|digest)\s+)?[^\s,;&"')\]}}]+)    # and its value""",
    re.IGNORECASE | re.VERBOSE,
)

_ESCAPED = re.compile(r"([\w.-]*%[0-9a-f]{2}[\w.%-]*=)([^\s,;&\"')\]}]+)", re.IGNORECASE)
"""Matches a name that contains escapes (such as ``%73``) and its value, in an address."""

_IN_URL = re.compile(r"(://[^\s/@:%]*(?::|%3a))[^\s/@]+@", re.IGNORECASE)
_IN_QUERY = re.compile(rf"""(?:^|[?&;,\s({{"'])[\w.-]*(?:{_NAME})[\w.-]*["']?\s*=""", re.IGNORECASE)
"""Matches the name of a secret in an address, or in a string of names and values."""
_USER_IN_URL = re.compile(r"://[^\s/@:]*:.*@")
"""Matches a user and a password in an address. The password may contain any characters."""
_MAY_HIDE = re.compile("[=%]|://")
"""Matches in every value that contains an address or a named secret. Values without a match need no further search."""


@lru_cache(maxsize=1024)
def hides_value(key: str) -> bool:
    """Return whether an option's name says that its value is secret, for example a password."""
    return _SECRET.search(key) is not None or _STORAGE.match(key) is not None


def is_secret(key: str, value: str) -> bool:
    """Return whether an option's value must never be shown, because of the option's name or a secret in the value.

    For example, an address may contain a password (``://user:...@host``) or, in its query string, a token.
    """
    if hides_value(key):
        return True
    if not _MAY_HIDE.search(value):
        return False
    plain = value
    for _ in range(MOST_ESCAPES):
        if any(each.search(plain) for each in (_USER_IN_URL, _IN_QUERY)):
            return True
        before, plain = plain, unquote(plain)
        if plain == before:
            break
    return False


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the secret values of these options, which have to be hidden in messages."""
    return [
        value
        for key, value in options.items()
        if is_secret(key, value) and value.strip() and (_SECRET.search(key) or not _TRIVIAL.fullmatch(value.strip()))
    ]


def masked(text: str, secrets: Collection[str]) -> str:
    """Return the text with these secrets replaced by ``(hidden)``.

    A short secret is hidden only where it is a whole word. Otherwise ``database`` would become ``data(hidden)ase``, which
    reveals the password ``b``.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # a secret may be part of another
        found = re.escape(secret)
        if len(secret) < LONG:
            found = rf"(?<![A-Za-z0-9]){found}" if secret[0].isalnum() else found
            found = rf"{found}(?![A-Za-z0-9])" if secret[-1].isalnum() else found
        text = re.sub(found, HIDDEN, text)
    return text


def without_named_secrets(text: str) -> str:
    """Hide everything in another library's text that looks like a secret: ``password=...``, ``://user:...@host``.

    A secret without a name next to it is not found. If you know the secret values, use `hiding`.
    """

    def hidden(match: re.Match[str]) -> str:
        return match[1] + HIDDEN if hides_value(unquote(match[1]).partition("=")[0]) else match[0]

    return _NAMED.sub(rf"\1{HIDDEN}", _ESCAPED.sub(hidden, _IN_URL.sub(rf"\1{HIDDEN}@", text)))


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return a library's text in which these secrets, and everything that looks like a secret, are hidden."""
    return without_named_secrets(masked(text, secrets))


def masked_finding(found: Finding, secrets: Collection[str]) -> Finding:
    """Return a finding in which these secrets, and everything that looks like a secret, are hidden.

    A finding may quote a library's error, which may quote a secret.
    """
    return replace(
        found, sentence=without_secrets(found.sentence, secrets), remedy=without_secrets(found.remedy, secrets)
    )


@contextmanager
def hiding(secrets: Collection[str]) -> Iterator[None]:
    """Hide these secrets in errors that the block raises.

    If an error or one of its causes contains a secret, the error is replaced by an error without secrets and causes. For our
    own errors, class and condition stay the same. Any other error becomes a RuntimeError that names the original class.
    """
    try:
        yield
    except Exception as problem:
        text = "".join(traceback.format_exception(problem))
        if masked(text, secrets) == text:
            raise
        if not isinstance(problem, TwoPhaseCommitError):
            raise RuntimeError(f"{type(problem).__name__}: {masked(str(problem), secrets)}") from None
        raise without_values(problem, secrets) from None


def without_values(problem: TwoPhaseCommitError, secrets: Collection[str]) -> TwoPhaseCommitError:
    """Return one of our errors with these secrets hidden in its parameters. The catalogue's own words are not changed."""
    parameters = {
        key: masked(value, secrets) if isinstance(value, str) and key not in OUR_WORDS else value
        for key, value in problem.parameters.items()
    }
    known = catalogue.get(problem.condition)
    said = known.text(problem.parameters) if known is not None else ""
    if known is not None and problem.message.startswith(said):
        message = known.text(parameters) + masked(problem.message[len(said) :], secrets)
    else:
        message = masked(problem.message, secrets)
    return type(problem)(problem.condition, message, **parameters)
