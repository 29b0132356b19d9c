"""Path-aware meta-learning for PyTorch.

Every method is a function, such as `pathaware.pamela(network, loss, steps=5)`, that returns a learner.
"""

from importlib import import_module
from typing import Any

from pathaware.core import VERSION

__version__ = VERSION

# fmt: off
_METHODS = [
    "alfa", "anil", "boil", "fomaml", "gap", "hsml", "imaml", "imaml_hf", "l2f", "l2l", "l_maml",
    "lr_d2", "lstm", "maml", "maml_plus_plus", "mann", "matching", "meta_curvature", "meta_lstm",
    "meta_networks", "meta_sgd", "metal", "mt_net", "pamela", "proto_pamela", "prototypical", "r2d2",
    "relation", "reptile", "siamese", "umtra", "warp_grad",
]
# fmt: on

_MODULES = {
    "Episodes": "core.episodes",
    "evaluate": "training.evaluation",
    "fit": "training.fitting",
    "FewShotClassifier": "inference.estimators",
    "FewShotRegressor": "inference.estimators",
    "GradientDescent": "methods.maml",
    "Head": "core.head",
    "HeadLearner": "core.head",
    "Layout": "core.parameters",
    "MetaGradient": "core.meta_gradient",
    "MetaLearner": "core.learner",
    "MetaSGD": "methods.meta_sgd",
    "Method": "methods.method",
    "OnlineLearner": "online.learner",
    "Pamela": "methods.pamela",
    "Path": "core.path",
    "Reptile": "methods.reptile",
    "Rule": "core.rule",
    "TrainedModel": "inference.trained_model",
    "Unrolled": "core.meta_gradient",
    "UsageError": "core.errors",
}

__all__ = sorted([*_METHODS, *_MODULES])


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `pathaware --help` does not wait for PyTorch or scikit-learn."""
    if name in _METHODS:
        return import_module(f"{__name__}.methods").FUNCTIONS[name]
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
