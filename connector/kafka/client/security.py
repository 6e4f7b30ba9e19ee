"""Security: the part of ``kafka.*`` that both client libraries must understand alike.

Settings that only one of them knows are refused by name, before the first row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from connector.kafka.client.errors import forbidden_option, invalid_option
from connector.kafka.client.tls import is_tls, ssl_context
from connector.kafka.client.tokens import CLIENT_ID, CLIENT_SECRET, ENDPOINT, PROVIDER, TokenSource, provider_of
from transactional.errors import OptionError

__all__ = ["Secret", "check_security", "for_kafka_python", "for_librdkafka"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*PASSWORDS, "OAUTHBEARER")

_SET_MECHANISM: Final = f"set kafka.sasl.mechanism to one of {', '.join(MECHANISMS)}."

_ONE_LIBRARY: Final = "librdkafka knows it, and kafka-python, which commits the transactions, does not"

_UNSUPPORTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.engine.location", "ssl.engine.id"),
        f"{_ONE_LIBRARY}: leave it out, or set it in the system's openssl.cnf, which both read.",
    ),
    "ssl.ca.certificate.stores": f"{_ONE_LIBRARY}: set kafka.ssl.ca.location (a PEM file).",
}

_TLS_VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})
_BOOLEANS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("true", "t", "1"), "true"),
    **dict.fromkeys(("false", "f", "0"), "false"),
}
"""How librdkafka reads a boolean, in any case."""

_FILES: Final = ("ssl.certificate.location", "ssl.key.location", "ssl.crl.location")

Invalid = Callable[[str, str], OptionError]
"""Makes the error of a key, with the rest of the sentence that names it."""


class Secret(str):
    """Text that a client gets, and that the repr of its settings hides."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


