"""export_onnx: a network as an ONNX file that anybody can run, checked against the network."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability._files import write_atomically
from repairability._torch import check_finite, check_output, copy_of, evaluating, evaluation_mode_
from repairability.errors import InputError, MissingExtraError, first_line
from repairability.network.batches import check_pixels, run, to_model
from repairability.network.folding import without_norms
from repairability.tables import Table, Value

TOLERANCE = 1e-3
"""Of the largest output: another engine's sums are 1e-6 to 1e-5 of it apart."""

_BATCH = 64


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
    as rounding allows, all zeros still there; else an InputError, and `path` is as it was. A prediction that rounding
    alone turns is a warning.
    """
    onnx, runtime = _packages()
    if not isinstance(example, Tensor) or example.dim() < 2 or not len(example):
        raise InputError("an example is one tensor [n, ...] as the network takes it; no other batch can be exported")
    images = example if check is None else check
    check_pixels(example)
    check_pixels(images)
    if images.shape[1:] != example.shape[1:]:
        raise InputError(f"check has images of shape {tuple(images.shape[1:])}, the example {tuple(example.shape[1:])}")
    check_finite(model)
    folded = evaluation_mode_(without_norms(copy_of(model).cpu(), example.cpu()))
    content, opset = _exported(folded, to_model(example.cpu(), folded))
    zeros = _checked_zeros(onnx, content, folded)
    difference, same = _compared(runtime, content, folded, model, images)
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


def _exported(model: nn.Module, example: Tensor) -> tuple[bytes, int]:
    """The file's bytes and its opset, by torch's exporter."""
    two = torch.cat([example[:1], example[:1]])  # of a batch of one, the exporter makes a network for one
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            batch = {0: torch.export.Dim("batch")}
            program = torch.onnx.export(model, (two,), dynamo=True, dynamic_shapes=(batch,), verbose=False)
            assert program is not None
            return program.model_proto.SerializeToString(), int(program.model.opset_imports[""])
    except Exception as error:
        raise InputError(f"torch's exporter does not take {type(model).__name__}: {first_line(error)}") from error


def _checked_zeros(onnx: Any, content: bytes, model: nn.Module) -> int:
    """How many weights are zero; each tensor of the file must have as many as the weight of its name, and what has
    another name there as many as all weights that are left.
    """
    stored = onnx.load_from_string(content).graph.initializer
    found = {x.name: int((onnx.numpy_helper.to_array(x) == 0).sum()) for x in stored if len(x.dims) > 1}
    wanted = {name: int((p == 0).sum()) for name, p in model.named_parameters() if p.dim() > 1}
    for name in wanted.keys() & found.keys():
        if wanted[name] != found[name]:
            raise InputError(f"{name} has {wanted[name]:,} zeros, in the ONNX file {found[name]:,}; it is not written")
    left, there = (sum(x[name] for name in x.keys() - y.keys()) for x, y in ((wanted, found), (found, wanted)))
    if there < left:
        raise InputError(f"of {left:,} zero weights the ONNX file would have {there:,}; it is not written")
    return sum(wanted.values())


def _compared(
    runtime: Any, content: bytes, like: nn.Module, model: nn.Module, images: Tensor
) -> tuple[float, int | None]:
    """(largest difference relative to the largest output, images with the same prediction)."""
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0].name
    off, largest, same, logits = 0.0, 0.0, 0, True
    with evaluating(model) as network:
        for batch in images.split(_BATCH):  # type: ignore[no-untyped-call]
            expected = [x.cpu() for x in trees.tree_leaves(run(network, to_model(batch, network)))]
            check_output(expected)
            given = [torch.from_numpy(x) for x in session.run(None, {entry: to_model(batch.cpu(), like).numpy()})]
            if [x.shape for x in expected] != [x.shape for x in given]:
                shapes = ", ".join(
                    f"{tuple(a.shape)} is {tuple(b.shape)}" for a, b in zip(expected, given, strict=False)
                )
                raise InputError(f"the ONNX file has other outputs than the network: {shapes}; it is not written")
            for a, b in zip(expected, given, strict=True):
                off = max(off, float((a.double() - b.double()).abs().max()))
                largest = max(largest, float(a.abs().max()))
            logits &= len(expected) == 1 and expected[0].dim() == 2
            same += int((expected[0].argmax(1) == given[0].argmax(1)).sum()) if logits else 0
    difference = off / max(largest, 1e-30)
    if not difference <= TOLERANCE:
        words = f"its outputs differ by {difference:.2g} of the largest"
        raise InputError(f"onnxruntime does not compute what the network does: {words}; it is not written")
    if logits and same < len(images):
        words = f"{len(images) - same} of {len(images)} predictions differ"
        warnings.warn(
            f"{words} between onnxruntime and torch: two classes that are equal but for rounding", stacklevel=3
        )
    return difference, same if logits else None
