"""Training the networks we start from (never part of pruning or repair): SGD with a one-cycle schedule."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._files import write_atomically
from repairability._torch import channels_last_, copy_of, evaluation_mode_, run, seeded, to_model, training_
from repairability.data import Data
from repairability.errors import InputError, unknown
from repairability.evaluation import evaluate
from repairability.models import create_model
from repairability.progress import track
from repairability.provenance import provenance
from repairability.tables import Table, percent

DIGITS_EPOCHS = 20
KEY, FORMAT = "repairability", "repairability-training-1"


@dataclass(frozen=True)
class TrainConfig:
    """The recipe of `finetune`; the paper's where it says something.

    rate: the peak of the one-cycle schedule. smoothing: of the labels. seed: of the order, the augmentation, dropout.
    frozen: globs on module names; such a module is frozen with all below it. None: the lower layers (`lower_layers`).
    augment: shift by up to an eighth of the image (4 pixels of 32, reflected) and flip, drawn for each image.
    test_images: how many are looked at after each epoch, drawn by `seed`; they decide nothing.
    """

    epochs: int = 5
    rate: float = 0.05
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.0
    seed: int = 0
    frozen: Sequence[str] | None = None
    augment: bool = True
    test_images: int = 2000

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.rate < math.inf:
            raise InputError(f"rate must be positive, not {self.rate}")
        for name in ("momentum", "weight_decay", "smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if self.test_images < 0:
            raise InputError(f"test_images must be at least 0, not {self.test_images}")
        if isinstance(self.frozen, str):
            raise InputError(
                f"frozen takes a sequence of globs, not the string {self.frozen!r}; write ({self.frozen!r},)"
            )


@dataclass(frozen=True)
class Epoch:
    """One pass: the last learning rate, loss and accuracy on the (augmented) images as they went by, then the test."""

    epoch: int
    rate: float
    train_loss: float
    train_top1: float
    test_loss: float | None
    test_top1: float | None
    test_images: int
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """A trained copy of a network, its learning curve, and how it came about."""

    model: nn.Module
    curve: Sequence[Epoch]
    config: TrainConfig
    frozen: Sequence[str]  # modules
    data: str  # fingerprint

    def table(self) -> Table:
        rows = [
            (
                str(x.epoch),
                f"{x.rate:.2g}",
                f"{x.train_loss:.4f}",
                percent(x.train_top1),
                "" if x.test_loss is None else f"{x.test_loss:.4f}",
                "" if x.test_top1 is None else percent(x.test_top1),
                f"{x.seconds:.1f}",
            )
            for x in self.curve
        ]
        columns = ("epoch", "last rate", "train loss", "train top-1", "test loss", "test top-1", "seconds")
        few = len(self.frozen) <= 6
        frozen = ", ".join(self.frozen) if few else f"{len(self.frozen)} modules, {self.frozen[0]} to {self.frozen[-1]}"
        caption = f"tested on {self.curve[-1].test_images:,} images; frozen: {frozen or 'nothing'}"
        return Table(columns, rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": asdict(self.config),
            "frozen": list(self.frozen),
            "data_fingerprint": self.data,
            "curve": [asdict(x) for x in self.curve],
            "provenance": provenance(),
        }

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write the state dict as safetensors, for `create_model(weights=path)`; `half` rounds to float16."""
        tensors = _tensors(self.model)
        if half:
            tensors = {key: x.half() if x.is_floating_point() else x for key, x in tensors.items()}
            for key, x in tensors.items():
                if x.is_floating_point() and not x.isfinite().all():
                    raise InputError(f"{key} goes beyond the range of float16; store the network in full")
        write_atomically(path, to_bytes(tensors))


def lower_layers(model: nn.Module) -> tuple[str, ...]:
    """What the recipe freezes: a ResNet's stem, layer1 and layer2; a VGG's features up to its second max-pool."""
    children = dict(model.named_children())
    if {"conv1", "bn1", "layer1", "layer2", "layer3"} <= children.keys():
        return "conv1", "bn1", "layer1", "layer2"
    features = list(children["features"].named_children()) if "features" in children else []
    pools = [i for i, (_, module) in enumerate(features) if isinstance(module, nn.MaxPool2d)]
    if len(pools) == 5:
        return tuple(f"features.{name}" for name, _ in features[: pools[1] + 1])
    raise InputError(
        f"{type(model).__name__} is neither a ResNet (conv1, bn1, layer1, layer2, layer3) nor a VGG (features with "
        "five max-pools), so its lower layers are not known; say which modules stay frozen: --freeze GLOB, or "
        "--freeze none (in Python: frozen=)"
    )


