"""MAML as other libraries implement it, one task after another. None of them is required.

Each follows the MAML example of its library: `higher` (Grefenstette et al., 2019, arXiv:1910.01727), TorchOpt
(Ren et al., 2022, arXiv:2211.06934) and learn2learn (Arnold et al., 2020, arXiv:2008.12284). Gathering their
episodes is not timed.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.losses import Loss
from pathaware.core.path import Order
from pathaware.training.meta_training import build
from pathaware_research.bench.implementations import RATE, Unavailable, flat_gradient
from pathaware_research.bench.timing import Work
from pathaware_research.bench.workloads import Inputs, Job


class Library(ABC):
    """MAML by another library. Subclasses define `backward` and `adapt`."""

    name: str
    title: str
    module: str
    """The module to import; its first part is the name of the package."""

    @abstractmethod
    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        """Add the meta-gradient of the mean query loss to the `.grad` of the model's parameters."""

    @abstractmethod
    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        """Adapt to one task without keeping a graph; `model` is unchanged."""

    def library(self) -> Any:
        """Import the module, or raise `Unavailable`."""
        package = self.module.partition(".")[0]
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name == package:
                raise Unavailable("not installed") from None
            raise Unavailable(f"cannot be imported: {error}") from None
        except Exception as error:  # old libraries fail in many ways with new versions of their dependencies
            raise Unavailable(f"cannot be imported: {type(error).__name__}: {error}") from None

    def version(self) -> str:
        self.library()
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:  # a plain folder on the path
            package = importlib.import_module(self.module.partition(".")[0])
            return str(getattr(package, "__version__", "unknown version"))

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

    def predictions(self, job: Job, episodes: Episodes) -> Tensor:
        model, w = self._model(job).double(), job.workload
        support = episodes.support_x[0], episodes.support_y[0]
        outputs: Tensor = self.adapt(model, *support, w.problem.loss, w.steps, w.rate)(episodes.query_x[0])
        return outputs.detach()

    def _model(self, job: Job) -> nn.Module:
        if job.method != "maml":
            raise Unavailable(f"no {job.method.upper()}")
        self.library()
        return build(job.config()).model

    def _backward(self, job: Job, model: nn.Module, episodes: Episodes) -> None:
        w = job.workload
        self.backward(model, episodes, w.problem.loss, w.steps, w.rate, job.order)


def add_to_gradient(parameters: Iterable[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    """First order: use the query gradient at the end of the path as the gradient of the initialisation."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


class Higher(Library):
    name = title = module = "higher"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            fast = self._descend(model, support_x, support_y, loss, steps, rate, track=order == "second")
            query_loss = loss(fast(query_x), query_y) / len(episodes)
            if order == "second":
                query_loss.backward()
            else:
                gradients = torch.autograd.grad(query_loss, list(fast.parameters()))
                add_to_gradient(model.parameters(), gradients)

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        adapted: nn.Module = self._descend(model, x, y, loss, steps, rate, track=False)
        return adapted

    def _descend(
        self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float, *, track: bool
    ) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        context = self.library().innerloop_ctx(
            model, optimizer, copy_initial_weights=False, track_higher_grads=track
        )
        with context as (fast, descend):
            for _ in range(steps):
                descend.step(loss(fast(x), y))
        return fast


class Learn2Learn(Library):
    """learn2learn 0.2.0 needs qpth, which no longer installs. Its `maml` module is plain Python and works
    from a folder with only that module and its imports, hence the full name."""

    name = title = "learn2learn"
    module = "learn2learn.algorithms.maml"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        maml = self.library().MAML(model, lr=rate, first_order=order == "first")
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            learner = maml.clone()
            for _ in range(steps):
                learner.adapt(loss(learner(support_x), support_y))
            (loss(learner(query_x), query_y) / len(episodes)).backward()

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        learner = self.library().MAML(model, lr=rate, first_order=True).clone()
        for _ in range(steps):
            learner.adapt(loss(learner(x), y))
        adapted: nn.Module = learner
        return adapted


class TorchOpt(Library):
    """TorchOpt's inner step always builds the graph of second derivatives; for first order and for adaptation
    `stop_gradient` cuts it after every step."""

    name = module = "torchopt"
    title = "TorchOpt"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        torchopt = self.library()
        initial = list(model.parameters())
        optimizer = torchopt.MetaSGD(model, lr=rate)
        network_state = torchopt.extract_state_dict(model, by="reference")
        optimizer_state = torchopt.extract_state_dict(optimizer, by="reference")
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            for _ in range(steps):
                optimizer.step(loss(model(support_x), support_y))
                if order == "first":
                    torchopt.stop_gradient(model)
            query_loss = loss(model(query_x), query_y) / len(episodes)
            if order == "second":
                query_loss.backward()
            else:
                add_to_gradient(initial, torch.autograd.grad(query_loss, list(model.parameters())))
            torchopt.recover_state_dict(model, network_state)
            torchopt.recover_state_dict(optimizer, optimizer_state)

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        torchopt = self.library()
        adapted = copy.deepcopy(model)
        optimizer = torchopt.MetaSGD(adapted, lr=rate)
        for _ in range(steps):
            optimizer.step(loss(adapted(x), y))
            torchopt.stop_gradient(adapted)
        return adapted


LIBRARIES: tuple[Library, ...] = (Higher(), TorchOpt(), Learn2Learn())
