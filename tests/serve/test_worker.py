"""Predictions while a learner for another number of classes is being built."""

from __future__ import annotations

from threading import Event, Thread

import numpy as np
import pytest
import torch

from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError
from pathaware.serve.worker import SharedModel


def support(classes: int) -> SupportSet:
    pixels = torch.randint(0, 255, (classes, 1, 28, 28), dtype=torch.uint8)
    return SupportSet(tuple(map(str, range(classes))), pixels, torch.arange(classes))


def test_predictions_work_while_new_numbers_of_classes_come_up():
    torch.set_default_dtype(torch.float32)
    shared = SharedModel(TrainedModel.open("glyphs", "cpu"))
    network = shared.adapt(support(2))
    done, failed = Event(), []

    def ask() -> None:
        while not done.is_set():
            try:
                shared.probabilities(network, np.zeros((1, 28, 28), np.uint8))
            except Exception as error:
                failed.append(error)

    asking = Thread(target=ask)
    asking.start()
    for classes in range(3, 9):
        shared.adapt(support(classes))
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
        SharedModel(model).probabilities(adapted, np.zeros((1, 28, 28), np.uint8))
    assert refused.value.status == 409
