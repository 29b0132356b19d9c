"""StepPredictions while a learner for another number of classes is being made."""

from __future__ import annotations

from threading import Event, Thread

import numpy as np
import pytest
import torch

from pathaware.inference.trained_model import Adapted, TrainedModel
from pathaware.serve.limits import Refused
from pathaware.serve.sessions import Lesson
from pathaware.serve.worker import Engine


def lesson(classes: int) -> Lesson:
    pixels = torch.randint(0, 255, (classes, 1, 28, 28), dtype=torch.uint8)
    return Lesson(tuple(map(str, range(classes))), pixels, torch.arange(classes), 0)


def test_questions_are_answered_while_new_numbers_of_classes_come_up():
    torch.set_default_dtype(torch.float32)
    engine = Engine(TrainedModel.open("glyphs", "cpu"))
    network = engine.adapt(lesson(2))
    done, failed = Event(), []

    def ask() -> None:
        while not done.is_set():
            try:
                engine.probabilities(network, np.zeros((1, 28, 28), np.uint8))
            except Exception as error:
                failed.append(error)

    asking = Thread(target=ask)
    asking.start()
    for classes in range(3, 9):
        engine.adapt(lesson(classes))
    done.set()
    asking.join()
    assert failed == []


def test_a_network_without_numbers_is_a_conflict_and_not_an_answer():
    torch.set_default_dtype(torch.float32)
    model = TrainedModel.open("glyphs", "cpu")

    class Lost(torch.nn.Linear):
        def forward(self, x):
            return torch.full((len(x), 2), torch.nan)

    with pytest.raises(Refused) as refused:
        Engine(model).probabilities(Adapted(Lost(1, 1), model.pictures), np.zeros((1, 28, 28), np.uint8))
    assert refused.value.status == 409