def finetune(
    model: nn.Module,
    data: Data,
    *,
    config: TrainConfig | None = None,
    partial: str | os.PathLike[str] | None = None,
    watch: Callable[[Epoch], None] | None = None,
) -> TrainResult:
    """Train a copy of `model` on the labeled training part, its lower layers frozen with their BatchNorm in eval mode.

    `partial` is a file with the whole state, written after each epoch; where it exists already, training goes on from
    it, to the same bits on the same machine and number of threads. It stays: remove it when the result is saved.
    `watch` sees each epoch when its state is on the disk.
    """
    config = config or TrainConfig()
    net = copy_of(model)
    globs = lower_layers(net) if config.frozen is None else tuple(config.frozen)
    frozen = _matching(net, globs)
    settings = {**asdict(config), "frozen": list(globs), "data": _fingerprint(data), "initial weights": _digest(net)}
    del settings["test_images"]
    file = None if partial is None else Path(partial)
    with training_(net, frozen.values()), channels_last_(net):
        optimizer = _sgd(net, config.rate, config.momentum, config.weight_decay)
        state = _State(net, optimizer, torch.Generator().manual_seed(config.seed), [])
        if file is not None and file.is_file():
            _continue_(state, file, settings)
        while len(state.curve) < config.epochs:
            state.curve.append(_epoch_(state, data, config))
            if file is not None:
                _write(state, file, settings)
            if watch is not None:
                watch(state.curve[-1])
        optimizer.zero_grad()
    return TrainResult(net, state.curve, config, globs, settings["data"])


