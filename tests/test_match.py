from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import small_net
from repairability import (
    CalibrationSet,
    InputError,
    agreement,
    allocate,
    create_model,
    make_masks,
    prunable_layers,
    prune,
    repair_model,
)
from repairability._torch import seeded
from repairability.masks import apply_masks_
from repairability.repairs import OutputMatching, RepairContext, crops, flips, get_repair
from repairability.repairs.trained import TrainedWeights
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(96, 3, 9, 9, generator=torch.Generator().manual_seed(2))
HELD = IMAGES[-12:]
QUICK: dict[str, Any] = {"steps": 12, "batch_size": 16, "check": 5, "rate": 1e-2}

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def dense() -> nn.Module:
    return create_model("networks:Residual")


def pruned_copy(model: nn.Module, sparsity: float = 0.7) -> nn.Module:
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, allocate(model, sparsity=sparsity, rule="uniform")))
    return pruned


def context_of(dense: nn.Module, pruned: nn.Module, samples: Any = IMAGES) -> RepairContext:
    return RepairContext(pruned, prunable_layers(pruned), dense, CalibrationSet.read(samples, count=16))


def distance(dense: nn.Module, other: nn.Module, samples: Any = HELD) -> float:
    value = agreement(dense, other, samples, distance="error").value
    assert value is not None
    return value


# --- what it does --------------------------------------------------------------------------------------------------


def test_it_comes_nearer_and_what_is_gone_stays_gone(dense: nn.Module) -> None:
    pruned = pruned_copy(dense)
    repaired = repair_model(dense, pruned, IMAGES, repair=OutputMatching(**QUICK))
    assert distance(dense, repaired) < 0.8 * distance(dense, pruned)
    for name, weight in repaired.named_parameters():
        gone = pruned.get_parameter(name) == 0
        assert (weight[gone] == 0).all() or name.endswith("bias"), name
        assert not torch.equal(weight, pruned.get_parameter(name)), f"{name} was not trained"


def test_batchnorm_keeps_its_statistics(dense: nn.Module) -> None:
    repaired = repair_model(dense, pruned_copy(dense), IMAGES, repair=OutputMatching(**QUICK))
    for name, buffer in dense.named_buffers():
        assert torch.equal(buffer, repaired.get_buffer(name)), name


