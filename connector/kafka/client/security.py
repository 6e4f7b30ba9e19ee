"""Who we are and whom we trust: the part of ``kafka.*`` that both client libraries must understand alike.

What only one of them can do is refused by name, before the first row.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

from connector.kafka.client.tokens import CLIENT_ID, CLIENT_SECRET, ENDPOINT, PROVIDER, TokenSource, provider_of
from transactional.errors import OptionError, StoreError

__all__ = [
    "Secret",
    "check_security",
    "for_kafka_python",
    "for_librdkafka",
    "is_tls",
    "java_stores",
    "login_failed",
    "tls_failed",
    "tls_hint",
    "tls_problem",
]

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

_TRUST_STORE: Final = (
    "Java key stores can't be read here. Export it once: keytool -list -rfc -keystore truststore.jks > ca.pem; then set "
    "kafka.ssl.ca.location to ca.pem."
)
_KEY_STORE: Final = (
    "JKS and PKCS#12 can't be read by both client libraries. Export it once: keytool -importkeystore -srckeystore keystore.jks "
    "-destkeystore client.p12 -deststoretype PKCS12 (JKS only); openssl pkcs12 -in client.p12 -nokeys -out client.pem; "
    "openssl pkcs12 -in client.p12 -nocerts -out client.key; then set kafka.ssl.certificate.location, "
    "kafka.ssl.key.location and kafka.ssl.key.password."
)
_STORES: Final[Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]]] = {
    "ssl.truststore": (_TRUST_STORE, {"certificates": ("ssl.ca.pem",), "location": ("ssl.ca.location",)}),
    "ssl.keystore": (
        _KEY_STORE,
        {
            "certificate.chain": ("ssl.certificate.pem",),
            "key": ("ssl.key.pem",),
            # One PEM file with the key and the chain.
            "location": ("ssl.certificate.location", "ssl.key.location"),
        },
    ),
}
"""Java's stores: how they are exported, and what becomes of each key where the type is PEM."""

_TLS_VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})
HANDSHAKE_SECONDS: Final = 5.0
"""Of the handshake that finds out what a client would not say."""

LISTEN_SECONDS: Final = 0.5
"""Of the wait for what a broker says behind its handshake."""

_TLS_ADVICE: Final[Mapping[str, str]] = {
    "certificate has expired": "Renew the brokers' certificate; or is this machine's clock wrong?",
    "certificate is not yet valid": "Is this machine's clock wrong?",
    "self-signed certificate": "kafka.ssl.ca.location must hold the authority that signed the brokers' certificates.",
    "unable to get": "kafka.ssl.ca.location must hold the authority that signed the brokers' certificates.",
    "Hostname mismatch": "kafka.bootstrap.servers and the brokers' advertised.listeners must use names that their certificates "
    "have; kafka.ssl.endpoint.identification.algorithm=none would trust any name.",
    "IP address mismatch": "kafka.bootstrap.servers and the brokers' advertised.listeners must use names that their "
    "certificates have; kafka.ssl.endpoint.identification.algorithm=none would trust any name.",
    "WRONG_VERSION_NUMBER": "This listener does not speak TLS: check kafka.security.protocol, and the port.",
    "CERTIFICATE_REQUIRED": "The brokers ask for a client certificate: set kafka.ssl.certificate.location and "
    "kafka.ssl.key.location.",
    "alert bad certificate": "The brokers ask for a client certificate that they trust: set kafka.ssl.certificate.location and "
    "kafka.ssl.key.location.",
    "alert": "The brokers do not take this client's certificate: check kafka.ssl.certificate.location.",
    "": "Check kafka.security.protocol, the port, and kafka.ssl.*.",
}
"""Part of OpenSSL's reason → what to do; the first that fits."""

_BOOLEANS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("true", "t", "1"), "true"),
    **dict.fromkeys(("false", "f", "0"), "false"),
}
"""How librdkafka reads them, in any case."""

_FILES: Final = ("ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.+?)-----END \1-----", re.DOTALL)


class Secret(str):
    """Text that a client gets and that a repr of the client's settings does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


def is_tls(settings: Mapping[str, str]) -> bool:
    """Whether connections are encrypted."""
    return settings.get("security.protocol", "").endswith("SSL")


def java_stores(name: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Turn Java's PEM stores into librdkafka's settings, and refuse its other stores with the way to export them.

    Returns
    -------
    tuple[dict[str, str], dict[str, str]]
        The settings, and where the new ones come from (librdkafka's name → Java's).

    Raises
    ------
    OptionError
        ``FORBIDDEN_OPTION``, ``INVALID_OPTION``.
    """
    settings, origins = dict(given), dict[str, str]()
    for store, (export, keys) in _STORES.items():
        kind = settings.get(f"{store}.type", "").upper()
        texts = [key for key in keys if key != "location" and f"{store}.{key}" in settings]
        is_pem = kind == "PEM" or (kind == "" and bool(texts))
        for key in [key for key in settings if key.startswith(f"{store}.")]:
            to = keys.get(key.removeprefix(f"{store}."), ())
            if not is_pem or (not to and not key.endswith(".type")):
                way = export if not is_pem else "a PEM store has no password of its own: see kafka.ssl.key.password."
                raise OptionError(
                    "FORBIDDEN_OPTION", f"{name} does not take the option kafka.{key}: {way}", option=f"kafka.{key}"
                )
            text = settings.pop(key)
            for target in to:
                if target in given:
                    raise OptionError(
                        "INVALID_OPTION",
                        f"{name}: the options kafka.{key} and kafka.{target} are one setting: give one.",
                        option=f"kafka.{key}",
                    )
                settings[target], origins[target] = text, key
    for key in ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem", "https.ca.pem"):
        if key in settings:
            settings[key] = _with_lines(settings[key])
    return settings, origins


