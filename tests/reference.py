"""Slow, obvious versions of what the package does fast. Imports nothing of it: a second opinion."""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

Weights = Sequence[Sequence[float]]


def pruned_count(total: int, sparsity: float) -> int:
    """Round half to even, on the floating-point product."""
    product = Fraction(sparsity * total)
    low = math.floor(product)
    if product - low == Fraction(1, 2):
        return low if low % 2 == 0 else low + 1
    return low if product - low < Fraction(1, 2) else low + 1


def mask(weights: Sequence[float], count: int) -> list[bool]:
    """True where a weight stays: the `count` first in the order (|w|, index) go."""
    order = sorted(range(len(weights)), key=lambda i: (abs(weights[i]), i))
    gone = set(order[:count])
    return [i not in gone for i in range(len(weights))]


def global_counts(layers: Weights, count: int) -> list[int]:
    """How many weights each layer loses when the `count` smallest of all go, in the order (|w|, layer, index)."""
    order = sorted((abs(w), layer, i) for layer, weights in enumerate(layers) for i, w in enumerate(weights))
    return [sum(1 for _, layer, _ in order[:count] if layer == x) for x in range(len(layers))]


def lamp_counts(layers: Weights, count: int) -> list[int]:
    """The same for the order (LAMP score, layer, rank in the layer)."""
    scored = []
    for layer, weights in enumerate(layers):
        squares = [w * w for w in sorted(abs(w) for w in weights)]
        for rank, square in enumerate(squares):
            below = math.fsum(squares[rank:])
            scored.append((square / below if below else 0.0, layer, rank))
    return [sum(1 for _, layer, _ in sorted(scored)[:count] if layer == x) for x in range(len(layers))]


def erk_densities(shapes: Sequence[Sequence[int]], sparsity: float, cap: float, floor: float) -> list[float]:
    """Bisection on e: the kept weights never fall when e grows."""
    raw = [sum(shape) / math.prod(shape) for shape in shapes]
    totals = [math.prod(shape) for shape in shapes]
    wanted = (1 - sparsity) * sum(totals)

    def densities(e: float) -> list[float]:
        return [min(cap, max(floor, e * r)) for r in raw]

    low, high = 0.0, cap / min(raw)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(n * d for n, d in zip(totals, densities(middle), strict=True)) < wanted:
            low = middle
        else:
            high = middle
    return densities(high)


def greedy(
    grids: Sequence[Sequence[float]], costs: Sequence[Sequence[float]], totals: Sequence[int], target: float
) -> list[int]:
    """The paper's Algorithm 1, looking at every layer in every step."""
    budget = sum(pruned_count(n, target) for n in totals)
    levels = [0] * len(totals)
    while sum(pruned_count(n, grids[i][levels[i]]) for i, n in enumerate(totals)) < budget:
        best = None
        for i, n in enumerate(totals):
            k = levels[i]
            if k + 1 < len(grids[i]):
                step = (costs[i][k + 1] - costs[i][k]) / ((grids[i][k + 1] - grids[i][k]) * n)
                if best is None or step < best[0]:
                    best = (step, i)
        assert best is not None
        levels[best[1]] += 1
    return levels


def best_cost(
    grids: Sequence[Sequence[float]], costs: Sequence[Sequence[float]], totals: Sequence[int], target: float
) -> float:
    """The least cost of any choice of levels that meets the budget, by trying them all."""
    budget = sum(pruned_count(n, target) for n in totals)
    return min(
        sum(cost[k] for cost, k in zip(costs, levels, strict=True))
        for levels in itertools.product(*(range(len(grid)) for grid in grids))
        if sum(pruned_count(n, g[k]) for n, g, k in zip(totals, grids, levels, strict=True)) >= budget
    )


# --- the diagnostics, literally: a copy of the model per layer and sparsity ----------------------------------------

EPS = 1e-8


def outputs_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """What module `name` puts out, as [N, C, P] in float64 (a Linear's channels are last)."""
    found: list[Tensor] = []
    module = model.get_submodule(name)
    handle = module.register_forward_hook(lambda _module, _args, output: found.append(output.detach().double()))
    with torch.no_grad():
        model(images)
    handle.remove()
    (output,) = found
    if isinstance(module, nn.Linear):
        output = output.movedim(-1, 1)
    return output.reshape(output.shape[0], output.shape[1], -1)


