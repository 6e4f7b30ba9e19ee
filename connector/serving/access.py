"""Who may see the page: on loopback whoever is on this machine, elsewhere whoever has the token."""

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

__all__ = ["Access", "is_loopback"]

COOKIE: Final = "barrier_token"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(host: str) -> bool:
    """Return whether a request's Host is a name of this machine, with or without a port."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower().rstrip("."))


class Access:
    """Lets a request pass to an application, or answers 401 or 421 itself; adds headers that browsers obey.

    A token may come as ``Authorization: Bearer``, as a cookie, or once as ``?token=``, which sets the cookie. Without one the
    page must be asked for under a name of this machine: else a web site could read it through its visitor's browser.

    Parameters
    ----------
    app : ASGIApp
    token : str
        Empty: none is needed.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
        refused = PlainTextResponse("The token is missing: open the address that `barrier serve` printed.\n", 401)
        refused.headers["WWW-Authenticate"] = "Bearer"
        await refused(scope, receive, guarded)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())
