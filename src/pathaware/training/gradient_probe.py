"""Histograms of the gradients of one layer over training, and the probe that records them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.learner import require_path
from pathaware.core.rule import Context, Rule
from pathaware.training.checksummed import read_declared, write_checksummed

if TYPE_CHECKING:
    from pathaware.training.meta_step import MetaStep
    from pathaware.training.progress import StepOutcome

BINS, FINEST, LARGEST = 512, 1e-6, 1e3
"""Gradients change sign and span orders of magnitude, over training and between methods. So the bins are
equally wide in asinh(g / FINEST): evenly spaced below FINEST, and from there to ±LARGEST each 9 % wider than
the one before. All runs have the same bins, so they can be compared; 0 is an edge."""

_WIDTH = math.asinh(LARGEST / FINEST) / (BINS // 2)


def edges() -> Tensor:
    """The edges of the bins in ascending order: `[BINS + 1]`."""
    return FINEST * (_WIDTH * (torch.arange(BINS + 1, dtype=torch.float64) - BINS // 2)).sinh()


def count(values: Tensor) -> Tensor:
    """Count the `values` in each bin, lower edge included: `[BINS]`, on the device of the values.

    Values beyond the outermost edges count in the outermost bins; NaN is not counted.
    """
    place = (values.flatten() / FINEST).asinh_().div_(_WIDTH).add_(BINS // 2).floor_().clamp_(0, BINS - 1)
    index = place.nan_to_num_(nan=BINS).long()
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, index, torch.ones_like(index))[:BINS]  # integers: the order does not matter


@dataclass(frozen=True)
class AboutHistograms:
    """The metadata of histograms: the name of the parameter tensor."""

    of: str


@dataclass
class Histograms:
    """Snapshots of the gradients of the parameter tensor named `of`, in the order of training.

    A snapshot has n + 1 rows: the inner gradients ∇L(θ₀) … ∇L(θₙ₋₁) of all tasks of a meta-batch before any
    preconditioner, then the meta-gradient. `counts` are `[n + 1, BINS]`; `mean` and `largest` are of the
    absolute values, `[n + 1]`; `iterations` counts the meta-iterations before each snapshot.
    """

    of: str
    iterations: list[int] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    largest: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.iterations)

    def add(self, iteration: int, rows: Sequence[Tensor]) -> None:
        """Add a snapshot and drop those of this iteration or later, which a resumed run repeats."""
        kept = sum(before < iteration for before in self.iterations)
        for column in (self.iterations, self.counts, self.mean, self.largest):
            del column[kept:]
        self.iterations.append(iteration)
        self.counts.append(torch.stack([count(row) for row in rows]).int().cpu())
        self.mean.append(torch.stack([row.abs().mean() for row in rows]).cpu())
        self.largest.append(torch.stack([row.abs().max() for row in rows]).cpu())

    def save(self, path: Path) -> None:
        """Write all snapshots atomically. There must be at least one."""
        tensors = {
            "iterations": torch.tensor(self.iterations),
            "counts": torch.stack(self.counts),
            "mean": torch.stack(self.mean),
            "largest": torch.stack(self.largest),
            "edges": edges(),
        }
        about = {
            "of": self.of,
            "axes of counts": "snapshot; inner gradients of steps 1 to n, then the meta-gradient; bin",
            "edges": f"equally spaced in asinh(g / {FINEST}); the outermost bins hold those beyond too",
            "mean, largest": "of the absolute values",
        }
        write_checksummed(path, tensors, about)

    @classmethod
    def load(cls, path: Path) -> Histograms:
        tensors, about = read_declared(path, AboutHistograms)
        snapshots = len(tensors.get("iterations", ()))
        columns = [tensors.get(name, torch.zeros(0)) for name in ("counts", "mean", "largest")]
        counts, *others = (column.shape for column in columns)
        if len(counts) != 3 or counts[::2] != (snapshots, BINS) or any(each != counts[:2] for each in others):
            raise UsageError(f"{path} cannot be read (its tensors do not fit together)", field="run")
        return cls(about.of, tensors["iterations"].tolist(), *map(list, columns))


def probed_tensor(learner: FewShotLearner) -> str:
    """Name the tensor to probe: the weight of the last convolution, or else of the last hidden layer.

    Biases are left out, since the gradient of a bias ahead of batch norm is rounding error.
    """
    rule = part_of(learner, Rule)
    if rule is None:
        raise UsageError("histograms: the method takes no inner gradients; set training.histograms=0")
    adapted = {entry.name for entry in rule.layout.entries}
    modules = [(f"{name}.weight".lstrip("."), module) for name, module in learner.model.named_modules()]
    modules = [(name, module) for name, module in modules if name in adapted]
    convolutions = [n for n, module in modules if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    linear = [n for n, module in modules if isinstance(module, nn.Linear)]
    if not convolutions and len(linear) < 2:
        raise UsageError("histograms: the network adapts neither a convolution nor a hidden linear layer")
    return convolutions[-1] if convolutions else linear[-2]


class GradientProbe:
    """A meta-iteration that takes a snapshot of its gradients every `every` iterations, from the first on.

    The inner gradients are computed once more before the step, without a graph, because those inside a CUDA
    graph cannot be reached. The meta-gradient is what the step leaves in `.grad`, with the clipping undone.
    Training is not affected. On a CPU a snapshot costs a quarter of an iteration with images, and a whole one
    with small networks.
    """

    def __init__(
        self,
        step: MetaStep,
        histograms: Histograms,
        every: int,
        *,
        run: Callable[[Any, float], StepOutcome] | None = None,
        iteration: int = 0,
    ) -> None:
        """`run` executes the step if it is not to run eagerly; `iteration` is the number of the next one."""
        self.step, self.run = step, run or step
        self.histograms, self.every, self.iteration = histograms, every, iteration
        self.parameter = step.learner.model.get_parameter(histograms.of)

    def __call__(self, plan: Any, rate: float) -> StepOutcome:
        due = self.every > 0 and self.iteration % self.every == 0  # 0 means never
        rows = self.inner_gradients(plan) if due else []
        outcome = self.run(plan, rate)
        if due:
            self.histograms.add(self.iteration, [*rows, self.meta_gradient(outcome)])
        self.iteration += 1
        return outcome

    def inner_gradients(self, plan: Any) -> list[Tensor]:
        """The inner gradients of all tasks of the plan, one tensor `[T, …]` per inner step."""
        step, world, device = self.step, self.step.world, self.parameter.device
        episodes = step.source.gather(world.share(plan))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # for dropout
            parts = [
                inner_gradients(step.learner, tasks, self.histograms.of)
                for tasks in episodes.chunks(step.chunk)
            ]
        # A rank without tasks takes part in every exchange.
        steps = require_path(step.learner).rule.steps
        return [world.gather([part[j] for part in parts]) for j in range(steps)]

    def meta_gradient(self, outcome: StepOutcome) -> Tensor:
        """The meta-gradient before `clip_grad_norm_` multiplied it by min(1, clip / (norm + 1e-6))."""
        assert self.parameter.grad is not None
        return self.parameter.grad * ((outcome.norm + 1e-6) / self.step.clip).clamp(min=1)


def inner_gradients(learner: FewShotLearner, episodes: Episodes, name: str) -> list[Tensor]:
    """The gradients of one adapted parameter along the path: a tensor `[T, …]` per inner step."""
    meta = require_path(learner)
    context = Context(meta, *episodes.tensors()[:3])
    seen: list[Tensor] = []

    def recorded(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradient = meta.inner_gradient(j, point, context)
        seen.append(meta.rule.layout.views(gradient)[name])
        return losses, gradient

    meta.unroll(context, meta.rule.steps, recorded)
    return seen
