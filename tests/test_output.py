"""Damage at the network's output: against networks that are really pruned and mended in one layer."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import repairability as rp
from repairability import CalibrationSet, Diagnosis, InputError, allocate, create_model, diagnose, prunable_layers
from repairability._torch import evaluating
from repairability.allocation import pruned_count
from repairability.curves import Curves
from repairability.diagnostics.channels import try_channels
from repairability.diagnostics.fitted import diagnose_fit
from repairability.diagnostics.output import Mended, OneTrial, OutputProbe, _smoothed
from repairability.diagnostics.scan import scan
from repairability.masks import magnitude_mask
from repairability.network.calls import Call
from repairability.network.layers import Layers
from repairability.network.watching import Watching
from repairability.pruning.plan import WIDE, PruneConfig, measurement_for
from repairability.pruning.recipe import Recipe
from repairability.repairs import get_repair
from repairability.scores import get_score
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(120, 3, 9, 9, generator=torch.Generator().manual_seed(2))
GRID = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
OUTPUT: dict[str, Any] = {"measures": ("output",), "grid": GRID}

pytestmark = pytest.mark.usefixtures("quiet")


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return create_model("networks:Residual", seed=3).to(dtype).eval()


def calibration(dtype: torch.dtype = torch.float64) -> CalibrationSet:
    return CalibrationSet(IMAGES.to(dtype), count=40)


# --- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repair", ["none", "cr+bn", "affine", "reconstruct", "rectified"])
def test_curves_are_sound_and_rise_with_the_residual(repair: str) -> None:
    found = diagnose(network(), calibration(), repair=repair, **OUTPUT)
    assert found.measures == ("raw", "residual", "rr", "output")
    output = found.measured("output")
    assert list(output) == list(found.rr)
    for layer in output:
        values, residual = output[layer], found.residual[layer]
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert values[0] == 0.0
        assert (values[1:] > 0).all()
        order = residual.argsort(kind="stable")
        assert (np.diff(values[order]) >= 0).all()


def test_the_same_answer_twice_and_the_other_measures_as_without() -> None:
    one = diagnose(network(), calibration(), **OUTPUT)
    torch.manual_seed(5)
    assert diagnose(network(), calibration(), **OUTPUT) == one
    plain = diagnose(network(), calibration(), grid=GRID)
    assert plain.output is None
    assert plain.measures == ("raw", "residual", "rr")
    assert all(plain.measured(x) == one.measured(x) for x in plain.measures)


@pytest.mark.parametrize("repair", ["cr+bn", "rectified"])
def test_the_users_model_is_sacred(repair: str) -> None:
    model = users_model()
    before = complete_state(model)
    diagnose(model, calibration(torch.float32), repair=repair, **OUTPUT)
    assert same(complete_state(model), before)


@pytest.mark.parametrize("count", [1, 5, 9])
@pytest.mark.parametrize("repair", ["cr+bn", "rectified"])
def test_few_samples_serve_for_both(repair: str, count: int) -> None:
    found = diagnose(network(), IMAGES[:count].double(), repair=repair, **OUTPUT)
    assert all(np.isfinite(found.measured("output")[layer]).all() for layer in found.rr)


def test_a_layer_that_is_felt_more_at_the_end_keeps_more() -> None:
    """Parallel layers of equal outputs: one counts ten times as much behind."""

    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 1)
            self.a, self.loud, self.b = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
            for x in (self.loud, self.b):
                x.load_state_dict(self.a.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            parts = (self.a(x).relu(), 10 * self.loud(x).relu(), self.b(x).relu())
            return torch.cat([part.mean((2, 3)) for part in parts], 1)

    torch.manual_seed(0)
    model = Parallel().double()
    layers = prunable_layers(model)
    for repair in ("none", "cr", "reconstruct"):
        found = diagnose(model, calibration(), repair=repair, **OUTPUT)
        np.testing.assert_allclose(found.residual["a"], found.residual["loud"])  # its own output does not know
        output = found.measured("output")
        assert (output["loud"][1:] > 20 * output["a"][1:]).all()
        plan = allocate(layers, sparsity=0.7, rule="output", curves=found)
        assert plan["loud"] < min(plan["a"], plan["b"])


# --- what is tried --------------------------------------------------------------------------------------------------


class Recorded(OutputProbe):
    """Keeps what it is given to try."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given: dict[str, dict[int, Mended]] = {}

    def try_layer(self, name: str, levels: Any) -> None:
        self.given[name] = dict(levels)
        super().try_layer(name, levels)


