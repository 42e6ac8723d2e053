"""ONNX files: onnxruntime computes what the network does, zeros are intact; what is not so is not written."""

from __future__ import annotations

import builtins
import copy
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import PATIENCE
from repairability import InputError, MissingExtraError, apply_masks_, compact, create_model, export_onnx
from repairability.deploy import onnx as exporting
from repairability.deploy.onnx import TOLERANCES
from repairability.masks import Masks
from test_folding import trained
from test_sacred import complete_state, same

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

IMAGES = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def pruned(name: str) -> nn.Module:
    model = trained(create_model(name, num_classes=10))
    random = torch.Generator().manual_seed(0)
    convolutions = {k: m for k, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.in_channels > 3}
    apply_masks_(model, Masks({k: torch.rand(m.weight.shape, generator=random) > 0.9 for k, m in convolutions.items()}))
    return model


def outputs(file: Path, images: Tensor) -> Tensor:
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


def test_it_computes_what_the_network_does(tmp_path: Path) -> None:
    import onnx

    model = pruned("resnet20")
    before = complete_state(model)
    found = export_onnx(model, IMAGES[:1], tmp_path / "net.onnx", check=IMAGES)
    assert same(complete_state(model), before)
    assert (found.images, found.same) == (5, 5)
    assert found.difference < 1e-5
    assert found.size == (tmp_path / "net.onnx").stat().st_size
    assert found.zeros == sum(int((p == 0).sum()) for p in model.parameters() if p.dim() > 1) > 200_000
    plain = model.eval()
    for count in (1, 2, 5):  # any number at a time
        with torch.no_grad():
            torch.testing.assert_close(outputs(tmp_path / "net.onnx", IMAGES[:count]), plain(IMAGES[:count]))
    written = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(written)
    assert "BatchNormalization" not in {node.op_type for node in written.graph.node}
    assert written.opset_import[0].version == found.opset
    assert "5 of 5" in str(found)


def test_a_compacted_network(tmp_path: Path) -> None:
    model = pruned("resnet20")
    with torch.no_grad():
        model.get_submodule("layer1.0.conv1").weight[::2] = 0
    small = compact(model, IMAGES, fold_norms=True)
    assert export_onnx(small.model, IMAGES, tmp_path / "net.onnx").same == 5
    with torch.no_grad():
        torch.testing.assert_close(outputs(tmp_path / "net.onnx", IMAGES), model.eval()(IMAGES), rtol=1e-4, atol=1e-5)


def test_linear_layers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[2:5] = 0
    found = export_onnx(model, torch.randn(2, 7, 4), tmp_path / "net.onnx")
    assert (found.zeros, found.same) == (12, None)


def test_what_is_wrong_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("networks:small_net")
    with pytest.raises(InputError, match=r"check has images of shape \(3, 8, 8\), the example \(3, 32, 32\)"):
        export_onnx(model, IMAGES, tmp_path / "net.onnx", check=torch.randn(2, 3, 8, 8))
    with pytest.raises(InputError, match="an example is one tensor"):
        export_onnx(model, (IMAGES,), tmp_path / "net.onnx")  # type: ignore[arg-type]
    other, _ = exporting._exported(create_model("networks:small_net", seed=5).eval(), IMAGES)
    monkeypatch.setattr(exporting, "_exported", lambda *_: (other, 20))
    with pytest.raises(InputError, match="onnxruntime does not compute what the network does: its outputs differ by"):
        export_onnx(model, IMAGES, tmp_path / "net.onnx")
    with torch.no_grad():
        model.get_submodule("2").weight[:] = 0
    with pytest.raises(InputError, match="2.weight has 1,152 zeros, in the ONNX file 0; it is not written"):
        export_onnx(model, IMAGES, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(InputError, match="torch's exporter does not take Odd"):
        export_onnx(nn.Sequential(nn.Conv2d(3, 2, 1), Odd())[1], IMAGES, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_the_exporter_prints_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y * 0 if y.mean() > 100 else y

    with pytest.raises(InputError, match="torch's exporter does not take Branching: GuardOn.*data-dependent") as found:
        export_onnx(Branching(), IMAGES, tmp_path / "net.onnx")
    assert "\x1b" not in str(found.value)
    assert "\n" not in str(found.value)
    assert capfd.readouterr() == ("", "")


def test_two_exports_at_once_leave_the_streams_as_they_were() -> None:
    streams, level = (sys.stdout, sys.stderr), logging.root.manager.disable
    inside, others = threading.Event(), []

    def export() -> None:
        with exporting._silence():
            inside.set()
            time.sleep(0.02)  # in which another would begin, were it let

    for _ in range(3):
        others.append(threading.Thread(target=export))
        others[-1].start()
        assert inside.wait(PATIENCE)
    for thread in others:
        thread.join(PATIENCE)
    assert (sys.stdout, sys.stderr) == streams
    assert logging.root.manager.disable == level


def test_types_of_weights(tmp_path: Path) -> None:
    net = create_model("networks:small_net")
    half = export_onnx(copy.deepcopy(net).half(), IMAGES.half(), tmp_path / "half.onnx")
    assert half.difference < TOLERANCES[torch.float16]
    assert half.size < 0.9 * export_onnx(net, IMAGES, tmp_path / "net.onnx").size
    for dtype, words in (
        (torch.float64, "onnxruntime does not run the ONNX file: .*NOT_IMPLEMENTED"),
        (torch.bfloat16, "7.bias is torch.bfloat16, and onnxruntime runs"),
    ):
        with pytest.raises(InputError, match=rf"{words}.*copy\.deepcopy\(model\)\.float\(\)"):
            export_onnx(copy.deepcopy(net).to(dtype), IMAGES.to(dtype), tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def test_nothing_stays_of_it(tmp_path: Path) -> None:
    """Weights of zeros alone may go from the file with what they would have computed."""
    model = create_model("networks:small_net")
    with torch.no_grad():
        for name in ("2", "4"):
            model.get_submodule(name).weight.zero_()
    small = compact(model, IMAGES, fold_norms=True)
    assert export_onnx(small.model, IMAGES, tmp_path / "net.onnx").same == 5


def test_what_is_no_tensor_among_the_outputs_is_left_out(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return self.linear(x), None

    assert export_onnx(Pair(), torch.randn(2, 4), tmp_path / "net.onnx").same == 2


def test_without_the_extra_it_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name == "onnxscript":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return genuine(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"onnxscript is not installed; .*repairability\[onnx\]"):
        export_onnx(create_model("networks:small_net"), IMAGES, tmp_path / "net.onnx")
