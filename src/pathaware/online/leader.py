"""Follow the meta-leader (Finn, Rajeswaran, Kakade and Levine, ICML 2019, arXiv:1902.08438).

    θ ← θ − β ∇_θ Σ_{s ≤ t} L_s(U_s(θ))          some steps of Adam on all data sets so far
    φ ← U_t(θ)                                   then adapts to the one at hand

It keeps everything it has seen. U is gradient descent over items; those it descends and those it is judged on
are drawn anew each time, so that every example serves for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.learner import MetaLearner
from pathaware.losses import Loss
from pathaware.online.buffer import Item, Lesson
from pathaware.online.lessons import Replay
from pathaware.rules import GradientDescent


class Leader:
    """MAML on the data sets so far: `meta_steps` updates for each new one, of `replay` data sets each."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        rate: float,
        meta_rate: float,
        replay: int,
        meta_steps: int,
        held_out: int,
        steps: int,
        seed: int,
    ) -> None:
        self.meta = MetaLearner(model, GradientDescent(model, steps, rate=rate), loss, guard=False)
        self.paths = Replay(self.meta, steps)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=meta_rate)
        self.replay, self.meta_steps, self.held_out, self.steps = replay, meta_steps, held_out, steps
        self.seen: list[Sequence[Item]] = []
        self._generator = torch.Generator().manual_seed(seed)
        self._own_gradients = 0

    @property
    def gradients(self) -> int:
        return self._own_gradients + self.paths.gradients

    def learn(self, items: Sequence[Item]) -> None:
        self.seen.append(items)
        for _ in range(self.meta_steps):
            chosen = torch.randperm(len(self.seen), generator=self._generator)[: self.replay]
            lessons = [self._divided(self.seen[i]) for i in chosen.tolist()]
            self.optimiser.zero_grad()
            loss = self.paths.held_out_loss(lessons)
            loss.backward()
            if bool(loss.isfinite()):
                self.optimiser.step()
        self._adapt(items)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        return self.meta.predict(self._phi, x[None])[0]

    def _adapt(self, items: Sequence[Item]) -> None:
        rule = self.meta.rule
        self._phi = rule.layout.flatten(self.meta.model).detach()[None]
        for x, y in items:
            for _ in range(self.steps):
                _, slope = self.meta.gradient(self._phi, x[None], y[None])
                self._phi = rule.step(0, [self._phi], slope)
        self._own_gradients += len(items) * self.steps

    def _divided(self, items: Sequence[Item]) -> Lesson:
        order = [items[i] for i in torch.randperm(len(items), generator=self._generator).tolist()]
        held_out, learned = order[: self.held_out], order[self.held_out :]
        together = torch.cat([x for x, _ in held_out]), torch.cat([y for _, y in held_out])
        return Lesson(tuple(learned), together)
