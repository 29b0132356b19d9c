"""`higher` (Grefenstette et al., 2019, arXiv:1910.01727), as its MAML example has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pathaware.bench.peers.base import Peer, add_to_gradient
from pathaware.losses import Loss
from pathaware.path import Order
from pathaware.tasks.episodes import Episodes


class Higher(Peer):
    name = title = module = "higher"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            fast = self._descend(model, support_x, support_y, loss, steps, rate, track=order == "second")
            query_loss = loss(fast(query_x), query_y) / len(episodes)
            if order == "second":
                query_loss.backward()
            else:
                gradients = torch.autograd.grad(query_loss, list(fast.parameters()))
                add_to_gradient(model.parameters(), gradients)

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        adapted: nn.Module = self._descend(model, x, y, loss, steps, rate, track=False)
        return adapted

    def _descend(
        self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float, *, track: bool
    ) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        context = self.library().innerloop_ctx(
            model, optimizer, copy_initial_weights=False, track_higher_grads=track
        )
        with context as (fast, descend):
            for _ in range(steps):
                descend.step(loss(fast(x), y))
        return fast
