"""MetaLearner: a network, a rule to adapt it, and a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.batched import kernels
from pathaware.context import Context
from pathaware.errors import UsageError
from pathaware.execution import ExecutionName, select_execution
from pathaware.explicit import Program
from pathaware.few_shot import Answers, FewShotLearner, refuse_running_statistics
from pathaware.inductive import FirstExamplesStatistics
from pathaware.losses import Loss
from pathaware.path import Gradient, Order, Path, unroll
from pathaware.rules.base import Rule
from pathaware.tasks.episodes import Episodes
from pathaware.twin import twin


class MetaLearner(FewShotLearner):
    """Adapts any `nn.Module` to tasks, and differentiates through the adaptation.

    Its parameters are the network's own (θ₀) and the rule's (Φ), so any optimiser trains both:

    >>> from torch.nn.functional import mse_loss
    >>> from pathaware import MetaLearner, Pamela
    >>> model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 1))
    >>> learner = MetaLearner(model, Pamela(model, steps=5, skip=2), mse_loss)
    >>> adapted = learner.adapt(torch.randn(10, 1), torch.randn(10, 1))
    >>> adapted(torch.randn(3, 1)).shape
    torch.Size([3, 1])

    - `execution`: how tasks run side by side, see `pathaware.execution`; `auto` picks the fastest.
    - `guard`: no task can run away. One whose support loss reaches ten times that at its start stops
      there, and one that ends above its start is put back to the best point of its path.
    - `checkpoint`: recompute each inner step in the backward pass instead of keeping it.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        loss: Loss,
        *,
        execution: ExecutionName = "auto",
        guard: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        refuse_running_statistics(model)
        self.model = model
        self.rule = rule
        self.loss = loss
        self.guard = guard
        self.checkpoint = checkpoint
        self.execution = select_execution(execution, model, rule.layout, loss)

    def path(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        order: Order = "none",
        query_x: Tensor | None = None,
    ) -> Path:
        """Adapt T tasks at once and return every point they visited.

        Shapes: `support_x [T, S, …]`, `support_y [T, S, …]`; points are `[T, D]`. By default no graph is
        kept. `steps` beyond those the rule was trained for need `extend=True`: the coefficients of the
        last trained step are then repeated. `query_x [T, Q, …]` are inputs to be answered later, for rules
        that look at them (those of transductive methods).
        """
        steps = self._steps(steps, extend)
        context = Context(self, support_x, support_y, query_x, order)
        path = self.unroll(context, steps)
        if self.guard:
            with torch.no_grad():
                path.losses.append(self.losses(path.end, support_x, support_y))
        return path

    def unroll(self, context: Context, steps: int, gradient: Gradient | None = None) -> Path:
        """Follow the rule from θ₀, down the slopes of its objective or any others."""

        def own(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner_gradient(j, point, context)

        order = context.order
        with torch.set_grad_enabled(order != "none"):
            theta = self.rule.layout.flatten(self.model).expand(len(context), -1)
            start, memory = self.rule.begin(theta, context)
            return unroll(
                self.rule,
                start,
                gradient or own,
                steps,
                order=order,
                guard=self.guard,
                checkpoint=self.checkpoint,
                memory=memory,
            )

    def inner_gradient(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The support loss `[T]` at a point and the slope `[T, D]` that step j of the rule descends."""
        with torch.enable_grad():
            here = point if context.order == "second" else point.detach().requires_grad_()
            objective = self.rule.objective(j, here, context)
            if objective is not None:
                losses, descended = objective
                create_graph = context.order == "second"
                (slope,) = torch.autograd.grad(descended.sum(), here, create_graph=create_graph)
                return losses, slope
        return context.gradient(point)

    def end(self, path: Path, j: int = -1) -> Tensor:
        """Where tasks end that stop after step j, the guard applied."""
        return path.settled(j) if self.guard else path.points[j]

    def gradient(
        self, point: Tensor, x: Tensor, y: Tensor, *, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Loss `[T]` at a point `[T, D]` and its gradient `[T, D]`, each task's own."""
        program = self._program(point, x, y, differentiable=create_graph)
        if program is not None:
            return program.gradient(point if create_graph else point.detach(), x, y)
        if not create_graph:
            point = point.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.losses(point, x, y)
            (slope,) = torch.autograd.grad(loss.sum(), point, create_graph=create_graph)
        return loss, slope

    def predict(self, point: Tensor, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        """Outputs of the network at a point `[T, D]` for inputs `[T, N, …]`.

        With `support_x` the prediction is inductive: batch norm uses the support set's statistics, and
        no answer depends on the other inputs.
        """
        if support_x is None:
            return self.execution.forward(point, x)
        count = support_x.shape[1]
        with kernels.switched_off(), FirstExamplesStatistics(count):
            return self.execution.forward(point, torch.cat([support_x, x], dim=1))[:, count:]

    def losses(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss of each task at a point: `[T]`."""
        program = None if torch.is_grad_enabled() else self._program(point, x, y, differentiable=False)
        if program is not None:
            return program.values(point, x, y)
        return self.execution.losses(self.predict(point, x), y)

    def task_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """Query loss of each task at the end of its path: `[T]`."""
        x, y = episodes.query_x, episodes.query_y
        path = self.path(episodes.support_x, episodes.support_y, order=order, query_x=x)
        return self.judge(self.end(path), x, y)

    def judge(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`losses`, where their derivative is wanted at once: faster, and differentiable once."""
        program = self._program(point, x, y, differentiable=True) if point.requires_grad else None
        return self.losses(point, x, y) if program is None else program.losses(point, x, y)

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
        """Outputs for `query_x` at θ₀ and after every step. With `inductive` no query knows of another."""
        seen = None if inductive else query_x
        path = self.path(support_x, support_y, steps=steps, extend=extend, query_x=seen)
        return self._along(path, query_x, support_x if inductive else None)

    def learn(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> tuple[nn.Module, Answers]:
        """Both from one path."""
        path = self.path(support_x[None], support_y[None])
        with torch.no_grad():
            return self._network(path), self._along(path, query_x[None], support_x[None])

    def _along(self, path: Path, query_x: Tensor, known: Tensor | None) -> Answers:
        outputs = [self.predict(self.end(path, j), query_x, known) for j in range(len(path.points))]
        strayed = path.strayed() if self.guard else torch.zeros(len(query_x), dtype=torch.bool)
        return Answers(outputs, strayed)

    def adapt(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        query_x: Tensor | None = None,
    ) -> nn.Module:
        """Adapt to one task, `support_x [S, …]`; returns a copy of the model with the new parameters."""
        seen = None if query_x is None else query_x[None]
        return self._network(
            self.path(support_x[None], support_y[None], steps=steps, extend=extend, query_x=seen)
        )

    def _network(self, path: Path) -> nn.Module:
        """A copy of the model as it is at the end of the path of one task."""
        return twin(self.model, path.layout.views(self.end(path)[0]))

    def _program(self, point: Tensor, x: Tensor, y: Tensor, *, differentiable: bool) -> Program | None:
        for program in (self.execution.program, self.execution.native):
            if program is not None and program.fits(point, x, y, differentiable=differentiable):
                return program
        return None

    def _steps(self, steps: int | None, extend: bool) -> int:
        trained = self.rule.steps
        if steps is None:
            return trained
        if steps < 0:
            raise UsageError(f"steps: {steps} is not allowed; 0 to {trained}")
        if steps > trained and not extend:
            raise UsageError(
                f"steps: {steps} is more than the {trained} the rule was trained for; "
                "extend=True repeats the last step's coefficients"
            )
        return steps


def with_path(learner: FewShotLearner) -> MetaLearner:
    """The same learner, known to adapt along a path."""
    if not isinstance(learner, MetaLearner):
        raise UsageError(f"method: {type(learner).__name__} does not adapt step by step")
    return learner
