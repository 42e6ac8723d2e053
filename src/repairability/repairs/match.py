"""Output matching: with the masks fixed, whatever stays is trained to put out what the dense network puts out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import channels_last_, differentiating_, evaluating
from repairability.calibration import CalibrationSet
from repairability.comparison import Comparison, Distance, agreement_of_outputs, outputs_of
from repairability.errors import InputError
from repairability.network.batches import Batch, sample_count, to_model
from repairability.network.layers import Layers
from repairability.network.outputs import picked
from repairability.network.samples import Samples
from repairability.progress import track
from repairability.repairs.augment import Augment
from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.trained import TrainedWeights, check_precision
from repairability.repairs.walk import IMAGES

_PACED = 20
"""After so many steps it is known how many fit into the seconds."""

_KEPT = 2**26
"""So many values that the dense network puts out are kept (256 MB); where there are more, it runs in each step."""


@dataclass(frozen=True)
class OutputMatching(Repair):
    """Adam on |y - y_dense|^2 / |y_dense|^2 of the networks' outputs, over every parameter but the weights that are
    gone; with gradients, without labels. A step moves a value by about `rate` times the root mean square of its
    parameter's values that are not zero; the rate falls to zero as a cosine.

    Of the first `images` samples the last share `held_out` is not trained on: there the same error is measured at the
    start, every `check` steps and at the end, and the state with the least is kept. `augment` changes each batch, and
    the dense network says what the changed one is to give. Held-out samples are changed too, once: a repair before this
    one may have been fitted to them as they are. `loss` names another error; of logits the squares serve better than
    KL. BatchNorm keeps its statistics, its scales and shifts are trained; everything runs in eval mode.

    The same seed gives the same answer, unless the `seconds` do not suffice: then the rate falls to zero within the
    steps that do fit, and the remarks say so.
    """

    needs_gradients = True
    steps: int = 2000
    seconds: float = 1800.0
    rate: float = 1e-2
    batch_size: int = 64
    images: int = IMAGES
    held_out: float = 1 / 8
    check: int = 100
    seed: int = 0
    augment: Augment | None = None
    loss: Distance = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("steps", 1), ("batch_size", 1), ("images", 2), ("check", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("seconds", "rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out is a share of the samples, above 0 and below 1, not {self.held_out}")
        if self.loss is None:
            raise InputError("loss must be 'kl', 'error' or a function of both outputs, not None")
        Comparison(self.loss)

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        return (f"{self.name} trains whatever stays, with gradients, no labels, on at most {self.images} samples",)

    def __call__(self, context: RepairContext) -> None:
        model, calibration = context.model, context.calibration
        check_precision(model, self.name)
        training, held = self._parts(calibration.held[: self.images])
        with channels_last_(model), evaluating(context.dense) as dense, differentiating_(model) as network:
            generator = torch.Generator().manual_seed(self.seed)
            unseen = [self._augmented(batch, generator) for batch in held.split(self.batch_size)]
            nearness = _Nearness(context, unseen, Comparison(self.loss))
            weights = TrainedWeights(model, context.layers)
            start = least = nearness.measured()
            best = weights.state()
            for _ in self._training_(weights, network, context, self._batches(dense, training, calibration)):
                distance = nearness.measured()
                if distance < least:
                    least, best = distance, weights.state()
            weights.load_(best)
        came = f"from {start:.4g} to {least:.4g}" if least < start else f"nowhere below {start:.4g}: its start is kept"
        where = f"distance to the dense network ({nearness.comparison.name}) on {len(held)} held-out samples"
        context.remarks.append(f"{self.name} brought the {where} {came}, in {weights.steps:,} steps")

    def _parts(self, samples: Samples) -> tuple[Samples, Samples]:
        """Those that are trained on, and those that are not."""
        held = max(1, round(self.held_out * len(samples)))
        if len(samples) <= held:
            raise InputError(
                f"repair {self.name!r} trains on some samples and holds {held} out: {len(samples)} are too few"
            )
        return samples[:-held], samples[-held:]

    def _training_(
        self,
        weights: TrainedWeights,
        network: nn.Module,
        context: RepairContext,
        batches: Iterator[tuple[Batch, Tensor]],
    ) -> Iterator[None]:
        """Step after step; it halts where it is to be seen how far things are."""
        loss = Comparison(self.loss)
        for rate in track(self._rates(context.remarks), "matching outputs", self.steps):
            batch, wanted = next(batches)
            error = loss(wanted, picked(context.calibration.run(network, batch))).mean()
            if not error.requires_grad:
                raise InputError(
                    f"repair {self.name!r} needs gradients, and {type(network).__name__} lets none reach its parameters"
                )
            if not error.isfinite():
                context.remarks.append(f"{self.name}: the loss became {float(error)} after {weights.steps:,} steps")
                return
            weights.step_(error, rate)
            if weights.steps % self.check == 0:
                yield
        if weights.steps % self.check:
            yield

    def _rates(self, remarks: list[str]) -> Iterator[float]:
        """rate (1 + cos(pi i / steps)) / 2 for each step i, with as many steps as fit into the seconds."""
        begun, steps, i = time.monotonic(), float(self.steps), 0
        while i < steps:
            yield self.rate * (1 + math.cos(math.pi * i / steps)) / 2
            i += 1
            spent = time.monotonic() - begun
            if i == _PACED:
                steps = min(steps, max(i, self.seconds * i / spent))
            if spent > self.seconds:
                break
        if i < self.steps:
            remarks.append(
                f"{self.name} made {i:,} of {self.steps:,} steps: more do not fit into {self.seconds:g} seconds here, "
                "and another machine may give another result"
            )

    def _batches(
        self, dense: nn.Module, training: Samples, calibration: CalibrationSet
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Without end: a batch, and what the dense network puts out for it. Each sample once in an epoch."""
        generator = torch.Generator().manual_seed(self.seed)
        forms = [Samples((batch,)) for batch in training.batches]
        known = None if self.augment is not None else _kept_outputs(dense, forms, calibration, self.batch_size)
        while True:
            pieces = [
                (form, rows)
                for form, samples in enumerate(forms)
                for rows in torch.randperm(len(samples), generator=generator).tensor_split(
                    math.ceil(len(samples) / self.batch_size)
                )
            ]
            for i in torch.randperm(len(pieces), generator=generator).tolist():
                form, rows = pieces[i]
                batch = self._augmented(forms[form].drawn(rows.tolist()).batches[0], generator)
                batch = to_model(batch, dense)
                yield batch, _output(dense, batch, calibration) if known is None else known[form][rows]

    def _augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch if self.augment is None else self.augment(batch, generator)


