"""The learners that are compared: each learns the items of a data set, then predicts its test examples.

| name | initialisation for a data set | learns from |
|---|---|---|
| `online` | θ of `OnlineLearner`, Algorithm 2 of PAMELA's paper | all items but every k-th |
| `literal` | the same with `order="last"` | all items but every k-th |
| `leader` | θ of `FollowTheMetaLeader` | all items |
| `tuning` | the parameters after the previous data set | all items |
| `scratch` | a newly initialised network | all items |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, get_type_hints

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError, did_you_mean, no_such_setting
from pathaware.core.learner import MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.settings import at_least, coerce
from pathaware.methods.maml import GradientDescent
from pathaware.online.buffer import Forget, Item, ReplaySample
from pathaware.online.learner import Descent, OnlineLearner, OnlineOrder, Replay
from pathaware_research.online.streams import Stream


@dataclass(frozen=True)
class StreamSetup:
    """The setup that all learners share: stream, steps per item, and k, where every k-th item is held out."""

    stream: Stream
    steps: int = 1
    every: int = 4

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, every=self.every)
        if self.every > self.stream.items:
            raise UsageError(
                f"every: {self.every} is more than the {self.stream.items} items of a data set; "
                "none would be held out"
            )


class StreamLearner(Protocol):
    """Learns the data sets of one stream, one after another."""

    @property
    def gradients(self) -> int:
        """Number of gradients of an item's loss so far; a Hessian-vector product counts as one."""
        ...

    def learn(self, items: Sequence[Item]) -> None:
        """Learn the next data set."""
        ...

    def predict(self, x: Tensor) -> Tensor:
        """Outputs for inputs `[N, …]` of that data set."""
        ...


class LearnerSettings(Protocol):
    """A dataclass with the settings of a learner."""

    def build(self, setup: StreamSetup, seed: int) -> StreamLearner: ...


class FineTuning:
    """Gradient descent over the items of each data set, from the parameters after the previous one."""

    def __init__(self, model: nn.Module, loss: Loss, *, rate: float, steps: int) -> None:
        self.steps, self.own_gradients = steps, 0
        self.meta = MetaLearner(model, GradientDescent(model, steps, rate=rate), loss, guard=False)
        self.restart(model)

    @property
    def gradients(self) -> int:
        return self.own_gradients

    def restart(self, model: nn.Module) -> None:
        """Continue from the parameters of `model`."""
        self.point = self.meta.rule.layout.flatten(model).detach()[None]

    def learn(self, items: Sequence[Item]) -> None:
        for x, y in items:
            for _ in range(self.steps):
                _, gradient = self.meta.gradient_at(self.point, x[None], y[None])
                self.point = self.meta.rule.step(0, [self.point], gradient)
        self.own_gradients += len(items) * self.steps

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        return self.meta.outputs_at(self.point, x[None])[0]


class FromScratch(FineTuning):
    """Gradient descent from a newly initialised network for every data set."""

    def __init__(self, setup: StreamSetup, seed: int, rate: float) -> None:
        self.stream, self.seed, self.position = setup.stream, seed, 0
        loss = setup.stream.problem.loss
        super().__init__(setup.stream.network(seed), loss, rate=rate, steps=setup.steps)

    def learn(self, items: Sequence[Item]) -> None:
        self.restart(self.stream.network(self.seed, self.position))
        self.position += 1
        super().learn(items)


class FollowTheMetaLeader(FineTuning):
    """Follow the meta-leader (Finn, Rajeswaran, Kakade and Levine, ICML 2019, arXiv:1902.08438).

        θ ← θ − β ∇_θ Σ_{s ≤ t} L_s(U_s(θ))          some steps of Adam on all data sets so far
        φ ← U_t(θ)                                   then adapts to the one at hand

    MAML on all data sets so far, which it stores: `meta_steps` updates per new data set, each on `replay`
    randomly drawn ones. U is gradient descent over items. `held_out` items, drawn anew every time, are the
    query set, so that every example serves for both.
    """

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
        super().__init__(model, loss, rate=rate, steps=steps)
        self.paths = Replay(self.meta, steps)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=meta_rate)
        self.replay, self.meta_steps, self.held_out = replay, meta_steps, held_out
        self.seen: list[Sequence[Item]] = []
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def gradients(self) -> int:
        return self.own_gradients + self.paths.gradients

    def learn(self, items: Sequence[Item]) -> None:
        self.seen.append(items)
        for _ in range(self.meta_steps):
            chosen = torch.randperm(len(self.seen), generator=self._generator)[: self.replay]
            samples = [self._sample(self.seen[i]) for i in chosen.tolist()]
            self.optimiser.zero_grad()
            loss = self.paths.held_out_loss(samples)
            loss.backward()
            if bool(loss.isfinite()):
                self.optimiser.step()
        self.restart(self.meta.model)
        super().learn(items)

    def _sample(self, items: Sequence[Item]) -> ReplaySample:
        """Hold out randomly drawn items of a data set."""
        order = [items[i] for i in torch.randperm(len(items), generator=self._generator).tolist()]
        held_out, learned = order[: self.held_out], order[self.held_out :]
        joined = torch.cat([x for x, _ in held_out]), torch.cat([y for _, y in held_out])
        return ReplaySample(tuple(learned), joined)


