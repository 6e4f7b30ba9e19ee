"""Parse the addresses of MySQL and MariaDB databases: URIs and JDBC URLs."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from transactional import OptionError

SCHEMES: Final = ("mysql", "mariadb")

MODES: Final[Mapping[str, str]] = {
    "disabled": "disabled",
    "disable": "disabled",
    "preferred": "preferred",
    "required": "required",
    "trust": "required",
    "verifyca": "verify-ca",
    "verifyidentity": "verify-identity",
    "verifyfull": "verify-identity",
}
"""MySQL's and MariaDB's names of TLS modes -> ours. If an address has no TLS parameters, the mode is ``preferred``: TLS
is used if the server offers it."""

FILES: Final[Mapping[str, str]] = {
    "sslca": "ca",
    "serversslcert": "ca",
    "sslcert": "cert",
    "sslkey": "key",
}

IGNORED: Final = frozenset(
    {
        *("allowpublickeyretrieval", "autoreconnect", "cacheprepstmts", "characterencoding", "connectiontimezone"),
        *("forceconnectiontimezonetosession", "permitmysqlscheme", "preservetimezone", "rewritebatchedstatements"),
        *(
            "servertimezone",
            "tcpkeepalive",
            "tinyint1isbit",
            "usebulkstmts",
            "usebulkstmtsforinserts",
            "usecompression",
        ),
        *("uselegacydatetimecode", "useserverprepstmts", "useunicode", "zerodatetimebehavior"),
    }
)

"""Parameters of JDBC drivers that have no effect here."""


@dataclass(frozen=True)
class MysqlAddress:
    """The address of a database, with the user and the TLS settings."""

    host: str
    port: int
    database: str  # The database's name; empty if the address names none.
    # None if the address does not contain it.
    user: str | None
    password: str | None = field(repr=False)
    mode: str  # The TLS mode: ``disabled``, ``preferred``, ``required``, ``verify-ca`` or ``verify-identity``.
    files: Mapping[str, str]  # The paths of the TLS files, with the keys ``ca``, ``cert`` and ``key``.

    def tls(self, owner: str) -> ssl.SSLContext | None:
        """Return the TLS context of a connection; None if TLS is optional or off. Errors name the sink `owner`."""
        if self.mode in ("disabled", "preferred"):
            return None
        try:
            return self._context()
        except OSError as problem:  # ssl.SSLError is also an OSError
            files = ", ".join(self.files.values())
            raise _invalid(owner, f"files for TLS that can be read; reading {files} failed: {problem}") from problem

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.get("ca"))
        context.check_hostname = self.mode == "verify-identity"
        if self.mode == "required":
            context.verify_mode = ssl.CERT_NONE
        if "cert" in self.files:
            context.load_cert_chain(self.files["cert"], self.files.get("key"))
        return context


def parse_mysql_url(url: str, owner: str) -> MysqlAddress:
    """Return the parts of an address.

    Errors name the sink `owner`, but never quote the address, which may contain a password.
    """

    def invalid(expectation: str) -> OptionError:
        return _invalid(owner, expectation)

    text = url.removeprefix("jdbc:")
    if text.partition("://")[0] not in SCHEMES:
        raise invalid("mysql://host:port/database or jdbc:mysql://host:port/database (or mariadb instead of mysql)")
    try:
        parts = urlsplit(text)
        port = 3306 if parts.port is None else parts.port
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise invalid(
            "an address with one host, and with parameters written as name=value and separated by &"
        ) from None
    if "," in parts.netloc or not parts.hostname or not port:
        raise invalid("an address with one host")
    found = _parameters(given, invalid)
    user = found.get("user", unquote(parts.username) if parts.username is not None else None)
    password = found.get("password", unquote(parts.password) if parts.password is not None else None)
    database = unquote(parts.path.removeprefix("/"))
    if any(set(each or "") & set("@;=#?&/") for each in (database, user, parts.hostname)):
        raise invalid(
            "an address whose user and password are escaped (@ as %40, / as %2F), or the options user and password"
        )
    mode, files = _tls(found, invalid)
    return MysqlAddress(parts.hostname, port, database, user, password, mode, files)


def _parameters(given: Iterable[tuple[str, str]], invalid: Callable[[str], OptionError]) -> dict[str, str]:
    """Return the parameters that have an effect here, with their names in lower case and without ``-`` and ``_``."""
    found: dict[str, str] = {}
    for name, value in given:
        plain = re.sub(r"[-_]", "", name.lower())
        if plain in ("user", "password", "sslmode") or plain in FILES:
            found[plain] = value
        elif plain in ("usessl", "requiressl", "verifyservercertificate"):
            if value.lower() not in ("true", "false"):
                raise invalid(f"an address whose {name} is true or false")
            found[plain] = value.lower()
        elif plain not in IGNORED:
            raise invalid(
                "an address with no parameters except user, password, sslMode, sslCa, sslCert, sslKey, useSSL, requireSSL, "
                "verifyServerCertificate, and the JDBC parameters that this sink ignores"
            )
    return found


def _tls(found: Mapping[str, str], invalid: Callable[[str], OptionError]) -> tuple[str, dict[str, str]]:
    """Return the TLS mode and the paths of the TLS files that an address's parameters name. Raise if they conflict."""
    mode = _mode(found)
    if mode is None:
        raise invalid("an address whose sslMode is DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY")
    files = {FILES[name]: value for name, value in found.items() if name in FILES}
    if files and mode == "disabled":
        raise invalid("an address without TLS files, because the address turns TLS off")
    if files and mode == "preferred":
        mode = "verify-identity" if "ca" in files else "required"
    return mode, files


def _invalid(owner: str, expectation: str) -> OptionError:
    return OptionError("INVALID_OPTION", owner=owner, option="url", value="(hidden)", expectation=expectation)


def _mode(found: Mapping[str, str]) -> str | None:
    if "sslmode" in found:
        return MODES.get(re.sub(r"[-_]", "", found["sslmode"].lower()))
    if found.get("usessl") == "false":
        return "disabled"
    if found.get("verifyservercertificate") == "true":
        return "verify-ca"
    return "required" if "true" in (found.get("requiressl"), found.get("usessl")) else "preferred"


def named(table: str, database: str) -> tuple[str, str]:
    """Split a table's SQL name into database and table. If the name contains no database, use `database`."""
    words = [
        word[1:-1].replace("``", "`") if word[0] == "`" else word
        for word in re.findall(r"`(?:[^`]|``)+`|[^`.]+", table)
    ]
    return (words[0], words[1]) if len(words) == 2 else (database, words[0])
