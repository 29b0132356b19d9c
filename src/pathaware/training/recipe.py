"""Losses beside the query loss, for every method whose outer loss is the query loss.

Not in the paper. Each is a setting of its own, see `Training`. The loss of a task on its queries is

    (1 − a − b) CE  +  a T² KL(average ‖ learner)  +  b T² KL(teacher ‖ learner)  +  c CE over all classes

- average: the exponential average of θ₀ and Φ adapts to the same support set (SiMT: Tack, Park, Lee, Lee and
  Shin, NeurIPS 2022, arXiv:2210.06185, with dropout in the forward pass of the queries).
- teacher: a stored pretraining, whose predictions are restricted to the classes of the task.
- all classes: a linear layer classifies all training classes by features of the initialisation (as RENet
  does: Kang, Kwon, Min and Cho, ICCV 2021, arXiv:2108.09666).
- CutMix of queries (MetaAug: Ni, Goldblum, Sharaf, Kong and Goldstein, ICML 2021, arXiv:2010.07092).

All losses are per task, so they do not depend on how tasks are divided among processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.head import Head
from pathaware.core.last_layer import last_linear
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.path import Order
from pathaware.data.augmentation import cutmix
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.labelled import ClassImages
from pathaware.data.store import ImageStore
from pathaware.training.config import Config
from pathaware.training.pretrained_classifier import load_classifier


class Recipe(nn.Module):
    """The parts of a recipe beside the learner: the average, the classifier of all classes, the teacher."""

    classes: Tensor
    taught: Tensor

    def __init__(self, config: Config, learner: FewShotLearner, source: TaskSource) -> None:
        super().__init__()
        training = config.training
        self.settings = training
        self.learner = (learner,)  # in a tuple, so that it is not a part of this module
        self.average: FewShotLearner | None = None
        self.classifier: nn.Linear | None = None
        if training.average:
            from pathaware.training.meta_training import build

            self.average = build(config).requires_grad_(False)
            self.average.load_state_dict(learner.state_dict())
        reference = next(learner.parameters())
        if training.classify or training.teacher:
            if not isinstance(source, ImageEpisodes):
                raise UsageError("classify: these tasks have no training classes")
            source.keep_indices = True
            self.register_buffer("classes", _class_indices(source.store).to(reference.device), False)
        if training.classify:
            features = _features(learner)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(training.seed)
                self.classifier = nn.Linear(features, len(cast(ImageEpisodes, source).store.split("train")))
            self.classifier.to(reference.device, reference.dtype)
        if training.teacher:
            store = cast(ImageEpisodes, source).store
            found = teacher_logits(Path(training.teacher), store, reference.device).to(reference.dtype)
            self.register_buffer("taught", found, False)
        self.classify = torch.tensor(training.classify, device=reference.device, dtype=reference.dtype)

    @property
    def trained(self) -> list[nn.Parameter]:
        """Parameters that the optimiser updates."""
        return [] if self.classifier is None else list(self.classifier.parameters())

    @property
    def averaged(self) -> list[Tensor]:
        return [] if self.average is None else list(self.average.parameters())

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the average follow the learner."""
        if self.average is not None:
            current = [p.detach() for p in self.learner[0].parameters()]
            torch._foreach_lerp_(self.averaged, current, 1 - self.settings.average)

    def on_progress(self, progress: float) -> None:
        settings = self.settings
        self.classify.fill_(settings.classify + (settings.classify_end - settings.classify) * progress)

    def losses(self, learner: FewShotLearner, episodes: Episodes, order: Order) -> Tensor:
        """The loss of each task, `[T]`."""
        settings, queries = self.settings, MixedQueries(episodes)
        tasks = dataclasses.replace(episodes, query_x=queries.x)
        support_x, support_y, query_x, _ = tasks.tensors()
        adapted = learner.adapted(support_x, support_y, query_x=query_x, order=order)
        with active_dropout(learner.model):
            logits = adapted.outputs(query_x)
        teach = settings.teach if settings.teacher else 0.0
        total = (1 - settings.distil - teach) * queries.cross_entropy(logits, episodes.query_y)
        if settings.distil and self.average is not None:
            with torch.no_grad():
                averaged = self.average.adapted(support_x, support_y, query_x=query_x).outputs(query_x)
                probabilities = (averaged / settings.temperature).softmax(-1)
            total = total + settings.distil * softened(logits, probabilities, settings.temperature)
        if teach:
            probabilities = queries.mixed(self._taught(episodes, logits.shape[-1]))
            total = total + teach * softened(logits, probabilities, settings.temperature)
        if self.classifier is not None:
            total = total + self.classify * self._all_classes(learner, queries, episodes)
        return total

    def _taught(self, episodes: Episodes, ways: int) -> Tensor:
        """The teacher's probabilities of the classes of each task, `[T, Q, ways]`."""
        assert episodes.query_images is not None
        labels, images = episodes.query_y, episodes.query_images
        own = labels.new_zeros(len(labels), ways).scatter(1, labels, self.classes[images])  # class per label
        logits = self.taught[images].gather(2, own[:, None].expand(-1, images.shape[1], -1))
        return (logits / self.settings.temperature).softmax(-1)

    def _all_classes(self, learner: FewShotLearner, queries: MixedQueries, episodes: Episodes) -> Tensor:
        """The loss of classifying all training classes by features of the initialisation, `[T]`."""
        assert self.classifier is not None
        assert episodes.query_images is not None
        logits = self.classifier(learner.features(queries.x))
        return queries.cross_entropy(logits, self.classes[episodes.query_images])