def distance(a: Tensor, b: Tensor) -> float:
    """The mean over samples of the mean over channels of |a_c - b_c|^2 / (|a_c|^2 + eps)."""
    per_sample = []
    for a_sample, b_sample in zip(a, b, strict=True):
        ratios = [float(((x - y) ** 2).sum() / ((x**2).sum() + EPS)) for x, y in zip(a_sample, b_sample, strict=True)]
        per_sample.append(sum(ratios) / len(ratios))
    return sum(per_sample) / len(per_sample)


def prune_layer_(model: nn.Module, name: str, sparsity: float) -> None:
    weight = model.get_parameter(f"{name}.weight")
    kept = mask(weight.detach().flatten().tolist(), pruned_count(weight.numel(), sparsity))
    with torch.no_grad():
        weight.mul_(torch.tensor(kept).view(weight.shape))


def channel_scales(dense: Tensor, pruned: Tensor, shrinkage: float, tau: str = "median") -> list[float]:
    """gamma for each channel, from activations [N, C, P]."""
    var_d = [float(x.var(unbiased=False)) for x in dense.transpose(0, 1)]
    var_p = [float(x.var(unbiased=False)) for x in pruned.transpose(0, 1)]
    var_p = [0.0 if v < 1e-12 * float((x**2).mean()) else v for v, x in zip(var_p, pruned.transpose(0, 1), strict=True)]
    live = [v for v in var_p if v > 1e-12 * max(var_p)]
    middle = {"median": statistics.median, "mean": statistics.fmean}[tau](live) if live else 0.0
    gammas = []
    for d, p in zip(var_d, var_p, strict=True):
        shrunk = p / (p + shrinkage * middle) if p > 0 else 0.0
        gammas.append(math.exp(shrunk * (math.log(d + EPS) - math.log(p + EPS)) / 2))
    return gammas


def affine_of(dense: Tensor, pruned: Tensor, match: str, shift: bool) -> list[tuple[float, float]]:
    """(g, h) for each channel, from activations [N, C, P]: the line that fits best, or that matches mean and spread."""
    found = []
    for a, b in zip(dense.transpose(0, 1).flatten(1), pruned.transpose(0, 1).flatten(1), strict=True):
        if float(b.std(unbiased=False)) <= 1e-6 * float(b.abs().max()) and (shift or not b.any()):
            found.append((1.0, float(a.mean() - b.mean()) if shift else 0.0))
        elif match == "least_squares":
            columns = torch.stack([b, torch.ones_like(b)] if shift else [b], 1)
            g, *h = torch.linalg.lstsq(columns, a).solution.tolist()
            found.append((g, h[0] if h else 0.0))
        elif shift:
            g = float(a.std(unbiased=False) / b.std(unbiased=False))
            found.append((g, float(a.mean()) - g * float(b.mean())))
        else:
            found.append((float(a.norm() / b.norm()), 0.0))
    return found


def affine_layer_(
    model: nn.Module, name: str, lines: Sequence[tuple[float, float]], norm: str | None = None, shift: bool = True
) -> None:
    """y -> g y + h, the shift into the bias, or out of the norm's mean; a layer with neither is given a bias."""
    layer = model.get_submodule(name)
    g, h = (torch.tensor(x, dtype=layer.weight.dtype) for x in zip(*lines, strict=True))
    with torch.no_grad():
        layer.weight.mul_(g.view(-1, *[1] * (layer.weight.dim() - 1)))
        if layer.bias is not None:
            layer.bias.copy_(g * layer.bias + h)
        elif norm is not None:
            model.get_submodule(norm).running_mean.sub_(h)
        elif shift:
            layer.bias = nn.Parameter(h)


