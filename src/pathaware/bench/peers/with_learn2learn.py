"""learn2learn (Arnold et al., 2020, arXiv:2008.12284), as its MAML example has it.

The module is named in full: `maml` and what it uses are plain Python, and run from a folder that holds no
more than them where the rest of the package cannot be built (0.2.0 needs qpth, which no longer installs).
"""

from __future__ import annotations

from torch import Tensor, nn

from pathaware.bench.peers.base import Peer
from pathaware.losses import Loss
from pathaware.path import Order
from pathaware.tasks.episodes import Episodes


class Learn2Learn(Peer):
    name = title = "learn2learn"
    module = "learn2learn.algorithms.maml"

    def backward(
        self, model: nn.Module, episodes: Episodes, loss: Loss, steps: int, rate: float, order: Order
    ) -> None:
        maml = self.library().MAML(model, lr=rate, first_order=order == "first")
        for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
            learner = maml.clone()
            for _ in range(steps):
                learner.adapt(loss(learner(support_x), support_y))
            (loss(learner(query_x), query_y) / len(episodes)).backward()

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, steps: int, rate: float) -> nn.Module:
        learner = self.library().MAML(model, lr=rate, first_order=True).clone()
        for _ in range(steps):
            learner.adapt(loss(learner(x), y))
        adapted: nn.Module = learner
        return adapted
