"""Supervised pretraining of a network on all training classes: settings, losses and the optimiser step.

Not in the paper. Better features first are worth more to a small network than longer meta-training: the body
learns from every image at once, and prototypes of its features predict what meta-training will make of them.

- cosine classifier: Gidaris and Komodakis, CVPR 2018, arXiv:1804.09458
- CutMix: Yun et al., ICCV 2019, arXiv:1905.04899; label smoothing: Szegedy et al., CVPR 2016
- rotation beside classification: Gidaris et al., ICCV 2019, arXiv:1906.05186
- distillation: Hinton, Vinyals and Dean, 2015, arXiv:1503.02531, with teacher and student seeing the same
  images (Beyer et al., CVPR 2022, arXiv:2106.05237)
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from pathaware.core.errors import UsageError
from pathaware.core.head import last_linear, replace_last_linear
from pathaware.core.seeding import generator, seed_all
from pathaware.core.settings import at_least
from pathaware.data.catalogue import open_store
from pathaware.data.labelled import BatchPlan, ClassImages, Distortion
from pathaware.data.pixels import ImageInput
from pathaware.engine.cuda_graph import CapturedStep
from pathaware.engine.execution import fused_embedding
from pathaware.models import build_model
from pathaware.training.config import Training, build_settings
from pathaware.training.pretraining import read_pretraining
from pathaware.training.progress import StepOutcome

MOMENTUM = 0.9
CUTMIX_UNTIL = 0.8
"""The part of training with CutMix: the last fifth shows whole images."""
ROTATED = 4
"""One in so many images of a batch is shown once more, turned, for the rotation head."""
MEASURED = 4096
"""Images by which the statistics of batch norm are measured."""
TASKS, SHOTS, QUERIES, WAYS = 1000, 5, 15, 5
"""The tasks of validation by prototypes."""


@dataclass(frozen=True)
class Pretraining:
    """Settings of supervised pretraining: `[pretraining]` in the `config.toml` of its run.

    - `data`: imported data sets, separated by commas; `splits`: `train`, or `train,val` to learn the
      validation classes as well; `size`: side of the images, 0 for that of the first data set.
    - `model_name`, `width`, `widths`, `dropout`: the network, see `pathaware.models.build_model`.
    - `head`: `linear`, or `cosine` for a classifier by the angle between features and classes.
    - `epochs`, `batch`, `rate` (of SGD with Nesterov momentum, half a cosine to zero after `warmup` epochs),
      `decay` (of weights), `smoothing` (of labels).
    - `crop`: smallest area of a random crop, as a fraction of the image; 1 shifts the padded image instead.
      `jitter`, `mirror`: as in meta-training. `cutmix`: fraction of images with a part of another one, in
      the first four fifths of training.
    - `rotation`: weight of the loss of a second head, which tells by what angle an image is turned.
    - `ema`: momentum of the average of weights that is validated and kept; 0 for the weights themselves.
    - `teacher`: folder of a pretraining whose predictions are learned with weight `distil` at `temperature`.
      It predicts every augmented image anew; with `teacher_views` it predicts so many augmented views of each
      image once, before training, and the mean of these is learned, which takes far less time.
    - `validate`: epochs between validations, 0 for none. If the validation classes are not trained on, the
      checkpoint is the best one by 5-way 5-shot prototypes of their features, otherwise the last one.
    - `save`: epochs between saved states. `seed`, `precision`, `device`, `threads`, `graph`: see `Training`.
    """

    data: str = "miniimagenet"
    splits: str = "train"
    size: int = 0
    model_name: str = "conv4"
    width: int = 0
    widths: str = ""
    dropout: float = 0.0
    head: Literal["linear", "cosine"] = "linear"
    epochs: int = 100
    batch: int = 256
    rate: float = 0.1
    warmup: int = 0
    decay: float = 5e-4
    smoothing: float = 0.0
    crop: float = 0.35
    jitter: float = 0.4
    mirror: bool = True
    cutmix: float = 0.0
    rotation: float = 0.0
    ema: float = 0.999
    teacher: str = ""
    distil: float = 0.7
    temperature: float = 4.0
    teacher_views: int = 0
    validate: int = 5
    save: int = 10
    data_dir: str = ""
    seed: int = 0
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    device: str = "auto"
    threads: int = 0
    graph: bool = True

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch=self.batch)
        at_least(0, size=self.size, width=self.width, warmup=self.warmup, decay=self.decay)
        at_least(0, rotation=self.rotation, validate=self.validate, save=self.save)
        at_least(0, teacher_views=self.teacher_views)
        fractions = ("dropout", "smoothing", "jitter", "cutmix", "ema", "distil", "crop")
        for name in fractions:
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: {getattr(self, name)} is not allowed; 0 to 1")
        for name in ("rate", "temperature", "crop"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}: {getattr(self, name)} is not allowed; a positive number")
        if self.warmup >= self.epochs:
            raise UsageError(f"warmup: {self.warmup} is not allowed; fewer than the {self.epochs} epochs")
        if self.chosen_splits not in (["train"], ["train", "val"]):
            raise UsageError(f"{self.splits!r} must be one of train, train,val", field="splits")
        _ = self.training  # checks the rest

    @property
    def chosen_splits(self) -> list[str]:
        return [part.strip().replace("validation", "val") for part in self.splits.split(",")]

    @property
    def training(self) -> Training:
        """The settings that pretraining shares with meta-training."""
        shared = ("rate", "seed", "precision", "device", "threads", "graph")
        return Training(**{name: getattr(self, name) for name in shared})

    @property
    def label(self) -> str:
        """A short name for folders, such as `miniimagenet-resnet12`."""
        return f"{self.data.replace(',', '-')}-{self.model_name.replace(':', '-')}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.to_dict().items()]
        return "\n".join(["[pretraining]", *lines]) + "\n"

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Pretraining:
        return build_settings("pretraining", cls, settings)

    def images(self, splits: list[str]) -> ClassImages:
        """The images of some splits, on the device."""
        directory = Path(self.data_dir) if self.data_dir else None
        stores = [open_store(name.strip(), directory) for name in self.data.split(",")]
        return ClassImages(stores, splits, self.training.torch_device, size=self.size)

    def network(self, classes: int, inputs: ImageInput) -> Classifier:
        """The classifier at its initialisation, which depends on the seed only."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            shape = (inputs.size, inputs.channels, self.width, self.widths, self.dropout)
            return Classifier(build_model(self.model_name, 2, *shape), classes, self.head, self.rotation > 0)