class _Nearness:
    """How far our copy is from the dense network on these batches."""

    def __init__(self, context: RepairContext, batches: list[Batch], comparison: Comparison) -> None:
        self.context, self.batches, self.comparison = context, batches, comparison
        self.wanted = self._outputs(context.dense)

    def _outputs(self, network: nn.Module) -> list[Tensor]:
        return outputs_of(network, self.batches, forward=self.context.calibration.forward)

    def measured(self) -> float:
        """Infinity where the steps have broken our copy: nothing is worse, and the next step ends them."""
        given = self._outputs(self.context.model)
        if not all(bool(x.isfinite().all()) for x in given):
            return math.inf
        value = agreement_of_outputs(zip(self.wanted, given, strict=True), self.comparison).value
        assert value is not None
        return value


def _kept_outputs(
    dense: nn.Module, forms: list[Samples], calibration: CalibrationSet, size: int
) -> list[Tensor] | None:
    """The dense network's output for every sample, form by form; none where that is too much to keep."""
    room, kept = _KEPT, []
    for samples in forms:
        outputs: list[Tensor] = []
        for batch in samples.split(size):
            outputs.append(_output(dense, to_model(batch, dense), calibration))
            if len(outputs[-1]) != sample_count(batch):
                raise InputError(
                    f"{type(dense).__name__} puts out {tuple(outputs[-1].shape)} for {sample_count(batch)} samples; "
                    "matching outputs needs one row for each"
                )
            room -= outputs[-1].numel()
            if room < 0:
                return None
        kept.append(torch.cat(outputs))
    return kept


def _output(dense: nn.Module, batch: Batch, calibration: CalibrationSet) -> Tensor:
    with torch.no_grad():
        return picked(calibration.run(dense, batch))
