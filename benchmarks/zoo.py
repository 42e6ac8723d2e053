"""Every network of the zoo through every verb: what can be pruned as it is given, and one sentence where it cannot.

python benchmarks/zoo.py [--only TEXT] [--write]: a line for each network, and with --write the page docs/zoo.md.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees
from zoo_models import CASES, Case

import repairability as rp
from repairability._torch import copy_of, evaluating, unwrapped
from repairability.network.batches import plain, run, taken, to_model
from repairability.progress import track
from repairability.provenance import provenance

SPARSITY = 0.9
GRID = (0.5, 0.9)
EPS = 1e-8
ROUNDING = 4e-6  # of a layer's largest output, in float32 through a whole network (2e-6 measured on timm/nfnet)
Known = tuple[float, float]  # a value, and what rounding may move it by
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
COLUMNS = ("doctor", "diagnose", "literal", "paper", "refit", "files")
PAPER: dict[str, Any] = {"rule": "rr", "score": "magnitude", "repair": "cr+bn"}
REFIT: dict[str, Any] = {"rule": "erk", "score": "second_order", "repair": "reconstruct-all"}
INTRODUCTION = """\
{count} networks, tiny and with random weights (`benchmarks/zoo_models.py`), each through: the doctor; a diagnosis; two
of its layers, drawn by lot, against a network in which that layer is literally pruned (raw and residual, CR); the
paper's recipe (rr, magnitude, cr+bn) and a refit under ERK (erk, second_order, reconstruct-all) at {sparsity:.0%}; a
file written and read back. The strong recipe (output, alternating, rectified), `prune`'s default, is not tried. *yes*:
it ran, every layer has exactly its zeros, the output is finite, the file gives the same network, and the user's model
is unchanged to the last bit, mode and hook. *-*: there is nothing to try. Torchvision's detectors run here with a
stand-in for its compiled `nms`."""


@dataclass
class Line:
    """What became of one network: a word for each cell, and sentences for those that are not "yes"."""

    name: str
    parameters: int = 0
    coverage: float | None = None
    cells: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0


def tried(case: Case) -> Line:
    line, start = Line(case.name), time.perf_counter()
    torch.manual_seed(0)
    model, batch = case.build(), case.batch(case.n)
    line.parameters = sum(p.numel() for p in unwrapped(model).parameters())
    images = [batch] if isinstance(batch, list) else batch
    config = rp.PruneConfig(count=case.n, batch_size=case.n, forward=case.forward)
    before = state(model)
    results: dict[str, rp.PruneResult] = {}
    layers: list[rp.Layers] = []

    def doctor() -> None:
        found = rp.doctor(model, batch, forward=case.forward)
        line.coverage = found.coverage
        line.reasons += [note for note in found.notes if not note.startswith("normalisation")]
        if found.layers:
            layers.append(rp.prunable_layers(model, batch=batch, forward=case.forward))
            line.reasons += [f"{name} is not pruned: {why}" for name, why in list(layers[0].left_out.items())[:2]]

    def diagnose() -> None:
        found = rp.diagnose(model, config.calibration(images, model), layers=layers[0])
        for measure in (found.raw, found.residual, found.rr):
            check(all(torch.as_tensor(values).isfinite().all() for values in measure.values()), "a curve is not finite")

    def literal() -> None:
        agrees_with_literal(model, case, layers[0])

    def pruned(name: str, recipe: dict[str, Any]) -> None:
        result = rp.prune(model, images, sparsity=SPARSITY, forward=case.forward, config=config, **recipe)
        for layer in layers[0].on(result.model):
            zeros, wanted = int((layer.weight == 0).sum()), result.allocation.pruned(layer.name)
            check(zeros == wanted, f"{layer.name} has {zeros} zeros, not {wanted}")
        with evaluating(result.model) as network:
            output = run(network, to_model(given(case, model, batch), network), case.forward)
        check(all(finite(leaf) for leaf in trees.tree_leaves(output)), "the pruned network's output is not finite")
        results[name] = result

    def files() -> None:
        result = results["paper"] if "paper" in results else results["refit"]
        with tempfile.TemporaryDirectory() as folder:
            result.save(Path(folder) / "pruned.safetensors")
            again = rp.load(Path(folder) / "pruned.safetensors", model).model
        check(same(state(result.model), state(again)), "what was loaded differs from what was saved")

    works: dict[str, Callable[[], None]] = {
        "doctor": doctor,
        "diagnose": diagnose,
        "literal": literal,
        "paper": lambda: pruned("paper", PAPER),
        "refit": lambda: pruned("refit", REFIT),
        "files": files,
    }
    for name, work in works.items():
        if name != "doctor" and not layers:
            line.cells[name] = "refused"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
            check(same(before, state(model)), "the model was changed")
            line.cells[name] = "yes"
        except NotThere as why:
            line.cells[name] = "-"
            line.reasons.append(f"{name}: {why}")
        except rp.RepairabilityError as error:
            line.cells[name] = "refused"
            line.reasons.append(f"{name}: {error}")
        except Exception as error:
            line.cells[name] = "FAILED"
            line.reasons.append(f"{name}: {type(error).__name__}: {error}")
    line.seconds = time.perf_counter() - start
    return line


class NotThere(Exception):
    """What is to be tried is not there."""


def check(fact: bool, otherwise: str) -> None:
    if not fact:
        raise AssertionError(otherwise)


def given(case: Case, model: nn.Module, batch: Any) -> Any:
    return plain(batch) if case.forward else taken(unwrapped(model), plain(batch))


def finite(leaf: Any) -> bool:
    return not isinstance(leaf, Tensor) or not leaf.is_floating_point() or bool(leaf.isfinite().all())


def state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a call of ours must leave alone."""
    tensors = {name: x.clone() if isinstance(x, Tensor) else x for name, x in model.state_dict().items()}
    modes = {f"{name} mode": module.training for name, module in model.named_modules()}
    hooks = {f"{name} hooks": len(x._forward_hooks) + len(x._forward_pre_hooks) for name, x in model.named_modules()}
    return {**tensors, **modes, **hooks}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if list(one) != list(other):
        return False
    for mine, theirs in zip(one.values(), other.values(), strict=True):
        if isinstance(mine, Tensor) and not (mine.dtype == theirs.dtype and torch.equal(mine, theirs)):
            return False
        if not isinstance(mine, Tensor) and mine != theirs:
            return False
    return True


