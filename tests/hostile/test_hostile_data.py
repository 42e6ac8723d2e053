"""Weights and data that are not what they are called: refused by name; nothing hangs, nothing runs from them."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import repairability as rp
from conftest import apart
from networks import small_net
from repairability import CalibrationSet, InputError, create_model, load_data
from repairability.evaluation import Perplexity
from repairability.models.weights import read_state
from repairability.training import TrainConfig, finetune
from test_cli_images import run

IMAGES = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 10
NET = "networks:small_net"

BYTES: dict[str, bytes] = {
    "nothing": b"",
    "text": b"conv1.weight = 0.5\n" * 9,
    "a bracket": b"}",
    "a number": b"I99999999999999999999999\n.",
    "a stop": b".",
    "a mark": b"(",
    "a call": b"cos\nsystem\n(S'touch evil_was_here'\ntR.",
    "a string without end": b"S'abc",
    "a far memo": b"g99\n.",
    "a future protocol": b"\x80\xff.",
    "letters": bytes(range(256)),
    "zeros": b"\0" * 1000,
    "a pickle": pickle.dumps({"weight": 1}),
    "a zip": b"PK\x05\x06" + b"\0" * 18,
    "half a zip": b"PK\x03\x04" + b"x" * 50,
    "a header too long": (2**62).to_bytes(8, "little") + b"{}",
    "JSON": b'{"weight": [1, 2]}',
}


def one_sentence(code: int, out: str, err: str) -> None:
    assert (code, out) == (2, ""), err
    said = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert len(said) == 1, err
    assert said[0].startswith("error: ")
    assert len(err) < 2000
    assert "weights_only" not in err
    assert "allow_pickle" not in err


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_as_weights(
    kind: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(f"given{suffix}")
    file.write_bytes(BYTES[kind])
    one_sentence(*run(capsys, "layers", NET, "--weights", str(file)))
    assert os.listdir() == [str(file)]


TENSOR = torch.zeros(2)
STATES: dict[str, tuple[Any, str]] = {
    "numbers for names": ({0: TENSOR, 1: TENSOR}, "is called 0, which is no name"),
    "a tuple for a name": ({("a", 1): TENSOR}, "which is no name"),
    "nobody's name": ({None: TENSOR}, "which is no name"),
    "bytes for a name": ({b"a": TENSOR}, "which is no name"),
    "numbers in a wrapper": ({"state_dict": {3: TENSOR}}, "is called 3"),
    "numbers for tensors": ({"a": 1.0}, "holds no state dict"),
    "a list": ([TENSOR], "holds no state dict"),
    "an empty one": ({}, "holds no state dict"),
    "a tensor": (TENSOR, "holds no state dict"),
    "a sparse tensor": ({"0.weight": torch.zeros(8, 3).to_sparse()}, "holds no plain weights"),
    "an endless name": ({"x" * 10**6: TENSOR}, "... (1,000,000 characters)"),
    "many endless names": ({f"{i}" * 10**5: TENSOR for i in range(10, 40)}, "and 27 more"),
    "an empty name": ({"": TENSOR}, "does not fit"),
    "dots": ({"...": TENSOR}, "does not fit"),
}


@pytest.mark.parametrize("kind", STATES)
def test_state_dicts(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, message = STATES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of sparse tensors
        torch.save(state, tmp_path / "given.pt")
    code, out, err = run(capsys, "layers", NET, "--weights", str(tmp_path / "given.pt"))
    one_sentence(code, out, err)
    assert message in err


LONG = "n" * 5000
NAMES: dict[str, Callable[[], object]] = {
    "weights": lambda: read_state(LONG),
    "checkpoint": lambda: rp.load(LONG, small_net()),
    "npz": lambda: load_data(f"npz:{LONG}"),
    "folder": lambda: load_data(f"folder:{LONG}"),
    "data": lambda: load_data(LONG),
    "model": lambda: create_model(LONG),
    "module": lambda: create_model(f"{LONG}:net"),
    "rule": lambda: rp.allocate(small_net(), sparsity=0.5, rule=LONG),
    "recipe": lambda: rp.get_recipe(LONG),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_are_too_long(kind: str) -> None:
    with pytest.raises(InputError) as raised:
        NAMES[kind]()
    assert len(str(raised.value)) < 1500


@pytest.mark.parametrize("kind", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("reader", ["weights", "npz", "checkpoint"])
def test_what_is_no_file_is_not_read(kind: Callable[[Path], object], reader: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    kind(path)
    readers: dict[str, Callable[[], object]] = {
        "weights": lambda: read_state(path),
        "npz": lambda: load_data(f"npz:{path}"),
        "checkpoint": lambda: rp.load(path, small_net()),
    }
    error = apart(readers[reader])
    assert isinstance(error, InputError)
    assert "no " in str(error)


def arrays(**changes: Any) -> dict[str, Any]:
    given = {"x_train": np.zeros((20, 3, 8, 8), np.uint8), "y_train": np.arange(20) % 10}
    given |= {"x_test": np.zeros((10, 3, 8, 8), np.uint8), "y_test": np.arange(10)}
    return {**given, **changes}


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def header(text: str) -> bytes:
    """An npy file that says what it holds, and holds four bytes."""
    data = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data)) + data + b"1234"


MEMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "a label below 0": (arrays(y_train=np.arange(20) % 10 - 1), "y_train goes from -1 to 8"),
    "a label like damage": (arrays(y_test=np.arange(10) * 10**9), "labels count from 0, in at most 1,000,000"),
    "a label beyond 64 bits": (arrays(y_test=np.arange(10, dtype=np.uint64) + 2**63), "y_test goes from 9223372"),
    "labels with parts": (arrays(y_train=np.zeros(20)), "must be 20 integers"),
    "true and false": (arrays(y_train=np.zeros(20, bool)), "must be 20 integers"),
    "labels in rows": (arrays(y_train=np.zeros((20, 1), int)), "must be 20 integers"),
    "no labels": (arrays(y_train=np.zeros(0, int)), "must be 20 integers"),
    "no images": (
        arrays(x_train=np.zeros((0, 3, 8, 8), np.uint8), y_train=np.zeros(0, int)),
        "there are no images in x_train",
    ),
    "images without pixels": (arrays(x_train=np.zeros((20, 3, 0, 8), np.uint8)), "x_train must be uint8"),
    "images with parts": (arrays(x_train=np.zeros((20, 3, 8, 8))), "x_train must be uint8"),
    "objects": (arrays(y_test=np.array([{}] * 10, dtype=object)), "might run code: it is not read"),
    "a text": (arrays(x_test=b"not an array"), "x_test is no array"),
    "an endless array": (arrays(x_test=header("{'descr': '|u1', 'fortran_order': False, 'shape': (10**13,)}")), ""),
    "a bad header": (arrays(x_test=header("{'descr': __import__('os'), 'shape': (1,)}")), ""),
    "a short array": (arrays(x_test=header("{'descr': '|u1', 'fortran_order': False, 'shape': (999,), }")), ""),
    "a future format": (arrays(x_test=b"\x93NUMPY\x09\x00" + b"\0" * 20), ""),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_npz_members(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members, message = MEMBERS[kind]
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name, content in members.items():
            given = content if isinstance(content, bytes) else npy(content)
            file.writestr(name if given == b"not an array" else f"{name}.npy", given)
    code, out, err = run(capsys, "evaluate", NET, "--data", f"npz:{tmp_path}/a.npz")
    one_sentence(code, out, err)
    assert message in err
    assert "a.npz" in err


@pytest.mark.parametrize("kind", [*BYTES, "one array"])
def test_bytes_as_npz(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(npy(np.zeros(3)) if kind == "one array" else BYTES[kind])
    with pytest.raises(InputError, match="a.npz"):
        load_data(f"npz:{tmp_path}/a.npz")


def bomb() -> bytes:
    """A PNG that says it is of 60,000 x 60,000 pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    end = struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + end


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere.png"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "nothing": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"not an image"),
    "half an image": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    "a bomb": lambda path: path.write_bytes(bomb()),
}


