"""What a contestant must be able to do to be timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from pathaware.bench.job import Inputs, Job
from pathaware.tasks.episodes import Episodes

Work = Callable[[int], object]
"""Runs turn i."""


class Missing(Exception):
    """A contestant is not here, or does not offer what a job asks for; the text is for the table."""


class Contestant(Protocol):
    name: str
    title: str

    def version(self) -> str:
        """Of the library; raises `Missing` where it cannot be imported."""
        ...

    def training(self, job: Job, inputs: Inputs) -> Work:
        """A whole meta-iteration, optimiser and all."""
        ...

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        """From the support set of a task to a network that knows it."""
        ...

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        """Of the mean query loss in float64, from the start that seed 0 gives, as one vector."""
        ...

    def answers(self, job: Job, episodes: Episodes) -> Tensor:
        """What the network adapted to the first task says of that task's queries, in float64."""
        ...


def flat_gradient(parameters: Iterable[nn.Parameter]) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([g.flatten() for g in grads])
