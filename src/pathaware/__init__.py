"""Path-aware meta-learning for PyTorch."""

from typing import TYPE_CHECKING, Any

from pathaware.core import VERSION
from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import MetaLearner
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.parameters import Layout
from pathaware.core.path import Path
from pathaware.core.rule import Rule
from pathaware.methods.maml import GradientDescent
from pathaware.methods.meta_sgd import MetaSGD
from pathaware.methods.pamela import Pamela
from pathaware.methods.reptile import Reptile
from pathaware.online.learner import OnlineLearner

if TYPE_CHECKING:
    from pathaware.inference.estimators import FewShotClassifier, FewShotRegressor

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


def __getattr__(name: str) -> Any:
    """Estimators come when they are asked for: nobody who trains should wait for scikit-learn."""
    if name not in ("FewShotClassifier", "FewShotRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pathaware.inference import estimators

    return getattr(estimators, name)
