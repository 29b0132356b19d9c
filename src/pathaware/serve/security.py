"""Protection of a server on a private machine from other web pages in the same browser.

Any page can send requests to 127.0.0.1. So the Host header must name this server, which defeats DNS
rebinding, and requests that change something must come from the server's own page or from a program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pathaware.core.errors import UsageError
from pathaware.serve.api_error import ApiError

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def protect(app: ASGIApp, hosts: Sequence[str] = (), *, addresses: bool = False) -> ASGIApp:
    """Wrap an app in all checks. `hosts` and `addresses` as for `HostCheck`."""
    return SecurityHeaders(HostCheck(OriginCheck(app), hosts, addresses=addresses))


class SecurityHeaders:
    """Adds headers that make browsers strict to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_strictly)


class HostCheck:
    """Starlette's check of the Host header, with refusals in JSON and with IP addresses.

    Allowed are localhost, loopback addresses and `hosts` (names, or `*.domain`). With `addresses`, so are all
    IP addresses: DNS rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = (), *, addresses: bool = False) -> None:
        self._app, self._hosts, self._addresses = app, ["localhost", *hosts], addresses
        try:
            TrustedHostMiddleware(app, self._hosts)
        except AssertionError:
            raise UsageError(
                f"must be names or patterns such as *.example.com, not {', '.join(hosts)}", field="allow_host"
            ) from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may go by the other
            error = ApiError(400, "Content-Length and Transfer-Encoding exclude each other")
            await error.response()(scope, receive, send)
            return
        if scope["type"] != "http" or self._is_allowed_address(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send)
            return

        async def trusted(scope: Scope, receive: Receive, _: Send) -> None:
            await self._app(scope, receive, send)

        async def refuse(message: Message) -> None:  # in place of the middleware's plain text
            if message["type"] == "http.response.start":
                error = ApiError(400, "the Host header names another server; see --allow-host")
                await error.response()(scope, receive, send)

        await TrustedHostMiddleware(trusted, self._hosts, www_redirect=False)(scope, receive, refuse)

    def _is_allowed_address(self, host: str) -> bool:
        found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:]+))(?::\d*)?", host)
        try:
            address = ip_address(found[1] or found[2]) if found else None
        except ValueError:
            return False
        return address is not None and (self._addresses or address.is_loopback)


class OriginCheck:
    """Refuses requests from other sites that could change something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD") and not _is_own(scope):
            error = ApiError(403, "requests from other sites are not answered")
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_own(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")  # sent by browsers; scripts cannot change it
    origin = headers.get("origin")
    if site:
        return site in ("same-origin", "none")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False
