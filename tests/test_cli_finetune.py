"""The verb finetune."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from repairability import create_model, evaluate, load_data, training
from repairability._vision import torchvision
from repairability.training import Epoch, finetune, finetuning
from test_cli import run

GIVEN = ["--data", "npz:four.npz", "--epochs", "2", "--batch-size", "16", "--out", "net.safetensors"]
SCRATCH = ["finetune", "vgg16_bn_quarter", *GIVEN, "--from-scratch"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with small data of four classes; one thread, so that bits can be compared."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 32), ("test", 12)):
        labels = np.arange(count) % 4
        images = random.integers(0, 60, (count, 3, 32, 32), dtype=np.uint8)
        images += (labels * 60).astype(np.uint8)[:, None, None, None]
        arrays |= {f"x_{part}": images, f"y_{part}": labels}
    np.savez(tmp_path / "four.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def files(place: Path) -> set[str]:
    return set(os.listdir(place)) - {"four.npz"}


def test_the_transfer_recipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = create_model("resnet20", num_classes=10, seed=3)
    save_file(source.state_dict(), "ten.safetensors")
    code, out, err = run(capsys, "finetune", "resnet20", "--weights", "ten.safetensors", *GIVEN)
    assert code == 0
    assert "note: the head linear in ten.safetensors is for 10 classes; the model has 4, so its head is new" in err
    assert "epoch 2 of 2: train loss" in err
    assert "tested on 12 images; frozen: conv1, bn1, layer1, layer2" in out
    assert "wrote net.safetensors and net.json" in out
    assert files(place) == {"net.safetensors", "net.json", "ten.safetensors"}
    net = create_model("resnet20", num_classes=4, weights="net.safetensors")
    before, after = source.state_dict(), net.state_dict()
    assert torch.equal(after["layer2.2.bn2.running_var"], before["layer2.2.bn2.running_var"])
    assert not torch.equal(after["layer3.0.conv1.weight"], before["layer3.0.conv1.weight"])
    record = json.loads(Path("net.json").read_text(encoding="utf-8"))
    assert [x["epoch"] for x in record["curve"]] == [1, 2]
    assert record["weights"] == "ten.safetensors"
    assert "commit" in record["provenance"]
    tested = evaluate(net, load_data("npz:four.npz").test.batches())
    assert record["curve"][-1]["test_top1"] == tested.top1


def test_from_scratch_as_json_in_half_precision(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SCRATCH, "--json", "--half", "--evaluate", "0", "--no-augment", "--seed", "4")
    assert code == 0
    record = json.loads(out)
    assert record == json.loads(Path("net.json").read_text(encoding="utf-8"))
    assert record["frozen"] == []
    assert record["curve"][-1]["test_top1"] is None
    stored = load_file("net.safetensors")
    assert stored["features.0.weight"].dtype == torch.float16
    begun = create_model("vgg16_bn_quarter", num_classes=4, seed=4)
    assert not torch.equal(stored["features.0.weight"].float(), begun.get_parameter("features.0.weight"))


def test_imagenet_weights_get_a_new_head(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's download replaced by weights of our own."""
    source = create_model("resnet18", seed=3).state_dict()
    weights = torchvision("models").get_model_weights("resnet18")
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: source)
    given = ["--image-size", "16", "--epochs", "1", "--evaluate", "4"]
    code, _, err = run(capsys, "finetune", "resnet18", "--weights", "imagenet", *GIVEN, *given)
    assert (code, err.count("\n")) == (0, 1)
    found = load_file("net.safetensors")
    assert found["fc.weight"].shape == (4, 512)
    assert torch.equal(found["layer2.0.conv1.weight"], source["layer2.0.conv1.weight"])


def interrupting(at: int) -> Any:
    def finetune_until(*args: Any, watch: Any, **kwargs: Any) -> Any:
        def stop(epoch: Epoch) -> None:
            watch(epoch)
            if epoch.epoch == at:
                raise KeyboardInterrupt

        return finetune(*args, watch=stop, **kwargs)

    return finetune_until


