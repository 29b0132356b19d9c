"""Calibrated probabilities, and thresholds for unknown images, both fitted on validation classes.

For several numbers of classes (ways) and of images per class (shots), tasks of validation classes are learned
and their queries predicted one by one, as in use. From these predictions come

- a temperature τ: probabilities are softmax(logits / τ), with the τ that minimises their log-loss;
- the weight κ of the spread of a class in the score of `pathaware.inference.open_set`: 1 / (2 s̄), s̄ being the
  mean spread of all classes;
- thresholds of that score: for each share α, the ⌈(n + 1)(1 − α)⌉-th smallest of n scores (split conformal
  prediction). A new image of a learned class lies beyond it with probability α, if new tasks are exchangeable
  with those of the validation classes.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_json
from pathaware.core.writing import replace_file
from pathaware.data.catalogue import open_store
from pathaware.methods import get_method

if TYPE_CHECKING:
    from pathaware.inference.open_set import OpenTask
    from pathaware.inference.trained_model import TrainedModel

CALIBRATION = "calibration.json"
"""Its file in a run folder."""
WAYS, SHOTS, QUERIES = (2, 5, 20), (1, 5), 5
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Shares of known images that may be called unknown, for which thresholds are stored."""
TASKS = 100
"""Five-way tasks per cell; with other numbers of classes, as many as have about the same number of images."""


def check_share(share: float) -> None:
    """Raise if no threshold is stored for this share of known images."""
    if not SHARES[0] <= share <= SHARES[-1]:
        raise UsageError(
            f"{share:g} is not allowed; must be {SHARES[0]:g} to {SHARES[-1]:g} (calibrated)",
            field="unknown",
        )


@dataclass(frozen=True)
class Cell:
    """The temperature and the thresholds (in the order of `SHARES`) for a number of ways and shots.

    `spread_weight` is κ; it is zero in files of earlier versions, whose scores were plain distances, and for
    one shot, where classes have no spread.
    """

    ways: int
    shots: int
    temperature: float
    thresholds: tuple[float, ...]
    images: int
    spread_weight: float = 0.0

    def __post_init__(self) -> None:
        if min(self.ways, self.shots) < 1 or self.temperature <= 0 or len(self.thresholds) != len(SHARES):
            raise UsageError(
                f"cell: ways and shots must be at least 1, temperature above 0, with {len(SHARES)} thresholds"
            )


@dataclass(frozen=True)
class Calibration:
    """Cells for a grid of ways and shots; between them, values are interpolated in log ways and log shots."""

    cells: tuple[Cell, ...]
    split: str = "val"
    seed: int = 0
    shares: tuple[float, ...] = SHARES

    def temperature(self, ways: int, shots: float) -> float:
        """The temperature for tasks of this size."""
        logs = {(cell.ways, cell.shots): math.log(cell.temperature) for cell in self.cells}
        return math.exp(_interpolate(logs, ways, shots))

    def spread_weight(self, ways: int, shots: float) -> float:
        """The weight of spreads in the score of unknown images, for tasks of this size."""
        return _interpolate({(cell.ways, cell.shots): cell.spread_weight for cell in self.cells}, ways, shots)

    def threshold(self, share: float, ways: int, shots: float) -> float:
        """The score that this share of known images exceeds in tasks of this size."""
        check_share(share)
        i = min(bisect_right(SHARES, share), len(SHARES) - 1)
        part = (share - SHARES[i - 1]) / (SHARES[i] - SHARES[i - 1])
        between = {
            (c.ways, c.shots): (1 - part) * c.thresholds[i - 1] + part * c.thresholds[i] for c in self.cells
        }
        return _interpolate(between, ways, shots)

    def write(self, folder: Path) -> None:
        """Write to a run folder."""
        replace_file(folder / CALIBRATION, json.dumps(asdict(self), indent=1) + "\n", folder)

    @classmethod
    def read(cls, folder: Path) -> Calibration | None:
        """Read that of a run folder; None if the run is not calibrated."""
        path = folder / CALIBRATION
        if not path.exists():
            return None
        try:
            found: Calibration = read_json(path, cls)
            sizes = {(cell.ways, cell.shots) for cell in found.cells}
            every = set(product(*(set(values) for values in zip(*sizes, strict=True))))
            if found.shares != SHARES or sizes != every or not len(sizes) == len(found.cells) > 0:
                raise UsageError(f"{path} is damaged (its cells are no grid, or its shares not {SHARES})")
            return found
        except UsageError as error:
            message = f"{error.message}; remove it to use the run without calibration"
            raise UsageError(message, field="run") from None