@dataclass(frozen=True)
class PretrainedClassifier:
    """A classifier of many classes, the images it expects and the names of its classes.

    `accuracy` is that of prototypes of validation classes, if those were not trained on.
    """

    model: Classifier
    inputs: ImageInput
    classes: list[str]
    epoch: int
    accuracy: float | None

    @property
    def body(self) -> nn.Module:
        """The frozen network without its last layer: images `[N, C, size, size]` → features `[N, …]`."""
        return self.model.body


def load_classifier(folder: Path, device: torch.device | str = "cpu") -> PretrainedClassifier:
    """Load the classifier of a pretraining in evaluation mode, with what is needed to use it."""
    tensors, about = read_pretraining(folder)
    inputs = ImageInput.from_dict(about["inputs"])
    model = Pretraining.from_dict(about["pretraining"]).network(len(about["classes"]), inputs)
    model.load_state_dict(tensors)
    model = model.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload]
    return PretrainedClassifier(model, inputs, about["classes"], about["epoch"], about["prototype_accuracy"])


class CosineLinear(nn.Module):
    """Logits by the cosine of the angle between features and the weights of each class, times a scale."""

    def __init__(self, features: int, classes: int, scale: float = 10.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features) * features**-0.5)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class Classifier(nn.Module):
    """A network without its last layer, a classifier of all classes, and a head for rotations if wanted.

    Batch norm has statistics, see `measure_statistics`, so that features can be used frozen, image by image.
    """

    def __init__(self, model: nn.Module, classes: int, head: str = "linear", rotation: bool = False) -> None:
        super().__init__()
        _, last = last_linear(model)
        self.body = with_running_statistics(replace_last_linear(model, nn.Identity()))
        kind = CosineLinear if head == "cosine" else nn.Linear
        self.head: nn.Module = kind(last.in_features, classes)
        self.turns = nn.Linear(last.in_features, 4) if rotation else None

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x.contiguous(memory_format=torch.channels_last))
        return found.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def with_running_statistics(model: nn.Module) -> nn.Module:
    """Make batch norm keep running statistics; the networks of this package are built without."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not module.track_running_stats:
            module.track_running_stats = True
            module.running_mean = torch.zeros(module.num_features)
            module.running_var = torch.ones(module.num_features)
            module.num_batches_tracked = torch.tensor(0)
    return model


def measure_statistics(model: Classifier, images: ClassImages, seed: int = 0) -> None:
    """Set the statistics of batch norm to those of some of these images without augmentation.

    Averages that are kept while training belong to earlier weights and to images that are cropped, mixed and
    turned. Features are used without any of that.
    """
    chosen = torch.randperm(len(images), generator=generator(seed, "statistics"))[:MEASURED]
    update_bn(images.plain(chosen), model)


class ClassifierStep:
    """One step of supervised training, which a CUDA graph can capture.

    Batch norm uses the statistics of each batch and keeps none; `ema` gets those of `measure_statistics`.
    On a GPU the kernels run a Conv-N.
    """

    def __init__(
        self, model: Classifier, images: ClassImages, settings: Pretraining, teacher: Classifier | None = None
    ) -> None:
        self.images, self.settings, self.teacher = images, settings, teacher
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.pair = nn.ModuleDict({"model": self.model, "ema": self.ema})
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
        fused = fused_embedding(self.model.body)
        self.fused = fused if fused is not None and fused.whole else None
        device = images.device
        self.low_precision = settings.precision == "bf16" and device.type == "cuda"
        self.taught = self._stored_predictions() if teacher is not None and settings.teacher_views else None
        self.keep = torch.tensor(0.0, device=device)
        self.rate = torch.tensor(settings.rate, device=device, dtype=torch.float32)
        trained = list(self.model.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            trained, self.rate, MOMENTUM, weight_decay=settings.decay, nesterov=True, fused=True
        )

    @property
    def changed(self) -> list[Tensor]:
        return [*self.pair.parameters(), *self.pair.buffers()]

    def __call__(self, plan: BatchPlan, rate: float) -> StepOutcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: BatchPlan) -> StepOutcome:
        self.optimizer.zero_grad()
        loss = self._loss(plan, *self.images.show(plan))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        self._average()
        return StepOutcome(loss.detach()[None], norm.detach(), skipped)

    def _loss(self, plan: BatchPlan, x: Tensor, own: Tensor, other: Tensor, fraction: Tensor) -> Tensor:
        settings, model = self.settings, self.model
        shown, group = x, len(x) // ROTATED // 4
        if model.turns is not None:
            shown = torch.cat([x, turn(x[: 4 * group])])
        features = self._features(model, shown)
        logits = model.head(features[: len(x)])
        loss = mixed_cross_entropy(logits, own, other, fraction, settings.smoothing)
        if self.teacher is not None:
            taught = self._predictions(self.teacher, plan, x, fraction)
            distilled = distillation(logits, taught, settings.temperature)
            loss = torch.lerp(loss, distilled, settings.distil)
        if model.turns is not None and group:
            angles = torch.arange(4 * group, device=x.device) // group
            loss = loss + settings.rotation * F.cross_entropy(model.turns(features[len(x) :]), angles)
        return loss

    @torch.no_grad()
    def _predictions(self, teacher: Classifier, plan: BatchPlan, x: Tensor, fraction: Tensor) -> Tensor:
        """The teacher's logits of a batch. Stored ones are those of whole images, mixed like these."""
        if self.taught is None:
            return teacher.head(self._features(teacher, x))  # type: ignore[no-any-return]
        own = self.taught[plan.images.to(self.taught.device)]
        return torch.lerp(own, own.roll(1, 0), fraction[:, None])

    @torch.no_grad()
    def _stored_predictions(self) -> Tensor:
        """The teacher's mean logits of some augmented views of every image, `[images, classes]`."""
        settings, teacher = self.settings, self.teacher
        assert teacher is not None
        distortion = Distortion(settings.crop, settings.jitter, 0.0, settings.mirror)
        random = generator(settings.seed, "teacher")
        found = torch.zeros(len(self.images), len(self.images.names), device=self.images.device)
        for part in torch.arange(len(self.images)).split(settings.batch):
            for _ in range(settings.teacher_views):
                shown = self.images.show(self.images.draw(part, distortion, random))[0]
                found[part] += teacher.head(self._features(teacher, shown)) / settings.teacher_views
        return found

    def _features(self, model: Classifier, x: Tensor) -> Tensor:
        """Features in float32; with bf16 the body computes in bfloat16, as autocast or the kernels choose."""
        if model is self.model and self.fused is not None and self.fused.usable(x):
            return self.fused(x[None])[0]
        half = torch.autocast(x.device.type, torch.bfloat16, enabled=self.low_precision, cache_enabled=False)
        with half:
            features = model.features(x)
        return features.float()

    @torch.no_grad()
    def _average(self) -> None:
        """Update the average of weights; `keep` is the part of the old one."""
        for mean, value in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            mean.copy_(torch.lerp(value, mean, self.keep))


