"""The trained digits network in the user's cache: what is kept there is never believed unseen, nor needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from repairability import create_model, load_data
from repairability._files import write_sealed
from repairability._torch import state_digest
from repairability.data import Data
from repairability.errors import PlaceError
from repairability.training import digits, digits_network
from test_cli_images import run

trained: list[int] = []


@pytest.fixture(scope="module")
def data() -> Data:
    return load_data("digits")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is counted, and as good as any that depends on nothing but its seed."""
    trained.clear()

    def train_(model: nn.Module, data: Data, *, epochs: int, seed: int) -> None:
        trained.append(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5).add_(0.01 * (seed + 1))

    monkeypatch.setattr(digits, "train_", train_)


def kept(folder: Path) -> Path:
    (file,) = (file for file in folder.rglob("*") if file.is_file())
    return file


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def of_zero_weights(file: Path) -> None:
    """Whole as a file, and by its seal; not by its recipe."""
    write_sealed(file, save({key: 0 * value for key, value in create_model("digits").state_dict().items()}))


def half_fitting(file: Path) -> None:
    """Of the right recipe, and with weights that would be loaded in part."""
    state = {key: 0 * value for key, value in create_model("digits").state_dict().items() if "layer3" not in key}
    write_sealed(file, file.read_bytes()[32:64] + save(state))


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def unlinked(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda file: (file.unlink(), make(file))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "one byte": lambda file: file.write_bytes(b"x"),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "all but a byte": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a byte more": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "zeros": zeros,
    "a bit flipped": flipped,
    "text": lambda file: file.write_text("not a network", encoding="utf-8"),
    "plain weights of another": lambda file: file.write_bytes(save(create_model("digits", seed=9).state_dict())),
    "weights of zero": of_zero_weights,
    "weights that fit in part": half_fitting,
    "a folder": unlinked(Path.mkdir),
    "a pipe": unlinked(os.mkfifo),
    "a link to nowhere": unlinked(lambda file: file.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_anew(damage: str, data: Data, tmp_path: Path) -> None:
    whole = state_digest(digits_network(data, cache=tmp_path))
    DAMAGE[damage](kept(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error" if damage not in ("a folder", "a pipe") else "ignore")
        assert state_digest(digits_network(data, cache=tmp_path)) == whole
    assert trained == [0, 0]
    if damage not in ("a folder", "a pipe"):  # these are not ours to replace
        assert state_digest(digits_network(data, cache=tmp_path)) == whole
        assert trained == [0, 0]


def test_another_seeds_network_under_this_ones_name(data: Data, tmp_path: Path) -> None:
    first, other = (state_digest(digits_network(data, seed=seed, cache=tmp_path / str(seed))) for seed in (0, 1))
    assert first != other
    shutil.copy(kept(tmp_path / "1"), kept(tmp_path / "0"))
    assert state_digest(digits_network(data, seed=0, cache=tmp_path / "0")) == first
    assert trained == [0, 1, 0]


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(*_: Any) -> None:
        raise PlaceError("cannot write x: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(digits, "write_sealed", full)
        yield


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(nowhere))


def a_file_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.abspath(__file__))


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")  # where not even root makes a folder


PLACES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no home": no_home,
    "a file in the place of the folder": a_file_for_a_folder,
    "a folder that takes nothing": read_only,
}


@pytest.mark.parametrize("place", PLACES)
def test_where_nothing_can_be_kept(place: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = state_digest(digits_network(data, cache=tmp_path))
    PLACES[place](monkeypatch)
    with pytest.warns(UserWarning, match="the trained digits network is not kept for the next time: "):
        assert state_digest(digits_network(data)) == whole


def test_a_full_disk(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with full_disk(monkeypatch), pytest.warns(UserWarning, match="No space left on device"):
        assert digits_network(data, cache=tmp_path) is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", PLACES)
def test_a_verb_says_it_and_goes_on(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PLACES[place](monkeypatch)
    code, _, err = run(capsys, "evaluate", "digits", "--weights", "trained", "--data", "digits", "--limit", "8")
    assert (code, "Traceback" in err) == (0, False), err
    assert "note: the trained digits network is not kept" in err


def test_a_relative_cache_is_not_taken(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lie wherever one happens to be, as the XDG rules say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(Path, "home", staticmethod(lambda: tmp_path / "home"))
    digits_network(data)
    assert kept(tmp_path).parent == tmp_path / "home" / ".cache" / "repairability"


def test_a_user_without_a_home() -> None:
    """As in a container: no HOME, and a number that no list of users has."""
    if os.geteuid():
        pytest.skip("only root becomes a user that nobody knows")
    settings = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    script = (
        "from repairability.training.digits import cache_folder; import os; os.setuid(54321); print(cache_folder())"
    )
    done = subprocess.run([sys.executable, "-c", script], env=settings, capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr
