"""Predictions while a learner for another number of classes is being built."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from threading import Event, Thread

import numpy as np
import pytest
import torch

from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError
from pathaware.serve.worker import (
    IMAGES_SIDE_BY_SIDE,
    SIDE_BY_SIDE,
    Adaptations,
    Worker,
    probabilities,
    still_computing,
)


def support(classes: int) -> SupportSet:
    pixels = torch.randint(0, 255, (classes, 1, 28, 28), dtype=torch.uint8)
    return SupportSet(tuple(map(str, range(classes))), pixels, torch.arange(classes))


def task(given: SupportSet) -> tuple[torch.Tensor, torch.Tensor, int]:
    return given.pixels, given.labels, len(given.classes)


def test_predictions_work_while_new_numbers_of_classes_come_up():
    torch.set_default_dtype(torch.float32)
    model = TrainedModel.open("glyphs", "cpu")
    network = model.adapt(*task(support(2)))
    done, failed = Event(), []

    def ask() -> None:
        while not done.is_set():
            try:
                probabilities(network, np.zeros((1, 28, 28), np.uint8))
            except Exception as error:
                failed.append(error)

    asking = Thread(target=ask)
    asking.start()
    for classes in range(3, 9):
        model.adapt(*task(support(classes)))
    done.set()
    asking.join()
    assert failed == []


def test_non_finite_probabilities_are_a_conflict():
    torch.set_default_dtype(torch.float32)
    model = TrainedModel.open("glyphs", "cpu")

    class Diverged(torch.nn.Linear):
        def forward(self, x):
            return torch.full((len(x), 2), torch.nan)

    adapted = AdaptedClassifier(Diverged(1, 1), model.image_input)
    with pytest.raises(ApiError) as refused:
        probabilities(adapted, np.zeros((1, 28, 28), np.uint8))
    assert refused.value.status == 409


class Slow:
    """A model whose first adaptation waits for the test; records the sizes of batches."""

    def __init__(self) -> None:
        self.go, self.batches = Event(), []

    def adapt_each(self, tasks: list[object], classes: int) -> list[object]:
        assert self.go.wait(20)
        self.batches.append([classes] * len(tasks))
        if classes == 5:
            raise ApiError(409, "five are too many")
        return [range(classes) for _ in tasks]


def together(sizes: list[int], images: int = 1, waiting: int = 100) -> tuple[Slow, list[object]]:
    """What requests with these numbers of classes get that arrive while one is computed."""

    async def requests() -> list[object]:
        adaptations = Adaptations(model, waiting)
        asked = [asyncio.create_task(adaptations.adapt(repeated(2, images)))]
        await asyncio.sleep(0.01)
        asked += [asyncio.create_task(adaptations.adapt(repeated(size, images))) for size in sizes]
        await asyncio.sleep(0.01)
        model.go.set()
        results = await asyncio.gather(*asked, return_exceptions=True)
        adaptations.close()
        return list(results)

    model = Slow()
    return model, asyncio.run(requests())


def repeated(classes: int, images: int) -> SupportSet:
    one = support(classes)
    return SupportSet(one.classes, one.pixels.repeat(images, 1, 1, 1), one.labels.repeat(images))


def test_requests_that_wait_together_run_side_by_side_in_the_order_of_their_arrival():
    model, results = together([3, 2, 3, 4, 3])
    assert model.batches == [[2], [3, 3, 3], [2], [4]]
    assert [len(result) for result in results] == [2, 3, 2, 3, 4, 3]


def test_batches_are_bounded():
    assert [len(batch) for batch in together([3] * 20)[0].batches] == [1, SIDE_BY_SIDE, 20 - SIDE_BY_SIDE]
    images = IMAGES_SIDE_BY_SIDE // 6
    assert [len(batch) for batch in together([3] * 5, images)[0].batches] == [1, 2, 2, 1]


def test_an_error_reaches_the_requests_of_its_batch_and_no_others():
    _, results = together([5, 3, 5])
    assert [isinstance(result, ApiError) for result in results] == [False, True, False, True]


def test_too_many_requests_are_refused_at_once():
    _, results = together([3] * 4, waiting=3)
    assert [getattr(result, "status", 200) for result in results] == [200, 200, 200, 200, 503]


def in_turns(jobs: dict[str, list[int]], gone: tuple[str, ...] = ()) -> list[str]:
    """The owners of the steps that a worker takes: each owner has jobs of these numbers of steps."""
    taken: list[str] = []
    go = Event()

    def job(owner: str, steps: int) -> Generator[None, None, int]:
        assert go.wait(20)
        for _ in range(steps):
            taken.append(owner)
            yield
        return steps

    async def left() -> bool:
        return True

    async def requests() -> None:
        worker = Worker("test", 100, 3)
        asked = [
            asyncio.create_task(
                worker.run(job, owner, steps, owner=owner, gone=left if owner in gone else None)
            )
            for owner, all_steps in jobs.items()
            for steps in all_steps
        ]
        await asyncio.sleep(1.5 if gone else 0.05)
        go.set()
        results = await asyncio.gather(*asked, return_exceptions=True)
        expected = [-1 if owner in gone else steps for owner, many in jobs.items() for steps in many]
        assert [result if isinstance(result, int) else -1 for result in results] == expected
        worker.close()

    asyncio.run(requests())
    return taken


def test_owners_take_turns_whatever_the_length_of_their_jobs():
    assert in_turns({"a": [4], "b": [1, 1], "c": [2]}) == list("abcacaba")


def test_jobs_of_clients_that_left_are_dropped(monkeypatch):
    """Apps of other tests may have threads with the usual prefix."""
    monkeypatch.setattr("pathaware.serve.worker.GONE_SECONDS", 0.05)
    monkeypatch.setattr("pathaware.serve.worker.PREFIX", "pathaware-gone-")
    assert in_turns({"a": [4], "b": [2]}, gone=("b",)) == list("aaaa")
    deadline = time.monotonic() + 20
    while still_computing():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_adaptations_side_by_side_are_those_of_single_requests():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = TrainedModel.open("glyphs", "cpu")
    tasks = [task(repeated(3, images))[:2] for images in (1, 2, 1)]
    queries = torch.randint(0, 255, (4, 1, 28, 28), dtype=torch.uint8)
    for (pixels, labels), adapted in zip(tasks, model.adapt_each(tasks, 3), strict=True):
        alone = model.adapt(pixels, labels, 3)
        assert torch.allclose(adapted.probabilities(queries), alone.probabilities(queries), atol=1e-5)
        found, expected = ([(s.loss, s.accuracy) for s in one.steps] for one in (adapted, alone))
        assert np.allclose(found, expected, atol=1e-4)
