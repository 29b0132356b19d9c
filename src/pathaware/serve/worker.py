"""Computing off the event loop, one thing after another."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Lock
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.inference.trained_model import Adapted, TrainedModel
from pathaware.serve.limits import Refused
from pathaware.serve.sessions import Lesson

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


# The model, for two threads: one that adapts, and one that answers questions meanwhile.


class Engine:
    """Learners for each number of classes are made when first needed, and their networks are traced then.

    `torch.fx` does that by replacing the call of every module in the process: an answer that another thread
    computes at that moment would fail. So nobody answers while a number of classes first comes up.
    """

    def __init__(self, model: TrainedModel) -> None:
        self._model = model
        self._tracing = Lock()
        self._traced: set[int] = set()

    def adapt(self, lesson: Lesson) -> Adapted:
        """Called by one thread only."""
        classes = len(lesson.classes)
        task = lesson.pixels, lesson.labels, classes
        with nullcontext() if classes in self._traced else self._tracing:
            try:
                found = self._model.adapt(*task)
            except UsageError as error:  # such as more classes than the method can take
                raise Refused(409, str(error)) from None
        self._traced.add(classes)
        return found

    def probabilities(self, network: Adapted, pixels: NDArray[np.uint8]) -> list[float]:
        """Of every class, for one picture `[C, size, size]`."""
        with self._tracing:
            found: list[float] = network.probabilities(torch.from_numpy(pixels)[None])[0].tolist()
        if not all(map(math.isfinite, found)):
            raise Refused(409, "the model has lost itself on these classes; adapt with other pictures")
        return found
