"""torchvision's data sets: found below a root, or downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch

from repairability._vision import torchvision
from repairability.data.folders import SIZE, from_files, load_folder
from repairability.data.splits import IMAGENET, Data, Split, from_array
from repairability.errors import InputError, first_line

_SMALL = {"size": "320px"}  # of Imagenette's three sizes
IMAGEWOOF = "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz"
IMAGEWOOF_MD5 = "0f46d997ec2264e97609196c95897a44"


def _in_memory(dataset: Any, size: int | None) -> Split:
    """CIFAR and STL hold their pixels as arrays."""
    pixels = np.asarray(dataset.data)
    pixels = pixels if pixels.shape[1] == 3 else pixels.transpose(0, 3, 1, 2)
    labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    return from_array(torch.from_numpy(pixels.copy()), torch.as_tensor(np.asarray(labels)), IMAGENET, size)


def _from_files(dataset: Any, size: int | None) -> Split:
    """Pets and Imagenette name their files."""
    samples = dataset._samples if hasattr(dataset, "_samples") else zip(dataset._images, dataset._labels, strict=True)
    files, labels = zip(*samples, strict=True)
    return from_files([Path(file) for file in files], labels, size or SIZE)


DATA_SETS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[[Any, int | None], Split], int]] = {
    "cifar10": ("CIFAR10", {"train": True}, {"train": False}, _in_memory, 10),
    "cifar100": ("CIFAR100", {"train": True}, {"train": False}, _in_memory, 100),
    "stl10": ("STL10", {"split": "train"}, {"split": "test"}, _in_memory, 10),
    "pets": ("OxfordIIITPet", {"split": "trainval"}, {"split": "test"}, _from_files, 37),
    "imagenette": ("Imagenette", _SMALL | {"split": "train"}, _SMALL | {"split": "val"}, _from_files, 10),
    "imagewoof": ("", {}, {}, _from_files, 10),
}
"""Name -> torchvision's class, the arguments of its two parts, how to read it, its classes (imagewoof: a folder)."""


def load_torchvision(name: str, root: Path, image_size: int | None, download: bool) -> Data:
    """CIFAR's own files are pickles; torchvision reads them only after checking their published md5."""
    class_name, train, test, wrap, classes = DATA_SETS[name]
    try:
        if name == "imagewoof":
            folder = root / "imagewoof2-320"
            if not folder.is_dir() and download:
                torchvision("datasets.utils").download_and_extract_archive(IMAGEWOOF, str(root), md5=IMAGEWOOF_MD5)
            return replace(load_folder(folder, image_size), name=name)
        builder = getattr(torchvision("datasets"), class_name)
        parts = [wrap(_present_or_downloaded(builder, root, part, download), image_size) for part in (train, test)]
        return Data(name, classes, *parts)
    except (URLError, OSError, RuntimeError) as error:
        raise InputError(
            f"{name} is not in {root} and could not be downloaded ({first_line(error)}); offline, put "
            "torchvision's files there (root=), or give npz:PATH or folder:PATH"
        ) from error


def _present_or_downloaded(builder: Any, root: Path, part: dict[str, Any], download: bool) -> Any:
    try:
        return builder(root=str(root), download=False, **part)
    except (RuntimeError, FileNotFoundError):
        if not download:
            raise
        return builder(root=str(root), download=True, **part)
