from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from networks import small_net
from repairability import InputError, create_model, evaluate, load_data
from repairability._files import write_sealed
from repairability.data import Data, Split
from repairability.data.splits import IMAGENET, from_array
from repairability.training import Epoch, TrainConfig, digits, digits_network, finetune, lower_layers
from repairability.training.digits import cache_folder, train_
from repairability.training.steps import augmented


def test_the_digits_network_learns_and_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "DIGITS_EPOCHS", 3)  # at two it is near 0.6, on either side by the processor
    data = load_data("digits")
    state = torch.get_rng_state()
    model = digits_network(data, cache=tmp_path)
    assert evaluate(model, data.test.batches()).top1 > 0.6
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(digits, "train_", lambda *_, **__: pytest.fail("trained again"))
    again = digits_network(data, cache=tmp_path)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_training_is_reproducible() -> None:
    data = load_data("digits")
    models = [create_model("digits", seed=1) for _ in range(2)]
    for model in models:
        train_(model, data, epochs=1, seed=3)
    assert same(*models)


def test_the_cache_follows_the_users_wish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "repairability"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The number of threads decides the last bits of a sum, and many are slow on small networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def coloured(count: int = 48, classes: int = 3, size: int = 16, seed: int = 0) -> Data:
    """Noise in the colour of its class: easy."""

    def part(seed: int) -> Split:
        random = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % classes
        images = torch.randint(0, 100, (count, 3, size, size), generator=random)
        images[torch.arange(count), labels] += 120
        return from_array(images.to(torch.uint8), labels, IMAGENET, None)

    return Data("coloured", classes, part(seed), part(seed + 1))


