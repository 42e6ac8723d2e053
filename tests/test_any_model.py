"""What users happen to have: their batches, their wrappers, their tied weights, two threads at once."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import UserDict
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune as masks

import repairability as rp
from networks import Residual, small_net
from repairability.network.batches import PROBE
from test_sacred import complete_state, same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

WORDS = 40
FEW = rp.PruneConfig(count=16, batch_size=16)
IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, WORDS, (16, 6), generator=torch.Generator().manual_seed(1))
RECIPES: list[dict[str, Any]] = [
    {"rule": "rr", "score": "magnitude", "repair": "cr+bn"},
    {"rule": "erk", "score": "second_order", "repair": "reconstruct-all"},
    {"rule": "lamp", "score": "activation", "repair": "affine"},
]


class Language(nn.Module):
    """Embedding, two linear layers, a head that may be the embedding's own weight; masked words count as nothing."""

    def __init__(self, *, tied: bool = True, words: int = WORDS, width: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embedding(input_ids)
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        return {"logits": self.head(x + self.down(self.up(x).relu()))}


def built(make: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return make()


@pytest.mark.parametrize("recipe", RECIPES)
def test_tied_embeddings_are_untouched(recipe: dict[str, Any]) -> None:
    model = built(Language)
    with pytest.warns(UserWarning, match="'head' of Language is not pruned: its weight is also held by embedding"):
        layers = rp.prunable_layers(model, skip=())
    assert layers.names == ("up", "down")
    result = rp.prune(model, IDS, sparsity=0.8, config=rp.PruneConfig(count=16, skip=()), **recipe)
    assert torch.equal(result.model.embedding.weight, model.embedding.weight)
    assert result.model.head.weight is result.model.embedding.weight
    assert any("head is not pruned" in note for note in result.notes)


def test_a_tied_weight_is_pruned_where_it_is_named() -> None:
    model = built(Language)
    assert rp.prunable_layers(model, types=("linear",), skip=(), only=("head",)).names == ("head",)


def test_a_weight_used_as_an_embedding_and_as_a_head_by_a_function_is_left_alone() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.randn(WORDS, 8))
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.second(self.first(F.embedding(ids, self.words)).relu())
            return F.linear(x, self.words)

    layers = rp.prunable_layers(built(Functional), batch=IDS, skip=())
    assert layers.names == ("first", "second")
    assert "embedding" in layers.left_out["words"]


def test_ids_in_bfloat16_stay_what_they_are() -> None:
    class Seen(Language):
        ids: ClassVar[list[Tensor]] = []

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
            Seen.ids.append(input_ids)
            return super().forward(input_ids, attention_mask)

    ids = torch.tensor([[257, 1001, 30001]]).repeat(16, 1)
    model = built(lambda: Seen(tied=False, words=30002)).bfloat16()
    result = rp.prune(model, {"input_ids": ids}, sparsity=0.5, recipe="paper", config=FEW)
    assert Seen.ids
    assert all(torch.equal(x.unique(), ids.unique()) and x.dtype == torch.int64 for x in Seen.ids)
    assert result.model.up.weight.dtype == torch.bfloat16


class Encoding(UserDict[str, Tensor]):
    """As transformers' BatchEncoding: a mapping, and no dict."""


@pytest.mark.parametrize("kind", [dict, Encoding])
@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_a_mapping_goes_in_by_name_whatever_comes_first(kind: Any, recipe: dict[str, Any]) -> None:
    model, mask = built(Language), torch.ones_like(IDS)
    mask[:, 4:] = 0
    results = [
        rp.prune(model, kind(batch), sparsity=0.8, config=FEW, **recipe)
        for batch in (
            {"attention_mask": mask, "input_ids": IDS, "labels": IDS},
            {"input_ids": IDS, "attention_mask": mask},
            {"input_ids": IDS},
        )
    ]
    weights = [result.model.state_dict() for result in results]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])  # the mask does count


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 6), nn.Linear(7, 6)
        self.middle, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = self.middle((self.left(x) + self.right(y)).relu())
        return self.head(z.relu()), z


