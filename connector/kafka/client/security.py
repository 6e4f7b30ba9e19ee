"""Security: the ``kafka.*`` settings that both client libraries must understand in the same way.

Settings that only one library supports are rejected by name, before the first row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from connector.kafka.client.errors import forbidden_option, invalid_option
from connector.kafka.client.kafka_python import import_kafka
from connector.kafka.client.tls import is_tls, ssl_context
from connector.kafka.client.tokens import CLIENT_ID, CLIENT_SECRET, ENDPOINT, PROVIDER, TokenSource, provider_of
from connector.options import shown_value
from transactional.errors import OptionError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*PASSWORDS, "OAUTHBEARER")

_ONE_LIBRARY: Final = "librdkafka supports it, but kafka-python, which commits the transactions, does not"

_UNSUPPORTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.engine.location", "ssl.engine.id"),
        f"{_ONE_LIBRARY}; use the system's openssl.cnf, which both libraries read.",
    ),
    "ssl.ca.certificate.stores": f"{_ONE_LIBRARY}: set kafka.ssl.ca.location (a PEM file).",
}

_TLS_VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})
_BOOLEANS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("true", "t", "1"), "true"),
    **dict.fromkeys(("false", "f", "0"), "false"),
}
"""The value (true or false) for each of librdkafka's spellings of a boolean, in lower case. librdkafka ignores case."""

_FILES: Final = ("ssl.certificate.location", "ssl.key.location", "ssl.crl.location")

Invalid = Callable[[str, str, str], OptionError]
"""The type of a function that takes a setting's key, its value and the expected form, and returns the error."""


class Secret(str):
    """A string that clients can use, but that is hidden in the repr of their settings."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


def check_security(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Check protocol, mechanism and certificates, and return the settings with normalized values (``SSL`` for ``ssl``).

    This needs no connection. It only checks that files exist, and does not read them.
    """
    settings = dict(given)

    invalid = partial(invalid_option, name)
    for key, way in _UNSUPPORTED.items():
        if key in settings:
            raise forbidden_option(name, key, way)
    for key in ("ssl.protocol", "ssl.enabled.protocols"):
        versions = {version.strip() for version in settings.pop(key, "").split(",")} - {""}
        # With ssl.protocol=TLSv1.3, Java uses 1.3 or older; ssl.enabled.protocols lists exactly the versions that it may use.
        allowed = versions <= {*_TLS_VERSIONS, "TLS"} if key == "ssl.protocol" else versions in (set(), _TLS_VERSIONS)
        if not allowed:
            raise forbidden_option(name, key, "both clients speak TLS 1.2 and 1.3, and no other version.")
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise invalid("security.protocol", protocol, f"one of {', '.join(PROTOCOLS)}")
    if "security.protocol" not in settings:
        idle = next((key for key in settings if key.startswith(("sasl.", "ssl."))), None)
        if idle is not None:
            raise OptionError(
                "MISSING_OPTION",
                owner=name,
                option="kafka.security.protocol",
                reason=f"kafka.{idle} is set. Use SASL_SSL, SSL or SASL_PLAINTEXT; or PLAINTEXT if the brokers require "
                "neither login nor encryption",
            )
        return settings
    settings["security.protocol"] = protocol
    if protocol.startswith("SASL_"):
        _check_sasl(name, settings, invalid)
    if is_tls(settings):
        _check_ssl(name, settings, invalid)
    return settings


def _check_sasl(name: str, settings: dict[str, str], invalid: Invalid) -> None:
    both = [key for key in ("sasl.mechanism", "sasl.mechanisms") if key in settings]
    mechanism = settings.pop("sasl.mechanisms", settings.get("sasl.mechanism", "")).upper()
    if mechanism not in MECHANISMS:
        if not mechanism:
            raise OptionError(
                "MISSING_OPTION",
                owner=name,
                option="kafka.sasl.mechanism",
                reason=f"it has no default here. Use one of {', '.join(MECHANISMS)}",
            )
        hint = (
            "; for AWS_MSK_IAM, use OAUTHBEARER with kafka.sasl.oauthbearer.token.provider"
            if "AWS" in mechanism
            else ""
        )
        known = f"a mechanism that both client libraries support as installed: {', '.join(MECHANISMS)}{hint}"
        raise invalid(both[0], mechanism, known)
    settings["sasl.mechanism"] = mechanism
    wanted = ["sasl.username", "sasl.password"]
    if mechanism == "OAUTHBEARER":
        wanted = _check_tokens(name, settings, invalid)
    for key in wanted:
        if not settings.get(key):
            raise OptionError(
                "MISSING_OPTION",
                owner=name,
                option=f"kafka.{key}",
                reason=f"kafka.sasl.mechanism={mechanism} requires it",
            )


