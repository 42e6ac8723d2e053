"""The demo's network: a small BatchNorm ResNet with projection shortcuts, for 16 x 16 digits."""

from __future__ import annotations

from torch import Tensor, nn

from repairability.models.cifar import Block, SmallResNet


class ProjectionBlock(Block):
    """A block whose shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class DigitsResNet(SmallResNet):
    """Three stages of two blocks."""

    def __init__(self, num_classes: int = 10, width: int = 8) -> None:
        super().__init__(ProjectionBlock, 1, width, 2)
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(super().forward(x))
        return logits
