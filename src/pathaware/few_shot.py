"""What every learner can do, whether it descends, solves or compares: learn from tasks, answer for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pathaware.errors import UsageError
from pathaware.losses import Loss
from pathaware.path import Order
from pathaware.tasks.episodes import Episodes


@dataclass(frozen=True)
class Answers:
    """Outputs for the query sets of T tasks, each `[T, Q, …]`: before adapting, then after each step of it.

    `strayed [T]` marks tasks that the guard put back to an earlier point of their path.
    """

    outputs: list[Tensor]
    strayed: Tensor


class FewShotLearner(nn.Module, ABC):
    """Adapts to tasks by their support sets. Its parameters are what meta-training learns."""

    model: nn.Module
    loss: Loss
    checkpoint: bool = False
    """Whether to compute again instead of keeping, where there is something to save."""

    @abstractmethod
    def task_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The loss on each query set after adapting: `[T]`, differentiable in all parameters."""

    @abstractmethod
    def answers(
        self,
        support_x: Tensor,
        support_y: Tensor,
        query_x: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        inductive: bool = False,
    ) -> Answers:
        """Adapt T tasks and answer their queries after every step. Call it without gradients."""

    @abstractmethod
    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        """A classifier or function for one task, `support_x [S, …]`, that needs this learner no more."""

    def learn(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> tuple[nn.Module, Answers]:
        """`adapt` to one task, and its inductive answers for `query_x [Q, …]` after every step on the way."""
        examples = support_x[None], support_y[None], query_x[None]
        with torch.no_grad():
            return self.adapt(support_x, support_y), self.answers(*examples, inductive=True)

    def meta_loss(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The mean query loss after adaptation, differentiable in all parameters."""
        return self.task_losses(episodes, order).mean()


def refuse_running_statistics(model: nn.Module) -> None:
    """Running averages would leak from task to task, and from query to support."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise UsageError(
                f"model: {name or 'it'} keeps running statistics, which tasks would share; build it with "
                "track_running_stats=False or call torch.func.replace_all_batch_norm_modules_(model)"
            )
