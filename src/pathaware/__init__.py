"""Path-aware meta-learning for PyTorch."""

from typing import TYPE_CHECKING, Any

from pathaware.errors import UsageError
from pathaware.layout import Layout
from pathaware.learner import MetaLearner
from pathaware.online import OnlineLearner
from pathaware.outer import Reptile, Unrolled
from pathaware.path import Path
from pathaware.rules import GradientDescent, MetaSGD, Pamela, Rule
from pathaware.tasks.episodes import Episodes

if TYPE_CHECKING:
    from pathaware.use.estimators import FewShotClassifier, FewShotRegressor

__version__ = "0.1.0"

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
    from pathaware.use import estimators

    return getattr(estimators, name)
