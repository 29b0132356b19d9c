"""Small untrained models, and images to adapt them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pathaware.inference.trained_model import TrainedModel
from pathaware.training.checksummed import CHECKPOINT, write_checksummed
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.run_folder import Run

INK = {"size": 28, "channels": 1, "ink": True, "mean": [0.1], "std": [0.3]}
PHOTO = {"size": 20, "channels": 3, "ink": False, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.25]}
CPU = torch.device("cpu")


def config(method: str = "pamela", *, training: dict[str, Any] | None = None, **problem: Any) -> Config:
    small = {"name": "classification", "data": "glyphs", "shots": 1, "queries": 1, "width": 4}
    tables = {"problem": {**small, **problem}, "method": {"name": method}}
    return Config.from_dict({**tables, "training": {"device": "cpu", **(training or {})}})


def model(
    method: str = "pamela", inputs: dict[str, Any] = INK, *, recipe: bool = False, **problem: Any
) -> TrainedModel:
    """A model of a method; with `recipe`, with the constant statistics and the class means of the presets."""
    training: dict[str, Any] = {}
    if recipe:
        problem = {"statistics": "running", **problem}
        training = {"start": "the folder of a pretraining, which inference does not need"}
        heads = {"pamela": "projected", "maml": "prototypes"}
        training |= {"head": heads[method]} if method in heads else {}
    settings = config(method, training=training, **problem)
    learned = {k: v.float() for k, v in build(settings, CPU, inputs).state_dict().items()}
    draw = torch.Generator().manual_seed(0)
    for name, value in learned.items():
        if name.endswith("running_mean"):  # constant statistics, other than those of a new layer
            value.copy_(torch.rand(value.shape, generator=draw) - 0.7)
        elif name.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=draw) + 0.3)
    return TrainedModel(settings, learned, inputs, CPU)


def save_run(
    folder: Path, method: str = "pamela", inputs: dict[str, Any] = INK, *, recipe: bool = False
) -> Path:
    """Write a run folder as training does."""
    made = model(method, inputs, recipe=recipe)
    run = Run.create(folder, made.config)
    about = {"iteration": 0, "config": made.config.to_dict(), "inputs": inputs}
    write_checksummed(folder / CHECKPOINT, made._learned, about)
    return run.folder


def pixels(count: int, inputs: dict[str, Any] = INK, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    shape = (count, inputs["channels"], inputs["size"], inputs["size"])
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)


def image(seed: int, size: int = 32) -> Image.Image:
    drawn = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(drawn)


def class_folders(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    """Make a folder per class with the given number of images."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            image(first).save(root / name / f"{number}.png")
            first += 1
    return root
