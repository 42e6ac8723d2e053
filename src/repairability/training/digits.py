"""The embedded digits network, trained on the spot."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from repairability._files import write_atomically
from repairability._torch import evaluation_mode_, generator_of, seeded, threads, training_
from repairability.data import Data
from repairability.errors import InputError
from repairability.models import create_model
from repairability.models.weights import load_weights_, plain_state
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
    """The demo's network, trained on the spot in well under a minute; kept in the user's cache for the next time."""
    model = create_model("digits", seed=seed)
    recipe = hashlib.sha256(f"{DIGITS_EPOCHS} {seed} {torch.__version__} one thread".encode())
    recipe.update(" ".join(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items()).encode())
    recipe.update(data.train.images(range(len(data.train))).numpy().tobytes())  # another view: another network
    file = (cache or cache_folder()) / f"digits-{recipe.hexdigest()[:12]}.safetensors"
    if file.is_file():
        load_weights_(model, file)
    else:
        with seeded(seed), threads(1):  # so that every process of a machine trains the same network
            train_(model, data, epochs=DIGITS_EPOCHS, seed=seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_bytes(plain_state(model)))
    return evaluation_mode_(model)


def cache_folder() -> Path:
    """Where trained demo networks are kept: $XDG_CACHE_HOME/repairability, or ~/.cache/repairability."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "repairability"
