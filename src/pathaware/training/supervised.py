"""Supervised pretraining on all training classes as an objective: losses, step, validation by prototypes.

The accuracy of prototypes indicates the accuracy after meta-training.

- CutMix: Yun et al., ICCV 2019, arXiv:1905.04899; label smoothing: Szegedy et al., CVPR 2016
- rotation beside classification: Gidaris et al., ICCV 2019, arXiv:1906.05186
- distillation: Hinton, Vinyals and Dean, 2015, arXiv:1503.02531, with teacher and student seeing the same
  images (Beyer et al., CVPR 2022, arXiv:2106.05237); of the similarity of images: Fang et al., ICLR 2021,
  arXiv:2101.04731
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pathaware.core.errors import Stopped, UsageError
from pathaware.core.execution import engine
from pathaware.core.few_shot import part_of
from pathaware.core.seeding import generator, seed_all
from pathaware.data.episodes import EpisodePlan
from pathaware.data.labelled import ClassImages, Distortion
from pathaware.data.pixels import ImageInput
from pathaware.models.backbones import FrozenBackbone, PreparedInput
from pathaware.training.loop import MOST_SKIPPED, QUIET, Fit, MakeDisplay, Objective, run_to_end
from pathaware.training.pretrained_classifier import (
    QUERIES,
    SHOTS,
    Classifier,
    by_class_means,
    initialised,
    measure_statistics,
    prototype_accuracy,
)
from pathaware.training.progress import StepOutcome
from pathaware.training.provenance import origin
from pathaware.training.run_files import CONFIG, read_run_tables
from pathaware.training.run_folder import PretrainRun, Run
from pathaware.training.settings import Pretraining

TIMED_STEPS = 20
"""Steps that are timed to find how many epochs fit into a time."""
RESERVE = 0.95
"""The part of that time that epochs may take; the rest is for validation and for saving."""
MOMENTUM = 0.9
CUTMIX_UNTIL = 0.8
"""The part of training with CutMix: the last fifth shows whole images."""
ROTATED = 4
"""One in this many images of a batch is also shown rotated, for the rotation head."""
SIMILARITY_TEMPERATURE = 0.1
"""Divides the cosines that `similarity_loss` compares."""


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

    def __call__(self, plan: EpisodePlan, rate: float) -> StepOutcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: EpisodePlan) -> StepOutcome:
        self.optimizer.zero_grad()
        loss = self._loss(plan, *self.images.show(plan))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        self._average()
        return StepOutcome(loss.detach()[None], norm.detach(), skipped)

    def _loss(self, plan: EpisodePlan, x: Tensor, own: Tensor, other: Tensor, fraction: Tensor) -> Tensor:
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
    def _lesson(self, teacher: Classifier, plan: EpisodePlan, x: Tensor, fraction: Tensor) -> TeacherOutputs:
        """The teacher's outputs for a batch. Stored ones are for whole images and are mixed like these."""
        if self.stored is None:
            features = self._features(teacher, x)
            centred = features if self.middle is None else F.normalize(features, dim=-1) - self.middle
            return TeacherOutputs(teacher.head(features), F.normalize(centred, dim=-1))
        own = (part[plan.images[0].to(part.device)] for part in self.stored)
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


class Supervised(Objective):
    """Pretraining: a classifier of all training classes learns from batches of images."""

    kind = "pretrain"
    advice = "lower the learning rate, or use precision fp32"

    def __init__(self, settings: Pretraining, images: ClassImages, teacher: Classifier | None = None) -> None:
        self.chosen, self.images, self.teacher = settings, images, teacher
        matched = 0
        if teacher is not None and settings.match:
            matched = teacher.head.get_parameter("weight").shape[1]
        self.model = initialised(settings, len(images.names), images.inputs, matched)
        self.title = f"pretraining on {settings.label}"
        self.device = images.device
        self.capturable = settings.graph and self.device.type == "cuda"
        self.batch = min(settings.batch, len(images))
        self.unit = self.log_every = len(images) // self.batch
        self.steps = settings.epochs * self.unit
        self.most_skipped = min(MOST_SKIPPED, self.unit)
        self.validation = _validation_images(settings)
        self.validate_every = settings.validate * self.unit if self.validation is not None else 0
        self.save_every = settings.save * self.unit
        self._order = -1, torch.empty(0)

    def prepare(self, *, new: bool) -> ClassifierStep:
        self.chosen.apply()
        self.step = ClassifierStep(self.model.to(self.device), self.images, self.chosen, self.teacher)
        return self.step

    @property
    def kept(self) -> dict[str, nn.Module]:
        return {"learner": self.step.pair}

    def schedule(self, iteration: int) -> tuple[float, bool]:
        # A short memory at first, so that the average forgets the initialisation.
        self.step.keep.fill_(min(self.chosen.ema, (1 + iteration) / (10 + iteration)))
        rate, warm = self.chosen.rate, self.chosen.warmup * self.unit
        if iteration < warm:
            return rate * (iteration + 1) / warm, False
        return rate * 0.5 * (1 + math.cos(math.pi * (iteration - warm) / (self.steps - warm))), False

    def plan(self, iteration: int) -> EpisodePlan:
        settings = self.chosen
        epoch, place = divmod(iteration, self.unit)
        if self._order[0] != epoch:
            self._order = epoch, self.images.order(settings.seed, epoch)
        chosen = self._order[1][place * self.batch : (place + 1) * self.batch]
        cut = settings.cutmix if iteration < CUTMIX_UNTIL * self.steps else 0.0
        distortion = Distortion(settings.crop, settings.jitter, cut, settings.mirror)
        return self.images.draw(chosen, distortion, generator(settings.seed, "pretrain", iteration))

    def noise(self, iteration: int) -> None:
        seed_all(self.chosen.seed, "noise", iteration)

    def validate(self) -> float:
        assert self.validation is not None
        measure_statistics(self.step.ema, self.images, self.chosen.seed)
        return prototype_accuracy(self.step.ema, self.validation, self.chosen.seed)

    def improves(self, value: float, best: float | None) -> bool:
        return best is None or value > best

    def save(self, run: PretrainRun, done: int, value: float | None) -> None:
        if value is None:
            measure_statistics(self.step.ema, self.images, self.chosen.seed)
        run.save(self.step.ema, self.images, done, value)

    def settings(self) -> dict[str, Any]:
        return self.chosen.to_dict()

    def origin(self, iteration: int) -> dict[str, Any]:
        return origin(iteration, self.device)