@pytest.mark.parametrize("at", [1, 2])
def test_the_same_command_continues_after_ctrl_c(
    at: int, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, *SCRATCH)
    whole = Path("net.safetensors").read_bytes()
    for name in files(place):
        Path(name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(training, "finetune", interrupting(at))
        code, out, err = run(capsys, *SCRATCH)
    assert (code, out) == (130, "")
    assert "net.safetensors.partial holds the last whole epoch; the same command continues from it" in err
    assert files(place) == {"net.safetensors.partial"}
    code, out, err = run(capsys, *SCRATCH)
    assert code == 0
    assert "epoch 1 of 2" not in err
    assert Path("net.safetensors").read_bytes() == whole
    assert [x["epoch"] for x in json.loads(Path("net.json").read_text(encoding="utf-8"))["curve"]] == [1, 2]
    assert files(place) == {"net.safetensors", "net.json"}


@pytest.mark.parametrize("stage", ["step_", "write_state", "evaluate"])
def test_ctrl_c_in_the_first_epoch_leaves_nothing(
    stage: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning, stage, interrupt)
    code, _, err = run(capsys, *SCRATCH)
    assert code == 130
    assert "continues from it" not in err
    assert files(place) == set()


def test_other_settings_are_refused_until_restart(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(training, "finetune", interrupting(1))
        run(capsys, *SCRATCH)
    code, out, err = run(capsys, *SCRATCH, "--rate", "0.1")
    assert (code, out) == (2, "")
    assert "another training (rate is 0.05 there and 0.1 here); remove it (--restart) to begin anew" in err
    assert files(place) == {"net.safetensors.partial"}
    code, _, err = run(capsys, *SCRATCH, "--rate", "0.1", "--restart")
    assert code == 0
    assert "epoch 1 of 2" in err


SMALL = ["finetune", "networks:small_net", *GIVEN]
BAD: list[tuple[list[str], str]] = [
    (["finetune", "resnet20", *GIVEN], "give either --weights FILE (or imagenet) or --from-scratch; neither was given"),
    ([*SCRATCH, "--weights", "w.safetensors"], "or --from-scratch; both were given"),
    ([*SCRATCH, "--freeze", "features.0"], "--from-scratch freezes nothing"),
    ([*SMALL, "--weights", "w.safetensors"], "Sequential is neither a ResNet"),
    ([*SMALL, "--weights", "w.safetensors", "--freeze", "layer1"], "unknown module or pattern 'layer1'"),
    ([*SMALL, "--weights", "missing.th"], "no weights file at missing.th"),
    ([*SCRATCH, "--out", "net.th"], "--out takes a name that ends in .safetensors, not net.th"),
    ([*SCRATCH, "--out", "no/net.safetensors"], "cannot write no/net.safetensors: there is no folder no"),
    ([*SCRATCH, "--epochs", "0"], "epochs must be at least 1, not 0"),
    ([*SCRATCH, "--rate", "-1"], "rate must be positive, not -1.0"),
    ([*SCRATCH, "--num-classes", "3"], "--num-classes 3 is too few: npz:four.npz has 4 classes"),
    ([*SCRATCH, "--device", "cuda:7"], "device 'cuda:7' is not available here"),
    (["finetune", "digits", *GIVEN, "--from-scratch"], "does not take a batch of shape"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_ends_in_one_line_and_code_2(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(create_model("networks:small_net", num_classes=4).state_dict(), "w.safetensors")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert files(place) == {"w.safetensors"}


def test_freezing_by_hand(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = create_model("networks:small_net", num_classes=4)
    save_file(source.state_dict(), "w.safetensors")
    assert run(capsys, *SMALL, "--weights", "w.safetensors", "--freeze", "0", "--freeze", "2")[0] == 0
    found = load_file("net.safetensors")
    assert [key for key in found if torch.equal(found[key], source.state_dict()[key])] == [
        "0.bias",
        "0.weight",
        "2.bias",
        "2.weight",
    ]
    assert "frozen: nothing" in run(capsys, *SMALL, "--weights", "w.safetensors", "--freeze", "none")[1]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "finetune", "--help")
    assert code == 0
    assert "repairability finetune resnet18" in " ".join(out.split())
    assert "--json" in out
