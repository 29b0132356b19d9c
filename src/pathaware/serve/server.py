"""The server process: its socket, uvicorn, and the signals that end it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING

from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pathaware.serve.limits import Limits

GRACE = 5
"""Seconds for responses in progress when the server ends."""


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise an error that names the field at fault."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"{host} cannot be resolved", field="host") from None
    try:
        bound = socket.create_server((str(address[0]), port), family=family, backlog=1024)
        # Inherited by connections. Without it, each response waits 40 ms for an acknowledgement.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except PermissionError:
        raise UsageError(f"{port} is not allowed for this user; must be above 1023", field="port") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{port} is in use; choose another, or 0 for any free port", field="port"
            ) from None
        raise UsageError(f"{host} is not an address of this machine", field="host") from None


def address_of(bound: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = bound.getsockname()[:2]
    if ip_address(host).is_unspecified:  # listens on all interfaces
        host = "127.0.0.1" if bound.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(bound: socket.socket) -> bool:
    return ip_address(bound.getsockname()[0]).is_loopback


def impatient_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol, which disconnects clients that take over `seconds` to send headers.

    A client that sends them slowly, or never, would hold one of the limited connections for as long as it
    likes: uvicorn limits only the time between requests.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self.expect_headers()
            elif self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            super().connection_lost(exc)

        def expect_headers(self) -> None:
            if self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.give_up)

        def give_up(self) -> None:
            self.deadline = None
            if self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Impatient


def serve(app: ASGIApp, bound: socket.socket, limits: Limits, ready: Callable[[], None]) -> int:
    """Answer requests until a signal arrives; return the exit code of the process."""
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # bad requests are the clients' errors
    config = uvicorn.Config(
        app,
        # The tested implementations, even where faster ones are installed.
        http=impatient_protocol(limits.header_seconds),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=GRACE,
    )
    signals: list[int] = []

    def record(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)

    # Everything loaded so far stays anyway. Excluding it makes collections cheap and frequent enough to free
    # the networks of ended sessions, whose modules form reference cycles.
    gc.collect()
    gc.freeze()
    # uvicorn shuts down gracefully on a signal and raises it again afterwards.
    before = {s: signal.signal(s, record) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        Announcing(config).run(sockets=[bound])
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        bound.close()
    return 130 if signal.SIGINT in signals else 0
