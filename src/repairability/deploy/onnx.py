"""export_onnx: a network as an ONNX file that anybody can run, checked against the network."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repairability._files import write_atomically
from repairability._torch import check_finite, check_output, copy_of, evaluating, evaluation_mode_
from repairability.errors import InputError, MissingExtraError, first_line
from repairability.network.batches import check_pixels, leaves, run, to_model
from repairability.network.folding import without_norms
from repairability.tables import Table, Value

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-2}
"""Of the largest output, by the type of the weights: another engine's sums are 1e-6 to 1e-5 of it apart, of float16,
which onnxruntime may compute in float32, 1e-3.
"""

_BATCH = 64
_AS_FLOAT32 = "export a float32 copy of the network, copy.deepcopy(model).float()"
_SILENT = threading.Lock()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, eq=False)
class OnnxFile(Value):
    """A file that was written, and how it compares with the network on the images it was checked with."""

    path: str
    size: int  # bytes
    opset: int
    images: int
    difference: float  # the largest between the outputs, relative to the largest output
    same: int | None  # images with the same prediction, where the output is [n, classes]
    zeros: int  # in the weights, in the file as in the network

    def table(self) -> Table:
        same = "" if self.same is None else f"{self.same:,} of {self.images:,}"
        row = (self.path, f"{self.size:,}", str(self.opset), f"{self.difference:.1e}", same, f"{self.zeros:,}")
        return Table(("file", "bytes", "opset", "largest difference", "same prediction", "zero weights"), [row])


def export_onnx(
    model: nn.Module, example: Tensor, path: str | os.PathLike[str], *, check: Tensor | None = None
) -> OnnxFile:
    """Write `model`, for inference, as ONNX: any number of images at a time, BatchNorm folded into the convolutions.

    The file is run by onnxruntime on `check` (real images; else on `example`) before it gets its name: outputs as near
    as rounding allows (1e-3 of the largest, of float16 2e-2), all zeros still there; else an InputError, and `path` is
    as it was. A prediction that rounding alone turns is a warning.
    """
    onnx, runtime = _packages()
    if not isinstance(example, Tensor) or example.dim() < 2 or not len(example):
        raise InputError("an example is one tensor [n, ...] as the network takes it; no other batch can be exported")
    images = example if check is None else check
    if not isinstance(images, Tensor) or not images.numel():
        raise InputError("check must be one tensor of images, at least one")
    check_pixels(example)
    check_pixels(images)
    if images.shape[1:] != example.shape[1:]:
        raise InputError(f"check has images of shape {tuple(images.shape[1:])}, the example {tuple(example.shape[1:])}")
    check_finite(model)
    tolerance = _tolerance(model)
    folded = evaluation_mode_(without_norms(copy_of(model).cpu(), example.cpu()))
    content, opset = _exported(folded, to_model(example.cpu(), folded))
    zeros = _checked_zeros(onnx, content, folded)
    difference, same = _compared(runtime, content, folded, model, images, tolerance)
    write_atomically(path, content)
    return OnnxFile(os.fspath(path), len(content), opset, len(images), difference, same, zeros)


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "onnx") from error
    return onnx, onnxruntime


def _tolerance(model: nn.Module) -> float:
    """How far apart the outputs may be; a type of weights that onnxruntime does not run is refused."""
    types = {parameter.dtype: name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    for dtype, name in types.items():
        if dtype not in TOLERANCES:
            known = ", ".join(map(str, TOLERANCES))
            raise InputError(f"{name} is {dtype}, and onnxruntime runs {known}: {_AS_FLOAT32}")
    return max((TOLERANCES[dtype] for dtype in types), default=TOLERANCES[torch.float32])


def _exported(model: nn.Module, example: Tensor) -> tuple[bytes, int]:
    """The file's bytes and its opset, by torch's exporter."""
    two = torch.cat([example[:1], example[:1]])  # of a batch of one, the exporter makes a network for one
    try:
        with _silence(), torch.no_grad():
            batch = {0: torch.export.Dim("batch")}
            program = torch.onnx.export(model, (two,), dynamo=True, dynamic_shapes=(batch,), verbose=False)
            assert program is not None
            return program.model_proto.SerializeToString(), int(program.model.opset_imports[""])
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # what the exporter says of it is of the exporter, in many lines
            cause = cause.__cause__
        words = f"{type(cause).__name__}: {_COLOUR.sub('', first_line(cause))}"
        raise InputError(f"torch's exporter does not take {type(model).__name__}: {words}") from error


@contextmanager
def _silence() -> Iterator[None]:
    """Neither warnings nor what torch's exporter logs and prints: where it fails, the whole graph. All that is the
    process's own, so one thread at a time.
    """
    with _SILENT, warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _checked_zeros(onnx: Any, content: bytes, model: nn.Module) -> int:
    """How many weights are zero; each tensor of the file must have as many as the weight of its name (more where tiny
    ones are rounded to it), and what has another name there as many as all weights that are left. A weight of zeros
    alone may have gone, with what it would have computed.
    """
    stored = onnx.load_from_string(content).graph.initializer
    found = {x.name: int((onnx.numpy_helper.to_array(x) == 0).sum()) for x in stored if len(x.dims) > 1}
    wanted = {name: int((p == 0).sum()) for name, p in model.named_parameters() if p.dim() > 1}
    for name in wanted.keys() & found.keys():
        if found[name] < wanted[name]:
            raise InputError(f"{name} has {wanted[name]:,} zeros, in the ONNX file {found[name]:,}; it is not written")
    empty = {name for name, p in model.named_parameters() if not bool(p.count_nonzero())}
    left = sum(wanted[name] for name in wanted.keys() - found.keys() - empty)
    there = sum(found[name] for name in found.keys() - wanted.keys())
    if there < left:
        raise InputError(f"of {left:,} zero weights the ONNX file would have {there:,}; it is not written")
    return sum(wanted.values())


@contextmanager
def _onnxruntime(dtype: torch.dtype) -> Iterator[None]:
    """What it raises, which has no base of its own, as one sentence."""
    try:
        yield
    except Exception as error:
        more = f" ({_AS_FLOAT32})" if dtype == torch.float64 else ""
        raise InputError(
            f"onnxruntime does not run the ONNX file: {first_line(error)}{more}; it is not written"
        ) from error


def _compared(
    runtime: Any, content: bytes, like: nn.Module, model: nn.Module, images: Tensor, tolerance: float
) -> tuple[float, int | None]:
    """(largest difference relative to the largest output, images with the same prediction)."""
    with _onnxruntime(to_model(images[:1], like).dtype):
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        entry = session.get_inputs()[0].name
    off, largest, same, logits = 0.0, 0.0, 0, True
    with evaluating(model) as network:
        for batch in images.split(_BATCH):  # type: ignore[no-untyped-call]
            expected = [x.cpu() for x in leaves(run(network, to_model(batch, network)))]
            check_output(expected)
            asked = to_model(batch.cpu(), like)
            with _onnxruntime(asked.dtype):
                given = [torch.from_numpy(x) for x in session.run(None, {entry: asked.numpy()})]
            if [x.shape for x in expected] != [x.shape for x in given]:
                shapes = ", ".join(
                    f"{tuple(a.shape)} is {tuple(b.shape)}" for a, b in zip(expected, given, strict=False)
                )
                raise InputError(f"the ONNX file has other outputs than the network: {shapes}; it is not written")
            for a, b in zip(expected, given, strict=True):
                off = max(off, float((a.double() - b.double()).abs().max()))
                largest = max(largest, float(a.double().abs().max()))
            logits &= len(expected) == 1 and expected[0].dim() == 2
            same += int((expected[0].argmax(1) == given[0].argmax(1)).sum()) if logits else 0
    difference = off / max(largest, 1e-30)
    if not difference <= tolerance:
        words = f"its outputs differ by {difference:.2g} of the largest"
        raise InputError(f"onnxruntime does not compute what the network does: {words}; it is not written")
    if logits and same < len(images):
        words = f"{len(images) - same} of {len(images)} predictions differ"
        warnings.warn(
            f"{words} between onnxruntime and torch: two classes that are equal but for rounding", stacklevel=3
        )
    return difference, same if logits else None
