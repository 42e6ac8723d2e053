from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability.network.layers import Layer
from repairability.network.use import observed
from test_sacred import complete_state, same


class Used(nn.Module):
    """Weights in every way of use."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.called, self.functional, self.never = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.standardised = nn.Linear(6, 6)
        self.matrix = nn.Parameter(torch.randn(6, 5))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.called(self.called(self.words(ids)))
        x = F.linear(x * self.scale, self.functional.weight)
        x = F.linear(x, self.standardised.weight - self.standardised.weight.mean(1, keepdim=True))
        return x @ self.matrix


def test_calls_touches_and_reasons() -> None:
    model, ids = Used(), torch.randint(0, 9, (4, 3))
    before = complete_state(model)
    use = observed(model, ids)
    assert same(complete_state(model), before)
    assert use.calls == {"called": 2, "functional": 1, "matrix": 1}
    assert {name: (x.kind, x.shape) for name, x in use.bare.items()} == {"matrix": ("matrix", (6, 5))}
    assert "embedding" in use.touched["words.weight"]

    def why(name: str) -> str:
        return use.why_not(Layer(name, "linear", model.get_parameter(f"{name}.weight")))

    assert why("called") == why("functional") == ""
    assert why("never") == "the model never reaches it on these samples"
    assert why("standardised").startswith("the model does not multiply by it as it is, but uses it in ")
    assert why("words") == "its weight is also held by an embedding"


def test_what_few_samples_miss_the_whole_batch_shows() -> None:
    class Rare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.seldom = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.seldom(x) if bool((x > 1).any()) else self.often(x)

    x = torch.zeros(40, 2)
    assert set(observed(Rare(), x).calls) == {"often"}
    x[39] = 2
    assert set(observed(Rare(), x).calls) == {"seldom"}
