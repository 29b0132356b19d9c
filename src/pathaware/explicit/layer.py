"""What a layer must know for its part of a slope and of a Hessian-vector product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

Parameters = dict[str, Tensor]
"""A layer's parameters, or what belongs to each of them, by name; all with a leading task axis."""

Kept = list[Tensor]
"""What a layer remembers from one pass to the next."""


class FirstOrder(ABC):
    """The first two of a layer's passes, which a loss and its slope take."""

    @abstractmethod
    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]: ...

    @abstractmethod
    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        """May add to `kept` what later passes need."""


class Layer(FirstOrder):
    """Four passes, written `forward`, `backward`, and the derivative of each along one direction.

    With a loss L and a direction v in parameter space, d below is the derivative along v:

    | pass | from | to |
    |---|---|---|
    | `forward` | x | y |
    | `backward` | ∂L/∂y | ∂L/∂x; writes ∂L/∂(parameters) |
    | `tangent` | dx | dy |
    | `curve` | d(∂L/∂y) | d(∂L/∂x); writes d(∂L/∂(parameters)), this layer's part of the Hessian times v |

    Nothing of this is recorded by autograd. The first layer's input is constant: `dx` is None there and
    with `wanted` False no derivative with respect to it is computed.
    """

    @abstractmethod
    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, Any]:
        """dy, and whatever `curve` wants to find again."""

    @abstractmethod
    def curve(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: Any,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None: ...
