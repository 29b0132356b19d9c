"""Looks at the gradients of one layer while a run trains, and leaves no trace in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.context import Context
from pathaware.errors import UsageError
from pathaware.few_shot import FewShotLearner
from pathaware.learner import MetaLearner, with_path
from pathaware.training.histograms import Histograms
from pathaware.training.step import MetaStep, Outcome


def watched_tensor(learner: FewShotLearner) -> str:
    """Whose gradients to look at: the weights of the last convolution, or else of the last hidden layer.

    Weights only: a bias ahead of batch norm has no gradient but rounding errors.
    """
    if not isinstance(learner, MetaLearner):
        raise UsageError("histograms: the method takes no inner gradient; set training.histograms=0")
    adapted = {entry.name for entry in learner.rule.layout.entries}
    modules = [(f"{name}.weight".lstrip("."), module) for name, module in learner.model.named_modules()]
    modules = [(name, module) for name, module in modules if name in adapted]
    convolutions = [n for n, module in modules if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    linear = [n for n, module in modules if isinstance(module, nn.Linear)]
    if not convolutions and len(linear) < 2:
        raise UsageError("histograms: the network adapts neither a convolution nor a hidden linear layer")
    return convolutions[-1] if convolutions else linear[-2]


class WatchedStep:
    """A meta-iteration that takes a snapshot of its gradients each `every`-th time, the first included.

    The inner gradients are computed once more, ahead of the step and without a graph: those of training
    itself are out of reach in a CUDA graph. The meta-gradient is what the step leaves behind, its clipping
    undone. On a CPU a snapshot costs a quarter of an iteration with images, one with small networks.
    """

    def __init__(
        self,
        step: MetaStep,
        histograms: Histograms,
        every: int,
        *,
        run: Callable[[Any, float], Outcome] | None = None,
        iteration: int = 0,
    ) -> None:
        """`run` takes the step, such as from a graph, if it does not itself; `iteration` numbers the next."""
        self.step, self.run = step, run or step
        self.histograms, self.every, self.iteration = histograms, every, iteration
        self.parameter = step.learner.model.get_parameter(histograms.of)

    def __call__(self, plan: Any, rate: float) -> Outcome:
        due = self.every > 0 and self.iteration % self.every == 0  # 0 is for never
        rows = self.inner_gradients(plan) if due else []
        outcome = self.run(plan, rate)
        if due:
            self.histograms.add(self.iteration, [*rows, self.meta_gradient(outcome)])
        self.iteration += 1
        return outcome

    def inner_gradients(self, plan: Any) -> list[Tensor]:
        """Of each step on the support sets, all tasks of the plan: n tensors `[T, …]`."""
        learner, world, device = with_path(self.step.learner), self.step.world, self.parameter.device
        parts: list[list[Tensor]] = []
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout draws numbers
            for tasks in self.step.source.gather(world.share(plan)).chunks(self.step.chunk):
                context, seen = Context(learner, *tasks.tensors()[:3]), list[Tensor]()

                def gradient(
                    j: int, point: Tensor, context: Context = context, seen: list[Tensor] = seen
                ) -> tuple[Tensor, Tensor]:
                    loss, slope = learner.inner_gradient(j, point, context)
                    seen.append(learner.rule.layout.views(slope)[self.histograms.of])
                    return loss, slope

                learner.unroll(context, learner.rule.steps, gradient)
                parts.append(seen)
        return [world.gather([seen[j] for seen in parts]) for j in range(learner.rule.steps)]

    def meta_gradient(self, outcome: Outcome) -> Tensor:
        """As it was before `clip_grad_norm_` took it times clip / (norm + 1e-6), if that is below 1."""
        assert self.parameter.grad is not None
        return self.parameter.grad * ((outcome.norm + 1e-6) / self.step.clip).clamp(min=1)
