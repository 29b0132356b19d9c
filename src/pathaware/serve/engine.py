"""The model, for two threads: one that adapts, and one that answers questions meanwhile."""

from __future__ import annotations

import math
from contextlib import nullcontext
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.errors import UsageError
from pathaware.serve.refusals import Refused
from pathaware.serve.sessions import Lesson
from pathaware.use.model import Adapted, TrainedModel


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