@pytest.mark.parametrize("use", ["images", "fingerprint"])
@pytest.mark.parametrize("kind", ODD)
def test_image_folders(kind: str, use: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for part in ("train", "test"):
        (tmp_path / part / "class").mkdir(parents=True)
        ODD[kind](tmp_path / part / "class" / "odd.png")

    def read() -> object:
        data = load_data(f"folder:{tmp_path}")
        return data.fingerprint if use == "fingerprint" else data.unlabeled(1, 0)

    error = apart(read)
    if use == "fingerprint" and kind in ("nothing", "text", "half an image", "a bomb"):
        assert error is None  # of bytes, whatever they show
    else:
        assert isinstance(error, InputError), error
        assert "cannot read the image" in str(error)
        assert "odd.png" in str(error)


def empties() -> Iterator[Any]:
    return itertools.repeat(torch.zeros(0, 3, 8, 8))


def labeled() -> Iterator[Any]:
    return itertools.repeat((torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)))


ENDLESS: dict[str, Callable[[], object]] = {
    "prune": lambda: rp.prune(small_net(), empties(), sparsity=0.5),
    "prune, labeled": lambda: rp.prune(small_net(), labeled(), sparsity=0.5),
    "prune, mappings": lambda: rp.prune(small_net(), ({"input": x} for x in empties()), sparsity=0.5),
    "prune_best": lambda: rp.prune_best(small_net(), empties(), sparsity=0.5),
    "prune_many": lambda: list(rp.prune_many(small_net(), empties(), sparsities=[0.5])),
    "diagnose": lambda: rp.diagnose(small_net(), empties()),
    "find_transition": lambda: rp.find_transition(small_net(), empties()),
    "calibration": lambda: CalibrationSet.read(empties()),
    "calibration by seed": lambda: CalibrationSet.read(empties(), seed=1),
    "evaluate": lambda: rp.evaluate(small_net(), labeled()),
    "evaluate by a metric": lambda: rp.evaluate(small_net(), labeled(), metric=lambda pairs: {"n": len(list(pairs))}),
    "agreement": lambda: rp.agreement(small_net(), small_net(), empties()),
    "some at first": lambda: CalibrationSet.read(itertools.chain([IMAGES], empties())),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_nothing(kind: str) -> None:
    error = apart(ENDLESS[kind])
    assert isinstance(error, InputError), error
    assert "100 batches one after the other hold no sample" in str(error)


def test_a_few_empty_batches_are_none() -> None:
    batches = [torch.zeros(0, 3, 8, 8), IMAGES[:20], torch.zeros(0, 3, 8, 8), IMAGES[20:]]
    given = CalibrationSet.read(itertools.chain.from_iterable([batch] * 1 for batch in batches), count=40)
    assert len(given) == 40
    pairs = [(batch, LABELS[: len(batch)]) for batch in batches]
    assert rp.evaluate(small_net(), pairs).n == 40


PIXELS = IMAGES.mul(40).add(100).clamp(0, 255).to(torch.uint8)
RAW: dict[str, Callable[[], object]] = {
    "prune": lambda: rp.prune(small_net(), PIXELS, sparsity=0.5),
    "prune, batches": lambda: rp.prune(small_net(), PIXELS.split(8), sparsity=0.5),
    "prune, labeled": lambda: rp.prune(small_net(), [(PIXELS, LABELS)], sparsity=0.5),
    "prune, arrays": lambda: rp.prune(small_net(), PIXELS.numpy(), sparsity=0.5),
    "prune_best": lambda: rp.prune_best(small_net(), PIXELS, sparsity=0.5),
    "diagnose": lambda: rp.diagnose(small_net(), PIXELS),
    "find_transition": lambda: rp.find_transition(small_net(), PIXELS),
    "calibration": lambda: CalibrationSet(PIXELS),
    "evaluate": lambda: rp.evaluate(small_net(), [(PIXELS, LABELS)]),
    "agreement": lambda: rp.agreement(small_net(), small_net(), [PIXELS]),
    "agreement, one batch": lambda: rp.agreement(small_net(), small_net(), PIXELS),
    "doctor": lambda: rp.doctor(small_net(), PIXELS[:4]),
    "layers": lambda: rp.prunable_layers(small_net(), batch=PIXELS[:4]),
    "compact": lambda: rp.compact(small_net(), PIXELS[:4]),
    "accelerate": lambda: rp.accelerate(small_net(), PIXELS[:4]),
    "accelerated": lambda: rp.accelerate(small_net(), IMAGES[:1], threads=1)(PIXELS[:1]),
    "export": lambda: rp.export_onnx(small_net(), PIXELS[:4], "never.onnx"),
    "export, checked": lambda: rp.export_onnx(small_net(), IMAGES[:4], "never.onnx", check=PIXELS),
}


class Scaling(nn.Module):
    """It would take pixels as files hold them, and scale them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.float() / 255)
        return out


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", RAW)
def test_pixels_as_files_hold_them_are_refused_everywhere(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra, package in (("accelerate", "numba"), ("export", "onnx")):
        if kind.startswith(extra):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="images must be floating point, normalised as the model wants them"):
        RAW[kind]()
    assert os.listdir() == []


def test_a_model_that_scales_is_no_exception_and_a_forward_is() -> None:
    with pytest.raises(InputError, match="images must be floating point"):
        rp.evaluate(Scaling(), [(PIXELS, LABELS)])

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = model(batch)
        return out

    found = rp.evaluate(Scaling(), [(PIXELS, LABELS)], forward=forward)
    assert found.n == len(CalibrationSet(PIXELS, count=40, forward=forward)) == 40


WRONG: dict[str, tuple[Tensor, str]] = {
    "below 0": (LABELS - 1, "labels count from 0; one is -1"),
    "what others leave out": (torch.full((40,), -100), "labels count from 0; one is -100"),
    "beyond": (LABELS + 1, "labels go up to 10, but the model has 10 outputs"),
    "far beyond": (LABELS + 2**62, "labels go up to 4611686018427387913"),
    "parts": (LABELS.float(), "labels must be 40 whole numbers"),
    "nan": (torch.full((40,), torch.nan), "labels must be 40 whole numbers"),
    "true and false": (LABELS > 4, "labels must be 40 whole numbers"),
    "rows": (LABELS[:, None], "labels must be 40 whole numbers"),
    "shares": (torch.eye(10)[LABELS], "labels must be 40 whole numbers"),
    "too few": (LABELS[:39], "labels must be 40 whole numbers"),
    "one": (torch.tensor(3), "labels must be 40 whole numbers"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_labels(kind: str) -> None:
    labels, message = WRONG[kind]
    with pytest.raises(InputError, match=message):
        rp.evaluate(small_net(), [(IMAGES, labels)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    wanted, found = (rp.evaluate(create_model(NET), [(IMAGES, labels)]) for labels in (LABELS, LABELS.to(dtype)))
    assert (wanted.top1, wanted.loss) == (found.top1, found.loss)


@pytest.mark.parametrize("labels", [LABELS - 1, LABELS + 5], ids=["below 0", "beyond"])
def test_nothing_is_trained_on_other_labels(labels: Tensor) -> None:
    data = load_data("random:10")
    odd = replace(data, train=replace(data.train, labels=labels.repeat(7)[: len(data.train)]))
    with pytest.raises(InputError, match="labels "):
        finetune(small_net(), odd, config=TrainConfig(epochs=1, frozen=(), test_images=0))


@pytest.mark.parametrize("token", [-1, 7, 10**9])
def test_token_ids(token: int) -> None:
    pairs = [(torch.zeros(1, 4, 7), torch.tensor([[0, -100, 6, token]]))]
    with pytest.raises(InputError, match="token ids must be between 0 and 6, or -100"):
        Perplexity()(pairs)
