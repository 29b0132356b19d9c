"""The server process: its socket, uvicorn, and the signals that end it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING

from pathaware.core.errors import UsageError
from pathaware.serve.limits import is_local, network_prefix
from pathaware.serve.worker import still_computing

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pathaware.serve.limits import Limits

GRACE = 1
"""Seconds for responses in progress when the server ends."""
REFUSAL = 5.0
"""Seconds for a client to hear that its body is refused, and to stop sending."""
LOST = "lost"
"""The stage of a connection that is no more."""


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


def watched_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol, which disconnects clients that keep it waiting.

    uvicorn limits only the time between requests; here headers, a body, and the reading of an answer have
    limits too. If there are too many connections, one that keeps the server waiting makes room: the oldest of
    the address that has most of them.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    seconds = {
        "headers": limits.header_seconds,
        "body": limits.upload_seconds + REFUSAL,
        "rest of a body": REFUSAL,
        "answer": limits.answer_seconds,
    }

    class Watched(H11Protocol):
        stage: str | None = None
        """The part of a request or answer that the server waits for."""
        prefix = ""
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            self.prefix = network_prefix(address)
            number[self.prefix] += 1
            self.watch()
            if number[self.prefix] > limits.connections_per_address and not is_local(address):
                transport.abort()
            elif number.total() >= limits.connections:
                crowd = max(waiting.values(), key=lambda each: len(each))
                oldest = next(iter(crowd))
                del crowd[oldest]
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except Exception:  # bytes that h11 has no answer to
                self.transport.abort()
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            self.stage = LOST
            waiting[self.prefix].pop(self, None)
            number[self.prefix] -= 1
            if not number[self.prefix]:
                del number[self.prefix], waiting[self.prefix]
            super().connection_lost(exc)

        def waits_for(self) -> str | None:
            if self.flow.write_paused or self.transport.is_closing():
                return "answer"
            if self.conn.their_state is h11.SEND_BODY:
                answered = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
                return "rest of a body" if answered else "body"
            return "headers" if self.conn.their_state is h11.IDLE else None

        def watch(self) -> None:
            stage = self.waits_for()
            if stage == self.stage or self.stage == LOST:
                return
            if self.deadline is not None:
                self.deadline.cancel()
            self.stage, self.deadline = stage, None
            waiting[self.prefix].pop(self, None)
            if stage is not None:
                waiting[self.prefix][self] = None
                self.deadline = self.loop.call_later(seconds[stage], self.give_up)

        def give_up(self) -> None:
            if self.stage == "headers":
                self.transport.close()
                self.watch()
            else:
                self.transport.abort()

    number = Counter[str]()
    waiting = defaultdict[str, dict[Watched, None]](dict)  # those that have waited longest first
    return Watched


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
        http=watched_protocol(limits),
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
    code = 130 if signal.SIGINT in signals else 0
    if still_computing():  # for clients that are gone; nothing is saved, so nothing can be lost
        sys.stdout.flush()
        os._exit(code)
    return code