def test_a_second_input_is_not_dropped_and_labels_are() -> None:
    model = built(Two)
    x, y, labels = torch.randn(32, 5), torch.randn(32, 7), torch.randint(0, 3, (32,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y, labels), batch_size=8)
    first = rp.prune(model, loader, sparsity=0.5, recipe="paper", config=FEW)
    second = rp.prune(model, (x, y), sparsity=0.5, recipe="paper", config=FEW)
    assert first.fingerprint == second.fingerprint
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert rp.agreement(model, first.model, loader).distance == "kl"


def test_a_list_of_images_is_many_images() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.head = nn.Linear(4, 2)

        def forward(self, images: list[Tensor]) -> list[Tensor]:
            assert isinstance(images, list)
            return [self.head(self.body(self.stem(x[None]).relu()).mean((2, 3))) for x in images]

    images = [torch.randn(3, 8 + i % 3, 9) for i in range(20)]
    loader = [images[i : i + 5] for i in range(0, 20, 5)]
    calibration = rp.CalibrationSet.read(loader, count=16)
    assert len(calibration) == 20
    result = rp.prune(built(Detector), calibration, sparsity=0.5, rule="erk", score="magnitude", repair="cr")
    assert int((result.model.body.weight == 0).sum()) == result.allocation.pruned_total


def test_a_forward_of_ones_own() -> None:
    model = built(Two)
    batch = {"left": torch.randn(16, 5), "right": torch.randn(16, 7)}

    def forward(network: nn.Module, batch: dict[str, Tensor]) -> Any:
        return network(batch["left"], batch["right"])[0]

    result = rp.prune(model, batch, sparsity=0.5, recipe="paper", forward=forward, config=FEW)
    plain = rp.prune(model, (batch["left"], batch["right"]), sparsity=0.5, recipe="paper", config=FEW)
    assert torch.equal(result.model.middle.weight, plain.model.middle.weight)
    assert rp.agreement(model, result.model, [batch], forward=forward).n == 16
    assert rp.diagnose(model, rp.CalibrationSet.read(batch, count=16, forward=forward)).images == 16


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda x: torch.compile(x, backend="eager"), torch.fx.symbolic_trace]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_wrapped_networks_are_pruned_as_what_they_wrap(wrap: Any, recipe: dict[str, Any]) -> None:
    plain = built(Residual).eval()
    wrapped = wrap(copy.deepcopy(plain))
    mine = rp.prune(plain, IMAGES, sparsity=0.6, config=FEW, **recipe)
    theirs = rp.prune(wrapped, IMAGES, sparsity=0.6, config=FEW, **recipe)
    assert dict(mine.allocation) == dict(theirs.allocation)
    for name, value in mine.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[name]), name


