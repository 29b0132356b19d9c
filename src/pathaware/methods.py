"""The methods by name: which rule, which meta-gradient, which defaults.

A new method is a rule (or an outer estimator) in a file of its own, and one entry here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from torch import nn

from pathaware.errors import UsageError
from pathaware.outer import Outer, Reptile, Unrolled
from pathaware.rules import GradientDescent, MetaSGD, Pamela, Rule
from pathaware.settings import fit


@dataclass(frozen=True)
class Method:
    """A named way to meta-learn. `options` replace defaults of the rule."""

    name: str
    summary: str
    paper: str
    rule: type[Rule]
    outer: Callable[[], Outer]
    order: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Every setting of the rule and its default."""
        signature = inspect.signature(self.rule.__init__).parameters
        defaults = {n: p.default for n, p in signature.items() if p.default is not inspect.Parameter.empty}
        return {**defaults, **self.options}

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with the defaults filled in; an unknown setting is an error."""
        known = self.settings()
        for name in given:
            if name not in known:
                raise UsageError(f"{name}: {self.name} has no such setting; it has {', '.join(known)}")
        hints = get_type_hints(self.rule.__init__)
        return {name: fit(name, value, hints[name]) for name, value in {**known, **given}.items()}

    def build(self, model: nn.Module, given: Mapping[str, Any]) -> Rule:
        rule: Callable[..., Rule] = self.rule
        return rule(model, **self.complete(given))


_FINN = "Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400"

METHODS = {
    method.name: method
    for method in (
        Method("maml", "learns a start for gradient descent", _FINN, GradientDescent, Unrolled, "second"),
        Method(
            "fomaml",
            "MAML with inner gradients held constant",
            _FINN,
            GradientDescent,
            lambda: Unrolled("first"),
            "first",
        ),
        Method(
            "reptile",
            "moves the start towards where tasks end",
            "Nichol, Achiam and Schulman, 2018, arXiv:1803.02999",
            GradientDescent,
            Reptile,
            "first",
        ),
        Method(
            "meta-sgd",
            "learns a rate for every parameter too",
            "Li, Zhou, Chen and Li, 2017, arXiv:1707.09835",
            MetaSGD,
            Unrolled,
            "second",
        ),
        Method(
            "pamela",
            "learns a preconditioner for every step and skips along the path",
            "Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291",
            Pamela,
            Unrolled,
            "second",
        ),
    )
}


def method(name: str) -> Method:
    if name not in METHODS:
        raise UsageError(f"method: {name!r} is none of {', '.join(METHODS)}")
    return METHODS[name]
