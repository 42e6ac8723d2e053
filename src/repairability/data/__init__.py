"""Data sets by name: torchvision's, arrays, image folders, the embedded digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from repairability.data.arrays import load_digits, load_npz, load_random
from repairability.data.folders import load_folder
from repairability.data.splits import Data, Split
from repairability.data.vision import DATA_SETS, load_torchvision
from repairability.errors import check_whole, unknown

PREFIXES: dict[str, Callable[[Path, int | None], Data]] = {
    "npz": load_npz,
    "folder": load_folder,
    "random": load_random,
}


def load_data(
    name: str, *, root: str | os.PathLike[str] = "data", image_size: int | None = None, download: bool = True
) -> Data:
    """A data set with its training and test part, normalised, resized (bilinear, antialiased) to `image_size` if given.

    `name` is one of cifar10, cifar100, stl10, pets, imagenette, imagewoof (torchvision's, below `root`, downloaded if
    absent and allowed), "npz:PATH" (arrays x_train, y_train, x_test, y_test), "folder:PATH" (train/CLASS/*.png and test
    or val/CLASS/*.png), "digits" (scikit-learn's, embedded), or "random:CLASSES" (noise, to try things out). Images
    without labels are enough to prune: an npz file of x_train alone, a folder of files.
    """
    if image_size is not None:
        check_whole(image_size, "image_size", 1)
    prefix, colon, path = name.partition(":")
    if colon and prefix in PREFIXES:
        return PREFIXES[prefix](Path(path), image_size)
    if name == "digits":
        return load_digits(image_size)
    if name in DATA_SETS:
        return load_torchvision(name, Path(root), image_size, download)
    raise unknown("data set", name, [*DATA_SETS, "digits", "npz:PATH", "folder:PATH", "random:CLASSES"])


__all__ = ["DATA_SETS", "Data", "Split", "load_data"]
