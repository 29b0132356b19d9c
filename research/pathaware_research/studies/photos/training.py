"""Meta-train the adaptation of `photos` on features of its frozen network, and ship the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.few_shot import part_of
from pathaware.data.catalogue import open_store
from pathaware.data.pixels import ImageInput
from pathaware.data.store import ImageStore
from pathaware.inference.trained_model import SHIPPED, find_run
from pathaware.models.backbones import FrozenBackbone
from pathaware.training.checksummed import CHECKPOINT, read_checksummed, write_checksummed
from pathaware.training.config import Config
from pathaware.training.evaluation import tasks_for
from pathaware.training.features import BATCH, ON_A_CPU, feature_file
from pathaware.training.features import write_features as write_to_cache
from pathaware.training.loop import Fit
from pathaware.training.meta_training import MetaTraining
from pathaware.training.progress import ProgressDisplay
from pathaware.training.run_files import CONFIG, METRICS, PROVENANCE
from pathaware.training.run_folder import Run

DATA = ("miniimagenet", "cifar-fs", "grocery")
SOURCES = (("miniimagenet", "val"), ("cifar-fs", "train"))
"""Classes of the tasks that meta-train; the network has seen none of them."""


def config(backbone: Path, size: tuple[int, int] | None = None, **training: Any) -> Config:
    """The settings of the model that ships, or of one for tasks of these ways and shots only."""
    problem = {
        "name": "classification",
        "data": "miniimagenet",
        "model_name": "resnet12",
        "widths": "64,128,256,480",
        "weights": str(backbone / CHECKPOINT),
        "adapt": "head",
        "ways": 16,
        "shots": 20,
        "varying": True,
        "meta_split": "val",
        "mirror_support": True,
    }
    if size is not None:
        problem |= {"ways": size[0], "shots": size[1], "varying": False}
    chosen = {"iterations": 800, "tasks": 8, "rate": 0.02, "device": "cpu", "validate": 0, **training}
    method = {"name": "proto-pamela", "adaptive": True, "power": 0.8, "steps": 10, "rate": 0.3, "anchors": 64}
    return Config.from_dict({"problem": problem, "method": method, "training": chosen})


@dataclass(frozen=True)
class MixedPlan:
    """A plan of tasks from one of several sources."""

    source: int
    plan: Any

    def __len__(self) -> int:
        return len(self.plan)

    def share(self, worker: int, workers: int) -> MixedPlan:
        return MixedPlan(self.source, self.plan.share(worker, workers))


class MixedTasks(TaskSource):
    """Each batch of tasks is of one of these sources, at random. No task mixes the classes of two."""

    def __init__(self, sources: list[TaskSource]) -> None:
        self.sources, self.capturable = sources, False

    def draw(self, tasks: int, generator: torch.Generator) -> MixedPlan:
        chosen = int(torch.randint(len(self.sources), (), generator=generator))
        return MixedPlan(chosen, self.sources[chosen].draw(tasks, generator))

    def gather(self, plan: MixedPlan) -> Episodes:
        return self.sources[plan.source].gather(plan.plan)


def train_on_sources(settings: Config, out: Path, features: Path | None) -> None:
    """Meta-train on tasks of all sources."""
    problem: Any = settings.problem
    use_features(features, problem.model(), ImageInput.from_dict(problem.inputs()))
    objective = MetaTraining(settings)
    with Fit(objective, Run.create(out, settings), display=ProgressDisplay) as fit:
        sources = []
        for data, split in SOURCES:
            there = dataclasses.replace(problem, data=data, meta_split=split)
            source = there.tasks("train", settings.training.torch_device, settings.training.torch_dtype)
            sources.append(tasks_for(objective.learner, there, source))
        objective.source = objective.step.source = MixedTasks(sources)
        while not fit.done:
            fit.advance()


def use_features(
    folder: Path | None,
    model: nn.Module,
    form: ImageInput,
    stores: Sequence[ImageStore] = (),
    splits: tuple[str, ...] = ("train", "val", "test"),
) -> None:
    """Put features from files into the cache, after comparing some with those of the model's own backbone.

    Without a folder nothing is done; features are then computed where they are needed.
    """
    if folder is None:
        return
    backbone = backbone_of(model)
    for store in stores or map(open_store, DATA):
        for view in ("plain", "mirror"):
            table = torch.from_numpy(np.load(folder / f"{store.name}-{view}.npy"))
            check(store, table, backbone, form, mirrored=view == "mirror")
            for split in splits:
                classes = store.split(split)
                if not len(classes):
                    continue
                path = feature_file(store, classes.members, backbone, mirrored=view == "mirror")
                write_to_cache(path, table[classes.members])


def shown(store: ImageStore, chosen: torch.Tensor, form: ImageInput, *, mirrored: bool) -> torch.Tensor:
    """These images as the network takes them."""
    pixels = store.images[chosen].float()
    if store.shape[1] != form.size:
        pixels = F.interpolate(pixels, (form.size, form.size), mode="bicubic", antialias=True).clamp(0, 255)
    x = form.normalised(pixels)
    return x.flip(-1) if mirrored else x


@torch.no_grad()
def check(
    store: ImageStore, table: torch.Tensor, backbone: FrozenBackbone, form: ImageInput, *, mirrored: bool
) -> None:
    chosen = torch.linspace(0, len(store) - 1, 4).long()
    found = backbone(shown(store, chosen, form, mirrored=mirrored))
    likeness = F.cosine_similarity(found, table[chosen].float())
    if likeness.min() < 0.99:
        raise SystemExit(
            f"features of {store.name} are not those of this backbone: cosine {likeness.min():.3f}"
        )


@torch.no_grad()
def write_features(backbone: Path, folder: Path) -> None:
    """Compute the features of all images of all data sets, plain and mirrored."""
    problem: Any = config(backbone).problem
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, form = backbone_of(problem.model()).to(device), ImageInput.from_dict(problem.inputs())
    at_once = BATCH if device.type == "cuda" else ON_A_CPU
    folder.mkdir(parents=True, exist_ok=True)
    for store in map(open_store, DATA):
        for view in ("plain", "mirror"):
            parts = torch.arange(len(store)).split(at_once)
            images = (shown(store, part, form, mirrored=view == "mirror") for part in parts)
            table = torch.cat([network(x.to(device)).half().cpu() for x in images])
            np.save(folder / f"{store.name}-{view}.npy", table.numpy())
            print(store.name, view, tuple(table.shape), flush=True)


def backbone_of(model: nn.Module) -> FrozenBackbone:
    """The frozen part of a network."""
    backbone = part_of(model, FrozenBackbone)
    assert backbone is not None
    return backbone.eval()


def train(backbone: Path, out: Path, features: Path | None) -> None:
    """Meta-train the model that ships."""
    train_on_sources(config(backbone), out, features)


def ship(folder: Path) -> None:
    """Copy the run into the package: the frozen network in half precision."""
    run, target = Run.open(folder), SHIPPED / "photos"
    target.mkdir(exist_ok=True)
    tensors, about = read_checksummed(folder / CHECKPOINT)
    halved = {n: v.half() if ".backbone." in n and v.is_floating_point() else v for n, v in tensors.items()}
    # The path of the weights was that of a folder on one machine, and they are in the checkpoint.
    settings = dataclasses.replace(
        run.config, problem=dataclasses.replace(run.config.problem, weights="pretrained")
    )
    about["config"], about["inputs"] = settings.to_dict(), run.config.problem.inputs()
    write_checksummed(target / CHECKPOINT, halved, about)
    (target / CONFIG).write_text(settings.to_toml(), encoding="utf-8")
    for name in (METRICS, PROVENANCE):
        (target / name).write_bytes((folder / name).read_bytes())


def opened(features: Path | None, folder: str | Path = "photos") -> Run:
    """A run, by default the shipped one; its features are put into the cache."""
    run = Run.open(find_run(folder))
    use_features(features, run.load("cpu").model, ImageInput.from_dict(run.learned()[1]))
    return run