def _with_lines(text: str) -> str:
    """PEM as OpenSSL reads it: in Java's properties it often is one line."""
    if "\n" in text:
        return text
    blocks = ((found[1], "".join(found[2].replace("\\n", " ").split())) for found in _PEM.finditer(text))
    told = (
        "\n".join(
            [
                f"-----BEGIN {kind}-----",
                *(body[at : at + 64] for at in range(0, len(body), 64)),
                f"-----END {kind}-----",
            ]
        )
        for kind, body in blocks
    )
    return "\n".join(told) + "\n"


def check_security(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Check protocol, mechanism and certificates, and write them in one way. Offline, but for the look for files.

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

    def invalid(key: str, told: str) -> OptionError:
        return OptionError("INVALID_OPTION", f"{name}: the option kafka.{key} {told}", option=f"kafka.{key}")

    for key, way in _UNSUPPORTED.items():
        if key in settings:
            raise OptionError(
                "FORBIDDEN_OPTION", f"{name} does not take the option kafka.{key}: {way}", option=f"kafka.{key}"
            )
    for key in ("ssl.protocol", "ssl.enabled.protocols"):
        versions = {version.strip() for version in settings.pop(key, "").split(",")} - {""}
        # TLSv1.3 is Java's word for 1.3 or what is below it; the list is what it says.
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
                "SASL_PLAINTEXT (or to PLAINTEXT, where the brokers ask for nothing).",
                option="kafka.security.protocol",
            )
        return settings
    settings["security.protocol"] = protocol
    if protocol.startswith("SASL_"):
        _check_sasl(name, settings, invalid)
    if is_tls(settings):
        _check_ssl(settings, invalid)
    return settings


def _check_sasl(name: str, settings: dict[str, str], invalid: Any) -> None:
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


def _check_tokens(settings: Mapping[str, str], invalid: Any) -> list[str]:
    if PROVIDER in settings:
        provider_of(settings[PROVIDER])
        return []
    for key, allowed in (("method", ("default", "oidc")), ("grant.type", ("client_credentials",))):
        found = settings.get(f"sasl.oauthbearer.{key}")
        if found is not None and found.lower() not in allowed:
            raise invalid(f"sasl.oauthbearer.{key}", f"is {found!r}: only oidc with client_credentials is built in.")
    if not settings.get(ENDPOINT):
        raise invalid(
            "sasl.mechanism",
            f"is OAUTHBEARER: set kafka.{ENDPOINT}, kafka.{CLIENT_ID} and kafka.{CLIENT_SECRET}, or kafka.{PROVIDER} "
            "(package.module:function).",
        )
    if not settings[ENDPOINT].startswith(("https://", "http://")):
        raise invalid(ENDPOINT, "must be an https address.")
    return [CLIENT_ID, CLIENT_SECRET]


def _check_ssl(settings: dict[str, str], invalid: Any) -> None:
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
        # Both libraries must read the same: what one takes for true must not be another's false.
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
    # Who gives PEM text where a path belongs does not want to read it in a log.
    return "no path" if "\n" in path or "-----" in path else repr(path)


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings that confluent-kafka takes: tokens come from our source, in both libraries."""
    if settings.get("sasl.mechanism") != "OAUTHBEARER" or not settings["security.protocol"].startswith("SASL_"):
        return {key: value for key, value in settings.items() if key != PROVIDER}
    plain = {k: v for k, v in settings.items() if not k.startswith(("sasl.oauthbearer.", "https."))}
    return {**plain, "oauth_cb": TokenSource.of(settings)}


def for_kafka_python(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Security settings of kafka-python's clients.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: certificates or keys that can't be read.
    """
    protocol = settings.get("security.protocol")
    if protocol is None:
        return {}
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        found["sasl_mechanism"] = settings["sasl.mechanism"]
        if found["sasl_mechanism"] == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _provider(TokenSource.of(settings))
        else:
            found["sasl_plain_username"] = settings["sasl.username"]
            found["sasl_plain_password"] = Secret(settings["sasl.password"])
    if is_tls(settings):
        found["ssl_context"] = ssl_context(name, settings)
    return found


