"""Heads that answer without an inner loop: they solve, compare or remember. One a file in `methods`."""

from pathaware.heads.base import Head, one_hot
from pathaware.heads.learner import HeadLearner

__all__ = ["Head", "HeadLearner", "one_hot"]
