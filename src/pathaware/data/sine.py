"""Sine waves: the regression tasks of the paper's section 4.2."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.settings import at_least

AMPLITUDE = (0.1, 5.0)
FREQUENCY = (0.8, 1.2)
PHASE = (0.0, math.pi)
DOMAIN = (-5.0, 5.0)


@dataclass(frozen=True)
class SineWaves(TaskSource):
    """Regression tasks y = a·sin(f·x + φ), with a, f and φ drawn for every task.

    The support set is `shots` points at random x. The query set is `queries` points, random or, with `grid`,
    evenly spaced over the whole domain.
    """

    shots: int
    queries: int = 10
    grid: bool = False
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        at_least(1, shots=self.shots, queries=self.queries)

    def gather(self, plan: Episodes) -> Episodes:
        return plan.to(self.device, self.dtype)

    def draw(self, tasks: int, generator: torch.Generator) -> Episodes:
        """Shapes: support `[T, shots, 1]`, query `[T, queries, 1]`. The plan is the episodes themselves."""

        def uniform(bounds: tuple[float, float], count: int) -> Tensor:
            low, high = bounds
            return low + (high - low) * torch.rand(tasks, count, 1, generator=generator, dtype=torch.float64)

        amplitude, frequency, phase = (uniform(b, 1) for b in (AMPLITUDE, FREQUENCY, PHASE))
        x = uniform(DOMAIN, self.shots + (0 if self.grid else self.queries))
        if self.grid:
            x = torch.cat(
                [x, torch.linspace(*DOMAIN, self.queries, dtype=torch.float64).expand(tasks, -1)[..., None]],
                dim=1,
            )
        y = amplitude * torch.sin(frequency * x + phase)
        k = self.shots
        return Episodes(x[:, :k], y[:, :k], x[:, k:], y[:, k:])
