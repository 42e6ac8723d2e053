"""The surgeon on Grams that look real (3 x 3 patches of smooth, rectified, mixed channels), all ratios from one run.

    python benchmarks/surgeon.py

Exact against one filter at a time with whole-matrix updates; cut-then-exact against exact in time and in loss;
solve_on_support against a loop over the filters. A small machine needs about a minute.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from timing import machine, seconds
from torch import Tensor

from repairability.algebra.grams import solve_on_support
from repairability.algebra.surgeon import Removal, mask_of, removal_trace, wide_trace

FILTERS, CHANNELS = 64, 64


def problem(channels: int, filters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [R, 9 C], the Gram of unfolded smooth noise with its ridge, scales [R]."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(16, channels, 20, 20, generator=generator)
    smooth = F.avg_pool2d(noise, 3, stride=1)  # neighbours correlate
    mixing = torch.randn(channels, channels, generator=generator) / torch.arange(1, channels + 1).sqrt()
    images = torch.einsum("nchw,dc->ndhw", smooth, mixing).relu()  # and so do the channels
    patches = F.unfold(images, 3).transpose(1, 2).flatten(0, 1).double()  # [samples, 9 C]
    patches = patches - patches.mean(0)
    gram = patches.T @ patches / len(patches)
    gram.diagonal().add_(1e-3 * gram.diagonal().mean())
    weights = torch.randn(filters, 9 * channels, generator=generator).double()
    return weights, gram, 0.1 + torch.rand(filters, generator=generator).double()


def plain(weights: Tensor, gram: Tensor) -> Tensor:
    """One filter at a time, the whole inverse updated in every step; the order of removal."""
    start, orders = torch.linalg.inv(gram), []
    for w in weights:
        w, inverse, order = w.clone(), start.clone(), []
        for _ in range(len(w)):
            p = int((w.square() / inverse.diagonal()).argmin())
            column = inverse[p].clone()
            w -= w[p] / column[p] * column
            inverse.addr_(column, column, alpha=-1.0 / float(column[p]))
            inverse[p, p], w[p] = 1.0, torch.inf
            order.append(p)
        orders.append(torch.tensor(order))
    return torch.stack(orders)


def loop(gram: Tensor, right: Tensor, support: Tensor) -> Tensor:
    answer = torch.zeros_like(right)
    for r, chosen in enumerate(support):
        answer[r, chosen] = torch.linalg.solve(gram[chosen][:, chosen], right[r, chosen])
    return answer


def curve_of(removal: Removal, counts: list[int]) -> Tensor:
    """The loss at each count: what the removed steps of all filters added."""
    sums = torch.cat([removal.increase.new_zeros(len(removal.increase), 1), removal.increase.cumsum(1)], 1)
    return torch.stack([sums.gather(1, (~mask_of(removal, n)).sum(1, keepdim=True)).sum() for n in counts])


def main() -> None:
    print(machine())
    weights, gram, scale = problem(CHANNELS, FILTERS)
    inputs = weights.shape[1]
    few = weights[:4]
    exact = seconds(lambda: removal_trace(weights, gram, scale), repeats=2)
    naive = seconds(lambda: plain(few, gram), repeats=1) * FILTERS / len(few)
    same = float((plain(few, gram) == removal_trace(few, gram, scale[:4]).order).double().mean())
    print(f"exact, {FILTERS} filters of {inputs}: {exact:.2f} s; naive: {naive:.1f} s = {naive / exact:.1f} times")
    print(f"  steps at which the two remove the same weight: {same:.1%}")
    trace = removal_trace(weights, gram, scale)
    counts = [round(s * weights.numel()) for s in (0.8, 0.9, 0.95)]
    best = curve_of(trace, counts)
    whole = float(curve_of(trace, [weights.numel()])[0])
    print("  loss / loss of removing all at 80, 90, 95 %: " + ", ".join(f"{x / whole:.4f}" for x in best.tolist()))
    for limit in (96, 192, 288, 384):
        time = seconds(partial(wide_trace, weights, gram, scale, limit=limit), repeats=2)
        ratios = (curve_of(wide_trace(weights, gram, scale, limit=limit), counts) / best).tolist()
        shown = ", ".join(f"{x:.3f}" for x in ratios)
        print(f"wide, limit {limit}: {time:.2f} s = {time / exact:.2f} of exact; loss / exact's: {shown}")
    support = torch.rand(weights.shape, generator=torch.Generator().manual_seed(1)) < 60 / inputs
    right = weights @ gram
    batched = seconds(lambda: solve_on_support(gram, right, support))
    single = seconds(lambda: loop(gram, right, support))
    print(f"solve on about 60 of {inputs}: {batched * 1e3:.1f} ms for {FILTERS}; loop: {single / batched:.1f} times")


if __name__ == "__main__":
    main()
