"""How much of the gradient at a path's end comes back to its start: the paper's section 3.2, measured.

The meta-gradient takes G = ∇L(θₙ), of the query loss, back to θ₀ through every inner step. A step of MAML
multiplies it by 1 − αH, a skip connection offers a way around. Whether G vanishes on its way back is a
question of the share ‖∇_{θ₀} L(θₙ)‖ / ‖G‖.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.seeding import generator
from pathaware.experiments.report.path_figures import Trained
from pathaware.methods.pamela import Pamela
from pathaware.training.problems import Problem

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Flow:
    """For tasks that stop after 1 … n steps, each `[tasks, n]`: the norm of the meta-gradient of θ₀ (as the
    start; Φ is apart), the norm of G, and the query loss at the end."""

    label: str
    start: Tensor
    end: Tensor
    loss: Tensor

    @property
    def share(self) -> Tensor:
        """What comes back to the start of what there is at the end; 1 as if there were no path between."""
        return self.start / self.end

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation and quartiles over tasks after 1 … n steps, under stable keys."""
        columns = {"start": self.start, "end": self.end, "share": self.share, "loss": self.loss}
        return {"label": self.label, "tasks": len(self.start)} | {n: _spread(v) for n, v in columns.items()}


def gradient_flow(
    learner: MetaLearner,
    problem: Problem,
    label: str,
    *,
    tasks: int = 100,
    seed: int = 0,
    batch: int | None = None,
) -> Flow:
    """Follow meta-gradients of training tasks back along paths of 1 … n steps, n as the rule was trained for.

    Beyond that PAMELA would repeat its last Q and skip nothing, which is another rule. `batch` tasks run side
    by side, with a graph of all their steps.
    """
    reference = next(learner.parameters())
    source = problem.tasks("train", reference.device, reference.dtype)
    plan = source.draw(tasks, generator(seed, "gradient flow"))
    size = batch or problem.evaluation_batch
    parts = []
    for first in range(0, tasks, size):
        episodes = source.gather(plan[first : first + size])
        path = learner.path(episodes.support_x, episodes.support_y, order="second")
        found = []
        for j in range(1, len(path.points)):
            end = learner.end(path, j)
            loss, g = learner.gradient(end, episodes.query_x, episodes.query_y)
            (back,) = torch.autograd.grad(end, path.points[0], g, retain_graph=True)
            found.append(torch.stack([back.norm(dim=1), g.norm(dim=1), loss.detach()]))
        parts.append(torch.stack(found, dim=-1).double().cpu())
    start, end, loss = torch.cat(parts, dim=1)
    return Flow(label, start, end, loss)


def controlled(
    learner: MetaLearner,
    problem: Problem,
    *,
    rate: float,
    steps: int = 20,
    skip: int = 2,
    values: Sequence[float] = (0.0, 0.25, 0.5, 0.75),
    tasks: int = 100,
) -> list[Flow]:
    """What the skip alone does: the learner's network, one rate everywhere, the same P at every skip.

    P = 0 is MAML. There is no guard: it would hand some tasks their gradient back untouched, and hide what
    the rule does.
    """
    flows = []
    for p in values:
        rule = Pamela(learner.model, steps, rate=rate, skip=skip, q="constant", p_granularity="model")
        torch.nn.init.constant_(rule.p, p)
        adapted = MetaLearner(
            learner.model, rule.to(next(learner.model.parameters())), learner.loss, guard=False
        )
        flows.append(gradient_flow(adapted, problem, f"P = {p:g}" if p else "P = 0, MAML", tasks=tasks))
    return flows


def of_trained(runs: Sequence[Trained], *, tasks: int = 100) -> list[Flow]:
    """Trained runs as they are, the guard as in training; PAMELA also with its own Q and P set to 0."""
    flows = []
    for run, each in runs:
        learner = require_path(each)
        problem, name = run.config.problem, run.config.method
        flows.append(gradient_flow(learner, problem, name, tasks=tasks))
        if isinstance(learner.rule, Pamela) and len(learner.rule.p):
            cut: Any = copy.deepcopy(learner)
            torch.nn.init.zeros_(cut.rule.p)
            flows.append(gradient_flow(cut, problem, f"{name}, its P set to 0", tasks=tasks))
    return flows


def _spread(values: Tensor) -> dict[str, list[float]]:
    low, middle, high = values.quantile(values.new_tensor(QUARTILES), dim=0)
    columns = {"mean": values.mean(0), "std": values.std(0), "q25": low, "median": middle, "q75": high}
    return {name: column.tolist() for name, column in columns.items()}