class RecipeGradient(MetaGradient):
    """The meta-gradient of a recipe's losses through the unrolled inner loop."""

    def __init__(self, recipe: Recipe, order: Order) -> None:
        self.recipe, self.order = recipe, order

    def task_threads(self, learner: FewShotLearner, tasks: int) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        losses = self.recipe.losses(learner, episodes, self.order)
        (losses.sum() * weight).backward()
        return losses.detach()

    def on_progress(self, progress: float, learner: FewShotLearner) -> bool:
        self.recipe.on_progress(progress)
        return False


class MixedQueries:
    """The queries of episodes, a part of each replaced by that of the query before it if a plan says so."""

    def __init__(self, episodes: Episodes) -> None:
        self.x, self.share = episodes.query_x, None
        if episodes.query_boxes is not None:
            tasks, count = episodes.query_y.shape
            before = self.x.roll(1, 1).flatten(0, 1)
            mixed, share = cutmix(self.x.flatten(0, 1), episodes.query_boxes.flatten(0, 1), before)
            self.x, self.share = mixed.unflatten(0, (tasks, count)), share.view(tasks, count)

    def mixed(self, values: Tensor) -> Tensor:
        """Mix values `[T, Q, …]` of the queries in the proportions of their images."""
        return values if self.share is None else torch.lerp(values, values.roll(1, 1), self.share[..., None])

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of each task, `[T]`, with the labels of both parts of an image."""
        log = logits.log_softmax(-1)
        own = -log.gather(2, labels[..., None])[..., 0]
        if self.share is None:
            return own.mean(1)
        other = -log.gather(2, labels.roll(1, 1)[..., None])[..., 0]
        return torch.lerp(own, other, self.share).mean(1)


def softened(logits: Tensor, probabilities: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student) per task, `[T]`, from the teacher's softened probabilities `[T, Q, ways]`."""
    student = (logits / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(student, probabilities, reduction="none").sum(-1).mean(1)


@contextmanager
def active_dropout(model: nn.Module) -> Iterator[None]:
    """A context in which the dropout layers of a model are active; at all other times they are not."""
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


@torch.no_grad()
def teacher_logits(folder: Path, store: ImageStore, device: torch.device) -> Tensor:
    """The logits `[images, classes]` of a pretraining for the training classes of a store.

    They are means over each image and, where the store allows it, its mirror image.
    """
    found = load_classifier(folder, device)
    wanted = [f"{store.name}/{name}" for name in store.split("train").names]
    if missing := [name for name in wanted if name not in found.classes]:
        raise UsageError(f"teacher: {folder} was not trained on {missing[0]}")
    if found.inputs.size != store.shape[1]:
        raise UsageError(f"teacher: {folder} takes images of {found.inputs.size}, not {store.shape[1]}")
    columns = torch.tensor([found.classes.index(name) for name in wanted], device=device)
    images = ClassImages([store], ["train"], device)
    parts = []
    for x in images.plain():
        logits = found.model(x)
        if store.manifest.mirror:
            logits = (logits + found.model(x.flip(-1))) / 2
        parts.append(logits[:, columns])
    logits = torch.cat(parts)
    taught = logits.new_zeros(len(store), len(columns))
    taught[_class_indices(store).to(device) >= 0] = logits
    return taught


def check_recipe(config: Config, learner: FewShotLearner, estimator: MetaGradient) -> Order:
    """The order of a method's meta-gradient; raise if it cannot be trained with a recipe."""
    order = estimator.compilable_order
    head = part_of(learner, Head)
    own_loss = head is not None and type(head).losses is not Head.losses
    if config.problem.regression or order is None or own_loss:
        raise UsageError(
            f"method: {config.method} on {config.problem.name} has another outer loss than the cross-entropy "
            "of its queries; leave out average, distil, teacher, classify, dropout and cutmix"
        )
    return order


def _class_indices(store: ImageStore) -> Tensor:
    """The index of each image's class among the training classes, `[images]`; −1 for all other classes."""
    spans = store.split("train")
    found = torch.full((len(store),), -1)
    found[spans.members] = spans.labels
    return found


def _features(learner: FewShotLearner) -> int:
    head = part_of(learner, Head)
    return last_linear(learner.model)[1].in_features if head is None else head.features


def insert_dropout(model: nn.Module, fraction: float) -> nn.Module:
    """Insert dropout after every block of a network; it is inactive but for the queries of a recipe."""
    from pathaware.models.networks import ResidualBlock
    from pathaware.models.surgery import insert

    blocks = [n for n, m in model.named_children() if isinstance(m, (nn.MaxPool2d, ResidualBlock))]
    if not blocks:
        raise UsageError("dropout: the network has no blocks to insert it after; conv4 and resnet12 have")
    layers: dict[str, Any] = {name: nn.Dropout(fraction) for name in blocks}
    for layer in layers.values():
        layer.training = False
    return insert(model, "dropout", layers)
