"""One meta-iteration: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathaware.core.episodes import TaskSource
from pathaware.core.execution import engine
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.meta_gradient import MetaGradient
from pathaware.training.config import Training
from pathaware.training.distributed import ALONE, World
from pathaware.training.progress import StepOutcome

if TYPE_CHECKING:
    from pathaware.training.recipe import Recipe

WORTH_COMPILING = 100_000
"""Iterations from which `compile = "auto"` compiles: it takes 30 to 40 s and saves 0.3 to 2 ms of
each."""


class MetaStep:
    """Runs one meta-iteration eagerly, on any device."""

    def __init__(
        self,
        learner: FewShotLearner,
        estimator: MetaGradient,
        source: TaskSource,
        *,
        rate: float,
        rule_rate: float = 0.0,
        clip: float = 0.0,
        chunk: int = 0,
        world: World = ALONE,
        recipe: Recipe | None = None,
    ) -> None:
        self.learner = learner
        self.execution = learner.execution
        self.estimator = estimator
        self.source = source
        self.world = world
        self.clip = clip or math.inf
        self.chunk = chunk or None
        self.recipe = recipe
        extra: list[Tensor] = [] if recipe is None else list(recipe.trained)
        self.parameters: list[Tensor] = [*(p for p in learner.parameters() if p.requires_grad), *extra]
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float32)
        groups: list[dict[str, Any]] = [{"params": self.parameters, "lr": self.rate}]
        self.ratio, self.rule_rate = rule_rate / rate, self.rate
        if rule_rate:
            network = {id(p) for p in (*learner.model.parameters(), *extra)}
            self.rule_rate = self.rate * self.ratio
            groups = [
                {"params": [p for p in self.parameters if id(p) in network], "lr": self.rate},
                {"params": [p for p in self.parameters if id(p) not in network], "lr": self.rule_rate},
            ]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            [group for group in groups if group["params"]], fused=True, capturable=device.type == "cuda"
        )

    @property
    def changed(self) -> list[Tensor]:
        """All tensors that a step changes, apart from the optimiser's."""
        return [*self.parameters, *([] if self.recipe is None else self.recipe.averaged)]

    def __call__(self, plan: Any, rate: float) -> StepOutcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: Any) -> StepOutcome:
        share = self.world.share(plan)
        tasks = min(len(share), self.chunk or len(share))
        # All of it: threads that wait for PyTorch's next operation would take cores from those of the tasks.
        with self.estimator.task_threads(self.learner, tasks):
            return self._run(share, 1 / len(plan))

    def _run(self, share: Any, weight: float) -> StepOutcome:
        episodes = self.source.gather(share)
        if self.rule_rate is not self.rate:
            torch.mul(self.rate, self.ratio, out=self.rule_rate)
        for parameter in self.parameters:  # `zero_grad` has a price of its own
            parameter.grad = None
        # Weighted by the number of all tasks, so that the sum over processes is the mean over tasks.
        parts = [
            self.estimator.backward(self.learner, chunk, weight) for chunk in episodes.chunks(self.chunk)
        ]
        self.world.sum_gradients(self.parameters)
        norm = self._clipped_norm()
        # One non-finite meta-gradient would ruin θ₀. The fused optimiser skips the step by itself where
        # `found_inf` is 1, so no synchronisation is needed to decide.
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.recipe is not None:
            self.recipe.after_step()
        return StepOutcome(torch.cat(parts) if parts else norm.new_empty(0), norm.detach(), skipped)

    def _clipped_norm(self) -> Tensor:
        """Clip the meta-gradient, if it is to be clipped, and return its norm before that."""
        if self.clip < math.inf:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def execution_changed(self) -> bool:
        """True if the learner runs its network in another way than when this was last called."""
        before, self.execution = self.execution, self.learner.execution
        return self.execution is not before


def meta_step(
    training: Training,
    learner: FewShotLearner,
    source: TaskSource,
    estimator: MetaGradient | None = None,
    world: World = ALONE,
    recipe: Recipe | None = None,
) -> MetaStep:
    """The meta-iteration of a learner, compiled where that pays; `estimator` replaces its meta-gradient."""
    estimator = estimator or learner.meta_gradient
    order = estimator.compilable_order
    if order is not None and (fast := engine()) is not None and compiles(training, learner):
        estimator = fast.compiled(order)
    return MetaStep(
        learner,
        estimator,
        source,
        rate=training.rate,
        rule_rate=training.rule_rate,
        clip=training.clip,
        chunk=training.chunk,
        world=world,
        recipe=recipe,
    )


def compiles(training: Training, learner: FewShotLearner) -> bool:
    """Decide whether to compile the meta-iteration.

    `auto` looks at the configuration and never at measured times, so that a repeated run is the same run.
    Networks with convolutions take longer to compile than most runs last.
    """
    if training.compile != "auto" or training.torch_device.type != "cpu":
        return training.compile == "on" and training.torch_device.type == "cpu"
    fast, chosen = engine(), learner.execution
    if fast is None or chosen is None or training.iterations < WORTH_COMPILING:
        return False
    return chosen.compilable and fast.has_compiler()