def test_parts_of_a_parameter_keep_their_zeros() -> None:
    """The packed projections of attention: three layers in one parameter."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
            return out

    with seeded(0):
        model = Attending().eval()
    samples = torch.randn(40, 5, 8, generator=torch.Generator().manual_seed(0))
    result = prune(model, samples, sparsity=0.5, rule="uniform", repair=OutputMatching(**QUICK))
    for layer in prunable_layers(model, batch=samples).on(result.model):
        assert int((layer.weight == 0).sum()) == result.allocation.pruned(layer.name)


@pytest.mark.parametrize("rate", [1e-2, 1e6], ids=["a rate that helps", "one that ruins"])
def test_never_further_away_than_at_the_start(rate: float, dense: nn.Module) -> None:
    """On the samples held out: the last of those that are taken."""
    pruned = pruned_copy(dense)
    start = copy.deepcopy(pruned)
    context = context_of(dense, pruned)
    OutputMatching(**{**QUICK, "rate": rate})(context)
    assert distance(dense, pruned) <= distance(dense, start)
    if rate > 1:
        assert all(torch.equal(a, b) for a, b in zip(pruned.parameters(), start.parameters(), strict=True))
        assert "its start is kept" in context.remarks[-1]
    else:
        assert "on 12 held-out samples from" in context.remarks[-1]


def test_a_perfect_network_stays_as_it_is(dense: nn.Module) -> None:
    context = context_of(dense, copy.deepcopy(dense))
    OutputMatching(**QUICK)(context)
    assert all(torch.equal(a, b) for a, b in zip(dense.parameters(), context.model.parameters(), strict=True))


def test_samples_held_out_are_not_trained_on(dense: nn.Module) -> None:
    """They are augmented first, once. Those beyond `images` serve nothing."""
    seen = []

    def watch(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(batch)
        return batch

    repair_model(dense, pruned_copy(dense), IMAGES, repair=OutputMatching(**QUICK, images=40, augment=watch))
    assert torch.equal(seen[0], IMAGES[35:40])
    rows = {tuple(image.flatten().tolist()) for batch in seen[1:] for image in batch}
    assert rows == {tuple(image.flatten().tolist()) for image in IMAGES[:35]}


def test_the_same_answer_twice_and_another_for_another_seed(dense: nn.Module) -> None:
    pruned = pruned_copy(dense)

    def weight(**settings: Any) -> Tensor:
        repaired = repair_model(dense, pruned, IMAGES, repair=OutputMatching(**{**QUICK, **settings}))
        return repaired.get_parameter("conv2.weight")

    assert torch.equal(weight(), weight())
    assert torch.equal(weight(augment=flips), weight(augment=flips))
    assert not torch.equal(weight(), weight(seed=1))
    assert not torch.equal(weight(), weight(augment=flips))


def test_without_augmentation_it_makes_no_difference_whether_outputs_are_kept(
    dense: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned, repair = pruned_copy(dense), OutputMatching(**QUICK)
    kept = repair_model(dense, pruned, IMAGES, repair=repair)
    monkeypatch.setattr("repairability.repairs.match._KEPT", 30)
    again = repair_model(dense, pruned, IMAGES, repair=repair)
    torch.testing.assert_close(kept.get_parameter("conv2.weight"), again.get_parameter("conv2.weight"))


def test_seconds_that_do_not_suffice_are_said(dense: nn.Module) -> None:
    context = context_of(dense, pruned_copy(dense))
    OutputMatching(**{**QUICK, "steps": 10**7}, seconds=0.3)(context)
    assert "of 10,000,000 steps: more do not fit into 0.3 seconds here" in context.remarks[0]
    context = context_of(dense, pruned_copy(dense))
    OutputMatching(**QUICK, seconds=1e-9)(context)
    assert "made 1 of 12 steps" in context.remarks[0]
    context = context_of(dense, pruned_copy(dense))
    OutputMatching(**QUICK)(context)
    assert len(context.remarks) == 1


def test_the_rate_falls_to_zero_also_where_the_seconds_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: next(now))  # a second a step
    remarks: list[str] = []
    whole = list(OutputMatching(steps=100, rate=2.0)._rates(remarks))
    assert (whole[0], whole[50], remarks) == (2.0, pytest.approx(1.0), [])
    cut = list(OutputMatching(steps=100, rate=2.0, seconds=60)._rates(remarks))
    assert len(cut) == 60
    assert cut[-1] == pytest.approx(0, abs=2e-3)
    assert "made 60 of 100 steps" in remarks[0]


# --- what it is given ----------------------------------------------------------------------------------------------


def test_flips_mirror_some_images_and_nothing_else() -> None:
    flipped = flips(IMAGES, torch.Generator().manual_seed(0))
    mirrored = (flipped == IMAGES.flip(3)).flatten(1).all(1)
    assert 20 < int(mirrored.sum()) < 76
    assert torch.equal(flipped[~mirrored], IMAGES[~mirrored])
    with pytest.raises(InputError, match=r"flips are of images \[n, C, H, W\], not of a batch of shape \(4, 5\)"):
        flips(torch.zeros(4, 5), torch.Generator())


def test_crops_mirror_and_shift_by_an_eighth_at_most() -> None:
    image = torch.arange(16.0)[:, None] * 100 + torch.arange(16.0)
    cropped = crops(image.expand(40, 1, 16, 16), torch.Generator().manual_seed(0))
    shifts = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    known = [turned.roll(shift, (0, 1))[4:12, 4:12] for turned in (image, image.flip(1)) for shift in shifts]
    drawn = [next(i for i, inner in enumerate(known) if torch.equal(inner, x[0, 4:12, 4:12])) for x in cropped]
    assert len(set(drawn)) > 10
    assert {i < len(shifts) for i in drawn} == {True, False}
    with pytest.raises(InputError, match=r"crops are of images \[n, C, H, W\], not of a batch of \{x: shape"):
        crops({"x": cropped}, torch.Generator())


def test_augmented_batches_are_what_it_learns_from(dense: nn.Module) -> None:
    """Trained on zeros alone, the networks come to agree on zeros."""
    pruned, zeros = pruned_copy(dense), torch.zeros(1, 3, 9, 9)
    repair = OutputMatching(**{**QUICK, "steps": 60}, augment=lambda batch, _: torch.zeros_like(batch))
    repaired = repair_model(dense, pruned, IMAGES, repair=repair)
    assert distance(dense, repaired, zeros) < 0.3 * distance(dense, pruned, zeros)


class Named(nn.Module):
    """Takes a mapping and puts one out; no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        return {"ids": torch.arange(len(values)), "score": self.net(values)}


def test_any_batch_any_output() -> None:
    """One column, in a mapping, from batches of several forms."""
    with seeded(0):
        model = Named().eval()
    generator = torch.Generator().manual_seed(0)
    batches = [{"values": torch.randn(n, *more, 6, generator=generator)} for n, more in ((20, ()), (24, (3,)), (9, ()))]
    repair = OutputMatching(**{**QUICK, "steps": 100})
    result = prune(model, batches, sparsity=0.5, rule="uniform", repair=repair)
    assert any("distance to the dense network (error) on 7 held-out samples from" in note for note in result.notes)


def test_what_goes_in_by_a_forward_of_ones_own() -> None:
    model = create_model("networks:linear_net")
    samples = {"x": torch.randn(40, 4, generator=torch.Generator().manual_seed(0))}
    result = prune(
        model,
        samples,
        sparsity=0.3,
        rule="uniform",
        repair=OutputMatching(**QUICK, loss="kl"),
        forward=lambda network, batch: {"logits": network(batch["x"])},
    )
    assert any("distance to the dense network (kl) on 5 held-out samples" in note for note in result.notes)


# --- in a chain, by name -------------------------------------------------------------------------------------------


def test_as_a_step_of_a_chain(dense: nn.Module) -> None:
    chain = get_repair("reconstruct-all+match")
    assert (chain.name, chain.needs_gradients, chain.chooses_masks) == ("reconstruct-all+match", True, True)
    assert not get_repair("reconstruct-all+bn").needs_gradients
    by_hand = type(chain)((get_repair("reconstruct-all"), OutputMatching(**QUICK, name="match")), name="x")  # type: ignore[call-arg]
    result = prune(dense, IMAGES, sparsity=0.7, rule="uniform", score="second_order", repair=by_hand)
    before = prune(dense, IMAGES, sparsity=0.7, rule="uniform", score="second_order", repair="reconstruct-all")
    assert distance(dense, result.model) <= distance(dense, before.model)
    for name, mask in result.masks.items():
        assert torch.equal(mask, before.masks[name])
        assert (result.model.get_parameter(f"{name}.weight")[~mask] == 0).all()
    assert "match trains whatever stays, with gradients, no labels, on at most 1024 samples" in result.notes
    assert any(
        note.startswith("match brought the distance to the dense network (error) on 12") for note in result.notes
    )


# --- it leaves no trace --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_dense_network_and_the_random_state_are_untouched(mode: Any) -> None:
    model = users_model()
    before = complete_state(model)
    with mode():
        result = prune(model, IMAGES.clone(), sparsity=0.7, rule="uniform", repair=OutputMatching(**QUICK))
    assert same(complete_state(model), before)
    for name, parameter in result.model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad == model.get_parameter(name).requires_grad
    assert {k: m.training for k, m in result.model.named_modules()} == before["modes"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("injected")], ids=lambda f: type(f).__name__)
