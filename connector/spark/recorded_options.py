"""Selects the recorded sink options that a command may use without the operator's confirmation.

Anyone who can write to a checkpoint location can put anything into its journal, for example code to run, or an address to which
passwords would be sent. Queries are safe, because their own programs name code and addresses. But commands and supervisors use
the options that the journal has recorded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from connector.formats.discovery import allowed_paths
from connector.location.location import SINGLE_DRIVER_OPTION, STORE_OPTIONS
from transactional.errors import OptionError
from transactional.secrets import is_secret

log = logging.getLogger(__name__)

HOOKS: Final = "checkpointhooks"

PROVIDER: Final = "kafka.sasl.oauthbearer.token.provider"
_STORAGE: Final = re.compile(r"(?:\w+\.)?storage\.", re.IGNORECASE)


def names_code(key: str) -> bool:
    """Return whether an option names code to import. With several sinks, its key has a prefix (``orders.kafka...``)."""
    return key.lower() == HOOKS or key.lower().endswith(PROVIDER)


def of_storage(key: str) -> bool:
    """Return whether an option is for an object store, whose client may also take credentials from the environment."""
    return _STORAGE.match(key) is not None


_OF_LOCATION: Final = frozenset(
    key.lower() for key in ("checkpointLocation", SINGLE_DRIVER_OPTION, *STORE_OPTIONS.values())
)
"""Options with which a checkpoint location is opened. A process that has opened the location already has them."""

_LEADS_OUT = re.compile(
    r"server|broker|host|(?<![a-z])port(?![a-z])|url|uri|endpoint|address|proxy|dsn|ssl|tls|sasl|https|verif|certif|security|protocol|account"
    r"|authority|(?<![a-z])auth(?![a-z])"
)
_HARMLESS_VALUE = re.compile(r"[\w-]*")


def leads_out(key: str, value: str) -> bool:
    """Return whether an option names an address that secrets are sent to, or changes how secrets are protected on the way."""
    lowered = key.lower()
    if lowered in _OF_LOCATION or names_code(key):
        return False
    if of_storage(key):
        return _LEADS_OUT.search(lowered) is not None or not _HARMLESS_VALUE.fullmatch(value)
    return _LEADS_OUT.search(lowered) is not None or "://" in value


def _warn_of_changes(recorded: Mapping[str, str], said: Mapping[str, str]) -> None:
    for key, value in recorded.items():
        instead = said.get(key.lower(), value)
        if instead != value and leads_out(key, value) and not (is_secret(key, value) or is_secret(key, instead)):
            log.warning("the journal has %s=%s, but the value that you passed is used: %s", key, value, instead)


def _has_secret(options: Mapping[str, str]) -> bool:
    return any(is_secret(key, value) and value for key, value in options.items())


def confirmed_options(recorded: Mapping[str, str], given: Mapping[str, str], hooks: bool = True) -> dict[str, str]:
    """Return the recorded options that a command may use, without those that the operator has given.

    Parameters
    ----------
    recorded : Mapping[str, str]
        The options in the journal.
    given : Mapping[str, str]
        The options that the operator passed.
    hooks : bool
        True to also return the option that names the checkpoint hooks.

    Raises
    ------
    OptionError
        ``NOT_CONFIRMED``: a recorded option names code that is not allowed, or an address to which secrets would be sent.
    """
    said = {key.lower(): value for key, value in given.items()}
    _warn_of_changes(recorded, said)
    options = {
        key: value
        for key, value in recorded.items()
        if not (key.lower() in said or key.lower() in _OF_LOCATION or is_secret(key, value))
        and (hooks or key.lower() != HOOKS)
    }
    code = [key for key in options if names_code(key) and not _is_allowed(options[key])]
    if code:
        raise _refused(
            {key: options[key] for key in code},
            "has options that would make this command run code",
        )
    # A token provider that may be called also returns secrets.
    secrets = any(key.lower().endswith(PROVIDER) for key in (*said, *options)) or _has_secret(given)
    out = {key: value for key, value in options.items() if leads_out(key, value) and (secrets or of_storage(key))}
    if out:
        raise _refused(
            out,
            "has options that would make this command send secrets (yours, or those in its environment) to an address",
        )
    return options


def _is_allowed(paths: str) -> bool:
    return allowed_paths().issuperset(filter(None, (path.strip() for path in paths.split(","))))


def _refused(options: Mapping[str, str], what: str) -> OptionError:
    lines = ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
    return OptionError("NOT_CONFIRMED", what=what, options=sorted(options), recorded=lines)