class _Online(OnlineLearner):
    def learn(self, items: Sequence[Item]) -> None:
        self.begin()
        for x, y in items:
            self.partial_fit(x, y)


@dataclass(frozen=True)
class OnlineSettings:
    """Settings of `OnlineLearner`."""

    rate: float = 0.01
    meta_rate: float = 3e-3
    pull: float = 0.1
    buffer: int = 200
    forget: Forget = "reservoir"
    replay: int = 8
    meta_steps: int = 2
    trail: int = 20
    order: OnlineOrder = "second"
    descent: Descent = "adam"

    def __post_init__(self) -> None:
        at_least(0, rate=self.rate, meta_rate=self.meta_rate, pull=self.pull)
        at_least(1, buffer=self.buffer, replay=self.replay, meta_steps=self.meta_steps, trail=self.trail)

    def build(self, setup: StreamSetup, seed: int) -> StreamLearner:
        network, loss = setup.stream.network(seed), setup.stream.problem.loss
        return _Online(network, loss, **asdict(self), every=setup.every, steps=setup.steps, seed=seed)


@dataclass(frozen=True)
class FTMLSettings:
    """Settings of `FollowTheMetaLeader`; `meta_steps` is per held-out item, as in `OnlineSettings`."""

    rate: float = 0.01
    meta_rate: float = 3e-3
    replay: int = 8
    meta_steps: int = 2

    def __post_init__(self) -> None:
        at_least(0, rate=self.rate, meta_rate=self.meta_rate)
        at_least(1, replay=self.replay, meta_steps=self.meta_steps)

    def build(self, setup: StreamSetup, seed: int) -> StreamLearner:
        held_out = max(1, setup.stream.items // setup.every)
        return FollowTheMetaLeader(
            setup.stream.network(seed),
            setup.stream.problem.loss,
            rate=self.rate,
            meta_rate=self.meta_rate,
            replay=self.replay,
            meta_steps=self.meta_steps * held_out,
            held_out=held_out,
            steps=setup.steps,
            seed=seed,
        )


@dataclass(frozen=True)
class DescentSettings:
    """Settings of `FineTuning` or, if `fresh`, of `FromScratch`."""

    rate: float = 0.01
    fresh: bool = False

    def __post_init__(self) -> None:
        at_least(0, rate=self.rate)

    def build(self, setup: StreamSetup, seed: int) -> StreamLearner:
        if self.fresh:
            return FromScratch(setup, seed, self.rate)
        network, loss = setup.stream.network(seed), setup.stream.problem.loss
        return FineTuning(network, loss, rate=self.rate, steps=setup.steps)


BASELINES: dict[str, tuple[str, LearnerSettings]] = {
    "online": ("online, Algorithm 2", OnlineSettings()),
    "literal": ("online, last step only", OnlineSettings(order="last")),
    "leader": ("follow the meta-leader", FTMLSettings()),
    "tuning": ("fine-tuning, never reset", DescentSettings()),
    "scratch": ("from scratch", DescentSettings(fresh=True)),
}
"""Label and default settings of the learners by name."""


def check_name(name: str, field: str | None = None) -> None:
    if name not in BASELINES:
        hint = did_you_mean(name, BASELINES)
        raise UsageError(f"{name!r} must be one of {', '.join(BASELINES)}{hint}", field=field or "baseline")


def with_settings(name: str, values: Mapping[str, Any]) -> Any:
    """The settings of a learner, with `values` in place of defaults."""
    check_name(name)
    _, settings = BASELINES[name]
    hints = get_type_hints(type(settings))
    for key in values:
        if key not in hints:
            raise no_such_setting(key, name, hints)
    coerced = {key: coerce(key, value, hints[key]) for key, value in values.items()}
    return replace(settings, **coerced)  # type: ignore[type-var]