def test_what_is_no_network_is_refused_in_a_sentence() -> None:
    scripted = torch.jit.trace(small_net().eval(), IMAGES[:1])
    with pytest.raises(rp.InputError, match="TorchScript"):
        rp.prune(scripted, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    exported = torch.export.export(small_net().eval(), (IMAGES[:1],))
    with pytest.raises(rp.InputError, match="exported program"):
        rp.prune(exported, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    with torch.device("meta"):
        meta = small_net()
    with pytest.raises(rp.InputError, match="meta device"):
        rp.prune(meta, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    with pytest.raises(rp.InputError, match="not an ordinary parameter|nothing is left to prune"):
        rp.prunable_layers(nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 4)), types=("linear",))


def test_masks_of_torch_are_taken_over() -> None:
    model = built(small_net)
    masks.l1_unstructured(model[2], "weight", 0.5)
    before = complete_state(model)
    with pytest.warns(UserWarning, match="masks of torch.nn.utils.prune on 2 are taken over"):
        result = rp.prune(model, IMAGES, sparsity=0.8, recipe="paper", rule="uniform", config=FEW)
    assert same(complete_state(model), before)
    assert isinstance(result.model[2].weight, nn.Parameter)
    assert not bool(result.model[2].weight[model[2].weight == 0].any())
    assert int((result.model[2].weight == 0).sum()) == result.allocation.pruned("2")


class Restless(nn.Module):
    """A forward that counts, rebinds a buffer and keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 2)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.calls = 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        self.calls += 1
        self.last = x
        return self.head(self.norm(self.body(self.stem(x).relu())).mean((2, 3)) * self.wide)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_restless_forward_leaves_no_trace(recipe: dict[str, Any]) -> None:
    model = built(Restless)
    buffer = model.seen
    result = rp.prune(model, IMAGES, sparsity=0.5, config=FEW, **recipe)
    rp.agreement(model, result.model, [IMAGES])
    assert model.seen is buffer
    assert model.calls == 0
    assert model.last is None
    assert float(model.seen) == float(result.model.seen) == 0
    assert model.training


def test_inference_tensors() -> None:
    with torch.inference_mode():
        model = built(Residual)
    result = rp.prune(model, IMAGES, sparsity=0.5, config=FEW, **RECIPES[1])
    assert not result.model.conv2.weight.is_inference()


def test_autocast_is_off_inside() -> None:
    model = built(Residual)
    plain = rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **RECIPES[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **RECIPES[1])
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), inside.model.parameters(), strict=True))


def test_two_threads_prune_one_model_as_one_after_the_other() -> None:
    model = built(Residual)
    before, random_state = complete_state(model), torch.get_rng_state()
    alone = [rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **recipe).model.state_dict() for recipe in RECIPES]
    together: list[list[dict[str, Tensor]]] = [[] for _ in RECIPES]
    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(2):
                result = rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **RECIPES[i])
                together[i].append(result.model.state_dict())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % len(RECIPES),)) for i in range(2 * len(RECIPES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for expected, given in zip(alone, together, strict=True):
        assert len(given) == 4
        assert all(torch.equal(expected[name], state[name]) for state in given for name in expected)
    assert same(complete_state(model), before)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_any_exception_of_a_forward_names_model_and_batch() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("pixels")

    with pytest.raises(
        rp.InputError, match=rf"Failing does not take a batch of shape \({PROBE}, 3, 8, 8\).*KeyError: 'pixels'"
    ):
        rp.prune(Failing(), IMAGES, sparsity=0.5, recipe="paper", config=FEW)


class Routed(nn.Module):
    """Each sample goes to one of three experts, by a router whose input the pruned layers change."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.body(x).relu()
        way, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if bool((way == i).any()):
                out[way == i] = expert(x[way == i])
        return self.head(out)


@pytest.mark.parametrize("recipe", [*RECIPES, {"rule": "residual", "score": "magnitude", "repair": "reconstruct"}])
@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_whose_routing_moves_does_not_crash(recipe: dict[str, Any], seed: int) -> None:
    model = built(Routed, seed)
    samples = torch.randn(48, 8, generator=torch.Generator().manual_seed(seed))
    config = rp.PruneConfig(count=24, batch_size=8)
    result = rp.prune(model, samples, sparsity=0.8, config=config, **recipe)
    for name in result.allocation:
        zeros = int((result.model.get_parameter(f"{name}.weight") == 0).sum())
        assert zeros == result.allocation.pruned(name)


class Auxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)
        self.aside = nn.Conv2d(4, 8, 3)
        self.head, self.aside_head = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x).relu()
        out = self.head(self.body(x).mean((2, 3)))
        return (out, self.aside_head(self.aside(x).mean((2, 3)))) if self.training else out


@pytest.mark.parametrize(
    "recipe",
    [*RECIPES, {"recipe": "paper", "rule": "uniform", "repair": "none"}, {"recipe": "paper", "rule": "global"}],
)
def test_heads_that_are_not_reached_are_left_out_by_all_alike(recipe: dict[str, Any]) -> None:
    model = built(Auxiliary)
    with pytest.warns(UserWarning, match="'aside' of Auxiliary is not pruned: the model never reaches it"):
        result = rp.prune(model, IMAGES, sparsity=0.5, config=FEW, **recipe)
    assert set(result.allocation) == {"body"}
    assert torch.equal(result.model.aside.weight, model.aside.weight)


