from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from repairability import InputError, PruneResult, create_model, load, prune
from repairability.checkpoints import save_checkpoint
from repairability.checkpoints.content import dense_digest
from repairability.pruning import PruneConfig


@pytest.fixture
def saved(result: PruneResult, tmp_path: Path) -> Path:
    result.save(tmp_path / "pruned.safetensors")
    return tmp_path / "pruned.safetensors"


def test_round_trip_is_bit_exact(result: PruneResult, saved: Path) -> None:
    dense = create_model("networks:Residual", seed=9)
    before = {k: v.clone() for k, v in dense.state_dict().items()}
    found = load(saved, dense)
    for key, value in result.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[key], value)
        assert torch.equal(dense.state_dict()[key], before[key])
    assert found.allocation == result.allocation
    assert (found.header["rule"], found.header["repair"]) == ("erk", "cr")
    assert found.header["calibration"] == result.fingerprint
    assert found.header["global_sparsity"] == result.global_sparsity
    assert "torch" in found.header["versions"]
    assert str(found) == str(result.allocation)


def test_it_says_by_which_recipe(result: PruneResult, saved: Path) -> None:
    found = load(saved, create_model("networks:Residual"))
    assert found.recipe == result.recipe == "erk, magnitude, cr"  # of strong nothing is left
    assert found.way() == {"recipe": found.recipe, "rule": "erk", "score": "magnitude", "repair": "cr"}


def test_a_file_older_than_recipes_is_read(result: PruneResult, tmp_path: Path) -> None:
    way = {"score": result.score, "repair": result.repair, "fingerprint": result.fingerprint}
    save_checkpoint(tmp_path / "new.safetensors", result.model, result.allocation, **way, recipe="paper")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["repairability"])
    del about["header"]["recipe"]
    tensors = load_file(tmp_path / "new.safetensors")
    about["digest"] = dense_digest(about["header"], tensors)
    save_file(tensors, tmp_path / "old.safetensors", {"repairability": json.dumps(about)})
    found = load(tmp_path / "old.safetensors", create_model("networks:Residual"))
    assert found.way() == {"recipe": "not said", "rule": "erk", "score": "magnitude", "repair": "cr"}
    assert found.allocation == result.allocation


def test_the_header_is_readable_by_anyone(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()["repairability"])["header"]
    assert header["sparsity"] == pytest.approx(0.8, abs=0.01)
    assert load_file(saved).keys() >= {"conv1.weight", "bn1.running_mean"}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="is truncated or not a safetensors file"):
        load(saved, create_model("networks:Residual"))


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    model = create_model("networks:Residual")
    save_file(model.state_dict(), tmp_path / "foreign.safetensors")
    with pytest.raises(InputError, match="was not written by repairability"):
        load(tmp_path / "foreign.safetensors", model)
    (tmp_path / "noise").write_bytes(os.urandom(500))
    with pytest.raises(InputError, match="is truncated or not a safetensors file"):
        load(tmp_path / "noise", model)
    with pytest.raises(InputError, match="no checkpoint at"):
        load(tmp_path / "missing", model)


def edited(file: Path, change: str) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = dict(opened.metadata())
    tensors = load_file(file)
    if change == "weight":
        tensors["conv1.weight"].view(-1)[0] += 1
    elif change == "rename":
        tensors["conv9.weight"] = tensors.pop("conv1.weight")
    else:
        metadata["repairability"] = metadata["repairability"].replace('"rule": "erk"', '"rule": "rr"')
    save_file(tensors, file, metadata)


@pytest.mark.parametrize("change", ["weight", "rename", "header"])
def test_an_edited_file_is_refused(saved: Path, change: str) -> None:
    edited(saved, change)
    with pytest.raises(InputError, match="was changed after it was written"):
        load(saved, create_model("networks:Residual"))


def test_a_flipped_bit_is_refused(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    saved.write_bytes(content)
    with pytest.raises(InputError, match="was changed after it was written"):
        load(saved, create_model("networks:Residual"))


def test_another_architecture_is_refused(saved: Path) -> None:
    with pytest.raises(InputError, match=r"does not fit Sequential: 0.bias is missing there"):
        load(saved, create_model("networks:small_net"))
    with pytest.raises(InputError, match=r"head.bias is \(5,\) torch.float32 there and \(7,\)"):
        load(saved, create_model("networks:Residual", num_classes=7))
    with pytest.raises(InputError, match="torch.float32 there and .* torch.float64 here"):
        load(saved, create_model("networks:Residual").double())


def test_a_full_disk_leaves_nothing(result: PruneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot write .*No space left on device"):
        result.save(tmp_path / "pruned.safetensors")
    assert os.listdir(tmp_path) == []


def test_shared_weights_survive(tmp_path: Path) -> None:
    model = create_model("networks:Shared")
    config = PruneConfig(count=8, only=("a", "b"))
    found = prune(
        model, torch.randn(8, 3, 12, 12), sparsity=0.5, rule="uniform", score="magnitude", repair="none", config=config
    )
    assert int((found.model.get_parameter("b.weight") == 0).sum()) == 72
    found.save(tmp_path / "x.safetensors")
    back = load(tmp_path / "x.safetensors", model).model
    assert back.get_submodule("b").weight is back.get_submodule("b_tied").weight
    assert isinstance(back.get_submodule("b").weight, nn.Parameter)
    assert torch.equal(back.get_submodule("b").weight, found.model.get_submodule("b").weight)
