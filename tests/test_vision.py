from __future__ import annotations

import subprocess
import sys

import pytest

from repairability import MissingExtraError, _vision


def test_models_data_sets_and_transforms_import() -> None:
    for name in ("models", "datasets", "transforms.v2"):
        assert _vision.torchvision(name).__name__ == f"torchvision.{name}"


def test_without_torchvision_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="torchvision")

    monkeypatch.setattr(_vision, "_import", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'repairability\[vision\]'"):
        _vision.torchvision()


@pytest.mark.parametrize("error", [RuntimeError("another fault"), ModuleNotFoundError("no PIL", name="PIL")])
def test_other_faults_are_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(name: str) -> None:
        raise error

    monkeypatch.setattr(_vision, "_import", faulty)
    with pytest.raises(type(error), match=str(error)):
        _vision.torchvision()


def test_a_sound_installation_is_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vision, "_import", lambda name: name)
    monkeypatch.setattr(_vision, "_define_schemas", lambda: pytest.fail("schemas were defined"))
    assert _vision.torchvision("models") == "torchvision.models"


def test_a_mismatched_build_imports_in_a_fresh_process() -> None:
    code = "from repairability._vision import torchvision; print(torchvision('models').resnet18.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "resnet18"
