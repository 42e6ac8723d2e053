"""finetune: the paper's transfer recipe, resumable by epoch."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from repairability._files import read_sealed, write_sealed
from repairability._torch import channels_last_, copy_of, generator_of, seeded, state_digest, training_
from repairability.data import Data
from repairability.errors import InputError, first_line, safe_cause, unknown
from repairability.evaluation import evaluate
from repairability.models.weights import load_plain
from repairability.network.batches import to_model
from repairability.progress import track
from repairability.training.recipe import Epoch, TrainConfig, TrainResult
from repairability.training.steps import augmented, sgd, step_

FORMAT = "repairability-training-2"
"""Of the file with the state."""


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
    data.check_labels("finetune")
    net = copy_of(model)
    globs = lower_layers(net) if config.frozen is None else tuple(config.frozen)
    frozen = _matching(net, globs)
    settings = {**asdict(config), "frozen": list(globs), "data": data.fingerprint, "initial weights": state_digest(net)}
    del settings["test_images"]
    file = None if partial is None else Path(partial)
    steps = config.epochs * math.ceil(len(data.train) / config.batch_size)
    with training_(net, frozen), channels_last_(net):
        optimizer = sgd(net, config.rate, config.momentum, config.weight_decay)
        schedule = OneCycleLR(optimizer, config.rate, total_steps=steps, cycle_momentum=False)
        state = State(net, optimizer, schedule, generator_of(config.seed), [])
        if file is not None and file.is_file():
            continue_(state, file, settings)
        while len(state.curve) < config.epochs:
            state.curve.append(_epoch_(state, data, config))
            if file is not None:
                write_state(state, file, settings)
            if watch is not None:
                watch(state.curve[-1])
        optimizer.zero_grad()
    return TrainResult(net, state.curve, config, globs, settings["data"])


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


def _epoch_(state: State, data: Data, config: TrainConfig) -> Epoch:
    model, generator, number = state.model, state.generator, len(state.curve) + 1
    start, loss, right, rate = time.perf_counter(), 0.0, 0, 0.0
    order = torch.randperm(len(data.train), generator=generator)
    dropout = int(torch.randint(2**62, (), generator=generator))
    # of nearly one size: BatchNorm never meets a remainder of one image
    batches = order.tensor_split(math.ceil(len(order) / config.batch_size))
    with seeded(dropout):
        for batch in track(batches, f"epoch {number} of {config.epochs}", len(batches)):
            images = data.train.images(batch.tolist())
            if config.augment:
                images = augmented(images, generator)
            images = to_model(images.contiguous(memory_format=torch.channels_last), model)
            labels = data.train.labels[batch].to(images.device)
            rate = float(state.schedule.get_last_lr()[0])
            mean, hits = step_(model, images, labels, state.optimizer, config)
            state.schedule.step()
            loss += mean * len(batch) / len(order)
            right += hits
            if not math.isfinite(loss):
                raise InputError(f"the loss became {loss} in epoch {number}; try a rate below {config.rate:g}")
    seconds = time.perf_counter() - start
    if not config.test_images:
        return Epoch(number, rate, loss, right / len(order), None, None, 0, seconds)
    test = evaluate(model, _test_batches(data, config))
    return Epoch(number, rate, loss, right / len(order), test.loss, test.top1, test.n, seconds)


def _test_batches(data: Data, config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """The same images after each epoch, drawn: the first ones of a folder are all of one class."""
    order = torch.randperm(len(data.test), generator=generator_of(config.seed))
    for batch in order[: config.test_images].sort().values.split(256):  # type: ignore[no-untyped-call]
        yield data.test.images(batch.tolist()), data.test.labels[batch]


def _matching(model: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """The modules under these globs; one that selects nothing is a misspelling."""
    modules = {name: module for name, module in model.named_modules() if name}
    frozen: dict[str, nn.Module] = {}
    for pattern in globs:
        matches = {name: module for name, module in modules.items() if fnmatchcase(name, pattern)}
        if not matches:
            raise unknown("module or pattern", pattern, modules)
        frozen |= matches
    return list(frozen.values())


@dataclass(frozen=True)
class State:
    """All that training changes; as a file it is what torch saves, read weights-only."""

    model: nn.Module
    optimizer: torch.optim.SGD
    schedule: OneCycleLR
    generator: torch.Generator
    curve: list[Epoch]

    def parts(self) -> dict[str, nn.Module | torch.optim.SGD | OneCycleLR]:
        """What torch saves and loads by itself."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}


def write_state(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    parts = {name: part.state_dict() for name, part in state.parts().items()}
    about = {"format": FORMAT, "settings": dict(settings), "curve": [asdict(epoch) for epoch in state.curve]}
    content = io.BytesIO()
    torch.save({**about, **parts, "generator": state.generator.get_state()}, content)
    write_sealed(file, content.getvalue())


def continue_(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    """Put everything as it was after the last whole epoch; a file of another training is refused."""
    anew = "remove it (--restart) to begin anew"
    try:
        content = load_plain(io.BytesIO(read_sealed(file)))
    except Exception as error:  # whatever foreign bytes lead their readers to
        raise InputError(f"cannot continue from {file}: {first_line(error)}; {anew}") from safe_cause(error)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{file} is no state of a training of format {FORMAT!r}; {anew}")
    theirs = content.get("settings")
    if not isinstance(theirs, dict):
        raise InputError(f"{file} does not say of which training it is the state; {anew}")
    other = [
        f"the {key} differ" if key == "initial weights" else f"{key} is {theirs.get(key)} there and {ours} here"
        for key, ours in settings.items()
        if theirs.get(key) != ours
    ]
    if other:
        raise InputError(f"{file} is the state of another training ({'; '.join(other)}); {anew}")
    try:
        for name, part in state.parts().items():
            part.load_state_dict(content[name])
        state.generator.set_state(content["generator"])
        state.curve[:] = [Epoch(**epoch) for epoch in content["curve"]]
    except Exception as error:  # of a part that is not there, or of another make
        raise InputError(f"{file} is not whole: {first_line(error)}; {anew}") from error
