"""The process: a socket, uvicorn, and signals that end it."""

from __future__ import annotations

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
"""Seconds that answers on their way have when the server ends."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens, or an error that names the option at fault."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"{host} is not a name or address that can be found", field="host") from None
    try:
        bound = socket.create_server((str(address[0]), port), family=family, backlog=1024)
        # Connections inherit it. Without, each answer waits 40 ms for the client to confirm its first half.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except PermissionError:
        raise UsageError(f"{port} is not allowed for this user; take one above 1023", field="port") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{port} is in use; name another, or 0 for any that is free", field="port"
            ) from None
        raise UsageError(f"{host} is not an address of this machine", field="host") from None


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if ip_address(host).is_unspecified:  # listens everywhere, and is called by some name
        host = "127.0.0.1" if bound.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(bound: socket.socket) -> bool:
    return ip_address(bound.getsockname()[0]).is_loopback


def serve(app: ASGIApp, bound: socket.socket, limits: Limits, ready: Callable[[], None]) -> int:
    """Answer requests until a signal comes; what the process should exit with."""
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # bad requests are the clients' affair
    config = uvicorn.Config(
        app,
        # What is tested is what runs, also where faster parsers are installed.
        http="h11",
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

    def note(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)

    # What was loaded so far stays anyway. Without it to look at, the collector comes by often enough to clear
    # away networks of sessions that have ended: modules refer to each other in circles.
    gc.collect()
    gc.freeze()
    # uvicorn ends in peace when a signal comes, and raises it again afterwards.
    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        Announcing(config).run(sockets=[bound])
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        bound.close()
    return 130 if signal.SIGINT in signals else 0
