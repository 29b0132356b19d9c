"""Computation off the event loop: worker threads with bounded queues, and what they compute."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.inference.influence import SuspiciousLabel, suspicious_labels
from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError

T = TypeVar("T")
PREFIX = "pathaware-"
"""How the names of worker threads begin."""
GONE_SECONDS = 1.0
"""Seconds between two questions whether a client that waits has left."""

SIDE_BY_SIDE = 16
"""Adaptations in one batch. All of them wait for the last one, so larger batches would delay the first."""

IMAGES_SIDE_BY_SIDE = 64
"""Images in one batch, unless a single support set has more; their activations are in memory together."""


def busy() -> ApiError:
    return ApiError(503, "too much to compute at once; try again in a moment", retry=1)


@dataclass(eq=False)
class Job:
    """A computation that a worker makes step by step; the last step returns the result."""

    steps: Generator[None, None, Any]
    done: asyncio.Future[Any]


class Worker:
    """One thread, which takes steps of the jobs of its owners in turn, so that a long one holds up nobody."""

    def __init__(self, name: str, waiting: int, per_owner: int | None = None) -> None:
        self._limit, self._share = waiting, per_owner or waiting
        self._queues = dict[str, list[Job]]()
        """The jobs of each owner, that whose turn it is first."""
        self._running = False
        self._tasks = SimpleQueue[Callable[[], None] | None]()
        self._thread = Thread(target=self._work, name=f"{PREFIX}{name}", daemon=True)
        self._thread.start()

    async def run(
        self,
        job: Callable[..., Any],
        *args: Any,
        owner: str = "",
        gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Any:
        """Run a job, which may be a generator, or raise if the queue is full.

        It is dropped after the step in progress if the request is cancelled, or its client is `gone`.
        """
        mine = self._queues.get(owner, [])
        if sum(map(len, self._queues.values())) >= self._limit or (owner and len(mine) >= self._share):
            raise busy()
        done = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, []).append(Job(_steps(job, *args), done))
        self._next()
        try:
            while not done.done():
                await asyncio.wait([done], timeout=GONE_SECONDS)
                if gone is not None and not done.done() and await gone():
                    raise ApiError(400, "the client has left")
            return done.result()
        finally:
            done.cancel()

    def _next(self) -> None:
        """Take a step of the first job of the owner whose turn it is."""
        if self._running:
            return
        for owner, jobs in list(self._queues.items()):
            jobs[:] = [job for job in jobs if not job.done.done()]  # without cancelled requests
            if not jobs:
                del self._queues[owner]
        if not self._queues:
            return
        self._running = True
        owner, jobs = next(iter(self._queues.items()))
        job, loop = jobs[0], asyncio.get_running_loop()

        def step() -> None:
            error: BaseException | None = None
            try:
                next(job.steps)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._stepped, owner, job, error)

        self._tasks.put(step)

    def _stepped(self, owner: str, job: Job, error: BaseException | None) -> None:
        if isinstance(error, StopIteration) and not job.done.done():
            job.done.set_result(error.value)
        elif error is not None and not job.done.done():
            job.done.set_exception(error)
        if owner in self._queues:
            self._queues[owner] = self._queues.pop(owner)  # at the end
        self._running = False
        self._next()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # with what it has computed

    def close(self) -> None:
        """Drop what waits, and end the thread after the step in progress."""
        self._queues.clear()
        self._tasks.put(None)
        self._thread.join(0.2)


def _steps(job: Callable[..., Any], *args: Any) -> Generator[None, None, Any]:
    result = job(*args)
    return (yield from result) if isinstance(result, Generator) else result


def still_computing() -> bool:
    """True if a worker that was closed has not ended its step."""
    return any(thread.name.startswith(PREFIX) for thread in enumerate_threads())


def probabilities(adapted: AdaptedClassifier, pixels: NDArray[np.uint8]) -> list[float]:
    """The probability of every class for one image `[C, size, size]`."""
    values: list[float] = adapted.probabilities(torch.from_numpy(pixels)[None])[0].tolist()
    if not all(map(math.isfinite, values)):
        raise ApiError(409, "the model diverged (non-finite probabilities); adapt with other pictures")
    return values


def suspicious(model: TrainedModel, support: SupportSet) -> Generator[None, None, list[SuspiciousLabel]]:
    """The pictures whose labels may be wrong, the most suspicious first; a step per picture."""
    found = []
    for image in range(len(support.labels)):
        found += suspicious_labels(model, support, images=[image])
        yield
    return sorted(found, key=lambda each: each.score)


class Adaptations:
    """Adaptations in one thread; those that wait at the same time and have equal shapes run side by side."""

    def __init__(self, model: TrainedModel, waiting: int) -> None:
        self._model, self._limit = model, waiting
        self._worker = Worker("adapt", 1)
        self._waiting: list[tuple[SupportSet, asyncio.Future[AdaptedClassifier]]] = []
        self._running: asyncio.Task[None] | None = None

    async def adapt(self, support: SupportSet) -> AdaptedClassifier:
        """Adapt to a support set, or raise if too many are waiting."""
        if len(self._waiting) >= self._limit:
            raise busy()
        result: asyncio.Future[AdaptedClassifier] = asyncio.get_running_loop().create_future()
        self._waiting.append((support, result))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await result

    async def _run(self) -> None:
        while batch := self._next_batch():
            results = [result for _, result in batch]
            tasks = [(support.pixels, support.labels) for support, _ in batch]
            classes = len(batch[0][0].classes)
            try:
                adapted: list[AdaptedClassifier] = await self._worker.run(
                    self._model.adapt_each, tasks, classes
                )
            except BaseException as error:
                for result in results:
                    _settle(result, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for result, classifier in zip(results, adapted, strict=True):
                    _settle(result, classifier)

    def _next_batch(self) -> list[tuple[SupportSet, asyncio.Future[AdaptedClassifier]]]:
        """Take the request that has waited longest, and others with its numbers of classes and images."""
        self._waiting = [item for item in self._waiting if not item[1].done()]  # without cancelled requests
        if not self._waiting:
            return []
        classes, images = shape = _shape(self._waiting[0][0])
        most = max(1, min(SIDE_BY_SIDE, IMAGES_SIDE_BY_SIDE // (classes * images)))
        alike = [i for i, (support, _) in enumerate(self._waiting) if _shape(support) == shape][:most]
        batch = [self._waiting[i] for i in alike]
        self._waiting = [item for i, item in enumerate(self._waiting) if i not in alike]
        return batch

    def close(self) -> None:
        self._worker.close()


def _shape(support: SupportSet) -> tuple[int, int]:
    """Number of classes, and of images per class once small classes are filled up."""
    return len(support.classes), int(support.labels.bincount().max())


def _settle(result: asyncio.Future[AdaptedClassifier], value: AdaptedClassifier | BaseException) -> None:
    if result.done():  # the request was cancelled
        return
    if isinstance(value, Exception):
        result.set_exception(value)
    elif isinstance(value, BaseException):
        result.cancel()
    else:
        result.set_result(value)
