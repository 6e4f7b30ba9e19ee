"""Java's key stores and trust stores: PEM stores are translated; others are rejected, with commands to export them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from connector.kafka.client.errors import forbidden_option

_TRUST_STORE: Final = (
    "Java's trust stores can't be read here. Export yours once: keytool -list -rfc -keystore truststore.jks > ca.pem; then set "
    "kafka.ssl.ca.location to ca.pem."
)
_KEY_STORE: Final = (
    "kafka-python, one of the two client libraries, reads neither JKS nor PKCS#12. Export your store once: "
    "keytool -importkeystore -srckeystore keystore.jks -destkeystore client.p12 -deststoretype PKCS12 (JKS only); "
    "openssl pkcs12 -in client.p12 -nokeys -out client.pem; openssl pkcs12 -in client.p12 -nocerts -out client.key; "
    "then set kafka.ssl.certificate.location, kafka.ssl.key.location and kafka.ssl.key.password."
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
"""For each of Java's stores: how to export it and, for the type PEM, librdkafka's settings for each of its keys."""

_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.+?)-----END \1-----", re.DOTALL)


def java_stores(name: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Translate Java's PEM stores into librdkafka's settings. For other stores, raise an error with commands to export them.

    Return all settings and, for each translated setting, the name that the user wrote.
    """
    settings, origins = dict(given), dict[str, str]()
    for store, (export, keys) in _STORES.items():
        kind = settings.get(f"{store}.type", "").upper()
        texts = [key for key in keys if key != "location" and f"{store}.{key}" in settings]
        is_pem = kind == "PEM" or (kind == "" and bool(texts))
        for key in [key for key in settings if key.startswith(f"{store}.")]:
            to = keys.get(key.removeprefix(f"{store}."), ())
            if not is_pem or (not to and not key.endswith(".type")):
                way = (
                    export
                    if not is_pem
                    else "a PEM store has no password; kafka.ssl.key.password is for an encrypted key."
                )
                raise forbidden_option(name, key, way)
            text = settings.pop(key)
            for target in to:
                if target in given:
                    raise forbidden_option(name, key, f"it means the same as kafka.{target}, and both are set.")
                settings[target], origins[target] = text, key
    for key in ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem", "https.ca.pem"):
        if key in settings:
            settings[key] = _with_lines(settings[key])
    return settings, origins


def _with_lines(text: str) -> str:
    """Return PEM text with the line breaks that OpenSSL needs. In Java's properties, PEM text is often a single line."""
    if "\n" in text:
        return text
    lines: list[str] = []
    for block in _PEM.finditer(text):
        kind, body = block[1], "".join(block[2].replace("\\n", " ").split())
        cut = [body[at : at + 64] for at in range(0, len(body), 64)]
        lines += [f"-----BEGIN {kind}-----", *cut, f"-----END {kind}-----"]
    return "\n".join(lines) + "\n"
