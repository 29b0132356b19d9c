"""What is timed: the problems by name, and which of them a machine is given unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pathaware.bench.synthetic import SyntheticImages
from pathaware.errors import UsageError
from pathaware.training.problems import Problem
from pathaware.training.regression import Sine


@dataclass(frozen=True)
class Workload:
    """A problem with the number of tasks of a meta-iteration, of inner steps, and the inner rate.

    `group` is a name that several may share: `--rows` takes either.
    """

    name: str
    group: str
    problem: Problem
    tasks: int = 4
    steps: int = 5
    rate: float = 0.01

    @property
    def sizes(self) -> str:
        """The problem in a line, for tables and files."""
        p = self.problem
        rest = f"{self.tasks} tasks, {self.steps} steps"
        if isinstance(p, SyntheticImages):
            network = f"Conv-4 of {p.width or 64} filters, {p.size}×{p.size}×{p.channels}"
            return f"{network}, {p.ways}-way {p.shots}-shot, {p.queries} queries a class, {rest}"
        assert isinstance(p, Sine)
        return f"MLP 1-40-40-1, {p.shots} points, {p.queries} queries, {rest}"


def _images(size: int, shots: int) -> Workload:
    return Workload(f"images-{size}-{shots}shot", f"images-{size}", SyntheticImages(shots=shots, size=size))


WORKLOADS = (
    Workload("sine", "sine", Sine(shots=10), tasks=25),
    Workload("glyphs", "glyphs", SyntheticImages(shots=1, queries=5, width=32, size=28, channels=1)),
    *(_images(size, shots) for size in (32, 84) for shots in (1, 5)),
)
ON_CPU = ("sine", "glyphs")  # two minutes on two cores; an 84×84 meta-iteration takes tens of seconds there
ON_CUDA = ("images-32", "images-84")


def choose(rows: Sequence[str], device: torch.device, *, full: bool = False) -> list[Workload]:
    """The workloads asked for by their own name or their group's, in the order of the list above."""
    if full and rows:
        raise UsageError("--full: it means all rows; leave out --rows")
    known = list(dict.fromkeys(name for w in WORKLOADS for name in (w.group, w.name)))
    for row in rows:
        if row not in known:
            raise UsageError(f"--rows: {row!r} is none of {', '.join(known)}")
    wanted = rows or (ON_CUDA if device.type == "cuda" else ON_CPU)
    return [w for w in WORKLOADS if full or w.name in wanted or w.group in wanted]
