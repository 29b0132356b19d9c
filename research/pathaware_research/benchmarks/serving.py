"""Load test of `pathaware serve`: latency, isolation of sessions, memory, threads and open files.

python research/pathaware_research/benchmarks/serving.py \\
    [--clients 50] [--seconds 60] [--slow 0] [--run glyphs] [--json results/…json]

Each client has its own classes and pictures. It repeatedly opens a session, uploads, adapts, classifies and
ends the session. Afterwards every prediction is compared with that of the same model in this process. With
`--slow`, so many others send headers or a file one byte per second, or read nothing. The exit code is 1 on
any error, on a difference above 1e-5, if memory has grown by more than a tenth, or if the server has more
threads or open files than before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch
from PIL import Image

from pathaware.inference.trained_model import TrainedModel
from pathaware.training.provenance import write_record

QUERIES = 8
CLOSE = 1e-5
GROWTH = 1.1
"""Allowed ratio of memory after to before; allocators keep some freed memory."""


@dataclass
class Client:
    """A client with its own classes."""

    number: int
    predictions: list[list[dict[str, float]]] = field(default_factory=list)

    @property
    def classes(self) -> int:
        return 2 + self.number % 4

    @cached_property
    def support(self) -> list[tuple[str, bytes]]:
        pictures = self.classes * (1 + self.number % 2)
        return [(f"{self.number}/{i % self.classes}", drawing([self.number, i])) for i in range(pictures)]

    @cached_property
    def queries(self) -> list[bytes]:
        return [drawing([self.number, 100 + i]) for i in range(QUERIES)]


def drawing(seed: list[int]) -> bytes:
    """Draw some strokes on white, different for every seed."""
    random = np.random.default_rng(seed)
    pixels = np.full((28, 28), 255, np.uint8)
    for _ in range(4):
        row, column = random.integers(3, 20, 2)
        pixels[row : row + int(random.integers(2, 14)), column : column + int(random.integers(2, 14))] = 0
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Times:
    """Durations of requests by kind, and errors."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []

    async def ask(self, http: httpx.AsyncClient, kind: str, method: str, path: str, **more: Any) -> Any:
        begun = time.perf_counter()
        try:
            answer = await http.request(method, path, **more)
        except httpx.HTTPError as error:
            seconds = time.perf_counter() - begun
            raise RuntimeError(f"{kind}: {error!r} after {seconds:.1f} s") from error
        self.seconds[kind].append(time.perf_counter() - begun)
        if answer.is_error:
            self.errors.append(f"{kind}: {answer.status_code} {answer.text}")
            answer.raise_for_status()
        return answer.json() if answer.content else None

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            kind: {
                "requests": len(found),
                "p50_ms": round(1000 * float(np.percentile(found, 50)), 1),
                "p95_ms": round(1000 * float(np.percentile(found, 95)), 1),
                "max_ms": round(1000 * max(found), 1),
            }
            for kind, found in self.seconds.items()
        }


async def visit(client: Client, http: httpx.AsyncClient, times: Times) -> None:
    """Run one session from begin to end."""
    path = "/api/sessions/" + (await times.ask(http, "begin", "POST", "/api/sessions"))["session"]
    for label, picture in client.support:
        await times.ask(http, "picture", "POST", f"{path}/pictures", params={"label": label}, content=picture)
    await times.ask(http, "adapt", "POST", f"{path}/adapt")
    found = [
        (await times.ask(http, "classify", "POST", f"{path}/classify", content=picture))["probabilities"]
        for picture in client.queries
    ]
    client.predictions.append(found)
    await times.ask(http, "end", "DELETE", path)


async def crowd(address: str, clients: list[Client], seconds: float, times: Times, slow: int = 0) -> None:
    """Run all clients concurrently, each repeatedly until the time is over and at least once."""
    slow_ones = []
    if slow:
        async with httpx.AsyncClient(base_url=address, verify=False) as http:
            session = (await http.post("/api/sessions")).json()["session"]
        slow_ones = [asyncio.create_task(dawdle(address, session, number)) for number in range(slow)]
    end = time.perf_counter() + seconds

    async def stay(client: Client) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=600, verify=False) as http:
            while True:
                await visit(client, http, times)
                if time.perf_counter() > end:
                    return

    for found in await asyncio.gather(*(stay(client) for client in clients), return_exceptions=True):
        if isinstance(found, BaseException):
            times.errors.append(repr(found))
    for task in slow_ones:
        task.cancel()
    await asyncio.gather(*slow_ones, return_exceptions=True)