def check_security(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Check protocol, mechanism and certificates, and return them in one form. Offline; files are only looked for.

    Parameters
    ----------
    name : str
        The format, for messages.
    given : Mapping[str, str]
        librdkafka's names, Java's stores translated.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, ``MISSING_OPTION``, ``FORBIDDEN_OPTION``.
    """
    settings = dict(given)

    invalid = partial(invalid_option, name)
    for key, way in _UNSUPPORTED.items():
        if key in settings:
            raise forbidden_option(name, key, way)
    for key in ("ssl.protocol", "ssl.enabled.protocols"):
        versions = {version.strip() for version in settings.pop(key, "").split(",")} - {""}
        # ssl.protocol=TLSv1.3 lets Java speak 1.3 or older; ssl.enabled.protocols lists exactly what it may speak.
        allowed = versions <= {*_TLS_VERSIONS, "TLS"} if key == "ssl.protocol" else versions in (set(), _TLS_VERSIONS)
        if not allowed:
            raise invalid(key, "can't be followed: both clients speak TLS 1.2 and 1.3. Leave it out.")
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise invalid("security.protocol", f"is {protocol!r}; expected one of {', '.join(PROTOCOLS)}.")
    if "security.protocol" not in settings:
        idle = next((key for key in settings if key.startswith(("sasl.", "ssl."))), None)
        if idle is not None:
            raise OptionError(
                "MISSING_OPTION",
                f"{name}: kafka.{idle} is given, and kafka.security.protocol is not: set it to SASL_SSL, SSL or "
                "SASL_PLAINTEXT (or to PLAINTEXT, if the brokers ask for nothing).",
                option="kafka.security.protocol",
            )
        return settings
    settings["security.protocol"] = protocol
    if protocol.startswith("SASL_"):
        _check_sasl(name, settings, invalid)
    if is_tls(settings):
        _check_ssl(settings, invalid)
    return settings


def _check_sasl(name: str, settings: dict[str, str], invalid: Invalid) -> None:
    both = [key for key in ("sasl.mechanism", "sasl.mechanisms") if key in settings]
    mechanism = settings.pop("sasl.mechanisms", settings.get("sasl.mechanism", "")).upper()
    if mechanism not in MECHANISMS:
        if not mechanism:
            raise OptionError(
                "MISSING_OPTION", f"{name}: {_SET_MECHANISM} It has no default here.", option="kafka.sasl.mechanism"
            )
        hint = " For AWS_MSK_IAM: OAUTHBEARER with kafka.sasl.oauthbearer.token.provider." if "AWS" in mechanism else ""
        raise invalid(
            both[0], f"is {mechanism!r}, which is not in both client libraries as installed: {_SET_MECHANISM}{hint}"
        )
    settings["sasl.mechanism"] = mechanism
    wanted = ["sasl.username", "sasl.password"]
    if mechanism == "OAUTHBEARER":
        wanted = _check_tokens(settings, invalid)
    for key in wanted:
        if not settings.get(key):
            raise OptionError(
                "MISSING_OPTION", f"{name}: {mechanism} needs the option kafka.{key}.", option=f"kafka.{key}"
            )


def _check_tokens(settings: Mapping[str, str], invalid: Invalid) -> list[str]:
    if PROVIDER in settings:
        provider_of(settings[PROVIDER])
        return []
    for key, allowed in (("method", ("default", "oidc")), ("grant.type", ("client_credentials",))):
        value = settings.get(f"sasl.oauthbearer.{key}")
        if value is not None and value.lower() not in allowed:
            raise invalid(f"sasl.oauthbearer.{key}", f"is {value!r}: only oidc with client_credentials is built in.")
    if not settings.get(ENDPOINT):
        raise invalid(
            "sasl.mechanism",
            f"is OAUTHBEARER: set kafka.{ENDPOINT}, kafka.{CLIENT_ID} and kafka.{CLIENT_SECRET}, or kafka.{PROVIDER} "
            "(package.module:function).",
        )
    if not settings[ENDPOINT].startswith(("https://", "http://")):
        raise invalid(ENDPOINT, "must be an https address.")
    return [CLIENT_ID, CLIENT_SECRET]


def _check_ssl(settings: dict[str, str], invalid: Invalid) -> None:
    identification = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    # Java's empty text is librdkafka's "none".
    settings["ssl.endpoint.identification.algorithm"] = identification or "none"
    if settings["ssl.endpoint.identification.algorithm"] not in ("https", "none"):
        raise invalid("ssl.endpoint.identification.algorithm", f"is {identification!r}; expected https or none.")
    verify = settings.get("enable.ssl.certificate.verification")
    if verify is not None:
        word = _BOOLEANS.get(verify.lower())
        if word is None:
            raise invalid("enable.ssl.certificate.verification", f"is {verify!r}; expected true or false.")
        # Both libraries must read the same value: true for one must not be false for the other.
        settings["enable.ssl.certificate.verification"] = word
    for key in ("ssl.ca", "ssl.certificate", "ssl.key"):
        if f"{key}.location" in settings and f"{key}.pem" in settings:
            raise invalid(f"{key}.location", f"and kafka.{key}.pem are one setting: give one.")
    for key in (*_FILES, "ssl.ca.location"):
        path = settings.get(key)
        if path is None or (key == "ssl.ca.location" and path == "probe"):
            continue
        if not (os.path.isfile(path) or (key == "ssl.ca.location" and os.path.isdir(path))):
            raise invalid(
                key, f"is {_shown(path)}, and that file is not on this machine (driver and executors need it)."
            )
    if any(f"ssl.key.{form}" in settings for form in ("location", "pem")) != any(
        f"ssl.certificate.{form}" in settings for form in ("location", "pem")
    ):
        raise invalid("ssl.certificate.location", "and kafka.ssl.key.location go together: give both, or neither.")
    if "PRIVATE KEY" in settings.get("ssl.key.pem", "") and "ENCRYPTED" not in settings["ssl.key.pem"]:
        raise invalid(
            "ssl.key.pem",
            "holds a key without a password, and Spark shows this option in its plans. Encrypt it (openssl pkcs8 -topk8 -in "
            "client.key) and set kafka.ssl.key.password, or give a file that only this user can read: "
            "kafka.ssl.key.location.",
        )
    ciphers = settings.get("ssl.cipher.suites", "")
    if "TLS_" in ciphers:
        raise invalid(
            "ssl.cipher.suites",
            f"is {ciphers!r}, Java's names: write OpenSSL's, such as ECDHE-RSA-AES256-GCM-SHA384 (those of TLS 1.3 are "
            "always on).",
        )


def _shown(path: str) -> str:
    # A user who gave PEM text in place of a path does not want to read it in a log.
    return "no path" if "\n" in path or "-----" in path else repr(path)


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for confluent-kafka; in both libraries, tokens come from `TokenSource`."""
    if settings.get("sasl.mechanism") != "OAUTHBEARER" or not settings["security.protocol"].startswith("SASL_"):
        return {key: value for key, value in settings.items() if key != PROVIDER}
    plain = {k: v for k, v in settings.items() if not k.startswith(("sasl.oauthbearer.", "https."))}
    return {**plain, "oauth_cb": TokenSource.of(settings)}


def for_kafka_python(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the security settings for kafka-python's clients.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: certificates or keys that can't be read.
    """
    protocol = settings.get("security.protocol")
    if protocol is None:
        return {}
    security: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        security["sasl_mechanism"] = settings["sasl.mechanism"]
        if security["sasl_mechanism"] == "OAUTHBEARER":
            security["sasl_oauth_token_provider"] = _provider(TokenSource.of(settings))
        else:
            security["sasl_plain_username"] = settings["sasl.username"]
            security["sasl_plain_password"] = Secret(settings["sasl.password"])
    if is_tls(settings):
        security["ssl_context"] = ssl_context(name, settings)
    return security


def _provider(source: TokenSource) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        """A `TokenSource` in the form that kafka-python wants."""

        def token(self) -> str:
            return source.token().text

        def extensions(self) -> dict[str, str]:
            return dict(source.token().extensions)

    return Provider()
