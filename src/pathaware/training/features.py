"""Features of a frozen backbone: computed once per data set, cached on disk, and drawn as tasks.

The cache is keyed by content: the digest of the backbone, of the pixels and of how they are normalised. It is
safe to delete at any time.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, QueryLevel, StepPredictions, part_of
from pathaware.core.head import Head
from pathaware.core.path import Order
from pathaware.core.writing import make_folder
from pathaware.data.augmentation import Augmentation
from pathaware.data.episodes import EpisodePlan, ImageEpisodes, ImageViews, Views
from pathaware.data.store import ImageStore, SplitClasses, counted
from pathaware.data.unbalanced import DerivedTasks
from pathaware.methods.prototypical import class_means
from pathaware.models.backbones import FrozenBackbone, folded
from pathaware.training.checksummed import CorruptFile, read_checksummed, tensor_digest, write_checksummed
from pathaware.training.progress import with_progress

BATCH = 64
"""Images that are embedded at a time."""
MANY = 100
"""Images whose features take long enough on a CPU to show progress."""
ON_A_CPU = 4
"""Photographs that a CPU embeds at once. The activations of more do not fit its caches: with 50 at once each
takes half as long again."""

PRECISION = torch.float16
"""Type of stored features; rounding changes no accuracy that can be measured, and halves the files."""


def cache_dir() -> Path:
    """The folder of cached features: `$PATHAWARE_CACHE`, else in the XDG cache home."""
    if named := os.environ.get("PATHAWARE_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pathaware"


def backbone_digest(backbone: nn.Module) -> str:
    """A digest of all values of a backbone and of its structure."""
    structure = hashlib.sha256(repr(backbone).encode()).hexdigest()
    return hashlib.sha256((tensor_digest(backbone.state_dict()) + structure).encode()).hexdigest()


def store_features(
    store: ImageStore, members: Tensor, backbone: FrozenBackbone, *, mirrored: bool = False
) -> Tensor:
    """The features `[N, F]` of these images of a store, from the cache if it has them."""
    path = feature_file(store, members, backbone, mirrored=mirrored)
    with suppress(CorruptFile, KeyError):
        features = read_checksummed(path)[0]["features"]
        if features.shape == (len(members), backbone.features):
            return features
    views = ImageViews(store, Augmentation(), next(backbone.parameters()).device)
    batches = (views.show(EpisodePlan(part[None])) for part in members.split(BATCH))
    shown = (x.flip(-1) for x in batches) if mirrored else batches
    features = torch.cat(list(_embedded(backbone, shown, len(members))))
    with suppress(OSError):  # a cache that cannot be written is no cache, and no error
        write_features(path, features)
    return features


def feature_file(store: ImageStore, members: Tensor, backbone: FrozenBackbone, *, mirrored: bool) -> Path:
    """The file in the cache for features of these images of a store."""
    manifest = store.manifest
    chosen = hashlib.sha256(members.numpy().data).hexdigest()
    return _cache_path(backbone, f"{manifest.sha256} {manifest.mean} {manifest.std} {chosen} {mirrored}")


def _cache_path(backbone: FrozenBackbone, content: str) -> Path:
    key = hashlib.sha256(f"{backbone_digest(backbone)} {content}".encode()).hexdigest()
    return cache_dir() / "features" / f"{key[:32]}.safetensors"


def write_features(path: Path, features: Tensor) -> None:
    """Write features `[N, F]` to a file of the cache."""
    make_folder(path.parent)
    write_checksummed(path, {"features": features.to(PRECISION)}, {"images": len(features)})


@torch.no_grad()
def _embedded(backbone: FrozenBackbone, batches: Iterable[Tensor], count: int) -> Iterator[Tensor]:
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    training = backbone.training
    backbone.eval()
    for batch in _shown(batches, count):
        yield backbone(batch.to(device)).to("cpu", PRECISION)
    backbone.train(training)


def _shown(batches: Iterable[Tensor], count: int) -> Iterable[Tensor]:
    return with_progress(batches, count, f"features of {counted(count, 'image')}", least=MANY, size=len)


class FeatureMemory:
    """Embeds images with a frozen backbone and remembers the features of the last `most` of them."""

    def __init__(
        self, backbone: FrozenBackbone, normalised: Callable[[Tensor], Tensor], most: int = 4096
    ) -> None:
        self.backbone, self.normalised, self.most = backbone, normalised, most
        self.network = folded(backbone)
        self._known: OrderedDict[bytes, Tensor] = OrderedDict()

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Features `[N, F]` of pixels `[N, C, size, size]` in 0…255."""
        device = next(self.backbone.parameters()).device
        keys = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in pixels.cpu().numpy()]
        rows = {key: self._known[key] for key in keys if key in self._known}
        new = list({key: i for i, key in enumerate(keys) if key not in rows}.values())
        at_once = ON_A_CPU if device.type == "cpu" else BATCH
        parts = torch.tensor(new, dtype=torch.long).split(at_once) if new else ()
        for part in _shown(parts, len(new)):
            features = self.network(self.normalised(pixels[part].to(device)))
            rows.update(zip((keys[i] for i in part.tolist()), features, strict=True))
        self._known.update(rows)
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        return torch.stack([rows[key] for key in keys]) if keys else torch.zeros(0, self.backbone.features)

    def support(self, pixels: Tensor, *, mirrored: bool) -> Tensor:
        """Features of a support set; with `mirrored`, the mean over images and their mirror images."""
        features = self(pixels)
        return (features + self(pixels.flip(-1))) / 2 if mirrored else features

    @contextmanager
    def kept(self, name: str) -> Iterator[None]:
        """Keep all features that are known at the end in the cache, for the next time with this name."""
        path = _cache_path(self.backbone, f"memory {name}")
        with suppress(CorruptFile, KeyError):
            kept = read_checksummed(path)[0]
            rows = kept["features"].to(next(self.backbone.parameters()).device)
            self._known.update(zip(map(bytes, kept["keys"].numpy()), rows, strict=True))
        known = set(self._known)
        yield
        if self._known.keys() != known:
            keys = torch.tensor([list(key) for key in self._known], dtype=torch.uint8)
            features = torch.stack(list(self._known.values())).cpu()
            with suppress(OSError):
                make_folder(path.parent)
                write_checksummed(path, {"keys": keys, "features": features}, {"images": len(keys)})

    def learn(self, pixels: Tensor, features: Tensor) -> None:
        """Remember features `[N, F]` that were computed before, such as those of a saved classifier."""
        device = next(self.backbone.parameters()).device
        for image, row in zip(pixels.cpu().numpy(), features.to(device), strict=True):
            self._known[hashlib.blake2b(image.tobytes(), digest_size=16).digest()] = row
        self.most = max(self.most, len(self._known))


