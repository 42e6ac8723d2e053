"""Networks for small images. Of 32 x 32 pixels: the ResNets (He et al., 2016) and a plain one, a narrow VGG16-BN; of
16 x 16 digits, for the demo: a ResNet with projection shortcuts.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """Two convolutions and a shortcut without parameters."""

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


class ProjectionBlock(Block):
    """A block whose shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class SmallResNet(nn.Module):
    """A stem, three stages of blocks with `width`, twice and four times as many channels, pooled, and a Linear `head`
    of that name.
    """

    def __init__(self, block: type[Block], inputs: int, width: int, blocks: int, head: str, classes: int) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            first = block(inputs, outputs, outputs // inputs)
            return nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(blocks - 1)))

        self.conv1 = nn.Conv2d(inputs, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width)
        self.layer2 = stage(width, 2 * width)
        self.layer3 = stage(2 * width, 4 * width)
        self.head = head
        self.add_module(head, nn.Linear(4 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        pooled = self.layer3(self.layer2(self.layer1(x))).mean((2, 3))
        logits: Tensor = self.get_submodule(self.head)(pooled)
        return logits


class CifarResNet(SmallResNet):
    """Depth 6n + 2: three stages of n blocks with 16-32-64 channels. Layer names are the public checkpoints'."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__(Block, 3, 16, (depth - 2) // 6, "linear", num_classes)


class DigitsResNet(SmallResNet):
    """Three stages of two blocks."""

    def __init__(self, num_classes: int = 10, width: int = 8) -> None:
        super().__init__(ProjectionBlock, 1, width, 2, "fc", num_classes)


QUARTER = (16, 16, 0, 32, 32, 0, 64, 64, 64, 0, 128, 128, 128, 0, 128, 128, 128, 0)
"""VGG16's thirteen convolutions at a quarter of their width; 0 is a max-pool."""


class PlainVGG(nn.Module):
    """Convolution (with bias, as torchvision's), BatchNorm, ReLU; one Linear head after global pooling."""

    def __init__(self, widths: Sequence[int], num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in widths:
            if width:
                layers += [nn.Conv2d(inputs, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
                inputs = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
