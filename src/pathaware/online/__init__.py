"""Meta-learning on a stream of data sets: the paper's Algorithm 2, and what it is compared with."""

from pathaware.online.buffer import Buffer, Lesson
from pathaware.online.learner import OnlineLearner

__all__ = ["Buffer", "Lesson", "OnlineLearner"]