def tiny_net() -> nn.Module:
    """Everything that has a state of its own: BatchNorm, dropout, convolutions of both layouts."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.ReLU()),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(12, 3),
        ).eval()


TINY = TrainConfig(epochs=3, rate=0.1, batch_size=16, frozen=("0",))


def same(one: nn.Module, two: nn.Module) -> bool:
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def interrupt_after(epoch: int) -> Callable[[Epoch], None]:
    def watch(seen: Epoch) -> None:
        if seen.epoch == epoch:
            raise Interrupted

    return watch


@pytest.mark.parametrize("name", ["resnet20", "vgg16_bn_quarter"])
def test_frozen_layers_stay_to_the_bit_and_the_rest_moves(name: str) -> None:
    model = create_model(name, num_classes=3)
    before = copy.deepcopy(model.state_dict())
    result = finetune(model, coloured(24, size=32), config=TrainConfig(epochs=1, batch_size=12))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())  # a copy was trained
    lower = {name for name, _ in model.named_modules() if any(f"{name}.".startswith(f"{x}.") for x in result.frozen)}
    moved, stayed = set(), set()
    for key, value in result.model.state_dict().items():
        (stayed if torch.equal(value, before[key]) else moved).add(key)
    assert stayed == {key for key in before if key.rpartition(".")[0] in lower}
    assert any("running_mean" in key for key in stayed)
    assert any("running_mean" in key for key in moved)
    for own in (result.model, model):
        assert all(p.requires_grad and p.grad is None and p.is_contiguous() for p in own.parameters())
        assert not any(module.training for module in own.modules())


def test_in_bfloat16_the_passes_are_short_and_the_weights_are_not() -> None:
    data, seen = coloured(24, size=32), set()
    model = create_model("resnet20", num_classes=3)
    for block in (model.layer1, model.layer3):
        block.register_forward_hook(lambda module, _, output: seen.add((module.training, output.dtype)))
    config = TrainConfig(epochs=1, batch_size=12, frozen=(), precision="bfloat16", test_images=4)
    result = finetune(model, data, config=config)
    assert {dtype for _, dtype in seen if dtype != torch.float32} == {torch.bfloat16}
    assert (False, torch.bfloat16) not in seen  # what an epoch's test shows is the network as it will be kept
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert same(result.model, finetune(model, data, config=config).model)
    assert not same(result.model, finetune(model, data, config=replace(config, precision="float32")).model)


def test_the_lower_layers_of_known_architectures() -> None:
    stem_and_two = ("conv1", "bn1", "layer1", "layer2")
    assert {lower_layers(create_model(x)) for x in ("resnet18", "resnet20", "digits")} == {stem_and_two}
    with torch.device("meta"):
        vgg = create_model("vgg16_bn")
    assert lower_layers(vgg) == tuple(f"features.{i}" for i in range(14))
    assert isinstance(vgg.get_submodule("features.13"), nn.MaxPool2d)
    assert lower_layers(vgg) == lower_layers(create_model("vgg16_bn_quarter"))
    for other in (small_net(), create_model("squeezenet1_1")):
        with pytest.raises(InputError, match="its lower layers are not known; say .* --freeze GLOB, or --freeze none"):
            finetune(other, coloured())


def test_it_learns_and_keeps_a_curve() -> None:
    data, seen = coloured(), []
    result = finetune(tiny_net(), data, config=replace(TINY, epochs=12, rate=0.3, test_images=20), watch=seen.append)
    assert seen == list(result.curve)
    assert [x.epoch for x in seen] == list(range(1, 13))
    assert seen[-1].train_loss < 0.6 * seen[0].train_loss
    assert seen[-1].test_images == 20
    assert evaluate(result.model, data.test.batches()).top1 > 0.9
    assert seen[-1].rate == pytest.approx(0.3 / 250_000)
    assert "tested on 20 images; frozen: 0" in str(result)
    assert result.to_dict()["curve"][0]["train_loss"] == seen[0].train_loss
    assert "commit" in result.to_dict()["provenance"]


def test_training_says_what_the_test_says() -> None:
    data = coloured()
    result = finetune(tiny_net(), data, config=replace(TINY, test_images=10_000))
    known = evaluate(result.model, data.test.batches())
    assert result.curve[-1].test_top1 == known.top1
    assert result.curve[-1].test_loss == pytest.approx(known.loss, rel=1e-5)
    untested = finetune(tiny_net(), data, config=replace(TINY, test_images=0))
    assert untested.curve[-1].test_top1 is None
    assert same(untested.model, result.model)  # looking changes nothing


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_training_ends_in_the_same_bits(at: int, tmp_path: Path) -> None:
    data, partial = coloured(50), tmp_path / "net.partial"
    whole = finetune(tiny_net(), data, config=TINY)
    state = torch.get_rng_state()
    with pytest.raises(Interrupted):
        finetune(tiny_net(), data, config=TINY, partial=partial, watch=interrupt_after(at))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(at)  # nobody's random numbers matter
    seen: list[Epoch] = []
    result = finetune(tiny_net(), data, config=TINY, partial=partial, watch=seen.append)
    assert [x.epoch for x in seen] == list(range(at + 1, 4))
    assert same(result.model, whole.model)
    assert [x.train_loss for x in result.curve] == [x.train_loss for x in whole.curve]


def test_an_interrupt_at_every_epoch_of_a_real_network(tmp_path: Path) -> None:
    data, partial = coloured(24, size=32), tmp_path / "net.partial"
    config = TrainConfig(epochs=3, batch_size=12, frozen=())
    whole = finetune(create_model("vgg16_bn_quarter", num_classes=3), data, config=config)
    for at in (1, 2):
        with pytest.raises(Interrupted):
            finetune(
                create_model("vgg16_bn_quarter", num_classes=3),
                data,
                config=config,
                partial=partial,
                watch=interrupt_after(at),
            )
    result = finetune(create_model("vgg16_bn_quarter", num_classes=3), data, config=config, partial=partial)
    assert same(result.model, whole.model)


def test_an_interrupt_inside_an_epoch_leaves_the_one_before(tmp_path: Path) -> None:
    data, partial = coloured(), tmp_path / "net.partial"
    batches = iter(range(100))

    def read(indices: Sequence[int]) -> Tensor:
        if next(batches) == 5:  # three reads an epoch
            raise Interrupted
        return data.train.read(indices)

    faulty = replace(data, train=replace(data.train, read=read))
    with pytest.raises(Interrupted):
        finetune(tiny_net(), faulty, config=TINY, partial=partial)
    assert [file.name for file in tmp_path.iterdir()] == ["net.partial"]
    seen: list[Epoch] = []
    result = finetune(tiny_net(), data, config=TINY, partial=partial, watch=seen.append)
    assert [x.epoch for x in seen] == [2, 3]
    assert same(result.model, finetune(tiny_net(), data, config=TINY).model)


def test_a_state_of_another_training_is_refused(tmp_path: Path) -> None:
    data, partial = coloured(), tmp_path / "net.partial"
    with pytest.raises(Interrupted):
        finetune(tiny_net(), data, config=TINY, partial=partial, watch=interrupt_after(1))
    before = partial.read_bytes()
    other = tiny_net()
    nn.init.zeros_(other[-1].bias)
    attempts = [
        (tiny_net(), data, replace(TINY, epochs=4, rate=0.2), r"epochs is 3 there and 4 here; rate is 0.1 there and"),
        (tiny_net(), data, replace(TINY, seed=1), "seed is 0 there and 1 here"),
        (tiny_net(), data, replace(TINY, frozen=()), r"frozen is \['0'\] there and \[\] here"),
        (tiny_net(), coloured(seed=5), TINY, "data is [0-9a-f]+ there and [0-9a-f]+ here"),
        (other, data, TINY, "the initial weights differ"),
    ]
    for model, given, config, message in attempts:
        with pytest.raises(InputError, match=f"another training .{message}.*--restart.* to begin anew"):
            finetune(model, given, config=config, partial=partial)
    assert partial.read_bytes() == before
    finetune(tiny_net(), data, config=replace(TINY, test_images=5), partial=partial)  # looking elsewhere is no matter


def test_a_file_that_is_no_state(tmp_path: Path) -> None:
    data, whole = coloured(), tmp_path / "whole"
    with pytest.raises(Interrupted):
        finetune(tiny_net(), data, config=TINY, partial=whole, watch=interrupt_after(1))
    content = whole.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 255
    save_file({"a": torch.zeros(1)}, tmp_path / "safe")  # as states were before torch saved them
    damages = {"noise": b"noise" * 9, "empty": b"", "half": content[: len(content) // 2], "flipped": bytes(flipped)}
    for name, damage in {**damages, "safe": (tmp_path / "safe").read_bytes()}.items():
        (tmp_path / name).write_bytes(damage)
        with pytest.raises(InputError, match=f"cannot continue from .*{name}: .*--restart"):
            finetune(tiny_net(), data, config=TINY, partial=tmp_path / name)
        assert (tmp_path / name).read_bytes() == damage
    write_sealed(tmp_path / "weights", saved({"a": torch.zeros(1)}))
    with pytest.raises(InputError, match="is no state of a training .*--restart"):
        finetune(tiny_net(), data, config=TINY, partial=tmp_path / "weights")


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("evil_was_here"),)


def test_no_code_runs_from_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sealed("evil", saved({"format": Evil()}))
    with pytest.raises(InputError, match="cannot continue from evil"):
        finetune(tiny_net(), coloured(), config=TINY, partial="evil")
    assert not Path("evil_was_here").exists()


def test_the_result_is_an_ordinary_weights_file(tmp_path: Path) -> None:
    model = create_model("networks:small_net", num_classes=3)
    result = finetune(model, coloured(), config=replace(TINY, epochs=1, frozen=()))
    whole, half = tmp_path / "net.safetensors", tmp_path / "half.safetensors"
    result.save(whole)
    assert same(create_model("networks:small_net", num_classes=3, weights=whole), result.model)
    result.save(half, half=True)
    assert {x.dtype for x in load_file(half).values()} == {torch.float16}
    loaded = create_model("networks:small_net", num_classes=3, weights=half).state_dict()
    assert all(torch.allclose(loaded[key], x, rtol=1e-3, atol=1e-6) for key, x in result.model.state_dict().items())
    with torch.no_grad():
        result.model.get_parameter("7.bias")[0] = 1e5
    with pytest.raises(InputError, match="7.bias goes beyond the range of float16"):
        result.save(half, half=True)


def test_the_rate_goes_up_and_down_once() -> None:
    """From a 25th of the peak for 30 % of the steps, then down to a 250,000th; the momentum stays."""
    seen: list[Epoch] = []
    config = replace(TINY, epochs=10, rate=0.3, batch_size=48, test_images=0)  # one step an epoch
    finetune(tiny_net(), coloured(), config=config, watch=seen.append)
    rates = [epoch.rate for epoch in seen]
    assert rates[0] == pytest.approx(0.3 / 25)
    assert max(rates) == rates[2] == pytest.approx(0.3)
    assert rates[-1] == pytest.approx(0.3 / 250_000)
    assert rates[:3] == sorted(rates[:3])
    assert rates[2:] == sorted(rates[2:], reverse=True)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 24), (4, 4)])
def test_augmentation_crops_a_reflected_image_and_flips(height: int, width: int) -> None:
    images = torch.randn(40, 3, height, width, generator=torch.Generator().manual_seed(0))
    shifted = augmented(images, torch.Generator().manual_seed(1))
    assert torch.equal(shifted, augmented(images, torch.Generator().manual_seed(1)))
    down, across = height // 8, width // 8
    padded = F.pad(images, (across, across, down, down), mode="reflect")
    kinds = set()
    for i, image in enumerate(shifted):
        ways = [
            (y, x, flip)
            for y in range(2 * down + 1)
            for x in range(2 * across + 1)
            for flip in (False, True)
            for crop in [padded[i, :, y : y + height, x : x + width]]
            if torch.equal(image, crop.flip(2) if flip else crop)
        ]
        assert len(ways) == 1
        kinds.add(ways[0])
    assert len(kinds) > (20 if down > 1 else 1)  # each image its own


class Talkative(nn.Module):
    """A network that also puts out something else while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> object:
        out = self.head(x.mean((2, 3)))
        return (out, out) if self.training else out


