"""Per-task losses `[T]` from an ordinary loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[N, …]`, targets `[N, …]`) → a scalar, such as `F.mse_loss` or `nn.CrossEntropyLoss()`."""

IGNORED = nn.CrossEntropyLoss().ignore_index
"""The label of an example that the cross-entropy ignores."""


def per_task_loop(loss: Loss) -> Loss:
    """Apply any loss to one task after another."""
    compares = loss is F.mse_loss or type(loss) is nn.MSELoss
    classifies = loss is F.cross_entropy or type(loss) is nn.CrossEntropyLoss

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        if compares:
            check_shapes(outputs, targets)
        if classifies:
            _check_labels(outputs, targets)
        try:
            values = [loss(o, t) for o, t in zip(outputs, targets, strict=True)]
        except IndexError:
            if classifies:
                raise wrong_labels(targets, outputs.shape[2]) from None
            raise
        if not isinstance(values[0], Tensor):
            raise UsageError(f"loss: it must return a tensor, got {type(values[0]).__name__}")
        found = torch.stack(values)
        if found.ndim != 1:
            raise UsageError(
                f"loss: it must return one number per task, not a tensor of shape {list(found.shape[1:])}; "
                "use a mean or a sum"
            )
        return found

    return losses


def per_task(loss: Loss) -> Loss:
    """The batched form of a known loss, as it is now, else a loop over tasks."""
    if loss is F.mse_loss or _is_plain_mean_squared_error(loss):
        return mean_squared_error
    if loss is F.cross_entropy or _is_plain_cross_entropy(loss):
        return cross_entropy
    return per_task_loop(loss)


def _is_plain_mean_squared_error(loss: Loss) -> bool:
    return type(loss) is nn.MSELoss and loss.reduction == "mean" and not _is_changed(loss)


def _is_changed(loss: nn.Module) -> bool:
    """True if calling a module does more than its class says."""
    hooks = loss._forward_hooks, loss._forward_pre_hooks, loss._backward_hooks, loss._backward_pre_hooks
    return any(hooks) or "forward" in vars(loss)


def _is_plain_cross_entropy(loss: Loss) -> bool:
    return (
        type(loss) is nn.CrossEntropyLoss
        and not _is_changed(loss)
        and loss.weight is None
        and loss.reduction == "mean"
        and loss.label_smoothing == 0
        and loss.ignore_index == IGNORED
    )


def check_shapes(outputs: Tensor, targets: Tensor) -> None:
    """Raise if the shapes of outputs and targets, `[T, N, …]`, differ: they would be broadcast."""
    if outputs.shape != targets.shape:
        per_example = list(outputs.shape[1:]), list(targets.shape[1:])
        raise UsageError(
            f"targets: the outputs of a task have shape {per_example[0]}, its targets {per_example[1]}; "
            "the mean squared error needs equal shapes"
        )


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    """Raise if targets are neither labels nor probabilities that PyTorch's cross-entropy takes."""
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            raise UsageError(
                f"targets: probabilities must have the shape of a task's outputs, {list(outputs.shape[1:])}, "
                f"not {list(targets.shape[1:])}; if they are labels, call .long()"
            )
        return
    if targets.dtype not in (torch.long, torch.uint8):
        raise UsageError(f"targets: labels must be of dtype torch.long, not {targets.dtype}; call .long()")
    if targets.shape != outputs.shape[:2] + outputs.shape[3:]:
        raise wrong_label_shape(targets, outputs.shape[1:2] + outputs.shape[3:])


def wrong_label_shape(targets: Tensor, expected: Sequence[int]) -> UsageError:
    """The error for integer targets `[T, N, …]` that are not one label per example."""
    return UsageError(
        f"targets: the labels of a task must have shape {list(expected)}, got {list(targets.shape[1:])}; if "
        "they are one-hot, call .argmax(-1)"
    )


def wrong_labels(targets: Tensor, classes: int) -> UsageError:
    """The error for labels that are not those of the network's classes."""
    found = f"{int(targets.min())} to {int(targets.max())}"
    return UsageError(f"targets: with {classes} outputs, labels must be 0 to {classes - 1}, got {found}")


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    check_shapes(outputs, targets)
    return (outputs - targets).square().flatten(1).mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    _check_labels(outputs, targets)
    try:
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    except IndexError:
        raise wrong_labels(targets, outputs.shape[2]) from None
    mean = each.view(len(targets), -1).mean(1)
    if targets.is_floating_point():  # probabilities: no example is ignored
        return mean
    labels = targets.flatten(1)
    return mean * (labels.shape[1] / (labels != IGNORED).sum(1)).to(mean.dtype)
