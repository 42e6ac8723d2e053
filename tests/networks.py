"""Small networks for tests; also what `package.module:callable` loads in them."""

from __future__ import annotations

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


not_callable = 3


def not_a_module() -> int:
    return 3
