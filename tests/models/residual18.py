"""A ResNet-18 with the layers, names and running statistics of torchvision's, for tests of backbones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + shortcut)


class ResNet18(nn.Module):
    def __init__(self, num_classes: int = 1000, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for i in range(4):
            inputs, outputs = width << max(0, i - 1), width << i
            blocks = BasicBlock(inputs, outputs, 1 if i == 0 else 2), BasicBlock(outputs, outputs, 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width << 3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(ways: int, size: int, channels: int) -> ResNet18:
    """What `problem.model_name` names: narrow, so that tests are fast."""
    return ResNet18(ways, width=8, channels=channels)


def pretrained(classes: int = 10, channels: int = 1, seed: int = 0) -> ResNet18:
    """A network whose running statistics are not those of its initialisation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = ResNet18(classes, width=8, channels=channels).float()
        network.train()
        with torch.no_grad():
            for _ in range(3):
                network(0.5 + 2 * torch.randn(8, channels, 28, 28, dtype=torch.float32))
    return network.eval()
