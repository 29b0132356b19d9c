"""Update rules, one a file: how the next point of a path follows from the path so far."""

from pathaware.rules.base import Rule
from pathaware.rules.gradient_descent import GradientDescent
from pathaware.rules.meta_sgd import MetaSGD
from pathaware.rules.pamela import Pamela

__all__ = ["GradientDescent", "MetaSGD", "Pamela", "Rule"]
