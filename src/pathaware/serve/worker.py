"""Computation off the event loop: worker threads with bounded queues, and the model they share."""

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
from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """One thread with a bounded queue; learners are shared by all sessions and need a single thread."""

    def __init__(self, name: str, waiting: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting, self._limit = 0, waiting

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `job` in the thread, or raise if the queue is full."""
        if self._waiting >= self._limit:
            raise ApiError(503, "too much to compute at once; try again in a moment", retry=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, lambda: job(*args, **kwargs))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class SharedModel:
    """The model, shared by two threads: one adapts, the other classifies meanwhile.

    A learner for a new number of classes traces its network with `torch.fx`, which replaces the call of every
    module in the process: a prediction in another thread would fail. So a lock excludes predictions while a
    number of classes is used for the first time.
    """

    def __init__(self, model: TrainedModel) -> None:
        self._model = model
        self._tracing = Lock()
        self._traced: set[int] = set()

    def adapt(self, support: SupportSet) -> AdaptedClassifier:
        """Adapt to a support set; to be called by one thread only."""
        classes = len(support.classes)
        with nullcontext() if classes in self._traced else self._tracing:
            try:
                adapted = self._model.adapt(support.pixels, support.labels, classes)
            except UsageError as error:  # such as more classes than the method supports
                raise ApiError(409, str(error)) from None
        self._traced.add(classes)
        return adapted

    def probabilities(self, adapted: AdaptedClassifier, pixels: NDArray[np.uint8]) -> list[float]:
        """Return the probability of every class for one image `[C, size, size]`."""
        with self._tracing:
            values: list[float] = adapted.probabilities(torch.from_numpy(pixels)[None])[0].tolist()
        if not all(map(math.isfinite, values)):
            raise ApiError(409, "the model diverged (non-finite probabilities); adapt with other pictures")
        return values
