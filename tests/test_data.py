from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

from repairability import InputError, load_data
from repairability.data import DATA_SETS, vision

RANDOM = np.random.default_rng(0)


def write_npz(path: Path, **changes: object) -> str:
    arrays = {
        "x_train": RANDOM.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8),
        "y_train": RANDOM.integers(0, 5, 40),
        "x_test": RANDOM.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8),
        "y_test": np.arange(20) % 5,
    }
    np.savez(path, **{name: value for name, value in {**arrays, **changes}.items() if value is not None})
    return f"npz:{path}"


def test_npz(tmp_path: Path) -> None:
    data = load_data(write_npz(tmp_path / "a.npz"))
    assert (data.classes, len(data.train), len(data.test)) == (5, 40, 20)
    batches = list(data.test.batches(size=8, limit=18))
    assert [len(y) for _, y in batches] == [8, 8, 2]
    raw = np.load(tmp_path / "a.npz")["x_test"][:8]
    expected = (torch.from_numpy(raw).float() / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    torch.testing.assert_close(batches[0][0], expected)


def test_channels_may_come_last_and_images_be_resized(tmp_path: Path) -> None:
    first = load_data(write_npz(tmp_path / "a.npz"))
    pixels = np.load(tmp_path / "a.npz")
    last = load_data(
        write_npz(
            tmp_path / "b.npz",
            **{x: pixels[x].transpose(0, 2, 3, 1) for x in ("x_train", "x_test")},
            y_test=pixels["y_test"],
        )
    )
    assert torch.equal(first.test.images([3]), last.test.images([3]))
    large = load_data(f"npz:{tmp_path / 'a.npz'}", image_size=16)
    assert large.train.images([0, 1]).shape == (2, 3, 16, 16)


@pytest.mark.parametrize(("height", "width"), [(8, 12), (12, 8), (12, 12)])
def test_images_become_square(height: int, width: int, tmp_path: Path) -> None:
    """Also where one side is as long already."""
    pixels = np.zeros((40, 3, height, width), dtype=np.uint8)
    data = load_data(write_npz(tmp_path / "a.npz", x_train=pixels), image_size=12)
    assert data.train.images([0, 1]).shape == (2, 3, 12, 12)


def test_calibration_images_are_drawn_by_seed_and_labels_unread(tmp_path: Path) -> None:
    data = load_data(write_npz(tmp_path / "a.npz"))
    assert torch.equal(data.unlabeled(10, 1), data.unlabeled(10, 1))
    assert not torch.equal(data.unlabeled(10, 1), data.unlabeled(10, 2))
    assert torch.equal(data.unlabeled(20, 1)[:10], data.unlabeled(10, 1))
    other = load_data(write_npz(tmp_path / "b.npz", y_train=np.zeros(40, dtype=int)))
    assert other.unlabeled(10, 1).shape == (10, 3, 8, 8)  # no label decides what is drawn
    with pytest.raises(InputError, match="has 40 training images, 41 were asked for"):
        data.unlabeled(41, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None, "y_test": None}, "lacks the arrays x_test, y_test; it has x_train, y_train"),
        ({"x_train": np.zeros((40, 3, 8, 8))}, r"x_train must be uint8 \[n, 3, h, w\], not float64"),
        ({"x_train": np.zeros((40, 5, 8, 8), dtype=np.uint8)}, "x_train must be uint8"),
        (
            {"x_train": np.zeros((0, 3, 8, 8), dtype=np.uint8), "y_train": np.zeros(0, dtype=int)},
            r"there are no images in x_train, whose shape is \(0, 3, 8, 8\)",
        ),
        ({"y_train": np.zeros(3, dtype=int)}, "y_train must be 40 integers"),
        ({"y_test": np.array(["a"] * 20, dtype=object)}, "y_test: .*might run code: it is not read"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_data(write_npz(tmp_path / "a.npz", **changes))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no npz file at"):
        load_data(f"npz:{tmp_path / 'no.npz'}")
    (tmp_path / "noise.npz").write_bytes(b"noise")
    with pytest.raises(InputError, match="cannot read"):
        load_data(f"npz:{tmp_path / 'noise.npz'}")


def folder_of_images(path: Path, test: str = "val") -> Path:
    for part in ("train", test):
        for number, name in enumerate(("cat", "dog")):
            (path / part / name).mkdir(parents=True)
            for i in range(3):
                pixels = np.full((30 + i, 40, 3), 60 * number + i, dtype=np.uint8)
                Image.fromarray(pixels).save(path / part / name / f"{i}.png")
    return path


@pytest.mark.parametrize("test", ["val", "test"])
def test_image_folders(test: str, tmp_path: Path) -> None:
    data = load_data(f"folder:{folder_of_images(tmp_path, test)}", image_size=24)
    assert (data.classes, len(data.train), len(data.test)) == (2, 6, 6)
    assert data.train.images([0, 5]).shape == (2, 3, 24, 24)
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_images_alone(tmp_path: Path) -> None:
    """Enough to prune; whoever asks for labels is told that there are none."""
    for i in range(6):
        Image.fromarray(np.full((30 + i, 40, 3), 20 * i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").touch()
    file = tmp_path / "a.npz"
    np.savez(file, x_train=np.zeros((6, 3, 24, 24), dtype=np.uint8))
    for name in (f"folder:{tmp_path}", f"npz:{file}"):
        data = load_data(name, image_size=24)
        assert (data.name, data.classes, len(data.train)) == (name, 0, 6)
        assert data.unlabeled(4, 0).shape == (4, 3, 24, 24)
        (images,) = data.test.image_batches()
        assert torch.equal(images, data.train.images(range(6)))
        assert not data.test.labeled
        with pytest.raises(InputError, match="these images have no labels"):
            list(data.test.batches())
    np.savez(file, x_train=np.zeros((6, 3, 24, 24), dtype=np.uint8), X_test=np.zeros(6))
    with pytest.raises(InputError, match="lacks the arrays y_train, x_test, y_test"):
        load_data(f"npz:{file}")
    folder_of_images(tmp_path / "cats")
    (tmp_path / "dogs").mkdir()
    (tmp_path / "0.png").rename(tmp_path / "dogs" / "0.png")
    with pytest.raises(InputError, match=r"holds images and folders of images \(dogs\)"):
        load_data(f"folder:{tmp_path}")
    with pytest.raises(InputError, match=r"lacks the arrays .*it has images \(x_train alone: images without labels\)"):
        np.savez(file, images=np.zeros(3))
        load_data(f"npz:{file}")


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder .*train; an image folder holds"):
        load_data(f"folder:{tmp_path}")
    folder = folder_of_images(tmp_path / "a")
    (folder / "val" / "fox").mkdir()
    with pytest.raises(InputError, match="has classes that .*train lacks: fox"):
        load_data(f"folder:{folder}")
    folder = folder_of_images(tmp_path / "b")
    (folder / "train" / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot read the image .*0.png"):
        load_data(f"folder:{folder}").train.images([0])


def test_digits() -> None:
    data = load_data("digits")
    assert (data.classes, len(data.train), len(data.test)) == (10, 1200, 597)
    images = data.train.images([0, 1, 2])
    assert images.shape == (3, 1, 16, 16)
    everything = torch.cat([data.train.images(range(1200)), data.test.images(range(597))])
    assert abs(float(everything.mean())) < 0.1
    assert float(everything.std()) == pytest.approx(1, abs=0.15)


def test_torchvision_data_from_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper on a stand-in with torchvision's own attributes."""

    class StandIn:
        def __init__(self, root: str, download: bool, train: bool) -> None:
            self.data = RANDOM.integers(0, 256, (30 if train else 10, 32, 32, 3), dtype=np.uint8)
            self.targets = [i % 10 for i in range(len(self.data))]

    monkeypatch.setattr(vision.torchvision("datasets"), "CIFAR10", StandIn)
    data = load_data("cifar10", root=tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (30, 10, 10)
    assert data.train.images([1]).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("name", list(DATA_SETS))
def test_offline_says_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    utils = vision.torchvision("datasets.utils")
    for module in (
        utils,
        *(vision.torchvision(f"datasets.{x}") for x in ("cifar", "stl10", "oxford_iiit_pet", "imagenette")),
    ):
        monkeypatch.setattr(module, "download_and_extract_archive", offline, raising=False)
    with pytest.raises(InputError, match=f"{name} is not in .* and could not be downloaded .*npz:PATH or folder:PATH"):
        load_data(name, root=tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'cifar'; did you mean .*cifar10"):
        load_data("cifar")


def test_a_fingerprint_is_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    first = write_npz(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    (tmp_path / "elsewhere").mkdir()
    again = write_npz(tmp_path / "elsewhere" / "b.npz", **arrays)
    assert load_data(first).fingerprint == load_data(again).fingerprint
    assert load_data(first, image_size=16).fingerprint != load_data(first).fingerprint
    for name in arrays:
        changed = arrays[name].copy()
        changed.flat[-1] = (int(changed.flat[-1]) + 1) % 5
        other = write_npz(tmp_path / "c.npz", **{**arrays, name: changed})
        assert load_data(other).fingerprint != load_data(first).fingerprint, name


def test_a_fingerprint_of_a_folder_sees_every_file(tmp_path: Path) -> None:
    first, second = (folder_of_images(tmp_path / x) for x in "ab")
    assert load_data(f"folder:{first}").fingerprint == load_data(f"folder:{second}").fingerprint
    Image.fromarray(np.zeros((30, 40, 3), dtype=np.uint8)).save(second / "val" / "dog" / "2.png")
    assert load_data(f"folder:{first}").fingerprint != load_data(f"folder:{second}").fingerprint


def test_a_fingerprint_of_torchvision_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_images(tmp_path / "files")

    class StandIn:
        def __init__(self, root: str, download: bool, split: str, size: str = "") -> None:
            part = "train" if split == "train" else "val"
            self._samples = [(str(file), 0) for file in sorted((folder / part).rglob("*.png"))]

        def __getitem__(self, i: int) -> tuple[Image.Image, int]:
            return Image.open(self._samples[i][0]), 0

    monkeypatch.setattr(vision.torchvision("datasets"), "Imagenette", StandIn)
    before = load_data("imagenette", root=tmp_path).fingerprint
    assert before == load_data("imagenette", root=tmp_path).fingerprint
    (folder / "train" / "cat" / "0.png").write_bytes((folder / "train" / "dog" / "2.png").read_bytes())
    assert load_data("imagenette", root=tmp_path).fingerprint != before
