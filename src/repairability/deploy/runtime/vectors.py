"""Loops over vectors, written as LLVM so that the sums stay in registers; `kernels` calls them.

`tile` is the one that matters. With p running over a tile of `size` vectors of consecutive positions,

    out_f[p] = bias_f + sum_i values[i, f] * in[p + offsets[i]]        (then + residual, then clamped to [floor, cap])

for one filter (`filters` = 1, its own nonzero weights) or four that share their offsets (dense: each load serves four).
A weight costs one load and one product per vector: the sums never leave the registers while the weights go by.
LLVM splits a vector that is wider than the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import address_of_symbol, get_host_cpu_features

REAL, INT, SHORT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
FEATURES = get_host_cpu_features()
LANES = 16 if FEATURES.get("avx512f") else 8 if FEATURES.get("avx") else 4
"""Numbers in a vector register of this machine."""

REGISTERS = 16 if LANES == 8 else 32
SHARED = 4
"""Filters that share their loads in the dense kernel."""

LARGEST = {1: 8, SHARED: 6 if REGISTERS == 32 else 3}
"""Vectors in a tile, by the number of filters: all sums, and the inputs that filters share, fit into the registers."""

Value = Any  # llvmlite is untyped


class Writer:
    """A builder with vectors of `lanes` numbers."""

    def __init__(self, builder: Value, lanes: int = LANES) -> None:
        self.b, self.lanes = builder, lanes
        self.vector: Value = REAL if lanes == 1 else ir.VectorType(REAL, lanes)
        self.step = 4 * lanes

    def splat(self, number: Value) -> Value:
        if self.lanes == 1:
            return number
        nothing, first = ir.Constant(self.vector, ir.Undefined), ir.Constant(ir.VectorType(SHORT, self.lanes), None)
        return self.b.shuffle_vector(self.b.insert_element(nothing, number, SHORT(0)), nothing, first)

    def constant(self, number: float) -> Value:
        return self.splat(ir.Constant(REAL, number))

    def at(self, address: Value, vectors: int) -> Value:
        return self.b.add(address, INT(self.step * vectors))

    def load(self, address: Value, kind: Value = None) -> Value:
        kind = kind or self.vector
        loaded = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        loaded.align = 4
        return loaded

    def store(self, value: Value, address: Value) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = 4

    def item(self, kind: Value, address: Value, index: Value) -> Value:
        """Number `index` of an array of four-byte numbers."""
        return self.load(self.b.add(address, self.b.shl(index, INT(2))), kind)

    def times_plus(self, a: Value, x: Value, y: Value) -> Value:
        name = "llvm.fmuladd.f32" if self.lanes == 1 else f"llvm.fmuladd.v{self.lanes}f32"
        known = self.b.module.globals.get(name)
        function = known or ir.Function(self.b.module, ir.FunctionType(self.vector, [self.vector] * 3), name)
        return self.b.call(function, [a, x, y])

    def larger(self, x: Value, y: Value) -> Value:
        """The larger one; what is not a number stays so where it is `y`."""
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def smaller(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered("<", x, y), x, y)

    def total(self, vector: Value) -> Value:
        parts = [self.b.extract_element(vector, SHORT(lane)) for lane in range(self.lanes)]
        while len(parts) > 1:
            parts = [self.b.fadd(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def loop(
        self,
        begin: Value,
        end: Value,
        by: int,
        start: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """`for i in range(begin, end, by): state = body(i, state)`, the state in registers."""
        before = self.b.block
        inside, after = self.b.append_basic_block("loop"), self.b.append_basic_block("after")
        self.b.cbranch(self.b.icmp_signed("<", begin, end), inside, after)
        self.b.position_at_end(inside)
        i, state = self.b.phi(INT), [self.b.phi(x.type) for x in start]
        new = body(i, list(state))
        following = self.b.add(i, INT(by))
        i.add_incoming(begin, before)
        i.add_incoming(following, self.b.block)
        for phi, first, later in zip(state, start, new, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, self.b.block)
        last = self.b.block
        self.b.cbranch(self.b.icmp_signed("<", following, end), inside, after)
        self.b.position_at_end(after)
        return self.joined([(start, before), (new, last)])

    def joined(self, ways: Sequence[tuple[Sequence[Value], Value]]) -> list[Value]:
        """What the state is where several ways meet."""
        phis = [self.b.phi(x.type) for x in ways[0][0]]
        for values, block in ways:
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, block)
        return phis

    def either(
        self, condition: Value, then: Callable[[], list[Value]], otherwise: Callable[[], list[Value]]
    ) -> list[Value]:
        """The state after one of two ways; the condition is a whole number, 0 or not."""
        ways = [self.b.append_basic_block("then"), self.b.append_basic_block("else")]
        after, ends = self.b.append_basic_block("after"), []
        self.b.cbranch(self.b.icmp_signed("!=", condition, INT(0)), *ways)
        for block, way in zip(ways, (then, otherwise), strict=True):
            self.b.position_at_end(block)
            ends.append((way(), self.b.block))
            self.b.branch(after)
        self.b.position_at_end(after)
        return self.joined(ends)

    def switch(self, value: Value, cases: Sequence[int], body: Callable[[int], None]) -> None:
        """`body(case)` for the case that the value is."""
        after = self.b.append_basic_block("done")
        switch = self.b.switch(value, after)
        for case in cases:
            block = self.b.append_basic_block(f"case{case}")
            switch.add_case(INT(case), block)
            self.b.position_at_end(block)
            body(case)
            self.b.branch(after)
        self.b.position_at_end(after)


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
