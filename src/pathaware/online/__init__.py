"""Online meta-training on a stream of data sets: the paper's Algorithm 2."""

from pathaware.online.buffer import Buffer, ReplaySample
from pathaware.online.learner import OnlineLearner

__all__ = ["Buffer", "OnlineLearner", "ReplaySample"]
