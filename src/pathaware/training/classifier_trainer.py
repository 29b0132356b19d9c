"""Training of a classifier of all training classes: losses, the optimiser step, and validation by prototypes.

The accuracy of its prototypes indicates that after meta-training.

- CutMix: Yun et al., ICCV 2019, arXiv:1905.04899; label smoothing: Szegedy et al., CVPR 2016
- rotation beside classification: Gidaris et al., ICCV 2019, arXiv:1906.05186
- distillation: Hinton, Vinyals and Dean, 2015, arXiv:1503.02531, with teacher and student seeing the same
  images (Beyer et al., CVPR 2022, arXiv:2106.05237); of the similarity of images: Fang et al., ICLR 2021,
  arXiv:2101.04731
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from pathaware.core.execution import captured, engine
from pathaware.core.seeding import generator, seed_all
from pathaware.data.labelled import BatchPlan, ClassImages, Distortion
from pathaware.training.classifier import Classifier, Pretraining
from pathaware.training.progress import StepOutcome

MOMENTUM = 0.9
CUTMIX_UNTIL = 0.8
"""The part of training with CutMix: the last fifth shows whole images."""
ROTATED = 4
"""One in this many images of a batch is also shown rotated, for the rotation head."""
MEASURED = 4096
"""Images by which the statistics of batch norm and the directions of features are measured."""
SIMILARITY_TEMPERATURE = 0.1
"""Divides the cosines that `similarity_loss` compares."""
SCALES = tuple(2.0 ** (k / 2) for k in range(17))
"""Scales of the cosine that a classifier by class means may have, 1 to 256."""
TASKS, SHOTS, QUERIES, WAYS = 1000, 5, 15, 5
"""The tasks of validation by prototypes."""


def measure_statistics(model: Classifier, images: ClassImages, seed: int = 0) -> None:
    """Set the statistics of batch norm to those of some of these images without augmentation.

    Running averages from training would belong to earlier weights and to cropped, mixed and rotated images,
    while features are used on plain images.
    """
    update_bn(images.plain(_sample(images, seed)), model)


@torch.no_grad()
def sample_features(model: Classifier, images: ClassImages, seed: int = 0) -> Tensor:
    """The features `[N, F]` of some of these images without augmentation."""
    return torch.cat([model.features(x).float() for x in images.plain(_sample(images, seed))])


def _sample(images: ClassImages, seed: int) -> Tensor:
    return torch.randperm(len(images), generator=generator(seed, "statistics"))[:MEASURED]


class TeacherOutputs(NamedTuple):
    """The outputs of a teacher for N images: logits `[N, classes]` and features `[N, F]`.

    Features are directions from the mean feature of all training images, of unit length.
    """

    logits: Tensor
    features: Tensor


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
        fast = engine()
        fused = None if fast is None else fast.embedding(self.model.body)
        self.fused = fused if fused is not None and fused.whole else None
        device = images.device
        self.low_precision = settings.precision == "bf16" and device.type == "cuda"
        self.stored = self._stored_lesson() if teacher is not None and settings.teacher_views else None
        self.middle = self._mean_feature() if model.match is not None and self.stored is None else None
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
            lesson = self._lesson(self.teacher, plan, x, fraction)
            distilled = distillation(logits, lesson.logits, settings.temperature)
            loss = torch.lerp(loss, distilled, settings.distil)
            if model.match is not None:
                matched = similarity_loss(model.match(features[: len(x)]), lesson.features)
                loss = loss + settings.match * matched
        if model.turns is not None and group:
            angles = torch.arange(4 * group, device=x.device) // group
            loss = loss + settings.rotation * F.cross_entropy(model.turns(features[len(x) :]), angles)
        return loss

    @torch.no_grad()
    def _lesson(self, teacher: Classifier, plan: BatchPlan, x: Tensor, fraction: Tensor) -> TeacherOutputs:
        """The teacher's outputs for a batch. Stored ones are for whole images and are mixed like these."""
        if self.stored is None:
            features = self._features(teacher, x)
            centred = features if self.middle is None else F.normalize(features, dim=-1) - self.middle
            return TeacherOutputs(teacher.head(features), F.normalize(centred, dim=-1))
        own = (part[plan.images.to(part.device)] for part in self.stored)
        return TeacherOutputs(*(torch.lerp(part, part.roll(1, 0), fraction[:, None]) for part in own))

    @torch.no_grad()
    def _stored_lesson(self) -> TeacherOutputs:
        """The teacher's mean outputs for some augmented views of every image."""
        settings, teacher = self.settings, self.teacher
        assert teacher is not None
        distortion = Distortion(settings.crop, settings.jitter, 0.0, settings.mirror)
        random = generator(settings.seed, "teacher")
        parts = []
        for part in torch.arange(len(self.images)).split(settings.batch):
            shown = (
                self.images.show(self.images.draw(part, distortion, random))[0]
                for _ in range(settings.teacher_views)
            )
            features = torch.stack([self._features(teacher, x) for x in shown])
            parts.append((teacher.head(features).mean(0), F.normalize(features, dim=-1).mean(0)))
        logits, directions = (torch.cat(part) for part in zip(*parts, strict=True))
        return TeacherOutputs(logits, F.normalize(directions - directions.mean(0), dim=-1))

    @torch.no_grad()
    def _mean_feature(self) -> Tensor:
        """The mean direction of the teacher's features of all images."""
        assert self.teacher is not None
        parts = [F.normalize(self._features(self.teacher, x), dim=-1) for x in self.images.plain()]
        return torch.cat(parts).mean(0)

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


