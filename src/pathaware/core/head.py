"""Heads: adapt in closed form or by comparison, from features of the support set, without inner steps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.episodes import Episodes, check_tensors
from pathaware.core.errors import UsageError
from pathaware.core.execution import ExecutionName, engine
from pathaware.core.few_shot import (
    AdaptedTasks,
    FewShotLearner,
    QueryLevel,
    StepPredictions,
    check_kind,
    check_loss,
    check_outputs,
    check_support,
    explain_errors,
    refuse_running_statistics,
)
from pathaware.core.last_layer import last_linear, replace_last_linear
from pathaware.core.losses import IGNORED, Loss, per_task, wrong_label_shape, wrong_labels
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.parameters import refuse_lazy
from pathaware.core.path import Order, autocasts, differentiable_once, full_precision, on_host
from pathaware.core.rule import Allowed
from pathaware.core.settings import at_least

Fitted = tuple[Tensor, ...]
"""The tensors that a head computes from the support sets, each with a leading task axis."""
SMALLEST_SPREAD = 0.1
"""Added to the variances by which distances are measured, whose mean is one."""


class Head(nn.Module, ABC):
    """Replaces a network's last linear layer. Its learned coefficients are parameters of this module.

    `features` and `outputs` are that layer's sizes: F, and the number of classes or of values to predict.
    """

    allows: frozenset[Allowed] = frozenset({"more classes"})
    """See `Allowed`; `weights` if `fit_weighted` is overridden."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        refuse_lazy(network)
        _, replaced = last_linear(network)
        self.features, self.outputs = replaced.in_features, replaced.out_features

    def observe(self, features: Tensor, labels: Tensor) -> None:
        """Called once before training on a frozen network, with the features `[N, F]` of all training images
        and their classes `[N]`. Override it to take statistics."""

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        """Learned tensors in which classes are only a part of an axis. Maps each name to that axis and the
        sizes of the blocks along it. If the number of classes changes, `change_ways` converts each block by
        itself.
        """
        return {}

    @abstractmethod
    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        """Fit to `features [T, S, F]` and `targets [T, S]` (classes) or `[T, S, outputs]` (values)."""

    def fit_weighted(self, features: Tensor, targets: Tensor, weights: Tensor) -> Fitted:
        """`fit` with `weights [T, S]` of the examples in what is fitted, differentiable in the weights.

        Weights of one give the result of `fit`. Override it if the head can do this.
        """
        raise UsageError("this method cannot weigh its examples", field="weights")

    @abstractmethod
    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        """Logits or values `[T, Q, outputs]` for `features [T, Q, F]`."""

    def predict_inductive(self, fitted: Fitted, features: Tensor, support: Tensor) -> Tensor:
        """Predictions in which no query affects another. `support [T, S, F]` are the support set's features.

        Override it if `predict` normalises over queries, as batch norm of the head's own does.
        """
        return self.predict(fitted, features)

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """Training losses `[T]` for `features [T, Q, F]`; by default the problem's `loss`."""
        return loss(self.predict(fitted, features), targets)


def one_hot(targets: Tensor, classes: int, like: Tensor) -> Tensor:
    """One-hot rows `[T, S, classes]` of classes `[T, S]`, in the dtype of `like`; values stay unchanged."""
    if targets.is_floating_point():
        return targets
    known = torch.arange(classes, device=targets.device)  # `F.one_hot` reads values, so it cannot be traced
    return (targets[..., None] == known).to(like.dtype)


