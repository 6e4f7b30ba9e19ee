"""Parse the addresses of PostgreSQL databases: libpq's URIs and JDBC URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from transactional import OptionError

SCHEMES: Final = ("postgresql", "postgres")

FROM_JDBC: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "applicationname": "application_name",
    "connecttimeout": "connect_timeout",
    "targetservertype": "",
    "rewritebatchedinserts": "",
    "stringtype": "",
    "preparethreshold": "",
    "tcpkeepalive": "",
}
"""JDBC parameter in lower case -> libpq's parameter; empty if the JDBC parameter has no effect here."""


def parse_url(url: str, owner: str) -> dict[str, str]:
    """Return libpq's connection parameters for an address.

    Errors name the sink `owner`, but never quote the address, which may contain a password.
    """

    def invalid(expectation: str) -> OptionError:
        return OptionError("INVALID_OPTION", owner=owner, option="url", value="(hidden)", expectation=expectation)

    is_jdbc = url.startswith("jdbc:")
    text = url.removeprefix("jdbc:")
    if text.partition("://")[0] not in SCHEMES:
        raise invalid("postgresql://host:port/database, or jdbc:postgresql://host:port/database")
    if any("%" in each.partition("=")[0] for each in text.partition("?")[2].split("&")):
        raise invalid(
            "an address whose parameter names contain no %: otherwise a password could not be recognized and hidden"
        )
    if not is_jdbc:
        return _plain(_of_libpq(text, invalid), invalid)
    found = _of_jdbc(text, invalid)
    return _plain({key: value for key, value in found.items() if value}, invalid)


def _of_jdbc(text: str, invalid: Callable[[str], OptionError]) -> dict[str, str]:
    try:
        parts = urlsplit(text)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise invalid("an address whose parameters are written as name=value and separated by &") from None
    found = {"dbname": unquote(parts.path.removeprefix("/"))}
    if parts.username is not None or parts.password is not None:
        raise invalid(
            "a JDBC address without user:password@: set the options user and password, or ?user=...&password=..."
        )
    hosts = [
        each.rpartition(":") if ":" in each.rpartition("]")[2] else (each, "", "") for each in parts.netloc.split(",")
    ]
    found["host"] = ",".join((host or port).strip("[]") for host, _, port in hosts)
    found["port"] = ",".join(port if host and colon else "5432" for host, colon, port in hosts)
    return {**found, **_libpq_parameters(given, "sslmode=" in text, invalid)}


def _libpq_parameters(
    given: Iterable[tuple[str, str]], has_mode: bool, invalid: Callable[[str], OptionError]
) -> dict[str, str]:
    """Translate the parameters of a JDBC address. If `has_mode`, the address has ``sslmode``, so ``ssl`` is ignored."""
    found = {}
    for name, value in given:
        if name.lower() == "ssl":
            if not has_mode:
                found["sslmode"] = "verify-full" if value.lower() in ("", "true") else "prefer"
        elif name.lower() not in FROM_JDBC:
            known = ", ".join(sorted(key for key, libpq in FROM_JDBC.items() if libpq))
            raise invalid(
                f"a JDBC address with no parameters except {known} and ssl; if you need others, write "
                "postgresql://host:port/database?... with libpq's parameters"
            )
        elif FROM_JDBC[name.lower()]:
            found[FROM_JDBC[name.lower()]] = value
    return found


def _plain(found: dict[str, str], invalid: Callable[[str], OptionError]) -> dict[str, str]:
    """Return the parameters unchanged. Raise if one seems to contain a part of a password that was not escaped.

    Otherwise, messages could show that part of the password.
    """
    wrong = [key for key in ("host", "dbname", "user") if set(found.get(key, "")) & set("@;=#?&")]
    if (
        wrong
        or ":" in found.get("user", "")
        or not all(port.isdigit() for port in found.get("port", "5432").split(","))
    ):
        raise invalid(
            "an address whose user and password are escaped (@ as %40, / as %2F), or the options user and password"
        )
    return found


def _of_libpq(text: str, invalid: Callable[[str], OptionError]) -> dict[str, str]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {key: str(value) for key, value in conninfo_to_dict(text).items() if value is not None}
    except ProgrammingError:
        raise invalid("an address that libpq can read: postgresql://host:port/database?parameter=value") from None
