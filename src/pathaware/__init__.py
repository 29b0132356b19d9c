"""Path-aware meta-learning for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pathaware.core import VERSION
from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from pathaware.core.episodes import Episodes
    from pathaware.core.learner import MetaLearner
    from pathaware.core.meta_gradient import Unrolled
    from pathaware.core.parameters import Layout
    from pathaware.core.path import Path
    from pathaware.core.rule import Rule
    from pathaware.inference.estimators import FewShotClassifier, FewShotRegressor
    from pathaware.methods.maml import GradientDescent
    from pathaware.methods.meta_sgd import MetaSGD
    from pathaware.methods.pamela import Pamela
    from pathaware.methods.reptile import Reptile
    from pathaware.online.learner import OnlineLearner

__version__ = VERSION

__all__ = [
    "Episodes",
    "FewShotClassifier",
    "FewShotRegressor",
    "GradientDescent",
    "Layout",
    "MetaLearner",
    "MetaSGD",
    "OnlineLearner",
    "Pamela",
    "Path",
    "Reptile",
    "Rule",
    "Unrolled",
    "UsageError",
]

_MODULES = {
    "Episodes": "core.episodes",
    "FewShotClassifier": "inference.estimators",
    "FewShotRegressor": "inference.estimators",
    "GradientDescent": "methods.maml",
    "Layout": "core.parameters",
    "MetaLearner": "core.learner",
    "MetaSGD": "methods.meta_sgd",
    "OnlineLearner": "online.learner",
    "Pamela": "methods.pamela",
    "Path": "core.path",
    "Reptile": "methods.reptile",
    "Rule": "core.rule",
    "Unrolled": "core.meta_gradient",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `pathaware --help` does not wait for PyTorch or scikit-learn."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
