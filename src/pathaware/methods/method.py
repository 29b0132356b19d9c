"""`Method`: a name for a rule or a head with its meta-gradient, its settings and its citation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from pathaware.core.errors import UsageError, no_such_setting
from pathaware.core.execution import ExecutionName
from pathaware.core.exports import Renamed
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.head import Head, HeadLearner
from pathaware.core.learner import HeadStart, MetaLearner
from pathaware.core.losses import Loss
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.rule import Rule
from pathaware.core.settings import coerce, type_hints

LEARNER = ("execution", "guard", "checkpoint", "head", "dimensions")
"""Arguments of a learner that are not settings of a method."""

COMMON = {
    "steps": "the number of inner steps",
    "step_size": "the inner step size; where step sizes are learned, their initial value",
    "adapt_norms": "adapt the parameters of norm layers, too",
}
"""Settings that mean the same in many methods."""


def python_name(setting: str) -> str:
    """The name in Python of a setting that files call `rate`, as they call the learning rate."""
    return "step_size" if setting == "rate" else setting


def identity(model: nn.Module) -> nn.Module:
    """The network as it is."""
    return model


def once(**settings: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """For `Method.earlier`: older runs do not have these settings, and behave as with these values."""
    return lambda stored: {**settings, **stored}


@dataclass(frozen=True)
class Method:
    """A meta-learning method that `pathaware train --method NAME` can train.

    To write one, subclass `Rule` (adapts step by step) or `Head` (fits the last layer at once) and name it:

    >>> import torch
    >>> class SignDescent(Rule):
    ...     def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.01) -> None:
    ...         super().__init__(network, steps)
    ...         self.rate = nn.Parameter(torch.tensor(rate))  # learned with the initialisation
    ...
    ...     def step(self, j, points, gradient):  # θⱼ₊₁ from [θ₀ … θⱼ] and ∇L(θⱼ), all [T, D]
    ...         return points[-1] - self.rate * gradient.sign()
    >>> METHOD = Method("sign-descent", "steps by signs of gradients", "You, 2026", 2026, SignDescent)
    >>> METHOD.settings()
    {'steps': 5, 'rate': 0.01}

    - `adapter`: the rule or the head; `meta_gradient`: how the query loss becomes a gradient of all learned
      parameters; `network`: changes the network first, for example inserts layers that do not adapt.
    - Its settings are the arguments of `adapter` that have defaults, and the keyword-only arguments of
      `meta_gradient` and `network`. Several of them may share a name; `options` replaces defaults.
    - `version`: grows when the method's mathematics changes, so that results of different versions are not
      mixed; it is recorded when training starts. `earlier`: from the stored settings of an older run, those
      that mean the same today; from version `compatible` on they give the same numbers.
    - `order`: the highest order of derivatives in the meta-gradient; `transductive`: True if adaptation uses
      the queries by design (by batch norm all methods are, unless evaluated inductively).
    - `problem`: settings of the classification problem that the method is defined by, such as
      `{"labels": False}`; a configuration takes them over.
    """

    name: str
    summary: str
    paper: str
    year: int
    adapter: type[Rule] | type[Head]
    meta_gradient: Callable[..., MetaGradient] = Unrolled
    order: Literal["second", "first", "none"] = "second"
    network: Callable[..., nn.Module] = identity
    options: Mapping[str, Any] = field(default_factory=dict)
    transductive: bool = False
    version: int = 1
    compatible: int = 0
    earlier: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    problem: Mapping[str, Any] = field(default_factory=dict)

    kind, queries = Renamed("adapter"), Renamed("transductive")

    @property
    def regression(self) -> bool:
        """True if it can fit functions as well as classify."""
        return not self.problem and (issubclass(self.adapter, Rule) or "values" in self.adapter.allows)

    def same_numbers(self, version: int) -> int:
        """The newest version that gives the numbers of this one."""
        return self.version if self.compatible and version >= self.compatible else version

    def settings(self) -> dict[str, Any]:
        """All settings with their defaults."""
        found = {name: p.default for owner in self._owners() for name, p in _settings(owner).items()}
        return {**found, **self.options}

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the settings `given` and fill in the defaults of the others."""
        known = self.settings()
        for name in given:
            if name not in known:
                raise no_such_setting(name, self.name, known)
        hints = self._hints()
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
        head: HeadStart = "learned",
        dimensions: int = 64,
    ) -> FewShotLearner:
        """Build the learner for this network and these settings."""
        network = self.network(model, **self._part(self.network, given))
        adapter: Any = self.adapter
        part = adapter(network, **self._part(self.adapter, given))
        meta_gradient = self.meta_gradient(**self._part(self.meta_gradient, given))
        if isinstance(part, Head):
            if head != "learned":
                raise UsageError(f"head: {self.name} adapts no last layer; leave it out")
            return HeadLearner(network, part, loss, meta_gradient=meta_gradient, execution=execution)
        return MetaLearner(
            network,
            part,
            loss,
            meta_gradient=meta_gradient,
            execution=execution,
            guard=guard,
            checkpoint=checkpoint,
            head=head,
            dimensions=dimensions,
        )

    def function(self, description: str) -> Callable[..., FewShotLearner]:
        """This method as a function, such as `maml(network, loss, *, steps=5, step_size=0.01, …)`."""
        names = {python_name(name): name for name in self.settings()}

        def construct(network: nn.Module, loss: Loss, **given: Any) -> FewShotLearner:
            bound = signature.bind(network, loss, **given).arguments
            settings = {name: bound[own] for own, name in names.items() if own in bound}
            return self.build(network, settings, loss, **{n: v for n, v in bound.items() if n in LEARNER})

        learner: type[FewShotLearner] = MetaLearner if issubclass(self.adapter, Rule) else HeadLearner
        hints = self._hints()
        own, kinds = inspect.signature(learner).parameters, inspect.Parameter
        signature = inspect.Signature(
            [
                own["model"].replace(name="network", annotation=nn.Module),
                own["loss"].replace(annotation=Loss),
                *(
                    kinds(own_name, kinds.KEYWORD_ONLY, default=default, annotation=hints[name])
                    for (own_name, name), default in zip(names.items(), self.settings().values(), strict=True)
                ),
                *(p for name, p in own.items() if name in LEARNER and p.kind is kinds.KEYWORD_ONLY),
            ],
            return_annotation=learner,
        )
        construct.__signature__ = signature  # type: ignore[attr-defined]
        construct.__name__ = construct.__qualname__ = self.function_name
        construct.__module__, construct.__doc__ = "pathaware", self._help(description, learner)
        return construct

    @property
    def function_name(self) -> str:
        """The name of the function, such as `maml_plus_plus`."""
        return self.name.replace("++", "_plus_plus").replace("-", "_")

    def _help(self, description: str, learner: type[FewShotLearner]) -> str:
        """The docstring of the function: the paper and its equations, then every setting."""
        owners = [inspect.cleandoc(owner.__doc__ or "") for owner in self._owners() if owner is not identity]
        known = "\n\n".join(owners).replace("`rate`", "`step_size`")
        settings = map(python_name, self.settings())
        common = [f"- `{name}`: {COMMON[name]}" for name in settings if f"`{name}`" not in known]
        rest = f"Further arguments are those of `{learner.__name__}`."
        return "\n\n".join(part for part in (description, known, "\n".join(common), rest) if part)

    def _hints(self) -> dict[str, Any]:
        """The types of all settings."""
        hints: dict[str, Any] = {}
        for owner in self._owners():
            hints |= type_hints(owner.__init__ if inspect.isclass(owner) else owner)
        return hints

    def _owners(self) -> list[Any]:
        return [self.adapter, self.meta_gradient, self.network]

    def _part(self, owner: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that `owner`, a part of the method, takes."""
        return {name: value for name, value in self.complete(given).items() if name in _settings(owner)}


def _settings(owner: Any) -> dict[str, inspect.Parameter]:
    """Arguments with defaults; for estimators and functions the keyword-only ones."""
    positional = inspect.isclass(owner) and issubclass(owner, (Rule, Head))
    return {
        name: p
        for name, p in inspect.signature(owner).parameters.items()
        if p.default is not inspect.Parameter.empty
        and (positional or p.kind is inspect.Parameter.KEYWORD_ONLY)
    }
