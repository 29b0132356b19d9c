"""A hostile crowd that takes every connection it can get, beside visitors who want to use the model."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.forked import CONTEXT
from tests.serve.serving import png, serving

BODY = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"
SENT = [b"", b"GET / HT", BODY % b"api/sessions/unknown/adapt", BODY % b"nothing",
        200 * b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n"]  # fmt: skip


async def attack(address: str, number: int, opened: list[int]) -> None:
    """Open a connection, send something, fall silent, and begin again when it is closed."""
    where = urlsplit(address)
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1)
            opened[0] += 1
            writer.write(SENT[number % len(SENT)])
            reads = number % len(SENT) < 4
            while await reader.read(1000) if reads else not writer.is_closing():
                await asyncio.sleep(1)
            writer.transport.abort()
        await asyncio.sleep(0.2)


def crowd(address: str, connections: int, seconds: float, pipe: Connection) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    opened = [0]

    async def everybody() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for number in range(connections):
                    group.create_task(attack(address, number, opened))

    asyncio.run(everybody())
    pipe.send(opened[0])


async def visit(address: str, number: int, until: float, seconds: list[float]) -> None:
    """Teach two classes, adapt and classify, again and again; every answer must be a good one."""
    alone = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=address, limits=alone, timeout=60) as client:

        async def ask(method: str, path: str, **what: Any) -> Any:
            begun = time.monotonic()
            answer = await client.request(method, path, **what)
            seconds.append(time.monotonic() - begun)
            assert answer.is_success, (answer.status_code, answer.text)
            return answer.json() if answer.content else None

        while time.monotonic() < until:
            session = f"/api/sessions/{(await ask('POST', '/api/sessions'))['session']}"
            for label in "ab":
                await ask("POST", f"{session}/pictures?label={label}", content=png(number + ord(label)))
            await ask("POST", f"{session}/adapt")
            for _ in range(5):
                found = await ask("POST", f"{session}/classify", content=png(number + ord("a")))
                assert found["label"] == "a"
                await asyncio.sleep(0.5)
            await ask("DELETE", session)


def under_attack(folder: Any, hostile: int, visitors: int, seconds: float, **limits: Any) -> list[float]:
    """The seconds that visitors waited for each answer, sorted."""
    waited: list[float] = []
    with serving(folder, limits=limits) as server:
        os.sched_setaffinity(server.process.pid, {min(os.sched_getaffinity(0))})
        here, there = CONTEXT.Pipe(duplex=False)
        attackers = CONTEXT.Process(target=crowd, args=(server.address, hostile, seconds + 5, there))
        attackers.start()
        time.sleep(min(4, seconds))  # the crowd is there first

        async def visits() -> None:
            until = time.monotonic() + seconds
            await asyncio.gather(*(visit(server.address, 10 * n, until, waited) for n in range(visitors)))

        asyncio.run(visits())
        opened = here.recv()
        attackers.join()
        assert opened >= hostile
        assert server.process.poll() is None
        server.process.terminate()
        assert server.process.wait(20) == 0
        assert server.process.stderr.read() == ""
    waited.sort()
    print(
        f"{opened:,} hostile connections; {len(waited):,} answers, median {statistics.median(waited):.3f} s, "
        f"99th percentile {waited[int(0.99 * len(waited))]:.3f} s, longest {waited[-1]:.3f} s"
    )
    return waited


def test_visitors_are_served_beside_a_crowd(tmp_path):
    assert len(under_attack(tmp_path, 80, 3, 3, connections=60)) > 20


@pytest.mark.slow
def test_twenty_visitors_are_served_within_a_second_beside_a_crowd_of_a_thousand(tmp_path):
    """For ten minutes; the server has one core, the crowd and the visitors the other."""
    waited = under_attack(tmp_path, 1000, 20, float(os.environ.get("PATHAWARE_CROWD_SECONDS", "600")))
    assert waited[int(0.99 * len(waited))] <= 1