def _interpolate(values: dict[tuple[int, int], float], ways: float, shots: float) -> float:
    """Bilinear in the logarithms of ways and shots; beyond the grid, the value at its edge."""
    grid_ways, grid_shots = (sorted({key[axis] for key in values}) for axis in (0, 1))
    total = 0.0
    for way, weight in _neighbours(grid_ways, ways):
        for shot, other in _neighbours(grid_shots, shots):
            total += weight * other * values[way, shot]
    return total


def _neighbours(grid: Sequence[int], value: float) -> list[tuple[int, float]]:
    """The grid points around a value, with their weights."""
    place = math.log(min(max(value, grid[0]), grid[-1]))
    i = max(1, min(bisect_right([math.log(point) for point in grid], place), len(grid) - 1))
    if len(grid) == 1:
        return [(grid[0], 1.0)]
    low, high = math.log(grid[i - 1]), math.log(grid[i])
    part = (place - low) / (high - low)
    return [(grid[i - 1], 1 - part), (grid[i], part)]


def fit_calibration(
    model: TrainedModel,
    *,
    tasks: int = TASKS,
    seed: int = 0,
    split: str = "val",
    sizes: Sequence[tuple[int, int]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Calibration:
    """Fit temperatures and thresholds on tasks of a split.

    `sizes` are pairs of ways and shots, by default those of `grid`. `progress` is called after every task,
    with the number of tasks done and with that of all tasks.
    """
    from pathaware.inference.open_set import open_tasks

    sizes = grid(model, split) if sizes is None else sizes
    counts = [-(-tasks * 5 // ways) for ways, _ in sizes]
    cells, done = [], 0
    for (ways, shots), count in zip(sizes, counts, strict=True):
        how: dict[str, Any] = {"ways": ways, "shots": shots, "queries": QUERIES, "foreign": False}
        found = []
        for task in open_tasks(model, split=split, tasks=count, seed=seed, **how):
            found.append(task)
            done += 1
            if progress:
                progress(done, sum(counts))
        cells.append(fit_cell(ways, shots, found))
    return Calibration(tuple(cells), split, seed)


def fit_cell(ways: int, shots: int, found: list[OpenTask]) -> Cell:
    """The temperature and the thresholds from tasks of `ways` classes with `shots` images each."""
    from pathaware.inference.open_set import scores

    logits, labels = torch.cat([t.logits for t in found]), torch.cat([t.labels for t in found])
    spread = torch.stack([t.spreads for t in found]).mean().item()
    weight = round(1 / (2 * spread), 6) if spread > 0 else 0.0
    known = scores(found, weight)["distance"].flatten()
    return Cell(ways, shots, fit_temperature(logits, labels), thresholds(known), len(known), weight)


def grid(model: TrainedModel, split: str) -> list[tuple[int, int]]:
    """The ways and shots that are calibrated: at most half of the classes, so that tasks differ."""
    problem: Any = model.config.problem
    spans = open_store(problem.data, Path(problem.data_dir) if problem.data_dir else None).split(split)
    classes, images = len(spans), int(spans.counts.min()) if len(spans) else 0
    more = "more classes" in get_method(model.config.method).adapter.allows
    most = max(classes // 2, model.ways) if more else model.ways
    ways = sorted({way for way in (*WAYS, model.ways) if way <= min(most, classes)})
    shots = sorted({shot for shot in (*SHOTS, problem.shots) if shot + QUERIES <= images})
    if not ways or not shots:
        raise UsageError(
            f"the {split} split of {problem.data} has {classes} classes of at least {images} images; "
            f"at least {WAYS[0]} of {SHOTS[0] + QUERIES} are needed",
            field="calibrate",
        )
    return [(way, shot) for way in ways for shot in shots]


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature that minimises the log-loss of softmax(logits / temperature).

    Labels are smoothed as if there were two more images (Platt, 1999), so that the temperature of a model
    that makes no mistake on them is not zero.
    """
    from scipy.optimize import minimize_scalar

    values = logits.double()

    def log_loss(log_temperature: float) -> float:
        logits = values / math.exp(log_temperature)
        return cross_entropy(logits, labels, label_smoothing=1 / (len(labels) + 2)).item()

    return float(math.exp(minimize_scalar(log_loss, bounds=(-4.0, 4.0), method="bounded").x))


def thresholds(scores: Tensor, shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """The conformal thresholds of the scores `[n]` of known images."""
    ordered = scores.double().sort().values
    count = len(ordered)
    places = (min(count, math.ceil((count + 1) * (1 - share))) for share in shares)
    return tuple(round(ordered[place - 1].item(), 6) for place in places)