def login_failed(name: str, servers: str, reason: str) -> StoreError:
    """The error of brokers that do not let us in."""
    return StoreError(
        "AUTHENTICATION_FAILED",
        f"{name}: the brokers at {servers} refused to log this user in: {reason.rstrip('.')}. Check kafka.sasl.username, "
        "kafka.sasl.password (or kafka.sasl.oauthbearer.*), and kafka.sasl.mechanism.",
        servers=servers,
        reason=reason,
    )


def tls_failed(name: str, servers: str, problem: ssl.SSLError | str) -> StoreError:
    """The error of a TLS handshake that no waiting heals."""
    reason = problem if isinstance(problem, str) else getattr(problem, "verify_message", "") or str(problem)
    advice = next(way for part, way in _TLS_ADVICE.items() if part in reason)
    return StoreError(
        "TLS_FAILED",
        f"{name}: no encrypted connection to the brokers at {servers}: {reason.rstrip('.')}. {advice}",
        servers=servers,
        reason=reason,
    )


def tls_problem(name: str, settings: Mapping[str, str]) -> ssl.SSLError | None:
    """Shake hands with one broker after the other; the first refusal that says why, or None.

    librdkafka's own text tells an expired certificate and an unknown authority by one sentence.
    """
    context = ssl_context(name, settings)
    answers = (_shake_hands(context, host, port) for host, port in _addresses(settings))
    return next((problem for problem in answers if isinstance(problem, ssl.SSLError)), None)


def _shake_hands(context: ssl.SSLContext, host: str, port: int) -> OSError | None:
    """What is wrong with a TLS connection, or None."""
    try:
        with (
            socket.create_connection((host, port), timeout=HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            # Under TLS 1.3 what the broker has against us comes behind the handshake. Else it waits: a client speaks first.
            secured.settimeout(LISTEN_SECONDS)
            with contextlib.suppress(TimeoutError):
                secured.recv(1)
    except OSError as problem:
        return problem
    return None


def tls_hint(settings: Mapping[str, str]) -> str:
    """A sentence for who speaks plain text to a listener that wants TLS; else nothing."""
    if is_tls(settings):
        return ""
    trusting = {"bootstrap.servers": settings["bootstrap.servers"], "enable.ssl.certificate.verification": "false"}
    context = ssl_context("", trusting)
    if any(_shake_hands(context, host, port) is None for host, port in list(_addresses(settings))[:1]):
        protocol = settings.get("security.protocol", "PLAINTEXT")
        return f" It is {protocol}, and this listener speaks TLS: set it to SSL or SASL_SSL."
    return ""


def _addresses(settings: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for address in settings["bootstrap.servers"].split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        yield host.strip("[]"), int(port) if port.isdecimal() else 9092


def _provider(source: TokenSource) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        """kafka-python's shape of a `TokenSource`."""

        def token(self) -> str:
            return source.token().text

        def extensions(self) -> dict[str, str]:
            return dict(source.token().extensions)

    return Provider()


def ssl_context(name: str, settings: Mapping[str, str]) -> ssl.SSLContext:
    """Make the context that does for kafka-python what librdkafka makes of the same settings.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, naming what can't be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    verify = settings.get("enable.ssl.certificate.verification", "true") != "false"
    context.check_hostname = verify and settings.get("ssl.endpoint.identification.algorithm") != "none"
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    at = ""
    try:
        if "ssl.ca.pem" in settings:
            at = "ssl.ca.pem"
            context.load_verify_locations(cadata=settings[at])
        elif settings.get("ssl.ca.location", "probe") != "probe":
            at = "ssl.ca.location"
            path = settings[at]
            context.load_verify_locations(
                cafile=None if os.path.isdir(path) else path, capath=path if os.path.isdir(path) else None
            )
        else:
            context.load_default_certs()
        if "ssl.crl.location" in settings:
            at = "ssl.crl.location"
            context.load_verify_locations(settings[at])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if "ssl.cipher.suites" in settings:
            at = "ssl.cipher.suites"
            context.set_ciphers(settings[at])
        at = next((key for key in ("ssl.key.location", "ssl.key.pem") if key in settings), "")
        if at:
            with _file_of(settings, "ssl.certificate") as certificate, _file_of(settings, "ssl.key") as key:
                # Without a password OpenSSL would ask for it at the terminal.
                context.load_cert_chain(certificate, key, settings.get("ssl.key.password", ""))
    except (OSError, ValueError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        if at.startswith("ssl.key"):
            reason += ". Is kafka.ssl.key.password right, and do key and certificate belong together?"
        raise OptionError(
            "INVALID_OPTION",
            f"{name}: what the option kafka.{at} gives can't be used: {reason}",
            option=f"kafka.{at}",
        ) from None
    return context


@contextlib.contextmanager
def _file_of(settings: Mapping[str, str], key: str) -> Iterator[str]:
    """The path of a certificate or key; of one given as text, a file that nobody else can read, for as long as it takes."""
    text = settings.get(f"{key}.pem")
    if text is None:
        yield settings[f"{key}.location"]
    elif hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        handle = os.memfd_create("pem")  # never on a disk
        with open(handle, "wb") as memory:
            memory.write(text.encode())
            memory.flush()
            yield f"/proc/self/fd/{handle}"
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