def default_folder(settings: Pretraining) -> Path:
    """The folder of a pretraining whose user named none."""
    return Path("runs") / f"pretrain-{settings.label}-seed{settings.seed}"


def pretrain(
    settings: Pretraining,
    folder: Path | None = None,
    *,
    resume: bool = False,
    minutes: float | None = None,
    display: MakeDisplay = QUIET,
    find: Callable[[str], Path] = Path,
) -> PretrainRun:
    """Pretrain in a folder: new, or with `resume` continued, or as it is if it is finished.

    With `minutes`, as many epochs as fit into that time replace `epochs`. `find` returns the folder of a
    teacher that is given by name, such as `photos`.
    """
    folder = folder or default_folder(settings)
    run = None
    if resume and (folder / CONFIG).exists():
        run = PretrainRun.open(folder)
        if run.settings != settings:
            run = None  # `create` refuses the folder
        elif run.finished:
            run.tidy()
            return run
    images = settings.images(settings.chosen_splits)
    teacher = _teacher(settings, images, find)
    if minutes is not None:
        settings = dataclasses.replace(settings, epochs=epochs_in(60 * minutes, settings, images, teacher))
    objective = Supervised(settings, images, teacher)  # raises before a folder is created
    run = run or PretrainRun.create(folder, settings)
    try:
        run_to_end(Fit(each, run, display=display) for each in [objective])
    except Stopped:
        if not run.finished:
            raise
    return run


def epochs_in(
    seconds: float, settings: Pretraining, images: ClassImages, teacher: Classifier | None = None
) -> int:
    """The number of epochs that fit into a time on this device, measured with a few steps."""
    endless = dataclasses.replace(settings, epochs=10**6, validate=0)
    fit = Fit(Supervised(endless, images, teacher))
    for _ in range(3):  # captures a graph or benchmarks algorithms
        fit.advance()
    fit.step.rate.item()  # waits for a GPU
    started, steps = time.perf_counter(), 0
    while steps == 0 or (steps < TIMED_STEPS and time.perf_counter() - started < seconds / 20):
        fit.advance()
        steps += 1
    fit.step.rate.item()
    each = (time.perf_counter() - started) / steps
    return max(settings.warmup + 1, math.floor(RESERVE * seconds / (each * fit.objective.unit)))


def _teacher(settings: Pretraining, images: ClassImages, find: Callable[[str], Path]) -> Classifier | None:
    """The teacher: a pretraining of the same classes, or a model with a frozen backbone, for any classes."""
    if not settings.teacher:
        return None
    name, folder = settings.teacher, find(settings.teacher)
    if "pretraining" not in read_run_tables(folder):
        return _frozen_teacher(name, folder, images)
    found = PretrainRun.open(folder).load(images.device)
    if found.classes != images.names or found.inputs.size != images.inputs.size:
        raise UsageError(f"{name} was trained on other classes or sizes of images", field="teacher")
    return found.model


def _frozen_teacher(name: str, folder: Path, images: ClassImages) -> Classifier:
    """The frozen backbone of a model, with a classifier by class means."""
    run = Run.open(folder)
    backbone = part_of(run.load("cpu"), FrozenBackbone)
    if backbone is None:
        raise UsageError(
            f"{name} can only teach if it is a pretraining or has a frozen backbone", field="teacher"
        )
    own = ImageInput.from_dict(run.learned()[1])
    if own.channels != images.inputs.channels:
        raise UsageError(
            f"{name} expects {own.channels} colour channels, the images have {images.inputs.channels}",
            field="teacher",
        )
    given, wanted = ((each.mean, each.std) for each in (images.inputs, own))
    body = nn.Sequential(PreparedInput(own.size, given, wanted), backbone.body)
    return by_class_means(body, backbone.features, images)


def _validation_images(settings: Pretraining) -> ClassImages | None:
    """The images of validation classes, if there are some to choose a checkpoint by."""
    if not settings.validate or "val" in settings.chosen_splits:
        return None
    try:
        images = settings.images(["val"])
    except UsageError:
        return None
    usable = int(images.counts.min()) >= SHOTS + QUERIES and len(images.counts) > 1
    return images if usable else None
