"""Writer: LLVM code for vectors, loops and choices, which `vectors` puts together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features

REAL, INT, SHORT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
FEATURES = get_host_cpu_features()
LANES = 16 if FEATURES.get("avx512f") else 8 if FEATURES.get("avx") else 4
"""Numbers in a vector register of this machine."""

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
