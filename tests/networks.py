"""Small networks for tests; also what `package.module:callable` loads in them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor, nn


def small_net(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


def linear_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


class Shared(nn.Module):
    """One module under two names, and two modules with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.a = nn.Conv2d(4, 4, 3)
        self.a_again = self.a
        self.b = nn.Conv2d(4, 4, 3)
        self.b_tied = nn.Conv2d(4, 4, 3)
        self.b_tied.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.a_again(self.a(self.stem(x)))
        out: Tensor = self.b_tied(self.b(x))
        return out


class Residual(nn.Module):
    """Residual links, a projection, groups, depthwise, stride, dilation, biases, BatchNorm, a Linear."""

    def __init__(self, num_classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stem_bn = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4, bias=True)
        self.bn1 = nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=12, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.shortcut = nn.Conv2d(8, 12, 1, stride=2, bias=False)
        self.bn3 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 6, (3, 1), padding=(1, 0))
        self.bn4 = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6, 7)
        self.head = nn.Linear(7, num_classes)
        for bn in (self.stem_bn, self.bn1, self.bn2, self.bn3, self.bn4):  # statistics of a trained network
            nn.init.uniform_(bn.weight, 0.5, 1.5)
            nn.init.normal_(bn.bias)
            nn.init.normal_(bn.running_mean, std=0.2)
            nn.init.uniform_(bn.running_var, 0.3, 1.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_bn(self.stem(x)).relu()
        y = self.bn1(self.conv1(x)).relu()
        x = (self.bn2(self.depthwise(y)) + self.bn3(self.shortcut(x))).relu()
        x = self.bn4(self.conv2(x)).relu()
        tokens = x.flatten(2).transpose(1, 2)  # [N, positions, 6]: a Linear with an extra axis
        out: Tensor = self.head(self.hidden(tokens).relu().mean(1))
        return out


class Twice(nn.Module):
    """One convolution called twice in a forward pass, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.stem(x).relu()).relu()
        x = self.last(self.body(x).relu())
        return x.mean((2, 3))


class HeadFirst(nn.Module):
    """The layer that answers is named before the others; the last linear layer is not the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 10)
        self.stem = nn.Conv2d(3, 4, 3)
        self.conv = nn.Conv2d(4, 8, 3)
        self.hidden = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.hidden(self.conv(self.stem(x).relu()).relu().mean((2, 3))).relu())
        return out


not_callable = 3


def not_a_module() -> int:
    return 3


def held() -> bool:
    """Whether a sweep shall go no further: $HOLD names a file that says at how many records of the store beside it."""
    hold = Path(os.environ.get("HOLD", ""))
    if not hold.is_file():
        return False
    return len(list(hold.parent.glob("runs/records/*.json"))) >= int(hold.read_text(encoding="utf-8"))


class SlowNet(nn.Module):
    """Takes its time, so that a test can strike while it works; held, it works until the test comes."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.net = small_net(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        while held():
            time.sleep(0.01)
        out: Tensor = self.net(x)
        return out