def affine(dense: nn.Module, pruned: nn.Module, order: list[str], images: Tensor, match: str) -> nn.Module:
    """Layer after layer in execution order, by whole forward passes; knows the small residual network by its names."""
    norms = {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}
    repaired = copy.deepcopy(pruned).eval()
    for name in order:
        a, b = (outputs_of(model, name, images) for model in (dense, repaired))
        if name == "shortcut" and match == "least_squares":
            norm = repaired.get_submodule("bn3")
            error = outputs_of(dense, "bn2", images) - outputs_of(repaired, "bn2", images)
            a = a + error * ((norm.running_var + norm.eps).sqrt() / norm.weight).detach()[:, None]
        affine_layer_(repaired, name, affine_of(a, b, match, True), norms.get(name))
    return repaired


def diagnose(
    model: nn.Module,
    images: Tensor,
    layer: str,
    sparsity: float,
    *,
    repair: str = "cr+bn",
    norm: str | None = None,
    shrinkage: float = 0.1,
    tau: str = "median",
    shift: bool = True,
) -> tuple[float, float, float]:
    """raw, residual, rr of one layer at one sparsity, observed at the layer, or at the BatchNorm `norm` behind it.

    `shift`: the layer has a bias or a BatchNorm. An affine shift that has no bias to go to, observed at the layer, is
    one that the layer is given: the same network as with the mean of its BatchNorm moved.
    """
    observed = norm or layer
    dense = copy.deepcopy(model).eval()
    pruned = copy.deepcopy(dense)
    prune_layer_(pruned, layer, sparsity)
    repaired = copy.deepcopy(pruned)
    if "cr" in repair.split("+"):
        gammas = channel_scales(outputs_of(dense, layer, images), outputs_of(pruned, layer, images), shrinkage, tau)
        weight = repaired.get_parameter(f"{layer}.weight")
        with torch.no_grad():
            for filter_, gamma in zip(weight, gammas, strict=True):
                filter_.mul_(gamma)
    for name, match in (("affine", "least_squares"), ("affine-moments", "moments")):
        if name in repair.split("+"):
            a, b = (outputs_of(net, layer, images) for net in (dense, repaired))
            affine_layer_(repaired, layer, affine_of(a, b, match, shift), norm, shift)
    if norm and "bn" in repair.split("+"):
        repaired.get_submodule(norm).train()
        with torch.no_grad():
            for _ in range(20):
                repaired(images)
        repaired.eval()
    a = outputs_of(dense, observed, images)
    raw = distance(a, outputs_of(pruned, observed, images))
    residual = distance(a, outputs_of(repaired, observed, images))
    return raw, residual, (residual + EPS) / (raw + EPS)


def literal_residual(
    model: nn.Module, images: Tensor, bn_images: Sequence[Tensor], layer: str, sparsity: float, shrinkage: float = 0.1
) -> float:
    """What CR, then BatchNorm recalibration of *every* BatchNorm with momentum 0.1, leave at the layer's own output in
    the network in which this layer alone is pruned.
    """
    dense = copy.deepcopy(model).eval()
    single = copy.deepcopy(dense)
    prune_layer_(single, layer, sparsity)
    gammas = channel_scales(outputs_of(dense, layer, images), outputs_of(single, layer, images), shrinkage)
    with torch.no_grad():
        for filter_, gamma in zip(single.get_parameter(f"{layer}.weight"), gammas, strict=True):
            filter_.mul_(gamma)
        for module in single.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
        for batch in bn_images:
            single(batch)
    single.eval()
    return distance(outputs_of(dense, layer, images), outputs_of(single, layer, images))


