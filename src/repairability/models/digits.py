"""The demo's network: a small BatchNorm ResNet with projection shortcuts, for 16 x 16 digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repairability.models.cifar import Block


class ProjectionBlock(Block):
    """A block whose shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class DigitsResNet(nn.Module):
    """A stem and three stages of two blocks."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(ProjectionBlock(width, width, 1), ProjectionBlock(width, width, 1))
        self.layer2 = nn.Sequential(ProjectionBlock(width, 2 * width, 2), ProjectionBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(ProjectionBlock(2 * width, 4 * width, 2), ProjectionBlock(4 * width, 4 * width, 1))
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


def digits_resnet(num_classes: int = 10, width: int = 8) -> DigitsResNet:
    return DigitsResNet(num_classes, width)
