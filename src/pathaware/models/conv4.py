"""The four-layer convolutional network of the classification experiments."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pathaware.core.errors import UsageError


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
