"""Addresses of MySQL and MariaDB databases: URIs, and JDBC's."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from transactional import OptionError

__all__ = ["MysqlAddress", "named", "parse_mysql_url"]

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
"""MySQL's and MariaDB's words for how far TLS goes -> ours. Without a word it is used if the server offers it."""

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

"""Parameters of JDBC's drivers that change nothing here."""


@dataclass(frozen=True)
class MysqlAddress:
    """Where a database is, and how to get in.

    Parameters
    ----------
    host : str
    port : int
    database : str
        Empty if the address names none.
    user, password : str or None
    mode : str
        ``disabled``, ``preferred``, ``required``, ``verify-ca``, ``verify-identity``.
    files : Mapping[str, str]
        Paths for TLS: ``ca``, ``cert``, ``key``.
    """

    host: str
    port: int
    database: str
    user: str | None
    password: str | None = field(repr=False)
    mode: str
    files: Mapping[str, str]

    def tls(self, owner: str) -> ssl.SSLContext | None:
        """Return what a connection must have; None if TLS is optional, or off."""
        if self.mode in ("disabled", "preferred"):
            return None
        try:
            return self._context()
        except OSError as problem:  # ssl's are such, too
            files = ", ".join(self.files.values())
            raise _invalid(owner, f"an address whose files for TLS can be read: {files}: {problem}") from problem

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.get("ca"))
        context.check_hostname = self.mode == "verify-identity"
        if self.mode == "required":
            context.verify_mode = ssl.CERT_NONE
        if "cert" in self.files:
            context.load_cert_chain(self.files["cert"], self.files.get("key"))
        return context


def parse_mysql_url(url: str, owner: str) -> MysqlAddress:
    """Return an address's parts. Errors quote nothing of it: it may hold a password."""

    def invalid(expectation: str) -> OptionError:
        return _invalid(owner, expectation)

    text = url.removeprefix("jdbc:")
    if text.partition("://")[0] not in SCHEMES:
        raise invalid("mysql://host:port/database, jdbc:mysql://host:port/database, or mariadb for mysql")
    try:
        parts = urlsplit(text)
        port = 3306 if parts.port is None else parts.port
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise invalid("an address with one host, whose parameters are name=value with & between") from None
    if "," in parts.netloc or not parts.hostname or not port:
        raise invalid("an address with one host")
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
                "an address with no other parameters than user, password, sslMode, sslCa, sslCert, sslKey, useSSL, requireSSL, "
                "verifyServerCertificate, and those of JDBC that change nothing here"
            )
    user = found.get("user", unquote(parts.username) if parts.username is not None else None)
    password = found.get("password", unquote(parts.password) if parts.password is not None else None)
    database = unquote(parts.path.removeprefix("/"))
    if any(set(each or "") & set("@;=#?&/") for each in (database, user, parts.hostname)):
        raise invalid("an address whose user and password are escaped (@ as %40, / as %2F), or both as options")
    mode = _mode(found)
    if mode is None:
        raise invalid("an address whose sslMode is DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY")
    files = {FILES[name]: value for name, value in found.items() if name in FILES}
    if files and mode == "disabled":
        raise invalid("an address that has no files for TLS if TLS is off")
    if files and mode == "preferred":
        mode = "verify-identity" if "ca" in files else "required"
    return MysqlAddress(parts.hostname, port, database, user, password, mode, files)


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
    """Return database and table of a name as a statement has it."""
    words = [
        word[1:-1].replace("``", "`") if word[0] == "`" else word
        for word in re.findall(r"`(?:[^`]|``)+`|[^`.]+", table)
    ]
    return (words[0], words[1]) if len(words) == 2 else (database, words[0])
