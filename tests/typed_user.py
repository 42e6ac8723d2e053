"""A user's script, for a type checker: every public call as people write it, and the type of what comes back.

`test_wheel.py` checks it with mypy, strictly, against the installed package.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import repairability as rp


def by_size(layers: rp.Layers, sparsity: float, curves: rp.Curves | None = None) -> rp.Allocation:
    return rp.allocate(layers, sparsity=sparsity, rule="erk")


def main() -> None:
    data = rp.load_data("digits")
    images = data.unlabeled(256, seed=0)
    assert_type(images, Tensor)
    model = rp.create_model("digits")
    assert_type(model, nn.Module)

    assert_type(rp.doctor(model, images[:16]), rp.Checkup)
    assert_type(rp.prunable_layers(model), rp.Layers)
    diagnosis = rp.diagnose(model, images)
    assert_type(diagnosis, rp.Diagnosis)
    assert_type(diagnosis.rr, rp.Curves)
    plan = rp.allocate(model, sparsity=0.9, rule=by_size)
    assert_type(plan, rp.Allocation)
    assert_type(plan["layer1.0.conv1"], float)

    result = rp.prune(model, images, sparsity=0.9, recipe="fast")
    assert_type(result, rp.PruneResult)
    assert_type(result.model, nn.Module)
    assert_type(result.sparsity, float)
    assert_type(result.recipe, str)
    assert_type(rp.prune_best(model, images, sparsity=0.9, seconds=10.0), rp.PruneResult)
    for cell in rp.prune_many(model, images, sparsities=[0.8, 0.9]):
        assert_type(cell, rp.PruneResult)
    assert_type(rp.get_recipe("strong").with_parts(rule="erk"), rp.Recipe)

    assert_type(rp.evaluate(result.model, data.test.batches()), rp.Metrics)
    assert_type(rp.agreement(model, result.model, images), rp.Agreement)
    assert_type(rp.find_transition(model, images, method="cts", sparsities=[0.9, 0.95]), rp.Transition)

    result.save("pruned.safetensors", format="sparse", values="float16")
    assert_type(rp.load("pruned.safetensors", rp.create_model("digits")).model, nn.Module)
    fast = rp.accelerate(result.model, images[:1])
    assert_type(fast, rp.Accelerated)
    assert_type(rp.compact(result.model, images[:1]), rp.Compacted)
    rp.export_onnx(result.model, images[:1], "pruned.onnx")
    with torch.no_grad():
        result.model(images)
    try:
        rp.allocate(model, sparsity=2.0)
    except rp.RepairabilityError as error:
        assert_type(str(error), str)


if __name__ == "__main__":
    main()
