"""What several tests share: small networks, the paper's tables, real data where it is at hand."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch import nn

from repairability import create_model

SHARED = Path(os.environ.get("REPAIRABILITY_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the paper's tables, real data and trained networks."""
    if not (SHARED / "paper").is_dir():
        pytest.skip(f"needs the shared folder (paper tables, data, checkpoints) at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def paper(shared: Path) -> Callable[[str], list[dict[str, str]]]:
    """One table of the paper as rows."""

    def rows(name: str) -> list[dict[str, str]]:
        with (shared / "paper" / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return rows


@cache
def torchvision_model(name: str) -> nn.Module:
    return create_model(name)


@pytest.fixture(scope="session")
def resnet18() -> nn.Module:
    return torchvision_model("resnet18")


@pytest.fixture
def small_net() -> nn.Module:
    """Three convolutions and a linear layer; enough for everything that is not about size."""
    return create_model("networks:small_net")
