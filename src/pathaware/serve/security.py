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


class Protected:
    """An app behind all checks, with headers that make browsers strict on every response.

    Hosts that are allowed are localhost, loopback addresses and `hosts` (names, or `*.domain`). With
    `addresses`, so are all IP addresses: DNS rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = (), *, addresses: bool = False) -> None:
        self._app, self._hosts, self._addresses = app, {"localhost", *map(str.lower, hosts)}, addresses
        if not all(re.fullmatch(r"\*|(\*\.)?[^*]+", host) for host in hosts):
            raise UsageError(
                f"must be names or patterns such as *.example.com, not {', '.join(hosts)}", field="allow_host"
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal.response())(scope, receive, send_strictly)

    def _refusal(self, method: str, headers: Headers) -> ApiError | None:
        """Why a request is not answered."""
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may go by the other
            return ApiError(400, "Content-Length and Transfer-Encoding exclude each other")
        if not self._is_own_host(headers.get("host", "").lower()):
            return ApiError(400, "the Host header names another server; see --allow-host")
        if method not in ("GET", "HEAD") and not _is_own_origin(headers):
            return ApiError(403, "requests from other sites are not answered")
        return None

    def _is_own_host(self, host: str) -> bool:
        found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:]+))(?::\d*)?", host)
        if found is None:
            return False
        name = found[1] or found[2]
        if name in self._hosts or any(p[0] == "*" and name.endswith(p[1:]) for p in self._hosts):
            return True
        try:
            return ip_address(name).is_loopback or self._addresses
        except ValueError:
            return False


def _is_own_origin(headers: Headers) -> bool:
    """False for requests of other sites, which could change something."""
    site = headers.get("sec-fetch-site")  # sent by browsers; scripts cannot change it
    origin = headers.get("origin")
    if site:
        return site in ("same-origin", "none")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False
