"""What all peers share: they do MAML, one task after another, on episodes that lie ready for them."""

from __future__ import annotations

import importlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.bench.contestant import Missing, Work, flat_gradient
from pathaware.bench.job import Inputs, Job
from pathaware.bench.ours import RATE
from pathaware.losses import Loss
from pathaware.path import Order
from pathaware.tasks.episodes import Episodes
from pathaware.training.trainer import build


class Peer(ABC):
    """A library's own way to MAML. Subclasses write it as that library's examples do."""

    name: str
    title: str
    module: str
    """What to import; its first part is the name of the package."""

    @abstractmethod
    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        """Add the meta-gradient of the mean query loss to the `.grad` of the model's parameters."""

    @abstractmethod
    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        """Adapt to one task without keeping a graph, and leave `model` as it was."""

    def library(self) -> Any:
        package = self.module.partition(".")[0]
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name == package:
                raise Missing("not installed") from None
            raise Missing(f"cannot be imported: {error}") from None
        except Exception as error:  # old libraries break in many ways on new versions of what they use
            raise Missing(f"cannot be imported: {type(error).__name__}: {error}") from None

    def version(self) -> str:
        self.library()
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:  # a folder on the path
            package = importlib.import_module(self.module.partition(".")[0])
            return str(getattr(package, "__version__", "of unknown version"))

    def training(self, job: Job, inputs: Inputs) -> Work:
        model = self._model(job)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

        def work(i: int) -> None:
            optimizer.zero_grad()
            self._backward(job, model, inputs.episodes)
            optimizer.step()

        return work

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        model, w = self._model(job), job.workload
        return lambda i: self.adapt(model, *inputs.support, w.problem.loss, w.steps, w.rate)

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        model = self._model(job).double()
        self._backward(job, model, episodes)
        return flat_gradient(model.parameters())

    def answers(self, job: Job, episodes: Episodes) -> Tensor:
        model, w = self._model(job).double(), job.workload
        support = episodes.support_x[0], episodes.support_y[0]
        answers: Tensor = self.adapt(model, *support, w.problem.loss, w.steps, w.rate)(episodes.query_x[0])
        return answers.detach()

    def _model(self, job: Job) -> nn.Module:
        if job.method != "maml":
            raise Missing(f"no {job.method.upper()}")
        self.library()
        return build(job.config()).model

    def _backward(self, job: Job, model: nn.Module, episodes: Episodes) -> None:
        w = job.workload
        self.backward(model, episodes, w.problem.loss, w.steps, w.rate, job.order)


def add_to_gradient(parameters: Iterable[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    """First order: the query gradient at the end of the path is taken for that at its start."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