def agrees_with_literal(model: nn.Module, case: Case, layers: rp.Layers) -> None:
    """On two layers drawn by the network's name: raw and residual (CR) of the diagnosis beside those of a network in
    which this one layer is pruned and scaled, watched by plain hooks on its module.
    """
    network = copy_of(model).eval()
    batch = case.batch(case.n)
    names = [x.name for x in layers if not x.parameter and heard(network, x.name, case, batch).numel()]
    if not names:
        raise NotThere("no layer whose module is called by itself, once")
    for name in random.Random(case.name).sample(names, min(2, len(names))):
        images = [batch] if isinstance(batch, list) else batch
        chosen = layers.subset([name])
        calibration = rp.CalibrationSet.read(images, count=case.n, model=model, forward=case.forward)
        found = rp.diagnose(model, calibration, grid=GRID, repair="cr", layers=chosen)
        for i, sparsity in enumerate(GRID):
            raw, residual = literal_distances(network, name, case, batch, sparsity)
            rough = next(network.parameters()).dtype in (torch.float16, torch.bfloat16)
            tolerance = 0.1 if rough else 2e-3
            for what, mine, (theirs, doubt) in (("raw", found.raw, raw), ("residual", found.residual, residual)):
                ours = float(mine[name][i])
                apart = abs(ours - theirs) > tolerance * max(abs(theirs), 1e-3) + doubt
                check(not apart, f"{what} of {name} at {sparsity:g} is {ours:.6f}, literally {theirs:.6f}")


def heard(network: nn.Module, name: str, case: Case, batch: Any) -> Tensor:
    """The output [N, C, P] of a module that is called once; of any other, nothing."""
    outputs: list[Tensor] = []
    module = network.get_submodule(name)
    handle = module.register_forward_hook(lambda module, args, output: outputs.append(output.clone()))
    try:
        with torch.no_grad():
            torch.backends.mha.set_fastpath_enabled(False)  # it puts out nested tensors
            inputs = to_model(given(case, network, batch), network)
            run(network, inputs, case.forward)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        handle.remove()
    return by_channel(module, outputs[0], case.n) if len(outputs) == 1 else torch.empty(0)


def by_channel(module: nn.Module, output: Tensor, samples: int) -> Tensor:
    if isinstance(module, nn.modules.conv._ConvNd):
        return output.double().flatten(2)
    if output.dim() == 3 and output.shape[1] == samples != output.shape[0]:
        output = output.transpose(0, 1)
    rows = output.double().movedim(-1, 1)
    return rows.flatten(2) if rows.dim() > 2 else rows[..., None]


