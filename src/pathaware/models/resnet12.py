"""ResNet-12, the deeper network of the few-shot literature (Oreshkin et al., NeurIPS 2018)."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from pathaware.core.errors import UsageError


class ResidualBlock(nn.Module):
    """Three convolutions 3×3 with batch norm, a projected shortcut, then max-pool 2×2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, 3), _norm(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs, 3), _norm(outputs)
        self.conv3, self.norm3 = _conv(outputs, outputs, 3), _norm(outputs)
        self.shortcut, self.shortcut_norm = _conv(inputs, outputs, 1), _norm(outputs)
        self.activation = nn.LeakyReLU(0.1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        y = self.activation(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        out: Tensor = self.pool(self.activation(y + self.shortcut_norm(self.shortcut(x))))
        return out


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def resnet12(ways: int = 5, *, size: int = 84, channels: int = 3, width: int = 64) -> nn.Sequential:
    """Four residual blocks of `width` × 1, 2, 4 and 8 channels, global average pooling, one linear layer."""
    if size < 16:
        raise UsageError(f"size: {size} is too small for four poolings; at least 16")
    widths = [channels, *(width << i for i in range(4))]
    blocks = [ResidualBlock(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], ways))
