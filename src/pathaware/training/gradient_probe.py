"""How gradients were spread over training: counts in fixed bins, kept as one file of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import Context, FewShotLearner, MetaLearner, require_path
from pathaware.training.checksummed import CorruptFile, read_checksummed, write_checksummed

if TYPE_CHECKING:
    from pathaware.training.trainer import MetaStep, Outcome

BINS, FINEST, LARGEST = 512, 1e-6, 1e3
"""Gradients change sign and span orders of magnitude, over training and between methods. So the bins are
equally wide in asinh(g / FINEST): evenly spaced below FINEST, and from there to ±LARGEST each 9 % wider than
the last. They are the same for every run, which makes runs comparable; 0 is an edge."""

_WIDTH = math.asinh(LARGEST / FINEST) / (BINS // 2)


def edges() -> Tensor:
    """The ends of the bins, ascending: `[BINS + 1]`."""
    return FINEST * (_WIDTH * (torch.arange(BINS + 1, dtype=torch.float64) - BINS // 2)).sinh()


def count(values: Tensor) -> Tensor:
    """How many of `values` fall into each bin, lower end included: `[BINS]`, where the values are.

    What is beyond the outermost edges counts to the outermost bins; NaN counts nowhere.
    """
    place = (values.flatten() / FINEST).asinh_().div_(_WIDTH).add_(BINS // 2).floor_().clamp_(0, BINS - 1)
    index = place.nan_to_num_(nan=BINS).long()
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, index, torch.ones_like(index))[:BINS]  # whole numbers add up in any order


@dataclass
class Histograms:
    """Snapshots of the gradients of one parameter tensor, `of`, in the order of training.

    A snapshot has n + 1 rows: the inner gradients ∇L(θ₀) … ∇L(θₙ₋₁) of all tasks of a meta-batch, as they
    are before any preconditioner, then the meta-gradient. Its `counts` are `[n + 1, BINS]`; `mean` and
    `largest` those of the absolute values, `[n + 1]`; `iterations` how many meta-iterations came before it.
    """

    of: str
    iterations: list[int] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    largest: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.iterations)

    def add(self, iteration: int, rows: Sequence[Tensor]) -> None:
        """Take a snapshot. One of this iteration or later goes: a resumed run passes there again."""
        kept = sum(before < iteration for before in self.iterations)
        for column in (self.iterations, self.counts, self.mean, self.largest):
            del column[kept:]
        self.iterations.append(iteration)
        self.counts.append(torch.stack([count(row) for row in rows]).int().cpu())
        self.mean.append(torch.stack([row.abs().mean() for row in rows]).cpu())
        self.largest.append(torch.stack([row.abs().max() for row in rows]).cpu())

    def save(self, path: Path) -> None:
        """Write all snapshots, of which there must be one, or nothing."""
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
            "edges": f"equally spaced in asinh(g / {FINEST}); the outermost bins also hold what is beyond",
            "mean, largest": "of the absolute values",
        }
        write_checksummed(path, tensors, about)

    @classmethod
    def load(cls, path: Path) -> Histograms:
        try:
            tensors, about = read_checksummed(path)
        except CorruptFile as error:
            raise UsageError(f"{path} cannot be read ({error})", field="run") from None
        columns = [list(tensors[name]) for name in ("counts", "mean", "largest")]
        return cls(about["of"], tensors["iterations"].tolist(), *columns)


# Looks at the gradients of one layer while a run trains, and leaves no trace in it.


def probed_tensor(learner: FewShotLearner) -> str:
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


class GradientProbe:
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
        learner, world, device = require_path(self.step.learner), self.step.world, self.parameter.device
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