def literal_distances(network: nn.Module, name: str, case: Case, batch: Any, sparsity: float) -> tuple[Known, Known]:
    """raw, and residual after CR: gamma = exp(lam r / 2), lam = v / (v + 0.1 median v), on the filter, not the bias."""
    other = copy.deepcopy(network)
    module = other.get_submodule(name)
    weight = module.get_parameter("weight").detach()
    flat = weight.flatten()
    flat[flat.abs().double().argsort(stable=True)[: round(sparsity * weight.numel())]] = 0
    with torch.no_grad():
        weight.copy_(flat.view(weight.shape))
    a, b = heard(network, name, case, batch), heard(other, name, case, batch)
    dense, left = (x.transpose(0, 1).flatten(1).var(1, unbiased=False) for x in (a, b))
    left = torch.where(left > 1e-13 * b.transpose(0, 1).flatten(1).square().mean(1), left, 0.0)
    alive = left > 1e-12 * left.max()
    tau = 0.1 * (left[alive].quantile(0.5) if bool(alive.any()) else torch.tensor(0.0, dtype=torch.float64))
    shrink = torch.where(left > 0, left / (left + tau).clamp(min=1e-300), 0.0)
    gamma = (shrink * ((dense + EPS).log() - (left + EPS).log()) / 2).exp()[:, None]
    bias = module._parameters.get("bias")
    beta = torch.zeros_like(gamma) if bias is None else bias.detach().double()[:, None]
    return distance(a, b), distance(a, gamma * (b - beta) + beta)


def distance(a: Tensor, b: Tensor) -> Known:
    """The mean of d = |a - b|^2 / |a|^2 over samples and channels, and what rounding alone may move it by.

    An error e in every number of a moves d by 2 d e sqrt(P) / |a|, which is much where a channel of one position is
    almost zero (the squeeze of a NormFreeNet: |a| of 5e-5 and 1e-6 from float32).
    """
    energy = a.square().sum(2) + EPS
    distances = (a - b).square().sum(2) / energy
    error = ROUNDING * float(a.abs().max()) * a.shape[2] ** 0.5
    return float(distances.mean()), float((2 * distances * error / energy.sqrt()).mean())


def page(lines: list[Line]) -> str:
    about = provenance()
    counts = {word: sum(x == word for line in lines for x in line.cells.values()) for word in ("yes", "refused", "-")}
    failed = sum(x == "FAILED" for line in lines for x in line.cells.values())
    text = [
        "# The zoo: networks as their users have them",
        "",
        INTRODUCTION.format(count=len(lines), sparsity=SPARSITY),
        "",
        f"{counts['yes']} cells yes, {counts['refused']} refused with a sentence, {counts['-']} with nothing to try, "
        f"{failed} failed. Written by `python benchmarks/zoo.py --write`; commit {about['commit']}, torch "
        f"{about['torch']}, {about['hardware']}.",
        "",
        f"| network | parameters | may be pruned | {' | '.join(COLUMNS)} | seconds |",
        f"| --- | ---: | ---: | {' | '.join([':---:'] * len(COLUMNS))} | ---: |",
    ]
    for line in lines:
        share = "" if line.coverage is None else f"{line.coverage:.0%}"
        cells = " | ".join(line.cells.get(name, "-") for name in COLUMNS)
        text.append(f"| {line.name} | {line.parameters:,} | {share} | {cells} | {line.seconds:.1f} |")
    text += ["", "## Why not, and what is left out", ""]
    text += [f"- **{x.name}**: {'; '.join(one_line(reason) for reason in x.reasons)}" for x in lines if x.reasons]
    return "\n".join(text) + "\n"


def one_line(text: str) -> str:
    words = " ".join(text.split()).replace("|", "/").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return words if len(words) < 400 else words[:397] + "..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name holds this text")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    provenance()  # of the code that runs, whatever is changed meanwhile
    cases = [case for case in CASES if asked.only in case.name]
    if not cases:
        sys.exit(f"no network of the zoo has {asked.only!r} in its name")
    lines = []
    for case in track(cases, "the zoo", len(cases)):
        line = tried(case)
        lines.append(line)
        cells = " ".join(f"{name} {word}" for name, word in line.cells.items())
        print(f"{line.name}: {cells} ({line.seconds:.1f} s) {'; '.join(map(one_line, line.reasons))}", flush=True)
    if asked.write:
        PAGE.write_text(page(lines), encoding="utf-8")
    if any(word == "FAILED" for line in lines for word in line.cells.values()):
        sys.exit("some cells failed")


if __name__ == "__main__":
    main()
