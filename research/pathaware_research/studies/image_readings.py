"""Readings of the points that the paper leaves open, on images: the worth of one change at a time.

    python -m pathaware_research.studies.image_readings rate --seed 0 --out runs/readings

All readings begin with the paper's rule, θ − 0.01 Q ∘ ∇L with Q from 1, and our other settings: miniImageNet,
5-way 5-shot, 12,000 iterations, bf16. They are compared on the same 2,000 tasks of validation classes, which
also chose the checkpoint, so a number here is no test accuracy. Changes at test time need no training of
their own: every run is also evaluated with mirrored views, with the mean of its five best checkpoints, with
ten steps, and with support sets of five cropped and mirrored copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.seeding import fork
from pathaware.core.settings import trust
from pathaware.data import episodes as image_tasks
from pathaware.data.augmentation import crop_padding
from pathaware.data.episodes import EpisodePlan, ImageEpisodes
from pathaware.methods.maml_plus_plus import MultiStep
from pathaware.methods.pamela import METHOD as PAMELA
from pathaware.methods.pamela import Pamela
from pathaware.training.evaluation import SnapshotMean, evaluate
from pathaware.training.presets import DIRECT, PRINTED, paper_problem
from pathaware.training.provenance import evaluation_record, task_values, write_record
from pathaware.training.tables import NOTHING, Table
from pathaware.training.train import train
from pathaware_research.experiments import Experiment, RunStore
from pathaware_research.paired import mean_lead
from pathaware_research.paper.tables import NOT_RUN
from pathaware_research.records import READINGS as STUDY
from pathaware_research.records import Records

HERE = "pathaware_research.studies.image_readings"
ITERATIONS = 12_000
TASKS = 2000
COPIES = 5
BASE = "rate"
Settings = Mapping[str, Mapping[str, Any]]


class Normalised(Pamela):
    """ "Kernel-wise normalized vectors": the Qs of a layer have a mean square of 1, and learn a direction."""

    @cached_property
    def layers(self) -> tuple[Tensor, Tensor]:
        """The layer of each group of Q, and the number of groups in each layer."""
        layer, layers = self.layout.index("layer")
        of_group = torch.zeros(self.q_groups.groups, dtype=torch.long)
        of_group.scatter_(0, self.q_groups.index.cpu(), layer)
        return of_group.to(self.q.device), of_group.bincount(minlength=layers).to(self.q)

    def per_parameter(self) -> tuple[Tensor, Tensor]:
        of_group, members = self.layers
        sums = self.q.new_zeros(len(self.q), len(members)).index_add(1, of_group, self.q.square())
        scale = (sums / members).rsqrt().index_select(1, of_group)
        return self.q_groups(self.rate * self.q * scale), super().per_parameter()[1]


NORMALISED = replace(PAMELA, name=f"{HERE}:NORMALISED", adapter=Normalised)
MULTI_STEP = replace(PAMELA, name=f"{HERE}:MULTI_STEP", meta_gradient=MultiStep)


class CopiedSupports(ImageEpisodes):
    """Tasks whose support sets hold five copies of every image, each cropped and mirrored at random."""

    def draw(self, tasks: int, generator: torch.Generator) -> EpisodePlan:
        own = fork(generator, "copies")
        plan = super().draw(tasks, generator)
        support, size = self.shots * self.ways, self.store.shape[1]
        padding = crop_padding(size)
        if plan.offsets is None:  # images as they are: cropped in the middle, not mirrored
            shape = plan.images.shape
            plan = replace(plan, offsets=torch.full((*shape, 2), padding), flips=torch.zeros(shape).bool())
        copied = torch.arange(support).repeat(COPIES)
        plan = plan.part(torch.cat([copied, torch.arange(support, plan.images.shape[1])]))
        assert plan.offsets is not None
        assert plan.flips is not None
        drawn = (tasks, len(copied))
        plan.offsets[:, : len(copied)] = torch.randint(2 * padding + 1, (*drawn, 2), generator=own)
        plan.flips[:, : len(copied)] = torch.randint(2, drawn, generator=own, dtype=torch.bool)
        return plan

    def gather(self, plan: EpisodePlan) -> Episodes:
        return self.views.episodes(plan, COPIES * self.shots * self.ways)


@contextmanager
def copied_supports(active: bool) -> Iterator[None]:
    """A context in which tasks have `CopiedSupports`."""
    if not active:
        yield
        return
    with mock.patch.object(image_tasks, "ImageEpisodes", CopiedSupports):
        yield


READINGS: dict[str, tuple[str, Settings]] = {
    BASE: ("θ − 0.01 Q ∘ ∇L with Q from 1, our settings, bf16", {}),
    "direct": ("Q learned directly from 0.01, a hundred times as fast", {"method": DIRECT}),
    "speed3": ("Q learned 3 times as fast", {"method": {"rate": 0.03, "q_start": 1 / 3}}),
    "speed10": ("Q learned 10 times as fast", {"method": {"rate": 0.1, "q_start": 0.1}}),
    "constant": ("a constant learning rate", {"training": {"schedule": "constant"}}),
    "no-guard": ("no divergence guard", {"training": {"guard": False}}),
    "no-clip": ("no clipping of the meta-gradient", {"training": {"clip": 0.0}}),
    "strict": ("constant rate, no guard, no clipping", {"training": PRINTED}),
    "tf32": ("tf32", {"training": {"precision": "tf32"}}),
    "fp32": ("fp32", {"training": {"precision": "fp32"}}),
    "p-start": ("P from 0.1", {"method": {"p_start": 0.1}}),
    "two-tasks": ("2 tasks per meta-iteration", {"training": {"tasks": 2}}),
    "multi-step": ("multi-step loss, in the first 15 % of training", {"method": {"name": MULTI_STEP.name}}),
    "multi-step-all": (
        "multi-step loss, fading out over all of training",
        {"method": {"name": MULTI_STEP.name, "multi_step_share": 1.0}},
    ),
    "normalised": ("Q normalised over the kernels of a layer", {"method": {"name": NORMALISED.name}}),
    "copies": ("support sets of five cropped and mirrored copies in training and test", {}),
}
"""A title and the settings that differ from those of `BASE`, by name."""
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "-mirror": {"views": "mirror"},
    "-10steps": {"steps": 10, "extend": True},
    "-copies": {},
    "-snapshots": {},
}
"""Ways to evaluate a run, by the ending of the names of its records."""
WAY_TITLES = {
    "-mirror": "with mirrored views",
    "-10steps": "ten steps at test",
    "-copies": "five copies at test",
    "-snapshots": "mean of five checkpoints",
}


def experiment(reading: str, data: str = "miniimagenet", shots: int = 5) -> Experiment:
    tables = {
        "problem": {**paper_problem(data), "shots": shots},
        "method": {"name": "pamela", "rate": 0.01, "q_start": 1.0},
        "training": {"precision": "bf16", "snapshots": 5},
    }
    trust({"method": {"name": MULTI_STEP.name}})
    return Experiment(f"{data}-{shots}shot-{reading}", tables).with_settings(READINGS[reading][1])


def make(
    reading: str, seed: int, out: Path, data: str, shots: int, iterations: int, split: str, tasks: int
) -> None:
    """Train a reading, or resume it, and write its records to `out / "results"`."""
    planned = experiment(reading, data, shots).run(seed, iterations)
    store = RunStore(out, split=split, tasks=tasks)
    store.create()
    run = store.open(planned)
    with copied_supports(reading == "copies"):
        train(run.config, run.folder, resume=True)
    learners = {"": run.load(), "-snapshots": SnapshotMean(run.load_snapshots())}
    for way, options in WAYS.items():
        learner = learners.get(way, learners[""])
        with copied_supports((reading == "copies") ^ (way == "-copies")):
            found = evaluate(learner, run.config.problem, split=split, tasks=tasks, **options)
        extra = {"reading": reading, "way": way}
        name = f"{planned.name}{way}{'' if split == 'val' else f'-{split}'}"
        write_record(store.results_folder / f"{name}.json", {**evaluation_record(run, found), **extra})


def table(results: Path) -> Table:
    """The accuracy of every reading, and its differences to `BASE` on the same tasks, for each way."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for record in Records(STUDY, results).values():
        if record["result"]["split"] == "val":
            seeds = found.setdefault((record["reading"], record["way"]), {})
            seeds[record["config"]["training"]["seed"]] = record
    base, rows = found.get((BASE, ""), {}), []
    for reading, (title, _) in READINGS.items():
        own = found.get((reading, ""), {})
        accuracies = ", ".join(f"{100 * own[seed]['result']['accuracy']:.2f}" for seed in sorted(own))
        worth = [_difference(found.get((reading, way), {}), base) for way in WAYS]
        if reading == "copies" and own:  # the way that is the other one
            worth[list(WAYS).index("-copies")] += ", without copies"
        rows.append([title, *([accuracies, *worth] if own else [NOT_RUN, *[NOTHING] * len(WAYS)])])
    header = ("reading", "accuracy by seed, %", "worth, points", *WAY_TITLES.values())
    return Table.of("", header, rows)


def _difference(seeds: Mapping[int, Any], base: Mapping[int, Any]) -> str:
    both = sorted(seeds.keys() & base.keys())
    if not both or seeds is base:
        return NOTHING
    return mean_lead([_values(seeds[seed]) - _values(base[seed]) for seed in both]).partition(",")[0]


def _values(record: Mapping[str, Any]) -> Tensor:
    values = task_values(record)
    assert values is not None
    return values.double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("reading", choices=READINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/readings"))
    parser.add_argument("--data", default="miniimagenet")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--split", default="val", choices=("val", "test"))
    make(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
