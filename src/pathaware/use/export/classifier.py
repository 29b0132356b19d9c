"""From pixels to probabilities in one module: what is exported."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pathaware.datasets.pictures import PictureForm
from pathaware.use.model import Adapted


class Classifier(nn.Module):
    """`images [N, C, size, size]` in 0…255 to probabilities `[N, classes]`, each picture by itself."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, form: PictureForm) -> None:
        super().__init__()
        self.network = network
        mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (form.mean, form.std))
        self.register_buffer("mean", mean * 255)
        self.register_buffer("scale", 1 / (std * 255))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) * self.scale)
        return logits.float().softmax(-1)


def classifier(adapted: Adapted) -> Classifier:
    """Of a copy of the network, to be changed at will."""
    network = copy.deepcopy(adapted.network)
    return Classifier(network, adapted.pictures).eval().requires_grad_(False)


def example(form: PictureForm) -> Tensor:
    """Two pictures to trace with: of one, tracing would take the number for fixed."""
    return torch.zeros(2, *form.shape, dtype=torch.uint8)