async def dawdle(address: str, session: str, number: int) -> None:
    """Connect, send a request one byte per second or read no answer, and connect again when cut off."""
    where = urlsplit(address)
    line = f"POST /api/sessions/{session}/pictures?label=a HTTP/1.1"
    file = f"{line}\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n".encode()
    page = b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    begins = (b"", file, 50 * page)[number % 3]
    while True:
        try:
            _, writer = await asyncio.open_connection(where.hostname, where.port, limit=1024)
            try:
                writer.write(begins)
                for byte in page:
                    await asyncio.sleep(1)
                    writer.write(bytes([byte]))
                    await writer.drain()
            finally:
                writer.close()
        except OSError:  # the server has had enough
            await asyncio.sleep(1)


def largest_difference(run: str, clients: list[Client]) -> float:
    """Return the largest difference between a served probability and the model's in this process."""
    model, worst = TrainedModel.open(run, "cpu"), 0.0
    for client in clients:
        labels = [label for label, _ in client.support]
        classes = list(dict.fromkeys(labels))
        places = torch.tensor([classes.index(label) for label in labels])
        adapted = model.adapt(model.pixels([p for _, p in client.support]), places, len(classes))
        alone = adapted.probabilities(model.pixels(client.queries))
        for rows in client.predictions:
            if any(list(row) != classes for row in rows):
                return 1.0  # another client's classes
            found = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
            worst = max(worst, float((found - alone).abs().max()))
    return worst


@contextmanager
def serving(run: str) -> Iterator[tuple[str, int]]:
    """Start a server process; yield its address and process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pathaware", "serve", run, "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+(?=/)", process.stdout.readline())
        assert found, "the server did not start"
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout:
            process.stdout.close()


def memory(pid: int, what: str = "VmRSS") -> float:
    """Return the current memory of a process in MiB, or its peak (`VmHWM`)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, which other programs on the same cores affect little."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_and_files(pid: int) -> dict[str, int]:
    """Return the number of threads and of open files of a process."""
    found = {"threads": "task", "descriptors": "fd"}
    return {name: len(os.listdir(f"/proc/{pid}/{folder}")) for name, folder in found.items()}


def measure(run: str, count: int, seconds: float, slow: int = 0) -> dict[str, Any]:
    with serving(run) as (address, pid):
        # A learner for each number of classes is built on first use and kept, and so is the memory of the
        # largest batch.
        first = Times()
        asyncio.run(crowd(address, [Client(i) for i in range(count)], 0, first))
        before, open_before = memory(pid), threads_and_files(pid)
        clients, times = [Client(i) for i in range(count)], Times()
        begun, used = time.perf_counter(), cpu_seconds(pid)
        asyncio.run(crowd(address, clients, seconds, times, slow))
        taken, used = time.perf_counter() - begun, cpu_seconds(pid) - used
        peak = memory(pid, "VmHWM")
        time.sleep(1)
        after, open_after = memory(pid), threads_and_files(pid)
    sessions = sum(len(client.predictions) for client in clients)
    return {
        "clients": count,
        "slow_clients": slow,
        "seconds": round(taken, 1),
        "sessions": sessions,
        "cpu_ms_per_session": round(1000 * used / max(1, sessions), 1),
        "requests": sum(map(len, times.seconds.values())),
        "errors": [*first.errors, *times.errors][:10],
        "largest_difference": largest_difference(run, clients),
        "latency": times.summary(),
        "memory_mib": {"before": round(before), "peak": round(peak), "after": round(after)},
        **{name: {"before": open_before[name], "after": open_after[name]} for name in open_before},
    }


def good(found: dict[str, Any]) -> bool:
    held = found["memory_mib"]
    within = held["after"] <= GROWTH * held["before"]
    flat = all(
        found[name]["after"] <= found[name]["before"] for name in ("threads", "descriptors") if name in found
    )
    return not found["errors"] and found["largest_difference"] < CLOSE and within and flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--run", default="glyphs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    found = measure(options.run, options.clients, options.seconds, options.slow)
    print(json.dumps(found, indent=1))
    if options.json:
        about = {"run": options.run, "load_before": load}  # of other programs on the same cores
        write_record(options.json, {**about, **found}, field="json")
    sys.exit(0 if good(found) else 1)


if __name__ == "__main__":
    main()