def test_a_weight_that_is_standardised_first_is_left_out_by_name() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return F.conv2d(x, weight, self.bias, self.stride, self.padding)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Standardised(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    with pytest.warns(
        UserWarning, match=r"'1' of Sequential is not pruned: the model does not multiply by it as it is"
    ):
        layers = rp.prunable_layers(model, batch=IMAGES)
    assert layers.names == ("2",)


def test_what_a_repair_does_is_stated() -> None:
    plain = built(small_net)
    result = rp.prune(plain, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    assert tuple(x for x in result.notes if "was asked for" not in x)[:2] == (
        "cr scales the filters of 2 layers",
        "bn does nothing here: no BatchNorm with running statistics",
    )
    assert "bn does nothing here" in str(result)
    assert result.to_dict()["notes"] == list(result.notes)
    norms = nn.Sequential(
        *list(built(small_net))[:2], nn.BatchNorm2d(8), nn.GroupNorm(2, 8), *list(built(small_net))[2:]
    )
    assert "recalibrates 1 BatchNorm layers (1 GroupNorm left as they are)" in str(
        rp.prune(norms, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    )


def test_coverage_is_said_and_a_small_one_warned_of() -> None:
    wide = nn.Sequential(*list(built(small_net))[:-1], nn.Linear(16, 400), nn.ReLU(), nn.Linear(400, 10))
    with pytest.warns(UserWarning, match=r'only .* % of the parameters .*; types=\("conv", "linear"\) would make it'):
        convolutions = rp.prunable_layers(wide, types=("conv",))
    chosen = rp.prunable_layers(wide)
    assert convolutions.names == ("2", "4")
    assert chosen.names == ("2", "4", "7")
    assert chosen.coverage is not None
    assert f"{100 * chosen.coverage:.2f} % of all" in str(chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = rp.prune(wide, IMAGES, sparsity=0.5, recipe="paper", rule="erk", config=FEW)
    assert f"{100 * chosen.coverage:.2f} % of all parameters might be pruned" in str(result)


@pytest.mark.parametrize(
    ("name", "conv_alone", "covered"), [("alexnet", 0.04, 0.9), ("vgg16_bn", 0.11, 0.9), ("convnext_tiny", 0.066, 0.9)]
)
def test_at_real_size_auto_covers_what_convolutions_do_not(name: str, conv_alone: float, covered: float) -> None:
    from repairability._vision import torchvision

    with torch.device("meta"):
        model = torchvision("models").get_model(name)
    alone = rp.prunable_layers(model, types=("conv",), skip=("@first",)).coverage
    both = rp.prunable_layers(model).coverage
    assert alone is not None
    assert both is not None
    assert alone == pytest.approx(conv_alone, rel=0.12)
    assert both > covered


def test_two_regressors_do_not_agree_by_being_of_one_column() -> None:
    one, other = (built(lambda: nn.Sequential(nn.Linear(4, 1)), seed) for seed in range(2))
    found = rp.agreement(one, other, [torch.randn(64, 4)])
    assert found.distance == "error"
    assert found.same is None
    assert found.logit_error > 0.1
    with pytest.raises(rp.InputError, match="KL needs the logits of two classes or more"):
        rp.agreement(one, other, [torch.randn(64, 4)], distance="kl")


def test_a_choice_without_labels_takes_any_output() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
    config = rp.PruneConfig(count=32, batch_size=32, types=("linear",))
    result = rp.prune_best(model, torch.randn(400, 6), sparsity=0.5, config=config)
    assert {trial.distance for trial in result.trials if trial.kl is not None} == {"error"}
    assert "relative error" in str(result.trials_table())


class Versioned(nn.Module):
    """Reads a state of another version otherwise, and has a state that is no tensor."""

    _version = 3

    def __init__(self, extra: object = None) -> None:
        super().__init__()
        self.net = small_net()
        self.extra = {"steps": 7, "names": ["a"]} if extra is None else extra
        self.loaded: object = None

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def get_extra_state(self) -> object:
        return self.extra

    def set_extra_state(self, state: object) -> None:
        self.loaded = state

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        assert metadata.get("version") == 3
        super()._load_from_state_dict(state, prefix, metadata, *others)


def test_versioned_and_extra_state_survive_a_round_trip(tmp_path: Any) -> None:
    result = rp.prune(built(Versioned), IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    result.save(tmp_path / "pruned.safetensors")
    again = rp.load(tmp_path / "pruned.safetensors", Versioned()).model
    assert again.loaded == {"steps": 7, "names": ["a"]}
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), result.model.parameters(), strict=True))


def test_state_that_no_file_holds_is_refused_by_name(tmp_path: Any) -> None:
    result = rp.prune(built(lambda: Versioned(extra={1, 2})), IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    with pytest.raises(rp.InputError, match="_extra_state is a set, which neither safetensors nor JSON holds"):
        result.save(tmp_path / "pruned.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda x: torch.compile(x, backend="eager")])
def test_files_and_wrappers_go_together(wrap: Any, tmp_path: Any) -> None:
    plain = built(Residual)
    result = rp.prune(wrap(copy.deepcopy(plain)), IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    result.save(tmp_path / "pruned.safetensors")
    for model in (plain, wrap(copy.deepcopy(plain))):
        again = rp.load(tmp_path / "pruned.safetensors", model).model
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), result.model.parameters(), strict=True))
    torch.save(wrap(copy.deepcopy(plain)).state_dict(), tmp_path / "wrapped.pt")
    loaded = rp.create_model("networks:Residual", weights=tmp_path / "wrapped.pt")
    assert torch.equal(loaded.conv2.weight, plain.conv2.weight)


def test_a_network_is_found_in_definition_order_with_its_experts() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 6)
            self.w = nn.Parameter(torch.randn(3, 6, 5))
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            return self.head(torch.bmm(x.expand(3, *x.shape), self.w).mean(0))

    model, x = built(Experts), torch.randn(32, 6)
    layers = rp.prunable_layers(model, batch=x)
    assert layers.names == ("body", "w.0", "w.1", "w.2")
    for recipe in RECIPES:
        result = rp.prune(model, x, sparsity=0.5, config=FEW, **recipe)
        zeros = [int((result.model.w[i] == 0).sum()) for i in range(3)]
        assert zeros == [result.allocation.pruned(f"w.{i}") for i in range(3)]
    plan = rp.allocate(layers, sparsity=0.5, rule="uniform")
    given = rp.prune(model, x, recipe="paper", rule=plan, config=FEW)
    assert int((given.model.w == 0).sum()) == sum(plan.pruned(f"w.{i}") for i in range(3))


def test_a_lazy_layer_that_nobody_prunes_does_not_matter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.LazyLinear(3))
    result = rp.prune(model, IMAGES, sparsity=0.5, recipe="paper", config=FEW)
    assert set(result.allocation) == {"1"}
    assert isinstance(model[3].weight, nn.parameter.UninitializedParameter)
    assert rp.doctor(model, IMAGES[:4]).layers == 1
    with pytest.raises(rp.InputError, match="'3' is not an ordinary parameter"):
        rp.prunable_layers(model, types=("linear",), skip=())