def reconstruct(dense: nn.Module, pruned: nn.Module, order: list[str], images: Tensor, ridge: float) -> nn.Module:
    """Layer after layer in execution order, by whole forward passes and one explicit least-squares problem per filter.

    Knows the small residual network of the tests by its names: each layer's BatchNorm, and that the branch of
    `shortcut` is added to that of `depthwise`.
    """
    norms = {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}
    repaired = copy.deepcopy(pruned).eval()

    def seen(model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor]] = []
        handle = model.get_submodule(name).register_forward_hook(lambda _, args, out: found.append((args[0], out)))
        with torch.no_grad():
            model(images)
        handle.remove()
        return found[0]

    for name in order:
        layer = repaired.get_submodule(name)
        norm = repaired.get_submodule(norms[name]) if name in norms else None
        x, y = seen(repaired, name)[0], seen(dense, name)[1]
        if name == "shortcut":
            error = seen(dense, "bn2")[1] - seen(repaired, "bn2")[1]
            y = y + error * ((norm.running_var + norm.eps).sqrt() / norm.weight)[:, None, None]
        if isinstance(layer, nn.Linear):
            columns, targets, groups = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), 1
        else:
            patches = nn.functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            columns = patches.transpose(1, 2).reshape(-1, patches.shape[1])
            targets, groups = y.flatten(2).transpose(1, 2).reshape(-1, y.shape[1]), layer.groups
        original = dense.get_submodule(name).weight
        size, per_group = columns.shape[1] // groups, original.shape[0] // groups
        with torch.no_grad():
            for r in range(original.shape[0]):
                g = r // per_group
                inputs = columns[:, g * size : (g + 1) * size]
                centred, wanted = inputs - inputs.mean(0), targets[:, r] - targets[:, r].mean()
                level = (centred.square().mean(0)).mean()
                strength = ridge * (1 + 100 * size / len(inputs))
                kept = layer.weight[r].flatten() != 0
                start = original[r].flatten()[kept]
                held = torch.eye(int(kept.sum()), dtype=x.dtype) * (strength * level * len(inputs)).sqrt()
                a = torch.cat([centred[:, kept], held])
                b = torch.cat([wanted - centred[:, kept] @ start, torch.zeros(int(kept.sum()), dtype=x.dtype)])
                row = torch.zeros(size, dtype=x.dtype)
                row[kept] = start + torch.linalg.lstsq(a, b[:, None]).solution[:, 0]
                layer.weight[r] = row.view(layer.weight[r].shape)
                shift = targets[:, r].mean() - inputs.mean(0) @ row
                if layer.bias is not None:
                    layer.bias[r] = shift
                elif norm is not None:
                    norm.running_mean[r] -= shift
    return repaired


# --- the surgeon, literally: a least-squares problem for every candidate of every step -----------------------------


def fit_on(weights: Tensor, gram: Tensor, support: Sequence[int]) -> Tensor:
    """The x that is zero off `support` and least in (w - x)' h (w - x): least squares on a square root of h."""
    values, vectors = torch.linalg.eigh(gram)
    root = vectors.T * values.clamp(min=0).sqrt()[:, None]  # root' root = h
    x = torch.zeros_like(weights)
    if support:
        chosen = list(support)
        x[chosen] = torch.linalg.lstsq(root[:, chosen], root @ weights, driver="gelsd").solution
    return x


def loss_on(weights: Tensor, gram: Tensor, support: Sequence[int]) -> float:
    change = weights - fit_on(weights, gram, support)
    return float(change @ gram @ change)


def surgeon(weights: Tensor, gram: Tensor, present: Sequence[int]) -> tuple[list[int], list[float]]:
    """(order, loss after each step) of one filter: each step tries every removal and keeps the best."""
    left, order, losses = sorted(present), [], []
    while left:
        trials = [(loss_on(weights, gram, [q for q in left if q != p]), p) for p in left]
        loss, best = min(trials)
        left.remove(best)
        order.append(best)
        losses.append(loss)
    return order, losses


def heap_greedy(increases: Weights, count: int) -> list[int]:
    """How many steps each filter has taken after `count`: always the filter whose next step costs least."""
    taken = [0] * len(increases)
    heap = [(steps[0], r) for r, steps in enumerate(increases) if steps]
    heapq.heapify(heap)
    for _ in range(count):
        _, r = heapq.heappop(heap)
        taken[r] += 1
        if taken[r] < len(increases[r]):
            heapq.heappush(heap, (increases[r][taken[r]], r))
    return taken


def solve_on(gram: Tensor, right: Tensor, support: Tensor) -> Tensor:
    """One filter at a time: h_SS x_S = right_S."""
    answer = torch.zeros_like(right)
    for r, chosen in enumerate(support):
        if chosen.any():
            answer[r, chosen] = torch.linalg.lstsq(gram[chosen][:, chosen], right[r, chosen], driver="gelsd").solution
    return answer
