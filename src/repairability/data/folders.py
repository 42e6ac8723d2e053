"""Image folders: train/CLASS/file and test (or val)/CLASS/file, or files alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from repairability._vision import torchvision
from repairability.data.splits import IMAGENET, UNLABELED, Data, Split, unlabeled
from repairability.errors import InputError, PlaceError, first_line, shown

SIZE = 224
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}


def load_folder(path: Path, image_size: int | None) -> Data:
    """Classes are the sub-folders of train, in alphabetical order; the test part is called test or val. A folder that
    has neither and holds images has no labels.
    """
    size = image_size or SIZE
    if files := _loose(path):
        return unlabeled(f"folder:{path}", from_files(files, [UNLABELED] * len(files), size))
    other = "val" if os.path.isdir(path / "val") and not os.path.isdir(path / "test") else "test"
    train, test = path / "train", path / other
    for folder in (train, test):
        if not os.path.isdir(folder):
            layout = "train/CLASS/*.png and test (or val)/CLASS/*.png, or, without labels, *.png alone"
            raise InputError(f"no folder {shown(str(folder))}; an image folder holds {layout}")
    classes, tested = (sorted(place.name for place in folder.iterdir() if place.is_dir()) for folder in (train, test))
    if extra := [name for name in tested if name not in classes]:
        raise InputError(f"{test} has classes that {train} lacks: {', '.join(extra)}")
    if not classes:
        raise InputError(f"no classes in {train}")
    return Data(f"folder:{path}", len(classes), _part(train, classes, size), _part(test, classes, size))


def _loose(path: Path) -> list[Path]:
    """The images right in a folder that has no parts."""
    if not os.path.isdir(path) or any(os.path.isdir(path / part) for part in ("train", "test", "val")):
        return []
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    folders = sorted({file.parent.name for file in path.glob("*/*") if file.suffix.lower() in SUFFIXES})
    if files and folders:
        raise InputError(f"{shown(str(path))} holds images and folders of images ({', '.join(folders[:3])}): which?")
    return files


def _part(folder: Path, classes: Sequence[str], size: int) -> Split:
    files = {
        file: label
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in SUFFIXES
    }
    if not files:
        raise InputError(f"no images in {folder} (looked for {', '.join(sorted(SUFFIXES))})")
    return from_files(list(files), list(files.values()), size)


def from_files(files: Sequence[Path], labels: Sequence[int], size: int) -> Split:
    """A split of image files, decoded when they are asked for."""

    seen: dict[Path, tuple[int, ...]] = {}  # as they were when their content was read as a whole

    def content() -> Iterator[bytes]:
        yield str(size).encode()
        for file in files:
            seen[file] = stamp(_regular(file))
            yield file.read_bytes()

    def read(indices: Sequence[int]) -> Tensor:
        wanted = [files[i] for i in indices]
        for file in wanted:
            if file in seen and seen[file] != stamp(file):
                raise PlaceError(f"{file} changed while it was in use")
        return decoded(wanted, size)

    return Split(torch.tensor(labels), read, *IMAGENET, content=content)


def stamp(file: Path) -> tuple[int, ...]:
    """What the system says of a file, and what changes with its content."""
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def decoded(files: Sequence[Path], size: int) -> Tensor:
    """The usual view of ImageNet [n, 3, size, size]: the shorter side to size * 256 / 224 (bilinear, antialiased), then
    the centre.
    """
    from PIL import Image

    transforms = torchvision("transforms.v2")
    steps = [
        transforms.PILToTensor(),
        transforms.ToDtype(torch.float32, scale=True),
        transforms.Resize(round(size * 256 / 224), antialias=True),
        transforms.CenterCrop(size),
    ]
    view, images = transforms.Compose(steps), []
    for file in files:
        try:
            with Image.open(_regular(file)) as image:
                images.append(view(image.convert("RGB")))
        except InputError:
            raise
        except Exception as error:  # whatever foreign bytes lead their readers to
            raise InputError(f"cannot read the image {file}: {first_line(error)}") from error
    return torch.stack(images)


def _regular(file: Path) -> Path:
    """A pipe would be waited for, a device read for ever."""
    if not file.is_file():
        raise InputError(f"cannot read the image {file}: it is no file")
    return file
