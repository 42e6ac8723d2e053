"""The user's model is sacred: whatever fails, wherever, its complete state is as before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import small_net
from repairability import (
    CalibrationSet,
    _torch,
    accelerate,
    agreement,
    allocate,
    compact,
    create_model,
    diagnose,
    doctor,
    make_masks,
    prunable_layers,
    prune,
    repair_model,
)
from repairability.algebra.sums import ChannelSums
from repairability.diagnostics.products import LevelProducts
from repairability.masks import apply_masks_
from repairability.network.calls import Call
from repairability.repairs import BatchNormRepair, ChannelRepair

IMAGES = torch.randn(60, 3, 9, 9, generator=torch.Generator().manual_seed(2))


class Counting(nn.Module):
    """A module that counts in forward, as some do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def users_model() -> nn.Module:
    """In a state nobody would guess: mixed modes, own hooks, an odd momentum, a gradient, a counting buffer."""
    model = create_model("networks:Residual")
    model.add_module("hidden", nn.Sequential(model.get_submodule("hidden"), Counting()))
    model.train()
    model.get_submodule("bn2").eval()
    model.get_submodule("bn3").momentum = 0.37
    model.get_submodule("conv1").register_forward_hook(lambda *_: None)
    model.get_parameter("conv1.weight").grad = torch.ones(12, 2, 3, 3)
    model.get_parameter("stem.weight").requires_grad_(False)
    return model


def complete_state(model: nn.Module) -> dict[str, Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    return {
        "tensors": {k: (v.clone(), v.data_ptr(), v.dtype, v.device) for k, v in model.state_dict().items()},
        "grads": {
            k: (None if p.grad is None else p.grad.clone(), p.requires_grad) for k, p in model.named_parameters()
        },
        "modes": {k: m.training for k, m in model.named_modules()},
        "momentum": {k: m.momentum for k, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)},
        "hooks": {k: [list(getattr(m, h)) for h in hooks] for k, m in model.named_modules()},
        "names": [k for k, _ in model.named_modules()],
        "random": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def failing(
    function: Callable[..., Any], at: int, fault: BaseException, strikes: list[BaseException] | None = None
) -> Callable[..., Any]:
    """`function`, until its call number `at`; the fault is noted where it strikes."""
    calls = iter(range(10**6))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            if strikes is not None:
                strikes.append(fault)
            raise fault
        return function(*args, **kwargs)

    return wrapped


def failing_loader(at: int, fault: BaseException) -> Iterator[Tensor]:
    for i, batch in enumerate(IMAGES.split(10)):
        if i == at:
            raise fault
        yield batch


STAGES: list[tuple[Any, str, tuple[int, ...]]] = [
    (CalibrationSet, "batches", (0, 1, 5)),
    (CalibrationSet, "recalibration", (0,)),
    (ChannelSums, "update", (0, 1, 5)),
    (ChannelSums, "distance", (0, 1, 5)),
    (LevelProducts, "chunks", (0, 1, 5)),
    (LevelProducts, "_bands", (0, 1, 3)),
    (ChannelRepair, "gamma", (0, 1, 3)),
    (Call, "channels", (0, 1, 5)),
    (nn.BatchNorm2d, "forward", (0, 1, 5)),
    (nn.Linear, "forward", (0, 1, 5)),
]
"""Where a fault strikes, and at which of the calls."""

PLACES = [
    pytest.param(owner, method, at, id=f"{owner.__name__}-{method}-{at}") for owner, method, ats in STAGES for at in ats
]
FAULTS = [KeyboardInterrupt(), RuntimeError("injected"), MemoryError()]


def calls_of(model: nn.Module) -> dict[str, Callable[[], object]]:
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, allocate(model, sparsity=0.7, rule="uniform")))
    calibration = CalibrationSet(IMAGES, count=20, batch_size=8)
    return {
        "diagnose": lambda: diagnose(model, calibration),
        "diagnose norm": lambda: diagnose(model, calibration, observe="norm"),
        "repair": lambda: repair_model(model, pruned, calibration),
        "repair in one pass": lambda: repair_model(model, pruned, CalibrationSet(IMAGES, count=20)),
        "repair simultaneous": lambda: repair_model(model, pruned, calibration, repair="cr-simultaneous"),
        "repair the other": lambda: repair_model(pruned, model, calibration, repair=BatchNormRepair(2, 10)),
    }


