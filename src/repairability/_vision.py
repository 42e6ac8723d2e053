"""The one import of torchvision."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from repairability.errors import MissingExtraError

_MISSING_OPERATORS = "operator torchvision::nms does not exist"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def torchvision(submodule: str = "") -> Any:
    """Import torchvision (or `torchvision.<submodule>`).

    A torchvision build whose compiled operators do not match this torch (a CUDA build beside a CPU torch) fails at
    import because it registers a shape function for an operator that was never defined. Its models, data sets and
    transforms are pure Python, so in that one case the two schemas are defined and the import is tried again.
    """
    name = f"torchvision.{submodule}" if submodule else "torchvision"
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise MissingExtraError("torchvision", "vision") from error
    except RuntimeError as error:
        if _MISSING_OPERATORS not in str(error):
            raise
    _define_schemas()
    for partial in [key for key in sys.modules if key.split(".")[0] == "torchvision"]:
        del sys.modules[partial]
    return _import(name)


def _import(name: str) -> ModuleType:
    return importlib.import_module(name)


def _define_schemas() -> None:
    import torch

    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", _SCHEMA)
