"""Override the statistics that batch norm uses, without changing the model.

By convention a query set is normalised by its own statistics. Every prediction then depends on the other
queries, which is called transductive. For inductive predictions the statistics must come from the support set
alone: `TaskStatistics` takes them from there for one forward pass, `freeze_batch_norm` permanently.
`FrozenBatchNorm` uses the running statistics that come with a pretrained network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode


class TaskStatistics(TorchFunctionMode):
    """A context in which `F.batch_norm` uses the statistics of each of `tasks` tasks separately.

    Batch norm sees the examples of all tasks as one batch `[tasks · N, C, …]`. With `count`, mean and
    variance come from the first `count` examples of each task: put the support set there. The context
    replaces the function, not modules, so it serves every execution.
    """

    def __init__(self, tasks: int = 1, count: int | None = None) -> None:
        super().__init__()
        self.tasks, self.count = tasks, count

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        data: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        out = self._normalise(data, eps)
        shape = (1, -1, *(1,) * (data.ndim - 2))
        if weight is not None:
            out = out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)

    def _normalise(self, data: Tensor, eps: float) -> Tensor:
        """Normalise to zero mean and unit variance."""
        by_task: Tensor = data.unflatten(0, (self.tasks, -1))
        if self.count is None:
            columns = by_task.transpose(0, 1).flatten(1, 2)  # [N, T·C, …]: each task has its own channels
            out: Tensor = F.batch_norm(columns, None, None, training=True, eps=eps).unflatten(
                1, (self.tasks, -1)
            )
            return out.transpose(0, 1).flatten(0, 1)
        axes = (1, *range(3, by_task.ndim))
        mean, variance = _moments(by_task[:, : self.count], axes)
        return ((by_task - mean) * (variance + eps).rsqrt()).flatten(0, 1)


class FrozenBatchNorm(nn.Module):
    """Batch norm with constant statistics, those that a pretrained network has collected.

    Statistics are the same in training and evaluation, so that no image affects another. `weight` and `bias`
    are ordinary parameters, and the names in the state are those of PyTorch's batch norm. `folded` names the
    bias of a convolution that the mean contains, see `pathaware.models.traced.fold_biases`.
    """

    running_mean: Tensor
    running_var: Tensor
    folded: str = ""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps, self.replaced = norm.eps, type(norm)
        self.weight, self.bias = norm.weight, norm.bias
        zeros, ones = torch.zeros(norm.num_features), torch.ones(norm.num_features)
        self.register_buffer("running_mean", zeros if norm.running_mean is None else norm.running_mean)
        self.register_buffer("running_var", ones if norm.running_var is None else norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.running_var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        shift = shift if self.bias is None else shift + self.bias
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return torch.addcmul(shift.view(shape), x, scale.view(shape))

    def to_batch_norm(self) -> _BatchNorm:
        """PyTorch's batch norm of the same outputs in evaluation mode, for programs without this class."""
        norm = self.replaced(len(self.running_mean), self.eps, affine=self.weight is not None)
        norm.to(self.running_mean).load_state_dict(self.state_dict(), strict=False)  # all but a counter
        return norm.eval()


def freeze_running_statistics(model: nn.Module, *, all_norms: bool = False) -> nn.Module:
    """Replace every batch norm that keeps running statistics by a `FrozenBatchNorm`, in place.

    With `all_norms` also those that keep none, for a network whose weights are loaded later.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm) and (all_norms or module.track_running_stats):
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, FrozenBatchNorm(module))
    return model


def freeze_batch_norm(network: nn.Module, support_x: Tensor) -> nn.Module:
    """Freeze batch norm to the support set's statistics.

    Every batch norm of `network` is given the mean and variance that `support_x [S, …]` has at that layer,
    and the network is put in evaluation mode. Each image is then predicted independently of all others.
    """
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    handles = [norm.register_forward_pre_hook(_freeze) for norm in norms]
    if handles:
        with torch.no_grad():
            network.train()
            network(support_x)
    for handle in handles:
        handle.remove()
    return network.eval()


def set_statistics(network: nn.Module, statistics: Mapping[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """Freeze batch norm to these means and variances, by the names of the norms; see `freeze_batch_norm`."""
    for name, (mean, variance) in statistics.items():
        norm = network.get_submodule(name)
        assert isinstance(norm, _BatchNorm)
        _set(norm, mean, variance)
    return network.eval()


def _freeze(norm: _BatchNorm, arguments: tuple[Tensor, ...]) -> None:
    (x,) = arguments
    _set(norm, *_moments(x, (0, *range(2, x.ndim))))
    norm.eval()  # before its forward pass, so that deeper layers see what they will see later


def _set(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    norm.track_running_stats = True
    norm.running_mean, norm.running_var = mean.flatten(), variance.flatten()
    norm.num_batches_tracked = torch.ones((), dtype=torch.long, device=mean.device)


def _moments(data: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `axes`, which are kept; batch norm itself normalises with these."""
    mean = data.mean(axes, keepdim=True)
    return mean, (data - mean).square().mean(axes, keepdim=True)  # `var` is many times slower on a CPU