def test_untouched_when_it_fails_half_way(fault: BaseException) -> None:
    model, pruned = users_model(), pruned_copy(users_model())
    calls = iter(range(10**6))

    def failing(batch: Tensor, generator: torch.Generator) -> Tensor:
        if next(calls) == 7:
            raise fault
        return batch + torch.rand(1)  # from the random state that is lent

    context = context_of(model, pruned)
    before, wants = complete_state(model), [p.requires_grad for p in pruned.parameters()]
    with pytest.raises(type(fault)):
        OutputMatching(**QUICK, augment=failing)(context)
    assert same(complete_state(model), before)
    assert [p.requires_grad for p in pruned.parameters()] == wants
    assert all(p.grad is None and p.is_contiguous() for p in pruned.parameters())


# --- what it refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"images": 1}, "images must be at least 2, not 1"),
        ({"check": 0}, "check must be at least 1, not 0"),
        ({"rate": 0.0}, "rate must be positive, not 0.0"),
        ({"rate": float("nan")}, "rate must be positive, not nan"),
        ({"seconds": -1}, "seconds must be positive, not -1"),
        ({"held_out": 1.0}, "held_out is a share of the samples, above 0 and below 1, not 1.0"),
        ({"loss": "l1"}, "unknown distance 'l1'"),
        ({"loss": None}, "loss must be 'kl', 'error' or a function of both outputs"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        OutputMatching(**settings)


def test_networks_and_samples_that_it_cannot_work_with(dense: nn.Module) -> None:
    with pytest.raises(InputError, match=r"repair 'match' trains, and stem.weight is torch.bfloat16"):
        repair_model(dense.bfloat16(), pruned_copy(dense).bfloat16(), IMAGES, repair="match")
    with pytest.raises(InputError, match="trains on some samples and holds 1 out: 1 are too few"):
        OutputMatching(**QUICK)(context_of(small_net(), small_net(), HELD[:1]))


class Odd(nn.Module):
    """Puts out what its name says."""

    def __init__(self, puts_out: str) -> None:
        super().__init__()
        self.net, self.puts_out = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), puts_out

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        return {"classes": out.argmax(1), "no rows": out.mean(0), "no gradient": out.detach()}[self.puts_out]


@pytest.mark.parametrize(
    ("puts_out", "words"),
    [
        ("classes", "must be a floating-point tensor"),
        ("no rows", r"Odd puts out \(4,\) for 8 samples; matching outputs needs one row for each"),
        ("no gradient", "needs gradients, and Odd lets none reach its parameters"),
    ],
)
def test_outputs_that_cannot_be_matched(puts_out: str, words: str) -> None:
    with seeded(0):
        model, pruned = (Odd(puts_out).eval() for _ in range(2))
    samples = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=words):
        OutputMatching(**{**QUICK, "batch_size": 8})(context_of(model, pruned, samples))


def test_steps_that_break_the_network_leave_the_best_before_them(
    dense: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is seen at a check, between two steps."""
    step_ = TrainedWeights.step_

    def breaking(self: TrainedWeights, error: Tensor, rate: float) -> None:
        step_(self, error, rate)
        if self.steps == 10:
            with torch.no_grad():
                self.trained[-1].fill_(torch.inf)

    monkeypatch.setattr(TrainedWeights, "step_", breaking)
    pruned = pruned_copy(dense)
    context = context_of(dense, copy.deepcopy(pruned))
    OutputMatching(**QUICK)(context)
    assert all(bool(x.isfinite().all()) for x in context.model.parameters())
    assert distance(dense, context.model) < distance(dense, pruned)
    assert any("after 10 steps" in remark for remark in context.remarks)
