"""Follow the meta-leader (Finn, Rajeswaran, Kakade and Levine, ICML 2019, arXiv:1902.08438).

    θ ← θ − β ∇_θ Σ_{s ≤ t} L_s(U_s(θ))          some steps of Adam on all data sets so far
    φ ← U_t(θ)                                   then adapts to the one at hand

It keeps everything it has seen. U is gradient descent over items; those it descends and those it is judged on
are drawn anew each time, so that every example serves for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, get_type_hints

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.settings import at_least, coerce
from pathaware.methods.maml import GradientDescent
from pathaware.online.buffer import Forget, Item, Lesson
from pathaware.online.learner import Descent, OnlineLearner, OnlineOrder, Replay
from pathaware.online.streams import Stream


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


# Who runs on a stream: each learns a data set's items and then answers; they differ in what they carry on.
#
# | contestant | θ, where φ starts | learns |
# |---|---|---|
# | `online` | `OnlineLearner` | all items but every k-th |
# | `literal` | the same with `order="last"` | likewise |
# | `leader` | follow the meta-leader, see `pathaware.experiments.online.baselines` | all items |
# | `tuning` | where the last data set ended | all items |
# | `scratch` | a new network | all items |


@dataclass(frozen=True)
class Conditions:
    """What is the same for all: φ-steps on each item, and that every k-th can be held out."""

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


class Contestant(Protocol):
    """Runs over one stream, from a seed."""

    @property
    def gradients(self) -> int: ...

    def learn(self, items: Sequence[Item]) -> None:
        """The next data set."""
        ...

    def predict(self, x: Tensor) -> Tensor:
        """For inputs `[N, …]` of that data set."""
        ...


class Settings(Protocol):
    """A dataclass of what can be chosen for a contestant."""

    def enter(self, conditions: Conditions, seed: int) -> Contestant: ...


@dataclass(frozen=True)
class Online:
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

    def enter(self, conditions: Conditions, seed: int) -> Contestant:
        return _Online(self, conditions, seed)


class _Online:
    def __init__(self, settings: Online, conditions: Conditions, seed: int) -> None:
        stream = conditions.stream
        own = {each.name: getattr(settings, each.name) for each in fields(settings)}
        self.learner = OnlineLearner(
            stream.start(seed),
            stream.problem.loss,
            **own,
            every=conditions.every,
            steps=conditions.steps,
            seed=seed,
        )

    @property
    def gradients(self) -> int:
        return self.learner.gradients

    def learn(self, items: Sequence[Item]) -> None:
        self.learner.begin()
        for x, y in items:
            self.learner.partial_fit(x, y)

    def predict(self, x: Tensor) -> Tensor:
        return self.learner.predict(x)


@dataclass(frozen=True)
class Meta:
    rate: float = 0.01
    meta_rate: float = 3e-3
    replay: int = 8
    meta_steps: int = 2

    def __post_init__(self) -> None:
        at_least(0, rate=self.rate, meta_rate=self.meta_rate)
        at_least(1, replay=self.replay, meta_steps=self.meta_steps)

    def enter(self, conditions: Conditions, seed: int) -> Contestant:
        stream = conditions.stream
        held_out = max(1, stream.items // conditions.every)
        return Leader(
            stream.start(seed),
            stream.problem.loss,
            rate=self.rate,
            meta_rate=self.meta_rate,
            replay=self.replay,
            meta_steps=self.meta_steps * held_out,
            held_out=held_out,
            steps=conditions.steps,
            seed=seed,
        )


@dataclass(frozen=True)
class Plain:
    """Gradient descent; `fresh` with a new network for each data set, else one that is never reset."""

    rate: float = 0.01
    fresh: bool = False

    def __post_init__(self) -> None:
        at_least(0, rate=self.rate)

    def enter(self, conditions: Conditions, seed: int) -> Contestant:
        return _Plain(self, conditions, seed)


class _Plain:
    def __init__(self, settings: Plain, conditions: Conditions, seed: int) -> None:
        self.settings, self.conditions, self.seed = settings, conditions, seed
        model = conditions.stream.start(seed)
        rule = GradientDescent(model, conditions.steps, rate=settings.rate)
        self.meta = MetaLearner(model, rule, conditions.stream.problem.loss, guard=False)
        self.point = rule.layout.flatten(model).detach()[None]
        self.position = 0
        self.gradients = 0

    def learn(self, items: Sequence[Item]) -> None:
        rule = self.meta.rule
        if self.settings.fresh:
            start = self.conditions.stream.start(self.seed, self.position)
            self.point = rule.layout.flatten(start).detach()[None]
        self.position += 1
        for x, y in items:
            for _ in range(self.conditions.steps):
                _, slope = self.meta.gradient(self.point, x[None], y[None])
                self.point = rule.step(0, [self.point], slope)
        self.gradients += len(items) * self.conditions.steps

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        return self.meta.predict(self.point, x[None])[0]


CONTESTANTS: dict[str, tuple[str, Settings]] = {
    "online": ("online, Algorithm 2", Online()),
    "literal": ("online, last step only", Online(order="last")),
    "leader": ("follow the meta-leader", Meta()),
    "tuning": ("fine-tuning, never reset", Plain()),
    "scratch": ("from scratch", Plain(fresh=True)),
}
"""Label and defaults by name."""


def with_settings(name: str, values: Mapping[str, Any]) -> Any:
    """A contestant's settings with some of them other than the defaults."""
    if name not in CONTESTANTS:
        raise UsageError(f"contestant: {name!r} is none of {', '.join(CONTESTANTS)}")
    _, settings = CONTESTANTS[name]
    hints = get_type_hints(type(settings))
    fitted = {}
    for key, value in values.items():
        if key not in hints:
            raise UsageError(f"{key}: {name} has no such setting; {', '.join(hints)}")
        fitted[key] = coerce(key, value, hints[key])
    return replace(settings, **fitted)  # type: ignore[type-var]
