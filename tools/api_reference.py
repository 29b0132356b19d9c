"""Render docs/api.md from the docstrings of the public names.

python -m tools.api_reference docs/api.md
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SECTIONS = {
    "Use a trained model": (
        "pathaware.inference.estimators.FewShotClassifier",
        "pathaware.inference.estimators.FewShotRegressor",
        "pathaware.inference.trained_model.TrainedModel",
        "pathaware.inference.trained_model.AdaptedClassifier",
        "pathaware.inference.trained_model.AdaptationStep",
        "pathaware.data.pixels.ImageInput",
    ),
    "Learners": (
        "pathaware.core.learner.MetaLearner",
        "pathaware.core.head.HeadLearner",
        "pathaware.core.learner.FewShotLearner",
        "pathaware.core.learner.StepPredictions",
        "pathaware.core.path.Path",
        "pathaware.core.parameters.Layout",
        "pathaware.core.episodes.Episodes",
    ),
    "Online": ("pathaware.online.learner.OnlineLearner",),
    "Rules": (
        "pathaware.core.rule.Rule",
        "pathaware.methods.pamela.Pamela",
        "pathaware.methods.meta_sgd.MetaSGD",
        "pathaware.methods.maml.GradientDescent",
        "pathaware.core.learner.Context",
    ),
    "Heads": ("pathaware.core.head.Head",),
    "Meta-gradients": (
        "pathaware.core.meta_gradient.MetaGradient",
        "pathaware.core.meta_gradient.Unrolled",
        "pathaware.methods.reptile.Reptile",
    ),
    "Methods": ("pathaware.methods.method.Method", "pathaware.methods.get_method"),
    "Networks": (
        "pathaware.models.conv4.conv4",
        "pathaware.models.resnet12.resnet12",
        "pathaware.models.mlp.mlp",
    ),
    "Tasks and data": (
        "pathaware.core.episodes.TaskSource",
        "pathaware.data.sine.SineWaves",
        "pathaware.data.episodes.ImageEpisodes",
        "pathaware.data.catalogue.open_store",
        "pathaware.data.importing.import_dataset",
        "pathaware.data.store.ImageStore",
    ),
    "Training": (
        "pathaware.training.config.Config",
        "pathaware.training.config.Training",
        "pathaware.training.problems.Classification",
        "pathaware.training.problems.Sine",
        "pathaware.training.session.train_run",
        "pathaware.training.session.resume_run",
        "pathaware.training.trainer.Trainer",
        "pathaware.training.run_folder.Run",
        "pathaware.training.evaluation.evaluate",
        "pathaware.training.evaluation.Evaluation",
    ),
    "Errors": (
        "pathaware.core.errors.UsageError",
        "pathaware.core.errors.RunError",
        "pathaware.core.errors.Stopped",
    ),
}

_HEAD = """# API reference

Rendered from the docstrings by `make tables`. Other names may change without notice. T is the
number of tasks, S of support examples, Q of queries, D of adapted parameters; θ₀ is the initialisation, Φ the
learned parameters of a rule.
"""


def render() -> str:
    """The page in Markdown."""
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _described(name)
    return "\n".join(parts)


def _described(name: str) -> Iterator[str]:
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute)
    shown = f"pathaware.{attribute}" if attribute in import_module("pathaware").__all__ else name
    yield f"\n### `{shown}`\n"
    yield f"```text\n{_signature(attribute, found)}\n```\n"
    yield _text(found)
    for member_name, member in _members(found) if inspect.isclass(found) else ():
        yield f"\n#### `{attribute}.{_heading(member_name, member)}`\n"
        yield _text(member)


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines with a docstring, in the order of the source."""
    for name, member in vars(owner).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            described = plain.fget if isinstance(plain, property) else plain
            if getattr(described, "__doc__", None):
                yield name, plain


def _heading(name: str, member: Any) -> str:
    return name if isinstance(member, property) else f"{name}{_parameters(member, skip=True)}"


def _signature(name: str, found: Any) -> str:
    """The signature on one line if it fits, else with one parameter per line."""
    parameters = _parameters(found, skip=False)
    if len(name + parameters) <= 100:
        return name + parameters
    inner, _, result = parameters[1:].rpartition(")")
    return f"{name}(\n" + "".join(f"    {part},\n" for part in _split(inner)) + f"){result}"


def _split(parameters: str) -> list[str]:
    """Split at commas outside of brackets."""
    return [part.strip() for part in re.split(r",\s(?![^\[(]*[\])])", parameters)]


def _parameters(found: Callable[..., Any], *, skip: bool) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    kept = [p for n, p in signature.parameters.items() if not (skip and n in ("self", "cls"))]
    text = str(signature.replace(parameters=[p.replace(default=_default(p)) for p in kept]))
    text = re.sub(r"""(: |-> )(?:'([^']*)'|"([^"]*)")""", r"\1\2\3", text)  # annotations are strings
    return text.removesuffix(" -> None")


class _Named:
    """A stand-in for a default whose `repr` is not readable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    if value is parameter.empty or not repr(value).startswith("<"):
        return value
    name = getattr(value, "__name__", "…")
    return _Named("…" if name.startswith("<") else name)


def _text(found: Any) -> str:
    """The docstring, with its examples as code blocks."""
    lines: list[str] = []
    example = False
    for line in (inspect.getdoc(found) or "").splitlines():
        begins = line.startswith((">>>", "..."))
        if begins and not example:
            lines.append("```text")
        if example and not line.strip():
            lines.append("```")
        example = begins or (example and bool(line.strip()))
        lines.append(line)
    if example:
        lines.append("```")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
