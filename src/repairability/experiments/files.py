"""Where weights and data lie, and what is in them: names become files, files become hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from repairability.data import load_data
from repairability.errors import InputError
from repairability.experiments.spec import Job, RunSpec
from repairability.models.weights import PRETRAINED
from repairability.training import TRAINED


@dataclass(frozen=True)
class Files:
    """Folders in which a study's files are looked for, and the root of torchvision's data sets."""

    folders: Sequence[Path] = ()
    root: Path = Path("data")

    def job(self, spec: RunSpec, store: Path | None, device: str = "cpu") -> Job:
        """The run with its files found and its id known."""
        weights, data = self.weights(spec.weights), self.data(spec.data)
        # noise and digits are what they are called; files are called by their content alone
        called = spec.data if spec.data.startswith("random:") or spec.data == "digits" else "content"
        contents = {"data": f"{called}:{_fingerprint(data, str(self.root), spec.image_size)}"}
        if weights is not None and weights not in (PRETRAINED, TRAINED):
            contents["weights"] = _file_hash(weights)
        return Job(
            run_id=spec.run_id(contents),
            spec=spec,
            weights=weights,
            data=data,
            root=str(self.root.absolute()),
            store=None if store is None else str(store.absolute()),
            device=device,
        )

    def weights(self, name: str | None) -> str | None:
        """The file of a state dict; the words that mean weights stay as they are."""
        return name if name in (None, PRETRAINED, TRAINED) else str(self._find(name, "weights"))

    def data(self, name: str) -> str:
        """A plain name is NAME.npz where a folder has that, else torchvision's; paths are looked for like weights."""
        prefix, colon, path = name.partition(":")
        if prefix in ("npz", "folder") and colon:
            return f"{prefix}:{self._find(path, 'data')}"
        for folder in self.folders:
            if (folder / f"{name}.npz").is_file():
                return f"npz:{(folder / f'{name}.npz').absolute()}"
        return name

    def _find(self, name: str, what: str) -> Path:
        places = [Path(name), *(folder / name for folder in self.folders)]
        for place in places:
            if place.exists():
                return place.absolute()
        looked = ", ".join(str(folder) for folder in (Path(), *self.folders))
        raise InputError(f"no {what} {name!r} in {looked}; say where it lies with --files FOLDER")


@lru_cache(maxsize=16)
def _fingerprint(data: str, root: str, image_size: int | None) -> str:
    return load_data(data, root=root, image_size=image_size).fingerprint


@lru_cache(maxsize=64)
def _file_hash(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