class FeatureViews:
    """Views of images for a source of tasks (see `Views`): features instead of pixels.

    The features of all images of a split are looked up in a table `[views, N, F]`. The second view, where
    there is one, is of the mirrored images: queries of training tasks take either at random, and with
    `mirror_support` the features of the support set are the mean of both. All other augmentation is left out,
    because every image would need a pass through the backbone.
    """

    on_device = False

    def __init__(
        self,
        images: Views,
        classes: SplitClasses,
        backbone: FrozenBackbone,
        *,
        mirror_support: bool = False,
    ) -> None:
        self.device, self.dtype, self.padding = images.device, images.dtype, images.padding
        self.store, self.augmentation = images.store, images.augmentation
        self.mirror, self.mirror_support = images.mirror, mirror_support
        members = classes.members
        self.row = torch.full((len(self.store),), -1)
        self.row[members] = torch.arange(len(members))
        views = [False, True] if self.mirror or mirror_support else [False]
        tables = [store_features(self.store, members, backbone, mirrored=mirrored) for mirrored in views]
        self.table = torch.stack(tables).to(self.device, self.dtype)

    def draw(self, images: Tensor, generator: torch.Generator) -> EpisodePlan:
        flips = torch.randint(2, images.shape, generator=generator, dtype=torch.bool) if self.mirror else None
        return EpisodePlan(images, flips=flips)

    def episodes(self, plan: EpisodePlan, support: int) -> Episodes:
        assert plan.labels is not None
        rows = self.row[plan.images.cpu()].to(self.device)
        view = torch.zeros_like(rows) if plan.flips is None else plan.flips.to(self.device).long()
        x, y = self.table[view, rows], plan.labels.to(self.device)
        shown = self.table[:, rows[:, :support]].mean(0) if self.mirror_support else x[:, :support]
        return Episodes(shown, y[:, :support], x[:, support:], y[:, support:])


