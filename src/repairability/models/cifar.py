"""The ResNets for 32 x 32 images (He et al., 2016): 16-32-64 channels, parameter-free shortcuts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Shortcut(nn.Module):
    """Option A: take every second pixel and pad the new channels with zeros, half before and half after."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.pad = new_channels // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity() if inputs == outputs else Shortcut(outputs - inputs)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """Depth 6n + 2: a stem and three stages of n blocks. Layer names are those of the public checkpoints."""

    def __init__(self, depth: int, num_classes: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(blocks)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(blocks - 1)))
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


def cifar_resnet(depth: int, num_classes: int = 10) -> CifarResNet:
    return CifarResNet(depth, num_classes)
