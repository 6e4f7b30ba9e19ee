"""Access control for the page: on loopback, every user of this machine may read it; elsewhere, only users with the token."""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "barrier_token"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(host: str) -> bool:
    """Return whether a request's Host header names the loopback address, with or without a port."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower().rstrip("."))


class Access:
    """ASGI middleware that passes permitted requests to an application, and answers all others with 401 or 421.

    It also adds security headers to every answer. A request can carry the token as ``Authorization: Bearer``, as a cookie, or
    once as ``?token=``, which sets the cookie. If no token is needed, the request's Host header must name the loopback address.
    This check keeps web sites from reading the page through a visitor's browser.

    Parameters
    ----------
    app : ASGIApp
        The application that gets the permitted requests.
    token : str
        The token that a request must carry; empty if requests need no token.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a permitted request to the application; answer any other request with 401 or 421."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        if not self._token:
            if _is_own(headers.get("host", "")):
                await self._app(scope, receive, guarded)
            else:
                await PlainTextResponse("This page is served on localhost only.\n", 421)(scope, receive, guarded)
            return
        words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        asked = dict(words).get("token")
        if asked is not None and self._is_token(asked):
            rest = urlencode([(key, value) for key, value in words if key != "token"])
            response = RedirectResponse("/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="lax")
            await response(scope, receive, guarded)
            return
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if (cookie is not None and self._is_token(cookie)) or (
            kind.lower() == "bearer" and self._is_token(bearer.strip())
        ):
            await self._app(scope, receive, guarded)
            return
        refused = PlainTextResponse(
            "The token is missing or wrong: open the address that `barrier serve` printed.\n", 401
        )
        refused.headers["WWW-Authenticate"] = "Bearer"
        await refused(scope, receive, guarded)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())
