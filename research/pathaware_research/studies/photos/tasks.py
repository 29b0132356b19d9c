"""Features of the image sets of the study, and tasks of their classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.data.pixels import ImageInput
from pathaware.models.efficientnet_lite import (
    CROP,
    NORMALISATION,
    VARIANTS,
    efficientnet_lite,
    load_pretrained,
)

TRAINING = ("plants", "fruits", "signs", "scenes")
"""Sets whose tasks meta-train the head: leaves, fruits (one object each), traffic signs, landscapes."""
VALIDATION = ("caltech", "grocery", "pets")
"""Sets that choose between heads, settings and preparations of images: objects, groceries, cats and dogs."""
TEST = ("flowers", "textures", "waste")
"""Sets that are measured at the end and choose nothing."""
BATCH = 8


@dataclass(frozen=True)
class FeatureSet:
    """Features `[N, F]` of the images of a set, and their classes `[N]`."""

    name: str
    features: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def of_classes(self, chosen: Tensor) -> FeatureSet:
        """The images of these classes only, numbered anew."""
        place = torch.full((self.classes,), -1)
        place[chosen] = torch.arange(len(chosen))
        kept = place[self.labels] >= 0
        return FeatureSet(self.name, self.features[kept], place[self.labels[kept]])


def load(folder: Path, names: tuple[str, ...]) -> list[FeatureSet]:
    """The features that `write` wrote."""
    found = []
    for name in names:
        tensors = load_file(folder / f"{name}.safetensors")
        found.append(FeatureSet(name, tensors["features"].float(), tensors["labels"]))
    return found


@torch.no_grad()
def write(images: Path, folder: Path, network: str = "efficientnet-lite0") -> None:
    """Compute the features of every folder in `images` that has none yet: a set, with a folder per class.

    Images are prepared as `pathaware learn` does.
    """
    size, (mean, std) = VARIANTS[network].size, NORMALISATION
    form = ImageInput(size, 3, False, mean, std, crop=CROP)
    body = efficientnet_lite(network)
    load_pretrained(body, network)
    body[-1] = torch.nn.Identity()
    body.eval()
    folder.mkdir(parents=True, exist_ok=True)
    for root in sorted(path for path in images.iterdir() if path.is_dir()):
        target = folder / f"{root.name}.safetensors"
        if target.exists():
            continue
        classes = sorted(path for path in root.iterdir() if path.is_dir())
        paths = [(i, path) for i, each in enumerate(classes) for path in sorted(each.iterdir())]
        features, labels = [], []
        for start in range(0, len(paths), BATCH):
            pixels = []
            for label, path in paths[start : start + BATCH]:
                try:
                    pixels.append(form.stack([path]))
                except UsageError as error:
                    print(error)
                    continue
                labels.append(label)
            features.append(body(form.normalised(torch.cat(pixels))).half())
        save_file({"features": torch.cat(features), "labels": torch.tensor(labels)}, target)
        print(root.name, len(classes), "classes", len(labels), "images", flush=True)


def tasks(
    found: FeatureSet, ways: int, shots: int, count: int, *, seed: int, queries: int = 10, batch: int = 20
) -> Iterator[tuple[Episodes, Tensor]]:
    """Batches of `count` tasks with `queries` per class, and as many foreign queries of other classes.

    The foreign queries `[T, ways · queries, F]` are empty if the set has too few classes.
    """
    random = torch.Generator().manual_seed(seed)
    members = [(found.labels == k).nonzero()[:, 0] for k in range(found.classes)]
    usable = [k for k, each in enumerate(members) if len(each) >= shots + queries]
    if len(usable) < ways:
        raise UsageError(f"{found.name} has {len(usable)} classes of {shots + queries} images, not {ways}")
    foreign_ways = min(ways, len(usable) - ways)
    for start in range(0, count, batch):
        support, query, foreign = [], [], []
        size = min(batch, count - start)
        for _ in range(size):
            order = torch.randperm(len(usable), generator=random).tolist()
            chosen = [
                members[usable[k]][torch.randperm(len(members[usable[k]]), generator=random)]
                for k in order[: ways + foreign_ways]
            ]
            support.append(torch.stack([each[:shots] for each in chosen[:ways]]))
            query.append(torch.stack([each[shots : shots + queries] for each in chosen[:ways]]))
            foreign.append(torch.cat([each[:queries] for each in chosen[ways:]] or [torch.zeros(0).long()]))
        y = torch.arange(ways).repeat_interleave(shots).expand(size, -1)
        query_y = torch.arange(ways).repeat_interleave(queries).expand(size, -1)
        x, q = (found.features[torch.stack(each).flatten(1)] for each in (support, query))
        yield Episodes(x, y, q, query_y), found.features[torch.stack(foreign)]


def varied_task(found: FeatureSet, random: torch.Generator, most: int = 200) -> Episodes:
    """A task of 2 to 50 classes with 1 to 50 images each, equal or not, of at most `most` support images."""

    def between(low: float, high: float) -> float:
        part = float(torch.rand((), generator=random))
        return float(low * (high / low) ** part)

    counts = found.labels.bincount()
    ways = min(round(between(2, 50)), len(counts))
    typical = between(1, 50)
    equal = bool(torch.rand((), generator=random) < 0.5)
    chosen = torch.randperm(len(counts), generator=random)[:ways]
    queries = max(1, 60 // ways)
    support, labels, query, query_labels = [], [], [], []
    for label, k in enumerate(chosen.tolist()):
        members = (found.labels == k).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=random)]
        wanted = typical if equal else typical * between(0.4, 2.5)
        shots = int(max(1, min(round(wanted), most // ways, len(members) - queries)))
        support.append(members[:shots])
        query.append(members[shots : shots + queries])
        labels += [label] * shots
        query_labels += [label] * len(query[-1])
    x, q = found.features[torch.cat(support)], found.features[torch.cat(query)]
    return Episodes(x[None], torch.tensor(labels)[None], q[None], torch.tensor(query_labels)[None])
