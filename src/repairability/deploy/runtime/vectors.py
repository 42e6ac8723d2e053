"""Loops over vectors, written as LLVM so that the sums stay in registers; `kernels` calls them.

`tile` is the one that matters. With p running over a tile of `size` vectors of consecutive positions,

    out_f[p] = bias_f + sum_i values[i, f] * in[p + offsets[i]]        (then + residual, then clamped to [floor, cap])

for one filter (`filters` = 1, its own nonzero weights) or four that share their offsets (dense: each load serves four).
A weight costs one load and one product per vector: the sums never leave the registers while the weights go by.
LLVM splits a vector that is wider than the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from llvmlite.binding import address_of_symbol

from repairability.deploy.runtime.writer import INT, LANES, REAL, SHORT, Value, Writer

REGISTERS = 16 if LANES == 8 else 32
SHARED = 4
"""Filters that share their loads in the dense kernel."""

LARGEST = {1: 8, SHARED: 6 if REGISTERS == 32 else 3}
"""Vectors in a tile, by the number of filters: all sums, and the inputs that filters share, fit into the registers."""


def tile(w: Writer, size: int, filters: int, given: Sequence[Value]) -> None:
    """See above. `first` and `last`: of the blocks of channels, between which the sums rest in `out`; 0 as `residual`
    is none. Small tiles take several weights at a time, each with sums of its own, so that no product waits.
    """
    out, plane, source, offsets, values, count, bias, first, last, residual, floor, cap = given
    b = w.b
    places = [(f, v) for f in range(filters) for v in range(size)]
    spot = {(f, v): w.at(b.add(out, b.mul(plane, INT(f))), v) for f, v in places}
    ways = max(1, min(8 // (size * filters), 4)) if w.lanes > 1 else 8

    def begun() -> list[Value]:
        return [w.splat(w.item(REAL, bias, INT(f))) for f, _ in places]

    def weigh(i: Value, sums: list[Value]) -> list[Value]:
        inputs = b.add(source, b.sext(w.item(SHORT, offsets, i), INT))
        vectors = [w.load(w.at(inputs, v)) for v in range(size)]
        row = i if filters == 1 else b.mul(i, INT(filters))
        weights = [w.splat(w.item(REAL, values, b.add(row, INT(f)))) for f in range(filters)]
        return [w.times_plus(weights[f], vectors[v], sums[k]) for k, (f, v) in enumerate(places)]

    def several(i: Value, sums: list[Value]) -> list[Value]:
        n = len(places)
        return [x for way in range(ways) for x in weigh(b.add(i, INT(way)), sums[n * way : n * way + n])]

    sums = w.either(first, begun, lambda: [w.load(spot[place]) for place in places])
    begin = INT(0)
    if ways > 1:
        begin = b.mul(b.sdiv(count, INT(ways)), INT(ways))
        zeros = [w.constant(0.0)] * (len(places) * (ways - 1))
        parts = w.loop(INT(0), begin, ways, [*sums, *zeros], several)
        sums = [parts[k] for k in range(len(places))]
        for way in range(1, ways):
            sums = [b.fadd(x, parts[way * len(places) + k]) for k, x in enumerate(sums)]
    sums = w.loop(begin, count, 1, sums, weigh)

    def added() -> list[Value]:
        back = b.sub(residual, out)
        return [b.fadd(x, w.load(b.add(back, spot[place]))) for place, x in zip(places, sums, strict=True)]

    def ended() -> list[Value]:
        whole = w.either(residual, added, lambda: sums)
        low, high = w.splat(floor), w.splat(cap)
        return [w.smaller(high, w.larger(low, x)) for x in whole]

    for place, x in zip(places, w.either(last, ended, lambda: sums), strict=True):
        w.store(x, spot[place])


def pool(w: Writer, size: int, given: Sequence[Value]) -> None:
    """out[p] = scale * sum_i in[p + offsets[i]] where `scale` is not 0, else the largest of them."""
    out, source, offsets, count, scale = given
    b = w.b

    def taken(combine: Callable[[Value, Value], Value]) -> Callable[[Value, list[Value]], list[Value]]:
        def body(i: Value, sums: list[Value]) -> list[Value]:
            inputs = b.add(source, b.sext(w.item(SHORT, offsets, i), INT))
            return [combine(w.load(w.at(inputs, v)), x) for v, x in enumerate(sums)]

        return body

    def mean() -> list[Value]:
        sums = w.loop(INT(0), count, 1, [w.constant(0.0)] * size, taken(b.fadd))
        return [b.fmul(x, w.splat(scale)) for x in sums]

    def largest() -> list[Value]:
        return w.loop(INT(0), count, 1, [w.constant(float("-inf"))] * size, taken(w.larger))

    is_mean = b.zext(b.fcmp_ordered("!=", scale, ir.Constant(REAL, 0.0)), INT)
    for v, x in enumerate(w.either(is_mean, mean, largest)):
        w.store(x, w.at(out, v))


def total(w: Writer, source: Value, vectors: Value) -> Value:
    """The sum over so many vectors."""
    end = w.b.mul(vectors, INT(w.step))
    [sums] = w.loop(INT(0), end, w.step, [w.constant(0.0)], lambda i, x: [w.b.fadd(x[0], w.load(w.b.add(source, i)))])
    return w.total(sums)


def unzip(w: Writer, source: Value, even: Value, odd: Value, vectors: Value) -> None:
    """Every other number to `even`, the others to `odd`: so many vectors of each."""
    b = w.b
    lanes = ir.VectorType(SHORT, w.lanes)
    picks = [ir.Constant(lanes, [2 * lane + k for lane in range(w.lanes)]) for k in (0, 1)]

    def body(i: Value, _: list[Value]) -> list[Value]:
        here = b.add(source, b.shl(i, INT(1)))
        pair = w.load(here), w.load(w.at(here, 1))
        for pick, out in zip(picks, (even, odd), strict=True):
            w.store(b.shuffle_vector(*pair, pick), b.add(out, i))
        return []

    w.loop(INT(0), b.mul(vectors, INT(w.step)), w.step, [], body)


def turn(w: Writer, source: Value, source_row: Value, target: Value, target_row: Value) -> None:
    """A square of lanes x lanes numbers, transposed; rows are so many bytes apart.

    Interleaving row i with row i + n/2, for all i, log2(n) times over, brings column k into row k.
    """
    b, n = w.b, w.lanes
    rows = [w.load(b.add(source, b.mul(source_row, INT(k)))) for k in range(n)]
    halves = [[half + k // 2 + n * (k % 2) for k in range(n)] for half in (0, n // 2)]
    picks = [ir.Constant(ir.VectorType(SHORT, n), pick) for pick in halves]
    for _ in range(n.bit_length() - 1):
        rows = [b.shuffle_vector(rows[k], rows[k + n // 2], pick) for k in range(n // 2) for pick in picks]
    for k, row in enumerate(rows):
        w.store(row, b.add(target, b.mul(target_row, INT(k))))


def meet(w: Writer, counter: Value, target: Value) -> None:
    """Wait until all threads of a team are here: each adds one, and waits until the counter has reached the target."""
    b = w.b
    pointer = b.inttoptr(counter, INT.as_pointer())
    b.atomic_rmw("add", pointer, INT(1), "seq_cst")
    waiting, after = b.append_basic_block("waiting"), b.append_basic_block("met")
    rest = b.append_basic_block("rest")
    b.branch(waiting)
    b.position_at_end(waiting)
    here = b.load_atomic(pointer, "seq_cst", 8)
    b.cbranch(b.icmp_signed(">=", here, target), after, rest)
    b.position_at_end(rest)
    if address_of_symbol("sched_yield"):  # another thread may need this core to arrive
        known = b.module.globals.get("sched_yield")
        b.call(known or ir.Function(b.module, ir.FunctionType(SHORT, []), "sched_yield"), [])
    b.branch(waiting)
    b.position_at_end(after)