def outputs_with(model: nn.Module, layers: Layers, name: str, mended: Mended, images: Tensor) -> Tensor:
    """As the probe runs it."""
    other = copy.deepcopy(model)
    layers.on(other)[name].write_(mended.filters)

    def handle(call: Call) -> Tensor:
        output = call.compute()
        return output + call.along(mended.offset.to(output.dtype))

    with evaluating(other) as net, Watching(net, layers.subset([name]).on(net), handle), torch.no_grad():
        out: Tensor = net(images)
    return out


NORMS = {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}


def literal(model: nn.Module, layers: Layers, name: str, sparsity: float, repair: str, images: Tensor) -> nn.Module:
    """The model with this one layer pruned, and mended by hand: its filters scaled, its bias or running mean moved, the
    statistics of the norm behind it relearned.
    """
    other = copy.deepcopy(model).eval()
    layer, module = layers.on(other)[name], other.get_submodule(name)
    norm: Any = other.get_submodule(NORMS[name])
    kept = torch.from_numpy(magnitude_mask(layer.magnitudes(), pruned_count(layer.total, sparsity))).view(layer.shape)

    def seen() -> Tensor:
        found: list[Tensor] = []
        handle = module.register_forward_hook(lambda _, x, y: found.append(y))
        with torch.no_grad():
            other(images)
        handle.remove()
        return found[0].transpose(0, 1).flatten(1)  # [C, values]

    with torch.no_grad():
        dense = seen()
        module.weight.mul_(kept)
        pruned = seen()
        for step in repair.split("+"):
            mender: Any = get_repair(step)
            if step == "cr":
                gamma = mender.gamma(dense.var(1, correction=0), pruned.var(1, correction=0))
                module.weight.mul_(gamma.view(-1, 1, 1, 1))
            elif step == "affine":
                centred = pruned - pruned.mean(1, keepdim=True)
                energy = centred.square().sum(1)
                empty = energy < 1e-20 * dense.square().sum(1)
                gain = torch.where(empty, 1.0, (centred * dense).sum(1) / torch.where(empty, 1.0, energy))
                shift = dense.mean(1) - gain * pruned.mean(1)
                module.weight.mul_(gain.view(-1, 1, 1, 1))
                if module.bias is not None:
                    module.bias.mul_(gain).add_(shift)
                else:
                    norm.running_mean.sub_(shift)
            elif step == "bn":
                now, q = seen(), 0.9**20
                norm.running_mean.mul_(q).add_((1 - q) * now.mean(1))
                norm.running_var.mul_(q).add_((1 - q) * now.var(1))
    return other


@pytest.mark.parametrize("repair", ["none", "cr", "cr+bn", "affine"])
def test_what_is_tried_is_the_network_pruned_and_mended_in_one_layer(repair: str) -> None:
    model, given = network(), calibration()
    layers = prunable_layers(model)
    grid = (0.3, 0.5, 0.7)
    probe = Recorded(model, given, layers, (40, 120))
    scans = scan(model, layers, given, dict.fromkeys(layers.names, grid), "norm-or-layer")
    try_channels(probe, layers, scans, get_repair(repair))
    fitted_on, images = IMAGES[:40].double(), IMAGES[40:56].double()
    tried = 0
    for name, levels in probe.given.items():
        for k, mended in levels.items():
            other = literal(model, layers, name, grid[k], repair, fitted_on)
            with torch.no_grad():
                expected = other(images)
            found = outputs_with(model, layers, name, mended, images)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=f"{name} {grid[k]}")
            tried += 1
    assert tried >= 8
    for trial in probe.trials:
        levels = probe.given[trial.layer]
        batch = IMAGES[40 + 8 * trial.batch : 48 + 8 * trial.batch].double()
        with torch.no_grad():
            dense = model(batch)
        out = outputs_with(model, layers, trial.layer, levels[trial.level], batch)
        error = (out - dense).square().sum() / dense.square().sum()
        assert trial.distance == pytest.approx(float(error), rel=1e-6)


