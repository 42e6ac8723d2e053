"""A network with nan or inf, in its weights or in what it puts out, is none: refused by name, wherever it comes in."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import repairability as rp
from repairability import InputError
from repairability.checkpoints import content, load
from repairability.checkpoints.checkpoint import save_checkpoint
from repairability.cli.output import json_text
from repairability.evaluation import Figures, Metrics
from repairability.experiments import Record, RunSpec, Store
from repairability.experiments.archive import RUNS, write_archive
from repairability.repairs import recalibrated
from repairability.training import TrainConfig, TrainResult

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = torch.randn(240, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELED = [(IMAGES[:32], torch.arange(32) % 4)]


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def ruined(name: str, value: float) -> nn.Module:
    model = network()
    with torch.no_grad():
        dict([*model.named_parameters(), *model.named_buffers()])[name].view(-1)[-1] = value
    return model


def overflowing() -> nn.Module:
    """Finite weights, and outputs that are not."""
    model = network()
    with torch.no_grad():
        for layer in (model[3], model[7]):
            layer.weight.fill_(1e30)
    return model


def result(model: nn.Module) -> rp.PruneResult:
    return replace(rp.prune(network(), IMAGES, sparsity=0.5, rule="erk", repair="none"), model=model)


def half_zero() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[3].weight.view(-1)[::2] = 0
    return model


Entry = Callable[[nn.Module, Path], object]
RUNS_IT: dict[str, Entry] = {
    "prune": lambda model, _: rp.prune(model, IMAGES, sparsity=0.5),
    "prune paper": lambda model, _: rp.prune(model, IMAGES, sparsity=0.8, recipe="paper"),
    "prune without repair": lambda model, _: rp.prune(model, IMAGES, sparsity=0.5, rule="erk", repair="none"),
    "prune auto": lambda model, _: rp.prune(model, IMAGES, sparsity=0.5, recipe="fast", rule="auto"),
    "prune_many, before its first result": lambda model, _: rp.prune_many(model, IMAGES, sparsities=[0.5]),
    "prune_best": lambda model, _: rp.prune_best(model, IMAGES, sparsity=0.5),
    "find_transition": lambda model, _: rp.find_transition(model, IMAGES, method="agreement"),
    "evaluate": lambda model, _: rp.evaluate(model, LABELED),
    "evaluate by a metric": lambda model, _: rp.evaluate(model, LABELED, metric=lambda pairs: {"n": len(list(pairs))}),
    "agreement, dense": lambda model, _: rp.agreement(model, network(), IMAGES),
    "agreement, other": lambda model, _: rp.agreement(network(), model, IMAGES),
    "compact": lambda model, _: rp.compact(model, IMAGES[:2]),
    "accelerate": lambda model, _: rp.accelerate(model, IMAGES[:2]),
    "export_onnx": lambda model, path: rp.export_onnx(model, IMAGES[:2], path),
}
READS_IT: dict[str, Entry] = {
    **RUNS_IT,
    "diagnose": lambda model, _: rp.diagnose(model, IMAGES),
    "find_transition by cts": lambda model, _: rp.find_transition(model, IMAGES),
    "repair_model, dense": lambda model, _: rp.repair_model(model, half_zero(), IMAGES),
    "repair_model, pruned": lambda model, _: rp.repair_model(half_zero(), model, IMAGES),
    "save": lambda model, path: result(model).save(path),
    "save sparse": lambda model, path: result(model).save(path, format="sparse"),
    "save trained": lambda model, path: TrainResult(model, [], TrainConfig(), (), "").save(path),
}
RUINS = [("7.bias", math.nan), ("1.running_var", math.inf)]


@pytest.mark.parametrize(("name", "value"), RUINS, ids=str)
@pytest.mark.parametrize("entry", READS_IT)
def test_broken_weights_are_named(entry: str, name: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"\b{name}\b.* holds nan or inf"):
        READS_IT[entry](ruined(name, value), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "3.weight", "7.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_tensor_counts(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"{name} of the network holds nan or inf"):
        rp.evaluate(ruined(name, value), LABELED)


@pytest.mark.parametrize("entry", RUNS_IT)
def test_broken_outputs_are_refused(entry: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nan or inf"):
        RUNS_IT[entry](overflowing(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Masked(nn.Module):
    """As attention has it: a buffer of 0 and -inf; and a class that is ruled out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("out", torch.tensor([0.0, 0.0, 0.0, -math.inf]))

    def forward(self, x: Tensor) -> Tensor:
        attention = (torch.ones(3, 3) + self.mask).softmax(-1)
        logits: Tensor = self.body(x * attention.diagonal().view(1, 3, 1, 1)) + self.out
        return logits


def test_masks_of_inf_are_no_fault(tmp_path: Path) -> None:
    pruned = rp.prune(Masked(), IMAGES, sparsity=0.5, rule="erk", repair="cr")
    for format in ("dense", "sparse"):
        pruned.save(tmp_path / format, format=format)
        again = load(tmp_path / format, Masked())
        assert torch.equal(again.model.mask, Masked().mask)
    metrics = rp.evaluate(pruned.model, LABELED)
    assert metrics.loss == math.inf  # some images are of the class that is ruled out
    assert json.loads(metrics.to_json(), parse_constant=pytest.fail)["loss"] is None


