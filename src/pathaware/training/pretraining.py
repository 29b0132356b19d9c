"""Pretraining: classify all training classes by supervised learning, then meta-train from those features.

Not in the paper. Later work initialises networks this way (Tian et al., ECCV 2020, arXiv:2003.11539; Ye and
Chao, ICLR 2022, arXiv:2106.16245): the body learns from every image at once, which costs a fraction of
meta-training, and only the body is kept. SGD with Nesterov momentum and a cosine learning rate.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.errors import UsageError
from pathaware.core.execution import captured
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.last_layer import last_linear, replace_last_linear
from pathaware.core.learner import MetaLearner
from pathaware.data.episodes import EpisodePlan, LabelledImages
from pathaware.training.checksummed import CHECKPOINT, CorruptFile, read_checksummed
from pathaware.training.config import Config

BATCH, RATE, MOMENTUM, DECAY = 256, 0.1, 0.9, 5e-4
PROJECTION = "projection"
"""The tensor of directions in a checkpoint, see `Classifier.subspace`."""


def load_pretrained(model: nn.Module, config: Config) -> None:
    """Load the features of a classifier of the training classes into the model's body."""
    # The method may have removed the network's last layer, or added layers.
    model.load_state_dict({**model.state_dict(), **_features(_cache_key(config))})


def read_pretraining(folder: Path, setting: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a pretraining and what is known about them; `setting` begins the message of an error."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"{setting}{folder} has no {CHECKPOINT}; name the folder of a finished pretraining")
    try:
        tensors, about = read_checksummed(path)
    except CorruptFile as error:
        raise UsageError(f"{setting}{path} cannot be read ({error})") from None
    if "pretraining" not in about:
        raise UsageError(f"{setting}{folder} is not a pretraining (see `pathaware pretrain`)")
    return tensors, about


def start_from(learner: FewShotLearner, folder: Path) -> None:
    """Load the network of a pretraining, except for its classifier.

    The directions that it found become the projection of a learner that has one (`training.head`). Batch-norm
    statistics are loaded if the model has a place for them (`problem.statistics`). Biases that the model has
    folded into them are subtracted from the means.
    """
    tensors, _ = read_pretraining(folder, "start: ")
    model = learner.model
    own = model.state_dict()
    body = {n.removeprefix("body."): v for n, v in tensors.items() if n.startswith("body.")}
    for name, module in model.named_modules():
        if isinstance(module, FrozenBatchNorm) and module.folded in body:
            body[f"{name}.running_mean"] = body[f"{name}.running_mean"] - body.pop(module.folded)
    kept = {n: v for n, v in body.items() if n in own or not n.endswith(_STATISTICS)}
    for name, value in kept.items():
        if name not in own or own[name].shape != value.shape:
            raise UsageError(f"start: {folder} is of another network ({name} differs)")
    model.load_state_dict({**own, **kept})
    if isinstance(learner, MetaLearner) and learner.start is not None:
        from pathaware.core.prototype_start import directions  # as late as `MetaLearner` imports it

        found = tensors.get(PROJECTION)
        learner.start.project(directions(tensors["head.weight"]) if found is None else found)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def _cache_key(config: Config) -> str:
    """The settings that features depend on, as TOML. Runs that differ in others, such as shots, share one."""
    tables = config.to_dict()
    irrelevant = ("shots", "queries", "zero_head", "varying")
    relevant = ("pretrain", "seed", "precision", "dtype", "device", "threads", "graph")
    problem = {k: v for k, v in tables["problem"].items() if k not in irrelevant}
    training = {k: v for k, v in tables["training"].items() if k in relevant}
    return Config.from_dict({"problem": problem, "method": {"name": "maml"}, "training": training}).to_toml()


@lru_cache(maxsize=2)
def _features(settings: str) -> dict[str, Tensor]:
    """Train a classifier and return the parameters of its body."""
    config = Config.from_toml(settings)
    step, head = _prepared(config)
    run = captured(step) if config.training.graph and step.images.capturable else step
    epochs, seed = config.training.pretrain, config.training.seed
    total, done = epochs * step.batches, 0
    for epoch in range(epochs):
        for plan in step.images.batches(step.batch, epoch, seed):
            run(plan, RATE * 0.5 * (1 + math.cos(math.pi * done / total)))
            done += 1
    state = step.model.state_dict()
    return {n: v.detach().contiguous() for n, v in state.items() if not n.startswith(head)}


def seconds_of_pretraining(config: Config) -> float:
    """Estimate the time of pretraining from a few steps."""
    step, _ = _prepared(config)
    run = captured(step) if config.training.graph and step.images.capturable else step
    plan = next(step.images.batches(step.batch, 0, 0))
    run(plan, RATE)  # captures a graph or benchmarks algorithms
    started = time.perf_counter()
    for _ in range(5):
        run(plan, RATE).item()
    return (time.perf_counter() - started) / 5 * config.training.pretrain * step.batches


def _prepared(config: Config) -> tuple[PretrainingStep, str]:
    """A classifier at its initialisation, and the prefix of the parameters that are not kept."""
    problem, training = config.problem, config.training
    device, dtype = training.torch_device, training.torch_dtype
    images = problem.labelled("train", device, dtype)
    if images is None:
        raise UsageError(f"pretrain: {problem.name} has no labels to pretrain on")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        classifier, head = as_classifier(problem.model(), images.classes)
    low_precision = training.precision == "bf16"
    return PretrainingStep(classifier.to(device, dtype), images, low_precision=low_precision), head


def as_classifier(model: nn.Module, classes: int) -> tuple[nn.Module, str]:
    """A copy of the model that separates `classes` classes, and the prefix of its new layer's parameters."""
    name, head = last_linear(model)
    return replace_last_linear(model, nn.Linear(head.in_features, classes)), f"{name}."


class PretrainingStep:
    """One step of ordinary supervised training."""

    def __init__(self, model: nn.Module, images: LabelledImages, *, low_precision: bool = False) -> None:
        # Convolutions on tensor cores are fastest with channels last.
        self.model, self.images = model.to(memory_format=torch.channels_last), images  # type: ignore[call-overload]
        self.batch = min(BATCH, len(images))
        self.batches = len(images) // self.batch
        self.parameters: list[Tensor] = list(model.parameters())
        self.device = self.parameters[0].device
        self.low_precision = low_precision and self.device.type == "cuda"
        self.rate = torch.tensor(RATE, device=self.device, dtype=torch.float32)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.parameters, self.rate, MOMENTUM, weight_decay=DECAY, nesterov=True, fused=True
        )

    @property
    def changed(self) -> list[Tensor]:
        return self.parameters

    def __call__(self, plan: EpisodePlan, rate: float) -> Tensor:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: EpisodePlan) -> Tensor:
        x, y = self.images.show(plan)
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.low_precision, cache_enabled=False):
            loss = F.cross_entropy(self.model(x.contiguous(memory_format=torch.channels_last)), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
