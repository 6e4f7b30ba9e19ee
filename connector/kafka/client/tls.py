"""Make a TLS context for kafka-python that trusts the same certificates as librdkafka. Find out why handshakes fail."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Final

from connector.kafka.client.errors import invalid_option
from transactional.errors import StoreError

HANDSHAKE_SECONDS: Final = 5.0
"""The time limit for an extra handshake, which finds out why librdkafka's own handshake failed."""

LISTEN_SECONDS: Final = 0.5
"""The time to wait for an error after an extra handshake. With TLS 1.3, a broker checks our certificate only then."""

_NAMES: Final = (
    "kafka.bootstrap.servers and the brokers' advertised.listeners must use names that the brokers' certificates contain; "
    "kafka.ssl.endpoint.identification.algorithm=none would trust any name"
)
_AUTHORITY: Final = (
    "kafka.ssl.ca.location must contain the certificate of the authority that signed the brokers' certificates"
)

_ADVICE: Final[Mapping[str, str]] = {
    "certificate has expired": "renew the brokers' certificate, and check this machine's clock",
    "certificate is not yet valid": "check this machine's clock",
    "self-signed certificate": _AUTHORITY,
    "unable to get": _AUTHORITY,
    "Hostname mismatch": _NAMES,
    "IP address mismatch": _NAMES,
    "WRONG_VERSION_NUMBER": "this listener does not speak TLS: check kafka.security.protocol, and the port",
    "CERTIFICATE_REQUIRED": "the brokers ask for a client certificate: set kafka.ssl.certificate.location and "
    "kafka.ssl.key.location",
    "alert bad certificate": "the brokers ask for a client certificate that they trust: set kafka.ssl.certificate.location and "
    "kafka.ssl.key.location",
    "alert": "the brokers do not accept this client's certificate: check kafka.ssl.certificate.location",
    "": "",
}
"""Advice for failed handshakes, by a part of OpenSSL's reason. The first entry that matches is used."""


def is_tls(settings: Mapping[str, str]) -> bool:
    """Return whether connections are encrypted."""
    return settings.get("security.protocol", "").endswith("SSL")


def tls_failed(name: str, servers: str, problem: ssl.SSLError | str) -> StoreError:
    """Return the error for a TLS handshake that would fail again if it were repeated."""
    reason = problem if isinstance(problem, str) else getattr(problem, "verify_message", "") or str(problem)
    advice = next(way for part, way in _ADVICE.items() if part in reason)
    return StoreError(
        "TLS_FAILED", servers=servers, reason=f"{reason.removesuffix('.')} ({advice})" if advice else reason
    )


def tls_problem(name: str, settings: Mapping[str, str]) -> ssl.SSLError | None:
    """Try TLS handshakes with the brokers, one after the other, and return the first TLS error; None if there is none.

    librdkafka's own error text is the same for an expired certificate and for an unknown authority.
    """
    context = ssl_context(name, settings)
    answers = (_shake_hands(context, host, port) for host, port in _addresses(settings))
    return next((problem for problem in answers if isinstance(problem, ssl.SSLError)), None)


def tls_hint(settings: Mapping[str, str]) -> str:
    """Return a hint for an error's text if the user connects without TLS to a listener that uses TLS; else an empty string."""
    if is_tls(settings):
        return ""
    trusting = {"bootstrap.servers": settings["bootstrap.servers"], "enable.ssl.certificate.verification": "false"}
    context = ssl_context("", trusting)
    if any(_shake_hands(context, host, port) is None for host, port in list(_addresses(settings))[:1]):
        protocol = settings.get("security.protocol", "PLAINTEXT")
        return f"; kafka.security.protocol is {protocol}, but this listener uses TLS: set it to SSL or SASL_SSL"
    return ""


def _shake_hands(context: ssl.SSLContext, host: str, port: int) -> OSError | None:
    """Try to make a TLS connection. Return the error if it fails, else None."""
    try:
        with (
            socket.create_connection((host, port), timeout=HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            # With TLS 1.3, a broker refuses our certificate after the handshake. Otherwise it sends nothing before we do.
            secured.settimeout(LISTEN_SECONDS)
            with contextlib.suppress(TimeoutError):
                secured.recv(1)
    except OSError as problem:
        return problem
    return None


def _addresses(settings: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for address in settings["bootstrap.servers"].split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        yield host.strip("[]"), int(port) if port.isdecimal() else 9092


def ssl_context(name: str, settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that makes kafka-python behave as librdkafka does with the same settings."""
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
                # If no password were passed, OpenSSL would ask for it at the terminal.
                context.load_cert_chain(certificate, key, settings.get("ssl.key.password", ""))
    except (OSError, ValueError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        if at.startswith("ssl.key"):
            reason += "; check kafka.ssl.key.password, and whether key and certificate belong together"
        shown = "PEM text" if at.endswith(".pem") else settings.get(at, "")
        raise invalid_option(name, at, shown, f"a value that OpenSSL can use ({reason})") from None
    return context


@contextlib.contextmanager
def _file_of(settings: Mapping[str, str], key: str) -> Iterator[str]:
    """Yield the path of a certificate or key. If the user gave PEM text, write it to a file that only this user can read."""
    text = settings.get(f"{key}.pem")
    if text is None:
        yield settings[f"{key}.location"]
    elif hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        handle = os.memfd_create("pem")  # never written to a disk
        with open(handle, "wb") as memory:
            memory.write(text.encode())
            memory.flush()
            yield f"/proc/self/fd/{handle}"
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
