"""ResNet-12, the deeper network of the few-shot literature (Oreshkin et al., NeurIPS 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from pathaware.core.errors import UsageError


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
    """Four residual blocks, global average pooling, one linear layer.

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
