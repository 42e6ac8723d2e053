"""finetune: the paper's transfer recipe, resumable by epoch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from repairability._torch import channels_last_, copy_of, seeded, state_digest, to_model, training_
from repairability.data import Data
from repairability.errors import InputError, unknown
from repairability.evaluation import evaluate
from repairability.progress import track
from repairability.training.recipe import Epoch, TrainConfig, TrainResult
from repairability.training.state import State, continue_, write_state
from repairability.training.steps import augmented, sgd, step_


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
    settings = {**asdict(config), "frozen": list(globs), "data": data.fingerprint, "initial weights": state_digest(net)}
    del settings["test_images"]
    file = None if partial is None else Path(partial)
    steps = config.epochs * _steps(data, config)
    with training_(net, frozen), channels_last_(net):
        optimizer = sgd(net, config.rate, config.momentum, config.weight_decay)
        schedule = OneCycleLR(optimizer, config.rate, total_steps=steps, cycle_momentum=False)
        state = State(net, optimizer, schedule, torch.Generator().manual_seed(config.seed), [])
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


def _steps(data: Data, config: TrainConfig) -> int:
    """How many an epoch has."""
    return -(-len(data.train) // config.batch_size)


def _epoch_(state: State, data: Data, config: TrainConfig) -> Epoch:
    model, generator, number = state.model, state.generator, len(state.curve) + 1
    start, loss, right, rate = time.perf_counter(), 0.0, 0, 0.0
    order = torch.randperm(len(data.train), generator=generator)
    steps = _steps(data, config)
    dropout = int(torch.randint(2**62, (), generator=generator))
    batches = order.tensor_split(steps)  # of nearly one size: BatchNorm never meets a remainder of one image
    with seeded(dropout):
        for batch in track(batches, f"epoch {number} of {config.epochs}", steps):
            images = data.train.images(batch.tolist())
            if config.augment:
                images = augmented(images, generator)
            images = to_model(images.contiguous(memory_format=torch.channels_last), model)
            labels = data.train.labels[batch].to(images.device)
            rate = float(state.schedule.get_last_lr()[0])
            mean, hits = step_(model, images, labels, state.optimizer, config.smoothing)
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
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(config.seed))
    for batch in order[: config.test_images].sort().values.split(256):  # type: ignore[no-untyped-call]
        yield data.test.images(batch.tolist()), data.test.labels[batch]


def _matching(model: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """The modules under these globs; one that selects nothing is a misspelling."""
    modules = {name: module for name, module in model.named_modules() if name}
    for pattern in globs:
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise unknown("module or pattern", pattern, modules)
    return [module for name, module in modules.items() if any(fnmatchcase(name, pattern) for pattern in globs)]
