"""Image folders: train/CLASS/file and test (or val)/CLASS/file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repairability._vision import torchvision
from repairability.data.splits import IMAGENET, Data, Split, file_content
from repairability.errors import InputError

SIZE = 224
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}


def load_folder(path: Path, image_size: int | None) -> Data:
    """Classes are the sub-folders of train, in alphabetical order; the test part is called test or val."""
    train, test = path / "train", path / "val"
    if (path / "test").is_dir() or not test.is_dir():
        test = path / "test"
    for folder in (train, test):
        if not folder.is_dir():
            layout = "an image folder holds train/CLASS/*.png and test (or val)/CLASS/*.png"
            raise InputError(f"no folder {folder}; {layout}")
    classes, tested = (sorted(place.name for place in folder.iterdir() if place.is_dir()) for folder in (train, test))
    extra = [name for name in tested if name not in classes]
    if extra:
        raise InputError(f"{test} has classes that {train} lacks: {', '.join(extra)}")
    if not classes:
        raise InputError(f"no classes in {train}")
    size = image_size or SIZE
    return Data(f"folder:{path}", len(classes), _part(train, classes, size), _part(test, classes, size))


def _part(folder: Path, classes: Sequence[str], size: int) -> Split:
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise InputError(f"no images in {folder} (looked for {', '.join(sorted(SUFFIXES))})")
    return Split(
        torch.tensor([label for _, label in files]),
        lambda indices: read_files([files[i][0] for i in indices], size),
        *IMAGENET,
        content=lambda: file_content([file for file, _ in files], size),
    )


def usual_view(size: int) -> Callable[[Any], Tensor]:
    """ImageNet's: the shorter side to size * 256 / 224 (bilinear, antialiased), then the centre."""
    transforms = torchvision("transforms.v2")
    view: Callable[[Any], Tensor] = transforms.Compose(
        [
            transforms.PILToTensor(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Resize(round(size * 256 / 224), antialias=True),
            transforms.CenterCrop(size),
        ]
    )
    return view


def read_files(files: Sequence[Path], size: int) -> Tensor:
    """Decode each file into its usual view [3, size, size]."""
    from PIL import Image, UnidentifiedImageError

    view = usual_view(size)
    images = []
    for file in files:
        try:
            with Image.open(file) as image:
                images.append(view(image.convert("RGB")))
        except (UnidentifiedImageError, OSError) as error:
            raise InputError(f"cannot read the image {file}: {error}") from error
    return torch.stack(images)