@pytest.mark.parametrize("format", ["dense", "sparse"])
@pytest.mark.parametrize(("name", "value"), [*RUINS, ("7.bias", math.inf)], ids=str)
def test_a_file_with_such_a_network_is_not_loaded(
    format: str, name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.safetensors"
    plan = rp.allocate(network(), sparsity=0.5)
    with monkeypatch.context() as earlier:  # a version that did not look
        earlier.setattr(content, "holds_nan", lambda _: False)
        earlier.setattr("repairability.models.weights.check_finite", lambda _: None)
        save_checkpoint(file, ruined(name, value), plan, repair="none", fingerprint="", format=format)
    with pytest.raises(InputError, match=rf"{name} of {file} holds nan or inf"):
        load(file, network())


def test_no_nan_is_written_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="w holds nan"):
        content.write_content(tmp_path / "x", {}, {"w": torch.tensor([1.0, math.nan])})
    assert not list(tmp_path.iterdir())


def huge_(context: rp.RepairContext) -> None:
    with torch.no_grad():
        for parameter in context.model.parameters():
            parameter.fill_(1e38)


def test_a_repair_that_leaves_such_outputs() -> None:
    with pytest.raises(InputError, match="the network that repair 'huge_' left puts out nan or inf"):
        rp.prune(network(), IMAGES, sparsity=0.5, rule="erk", repair=huge_)


def test_a_choice_takes_another() -> None:
    bad, good = (rp.get_recipe("fast").with_parts(rule="erk", repair=repair) for repair in (huge_, "none"))
    chosen = rp.prune_best(network(), IMAGES, sparsity=0.5, candidates=[bad, good])
    assert [trial.chosen for trial in chosen.trials] == [False, True]
    assert "nan or inf" in chosen.trials[0].problem
    with pytest.raises(InputError, match="'huge_'"):
        rp.prune_best(network(), IMAGES, sparsity=0.5, candidates=[bad])


def test_the_doctor_tells_of_it() -> None:
    notes = rp.doctor(ruined("7.bias", math.nan), IMAGES[:4]).notes
    assert any("7.bias holds nan or inf" in note for note in notes)


def test_finite_networks_are_as_before() -> None:
    """Odd tensors that hold no numbers, or none of floating point, are not asked."""
    model = network()
    model.register_buffer("count", torch.tensor(3))
    model.register_buffer("none", torch.empty(0))
    model.register_buffer("tiny", torch.tensor([1.0]).to(torch.float8_e4m3fn))
    model.register_buffer("phase", torch.tensor([1j]))
    assert rp.evaluate(model, LABELED).n == 32
    model.phase.fill_(complex(0, math.nan))
    with pytest.raises(InputError, match="phase of the network"):
        rp.evaluate(model, LABELED)
    assert recalibrated(network(), rp.CalibrationSet(IMAGES)) is not None


# --- strict JSON, whatever there is to say ----------------------------------------------------------------------------

NAN: dict[str, Any] = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "n": 1.5}
PRUNED = {"achieved": 0.5, "global_sparsity": 0.5, "top1": 0.5, "n": 4, "loss": math.nan, "more": NAN}


def record() -> Record:
    spec = RunSpec.read({"model": "digits", "data": "digits"})
    return Record("r", spec, "done", copy.deepcopy(PRUNED), "", {"seconds": {"load": 1.0}, "temperature": math.inf})


def written_record(folder: Path) -> str:
    Store(folder).write(record())
    return Store(folder).path("r").read_text(encoding="utf-8")


def archived(folder: Path) -> str:
    import gzip

    Store(folder).write(record())
    write_archive(Store(folder), folder / "kept")
    return gzip.decompress((folder / "kept" / RUNS).read_bytes()).decode()


TEXTS: dict[str, Callable[[Path], str]] = {
    "--json": lambda _: json_text(NAN),
    "metrics": lambda _: Metrics(0.5, 0.5, math.nan, 4, math.inf).to_json(),
    "figures": lambda _: Figures({"perplexity": math.inf}).to_json(),
    "agreement": lambda _: rp.Agreement(None, None, math.nan, 4, None, "error", math.inf).to_json(),
    "record": written_record,
    "archive": archived,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_json_is_strict(kind: str, tmp_path: Path) -> None:
    for line in [text := TEXTS[kind](tmp_path)] if kind != "archive" else TEXTS[kind](tmp_path).splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert "null" in (text if kind != "archive" else line)


def test_a_record_with_such_numbers_is_whole(tmp_path: Path) -> None:
    Store(tmp_path).write(record())
    again = Store(tmp_path).read("r")
    assert again == record()
    assert again is not None
    assert again.result["loss"] is None
    assert again.result["more"] == {"a": None, "b": [None, {"c": None}], "n": 1.5}