def _check_tokens(name: str, settings: Mapping[str, str], invalid: Invalid) -> list[str]:
    if PROVIDER in settings:
        provider_of(settings[PROVIDER])
        return []
    for key, allowed in (("method", ("default", "oidc")), ("grant.type", ("client_credentials",))):
        value = settings.get(f"sasl.oauthbearer.{key}")
        if value is not None and value.lower() not in allowed:
            raise invalid(
                f"sasl.oauthbearer.{key}", value, "oidc with client_credentials, because nothing else is built in"
            )
    if not settings.get(ENDPOINT):
        raise OptionError(
            "MISSING_OPTION",
            owner=name,
            option=f"kafka.{ENDPOINT}",
            reason=f"kafka.sasl.mechanism is OAUTHBEARER. Set this option together with kafka.{CLIENT_ID} and "
            f"kafka.{CLIENT_SECRET}, or set only kafka.{PROVIDER} (package.module:function)",
        )
    if not settings[ENDPOINT].startswith(("https://", "http://")):
        raise invalid(ENDPOINT, shown_value(ENDPOINT, settings[ENDPOINT]), "an https address")
    return [CLIENT_ID, CLIENT_SECRET]


def _check_ssl(name: str, settings: dict[str, str], invalid: Invalid) -> None:
    _check_verification(settings, invalid)
    _check_ssl_files(name, settings, invalid)
    if "PRIVATE KEY" in settings.get("ssl.key.pem", "") and "ENCRYPTED" not in settings["ssl.key.pem"]:
        raise invalid(
            "ssl.key.pem",
            "a key without a password",
            "an encrypted key, because Spark shows this option in its plans (openssl pkcs8 -topk8 -in client.key encrypts it "
            "for kafka.ssl.key.password), or a file that only this user can read (kafka.ssl.key.location)",
        )
    ciphers = settings.get("ssl.cipher.suites", "")
    if "TLS_" in ciphers:
        raise invalid(
            "ssl.cipher.suites",
            ciphers,
            "OpenSSL's names, not Java's, such as ECDHE-RSA-AES256-GCM-SHA384 (the ciphers of TLS 1.3 are always enabled)",
        )


def _check_verification(settings: dict[str, str], invalid: Invalid) -> None:
    identification = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    # An empty string in Java means "none" in librdkafka.
    settings["ssl.endpoint.identification.algorithm"] = identification or "none"
    if settings["ssl.endpoint.identification.algorithm"] not in ("https", "none"):
        raise invalid("ssl.endpoint.identification.algorithm", identification, "https or none")
    verify = settings.get("enable.ssl.certificate.verification")
    if verify is not None:
        word = _BOOLEANS.get(verify.lower())
        if word is None:
            raise invalid("enable.ssl.certificate.verification", verify, "true or false")
        # Both libraries must read the same value: true for one must not be false for the other.
        settings["enable.ssl.certificate.verification"] = word


def _check_ssl_files(name: str, settings: Mapping[str, str], invalid: Invalid) -> None:
    for key in ("ssl.ca", "ssl.certificate", "ssl.key"):
        if f"{key}.location" in settings and f"{key}.pem" in settings:
            raise forbidden_option(name, f"{key}.location", f"it means the same as kafka.{key}.pem, and both are set.")
    for key in (*_FILES, "ssl.ca.location"):
        path = settings.get(key)
        if path is None or (key == "ssl.ca.location" and path == "probe"):
            continue
        if not (os.path.isfile(path) or (key == "ssl.ca.location" and os.path.isdir(path))):
            raise invalid(key, _shown(path), "a file that exists on this machine (driver and executors need it)")
    has_key, has_certificate = (
        any(f"ssl.{file}.{form}" in settings for form in ("location", "pem")) for file in ("key", "certificate")
    )
    if has_key is not has_certificate:
        raise OptionError(
            "MISSING_OPTION",
            owner=name,
            option="kafka.ssl.key.location" if has_certificate else "kafka.ssl.certificate.location",
            reason="a client certificate and its key must both be set",
        )


def _shown(path: str) -> str:
    # If the user has set PEM text instead of a path, it must not appear in a log.
    return "not a path" if "\n" in path or "-----" in path else path


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for confluent-kafka. Both client libraries get their tokens from the same `TokenSource`."""
    if settings.get("sasl.mechanism") != "OAUTHBEARER" or not settings["security.protocol"].startswith("SASL_"):
        return {key: value for key, value in settings.items() if key != PROVIDER}
    plain = {k: v for k, v in settings.items() if not k.startswith(("sasl.oauthbearer.", "https."))}
    return {**plain, "oauth_cb": TokenSource.of(settings)}


def for_kafka_python(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the security settings for kafka-python's clients."""
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
    import_kafka()
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        """Adapts a `TokenSource` to the interface that kafka-python expects."""

        def token(self) -> str:
            return source.token().text

        def extensions(self) -> dict[str, str]:
            return dict(source.token().extensions)

    return Provider()