pytestmark = pytest.mark.usefixtures("quiet")


def test_success_changes_nothing() -> None:
    model = users_model()
    before = complete_state(model)
    for name, call in calls_of(model).items():
        if name != "repair the other":  # the dense network lost no weights against the pruned one: an error, below
            call()
        assert same(complete_state(model), before), name


def test_a_forward_that_somebody_wrapped_changes_nothing() -> None:
    """A function that holds on to the model itself: no copy of the model takes it along."""
    model = users_model()
    plain = model.forward
    model.forward = lambda x: plain(x)  # type: ignore[method-assign]
    before = complete_state(model)
    diagnose(model, CalibrationSet(IMAGES, count=20))
    assert same(complete_state(model), before)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize(("owner", "method", "at"), PLACES)
def test_a_failure_at_any_stage_changes_nothing(
    owner: Any, method: str, at: int, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = users_model()
    calls = calls_of(model)
    before = complete_state(model)
    strikes: list[BaseException] = []
    for name, call in calls.items():
        earlier, raised = len(strikes), False
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, failing(getattr(owner, method), at, fault, strikes))
            try:
                call()
            except (KeyboardInterrupt, MemoryError, RuntimeError, ValueError):
                raised = True
        assert raised or len(strikes) == earlier, f"{name} went on after the fault"
        assert same(complete_state(model), before), name
    assert strikes, "the fault struck nowhere"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("at", [0, 2])
def test_a_failing_loader_changes_nothing(at: int, fault: BaseException) -> None:
    model = users_model()
    before = complete_state(model)
    with pytest.raises(type(fault)):
        diagnose(model, failing_loader(at, fault))
    assert same(complete_state(model), before)


def test_the_watcher_can_see() -> None:
    """Each kind of change is noticed."""
    changes: list[Callable[[nn.Module], object]] = [
        lambda m: m.get_parameter("conv2.weight").data.add_(1e-3),
        lambda m: m.get_buffer("bn1.running_mean").add_(1),
        lambda m: m.get_submodule("bn1").eval(),
        lambda m: setattr(m.get_submodule("bn1"), "momentum", 0.2),
        lambda m: m.get_submodule("bn1").register_forward_hook(lambda *_: None),
        lambda m: torch.rand(1),
    ]
    for change in changes:
        model = users_model()
        before = complete_state(model)
        change(model)
        assert not same(complete_state(model), before)


def test_our_own_copy_gets_its_modes_back_too() -> None:
    model = users_model()
    with pytest.raises(KeyboardInterrupt), _torch.recalibrating_(model, 0.5) as network:
        assert network.get_submodule("bn1").momentum == 0.5
        assert network.get_submodule("bn2").training
        raise KeyboardInterrupt
    assert model.get_submodule("bn3").momentum == 0.37
    assert not model.get_submodule("bn2").training


class Overwriting(nn.Module):
    """Normalises its input in place, as many do."""

    def __init__(self, inner: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = inner, in_place

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.sub_(0.5).div_(0.25) if self.in_place else (x - 0.5) / 0.25)
        return y


@pytest.mark.parametrize("recipe", ["fast", "paper", "strong"])
def test_a_model_that_writes_into_its_input_is_pruned_as_one_that_does_not(recipe: str) -> None:
    """And the images are the caller's: they stay as they are."""
    inner = small_net()
    images = torch.rand(300, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    polite, rude = (Overwriting(inner, in_place=x).eval() for x in (False, True))
    expected, given = (prune(x, images, sparsity=0.8, recipe=recipe).model.state_dict() for x in (polite, rude))
    assert same(dict(given), dict(expected))
    assert agreement(rude, copy.deepcopy(rude), [images]).same == 1
    for call in (
        lambda: doctor(rude, images),
        lambda: diagnose(rude, images),
        lambda: prunable_layers(rude, batch=images),
    ):
        call()
    compact(rude, images[:4])
    fast = accelerate(polite, images[:4], threads=1)
    torch.testing.assert_close(fast(images), polite(images))
    assert torch.equal(images, kept)
