"""The networks of the papers, and how to build one by its name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import load_plugin, short_repr
from pathaware.models.efficientnet_lite import VARIANTS, efficientnet_lite


def conv4(
    ways: int = 5, *, size: int = 84, channels: int = 3, width: int = 64, blocks: int = 4
) -> nn.Sequential:
    """Conv-4: `blocks` times convolution 3×3, batch norm, ReLU, max-pool 2×2; then one linear layer.

    Batch norm always uses the statistics of the current batch, as in MAML, in adaptation and in evaluation.
    Images are `[N, channels, size, size]`.
    """
    side = size >> blocks
    if side < 1:
        raise UsageError(f"size: {size} is too small for {blocks} poolings; at least {1 << blocks}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, blocks + 1):
        layers[f"conv{i}"] = nn.Conv2d(channels if i == 1 else width, width, 3, padding=1)
        layers[f"norm{i}"] = nn.BatchNorm2d(width, track_running_stats=False)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(width * side * side, ways)
    return nn.Sequential(layers)


def mlp(inputs: int = 1, hidden: tuple[int, ...] = (40, 40), outputs: int = 1) -> nn.Sequential:
    """A ReLU network `inputs → hidden… → outputs`; by default the paper's 1-40-40-1 for sine waves."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class ResidualBlock(nn.Module):
    """Three convolutions 3×3 with batch norm, a projected shortcut, max-pool 2×2, and dropout if wanted."""

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, 3), _norm(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs, 3), _norm(outputs)
        self.conv3, self.norm3 = _conv(outputs, outputs, 3), _norm(outputs)
        self.shortcut, self.shortcut_norm = _conv(inputs, outputs, 1), _norm(outputs)
        self.activation = nn.LeakyReLU(0.1)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        y = self.activation(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        out: Tensor = self.dropout(self.pool(self.activation(y + self.shortcut_norm(self.shortcut(x)))))
        return out


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def resnet12(
    ways: int = 5,
    *,
    size: int = 84,
    channels: int = 3,
    width: int = 64,
    widths: Sequence[int] = (),
    dropout: float = 0.0,
) -> nn.Sequential:
    """ResNet-12 (Oreshkin et al., NeurIPS 2018): four residual blocks, average pooling, one linear layer.

    The blocks have `widths` channels, by default `width` × 1, 2, 4 and 8. `dropout` is the fraction of the
    outputs of each block that is set to zero in training mode.
    """
    if size < 16:
        raise UsageError(f"size: {size} is too small for four poolings; at least 16")
    if widths and len(widths) != 4:
        raise UsageError(f"widths: {len(widths)} numbers are not allowed; four, one per block")
    chosen = [channels, *(widths or (width << i for i in range(4)))]
    blocks = [ResidualBlock(a, b, dropout) for a, b in pairwise(chosen)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(chosen[-1], ways))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "conv4": conv4,
    "resnet12": resnet12,
    **{name: partial(efficientnet_lite, name) for name in VARIANTS},
}
_OPTIONS = {"conv4": {"width"}, "resnet12": {"width", "widths", "dropout"}}
"""The settings that a network takes, beside the sizes of its images and its output."""


def build_model(
    name: str, ways: int, size: int, channels: int, width: int = 0, widths: str = "", dropout: float = 0.0
) -> nn.Module:
    """Build one of `MODELS` or a custom `package.module:function`.

    `width`, `widths` (numbers with commas, one per block) and `dropout` are passed on unless they are 0 or
    empty. `resnet12` takes all three, `conv4` only `width`.
    """
    options: dict[str, Any] = {"ways": ways, "size": size, "channels": channels}
    if width:
        options["width"] = width
    if widths:
        options["widths"] = parse_widths(widths)
    if dropout:
        options["dropout"] = dropout
    refused = {"width", "widths", "dropout"} & set(options) - _OPTIONS.get(name, set())
    if name in MODELS and refused:
        raise UsageError(f"{min(refused)}: {name} has no such setting; resnet12 has")
    build = MODELS[name] if name in MODELS else _load(name)
    try:
        model = build(**options)
    except UsageError:
        raise
    except Exception as error:  # of a custom function, anything
        called = f"cannot be called with {', '.join(options)}"
        raise UsageError(f"model: {name} {called} ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: {name} returned {type(model).__name__}, not an nn.Module")
    return model


def parse_widths(text: str) -> tuple[int, ...]:
    """`"64,128,256,512"` → `(64, 128, 256, 512)`."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**20 for part in parts):
        raise UsageError(f"widths: {short_repr(text)} is not allowed; must be integers separated by commas")
    return tuple(map(int, parts))


def _load(name: str) -> Callable[..., nn.Module]:
    if ":" not in name:
        hint = did_you_mean(name, MODELS)
        raise UsageError(
            f"model: {name!r} must be one of {', '.join(MODELS)}, or package.module:function{hint}"
        )
    build: Callable[..., nn.Module] = load_plugin("model", name)
    return build
