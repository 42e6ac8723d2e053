"""Training the networks we start from (never part of pruning or repair): SGD with a one-cycle schedule."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import nn
from torch.nn import functional as F

from repairability._files import write_atomically
from repairability._torch import evaluation_mode_, seeded, training_
from repairability.data import Data
from repairability.models import create_model
from repairability.progress import track

DIGITS_EPOCHS = 20


def train_(model: nn.Module, data: Data, *, epochs: int, seed: int, rate: float = 0.2, batch_size: int = 64) -> None:
    """Train `model` in place on the labeled training part: one-cycle SGD, momentum 0.9, weight decay 5e-4, shifts by
    one pixel as the only augmentation.
    """
    images = data.train.images(range(len(data.train)))
    labels = data.train.labels
    steps = -(-len(labels) // batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    with training_(model):
        for _ in track(range(epochs), f"training on {data.name}", epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(batch_size):  # type: ignore[no-untyped-call]
                dx, dy = torch.randint(-1, 2, (2,), generator=generator).tolist()
                loss = F.cross_entropy(model(images[batch].roll((dy, dx), (2, 3))), labels[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()


def digits_network(data: Data, *, seed: int = 0, cache: Path | None = None) -> nn.Module:
    """The demo's network, trained on the spot in well under a minute; kept in the user's cache for the next time."""
    model = create_model("digits", seed=seed)
    recipe = hashlib.sha256(f"{DIGITS_EPOCHS} {seed} {torch.__version__}".encode())
    recipe.update(" ".join(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items()).encode())
    recipe.update(
        data.train.images(range(len(data.train))).numpy().tobytes()
    )  # another view of the data: another network
    file = (cache or cache_folder()) / f"digits-{recipe.hexdigest()[:12]}.safetensors"
    if file.is_file():
        model.load_state_dict(load_file(file))
        return evaluation_mode_(model)
    with seeded(seed):
        train_(model, data, epochs=DIGITS_EPOCHS, seed=seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, to_bytes(model.state_dict()))
    return evaluation_mode_(model)


def cache_folder() -> Path:
    """Where trained demo networks are kept: $XDG_CACHE_HOME/repairability, or ~/.cache/repairability."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "repairability"
