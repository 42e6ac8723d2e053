from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import repairability as rp
from repairability.cli import main

pytest.importorskip("numba", reason="the extra runtime is not installed")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def test_the_table_of_a_pruned_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = torch.randn(140, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    file, figures = tmp_path / "pruned.safetensors", tmp_path / "figures.json"
    rp.prune(rp.create_model("digits"), images, sparsity=0.9, recipe="fast").save(file)
    code, out, _ = run(capsys, "accelerate", "digits", "--checkpoint", str(file), "--threads", "1")
    assert code == 0
    assert out.splitlines()[0].split() == ["layer", "sparsity", "dense", "ms", "sparse", "ms", "chosen"]
    assert "times as fast (1 thread)" in out
    words = ("--checkpoint", str(file), "--batch", "2", "--out", str(figures), "--json")
    code, out, _ = run(capsys, "accelerate", "digits", *words)
    content = json.loads(out)
    assert json.loads(figures.read_text()) == content
    assert content["example"] == [2, 1, 16, 16]
    assert {layer["name"] for layer in content["layers"]} >= {"conv1", "layer1.0.conv1", "fc"}
    assert all(layer["dense"] > 0 and layer["sparse"] > 0 for layer in content["layers"])
    assert max(layer["sparsity"] for layer in content["layers"]) > 0.8


def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "accelerate", "digits", "--batch", "0")
    assert (code, "--batch must be at least 1, not 0" in err) == (2, True)
