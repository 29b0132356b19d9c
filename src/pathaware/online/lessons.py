"""Paths over remembered items, from θ as it is now: what the gradient of θ is taken through."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathaware.learner import MetaLearner
from pathaware.online.buffer import Item, Lesson, by_shape
from pathaware.path import Order, unroll


class Replay:
    """Follows a learner's rule over the items of lessons, `steps` steps on each, and judges where it ends."""

    def __init__(self, learner: MetaLearner, steps: int, order: Order = "second") -> None:
        self.learner, self.steps, self.order = learner, steps, order
        self.gradients = 0
        """Of an item's loss, computed so far; a product with its Hessian counts as one more."""

    def held_out_loss(self, lessons: Sequence[Lesson]) -> Tensor:
        """Mean loss on the held-out items after learning the others, differentiable in θ."""
        return torch.cat([self._losses(group) for group in by_shape(lessons)]).mean()

    def _losses(self, lessons: Sequence[Lesson]) -> Tensor:
        """Of T lessons of one shape: `[T]`."""
        learner, second = self.learner, self.order == "second"
        items = [_stack([lesson.learned[i] for lesson in lessons]) for i in range(len(lessons[0].learned))]

        def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            return learner.gradient(point, *items[j // self.steps], create_graph=second)

        start = learner.rule.layout.flatten(learner.model).expand(len(lessons), -1)
        steps = len(items) * self.steps
        path = unroll(learner.rule, start, gradient, steps, order=self.order, guard=False)
        self.gradients += len(lessons) * (steps * (2 if second else 1) + 1)
        return learner.judge(path.end, *_stack([lesson.held_out for lesson in lessons]))


def _stack(items: Sequence[Item]) -> Item:
    """With a leading task axis."""
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
