"""Path-aware meta-learning for PyTorch.

Every method is a function, such as `pathaware.pamela(network, loss, steps=5)`, that returns a learner.
"""

from importlib import import_module
from typing import Any

from pathaware.core import VERSION
from pathaware.core.exports import exports, warn_renamed

__version__ = VERSION

# fmt: off
METHOD_FILES = (
    "maml", "fomaml", "umtra", "reptile", "meta_sgd", "pamela", "maml_plus_plus", "anil", "boil",
    "meta_curvature", "mt_net", "warp_grad", "imaml", "imaml_hf", "l2l", "meta_lstm", "l_maml", "hsml",
    "l2f", "alfa", "metal", "gap", "r2d2", "lr_d2", "prototypical", "proto_pamela", "matching",
    "relation", "siamese", "mann", "meta_networks", "lstm",
)
# fmt: on
"""The methods: files of `pathaware.methods`, and functions here."""

_PUBLIC = {
    "core.episodes": "Episodes",
    "core.errors": "UsageError",
    "core.head": "Head HeadLearner",
    "core.learner": "MetaLearner",
    "core.meta_gradient": "MetaGradient Unrolled",
    "core.parameters": "Layout",
    "core.path": "Trajectory",
    "core.rule": "Rule",
    "inference.estimators": "FewShotClassifier FewShotRegressor",
    "inference.trained_model": "TrainedModel",
    "methods.method": "Method",
    "online.learner": "OnlineLearner",
    "training.evaluation": "evaluate",
    "training.fitting": "fit",
}

_RULES = {"methods": "GradientDescent MetaSGD Pamela Reptile"}
"""Names of `pathaware.methods` that programs of 0.2 import from here."""

_export = exports(__name__, {**_PUBLIC, **_RULES})[0]
__all__ = sorted([*METHOD_FILES, *" ".join(_PUBLIC.values()).split()])


def __getattr__(name: str) -> Any:
    if name in METHOD_FILES:
        return import_module(f"{__name__}.methods").FUNCTIONS[name]
    if name == "Path":
        warn_renamed("pathaware.Path", "pathaware.Trajectory")
        name = "Trajectory"
    return _export(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
