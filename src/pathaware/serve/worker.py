"""Computation off the event loop: worker threads with bounded queues, and the model they share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.inference.influence import reasons, suspicious_labels
from pathaware.inference.open_set import unknown_images
from pathaware.inference.suggest import suggest
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

    def reasons(
        self, support: SupportSet, pixels: NDArray[np.uint8], label: int
    ) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Return the support pictures that spoke for and against a label; to be called by one thread only."""
        with self._refused():
            (found,) = reasons(self._model, support, torch.from_numpy(pixels)[None], torch.tensor([label]))
        return found.positive, found.negative

    def suspicious(self, support: SupportSet) -> list[tuple[int, float]]:
        """Return the pictures whose labels may be wrong; to be called by one thread only."""
        with self._refused():
            return [(i, score) for i, score in suspicious_labels(self._model, support) if score < 0]

    def suggest(self, support: SupportSet, pixels: NDArray[np.uint8], count: int) -> list[int]:
        """Return the unlabelled pictures to label next; to be called by one thread only."""
        with self._refused():
            return suggest(self._model, support, torch.from_numpy(pixels), count)

    def unknown(
        self, adapted: AdaptedClassifier, support: SupportSet, pixels: NDArray[np.uint8], share: float
    ) -> bool:
        """Return True if a picture is of none of the classes."""
        with self._tracing, self._refused():
            return unknown_images(self._model, adapted, support, torch.from_numpy(pixels)[None], share)[0]

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Turn errors about what the model cannot do into answers."""
        try:
            yield
        except UsageError as error:
            raise ApiError(409, error.message) from None

    def probabilities(self, adapted: AdaptedClassifier, pixels: NDArray[np.uint8]) -> list[float]:
        """Return the probability of every class for one image `[C, size, size]`."""
        with self._tracing:
            values: list[float] = adapted.probabilities(torch.from_numpy(pixels)[None])[0].tolist()
        if not all(map(math.isfinite, values)):
            raise ApiError(409, "the model diverged (non-finite probabilities); adapt with other pictures")
        return values
