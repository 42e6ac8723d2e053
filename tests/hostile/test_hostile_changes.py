"""Files that change under a running program: what is recorded is of the bytes that were loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from repairability import create_model, load_data, prune
from repairability.checkpoints import load
from repairability.checkpoints.content import read_content
from repairability.errors import PlaceError, of_the_place
from repairability.experiments import Files, Record, read_study, run_job, sweep
from repairability.experiments import shared as shared_module
from repairability.experiments.spec import Job
from repairability.experiments.store import Store

STUDY = """
[base]
model = "networks:small_net"
weights = "net.safetensors"
data = "npz:images.npz"
repair = "none"
rule = "erk"
count = 8
test_images = 8
"""


def write_weights(folder: Path, seed: int) -> None:
    """Of the same names and the same length, whatever the seed."""
    save_file(create_model("networks:small_net", seed=seed).state_dict(), folder / "net.safetensors")


def write_images(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = random.integers(0, 256, (16, 3, 8, 8), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(16) % 10
    np.savez(folder / "images.npz", **arrays)


CHANGES: dict[str, Callable[[Path, int], None]] = {"weights": write_weights, "data": write_images}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(STUDY, encoding="utf-8")
    for write in CHANGES.values():
        write(tmp_path, 0)
    return tmp_path


def job_of(place: Path) -> Job:
    (job,) = Files([place]).jobs(read_study(place / "s.toml").specs, place / "runs")
    return job


def ran(job: Job) -> Record:
    outcome = run_job(job.to_dict())
    assert isinstance(outcome, dict), outcome
    return Record.from_dict(outcome)


@pytest.mark.parametrize("what", CHANGES)
def test_changed_between_two_sweeps_of_one_process(what: str, place: Path) -> None:
    store, study = Store(place / "runs"), read_study(place / "s.toml")
    first = job_of(place)
    assert sweep(study, [first], store).done == 1
    CHANGES[what](place, 1)
    second = job_of(place)
    assert second.run_id != first.run_id
    assert sweep(study, [second], store).done == 1
    CHANGES[what](place, 0)
    assert job_of(place).run_id == first.run_id
    before, after = (store.read(job.run_id) for job in (first, second))
    assert before is not None
    assert after is not None
    assert before.result["loss"] != after.result["loss"]
    shared_module._network.cache_clear()  # each is what a process finds that saw nothing else
    shared_module._data.cache_clear()
    CHANGES[what](place, 1)
    assert ran(second).result == after.result


@pytest.mark.parametrize("what", CHANGES)
def test_changed_between_its_hash_and_its_loading(what: str, place: Path) -> None:
    job = job_of(place)
    CHANGES[what](place, 1)
    outcome = run_job(job.to_dict())
    assert isinstance(outcome, str), outcome
    assert "changed after the run got its id" in outcome
    CHANGES[what](place, 0)
    assert ran(job).status == "done"  # nothing wrong is kept in memory


def test_such_a_run_stays_open(place: Path) -> None:
    store, study, job = Store(place / "runs"), read_study(place / "s.toml"), job_of(place)
    write_weights(place, 1)
    progress = sweep(study, [job], store)
    assert (progress.open, progress.done, progress.failed) == (1, 0, 0)
    assert not store.path(job.run_id).exists()
    assert sweep(study, [job_of(place)], store).done == 1


def test_changed_while_it_is_loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is another just before torch opens it."""
    job, create = job_of(place), shared_module.create_model

    def changed_first(*given: Any, **options: Any) -> Any:
        write_weights(place, 1)
        return create(*given, **options)

    monkeypatch.setattr(shared_module, "create_model", changed_first)
    assert "changed after the run got its id" in str(run_job(job.to_dict()))


def test_ids_are_as_they_were(place: Path) -> None:
    """Of the file's bytes, and of the images as they are loaded."""
    job = job_of(place)
    assert job.weights_hash == hashlib.sha256((place / "net.safetensors").read_bytes()).hexdigest()[:16]
    assert job.data_hash == load_data("npz:images.npz").fingerprint
    contents = {"weights": job.weights_hash, "data": f"content:{job.data_hash}"}
    assert job.run_id == job.spec.run_id(contents)


def image_folder(place: Path) -> list[Path]:
    image = pytest.importorskip("PIL.Image")
    files = [place / "photos" / part / "cat" / f"{i}.png" for part in ("train", "test") for i in range(4)]
    for i, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (i, 0, 0)).save(file)
        os.utime(file, (10**9, 10**9))  # long ago: what is written now has another time, however fast we are
    return files


@pytest.mark.parametrize("which", [0, 3, 4, 7])
def test_images_that_change_behind_their_fingerprint(which: int, place: Path) -> None:
    files = image_folder(place)
    data = load_data(f"folder:{place / 'photos'}", image_size=8)
    first = data.fingerprint
    part = data.train if which < 4 else data.test
    part.images(range(4))
    files[which].write_bytes(files[(which + 1) % 8].read_bytes())
    with pytest.raises(PlaceError, match=f"{files[which]} changed while it was in use") as caught:
        part.images(range(4))
    assert of_the_place(caught.value)
    assert load_data(f"folder:{place / 'photos'}", image_size=8).fingerprint != first


@pytest.mark.parametrize("format", ["dense", "sparse"])
def test_a_checkpoint_is_what_its_digest_was_checked_on(format: str, place: Path) -> None:
    """The file is overwritten in place, behind the reader: what it has read stays."""
    model = create_model("networks:small_net")
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="the statistics take"):
        result = prune(model, images, sparsity=0.5, rule="erk", repair="none")
    file = place / "pruned.safetensors"
    result.save(file, format=format)
    whole = load(file, model).model.state_dict()
    read = read_content(file)
    with file.open("r+b") as opened:
        opened.write(b"\x55" * file.stat().st_size)
    assert all(torch.equal(read.tensor(name), tensor) for name, tensor in whole.items())
