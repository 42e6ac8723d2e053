"""Where weights and data lie, and what is in them: names become files, files become hashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from repairability.data import Data, load_data
from repairability.errors import InputError, shown
from repairability.experiments.spec import Job, RunSpec, read_as
from repairability.models.weights import PRETRAINED
from repairability.training import TRAINED


@dataclass(frozen=True)
class Files:
    """Folders in which a study's files are looked for, and the root of torchvision's data sets."""

    folders: Sequence[Path] = ()
    root: Path = Path("data")

    def jobs(self, specs: Iterable[RunSpec], store: Path, device: str = "cpu") -> list[Job]:
        """The runs; those that share a network and images come together, so that each is loaded once."""
        order = sorted(specs, key=lambda s: (s.model, s.weights or "", s.data, s.image_size or 0, s.seed, s.count))
        hashes = FileHashes(str(self.root))
        return [self._job(spec, store, device, hashes) for spec in order]

    def job(self, spec: RunSpec, store: Path | None, device: str = "cpu") -> Job:
        """The run with its files found and its id known."""
        return self._job(spec, store, device, FileHashes(str(self.root)))

    def _job(self, spec: RunSpec, store: Path | None, device: str, hashes: FileHashes) -> Job:
        weights, data = self.weights(spec.weights), self.data(spec.data)
        called = spec.data if _is_what_it_is_called(spec.data) else "content"
        known = {"data_hash": hashes.data(data, spec.image_size)}
        contents = {"data": f"{called}:{known['data_hash']}"}
        if weights is not None and weights not in (PRETRAINED, TRAINED):
            contents["weights"] = known["weights_hash"] = hashes.file(weights)
        root, folder = str(self.root.absolute()), None if store is None else str(store.absolute())
        places = {"weights": weights, "data": data, "root": root, "store": folder, "device": device}
        return read_as(Job, {"run_id": spec.run_id(contents), "spec": spec, **places, **known})

    def weights(self, name: str | None) -> str | None:
        """The file of a state dict; the words that mean weights stay as they are."""
        return name if name in (None, PRETRAINED, TRAINED) else str(self._find(name, "weights"))

    def data(self, name: str) -> str:
        """A plain name is NAME.npz where a folder has that, else torchvision's; paths are looked for like weights."""
        prefix, colon, path = name.partition(":")
        if prefix in ("npz", "folder") and colon:
            return f"{prefix}:{self._find(path, 'data')}"
        if _is_what_it_is_called(name):
            return name
        files = [file for folder in self.folders if os.path.isfile(file := folder / f"{name}.npz")]
        return f"npz:{files[0].absolute()}" if files else name

    def _find(self, name: str, what: str) -> Path:
        folders = (Path(), *self.folders)
        for folder in folders:
            if os.path.isfile(folder / name) or (what == "data" and os.path.isdir(folder / name)):
                return (folder / name).absolute()
        looked = ", ".join(map(str, folders))
        raise InputError(f"no {what} {shown(name)!r} in {looked}; say where it lies with --files FOLDER")


def _is_what_it_is_called(data: str) -> bool:
    """Noise and digits: no file takes their place. Files are called by their content alone."""
    return data.startswith("random:") or data == "digits"


class FileHashes:
    """Of what files hold, each read once, for the jobs of one sweep: the next sweep looks again."""

    def __init__(self, root: str) -> None:
        self.data = cache(lambda name, size: _labeled(name, root, size).fingerprint)
        self.file = cache(file_hash)


def _labeled(name: str, root: str, image_size: int | None) -> Data:
    data = load_data(name, root=root, image_size=image_size)
    data.check_labels("a study")
    return data


def file_hash(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
