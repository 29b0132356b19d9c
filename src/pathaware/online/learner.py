"""The φ-step of the paper's Algorithm 2.

φ ← φ − α₁ ∇_φ {L(φ) + λ/2 ‖φ − θ‖²} = φ − α₁ (∇L(φ) + λ (φ − θ))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.parameters import Layout, clone_with_parameters
from pathaware.core.path import Order, unroll
from pathaware.core.rule import Rule
from pathaware.core.settings import at_least
from pathaware.online.buffer import Buffer, Forget, Item, Lesson, by_shape


class ProximalDescent(Rule):
    """Gradient descent of a constant `rate` α₁ that a `pull` λ holds to the start of its path, θ."""

    def __init__(
        self, network: nn.Module | Layout, steps: int = 1, *, rate: float = 0.01, pull: float = 0.1
    ) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate, pull=pull)
        self.rate, self.pull = rate, pull

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        slope = torch.add(gradient, points[-1] - points[0], alpha=self.pull) if self.pull else gradient
        return torch.add(points[-1], slope, alpha=-self.rate)


# Paths over remembered items, from θ as it is now: what the gradient of θ is taken through.


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
        return learner.query_losses(path.end, *_stack([lesson.held_out for lesson in lessons]))


def _stack(items: Sequence[Item]) -> Item:
    """With a leading task axis."""
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


# OnlineLearner: the paper's Algorithm 2, "Online Meta-training", for any network.
#
#     a new data set             φ ← θ
#     item i, i mod k ≠ 0        φ ← φ − α₁ ∇_φ {L(φ) + λ/2 ‖φ − θ‖²}
#     item i, i mod k = 0        into the buffer;  θ ← θ − α₂ ∇_θ L(φ⁺(θ)), L on held-out items
#
# φ⁺(θ) is where φ-steps lead, as a function of θ. The line for θ in the paper is not well-formed and its text
# says nothing about it. What is open is read like this:
#
# - How φ⁺ depends on θ. `order="second"`: φ begins at θ and each step is pulled to it, so the path over the
#   items learned so far is followed once more from the θ of now, and differentiated as a whole. `order="first"`
#   leaves out the Hessians. `order="last"` takes the line at its word: φ is a constant but for its last step,
#   which has θ in its pull only, so that ∂φ⁺/∂θ = α₁λ I.
# - What the buffer is for. It keeps held-out items, each with the items learned before it, and an update of θ
#   averages over the newest and some others: a single data set would draw θ to itself.
# - How θ descends. With Adam, as MAML does; `descent="sgd"` is what is printed.


OnlineOrder = Literal["second", "first", "last"]
Descent = Literal["adam", "sgd"]
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


class OnlineLearner:
    """Learns data set after data set, item by item, and a start from which the next is learned faster.

    The model's own parameters are θ; φ is a vector of its own that learns the data set at hand.

    >>> from torch.nn.functional import mse_loss
    >>> learner = OnlineLearner(nn.Linear(1, 1), mse_loss, every=2)
    >>> for _ in range(3):  # data sets
    ...     learner.begin()
    ...     for _ in range(4):  # items of five examples
    ...         learner = learner.partial_fit(torch.randn(5, 1), torch.randn(5, 1))
    >>> learner.predict(torch.randn(7, 1)).shape, len(learner.buffer)
    (torch.Size([7, 1]), 6)

    - `rate` α₁, `meta_rate` α₂, `pull` λ, `every` k, `order` and `descent` as above.
    - `steps`: φ-steps on each item.
    - `buffer`: how many held-out items are kept; `forget`: which goes for a new one, see `Buffer`.
    - `replay`: how many of them an update of θ is averaged over, the newest included; `meta_steps`: how many
      updates a held-out item brings.
    - `trail`: at most so many items of a data set, the last learned, are followed again. It bounds time
      and memory where a data set does not end.
    - `seed`: of what is drawn from the buffer.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        rate: float = 0.01,
        meta_rate: float = 3e-3,
        pull: float = 0.1,
        every: int = 4,
        steps: int = 1,
        buffer: int = 200,
        forget: Forget = "reservoir",
        replay: int = 8,
        meta_steps: int = 1,
        trail: int = 20,
        order: OnlineOrder = "second",
        descent: Descent = "adam",
        seed: int = 0,
    ) -> None:
        at_least(0, meta_rate=meta_rate, seed=seed)
        at_least(1, every=every, steps=steps, replay=replay, meta_steps=meta_steps, trail=trail)
        for name, value, known in (("order", order, OnlineOrder), ("descent", descent, Descent)):
            if value not in get_args(known):
                raise UsageError(f"{name}: {value!r} is none of {', '.join(get_args(known))}")
        self.rule = ProximalDescent(model, steps, rate=rate, pull=pull)
        self.meta = MetaLearner(model, self.rule, loss, guard=False)
        self.paths = Replay(self.meta, steps, "second" if order == "second" else "first")
        self.every, self.steps, self.replay, self.meta_steps = every, steps, replay, meta_steps
        self.trail, self.order = trail, order
        self.buffer = Buffer(buffer, forget)
        self.optimiser = OPTIMISERS[descent](model.parameters(), lr=meta_rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._own_gradients = 0
        self.begin()

    @property
    def model(self) -> nn.Module:
        """The network, at θ."""
        return self.meta.model

    @property
    def theta(self) -> Tensor:
        """θ as one vector `[D]`; `rule.layout.views` tells its parts by name."""
        return self.rule.layout.flatten(self.model).detach()

    @property
    def phi(self) -> Tensor:
        """φ, likewise."""
        return self._phi[0].clone()

    @property
    def gradients(self) -> int:
        """How many gradients of an item's loss were computed; a product with its Hessian counts as one."""
        return self._own_gradients + self.paths.gradients

    def begin(self) -> None:
        """The next data set: φ ← θ."""
        self._phi = self.theta[None]
        self._items = 0
        self._learned: list[Item] = []

    def partial_fit(self, x: Tensor, y: Tensor) -> OnlineLearner:
        """One item: a few examples `x [N, …]` and their targets `y [N, …]`."""
        if len(x) == 0 or len(x) != len(y):
            raise UsageError(f"item: {len(x)} inputs and {len(y)} targets; as many of both, at least 1")
        self._items += 1
        item = x.detach().clone(), y.detach().clone()  # kept, whatever becomes of the caller's tensors
        if self._items % self.every:
            self._learn(item)
        else:
            self._hold_out(item)
        return self

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The network's outputs at φ for inputs `[N, …]`."""
        return self.meta.predict(self._phi, x[None])[0]

    def network(self) -> nn.Module:
        """A copy of the network with φ for its parameters, which needs this learner no more."""
        return clone_with_parameters(self.model, self.rule.layout.views(self.phi))

    def meta_gradient(self, lessons: Sequence[Lesson]) -> Tensor:
        """The gradient of θ, `[D]`, from these lessons; the first of them is the data set at hand's."""
        if self.order == "last":
            return self._through_the_last_step(lessons[0])
        loss = self.paths.held_out_loss(lessons)
        parameters = dict(self.model.named_parameters())
        wanted = [parameters[entry.name] for entry in self.rule.layout.entries]
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, wanted)])

    def _learn(self, item: Item) -> None:
        theta = self.theta[None]
        x, y = (tensor[None] for tensor in item)
        for _ in range(self.steps):
            _, slope = self.meta.gradient(self._phi, x, y)
            self._phi = self.rule.step(0, [theta, self._phi], slope)
        self._own_gradients += self.steps
        self._learned = [*self._learned, item][-self.trail :]

    def _hold_out(self, item: Item) -> None:
        newest = Lesson(tuple(self._learned), item)
        for _ in range(self.meta_steps):
            lessons = [newest, *self.buffer.draw(self.replay - 1, self._generator)]
            gradient = self.meta_gradient(lessons)
            if not _finite(gradient):  # a path that ran away has nothing to say; the others have
                lessons = [each for each in lessons if _finite(self.meta_gradient([each]))]
                if not lessons:
                    continue
                gradient = self.meta_gradient(lessons)
            parameters = dict(self.model.named_parameters())
            for name, part in self.rule.layout.views(gradient).items():
                parameters[name].grad = part
            self.optimiser.step()
        self.buffer.add(newest, self._generator)

    def _through_the_last_step(self, lesson: Lesson) -> Tensor:
        """∂φ⁺/∂θ is α₁λ I; or I while φ has taken no step, for it began at θ."""
        x, y = (tensor[None] for tensor in lesson.held_out)
        _, slope = self.meta.gradient(self._phi, x, y)
        self._own_gradients += 1
        return slope[0] * (self.rule.rate * self.rule.pull if lesson.learned else 1.0)

    def state_dict(self) -> dict[str, Any]:
        """All that a stopped stream needs to go on with the same bits; `torch.save` can write it."""
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "phi": self._phi.clone(),
            "items": self._items,
            "learned": list(self._learned),
            "buffer": self.buffer.state_dict(),
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "generator": self._generator.get_state(),
            "gradients": [self._own_gradients, self.paths.gradients],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into a learner of the same network and settings."""
        self.model.load_state_dict(state["model"])
        self.buffer.load_state_dict(state["buffer"])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))  # it would share the tensors
        self._generator.set_state(state["generator"])
        self._phi = state["phi"].clone()
        self._items = int(state["items"])
        self._learned = [(x, y) for x, y in state["learned"]]
        self._own_gradients, self.paths.gradients = state["gradients"]


def _finite(gradient: Tensor) -> bool:
    return bool(gradient.isfinite().all())