def test_what_cannot_be_trained() -> None:
    data = coloured()
    with pytest.raises(InputError, match="nothing is left to train in Sequential"):
        finetune(tiny_net(), data, config=replace(TINY, frozen=("*",)))
    with pytest.raises(InputError, match="unknown module or pattern 'layer1'"):
        finetune(tiny_net(), data, config=replace(TINY, frozen=("layer1",)))
    with pytest.raises(InputError, match="labels go up to 4, but the model has 3 outputs"):
        finetune(tiny_net(), replace(data, train=replace(data.train, labels=data.train.labels + 2)), config=TINY)
    with pytest.raises(InputError, match=r"the loss became (nan|inf) in epoch \d; try a rate below 1e\+30"):
        finetune(tiny_net(), data, config=replace(TINY, rate=1e30))
    with pytest.raises(InputError, match=r"Talkative must put out \[n, classes\] to be trained, not tuple"):
        finetune(Talkative(), data, config=replace(TINY, frozen=()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"rate": 0.0}, "rate must be positive, not 0.0"),
        ({"rate": math.nan}, "rate must be positive, not nan"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1, not 1.0"),
        ({"momentum": -0.1}, "momentum must be at least 0 and below 1, not -0.1"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"test_images": -1}, "test_images must be at least 0, not -1"),
        ({"frozen": "layer1"}, r"frozen takes a sequence of globs, not the string 'layer1'; write \('layer1',\)"),
    ],
)
def test_recipes_that_cannot_be(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**given)  # type: ignore[arg-type]
