"""A study measures the curves that `prune` would: both ask pruning/plan."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from repairability import CalibrationSet, create_model, load_data, prune
from repairability.experiments import Files, RunSpec, run_job
from repairability.pruning.plan import Measurement

BASE: dict[str, Any] = {"model": "networks:small_net", "data": "random:10", "count": 64, "test_images": 64}


def ran(**settings: Any) -> dict[str, Any]:
    return run_job(Files().job(RunSpec.read({**BASE, **settings}), None).to_dict())


def test_a_rule_that_needs_no_data_goes_beyond_every_grid() -> None:
    record = ran(rule="uniform", repair="none", sparsity=0.999)
    assert record["status"] == "done", record["error"]
    assert record["result"]["achieved"] == pytest.approx(0.999, abs=0.01)


@pytest.mark.parametrize("rule", ["auto", "rr", "erk"])
def test_the_same_curves_and_the_same_network_as_prune(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[Any, ...]] = []
    original = Measurement.diagnose

    def watching(self: Measurement, *args: Any) -> Any:
        measured.append(self.key)
        return original(self, *args)

    monkeypatch.setattr(Measurement, "diagnose", watching)
    record = ran(rule=rule, repair="reconstruct@64", sparsity=0.8)
    assert record["status"] == "done", record["error"]
    theirs = list(measured)
    measured.clear()
    spec = RunSpec.read({**BASE, "rule": rule, "repair": "reconstruct@64", "sparsity": 0.8})
    data = load_data("random:10")
    images = CalibrationSet(data.unlabeled(256, seed=0), count=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = prune(
            create_model(BASE["model"]),
            images,
            sparsity=0.8,
            rule=rule,
            score="magnitude",
            repair="reconstruct@64",
            config=spec.config,
        )
    assert theirs == measured
    assert len(measured) == (0 if rule == "erk" else 1)  # the two measured rules of "auto" share it
    assert record["result"]["allocation"] == dict(ours.allocation)