class WhitenedHead(Head):
    """A head that observes the covariance Σ of features within training classes, all of length one.

    With `adaptive` it also observes how far training images are from their mean, and with `anchors` the means
    of that many training classes. Without training features Σ is I, and all distances count as typical. A
    head that is not `whitened` observes nothing.
    """

    axes: Tensor
    """Eigenvectors of Σ, in columns."""
    spread: Tensor
    """Eigenvalues of Σ, divided by their mean."""
    middle: Tensor
    """The mean feature, along the axes."""
    typical: Tensor
    """The mean of training images' distances, and one over their standard deviation."""
    anchor_means: Tensor

    def __init__(self, network: nn.Module, *, whitened: bool, adaptive: bool, anchors: int) -> None:
        super().__init__(network)
        at_least(0, anchors=anchors)
        self.whitened, self.adaptive, self.anchors = whitened, adaptive, anchors
        if whitened:
            self.register_buffer("axes", torch.eye(self.features))
            self.register_buffer("spread", torch.ones(self.features))
        if adaptive:
            self.register_buffer("middle", torch.zeros(self.features))
            self.register_buffer("typical", torch.zeros(2))
        if anchors:
            self.register_buffer("anchor_means", torch.zeros(anchors, self.features))

    def observe(self, features: Tensor, labels: Tensor) -> None:
        """Estimate all statistics from features `[N, F]` of the training classes."""
        if not self.whitened:
            return
        unit = F.normalize(features.double(), dim=-1)
        classes = labels.unique()
        if self.anchors > len(classes):
            raise UsageError(
                f"anchors: {self.anchors} is not allowed; must be at most {len(classes)} (classes)"
            )
        means = torch.stack([unit[labels == k].mean(0) for k in classes])
        centred = torch.cat([unit[labels == k] - mean for k, mean in zip(classes, means, strict=True)])
        spread, axes = torch.linalg.eigh(centred.mT @ centred / len(centred))
        self.axes.copy_(axes)
        self.spread.copy_(spread.clamp(min=0) / spread.mean())
        if self.adaptive:
            self.middle.copy_(unit.mean(0) @ axes)
            distances = self.distances(unit.to(self.axes))
            self.typical.copy_(torch.stack([distances.mean(), 1 / distances.std()]))
        if self.anchors:
            self.anchor_means.copy_(means[torch.linspace(0, len(classes) - 1, self.anchors).round().long()])

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distances of features `[…, F]` from the mean of training features."""
        from_mean = F.normalize(features, dim=-1) @ self.axes - self.middle
        return (from_mean.square() / (self.spread + SMALLEST_SPREAD)).mean(-1)


class HeadLearner(FewShotLearner):
    """Embeds all examples with one network that tasks share, and adapts a head to each task.

    `model` is the network without its last linear layer. As in gradient-based methods, batch norm uses
    separate statistics for each task's support set and for its queries. `execution` may be `loop` or `vmap`
    to embed without the fused kernels for GPUs. With `torch.autocast` only the network computes in low
    precision: the linear systems and statistics of heads need that of their parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head,
        loss: Loss,
        *,
        meta_gradient: MetaGradient | None = None,
        execution: ExecutionName = "auto",
    ) -> None:
        super().__init__()
        check_kind(model, nn.Module, "model")
        check_kind(head, Head, "head")
        check_loss(loss)
        refuse_running_statistics(model)
        self.model = replace_last_linear(model, nn.Identity())
        self.replaced, last = last_linear(model)
        self.head = head.to(last.weight.device, last.weight.dtype)
        self.loss = loss
        self.meta_gradient = meta_gradient or Unrolled()
        fast = engine() if execution in ("auto", "batched") else None
        self.fused = fast.embedding(self.model) if fast is not None else None

    @property
    def allows(self) -> frozenset[Allowed]:
        return self.head.allows

    def features(self, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        """Features `[T, N, F]` of inputs `[T, N, …]`; with `support_x`, batch norm uses its statistics."""
        count = None
        support_x = None if support_x is None or self._inductive else support_x
        if support_x is None and self.fused is not None and self.fused.usable(x):
            return self.fused(x)
        if support_x is not None:
            count, x = support_x.shape[1], torch.cat([support_x, x], dim=1)
        with TaskStatistics(len(x), count):
            features = check_outputs(self.model(x.flatten(0, 1)))
        by_task: Tensor = features.flatten(1).unflatten(0, x.shape[:2])
        return _in_full_precision(self, by_task[:, count:])

    def _embed_support(self, x: Tensor) -> Tensor:
        """`features`; raise if the features are the outputs of a linear layer after the one that was removed.

        Other numbers of features than in training may come from larger images.
        """
        features = self.features(x)
        found = features.shape[2]
        if found != self.head.features:
            linear = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
            if any(layer.out_features == found for layer in linear):
                raise UsageError(
                    f"it must end in {self.replaced}, its linear layer that was registered last, which the "
                    f"head replaces; without it there are {found} features, not {self.head.features}",
                    field="model",
                )
        return features

    def fit(self, support_x: Tensor, support_y: Tensor) -> Fitted:
        """Fit the head to the support sets of T tasks, `support_x [T, S, …]`."""
        check_support(support_x, support_y)
        with explain_errors(self, support_x=support_x, support_y=support_y):
            self._check_targets(support_y)
            features = self._embed_support(support_x)
            with full_precision(features):
                return self.head.fit(features, support_y)

    def adapted_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The loss on each query set, `[T]`. `order` is ignored: there is no inner gradient."""
        with explain_errors(self, **episodes.named()):
            fitted = self.fit(episodes.support_x, episodes.support_y)
            self._check_labels(episodes.query_y, IGNORED)
            features = self.features(episodes.query_x)
            with full_precision(features):
                return self.head.losses(fitted, features, episodes.query_y, per_task(self.loss))

    def adapted(
        self, support_x: Tensor, support_y: Tensor, *, weights: Tensor | None = None, **unused: Any
    ) -> AdaptedTasks:
        if weights is None:
            fitted = self.fit(support_x, support_y)
            return AdaptedTasks(self.features, lambda x: self.head.predict(fitted, self.features(x)))
        with torch.no_grad():  # the network is the same whatever the weights
            support = self.features(support_x)
        weighted = self.head.fit_weighted(support, support_y, weights)

        def outputs(x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.features(x, support_x)
            return self.head.predict_inductive(weighted, features, support)

        return AdaptedTasks(self.features, outputs)

    def _predictions(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor, level: QueryLevel, steps: int
    ) -> StepPredictions:
        """Two predictions: zeros before adaptation, and those of the fitted head."""
        alone = level == "alone"
        self._check_targets(support_y)
        support = self._embed_support(support_x)
        features = self.features(query_x, support_x if alone else None)
        with full_precision(features):
            fitted = self.head.fit(support, support_y)
            if alone:
                after = self.head.predict_inductive(fitted, features, support)
            else:
                after = self.head.predict(fitted, features)
        reverted = torch.zeros(len(support_x), dtype=torch.bool)
        return StepPredictions([torch.zeros_like(after), after], reverted)

    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        """Fit the head to one task, `support_x [S, …]`; return copies of the network and the head."""
        check_tensors(support_x=support_x, support_y=support_y)
        with torch.no_grad():
            fitted = self.fit(support_x[None], support_y[None])
        frozen = not any(p.requires_grad for p in self.model.parameters())  # it never changes: no copy needed
        model = self.model if frozen else copy.deepcopy(self.model)
        return FittedNetwork(model, copy.deepcopy(self.head), fitted)

    def _check_targets(self, targets: Tensor) -> None:
        """Raise unless these are the targets of support sets, `[T, S]` (classes) or `[T, S, outputs]`."""
        if targets.is_floating_point():
            if targets.shape[2:] != (self.head.outputs,):
                expected = [targets.shape[1], self.head.outputs]
                raise UsageError(
                    f"targets: values or probabilities of a task must have shape {expected}, got "
                    f"{list(targets.shape[1:])}; if they are labels, call .long()"
                )
        elif targets.ndim > 2:
            raise wrong_label_shape(targets, targets.shape[1:2])
        self._check_labels(targets)

    def _check_labels(self, targets: Tensor, ignored: int | None = None) -> None:
        """Raise for a label that no output has: heads that compare labels would ignore it. Not on a GPU,
        where reading labels would be a sync."""
        if targets.dtype != torch.long or not on_host(targets):
            return
        least, most = (int(bound) for bound in targets.aminmax())
        negative = least < 0 and least != ignored and "any shots" not in self.allows
        if negative or most >= self.head.outputs:
            raise wrong_labels(targets, self.head.outputs)

    def for_classes(self, classes: int) -> HeadLearner | None:
        if "any shots" not in self.allows:
            return None
        changed, head = copy.copy(self), copy.copy(self.head)
        head.outputs = classes
        changed._modules = {**self._modules, "head": head}
        return changed


class FittedNetwork(nn.Module):
    """A network with a fitted head: inputs `[N, …]` → logits or values `[N, outputs]`."""

    def __init__(self, model: nn.Module, head: Head, fitted: Fitted) -> None:
        super().__init__()
        self.model, self.head, self.count = model, head, len(fitted)
        for i, tensor in enumerate(fitted):
            self.register_buffer(f"fitted{i}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        fitted = tuple(self.get_buffer(f"fitted{i}") for i in range(self.count))
        features = _in_full_precision(self, self.model(x).flatten(1)[None])
        with full_precision(features):
            return self.head.predict(fitted, features)[0]


def _in_full_precision(learner: nn.Module, features: Tensor) -> Tensor:
    """Features in the dtype of the parameters, if autocast has chosen another one."""
    return features.to(next(learner.parameters(), features).dtype) if autocasts(features) else features


# Linear systems of heads that are solved. `torch.linalg` leaves them to cuBLAS, cuSOLVER or MAGMA, depending
# on their size and number, and not all of these can be captured in a CUDA graph. Few-shot tasks have few
# examples, so elimination with one step per example is cheap.


class _Solve(torch.autograd.Function):
    """X = A⁻¹B for a symmetric A. Then B̄ = A⁻¹X̄ and Ā = −B̄Xᵀ, so A is inverted once."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        inverted = inverse(a)
        x = inverted @ b
        ctx.save_for_backward(inverted, x)
        return x

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inverted, x = ctx.saved_tensors
        with full_precision(gradient):
            b = inverted @ gradient
            return -b @ x.mT, b


def solve(a: Tensor, b: Tensor) -> Tensor:
    """X `[…, S, C]` with AX = B, for symmetric positive definite A `[…, S, S]` and B `[…, S, C]`.

    Differentiable once in both.
    """
    with full_precision(a):
        x: Tensor = _Solve.apply(a, b)
    return x


def inverse(a: Tensor) -> Tensor:
    """A⁻¹ for symmetric positive definite A `[…, S, S]`, by Gauss-Jordan steps

        A ← A − (A eₖ − eₖ)(eₖᵀ A + eₖᵀ) / Aₖₖ         for every row k

    There is no pivoting, which such matrices do not need. They are first scaled to a unit diagonal, so that
    pivots are at most one: with large pivots a step would subtract nearly equal numbers.
    """
    size = a.shape[-1]
    scale = a.diagonal(dim1=-2, dim2=-1).rsqrt()
    scales = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    unit = torch.eye(size, dtype=a.dtype, device=a.device)
    # The pivots of a singular matrix would be rounding errors. This keeps them positive, and changes the
    # matrix by no more than rounding does.
    a = a * scales + size * torch.finfo(a.dtype).eps * unit
    for k in range(size):
        column = a[..., :, k : k + 1] - unit[:, k : k + 1]
        row = (a[..., k : k + 1, :] + unit[k]) / a[..., k : k + 1, k : k + 1]
        a = a - column * row
    return a * scales