def test_arrays_and_wrong_names() -> None:
    model = built(Residual)
    arrays, tensors = (rp.prune(model, x, sparsity=0.5, recipe="paper", config=FEW) for x in (IMAGES.numpy(), IMAGES))
    assert arrays.fingerprint == tensors.fingerprint
    with pytest.raises(rp.InputError, match="Residual takes x; the batch has pixels"):
        rp.prune(model, {"pixels": IMAGES}, sparsity=0.5, recipe="paper", config=FEW)


@pytest.mark.parametrize("recipe", RECIPES)
def test_inside_inference_mode(recipe: dict[str, Any]) -> None:
    model = built(Residual)
    plain = rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **recipe)
    with torch.inference_mode():
        inside = rp.prune(model, IMAGES, sparsity=0.6, config=FEW, **recipe)
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), inside.model.parameters(), strict=True))
    assert not any(parameter.is_inference() for parameter in inside.model.parameters())


def small_norms() -> nn.Module:
    body = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6))
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def test_synchronised_norms_are_recalibrated_as_any_other() -> None:
    plain = built(small_norms)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    one, other = (rp.prune(model, IMAGES, sparsity=0.5, recipe="paper", config=FEW) for model in (plain, synchronised))
    assert "bn recalibrates 2 BatchNorm layers" in other.notes
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


def test_distributed_data_parallel_is_unwrapped() -> None:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    plain = built(small_norms)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
        one, other = (rp.prune(model, IMAGES, sparsity=0.5, recipe="paper", config=FEW) for model in (plain, wrapped))
    finally:
        distributed.destroy_process_group()
    assert dict(one.allocation) == dict(other.allocation)
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
