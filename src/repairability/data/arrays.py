"""Arrays: npz files, and scikit-learn's digits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repairability.data.splits import IMAGENET, UNLABELED, Data, Split, from_array, unlabeled
from repairability.errors import InputError, MissingExtraError, first_line, safe_cause, shown

ARRAYS = ("x_train", "y_train", "x_test", "y_test")

DIGITS_TRAIN = 1200
"""Of the 1,797 digits; the other 597 are the test part."""

DIGITS_SIZE = 16

MOST_CLASSES = 1_000_000
"""A label beyond is damage, and a head for it would fill the memory."""


def load_npz(path: Path, image_size: int | None) -> Data:
    """x_train, y_train, x_test, y_test (without labels: x_train alone); images uint8 [n, 3, h, w] (or [n, h, w, 3])."""
    if not os.path.isfile(path):
        raise InputError(f"no npz file at {shown(str(path))}")
    try:
        with np.load(path, allow_pickle=False) as file:
            alone = list(file) == ["x_train"]
            missing, present = [name for name in ARRAYS if name not in file], ", ".join(file) or "none"
            arrays = {name: _array(file, name) for name in ARRAYS if name in file}
    except InputError as error:
        raise InputError(f"cannot read {path}: {error}") from safe_cause(error.__cause__ or error)
    except Exception as error:  # whatever foreign bytes lead their readers to
        raise InputError(f"cannot read {path}: {first_line(error)}") from safe_cause(error)
    if alone:
        return unlabeled(f"npz:{path}", _split(path, "train", arrays["x_train"], None, image_size))
    if missing:
        more = "" if arrays else " (x_train alone: images without labels)"
        raise InputError(f"{path} lacks the arrays {', '.join(missing)}; it has {shown(present)}{more}")
    train, test = (_split(path, x, arrays[f"x_{x}"], arrays[f"y_{x}"], image_size) for x in ("train", "test"))
    return Data(f"npz:{path}", int(max(train.labels.max(), test.labels.max())) + 1, train, test)


def _array(file: Any, name: str) -> Any:
    """A member that is an array of numbers; of objects it would be a pickle, which is not read."""
    try:
        array = file[name]
    except ValueError as error:
        raise InputError(f"{name}: {first_line(error)}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{name} is no array: the member has no npy header")
    return array


def _split(path: Path, part: str, images: Any, labels: Any, image_size: int | None) -> Split:
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or not all(images.shape[2:]):
        raise InputError(f"{path}: x_{part} must be uint8 [n, 3, h, w], not {images.dtype} {images.shape}")
    if not len(images):
        raise InputError(f"{path}: there are no images in x_{part}, whose shape is {images.shape}")
    if labels is None:
        labels = np.full(len(images), UNLABELED)
    elif labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{path}: y_{part} must be {len(images)} integers, not {labels.dtype} {labels.shape}")
    elif not 0 <= int(labels.min()) <= int(labels.max()) < MOST_CLASSES:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise InputError(f"{path}: y_{part} goes from {span}; labels count from 0, in at most {MOST_CLASSES:,} classes")
    mean, std = (tuple(values[: images.shape[1]]) for values in IMAGENET)  # grey images: the first channel's
    return from_array(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), (mean, std), image_size)


def load_digits(image_size: int | None) -> Data:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, enlarged to 16 x 16; a fixed split by seed 0."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError("scikit-learn", "demo") from error
    source = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(source.images))
    pixels = torch.from_numpy(source.images[order].astype(np.float32))[:, None] / 16
    labels = torch.from_numpy(source.target[order].astype(np.int64))

    train, test = (
        from_array(pixels[part], labels[part], ((0.3,), (0.32,)), image_size or DIGITS_SIZE, white=1)
        for part in (slice(DIGITS_TRAIN), slice(DIGITS_TRAIN, None))
    )
    return Data("digits", 10, train, test)


def load_random(classes: Path, image_size: int | None) -> Data:
    """Noise of 3 x 32 x 32 pixels in CLASSES classes, 256 training and 64 test images: to try a study out."""
    if not str(classes).isdigit() or int(str(classes)) < 1:
        raise InputError(f"random:CLASSES takes a number of classes, such as random:10, not {str(classes)!r}")
    random, count = np.random.default_rng(0), int(str(classes))

    def part(size: int) -> Split:
        pixels = torch.from_numpy(random.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8))
        return from_array(pixels, torch.from_numpy(random.integers(0, count, size)), IMAGENET, image_size)

    return Data(f"random:{count}", count, part(256), part(64))
