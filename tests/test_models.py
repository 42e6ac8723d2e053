from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from repairability import InputError, create_model, load_data
from repairability._vision import torchvision
from repairability.models import usual_input
from repairability.models.weights import load_weights_, read_state


def test_torchvision_names_and_classes() -> None:
    net = create_model("resnet18", num_classes=7)
    assert net.get_parameter("fc.weight").shape == (7, 512)
    assert not net.training


def test_random_weights_come_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a, b, c = (create_model("networks:small_net", seed=s).get_parameter("0.weight") for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_from_safetensors_and_torch_files(tmp_path: Path) -> None:
    source = create_model("networks:small_net", seed=3)
    plain, wrapped = tmp_path / "a.safetensors", tmp_path / "a.th"
    save_file(source.state_dict(), plain)
    torch.save({"state_dict": {f"module.{k}": v for k, v in source.state_dict().items()}, "epoch": 3}, wrapped)
    for file in (plain, wrapped):
        net = create_model("networks:small_net", weights=file)
        assert all(torch.equal(v, source.state_dict()[k]) for k, v in net.state_dict().items())


def test_the_real_cifar100_network_loads(shared: Path) -> None:
    file = shared / "data" / "checkpoints" / "resnet18_cifar100.safetensors"
    net = create_model("resnet18", num_classes=100, weights=file)
    stored = read_state(file)["layer1.0.conv1.weight"]
    assert torch.equal(net.get_parameter("layer1.0.conv1.weight"), stored.float())
    with pytest.raises(InputError, match=r"fc.\w+ is \(100.*is the number of classes right"):
        create_model("resnet18", num_classes=10, weights=file)


def test_a_new_head_for_other_classes(tmp_path: Path) -> None:
    """The body comes from the file, the head from the seed, and a notice says so; unasked it stays an error."""
    source, file = create_model("resnet20", num_classes=7, seed=3), tmp_path / "seven.safetensors"
    save_file(source.state_dict(), file)
    with pytest.raises(InputError, match=r"linear.\w+ is \(7.*is the number of classes right"):
        create_model("resnet20", num_classes=4, weights=file)
    with pytest.warns(UserWarning, match="the head linear in .*seven.* is for 7 classes; the model has 4, so its head"):
        net = create_model("resnet20", num_classes=4, weights=file, new_head=True, seed=5)
    random = create_model("resnet20", num_classes=4, seed=5).state_dict()
    for key, value in net.state_dict().items():
        assert torch.equal(value, (random if key.startswith("linear") else source.state_dict())[key])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting = create_model("resnet20", num_classes=7, weights=file, new_head=True)
    assert torch.equal(fitting.get_parameter("linear.bias"), source.get_parameter("linear.bias"))


def test_only_the_head_may_differ(tmp_path: Path) -> None:
    save_file(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 3)).state_dict(), tmp_path / "other.safetensors")
    for net in (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))):
        with pytest.raises(InputError, match=r"\d.\w+ is .* in the file and"):
            load_weights_(net, tmp_path / "other.safetensors", new_head=True)
    with pytest.raises(InputError, match="it has the unknown"):
        load_weights_(nn.Sequential(nn.Conv2d(3, 4, 1)), tmp_path / "other.safetensors", new_head=True)


def test_the_quarter_vgg_is_vgg16_at_a_quarter_of_its_width() -> None:
    net = create_model("vgg16_bn_quarter", num_classes=7)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    with torch.device("meta"):
        whole = create_model("vgg16_bn").get_submodule("features")
    ours = net.get_submodule("features")
    assert [type(x) for x in ours] == [type(x) for x in whole]
    widths = [
        (x.in_channels, x.out_channels, x.kernel_size, x.padding, x.bias is None)
        for x in ours
        if isinstance(x, nn.Conv2d)
    ]
    known = [
        (max(3, x.in_channels // 4), x.out_channels // 4, x.kernel_size, x.padding, x.bias is None)
        for x in whole
        if isinstance(x, nn.Conv2d)
    ]
    assert widths == known


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("evil_was_here"),))


