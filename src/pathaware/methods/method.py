"""What a named method is made of: a rule or a head, a meta-gradient, defaults, and where it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from torch import nn

from pathaware.core.errors import UsageError
from pathaware.core.head import Head, HeadLearner
from pathaware.core.learner import ExecutionName, FewShotLearner, MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.rule import Rule
from pathaware.core.settings import coerce


def as_it_is(model: nn.Module) -> nn.Module:
    return model


@dataclass(frozen=True)
class Method:
    """A named way to meta-learn.

    - `kind`: the rule that adapts, or the head that answers; `meta_gradient`: the meta-gradient's estimator;
      `network`: what the method adds to a network, such as layers that do not adapt.
    - Its settings are the arguments of `kind` that have defaults, and the keyword-only arguments of `meta_gradient`
      and `network`. One name may belong to several; `options` replace defaults.
    - `order` of the derivatives it takes; `queries`: whether it looks at the queries when it adapts, and is
      so transductive by design (batch norm makes every method so, see `pathaware evaluate --inductive`).
    """

    name: str
    summary: str
    paper: str
    year: int
    kind: type[Rule] | type[Head]
    meta_gradient: Callable[..., MetaGradient] = Unrolled
    order: Literal["second", "first", "none"] = "second"
    network: Callable[..., nn.Module] = as_it_is
    options: Mapping[str, Any] = field(default_factory=dict)
    queries: bool = False

    @property
    def regression(self) -> bool:
        """Whether it can learn functions as well as classes."""
        return issubclass(self.kind, Rule) or self.kind.regression

    def settings(self) -> dict[str, Any]:
        """Every setting and its default."""
        found = {name: p.default for owner in self._owners() for name, p in _settings(owner).items()}
        return {**found, **self.options}

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with the defaults filled in; an unknown setting is an error."""
        known = self.settings()
        for name in given:
            if name not in known:
                raise UsageError(f"{name}: {self.name} has no such setting; it has {', '.join(known)}")
        hints: dict[str, Any] = {}
        for owner in self._owners():
            hints |= get_type_hints(owner.__init__ if inspect.isclass(owner) else owner)
        return {name: coerce(name, value, hints[name]) for name, value in {**known, **given}.items()}

    def build(
        self,
        model: nn.Module,
        given: Mapping[str, Any],
        loss: Loss,
        *,
        execution: ExecutionName = "auto",
        guard: bool = True,
        checkpoint: bool = False,
    ) -> FewShotLearner:
        """A learner with this network, made the method's own."""
        network = self.network(model, **self._part(self.network, given))
        kind: Any = self.kind
        made = kind(network, **self._part(self.kind, given))
        if isinstance(made, Head):
            return HeadLearner(network, made, loss)
        return MetaLearner(network, made, loss, execution=execution, guard=guard, checkpoint=checkpoint)

    def estimator(self, given: Mapping[str, Any]) -> MetaGradient:
        """How its meta-gradient is taken."""
        return self.meta_gradient(**self._part(self.meta_gradient, given))

    def _owners(self) -> list[Any]:
        return [self.kind, self.meta_gradient, self.network]

    def _part(self, owner: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the settings that this part of the method takes."""
        return {name: value for name, value in self.complete(given).items() if name in _settings(owner)}


def _settings(owner: Any) -> dict[str, inspect.Parameter]:
    """Arguments with defaults; of estimators and functions only those that must be named."""
    whole = inspect.isclass(owner) and issubclass(owner, (Rule, Head))
    return {
        name: p
        for name, p in inspect.signature(owner).parameters.items()
        if p.default is not inspect.Parameter.empty and (whole or p.kind is inspect.Parameter.KEYWORD_ONLY)
    }
