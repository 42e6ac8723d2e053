from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability.network.unfold import Geometry

CASES = [
    (nn.Conv2d(4, 6, 3, padding=1), (5, 4, 7, 6), Geometry.convolution((3, 3), padding=1)),
    (
        nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(2, 1), groups=2),
        (3, 4, 9, 8),
        Geometry.convolution((3, 2), 2, (1, 0), (2, 1), 2),
    ),
    (nn.Conv2d(3, 3, 3, padding="same", padding_mode="circular"), (2, 3, 5, 5), Geometry.convolution((3, 3))),
    (nn.Conv2d(3, 3, (4, 3), padding="same"), (2, 3, 5, 5), Geometry.convolution((4, 3), padding="same")),
    (nn.Conv1d(3, 5, 4), (2, 3, 10), Geometry.convolution((4,))),
    (nn.Conv1d(3, 5, 4, padding="valid"), (2, 3, 10), Geometry.convolution((4,), padding="valid")),
    (nn.Conv3d(2, 4, 3, padding=1), (2, 2, 4, 3, 5), Geometry.convolution((3, 3, 3), padding=1)),
    (nn.Linear(4, 3), (6, 4), Geometry()),
    (nn.Linear(4, 3), (6, 2, 4), Geometry()),
]

TRANSPOSED = [
    (nn.ConvTranspose1d(4, 6, 4, 2, 1), (2, 4, 7)),
    (nn.ConvTranspose2d(4, 6, 2, 2), (3, 4, 5, 4)),
    (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (3, 4, 5, 4)),
    (nn.ConvTranspose2d(4, 6, (3, 2), (1, 3), (0, 1), (0, 2), dilation=(2, 1)), (2, 4, 5, 4)),
    (nn.ConvTranspose2d(4, 4, 3, padding=3), (2, 4, 9, 8)),  # padding beyond the kernel cuts off
    (nn.ConvTranspose3d(2, 3, 3, 2, 1, 1), (2, 2, 3, 3, 2)),
]


def padded(layer: nn.Module, x: Tensor) -> Tensor:
    """As a convolution does before its product where zeros are not what it pads with."""
    if getattr(layer, "padding_mode", "zeros") == "zeros":
        return x
    return F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(("layer", "shape", "geometry"), CASES)
def test_weights_times_columns_are_the_layers_output(
    layer: nn.Module, shape: tuple[int, ...], geometry: Geometry
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    columns = geometry.unfold(geometry.batched(padded(layer, x)), geometry.every_tap())
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


@pytest.mark.parametrize(("layer", "shape"), TRANSPOSED)
def test_a_transposed_convolution_is_one_over_the_spread_input(
    layer: nn.ConvTranspose2d, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    groups, inputs, kernel = layer.groups, layer.in_channels // layer.groups, layer.kernel_size
    geometry = Geometry.transposed(kernel, layer.stride, layer.padding, layer.output_padding, groups, layer.dilation)
    spread = geometry.batched(x)
    parts = layer.weight.detach().flip(tuple(range(2, layer.weight.dim()))).unflatten(0, (groups, inputs))
    filters = parts.transpose(1, 2).flatten(3).flatten(2)  # [G, out / G, in / G * kernel]
    columns = geometry.unfold(spread, geometry.every_tap()).view(groups, filters.shape[2], -1)
    with torch.no_grad():
        out = layer(x)
        product = (filters @ columns).flatten(0, 1) + layer.bias[:, None]
    assert geometry.out_size(spread.shape[2:]) == tuple(out.shape[2:])
    torch.testing.assert_close(product, out.flatten(2).permute(1, 2, 0).flatten(1), atol=1e-5, rtol=1e-4)


def test_taps_that_only_meet_padding_are_not_live() -> None:
    geometry = Geometry.convolution((3, 3), padding=1)
    assert geometry.live_taps((1, 1)) == [(1, 1)]
    assert geometry.live_taps((4, 4)) == geometry.every_tap()


def test_one_image_without_its_batch_is_a_batch_of_one() -> None:
    geometry = Geometry.convolution((3, 3), padding=1)
    assert geometry.batched(torch.zeros(4, 7, 6)).shape == (1, 4, 7, 6)
    assert Geometry().batched(torch.zeros(4)).shape == (1, 4, 1)