def turn(x: Tensor) -> Tensor:
    """Turn four equal groups of square images by 0, 1, 2 and 3 right angles."""
    return torch.cat([part.rot90(k, (2, 3)) for k, part in enumerate(x.chunk(4))])


def mixed_cross_entropy(
    logits: Tensor, own: Tensor, other: Tensor, fraction: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The loss of CutMix: each label with its share of the image."""
    first = F.cross_entropy(logits, own, reduction="none", label_smoothing=smoothing)
    second = F.cross_entropy(logits, other, reduction="none", label_smoothing=smoothing)
    return torch.lerp(first, second, fraction).mean()


def distillation(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student) of softened predictions, averaged over examples."""
    student, teacher = ((each / temperature).log_softmax(-1) for each in (logits, taught))
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return temperature**2 * divergence.mean()


class ClassifierTrainer:
    """Pretraining, one step at a time. A step depends on the settings, the state and its own number only."""

    def __init__(self, settings: Pretraining, images: ClassImages, teacher: Classifier | None = None) -> None:
        settings.training.apply()
        self.settings, self.images = settings, images
        model = settings.network(len(images.names), images.inputs).to(images.device)
        self.step = ClassifierStep(model, images, settings, teacher)
        graph = settings.graph and images.device.type == "cuda"
        self.execute = CapturedStep(self.step) if graph else self.step
        self.batch = min(settings.batch, len(images))
        self.batches = len(images) // self.batch
        self.total = settings.epochs * self.batches
        self.iteration = 0
        self._order = -1, torch.empty(0)

    @property
    def done(self) -> bool:
        return self.iteration >= self.total

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        settings, t = self.settings, self.iteration
        warm = settings.warmup * self.batches
        if t < warm:
            return settings.rate * (t + 1) / warm
        return settings.rate * 0.5 * (1 + math.cos(math.pi * (t - warm) / (self.total - warm)))

    def advance(self) -> StepOutcome:
        settings, t = self.settings, self.iteration
        epoch, place = divmod(t, self.batches)
        if self._order[0] != epoch:
            self._order = epoch, self.images.order(settings.seed, epoch)
        chosen = self._order[1][place * self.batch : (place + 1) * self.batch]
        cut = settings.cutmix if t < CUTMIX_UNTIL * self.total else 0.0
        distortion = Distortion(settings.crop, settings.jitter, cut, settings.mirror)
        plan = self.images.draw(chosen, distortion, generator(settings.seed, "pretrain", t))
        seed_all(settings.seed, "noise", t)
        # A short memory at first, so that the average forgets the initialisation.
        self.step.keep.fill_(min(settings.ema, (1 + t) / (10 + t)))
        outcome = self.execute(plan, self.rate)
        self.iteration += 1
        return outcome


@torch.no_grad()
def prototype_accuracy(model: Classifier, images: ClassImages, seed: int = 0) -> float:
    """Accuracy of nearest prototypes in 5-way 5-shot tasks of these classes."""
    model.eval()
    return separation(torch.cat([model.features(x).float() for x in images.plain()]), images.counts, seed)


def separation(features: Tensor, counts: Tensor, seed: int = 0, shots: int = SHOTS) -> float:
    """Accuracy of nearest prototypes (by cosine) in 5-way tasks.

    `features [N, F]` are those of all images of the first class, then of the second and so on; `counts` has
    the number of images of each.
    """
    features = F.normalize(features, dim=-1)
    random = generator(seed, "prototypes")
    ways = min(WAYS, len(counts))
    starts = counts.cumsum(0) - counts
    classes = torch.rand(TASKS, len(counts), generator=random).topk(ways).indices
    keys = torch.rand(TASKS, ways, int(counts.max()), generator=random)
    keys.masked_fill_(torch.arange(int(counts.max())) >= counts[classes, None], -1.0)
    chosen = (starts[classes, None] + keys.topk(shots + QUERIES).indices).to(features.device)
    right = []
    for task in chosen.split(100):
        found = features[task]  # [tasks, ways, images, features]
        prototypes = F.normalize(found[:, :, :shots].mean(2), dim=-1)
        queries = found[:, :, shots:].flatten(1, 2)
        nearest = (queries @ prototypes.mT).argmax(-1).unflatten(1, (ways, -1))
        own = torch.arange(ways, device=nearest.device)[:, None]
        right.append((nearest == own).double().mean((1, 2)))
    return torch.cat(right).mean().item()
