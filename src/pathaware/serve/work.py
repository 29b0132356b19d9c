"""Computing off the event loop, one thing after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from pathaware.serve.refusals import Refused

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """A thread with a queue that ends somewhere. Learners are shared by all sessions, so one thread it is."""

    def __init__(self, name: str, waiting: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting, self._most = 0, waiting

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._waiting >= self._most:
            raise Refused(503, "too much to compute at once; try again in a moment", retry=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, lambda: job(*args, **kwargs))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
