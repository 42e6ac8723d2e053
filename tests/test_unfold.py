from __future__ import annotations

import pytest
import torch
from torch import nn

from repairability.network.unfold import Geometry

CASES = [
    (nn.Conv2d(4, 6, 3, padding=1), (5, 4, 7, 6)),
    (nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(2, 1), groups=2), (3, 4, 9, 8)),
    (nn.Conv2d(3, 3, 3, padding="same", padding_mode="circular"), (2, 3, 5, 5)),
    (nn.Conv1d(3, 5, 4), (2, 3, 10)),
    (nn.Linear(4, 3), (6, 4)),
    (nn.Linear(4, 3), (6, 2, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_weights_times_columns_are_the_layers_output(layer: nn.Module, shape: tuple[int, ...]) -> None:
    geometry, x = Geometry.of("layer", layer), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    columns = geometry.unfold(geometry.batched(x), geometry.every_tap())
    weight = layer.get_parameter("weight").detach()
    filters = weight.view(geometry.groups, weight.shape[0] // geometry.groups, -1)
    product = filters @ columns.view(geometry.groups, filters.shape[2], -1) + layer.get_parameter("bias").view(
        geometry.groups, -1, 1
    )
    with torch.no_grad():
        out = layer(x)
    channels_first = out.movedim(-1, 1) if isinstance(layer, nn.Linear) else out
    rows = channels_first.flatten(2) if channels_first.dim() > 2 else channels_first[..., None]
    torch.testing.assert_close(product.flatten(0, 1), rows.permute(1, 2, 0).flatten(1), atol=1e-5, rtol=1e-4)


def test_taps_that_only_meet_padding_are_not_live() -> None:
    geometry = Geometry.of("layer", nn.Conv2d(2, 2, 3, padding=1))
    assert geometry.live_taps((1, 1)) == [(1, 1)]
    assert geometry.live_taps((4, 4)) == geometry.every_tap()
