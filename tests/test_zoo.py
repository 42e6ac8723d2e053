"""Networks of the zoo through every verb, each as it is given: `benchmarks/zoo.py` does so for all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from scripts import loaded

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


models, zoo = loaded(BENCHMARKS, "zoo_models"), loaded(BENCHMARKS, "zoo")
CASES = {case.name: case for case in models.CASES}
NOTHING_TO_PRUNE = {name for name in CASES if name.startswith(("hand/LSTM", "hand/weight_norm", "hand/spectral"))}
NOTHING_TO_PRUNE |= {"hand/shared embedding and head"}
OTHERS = [
    *("torchvision/convnext_tiny", "torchvision/vit", "torchvision/swin_t", "torchvision/shufflenet_v2"),
    *("transformers/bert (mask first)", "transformers/distilbert (BatchEncoding)", "transformers/gpt2 (tied)"),
    *("transformers/llama (untied)", "transformers/t5", "transformers/mixtral (experts)", "transformers/whisper"),
    *("transformers/clip (text and images)", "timm/beit", "timm/nfnet", "timm/levit"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in CASES if name.startswith("hand/")), *OTHERS])
def test_as_it_is_given(name: str) -> None:
    for package in ("torchvision", "timm", "transformers"):
        if name.startswith(package) and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install 'repairability[zoo]'")
    line = zoo.tried(CASES[name])
    assert line.cells.pop("doctor") == "yes"
    if name in NOTHING_TO_PRUNE:
        assert set(line.cells.values()) == {"refused"}
        assert line.reasons
    else:
        assert line.cells.pop("literal") in ("yes", "-"), line.reasons
        assert set(line.cells.values()) == {"yes"}, line.reasons


def test_there_are_networks_enough() -> None:
    assert len(CASES) >= 140
    families = {name.split("/")[0] for name in CASES}
    assert families == {"torchvision", "timm", "transformers", "hand"}