def test_what_is_tried_of_a_refit_is_the_refitted_network() -> None:
    """Not below what exact least squares leaves, and near it, in the layer's own output."""
    model, given = network(), calibration()
    layers = prunable_layers(model)
    probe = Recorded(model, given, layers, (60, 120))
    repair = get_repair("reconstruct@60")
    assert repair.fit is not None
    diagnose_fit(
        model, given, dict.fromkeys(layers.names, (0.5, 0.7)), layers, repair.fit, get_score("magnitude"), probe
    )
    assert set(probe.given) == set(layers.names)
    for name, levels in probe.given.items():
        for k, mended in levels.items():
            plan = rp.Allocation({name: (0.5, 0.7)[k]}, {name: layers[name].total}, layers.n_all, "own", 0.5)
            pruned = copy.deepcopy(model)
            rp.apply_masks_(pruned, rp.make_masks(model, plan))
            exact = rp.repair_model(model, pruned, CalibrationSet(IMAGES[:60].double(), count=40), repair="reconstruct")
            with torch.no_grad():
                expected = exact.eval()(IMAGES[60:].double())
            found = outputs_with(model, layers, name, mended, IMAGES[60:].double())
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02, msg=f"{name} {k}")


def test_levels_are_tried_where_there_is_damage() -> None:
    probe = OutputProbe(network(), calibration(), prunable_layers(network()), (40, 120))
    for levels in range(1, 40):
        tried = probe.tried(levels)
        assert tried == sorted(set(tried))
        assert len(tried) == min(probe.levels, levels - levels // 4)
        assert tried[0] >= levels // 4
        assert tried[-1] < levels


# --- smoothing ------------------------------------------------------------------------------------------------------


def trials_of(levels: dict[str, float], residual: dict[str, Any], slope: float) -> list[OneTrial]:
    """Exactly as the model of the smoothing says, without anything that a batch finds hard."""
    return [
        OneTrial(batch, name, k, a * residual[name][k] ** slope)
        for name, a in levels.items()
        for k in range(len(residual[name]))
        for batch in range(3)
    ]


def test_smoothing_finds_what_is_there() -> None:
    residual = {"a": np.array([0.001, 0.01, 0.1]), "b": np.array([0.02, 0.1, 0.6])}
    found = _smoothed(trials_of({"a": 2.0, "b": 0.3}, residual, 1.2), residual, 3)
    np.testing.assert_allclose(found["a"], 2.0 * residual["a"] ** 1.2, rtol=1e-3)
    np.testing.assert_allclose(found["b"], 0.3 * residual["b"] ** 1.2, rtol=1e-3)


def test_smoothing_keeps_each_layers_level_where_the_slope_is_held() -> None:
    """Damage that hardly grows with the residual: the slope is held at 0.5, and a layer's mean is still its trials'."""
    residual = {"a": np.array([1e-5, 1e-4, 1e-3]), "b": np.array([0.1, 0.3, 0.9])}
    found = _smoothed(trials_of({"a": 0.5, "b": 0.5}, residual, 0.0), residual, 3)
    for name in residual:
        assert float(np.log(found[name]).mean()) == pytest.approx(math.log(0.5), abs=0.01)


def test_smoothing_without_trials_or_damage_is_finite() -> None:
    residual = {"a": np.array([0.0, 0.1]), "b": np.array([0.0, 0.2]), "none": np.array([0.0, 0.0])}
    found = _smoothed([OneTrial(0, "a", 1, 0.0)], residual, 2)
    assert all(np.isfinite(values).all() and values[0] == 0 for values in found.values())
    assert not found["none"].any()


# --- travelling, errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measures", [("output",), ("raw", "residual", "rr")])
def test_there_and_back(measures: tuple[str, ...]) -> None:
    found = diagnose(network(), calibration(), grid=(0.0, 0.5, 0.7), measures=measures)
    for other in (
        Diagnosis.from_json(found.to_json()),
        Diagnosis.from_csv(found.to_csv()),
        Diagnosis.from_frame(found.to_frame()),
    ):
        assert other == found
        assert (other.output is None) == ("output" not in measures)
    assert ("output" in found.table().columns) == ("output" in measures)


def test_a_measure_that_was_not_taken_says_how_to_take_it() -> None:
    plain = diagnose(network(), calibration(), grid=(0.5, 0.7))
    with pytest.raises(InputError, match=r"did not measure 'output': diagnose\(\.\.\., measures=\('output',\)\)"):
        plain.measured("output")
    with pytest.raises(InputError, match="did not measure 'output'"):
        allocate(prunable_layers(network()), sparsity=0.6, rule="output", curves=plain)
    with pytest.raises(InputError, match="unknown measure 'outptu'.*output"):
        plain.measured("outptu")
    with pytest.raises(InputError, match="unknown measure 'outptu'.*output"):
        diagnose(network(), calibration(), measures=("outptu",))


def test_output_and_distance_choose_what_is_compared() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            out = self.body(x)
            return {"good": out, "constant": torch.ones_like(out)}

    model = TwoHeads()
    good = diagnose(model, calibration(), output="good", **OUTPUT)
    plain = diagnose(network(), calibration(), **OUTPUT)
    for layer in plain.rr:
        np.testing.assert_allclose(good.measured("output")[f"body.{layer}"], plain.measured("output")[layer])
    kl = diagnose(network(), calibration(), distance="kl", **OUTPUT)
    assert any(not np.allclose(kl.measured("output")[x], plain.measured("output")[x]) for x in plain.rr)


# --- any model ------------------------------------------------------------------------------------------------------


class TimeFirst(nn.Module):
    """Linears on [T, N, C], fed by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        x = self.first(values).transpose(0, 1)  # [T, N, C]
        x = x + self.down(self.up(x).relu())
        out: Tensor = self.head((x * mask.transpose(0, 1)[..., None]).mean(0))
        return out


@pytest.mark.parametrize("repair", ["cr", "affine", "reconstruct", "rectified"])
def test_a_mapping_and_time_first(repair: str) -> None:
    torch.manual_seed(0)
    model = TimeFirst()
    random = torch.Generator().manual_seed(0)
    batch = {"values": torch.randn(40, 5, 6, generator=random), "mask": torch.ones(40, 5)}
    layers = prunable_layers(model, types=("linear",), only=("up", "down"))
    found = diagnose(model, batch, repair=repair, layers=layers, **OUTPUT)
    output = found.measured("output")
    assert list(output) == ["up", "down"]
    assert all(np.isfinite(output[x]).all() and (output[x][1:] > 0).all() for x in output)


# --- rules ----------------------------------------------------------------------------------------------------------


def test_the_rest_of_forced_may_be_output() -> None:
    model = network()
    result = rp.prune(
        model,
        calibration(),
        sparsity=0.6,
        rule="forced",
        score="magnitude",
        repair="cr+bn-short",
        config=PruneConfig(options={"pinned": {"shortcut": 0.25}, "rest": "output"}),
    )
    assert result.allocation["shortcut"] == 0.25
    layers = prunable_layers(model)
    found = diagnose(model, calibration(), grid=WIDE, measures=("output",), repair="cr+bn-short")
    pinned = allocate(layers, sparsity=0.6, rule="forced", curves=found, pinned={"shortcut": 0.25}, rest="output")
    assert dict(result.allocation) == dict(pinned)
    curves: Curves = found.measured("output")
    assert all(pinned[x] in curves.grid[x] for x in layers.names if x != "shortcut")


def test_only_a_rule_that_looks_at_the_output_measures_there() -> None:
    def measured(rule: str, grid: Any = "auto", **options: Any) -> Any:
        recipe = Recipe(rule=rule, score="alternating", repair="rectified", options=options)
        return measurement_for(recipe, [0.8], PruneConfig(grid=grid))

    assert measured("erk") is None
    assert measured("forced", pinned={"*": 0.5}) is None
    plain, wide = measured("rr"), measured("output")
    assert plain.measures == ("raw", "residual", "rr")
    assert tuple(plain.grid) == rp.diagnostics.GRID
    assert wide.measures == ("raw", "residual", "rr", "output")
    assert wide.grid == WIDE == tuple(sorted(WIDE))
    assert measured("output", grid="paper").grid == plain.grid
    assert measured("output", grid=(0.5, 0.9)).grid == (0.5, 0.9)
    forced = measured("forced", pinned={"conv1": 0.5}, rest="output")
    assert (forced.measures, forced.grid) == (wide.measures, WIDE)
    assert plain.key != wide.key
