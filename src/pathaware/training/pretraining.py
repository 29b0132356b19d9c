"""Features first: classify all training classes in the ordinary way, then meta-train from there.

Not in the paper. It is how later work starts its networks (Tian et al., ECCV 2020, arXiv:2003.11539; Ye and
Chao, ICLR 2022, arXiv:2106.16245): the body learns from every image at once, which costs a fraction of
meta-training, and only the body is kept. SGD with Nesterov momentum and a cosine rate.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.head import last_linear, replace_last_linear
from pathaware.data.episodes import EpisodePlan, LabelledImages
from pathaware.engine.cuda_graph import CapturedStep
from pathaware.training.config import Config

BATCH, RATE, MOMENTUM, DECAY = 256, 0.1, 0.9, 5e-4


def start_pretrained(model: nn.Module, config: Config) -> None:
    """Give the model's body the features that classification of the training classes finds."""
    if not hasattr(config.problem, "labelled"):
        raise UsageError(f"pretrain: {config.problem.name} has no classes to pretrain on")
    # A method may have taken the network's last layer away, or have added layers of its own.
    model.load_state_dict({**model.state_dict(), **_features(_decisive(config))})


def _decisive(config: Config) -> str:
    """What the features depend on, as TOML. Runs that differ in the rest, such as shots, share them."""
    tables = config.to_dict()
    irrelevant = ("shots", "queries", "zero_head")
    relevant = ("pretrain", "seed", "precision", "dtype", "device", "threads", "graph")
    problem = {k: v for k, v in tables["problem"].items() if k not in irrelevant}
    training = {k: v for k, v in tables["training"].items() if k in relevant}
    return Config.from_dict({"problem": problem, "method": {"name": "maml"}, "training": training}).to_toml()


@lru_cache(maxsize=2)
def _features(settings: str) -> dict[str, Tensor]:
    """Parameters of the body after training a classifier."""
    config = Config.from_toml(settings)
    step, head = _prepared(config)
    run = CapturedStep(step) if config.training.graph and step.images.capturable else step
    epochs, seed = config.training.pretrain, config.training.seed
    total, done = epochs * step.batches, 0
    for epoch in range(epochs):
        for plan in step.images.batches(step.batch, epoch, seed):
            run(plan, RATE * 0.5 * (1 + math.cos(math.pi * done / total)))
            done += 1
    state = step.model.state_dict()
    return {n: v.detach().contiguous() for n, v in state.items() if not n.startswith(head)}


def seconds_of_pretraining(config: Config) -> float:
    """About how long it would take, from a few steps."""
    step, _ = _prepared(config)
    run = CapturedStep(step) if config.training.graph and step.images.capturable else step
    plan = next(step.images.batches(step.batch, 0, 0))
    run(plan, RATE)  # records or tries out algorithms
    started = time.perf_counter()
    for _ in range(5):
        run(plan, RATE).item()
    return (time.perf_counter() - started) / 5 * config.training.pretrain * step.batches


def _prepared(config: Config) -> tuple[ClassifierStep, str]:
    """A classifier at its start, and the prefix of the parameters that are not kept."""
    problem: Any = config.problem
    training, device, dtype = config.training, config.training.torch_device, config.training.torch_dtype
    images: LabelledImages = problem.labelled("train", device, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        classifier, head = as_classifier(problem.model(), images.classes)
    low_precision = training.precision == "bf16"
    return ClassifierStep(classifier.to(device, dtype), images, low_precision=low_precision), head


def as_classifier(model: nn.Module, classes: int) -> tuple[nn.Module, str]:
    """A copy of the model that separates `classes` classes, and the prefix of its new layer's parameters."""
    name, head = last_linear(model)
    return replace_last_linear(model, nn.Linear(head.in_features, classes)), f"{name}."


class ClassifierStep:
    """One step of ordinary supervised training."""

    def __init__(self, model: nn.Module, images: LabelledImages, *, low_precision: bool = False) -> None:
        # Channels last is the order that convolutions on tensor cores want.
        self.model, self.images = model.to(memory_format=torch.channels_last), images  # type: ignore[call-overload]
        self.batch = min(BATCH, len(images))
        self.batches = len(images) // self.batch
        self.parameters: list[Tensor] = list(model.parameters())
        self.device = self.parameters[0].device
        self.low_precision = low_precision and self.device.type == "cuda"
        self.rate = torch.tensor(RATE, device=self.device, dtype=torch.float32)
        self.optimizer: Any = torch.optim.SGD(
            self.parameters, self.rate, MOMENTUM, weight_decay=DECAY, nesterov=True, fused=True
        )

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
