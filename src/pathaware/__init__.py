"""Path-aware meta-learning for PyTorch."""

from pathaware.errors import UsageError
from pathaware.layout import Layout
from pathaware.learner import MetaLearner
from pathaware.outer import Reptile, Unrolled
from pathaware.path import Path
from pathaware.rules import GradientDescent, MetaSGD, Pamela, Rule
from pathaware.tasks.episodes import Episodes

__version__ = "0.1.0"

__all__ = [
    "Episodes",
    "GradientDescent",
    "Layout",
    "MetaLearner",
    "MetaSGD",
    "Pamela",
    "Path",
    "Reptile",
    "Rule",
    "Unrolled",
    "UsageError",
]
