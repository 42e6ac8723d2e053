"""networks.toml and the command that makes what it names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from repairability import create_model
from repairability.errors import InputError
from reproduction.__main__ import main
from reproduction.book import studies
from reproduction.networks import make, read_networks, table

DIGITS = """
[[network]]
file = "given.pt"
model = "digits"
data = "digits"
about = "a copy"
given = "original.pt"
sha256 = "{digest}"

[[network]]
file = "trained.safetensors"
model = "digits"
data = "digits"
num_classes = 10
epochs = 1
about = "one epoch from the copy"
start = "given.pt"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save(create_model("digits").state_dict(), tmp_path / "original.pt")
    digest = hashlib.sha256((tmp_path / "original.pt").read_bytes()).hexdigest()[:16]
    (tmp_path / "networks.toml").write_text(DIGITS.format(digest=digest))
    return tmp_path / "networks.toml"


def test_networks_are_copied_and_trained_once(file: Path) -> None:
    """What a run left half done goes on; what is there stays. The folder need not be there."""
    given, here = file.parent, file.parent / "new" / "folder"
    lines = list(make(here, given, given, file=file))
    assert lines[0] == "given.pt: copied"
    assert lines[1].startswith("trained.safetensors: repairability finetune digits --weights ")
    curve = json.loads((here / "trained.json").read_text())["curve"]
    assert [epoch["epoch"] for epoch in curve] == [1]
    create_model("digits", weights=here / "trained.safetensors")
    trained = (here / "trained.safetensors").stat().st_mtime_ns
    assert list(make(here, given, given, ["trained.safetensors"], file)) == [
        "given.pt is there",
        "trained.safetensors is there",
    ]
    assert (here / "trained.safetensors").stat().st_mtime_ns == trained


def test_a_training_that_fails_says_that_it_goes_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: type("Ended", (), {"returncode": 1}))
    with pytest.raises(InputError, match="goes on from its last whole epoch"):
        list(make(file.parent, file.parent, file.parent, file=file))


def test_wrong_networks(file: Path) -> None:
    here, text = file.parent, file.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="unknown network 'other'"):
        list(make(here, here, here, ["other"], file))
    (here / "original.pt").write_bytes(b"something else")
    with pytest.raises(InputError, match="another file than networks.toml means"):
        list(make(here, here, here, file=file))
    (here / "original.pt").unlink()
    with pytest.raises(InputError, match="which is not there"):
        list(make(here, here, here, file=file))
    file.write_text(text.replace('start = "given.pt"', 'start = "give.pt"'), encoding="utf-8")
    with pytest.raises(InputError, match="did you mean given.pt"):
        read_networks(file)
    file.write_text(text.replace("about", "abuot"), encoding="utf-8")
    with pytest.raises(InputError, match="did you mean about"):
        read_networks(file)
    file.write_text("[[network", encoding="utf-8")
    with pytest.raises(InputError, match="is not TOML"):
        read_networks(file)


def test_every_network_that_has_records_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    networks = read_networks()
    for _, records in studies().given.values():
        for spec in (record.spec for record in records):
            network = networks[str(spec.weights)]
            assert (network.model, network.data, network.num_classes, network.image_size) == (
                (spec.model, spec.data, spec.num_classes, spec.image_size)
            )
            assert network.measured is not None
    waiting = [network for network in networks.values() if network.measured is None]
    assert [row[4] for row in table().rows].count("defined, not trained yet") == len(waiting)
    assert main(["networks", "nowhere", "--list"]) == 0
    assert "resnet50_cifar100.safetensors" in capsys.readouterr().out
    assert main(["networks", "nowhere", "--only", "x"]) == 2
    assert "unknown network 'x'" in capsys.readouterr().err
