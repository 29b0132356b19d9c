"""Who may talk to a server on somebody's own machine: that person's browser, from this page, and programs.

Any page in the same browser can send requests to 127.0.0.1. So the Host header must be a name of this server
(against names that are made to point here, "DNS rebinding"), and what changes something must come from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pathaware.serve.limits import Refused, refusal

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Around an app: refuses strangers, and adds headers that keep browsers strict.

    `hosts` are the names it may be called by; with `addresses`, so are numbers, which no
    name server can fake.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), *, addresses: bool = False) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(scope["method"], Headers(scope=scope))
        except Refused as refused:
            await refusal(refused)(scope, receive, strictly)
            return
        await self._app(scope, receive, strictly)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._known(host):
            raise Refused(400, "the Host header names another server; see --allow-host")
        if method in ("GET", "HEAD"):
            return
        site = headers.get("sec-fetch-site")  # browsers send it, and no script can change it
        origin = headers.get("origin")
        own = site in ("same-origin", "none") if site else origin is None or _netloc(origin) == host.lower()
        if not own:
            raise Refused(403, "requests from other sites are not answered")

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if set(host) & set("@/\\?# "):
            return False
        return name in self._hosts or (self._addresses and _is_address(name))


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
