"""How gradients were spread over training: counts in fixed bins, kept as one file of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pathaware.errors import UsageError
from pathaware.training.sealed import Damaged, read_sealed, write_sealed

BINS, FINEST, LARGEST = 512, 1e-6, 1e3
"""Gradients change sign and span orders of magnitude, over training and between methods. So the bins are
equally wide in asinh(g / FINEST): evenly spaced below FINEST, and from there to ±LARGEST each 9 % wider than
the last. They are the same for every run, which makes runs comparable; 0 is an edge."""

_WIDTH = math.asinh(LARGEST / FINEST) / (BINS // 2)


def edges() -> Tensor:
    """The ends of the bins, ascending: `[BINS + 1]`."""
    return FINEST * (_WIDTH * (torch.arange(BINS + 1, dtype=torch.float64) - BINS // 2)).sinh()


def count(values: Tensor) -> Tensor:
    """How many of `values` fall into each bin, lower end included: `[BINS]`, where the values are.

    What is beyond the outermost edges counts to the outermost bins; NaN counts nowhere.
    """
    place = (values.flatten() / FINEST).asinh_().div_(_WIDTH).add_(BINS // 2).floor_().clamp_(0, BINS - 1)
    index = place.nan_to_num_(nan=BINS).long()
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, index, torch.ones_like(index))[:BINS]  # whole numbers add up in any order


@dataclass
class Histograms:
    """Snapshots of the gradients of one parameter tensor, `of`, in the order of training.

    A snapshot has n + 1 rows: the inner gradients ∇L(θ₀) … ∇L(θₙ₋₁) of all tasks of a meta-batch, as they
    are before any preconditioner, then the meta-gradient. Its `counts` are `[n + 1, BINS]`; `mean` and
    `largest` those of the absolute values, `[n + 1]`; `iterations` how many meta-iterations came before it.
    """

    of: str
    iterations: list[int] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    largest: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.iterations)

    def add(self, iteration: int, rows: Sequence[Tensor]) -> None:
        """Take a snapshot. One of this iteration or later goes: a resumed run passes there again."""
        kept = sum(before < iteration for before in self.iterations)
        for column in (self.iterations, self.counts, self.mean, self.largest):
            del column[kept:]
        self.iterations.append(iteration)
        self.counts.append(torch.stack([count(row) for row in rows]).int().cpu())
        self.mean.append(torch.stack([row.abs().mean() for row in rows]).cpu())
        self.largest.append(torch.stack([row.abs().max() for row in rows]).cpu())

    def save(self, path: Path) -> None:
        """Write all snapshots, of which there must be one, or nothing."""
        tensors = {
            "iterations": torch.tensor(self.iterations),
            "counts": torch.stack(self.counts),
            "mean": torch.stack(self.mean),
            "largest": torch.stack(self.largest),
            "edges": edges(),
        }
        about = {
            "of": self.of,
            "axes of counts": "snapshot; inner gradients of steps 1 to n, then the meta-gradient; bin",
            "edges": f"equally spaced in asinh(g / {FINEST}); the outermost bins also hold what is beyond",
            "mean, largest": "of the absolute values",
        }
        write_sealed(path, tensors, about)

    @classmethod
    def load(cls, path: Path) -> Histograms:
        try:
            tensors, about = read_sealed(path)
        except Damaged as error:
            raise UsageError(f"RUN: {path} cannot be read ({error})") from None
        columns = [list(tensors[name]) for name in ("counts", "mean", "largest")]
        return cls(about["of"], tensors["iterations"].tolist(), *columns)
