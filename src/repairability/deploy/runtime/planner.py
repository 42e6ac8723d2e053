"""Planner: a network's stages as a program: buffers, then steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repairability.deploy.runtime import kernels
from repairability.deploy.runtime import program as p
from repairability.deploy.runtime.layout import Layouts, Phases, is_direct, reach, rounded, split_key
from repairability.deploy.runtime.packing import Packed, pack_dense, pack_sparse
from repairability.deploy.runtime.plan import Plan
from repairability.deploy.runtime.program import Floats, Ints, Pack, Program
from repairability.deploy.runtime.rooms import ALIGNED, Rooms
from repairability.deploy.runtime.stages import Flatten, LinearStage, Mean, Pool, Stage, Staged

LANES = kernels.LANES


@dataclass
class Planner:
    """Writes the program for a batch of `batch` samples with `dense` stages (numbers) by the dense kernel."""

    network: Staged
    batch: int
    dense: frozenset[int]
    threads: int

    def plan(self) -> Plan:
        network = self.network
        self.layouts = Layouts(network, LANES)
        self.samples = 1 if self.batch == 1 else rounded(self.batch, LANES)
        self.lists, self.offsets, self.values, self.biases = Pack(), Pack(), Pack(), Pack()
        self.cut: set[Any] = set()
        self.rows: list[Ints] = []
        self.numbers: list[Floats] = []
        self.owners: list[int] = []
        self.rooms = Rooms(network, self.layouts, self.threads)
        features = self._place_features()
        if 0 in self.rooms.place:
            self._import()
        for number, stage in enumerate(network.stages):
            self._write(number, stage)
        on_images = [len(network.shapes[network.stages[k].source]) == 3 if k >= 0 else True for k in self.owners]
        last = network.output
        if len(network.shapes[last]) == 3:
            self._store(last)
            on_images.append(True)
            outputs = (-1, int(np.prod(network.shapes[last])))
        else:
            outputs = (self.features[last], network.shapes[last][0])
        order = sorted(range(len(self.rows)), key=lambda k: not on_images[k])
        return Plan(
            self._program(order),
            sum(on_images),
            [self.owners[k] for k in order],
            self.rooms.size + ALIGNED,
            self.rooms.fills,
            features,
            self.samples,
            self.features[0] if len(network.shapes[0]) == 1 else -1,
            outputs,
        )

    def _program(self, order: Sequence[int]) -> Program:
        ints, floats = np.zeros(0, np.int64), np.zeros(0, np.float32)
        lists = np.concatenate([np.zeros((0, 3), np.int64), *self.lists.parts])
        steps = np.array([self.rows[k] for k in order], np.int64).reshape(-1, p.FIELDS)
        numbers = np.array([self.numbers[k] for k in order], np.float32).reshape(-1, 3)
        offsets: Any = self.offsets.done(ints.astype(np.int32))
        values: Any = self.values.done(floats)
        biases: Any = self.biases.done(floats)
        return Program(steps, numbers, lists, offsets, values, biases)

    def _place_features(self) -> int:
        self.features: dict[int, int] = {}
        size = 0
        for value, shape in self.network.shapes.items():
            if len(shape) == 1:
                self.features[value] = size
                size += rounded(rounded(shape[0], LANES) * self.samples, ALIGNED)
        return size + ALIGNED

    def _at(self, value: int) -> int:
        """The first number of the first plane, or the first feature."""
        if len(self.network.shapes[value]) == 1:
            return self.features[value]
        return self.rooms.place[value].begin + self.layouts.value(value).lead

    def _step(
        self, owner: int, kind: int, fields: Mapping[str, int], numbers: Sequence[float] = (0.0, 0.0, 0.0)
    ) -> None:
        row = np.zeros(p.FIELDS, np.int64)
        row[p.KIND] = kind
        for name, value in fields.items():
            row[getattr(p, name.upper())] = value
        self.rows.append(row)
        self.numbers.append(np.array(numbers, np.float32))
        self.owners.append(owner)

    def _import(self) -> None:
        """The images as they are given, to where stages read them."""
        layout, outside = self.layouts.value(0), self._read_fields(0, outside=True)
        whole = {"scratch": self._at(0), "subplane": layout.plane, "substride": layout.stride}
        self._step(-1, p.SPLIT, {**outside, **whole, "subrows": layout.height, "down": 1, "across": 1})

    def _read_fields(self, value: int, outside: bool = False) -> dict[str, int]:
        channels, height, width = self.network.shapes[value]
        found = {"channels": channels, "rows": height, "columns": width}
        if outside or (value == 0 and 0 not in self.rooms.place):
            return {**found, "from_input": 1, "source_plane": height * width, "source_stride": width}
        layout = self.layouts.value(value)
        return {**found, "source": self._at(value), "source_plane": layout.plane, "source_stride": layout.stride}

    def _written_fields(self, value: int, at: int = 0) -> dict[str, int]:
        layout = self.layouts.value(value)
        where = {"target": self._at(value) + at * layout.plane, "plane": layout.plane, "vectors": layout.vectors}
        return {**where, "height": layout.height, "width": layout.width, "stride": layout.stride}

    def _store(self, value: int) -> None:
        self._step(-1, p.STORE, self._read_fields(value))

    def _write(self, number: int, stage: Stage) -> None:
        if isinstance(stage, LinearStage):
            if len(self.network.shapes[stage.source]) == 1:
                self._write_matrix(number, stage)
            else:
                self._write_convolution(number, stage)
        elif isinstance(stage, Pool):
            phases = self.layouts.phases(stage)
            taps = [phases.tap(r, s) for r in range(stage.size[0]) for s in range(stage.size[1])]
            begin = self.offsets.add(4 * np.array(taps, np.int32))
            scale = 1.0 / len(taps) if stage.mean else 0.0
            fields = {**self._written_fields(stage.target, stage.at), **self._read_fields(stage.source)}
            fields |= self._cut_fields(phases, self.rooms.cuts[number].begin)
            fields |= {"taps": begin, "count": len(taps), "tile": kernels.LARGEST[1]}
            self._step(number, p.POOL, fields, (0.0, 0.0, scale))
        elif isinstance(stage, Mean):
            _, height, width = self.network.shapes[stage.source]
            fields = {**self._read_fields(stage.source), "target": self.features[stage.target]}
            fields["vectors"] = self.layouts.value(stage.source).vectors
            self._step(number, p.MEAN, fields, (0.0, 0.0, 1.0 / (height * width)))
        elif isinstance(stage, Flatten):
            fields = {**self._read_fields(stage.source), "target": self.features[stage.target]}
            self._step(number, p.FLATTEN, fields)

    def _cut_fields(self, phases: Phases, scratch: int) -> dict[str, int]:
        shape = {"subplane": phases.phase, "substride": phases.stride, "subrows": phases.rows}
        by = {"down": phases.by[0], "across": phases.by[1]}
        return {**shape, **by, "scratch": scratch, "up": phases.padding[0], "left": phases.padding[1]}

    def _write_convolution(self, number: int, stage: LinearStage) -> None:
        source, target = self.layouts.value(stage.source), self.layouts.value(stage.target)
        rows, columns = stage.weight.shape[2:]
        steps = [(r * stage.dilation[0], s * stage.dilation[1]) for r in range(rows) for s in range(columns)]
        if is_direct(stage, self.network):
            begin, plane = self._at(stage.source), source.plane
            taps = [(r - stage.padding[0]) * source.stride + s - stage.padding[1] for r, s in steps]
            planes = 1
        else:
            phases, key = self.layouts.phases(stage), split_key(stage, self.network)
            begin, plane = self.rooms.cuts[key].begin, phases.plane
            if key not in self.cut:
                self.cut.add(key)
                self._step(number, p.SPLIT, {**self._read_fields(stage.source), **self._cut_fields(phases, begin)})
            down, right = (around - own for around, own in zip(phases.padding, stage.padding, strict=True))
            taps = [phases.tap(r + down, s + right) for r, s in steps]
            planes = len({tap // phases.phase for tap in taps})
        halo = reach(stage)[0] // stage.stride[0] * target.stride
        fields = {**self._written_fields(stage.target, stage.at), "source": begin}
        residual = -1 if stage.residual is None else self._at(stage.residual)
        self._write_product(number, stage, np.array(taps), plane, planes, halo, {**fields, "residual": residual})

    def _write_product(
        self, number: int, stage: LinearStage, taps: Ints, plane: int, planes: int, halo: int, fields: Mapping[str, int]
    ) -> None:
        weight = stage.weight.numpy().reshape(len(stage.weight), stage.weight.shape[1], -1)
        bias = stage.bias.numpy()
        fitting = 0
        if number in self.dense and stage.groups == 1 and len(weight) >= kernels.SHARED:
            tile = kernels.LARGEST[kernels.SHARED]
            packed = pack_dense(weight, taps, plane, kernels.SHARED, self._bytes(fields, tile, planes, halo))
            fitting = packed.groups * kernels.SHARED
            self._emit(number, p.DENSE, stage, packed, bias[:fitting], tile, fields)
        if fitting < len(weight):
            tile = kernels.LARGEST[1]
            every = self._bytes(fields, tile, planes, halo)
            packed = pack_sparse(weight[fitting:], taps, plane, stage.groups, every)
            moved = dict(fields)
            moved["target"] += fitting * fields["plane"]
            if fields["residual"] >= 0:
                moved["residual"] += fitting * fields["plane"]
            self._emit(number, p.SPARSE, stage, packed, bias[fitting:], tile, moved)

    def _bytes(self, fields: Mapping[str, int], tile: int, planes: int, halo: int) -> int:
        """What a tile reads of a channel."""
        return 4 * planes * (min(tile, fields["vectors"]) * LANES + halo)

    def _emit(
        self,
        number: int,
        kind: int,
        stage: LinearStage,
        packed: Packed,
        bias: Floats,
        tile: int,
        fields: Mapping[str, int],
    ) -> None:
        lists = packed.lists + np.array([self.offsets.add(packed.offsets), self.values.add(packed.values), 0])
        begin = self.lists.add(lists)
        shape = {"groups": packed.groups, "blocks": packed.blocks, "lists": begin, "bias": self.biases.add(bias)}
        self._step(number, kind, {**fields, **shape, "tile": tile}, (stage.floor, stage.cap, 0.0))

    def _write_matrix(self, number: int, stage: LinearStage) -> None:
        """A linear layer: on a batch its positions are samples; on one sample it has a kernel of its own."""
        weight, bias = stage.weight.numpy(), stage.bias.numpy()
        source, target = self._at(stage.source), self._at(stage.target)
        residual = -1 if stage.residual is None else self._at(stage.residual)
        fields = {"source": source, "target": target, "residual": residual}
        if self.samples > 1:
            size = {"plane": self.samples, "vectors": self.samples // LANES, "stride": self.samples}
            fields |= {**size, "height": 1, "width": self.samples}
            self._write_product(number, stage, np.zeros(1, np.int64), self.samples, 1, 0, fields)
        elif number in self.dense and stage.groups == 1 and residual < 0:
            outputs = rounded(len(weight), LANES)
            matrix = np.zeros((weight.shape[1], outputs), np.float32)
            matrix[:, : len(weight)] = weight.T
            taken = np.arange(weight.shape[1], dtype=np.int64) * outputs
            packed = Packed(np.array([[0, 0, len(taken)]]), (4 * taken).astype(np.int32), matrix.ravel(), 1, 1)
            padded = np.concatenate([np.zeros(LANES), bias, np.zeros(outputs - len(bias))]).astype(np.float32)
            fields["vectors"] = outputs // LANES
            self._emit(number, p.COLUMN, stage, packed, padded, kernels.LARGEST[1], fields)
        else:
            packed = pack_sparse(weight[:, :, None], np.zeros(1, np.int64), 1, stage.groups)
            self._emit(number, p.ROW, stage, packed, bias, 1, fields)
