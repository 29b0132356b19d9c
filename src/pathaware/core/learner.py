"""`MetaLearner` adapts a network step by step and differentiates through the adaptation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathaware.core.batch_norm import freeze_batch_norm, set_statistics
from pathaware.core.episodes import Episodes, check_tensors
from pathaware.core.errors import UsageError
from pathaware.core.execution import Execution, ExecutionName, select_execution
from pathaware.core.exports import Renamed
from pathaware.core.few_shot import (
    AdaptedTasks,
    FewShotLearner,
    QueryLevel,
    StepPredictions,
    check_kind,
    check_loss,
    check_support,
    explain_errors,
    refuse_running_statistics,
)
from pathaware.core.losses import Loss
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import clone_with_parameters
from pathaware.core.path import Gradient, Order, Trajectory, check_order, check_points, unroll
from pathaware.core.rule import MAX_STEPS, Allowed, Context, LinearSteps, Rule, WeightedContext, _Shared

HeadStart = Literal["learned", "prototypes", "projected"]
"""Where the last layer begins: at its learned parameters, at class means (see `core.prototype_start`), or at
class means in a learned subspace of the features."""


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

    - `meta_gradient`: how the loss after adaptation becomes a gradient; by default the rule's own.
    - `execution`: how tasks run side by side, see `pathaware.core.execution`; `auto` picks the fastest.
    - `guard`: stop tasks that diverge. A task whose support loss reaches ten times its initial value takes no
      further step, and a task that ends above its initial loss is returned to the best point of its path.
    - `checkpoint`: recompute each inner step in the backward pass instead of storing its activations.
    - `head`: where the last layer begins, see `pathaware.core.prototype_start`; `dimensions`: those of the
      subspace of `projected`, at most the number of features.
    """

    losses, gradient = Renamed("losses_at"), Renamed("gradient_at")

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        loss: Loss,
        *,
        meta_gradient: MetaGradient | None = None,
        execution: ExecutionName = "auto",
        guard: bool = True,
        checkpoint: bool = False,
        head: HeadStart = "learned",
        dimensions: int = 64,
    ) -> None:
        super().__init__()
        check_kind(model, nn.Module, "model")
        check_kind(rule, Rule, "rule")
        check_loss(loss)
        refuse_running_statistics(model)
        _check_layout(model, rule)
        self.model = model
        like_adapted = dict(model.named_parameters())[rule.layout.entries[0].name]
        self.rule = rule.to(like_adapted.device, like_adapted.dtype)
        self.loss = loss
        self.meta_gradient = meta_gradient or rule.default_meta_gradient()
        self.guard = guard
        self.checkpoint = checkpoint
        self.execution_name = execution
        self._execution: Execution | None = self._select_execution()
        self._before: Execution | None = None
        self.start: PrototypeStart | None = None
        if head != "learned":
            from pathaware.core.prototype_start import PrototypeStart  # builds on heads

            start = PrototypeStart(model, rule.layout, dimensions if head == "projected" else 0)
            self.start = start.to(like_adapted.device, like_adapted.dtype)

    @property
    def execution(self) -> Execution:
        """How tasks run side by side; chosen again if a change of network, rule or loss requires it.

        The previous execution is kept, because networks switch between training and evaluation mode.
        """
        chosen_for = self.model, self.rule.layout, self.loss
        if self._execution is None or self._execution.outdated(*chosen_for):
            self._execution, self._before = self._before, self._execution
            if self._execution is None or self._execution.outdated(*chosen_for):
                check_loss(self.loss)
                refuse_running_statistics(self.model)
                _check_layout(self.model, self.rule)
                self._execution = self._select_execution()
        return self._execution

    def _select_execution(self) -> Execution:
        return select_execution(self.execution_name, self.model, self.rule.layout, self.loss)

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles. A copy chooses its executions for its own network; they hold
        functions that cannot be pickled."""
        return {**vars(self), "_execution": None, "_before": None}

    @property
    def allows(self) -> frozenset[Allowed]:
        return self.rule.allows

    def _joint(self, query_x: Tensor | None) -> Tensor | None:
        """The queries, if the rule uses them."""
        return query_x if "joint queries" in self.allows else None

    def _task_threads(self, tasks: int) -> AbstractContextManager[None]:
        # Only if the hand-written program computes inner gradients; autograd uses PyTorch's own threads.
        if tasks <= 1 or not descends_support_loss(self.rule) or next(self.parameters()).is_cuda:
            return nullcontext()
        return self.execution.task_threads()

    def adapt(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        query_x: Tensor | None = None,
    ) -> nn.Module:
        """Adapt to one task, `support_x [S, …]`; return a copy of the model with the new parameters."""
        given = {"support_x": support_x, "support_y": support_y}
        given |= {} if query_x is None else {"query_x": query_x}
        check_tensors(**given)
        examples = {name: tensor[None] for name, tensor in given.items()}
        with torch.no_grad(), explain_errors(self, **examples):
            end, *losses = self._run(self._end, self._steps(steps, extend), *examples.values())
        if not all(loss.isfinite().all() for loss in losses):
            raise UsageError(
                "support set: the loss before adaptation is not finite; look for NaN, infinite or very large "
                "values"
            )
        return self._network(end)

    def path(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        order: Order = "none",
        query_x: Tensor | None = None,
    ) -> Trajectory:
        """Adapt T tasks at once and return every point they visited.

        Shapes: `support_x [T, S, …]`, `support_y [T, S, …]`; points are `[T, D]`. By default no graph is
        kept. More `steps` than the rule was trained for need `extend=True`, which repeats the coefficients of
        the last trained step. `query_x [T, Q, …]` are the queries, for rules with joint inference.
        """
        check_support(support_x, support_y, query_x)
        steps = self._steps(steps, extend)
        with explain_errors(self, support_x=support_x, support_y=support_y, query_x=query_x):
            if not torch.is_inference_mode_enabled():
                return self._path(support_x, support_y, steps, order, query_x)
            with torch.inference_mode(False), torch.no_grad():  # inner gradients need autograd
                x, y = _normal(support_x), _normal(support_y)
                return self._path(x, y, steps, order, None if query_x is None else _normal(query_x))

    def _path(
        self, support_x: Tensor, support_y: Tensor, steps: int, order: Order, query_x: Tensor | None
    ) -> Trajectory:
        context = self.context(support_x, support_y, query_x, order)
        path, seen = self.unroll(context, steps), context._shared.outputs
        if self.guard:
            last: list[Tensor] = []
            with torch.no_grad():
                path.losses.append(context.support_losses(path.end, last))
            seen.extend((path.end, outputs) for outputs in last)
        # A rule may descend another loss, or ask for gradients at other points.
        if [id(point) for point, _ in seen] == [id(point) for point in path.points]:
            path.outputs = [outputs for _, outputs in seen]
        return path

    def context(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor | None = None, order: Order = "none"
    ) -> Context:
        """Prepare T tasks for `unroll`; what all steps share is computed once."""
        check_order(order)
        with torch.set_grad_enabled(order == "second"):
            prepared = self.execution.prepare(support_x)
            queries = self._joint(query_x)
            queries = None if queries is None else self.execution.prepare(queries)
        return Context(self, support_x, support_y, query_x, order, _shared=_Shared(prepared, queries))

    def unroll(self, context: Context, steps: int, gradient: Gradient | None = None) -> Trajectory:
        """Follow the rule from θ₀, using `gradient` if given, else the gradient of the rule's objective."""

        def of_objective(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner_gradient(j, point, context)

        order = context.order
        with torch.set_grad_enabled(order != "none"):
            theta = self.rule.layout.flatten(self.model).expand(len(context), -1)
            initial, memory = check_points(self.rule.begin(theta, context), "begin", theta.shape)
            if self.start is not None:
                initial = self.start(initial, context)
            return unroll(
                self.rule,
                initial,
                gradient or of_objective,
                steps,
                order=order,
                guard=self.guard,
                checkpoint=self.checkpoint,
                memory=memory,
            )

    def inner_gradient(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The support loss `[T]` at a point and the gradient `[T, D]` that step j of the rule descends."""
        if descends_support_loss(self.rule):
            return context.gradient(point)
        second = context.order == "second"
        with torch.enable_grad():
            start = point if second else point.detach().requires_grad_()
            passes = context._shared.passes = self.execution.passes(start, create_graph=second)
            objective = self.rule.objective(j, passes.here, context)
            context._shared.passes = None  # it holds the graph of this step
            if objective is not None:
                losses, descended = objective
                return losses, passes.gradient(descended.sum())
        return context.gradient(point)

    def end(self, path: Trajectory, j: int = -1) -> Tensor:
        """The points where tasks end if they stop after step j, with the guard applied."""
        return path.guarded(j) if self.guard else path.points[j]

    def gradient_at(
        self, point: Tensor, x: Tensor, y: Tensor, *, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The loss of each task at a point `[T, D]`, `[T]`, and its gradient `[T, D]`."""
        return self.execution.gradient(point, x, y, create_graph=create_graph)

    def outputs_at(self, point: Tensor, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        """Outputs of the network at a point `[T, D]` for inputs `[T, N, …]`.

        With `support_x` the prediction is inductive: batch norm uses the support set's statistics, so that no
        prediction depends on the other inputs. With constant statistics it is inductive in any case.
        """
        check_tensors(x=x)
        with explain_errors(self, x=x, support_x=support_x):
            return self._predict(point, x, support_x)

    def _predict(self, point: Tensor, x: Tensor, support_x: Tensor | None) -> Tensor:
        support_x = None if support_x is None or self._inductive else support_x
        return self.execution.predict(point, x, support_x)

    def losses_at(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss of each task at a point: `[T]`."""
        return self.execution.losses_at(point, x, y)

    def adapted_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        check_order(order)
        with explain_errors(self, **episodes.named()):
            steps = _linear_steps(self.rule) if self.start is None and not self.checkpoint else None
            if steps is not None:
                execution = self.execution  # refuses a network that no longer has these parameters
                theta = self.rule.layout.flatten(self.model)
                found = execution.path_losses(theta, steps, episodes, order, guard=self.guard)
                if found is not None:
                    return found
            x, y = episodes.query_x, episodes.query_y
            path = self.path(episodes.support_x, episodes.support_y, order=order, query_x=x)
            return self.execution.query_losses(self.end(path), x, y)

    def features(self, x: Tensor) -> Tensor:
        return self.execution.features(self.rule.layout.flatten(self.model).expand(len(x), -1), x)

    def adapted(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        query_x: Tensor | None = None,
        order: Order = "none",
        weights: Tensor | None = None,
    ) -> AdaptedTasks:
        if weights is None:
            path = self.path(support_x, support_y, order=order, query_x=query_x)
        else:
            order = "second" if weights.requires_grad else "none"
            context = WeightedContext(self, support_x, support_y, order=order, weights=weights)
            path = self.unroll(context, self.rule.steps)
            if self.guard:
                with torch.no_grad():
                    path.losses.append(self.losses_at(path.end, support_x, support_y))
        end, alone = self.end(path), None if weights is None else support_x
        return AdaptedTasks(
            features=lambda x: self.execution.features(end, x),
            outputs=lambda x: self.outputs_at(end, x, alone),
        )

    def _predictions(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor, level: QueryLevel, steps: int
    ) -> StepPredictions:
        with self._task_threads(len(support_x)):
            *outputs, reverted = self._run(self._predicted, steps, level, support_x, support_y, query_x)
        return StepPredictions(outputs, reverted)

    def adapt_each(self, support_x: Tensor, support_y: Tensor) -> list[tuple[nn.Module, StepPredictions]]:
        """Adapt to T tasks side by side."""
        check_tensors(support_x=support_x, support_y=support_y)
        with torch.no_grad(), explain_errors(self, support_x=support_x, support_y=support_y):
            ends, *outputs, reverted = self._run(self._end_and_predicted, support_x, support_y)
            statistics = self.execution.norm_statistics(ends, support_x)
        adapted = []
        for t, x in enumerate(support_x):
            network, one = self._network(ends[t : t + 1]), slice(t, t + 1)
            if statistics is None:
                freeze_batch_norm(network, x)
            else:
                set_statistics(network, {name: (m[t], v[t]) for name, (m, v) in statistics.items()})
            adapted.append((network, StepPredictions([o[one] for o in outputs], reverted[one])))
        return adapted

    def _run(self, function: Callable[..., Sequence[Tensor]], *arguments: Any) -> Sequence[Tensor]:
        return self.execution.run(self, function, *arguments)

    def _end(
        self, steps: int, support_x: Tensor, support_y: Tensor, query_x: Tensor | None = None
    ) -> list[Tensor]:
        """The end of the path, and the support loss at θ₀ if it was computed."""
        path = self.path(support_x, support_y, steps=steps, extend=True, query_x=query_x)
        return [self.end(path), *path.losses[:1]]

    def _predicted(
        self, steps: int, level: QueryLevel, support_x: Tensor, support_y: Tensor, query_x: Tensor
    ) -> list[Tensor]:
        seen = query_x if level == "joint" else None
        path = self.path(support_x, support_y, steps=steps, extend=True, query_x=seen)
        return self._outputs(path, query_x, support_x if level == "alone" else None)

    def _end_and_predicted(self, support_x: Tensor, support_y: Tensor) -> list[Tensor]:
        """The end of the path, then `_outputs` for the support set."""
        path = self.path(support_x, support_y)
        return [self.end(path), *self._outputs(path, support_x, support_x)]

    def _outputs(self, path: Trajectory, query_x: Tensor, support_x: Tensor | None) -> list[Tensor]:
        """Outputs for the queries at every point, then the tasks that the guard reverted."""
        steps = range(len(path.points))
        if query_x is support_x and path.outputs:  # the path has them already
            outputs = [path.guarded_outputs(j) if self.guard else path.outputs[j] for j in steps]
        else:
            outputs = [self._predict(self.end(path, j), query_x, support_x) for j in steps]
        reverted = path.reverted() if self.guard else query_x.new_zeros(len(query_x), dtype=torch.bool)
        return [*outputs, reverted]

    def _network(self, end: Tensor) -> nn.Module:
        """A copy of the model with the parameters of a single task, `[1, D]`."""
        return clone_with_parameters(self.model, self.rule.layout.views(end[0]))

    def _steps(self, steps: int | None, extend: bool) -> int:
        trained = self.rule.steps
        if steps is None:
            return trained
        if not 0 <= steps <= MAX_STEPS:
            raise UsageError(
                f"steps: {steps} is not allowed; must be 0 to {MAX_STEPS if extend else trained}"
            )
        if steps > trained and not extend:
            raise UsageError(
                f"is needed for {steps} steps, more than the {trained} the rule was trained for; it repeats "
                "the last step's coefficients",
                field="extend",
            )
        return steps


def require_path(learner: FewShotLearner) -> MetaLearner:
    """Narrow to `MetaLearner`, or raise if the method has no inner loop."""
    if not isinstance(learner, MetaLearner):
        raise UsageError(f"method: {type(learner).__name__} does not adapt step by step")
    return learner


def descends_support_loss(rule: Rule) -> bool:
    """True if the rule does not override `objective`, so that inner gradients need no autograd."""
    return type(rule).objective is Rule.objective


def _linear_steps(rule: Rule) -> LinearSteps | None:
    """`Rule.linear_steps`, or None if a subclass overrides the steps but not `linear_steps`."""
    for cls in type(rule).__mro__:
        if "linear_steps" in vars(cls):
            return rule.linear_steps()
        if {"step", "advance", "begin", "objective"} & set(vars(cls)):
            return None
    return None


def _normal(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is one of inference mode: autograd refuses these."""
    return tensor.clone() if tensor.is_inference() else tensor


def _check_layout(model: nn.Module, rule: Rule) -> None:
    """Raise if the rule was built for another network, or if a point would mix dtypes."""
    parameters = dict(model.named_parameters())
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    for entry in rule.layout.entries:
        if shapes.get(entry.name) != entry.shape:
            found = f"has shape {list(shapes[entry.name])}" if entry.name in shapes else "does not exist"
            raise UsageError(
                f"rule: it was built for another network; {entry.name} of shape {list(entry.shape)} {found} "
                "in the model"
            )
    dtypes = {str(parameters[entry.name].dtype) for entry in rule.layout.entries}
    if len(dtypes) > 1:
        raise UsageError(
            f"the parameters that adapt must have one dtype, got {' and '.join(sorted(dtypes))}; convert "
            "them, or adapt some of them only: Layout.of(model, adapted=…)",
            field="model",
        )