def similarity_loss(features: Tensor, taught: Tensor) -> Tensor:
    """KL(teacher ‖ student) of how similar each image of a batch is to all of them.

    The teacher compares its features `[N, F]` with each other, the student its own with those of the teacher.
    """
    own = F.normalize(features, dim=-1) @ taught.T / SIMILARITY_TEMPERATURE
    teacher = taught @ taught.T / SIMILARITY_TEMPERATURE
    return F.kl_div(own.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


class ClassifierTrainer:
    """Pretraining, one step at a time. A step depends on the settings, the state and its own number only."""

    def __init__(self, settings: Pretraining, images: ClassImages, teacher: Classifier | None = None) -> None:
        settings.training.apply()
        self.settings, self.images = settings, images
        matched = _features_of(teacher) if teacher is not None and settings.match else 0
        model = settings.network(len(images.names), images.inputs, matched).to(images.device)
        self.step = ClassifierStep(model, images, settings, teacher)
        graph = settings.graph and images.device.type == "cuda"
        self.execute = captured(self.step) if graph else self.step
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


def _features_of(model: Classifier) -> int:
    """The number of features of a network."""
    return model.head.get_parameter("weight").shape[1]


class Centred(nn.Module):
    """Features of unit length, without their mean."""

    middle: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.flatten(1), dim=-1) - self.middle


@torch.no_grad()
def by_class_means(body: nn.Module, features: int, images: ClassImages) -> Classifier:
    """A classifier of these classes around a trained body: the cosine to the mean features of each class.

    Features are directions from the mean direction of all images. The scale explains the labels best.
    """
    network = nn.Sequential(body, Centred(features), nn.Linear(features, 2))
    model = Classifier(network, len(images.names), "cosine").to(images.device).eval().requires_grad_(False)
    own = next(module for module in model.body.modules() if isinstance(module, Centred))
    found = torch.cat([model.features(x) for x in images.plain()])
    own.middle.copy_(found.mean(0))
    found = F.normalize(found - own.middle, dim=-1)
    labels = F.one_hot(images.labels, len(images.names)).to(found)
    means = F.normalize(labels.T @ found, dim=-1)
    cosines = found @ means.T
    scale = min(SCALES, key=lambda scale: F.cross_entropy(scale * cosines, images.labels).item())
    model.head.load_state_dict({"weight": means, "scale": torch.tensor(scale)})
    return model


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