def feature_tasks(
    source: TaskSource, learner: FewShotLearner, *, mirror_support: bool = False, observe: bool = False
) -> TaskSource:
    """The same tasks with features in place of images, for a learner with a frozen backbone.

    With `observe`, its head first takes statistics of the features of all training classes.
    """
    backbone, head = part_of(learner, FrozenBackbone), part_of(learner, Head)
    if backbone is None or not isinstance(source, ImageEpisodes | DerivedTasks):
        raise UsageError("adapt: head needs tasks of labelled images")
    images, store = source.images.views, source.images.store
    if observe and head is not None:
        training = store.split("train")
        features = store_features(store, training.members, backbone).to(images.device, images.dtype)
        head.observe(features, training.labels.to(images.device))
    own = store.split(source.images.split)
    return source.with_views(FeatureViews(images, own, backbone, mirror_support=mirror_support))


BaselineName = Literal["nearest-mean", "logistic"]
BASELINES: tuple[BaselineName, ...] = get_args(BaselineName)
"""Baselines: classifiers of frozen features that learn nothing from other tasks."""


class FeatureBaseline(FewShotLearner):
    """A linear classifier of features divided by their length: nearest class mean, or logistic regression.

    `penalty` is C of logistic regression, one over the strength of its penalty; scikit-learn's default, 1, as
    in Tian et al. (ECCV 2020).
    """

    def __init__(self, learner: FewShotLearner, kind: BaselineName, *, penalty: float = 1.0) -> None:
        super().__init__()
        backbone = part_of(learner, FrozenBackbone)
        if backbone is None:
            raise UsageError("baselines: the learner has no frozen features")
        self.model = backbone
        self.kind, self.loss, self.penalty = kind, learner.loss, penalty

    def rows(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[K, F]` and biases `[K]` of a linear layer, from features `[S, F]` and classes `[S]`."""
        z, classes = F.normalize(features, dim=-1), int(targets.max()) + 1
        if self.kind == "nearest-mean":
            means = class_means(z[None], targets[None], classes)[0]
            return 2 * means, -means.square().sum(1)
        from sklearn.linear_model import LogisticRegression

        solver = LogisticRegression(C=self.penalty, max_iter=1000)
        fitted = solver.fit(z.double().cpu().numpy(), targets.cpu().numpy())
        weights, bias = torch.from_numpy(fitted.coef_).to(z), torch.from_numpy(fitted.intercept_).to(z)
        if classes == 2:  # scikit-learn has one row for two classes
            weights, bias = torch.cat([-weights / 2, weights / 2]), torch.cat([-bias / 2, bias / 2])
        return weights, bias

    def _predictions(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor, level: QueryLevel, steps: int
    ) -> StepPredictions:
        """Two predictions: zeros, and those of the fitted layer."""
        tasks = zip(support_x, support_y, query_x, strict=True)
        after = torch.stack([self.adapt(x, y)(queries) for x, y, queries in tasks])
        return StepPredictions([torch.zeros_like(after), after], torch.zeros(len(after), dtype=torch.bool))

    def adapted_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        raise self._lacks("meta-gradient")

    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        """Fit to one task; return the backbone with the fitted layer."""
        with torch.no_grad():
            weights, bias = self.rows(self.model(support_x), support_y)
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, weights.shape[1], len(weights)).to(weights)
        layer.load_state_dict({"weight": weights, "bias": bias})
        return nn.Sequential(self.model, UnitLength(), layer)


class UnitLength(nn.Module):
    """Divides each vector by its length."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)
