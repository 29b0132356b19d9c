"""What tests of kernels share: where they run, and a comparison of values and two derivatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.conftest import distance

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.float32 if CUDA else torch.float64
CLOSE = 3e-5 if CUDA else 1e-12


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, DTYPE).requires_grad_()


def derivatives(operation: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Value, gradient, and the gradient of a projection of the gradient."""
    torch.manual_seed(1)
    z = operation(*inputs)
    wanted = [i for i in inputs if i.requires_grad]
    weights = torch.rand(z.shape, dtype=torch.float64).to(z)
    gradients = torch.autograd.grad((z * z * weights).sum(), wanted, create_graph=True)
    along = [torch.randn(g.shape, dtype=torch.float64).to(g) for g in gradients]
    second = torch.autograd.grad(sum((g * v).sum() for g, v in zip(gradients, along, strict=True)), wanted)
    return [z, *gradients, *second]


def assert_same(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor, close: float = CLOSE
) -> None:
    """Theirs in float64, where PyTorch's layers do not round to TF32."""
    exact = [i.detach().double().requires_grad_(i.requires_grad) for i in inputs]
    for one, other in zip(derivatives(ours, *inputs), derivatives(theirs, *exact), strict=True):
        assert distance(one, other) < close