def one_cycle(step: int, steps: int, peak: float) -> float:
    """The learning rate at `step` of `steps`: up from peak / 25 for 30 %, down to peak / 250,000, by cosines."""
    top = 0.3 * steps - 1
    if step <= top:
        start, end, way = peak / 25, peak, step / max(top, 1e-9)
    else:
        start, end, way = peak, peak / 250_000, (step - top) / (steps - 1 - top)
    return end + (start - end) * (1 + math.cos(math.pi * way)) / 2


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image [n, C, H, W] shifted by up to an eighth of its size either way, reflected at the border, and flipped
    in half of the cases. The result is channels-last.
    """
    n, _, height, width = images.shape

    def indices(size: int) -> Tensor:  # [n, size]
        shifts = torch.randint(-(size // 8), size // 8 + 1, (n, 1), generator=generator)
        last = size - 1
        return last - (last - (torch.arange(size) + shifts).abs()).abs()

    rows, columns = indices(height), indices(width)
    flips = torch.randint(0, 2, (n, 1), generator=generator).bool()
    columns = torch.where(flips, columns.flip(1), columns)
    picked = images[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [n, H, W, C]
    return picked.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _State:
    """All that training changes."""

    model: nn.Module
    optimizer: torch.optim.SGD
    generator: torch.Generator
    curve: list[Epoch]


def _sgd(model: nn.Module, rate: float, momentum: float = 0.9, weight_decay: float = 5e-4) -> torch.optim.SGD:
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not weights:
        raise InputError(f"nothing is left to train in {type(model).__name__}: every weight is frozen")
    return torch.optim.SGD(weights, lr=rate, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0)


def _step_(
    model: nn.Module, images: Tensor, labels: Tensor, optimizer: torch.optim.SGD, smoothing: float = 0.0
) -> tuple[float, int]:
    """One step down the cross-entropy: its mean over the batch before the step, and how many predictions were right."""
    logits = run(model, images)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"{type(model).__name__} must put out [n, classes] to be trained, not {shape}")
    if int(labels.max()) >= logits.shape[1]:
        raise InputError(f"labels go up to {int(labels.max())}, but the model has {logits.shape[1]} outputs")
    loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach()), int((logits.argmax(1) == labels).sum())


def _epoch_(state: _State, data: Data, config: TrainConfig) -> Epoch:
    model, generator, number = state.model, state.generator, len(state.curve) + 1
    start, loss, right, rate = time.perf_counter(), 0.0, 0, 0.0
    order = torch.randperm(len(data.train), generator=generator)
    steps = -(-len(order) // config.batch_size)
    dropout = int(torch.randint(2**62, (), generator=generator))
    batches = order.tensor_split(steps)  # of nearly one size: BatchNorm never meets a remainder of one image
    with seeded(dropout):
        for step, batch in enumerate(track(batches, f"epoch {number} of {config.epochs}", steps)):
            rate = one_cycle((number - 1) * steps + step, config.epochs * steps, config.rate)
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            images = data.train.images(batch.tolist())
            if config.augment:
                images = augmented(images, generator)
            images = to_model(images.contiguous(memory_format=torch.channels_last), model)
            labels = data.train.labels[batch].to(images.device)
            mean, hits = _step_(model, images, labels, state.optimizer, config.smoothing)
            loss += mean * len(batch) / len(order)
            right += hits
            if not math.isfinite(loss):
                raise InputError(f"the loss became {loss} in epoch {number}; try a rate below {config.rate:g}")
    spent = time.perf_counter() - start
    seen = evaluate(model, _test_batches(data, config)) if config.test_images else None
    return Epoch(
        number,
        rate,
        loss,
        right / len(order),
        test_loss=seen.loss if seen else None,
        test_top1=seen.top1 if seen else None,
        test_images=seen.n if seen else 0,
        seconds=spent,
    )


def _test_batches(data: Data, config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """The same images after each epoch, drawn: the first ones of a folder are all of one class."""
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(config.seed))
    for batch in order[: config.test_images].sort().values.split(256):  # type: ignore[no-untyped-call]
        yield data.test.images(batch.tolist()), data.test.labels[batch]


def _write(state: _State, file: Path, settings: Mapping[str, Any]) -> None:
    tensors = {f"model.{key}": tensor for key, tensor in _tensors(state.model).items()}
    for i, weight in enumerate(state.optimizer.param_groups[0]["params"]):
        buffer = state.optimizer.state[weight].get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{i}"] = buffer.detach().cpu().contiguous().clone()
    tensors["generator"] = state.generator.get_state()
    about = {"format": FORMAT, "settings": settings, "curve": [asdict(x) for x in state.curve]}
    write_atomically(file, to_bytes(tensors, {KEY: json.dumps(about)}))


def _continue_(state: _State, file: Path, settings: Mapping[str, Any]) -> None:
    """Put everything as it was after the last whole epoch; a file of another training is refused."""
    anew = "remove it (--restart) to begin anew"
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get(KEY, "{}"))
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"cannot continue from {file}: {error}; {anew}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{file} is no state of a training of format {FORMAT!r}; {anew}")
    theirs = about["settings"]
    other = [
        f"the {key} differ" if key == "initial weights" else f"{key} is {theirs.get(key)} there and {ours} here"
        for key, ours in settings.items()
        if theirs.get(key) != ours
    ]
    if other:
        raise InputError(f"{file} is the state of another training ({'; '.join(other)}); {anew}")
    prefix = "model."
    state.model.load_state_dict({k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)})
    for i, weight in enumerate(state.optimizer.param_groups[0]["params"]):
        if f"momentum.{i}" in tensors:
            buffer = torch.empty_like(weight).copy_(tensors[f"momentum.{i}"])  # in the weight's own layout
            state.optimizer.state[weight]["momentum_buffer"] = buffer
    state.generator.set_state(tensors["generator"])
    state.curve[:] = [Epoch(**x) for x in about["curve"]]


def _matching(model: nn.Module, globs: Sequence[str]) -> dict[str, nn.Module]:
    """The modules under these globs; one that selects nothing is a misspelling."""
    modules = {name: module for name, module in model.named_modules() if name}
    for pattern in globs:
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise unknown("module or pattern", pattern, modules)
    return {name: module for name, module in modules.items() if any(fnmatchcase(name, x) for x in globs)}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.detach().cpu().contiguous().clone() for key, tensor in model.state_dict().items()}


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, tensor in _tensors(model).items():
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _fingerprint(data: Data) -> str:
    """A hash of the training labels and of 64 images spread over them, as the network sees them."""
    count = len(data.train)
    images = data.train.images(range(0, count, -(-count // 64)))
    digest = hashlib.sha256(f"{tuple(images.shape)} {count} {data.classes}".encode())
    digest.update(data.train.labels.contiguous().numpy().data)
    digest.update(images.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def train_(model: nn.Module, data: Data, *, epochs: int, seed: int, rate: float = 0.2, batch_size: int = 64) -> None:
    """Train `model` in place on the labeled training part: one-cycle SGD (momentum too: 0.95 to 0.85 and back), weight
    decay 5e-4, shifts by one pixel as the only augmentation.
    """
    images = data.train.images(range(len(data.train)))
    labels = data.train.labels
    steps = -(-len(labels) // batch_size)
    optimizer = _sgd(model, rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    with training_(model):
        for _ in track(range(epochs), f"training on {data.name}", epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(batch_size):  # type: ignore[no-untyped-call]
                dx, dy = torch.randint(-1, 2, (2,), generator=generator).tolist()
                _step_(model, images[batch].roll((dy, dx), (2, 3)), labels[batch], optimizer)
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
