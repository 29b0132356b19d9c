"""Batch norm whose statistics are settled: those of the support set, whoever asks afterwards.

Networks here normalise by the batch they see. For a person with one picture that is no good: an answer must
not depend on what else is asked. After this, each picture is answered by itself, as `--inductive` judges.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def settle_norms(network: nn.Module, support_x: Tensor) -> nn.Module:
    """Give every batch norm of `network` the statistics that `support_x [S, …]` has there, for good."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    handles = [norm.register_forward_pre_hook(_settle) for norm in norms]
    with torch.no_grad():
        network.train()
        network(support_x)
    for handle in handles:
        handle.remove()
    return network.eval()


def _settle(norm: _BatchNorm, arguments: tuple[Tensor, ...]) -> None:
    (x,) = arguments
    axes = (0, *range(2, x.ndim))
    norm.track_running_stats = True
    norm.running_mean = x.mean(axes)
    norm.running_var = x.var(axes, correction=0)  # as it normalises, not as running averages are kept
    norm.num_batches_tracked = torch.ones((), dtype=torch.long, device=x.device)
    # Used at once, so that deeper layers see what they will see later.
    norm.eval()