def test_no_code_runs_from_a_weights_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.th").write_bytes(pickle.dumps(Evil()))
    torch.save({"state_dict": Evil()}, "evil2.th")
    for name in ("evil.th", "evil2.th"):
        with pytest.raises(InputError, match=f"cannot read weights from {name}"):
            create_model("networks:small_net", weights=name)
    assert not Path("evil_was_here").exists()


@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large"])
def test_a_network_without_weights_downloads_none_for_its_backbone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise AssertionError("there is no network here")

    monkeypatch.setattr(torchvision("models._api"), "load_state_dict_from_url", download)
    with torch.device("meta"):
        assert sum(p.numel() for p in create_model(name).parameters()) > 1_000_000


def test_which_images_a_network_usually_takes() -> None:
    assert load_data("digits").unlabeled(2, seed=0).shape[1:] == (1, 16, 16)
    known = {"digits": (1, 16), "resnet20": (3, 32), "resnet50_v1": (3, 224), "resnet50": (3, 224), "a:b": (3, 224)}
    assert {name: usual_input(name) for name in known} == known


def test_unreadable_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights file at"):
        create_model("networks:small_net", weights=tmp_path / "missing.th")
    for name in ("empty.th", "empty.safetensors", "noise.th", "noise.safetensors"):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"not weights at all" * 9)
        with pytest.raises(InputError, match=f"cannot read weights from .*{name}"):
            create_model("networks:small_net", weights=tmp_path / name)
    torch.save([1, 2], tmp_path / "list.th")
    with pytest.raises(InputError, match="holds no state dict"):
        create_model("networks:small_net", weights=tmp_path / "list.th")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"it lacks 0.bias, 0.weight, 2.bias and 5 more; it has the unknown x"):
        create_model("networks:small_net", weights=tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", r"unknown model 'resnet81'; did you mean .*resnet18"),
        ("no_such_package:net", "cannot import 'no_such_package'"),
        ("networks:smal_net", r"unknown name in networks 'smal_net'; did you mean small_net"),
        ("networks:not_callable", "is not callable"),
        ("networks:not_a_module", "returned int, not a torch.nn.Module"),
    ],
)
def test_unknown_models(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        create_model(name)


def test_classes_that_cannot_be() -> None:
    with pytest.raises(InputError, match="num_classes must be at least 1, not 0"):
        create_model("resnet18", num_classes=0)
    with pytest.raises(InputError, match="cannot build 'networks:linear_net' with {'num_classes': 3}"):
        create_model("networks:linear_net", num_classes=3)


def test_the_first_resnet50_has_its_stride_on_the_one_by_one() -> None:
    with torch.device("meta"):
        model = create_model("resnet50_v1", num_classes=7)
    assert model.get_submodule("layer3.0.conv1").stride == (2, 2)
    assert model.get_submodule("layer3.0.conv2").stride == (1, 1)
    assert model.get_submodule("layer1.0.conv1").stride == (1, 1)
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-3}
    assert model.get_submodule("fc").out_features == 7


def test_a_counter_of_another_shape_is_no_misfit(tmp_path: Path) -> None:
    """Files made by other programs hold BatchNorm's counter as a list of one."""
    model = create_model("resnet20")
    state = {k: v.reshape(1) if k.endswith("num_batches_tracked") else v for k, v in model.state_dict().items()}
    save_file(state, tmp_path / "made.safetensors")
    again = create_model("resnet20", weights=tmp_path / "made.safetensors", seed=1)
    assert torch.equal(again.get_parameter("conv1.weight"), model.get_parameter("conv1.weight"))


class Wrapping(nn.Module):
    """A submodule that is called as data-parallel training calls what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)
        self.other = nn.Linear(2, 2)


def test_a_part_that_is_called_as_a_wrapper_keeps_its_name(tmp_path: Path) -> None:
    model, again, file = Wrapping(), Wrapping(), tmp_path / "weights.safetensors"
    save_file(model.state_dict(), file)
    load_weights_(again, file)
    assert torch.equal(again.module.weight, model.module.weight)
    save_file({f"module.{name}": tensor for name, tensor in model.state_dict().items()}, file)
    again = Wrapping()
    load_weights_(again, file)
    assert torch.equal(again.module.weight, model.module.weight)
