"""The embedded digits network, trained on the spot."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from repairability._files import make_folder, read_sealed, write_sealed
from repairability._torch import evaluation_mode_, generator_of, seeded, threads, training_
from repairability.data import Data
from repairability.errors import InputError, PlaceError
from repairability.models import create_model
from repairability.models.weights import plain_state
from repairability.progress import track
from repairability.training.steps import sgd, step_

TRAINED = "trained"
"""In the place of a weights file: the digits network, trained on the spot and kept in the user's cache."""

DIGITS_EPOCHS = 20
DIGITS_CLASSES = 10


def train_(model: nn.Module, data: Data, *, epochs: int, seed: int, rate: float = 0.2, batch_size: int = 64) -> None:
    """Train `model` in place on the labeled training part: one-cycle SGD (momentum too: 0.95 to 0.85 and back), weight
    decay 5e-4, shifts by one pixel as the only augmentation.
    """
    images, labels = data.train.images(range(len(data.train))), data.train.labels
    steps = -(-len(labels) // batch_size)
    optimizer = sgd(model, rate)
    schedule = OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    generator = generator_of(seed)
    with training_(model):
        for _ in track(range(epochs), f"training on {data.name}", epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(batch_size):  # type: ignore[no-untyped-call]
                dx, dy = torch.randint(-1, 2, (2,), generator=generator).tolist()
                step_(model, images[batch].roll((dy, dx), (2, 3)), labels[batch], optimizer)
                schedule.step()


def check_trained(model: str, data: str = "digits", num_classes: int | None = None) -> None:
    """Whether `TRAINED` weights mean this network: what is trained on the spot must not pass for another."""
    if model != "digits":
        raise InputError(f"only digits is trained on the spot, not {model}; see `repairability finetune --help`")
    if data != "digits":
        raise InputError(
            f"weights {TRAINED!r} are trained on digits, not on {data}; see `repairability finetune --help`"
        )
    if num_classes not in (None, DIGITS_CLASSES):
        raise InputError(f"weights {TRAINED!r} are for {DIGITS_CLASSES} classes, not for {num_classes}")


def digits_network(data: Data, *, seed: int = 0, cache: Path | None = None) -> nn.Module:
    """The demo's network, trained on the spot in well under a minute; kept in the user's cache for the next time.

    What is kept is believed only if it is whole and of this very recipe; else it is made anew. Where nothing can be
    kept, a warning says so, and the network is as good.
    """
    model = create_model("digits", seed=seed)
    recipe = hashlib.sha256(f"{DIGITS_EPOCHS} {seed} {torch.__version__} one thread, fused".encode())
    recipe.update(" ".join(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items()).encode())
    recipe.update(data.train.images(range(len(data.train))).numpy().tobytes())  # another view: another network
    folder = cache or cache_folder()
    file = None if folder is None else folder / f"digits-{recipe.hexdigest()[:12]}.sealed"
    if file is None or not _load_kept_(model, file, recipe.digest()):
        with seeded(seed), threads(1):  # so that every process of a machine trains the same network
            train_(model, data, epochs=DIGITS_EPOCHS, seed=seed)
        try:
            _keep(file, recipe.digest() + to_bytes(plain_state(model)))
        except InputError as error:
            warnings.warn(f"the trained digits network is not kept for the next time: {error}", stacklevel=2)
    return evaluation_mode_(model)


def _load_kept_(model: nn.Module, file: Path, recipe: bytes) -> bool:
    """Whether the file is there, whole, and of this recipe; then the model has its weights."""
    try:
        content = read_sealed(file) if file.is_file() else b""
        state = from_bytes(content.removeprefix(recipe)) if content.startswith(recipe) else {}
    except (InputError, OSError, SafetensorError):
        return False
    fits = {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in model.state_dict().items()}
    if fits:
        model.load_state_dict(state)
    return fits


def _keep(file: Path | None, content: bytes) -> None:
    if file is None:
        raise PlaceError("there is no home folder; XDG_CACHE_HOME may name another")
    make_folder(file.parent)
    write_sealed(file, content)


def cache_folder() -> Path | None:
    """Where trained demo networks are kept: $XDG_CACHE_HOME/repairability, or ~/.cache/repairability; None where there
    is neither.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".cache") / "repairability"
    except RuntimeError:  # a user without a home
        return None
