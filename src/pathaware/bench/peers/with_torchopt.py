"""TorchOpt (Ren et al., 2022, arXiv:2211.06934), as its MAML example has it.

Its inner step always builds the graph of second derivatives. First order and adaptation cut that graph
after every step with `stop_gradient`; there is no way to ask it not to build one.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pathaware.bench.peers.base import Peer, add_to_gradient
from pathaware.losses import Loss
from pathaware.path import Order
from pathaware.tasks.episodes import Episodes


class TorchOpt(Peer):
    name = module = "torchopt"
    title = "TorchOpt"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        torchopt = self.library()
        start = list(model.parameters())
        optimizer = torchopt.MetaSGD(model, lr=rate)
        network_state = torchopt.extract_state_dict(model, by="reference")
        optimizer_state = torchopt.extract_state_dict(optimizer, by="reference")
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            for _ in range(steps):
                optimizer.step(loss(model(support_x), support_y))
                if order == "first":
                    torchopt.stop_gradient(model)
            query_loss = loss(model(query_x), query_y) / len(episodes)
            if order == "second":
                query_loss.backward()
            else:
                add_to_gradient(start, torch.autograd.grad(query_loss, list(model.parameters())))
            torchopt.recover_state_dict(model, network_state)
            torchopt.recover_state_dict(optimizer, optimizer_state)

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        torchopt = self.library()
        adapted = copy.deepcopy(model)
        optimizer = torchopt.MetaSGD(adapted, lr=rate)
        for _ in range(steps):
            optimizer.step(loss(adapted(x), y))
            torchopt.stop_gradient(adapted)
        return adapted
