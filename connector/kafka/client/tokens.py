"""Get OAUTHBEARER tokens from one source for both client libraries. Each token is reused for most of its lifetime."""

from __future__ import annotations

import base64
import binascii
import importlib
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.errors import OptionError, StoreError

PROVIDER: Final = "sasl.oauthbearer.token.provider"
ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.secret"

REQUEST_SECONDS: Final = 8.0
"""The time limit for one request to the token endpoint, because librdkafka waits only 10 s for its first token."""

REUSED_PART: Final = 0.7
"""The fraction of a token's lifetime during which it is reused. After 0.8 of the lifetime, librdkafka asks for a new
token, and must not get the old one."""

UNKNOWN_LIFE_SECONDS: Final = 300.0
"""The assumed lifetime of a token if neither the endpoint nor the token says when it expires."""

_lock = threading.Lock()
_kept: dict[TokenSource, tuple[Token, float]] = {}
"""This process's tokens, each with the time when its reuse ends. Every task makes new clients, and each needs a token."""


@dataclass(frozen=True)
class Token:
    """A bearer token. Its repr does not show the text. `expires` is in seconds since the epoch."""

    text: str = field(repr=False)
    expires: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenSource:
    """A source of tokens: the user's function, or a token endpoint (client credentials grant)."""

    # The settings ``sasl.oauthbearer.*`` and ``https.*``, sorted.
    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TokenSource:
        """Return the source that these client settings describe."""
        return cls(tuple(sorted((k, v) for k, v in settings.items() if k.startswith(("sasl.oauthbearer.", "https.")))))

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return a token for confluent-kafka. Each client calls this, as its ``oauth_cb``, in a separate thread."""
        token = self.token()
        return token.text, token.expires, token.principal, dict(token.extensions)

    def token(self) -> Token:
        """Return the kept token if it can be reused, else a new token."""
        with _lock:
            kept = _kept.get(self)
            if kept is not None and time.time() < kept[1]:
                return kept[0]
            begin = time.time()
            settings = dict(self.settings)
            token = _provided(settings) if PROVIDER in settings else _requested(settings)
            _kept[self] = token, begin + REUSED_PART * (token.expires - begin)
            return token


def _provided(settings: Mapping[str, str]) -> Token:
    path = settings[PROVIDER]
    try:
        answer = provider_of(path)(settings.get("sasl.oauthbearer.config", ""))
    except OptionError:
        raise
    except Exception as problem:  # noqa: BLE001 - the user's code
        # Do not show the error's message, because it may quote a secret from the settings.
        raise StoreError(
            "NO_TOKEN",
            reason=f"kafka.{PROVIDER}={path} raised {type(problem).__name__} instead of returning a token",
            option=f"kafka.{PROVIDER}",
        ) from None
    match answer:
        case (str(text), int() | float() as expires):
            return Token(text, float(expires))
        case (str(text), int() | float() as expires, str(principal)):
            return Token(text, float(expires), principal)
        case (str(text), int() | float() as expires, str(principal), dict(extensions)):
            return Token(text, float(expires), principal, extensions)
    raise OptionError(
        "INVALID_OPTION",
        owner="The login",
        option=f"kafka.{PROVIDER}",
        value=path,
        expectation="a function that returns (token, expiry in seconds since the epoch), optionally with a "
        "principal and a dict of extensions",
    )


def provider_of(path: str) -> Callable[[str], Any]:
    """Import the user's function from ``package.module:function``, and check that it takes one argument."""
    module, _, name = path.partition(":")
    try:
        provider = getattr(importlib.import_module(module), name)
        if callable(provider) and not isinstance(provider, type):
            inspect.signature(provider).bind("the text of sasl.oauthbearer.config")
            return provider  # type: ignore[no-any-return]  # what it returns is checked when it is called
        problem: object = "it is not a function"
    except (ImportError, AttributeError, ValueError, TypeError) as missing:
        problem = missing
    raise OptionError(
        "INVALID_OPTION",
        owner="The login",
        option=f"kafka.{PROVIDER}",
        value=path,
        expectation=f"package.module:function, importable in every process of Spark ({problem})",
    )


def _requested(settings: Mapping[str, str]) -> Token:
    """Request a token from the endpoint (RFC 6749, 4.4: the client credentials grant)."""
    import http.client
    import ssl
    import urllib.error
    import urllib.parse
    import urllib.request

    url = settings[ENDPOINT]

    def refused(reason: str) -> StoreError:
        # The endpoint's reason may quote the secret.
        secret = settings.get(CLIENT_SECRET, "")
        for form in {secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)} - {""}:
            reason = reason.replace(form, "(hidden)")
        return _no_token(url, reason)

    quoted = (urllib.parse.quote(settings.get(key, ""), safe="") for key in (CLIENT_ID, CLIENT_SECRET))
    basic = base64.b64encode(":".join(quoted).encode()).decode()
    form = {"grant_type": "client_credentials"}
    if "sasl.oauthbearer.scope" in settings:
        form["scope"] = settings["sasl.oauthbearer.scope"]
    request = urllib.request.Request(
        url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {basic}", "Content-Type": "application/x-www-form-urlencoded"},
    )
    try:
        context = ssl.create_default_context(
            cafile=settings.get("https.ca.location"), cadata=settings.get("https.ca.pem")
        )
        begin = time.time()
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS, context=context) as answer:
            body = json.loads(answer.read())
        text = str(body["access_token"])
    except urllib.error.HTTPError as answer:
        raise refused(f"HTTP {answer.code}{_reason(answer)}") from None
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as problem:
        raise refused(f"{type(problem).__name__}: {problem}") from None
    life = body.get("expires_in")
    expires = begin + float(life) if life is not None else _expiry(text) or begin + UNKNOWN_LIFE_SECONDS
    pairs = (pair.partition("=") for pair in settings.get("sasl.oauthbearer.extensions", "").split(",") if pair)
    return Token(text, expires, settings.get(CLIENT_ID, ""), {key.strip(): value.strip() for key, _, value in pairs})


def _reason(refused: Any) -> str:
    """Return the error's name and description (RFC 6749, 5.2) from the endpoint's answer, and nothing else."""
    try:
        body = json.loads(refused.read())
        return "".join(f", {body[key]}" for key in ("error", "error_description") if key in body)
    except (OSError, ValueError, TypeError):
        return ""


def _expiry(token: str) -> float | None:
    try:
        part = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None


def _no_token(url: str, reason: str) -> StoreError:
    return StoreError(
        "NO_TOKEN",
        reason=f"the request to the token endpoint {url} (option kafka.{ENDPOINT}) failed: {reason}",
        option=f"kafka.{ENDPOINT}",
    )
