"""Online meta-training (Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291, Algorithm 2).

    a new data set             φ ← θ
    item i, i mod k ≠ 0        φ ← φ − α₁ ∇_φ {L(φ) + λ/2 ‖φ − θ‖²}
    item i, i mod k = 0        into the buffer;  θ ← θ − α₂ ∇_θ L(φ⁺(θ)), L on held-out items

φ learns the current data set; θ is the initialisation from which the next one is learned. φ⁺(θ) is the end of
the φ-steps as a function of θ. The paper's line for θ is not well-formed, and its text does not explain it.
The algorithm is read as follows:

- The start of φ. Printed is φ¹₁ ← θ¹, once before the first data set, and no line sets φᵗ₁ for the others;
  here φ ← θ for every data set, at the call of `begin`.
- The dependence of φ⁺ on θ. `order="second"`: φ starts at θ and each step is pulled towards it, so the path
  over the items learned so far is repeated from the current θ and differentiated as a whole. `order="first"`
  leaves out the Hessians. Two readings take the line literally. `order="last"`: φ is constant but for its
  last step, in which θ appears in the regulariser only, so that ∂φ⁺/∂θ = α₁λ I. `order="pull"`: φ is
  constant, which leaves ∇_θ R = λ (θ − φ); θ moves towards φ, as in Reptile, whatever the held-out item is.
- The buffer. It keeps held-out items, each with the items learned before it, and an update of θ averages over
  the newest and some others: a single data set would draw θ to itself.
- The optimiser of θ. Adam, as in MAML; `descent="sgd"` is the printed update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathaware.core.episodes import check_tensors
from pathaware.core.errors import UsageError
from pathaware.core.learner import MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.parameters import clone_with_parameters
from pathaware.core.path import Order, unroll
from pathaware.core.settings import at_least, one_of
from pathaware.methods.imaml import ProximalDescent
from pathaware.online.buffer import Buffer, Forget, Item, ReplaySample, group_by_shape

OnlineOrder = Literal["second", "first", "last", "pull"]
Descent = Literal["adam", "sgd"]


class Replay:
    """Repeats paths over stored items from the current θ, `steps` steps of the learner's rule per item."""

    def __init__(self, learner: MetaLearner, steps: int, order: Order = "second") -> None:
        self.learner, self.steps, self.order = learner, steps, order
        self.gradients = 0
        """Number of gradients of an item's loss so far; a Hessian-vector product counts as one."""

    def held_out_loss(self, samples: Sequence[ReplaySample]) -> Tensor:
        """The mean loss on the held-out items after learning the others, differentiable in θ."""
        return torch.cat([self._losses(group) for group in group_by_shape(samples)]).mean()

    def _losses(self, samples: Sequence[ReplaySample]) -> Tensor:
        """Held-out losses `[T]` of T samples of equal shape."""
        learner, second = self.learner, self.order == "second"
        items = [_stack([sample.learned[i] for sample in samples]) for i in range(len(samples[0].learned))]

        def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            return learner.gradient_at(point, *items[j // self.steps], create_graph=second)

        start = learner.rule.layout.flatten(learner.model).expand(len(samples), -1)
        steps = len(items) * self.steps
        path = unroll(learner.rule, start, gradient, steps, order=self.order, guard=False)
        self.gradients += len(samples) * (steps * (2 if second else 1) + 1)
        return learner.execution.query_losses(path.end, *_stack([sample.held_out for sample in samples]))


def _stack(items: Sequence[Item]) -> Item:
    """Stack items of equal shape along a leading task axis."""
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


class OnlineLearner:
    """Learns one data set after another, item by item, and an initialisation for the next one.

    The model's parameters are θ; φ is a separate vector that learns the current data set.

    >>> from torch.nn.functional import mse_loss
    >>> learner = OnlineLearner(nn.Linear(1, 1), mse_loss, every=2)
    >>> for _ in range(3):  # data sets
    ...     learner.begin()
    ...     for _ in range(4):  # items of five examples
    ...         learner = learner.partial_fit(torch.randn(5, 1), torch.randn(5, 1))
    >>> learner.predict(torch.randn(7, 1)).shape, len(learner.buffer)
    (torch.Size([7, 1]), 6)

    - `rate`: α₁; `meta_rate`: α₂; `pull`: λ; `every`: k; `steps`: φ-steps per item.
    - `order`, `descent`: how the update of θ is read, see `pathaware.online.learner`.
    - `buffer`: the number of held-out items to keep; `forget`: which one a new one replaces, see `Buffer`.
    - `replay`: the number of held-out items that an update of θ averages over, including the newest;
      `meta_steps`: updates of θ per held-out item.
    - `trail`: how many of the last items of a data set are replayed. It bounds time and memory on data sets
      without end.
    - `seed`: the seed for drawing from the buffer.
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
        at_least(0, rate=rate, pull=pull, meta_rate=meta_rate, seed=seed)
        at_least(1, every=every, steps=steps, replay=replay, meta_steps=meta_steps, trail=trail)
        one_of(OnlineOrder, order=order)
        one_of(Descent, descent=descent)
        self.rule = ProximalDescent(model, steps, rate=rate, strength=pull)
        self.meta = MetaLearner(model, self.rule, loss, guard=False)
        self.paths = Replay(self.meta, steps, "second" if order == "second" else "first")
        self.every, self.steps, self.replay, self.meta_steps = every, steps, replay, meta_steps
        self.trail, self.order = trail, order
        self.buffer = Buffer(buffer, forget)
        make: Any = torch.optim.Adam if descent == "adam" else torch.optim.SGD
        self.optimiser: torch.optim.Optimizer = make(model.parameters(), lr=meta_rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._own_gradients = 0
        self.begin()

    @property
    def model(self) -> nn.Module:
        """The network, at θ."""
        return self.meta.model

    @property
    def theta(self) -> Tensor:
        """θ as one vector `[D]`; `rule.layout.views` gives its parts by name."""
        return self.rule.layout.flatten(self.model).detach()

    @property
    def phi(self) -> Tensor:
        """φ as one vector `[D]`."""
        return self._phi[0].clone()

    @property
    def gradients(self) -> int:
        """Number of gradients of an item's loss so far, as in `Replay`."""
        return self._own_gradients + self.paths.gradients

    def begin(self) -> None:
        """Start the next data set: φ ← θ."""
        self._phi = self.theta[None]
        self._items = 0
        self._learned: list[Item] = []

    def partial_fit(self, x: Tensor, y: Tensor) -> OnlineLearner:
        """Learn or hold out one item: a few examples `x [N, …]` and their targets `y [N, …]`."""
        check_tensors(x=x, y=y)
        if x.ndim == 0 or y.ndim == 0:
            raise UsageError("item: inputs and targets need an axis of examples; got a single number")
        if len(x) == 0 or len(x) != len(y):
            raise UsageError(
                f"item: {len(x)} inputs and {len(y)} targets are not allowed; equally many, at least 1"
            )
        self._items += 1
        item = x.detach().clone(), y.detach().clone()  # the caller may change the tensors
        if self._items % self.every:
            self._learn(item)
        else:
            self._hold_out(item)
        return self

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The network's outputs at φ for inputs `[N, …]`."""
        check_tensors(x=x)
        return self.meta.outputs_at(self._phi, x[None])[0]

    def network(self) -> nn.Module:
        """A copy of the network with parameters φ, independent of this learner."""
        return clone_with_parameters(self.model, self.rule.layout.views(self.phi))

    def meta_gradient(self, samples: Sequence[ReplaySample]) -> Tensor:
        """The gradient of θ, `[D]`, from these samples; the first one belongs to the current data set."""
        return self._loss_and_gradient(samples)[1]

    def _loss_and_gradient(self, samples: Sequence[ReplaySample]) -> tuple[Tensor, Tensor]:
        if self.order in ("last", "pull"):
            return self._without_the_path(samples[0])
        loss = self.paths.held_out_loss(samples)
        parameters = dict(self.model.named_parameters())
        adapted = [parameters[entry.name] for entry in self.rule.layout.entries]
        return loss, torch.cat([part.flatten() for part in torch.autograd.grad(loss, adapted)])

    def _learn(self, item: Item) -> None:
        theta = self.theta[None]
        x, y = (tensor[None] for tensor in item)
        for _ in range(self.steps):
            _, gradient = self.meta.gradient_at(self._phi, x, y)
            self._phi = self.rule.step(0, [theta, self._phi], gradient)
        self._own_gradients += self.steps
        self._learned = [*self._learned, item][-self.trail :]

    def _hold_out(self, item: Item) -> None:
        newest = ReplaySample(tuple(self._learned), item)
        whole_path = self.order in ("second", "first")
        others = self.replay - 1 if whole_path else 0  # φ has learned the current data set only
        for _ in range(self.meta_steps):
            samples = [newest, *self.buffer.draw(others, self._generator)]
            loss, gradient = self._loss_and_gradient(samples)
            if not _finite(loss, gradient):  # leave out the samples whose paths diverge
                samples = [each for each in samples if _finite(*self._loss_and_gradient([each]))]
                if not samples:
                    continue
                gradient = self.meta_gradient(samples)
            parameters = dict(self.model.named_parameters())
            for name, part in self.rule.layout.views(gradient).items():
                parameters[name].grad = part
            self.optimiser.step()
        if samples and samples[0] is newest:  # if it diverges, all draws with it would be computed one by one
            self.buffer.add(newest, self._generator)

    def _without_the_path(self, sample: ReplaySample) -> tuple[Tensor, Tensor]:
        """Loss and gradient where φ is constant.

        For `order="last"` but for its last step: ∂φ⁺/∂θ is α₁λ I, or I before the first step, where φ = θ.
        """
        x, y = (tensor[None] for tensor in sample.held_out)
        losses, gradient = self.meta.gradient_at(self._phi, x, y)
        self._own_gradients += 1
        if self.order == "pull":
            return losses, self.rule.strength * (self.theta - self._phi[0])
        return losses, gradient[0] * (self.rule.rate * self.rule.strength if sample.learned else 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The state from which a stopped stream resumes with identical numbers; `torch.save` can write it."""
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
        """Load the state of a learner with the same network and settings."""
        self.model.load_state_dict(state["model"])
        self.buffer.load_state_dict(state["buffer"])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))  # it would share the tensors
        self._generator.set_state(state["generator"])
        self._phi = state["phi"].clone()
        self._items = int(state["items"])
        self._learned = [(x, y) for x, y in state["learned"]]
        self._own_gradients, self.paths.gradients = state["gradients"]


def _finite(loss: Tensor, gradient: Tensor) -> bool:
    return bool(loss.isfinite().all() and gradient.isfinite().all())
