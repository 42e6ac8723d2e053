from __future__ import annotations

from torch import nn

from repairability.network.norms import norms_of


class FrozenBatchNorm2d(nn.Module):
    """By its name, as torchvision's."""


def test_norms_by_what_a_repair_can_do_with_them() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(3),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.SyncBatchNorm(3),
        nn.BatchNorm3d(2),
        nn.LayerNorm(3),
        nn.LayerNorm(4),
        nn.GroupNorm(1, 3),
        nn.InstanceNorm2d(3),
        nn.RMSNorm(3),
        FrozenBatchNorm2d(),
    )
    norms = norms_of(model)
    assert norms.learned == 3
    assert norms.of_each_batch == 1
    assert norms.frozen == 1
    assert norms.of_each_sample == {"LayerNorm": 2, "GroupNorm": 1, "InstanceNorm2d": 1, "RMSNorm": 1}
    assert norms.others.startswith("1 frozen BatchNorm, 1 BatchNorm without running statistics, 2 LayerNorm")


def test_a_network_without_any() -> None:
    assert norms_of(nn.Sequential(nn.Linear(2, 2))).others == ""
