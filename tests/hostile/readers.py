"""The table of what is fuzzed: every kind of file that is read, a good one of each, and what is done with it."""

from __future__ import annotations

import functools
import gzip
import io
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from test_hostile_tables import allocation, diagnosis, report
from torch import nn

import repairability as rp
from repairability._files import read_sealed, read_text, write_sealed
from repairability.checkpoints import load
from repairability.checkpoints.content import dense_digest, read_content, sparse_digest
from repairability.experiments import Record, Store, StudyEntry, read_study, smoke
from repairability.experiments.archive import RUNS, read_studies, write_archive
from repairability.experiments.record import _digest
from repairability.report import ReportData
from repairability.report.sections import SECTIONS, study_section
from repairability.report.sheets import named_csv, named_tables
from repairability.tables import Tidy
from repairability.training import TrainConfig, finetune
from test_report_studies import detected
from test_report_studies import run as good_run


@dataclass(frozen=True)
class Reader:
    """A kind of file: a good one, and how it is read and what was read is used. `content` is what a file says, where
    that is plain JSON, and `file` makes one that says something else, with digests that fit.
    """

    name: str
    good: Callable[[], bytes]
    read: Callable[[Path], object]
    content: Callable[[], Any] | None = None
    file: Callable[[Any], bytes] = lambda content: json.dumps(content).encode()


# --- what is read, and used -------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 2))


def used_study(path: Path) -> None:
    study = read_study(path)
    assert [spec.run_id({}) for spec in smoke(study).specs]


def used_table(kind: type[Tidy], path: Path) -> None:
    text = read_text(path)
    value = kind.from_csv(text) if path.suffix == ".csv" else kind.from_json(text)
    assert str(value)
    assert kind.from_csv(value.to_csv()) == kind.from_json(value.to_json()) == value


def used_report(path: Path) -> None:
    data = ReportData.from_json(read_text(path))
    assert ReportData.from_json(data.to_json()) == data
    for text in (*map(str, named_tables(data).values()), *named_csv(data).values()):
        text.encode()


@functools.cache
def store_beside() -> Store:
    """A store with two good runs, for as long as the tests run."""
    store = Store(KEPT.name)
    whole = [good_run(0.1, rule="rr"), detected((0.95, 0.955), None)]
    for record in whole:
        store.write(record)
    store.write_study(StudyEntry("s", "t", tuple(SECTIONS), "", (*(x.run_id for x in whole), RUN_ID)))
    return store


KEPT = tempfile.TemporaryDirectory()


def used_store(name: str, path: Path) -> None:
    """A file of a store beside good ones: nothing of it may block a report."""
    store = store_beside()
    (store.folder / name).write_bytes(path.read_bytes())
    try:
        studies, problems = read_studies(store.folder)
    finally:
        (store.folder / name).unlink()
    assert "s" in [entry.name for entry, _ in studies]
    assert len(problems) <= 1
    for entry, records in studies:
        if set(entry.sections) <= set(SECTIONS):
            study_section(entry.sections, records)
        assert all(record.row() for record in records)


def used_archive(path: Path) -> None:
    (path.parent / RUNS).write_bytes(path.read_bytes())
    studies, _ = read_studies(path.parent)
    for entry, records in studies:
        if set(entry.sections) <= set(SECTIONS):
            study_section(entry.sections, records)


def used_checkpoint(path: Path) -> None:
    content = read_content(path)
    assert str(content.info.table())
    assert content.info.to_dict()
    assert str(load(path, network()))
    content.tensors()


def used_weights(path: Path) -> None:
    rp.models.weights.load_weights_(network(), path)


def used_data(path: Path) -> None:
    data = rp.load_data(f"npz:{path}")
    assert data.fingerprint
    assert len(data.train.images([0])) == 1


def used_state(path: Path) -> None:
    config = TrainConfig(epochs=1, frozen=(), test_images=0, augment=False, batch_size=256)
    write_sealed(path, path.read_bytes())
    finetune(rp.create_model("networks:small_net"), rp.load_data("random:10"), config=config, partial=path)


# --- good files -------------------------------------------------------------------------------------------------------

STUDY = b"""title = "t"
[base]
model = "digits"
data = "digits"
options = {floor = 0.1}
grid = [0.5, 0.9]
[axes]
rule = ["erk"]
seed = [0, 1]
[[exclude]]
seed = 1
"""
RUN_ID = "0123456789abcdef"


def study_content() -> dict[str, Any]:
    base = {"model": "digits", "data": "digits", "weights": "trained", "options": {"floor": 0.1}, "grid": [0.5, 0.9]}
    more = {"rule": "erk", "score": "magnitude", "repair": "cr+bn", "conditioned_on": "cr", "task": "prune", "count": 8}
    about = {"title": "t", "about": "a", "sections": ["accuracy"], "cases": [{"null": False}, {"threads": 2}]}
    axes, exclude = {"sparsity": [0.5, 0.9], "seed": [0, 1]}, [{"seed": 1, "sparsity": [0.5]}]
    return {**about, "base": {**base, **more, "sweep": [0.9]}, "axes": axes, "exclude": exclude}


def toml(content: Any) -> str:
    """One value; of what TOML has no word for, an empty text."""
    if isinstance(content, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(value)}" for key, value in content.items()) + "}"
    if isinstance(content, list):
        return "[" + ", ".join(map(toml, content)) + "]"
    words = json.dumps(content, ensure_ascii=False).replace("Infinity", "inf").replace("NaN", "nan")
    return '""' if content is None else words.replace("\\u0000", "\\u0001")


def toml_file(content: Any) -> bytes:
    rows = content.items() if isinstance(content, dict) else {"title": content}.items()
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in rows).encode()


def record() -> Record:
    agreement = {"same": 0.5, "kl": 0.1, "n": 10}
    return Record(RUN_ID, good_run(rule="erk").spec, "done", good_run(0.3, result={"agreement": agreement}).result)


def detection() -> Record:
    found = detected((0.95, 0.955), (0.9, 0.96), seed=3)
    return Record(RUN_ID, found.spec, "done", found.result, "", {"seconds": {"load": 1.5}, "peak_memory_mb": 3.0})


def sealed_record(content: Any) -> bytes:
    return json.dumps({**content, "digest": _digest(content)} if isinstance(content, dict) else content).encode()


def entry() -> dict[str, Any]:
    return {"name": "x", "title": "t", "sections": ["accuracy"], "about": "", "run_ids": [RUN_ID], "smoke": False}


def archive_lines() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.write(record())
        store.write_study(StudyEntry("s", "t", ("accuracy",), "", (RUN_ID,)))
        (file,) = write_archive(store, Path(folder) / "kept")
        return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def archived(lines: Any) -> bytes:
    text = "\n".join(json.dumps(line) for line in lines) if isinstance(lines, list) else json.dumps(lines)
    return gzip.compress(text.encode(), mtime=0)


@functools.cache
def checkpoint(format: str, values: str = "float32") -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        images = torch.randn(130, 1, 6, 6, generator=torch.Generator().manual_seed(0))
        result = rp.prune(network(), images, sparsity=0.5, rule="erk", repair="none")
        result.save(Path(folder) / "x", format=format, values=values)
        return (Path(folder) / "x").read_bytes()


def dense_header() -> Any:
    return json.loads(_metadata(checkpoint("dense")))["header"]


def _metadata(file: bytes) -> str:
    length = int.from_bytes(file[:8], "little")
    return str(json.loads(file[8 : 8 + length])["__metadata__"]["repairability"])


def dense_file(header: Any) -> bytes:
    tensors = from_bytes(checkpoint("dense"))
    about = {"format": "repairability-1", "digest": dense_digest(header, tensors), "header": header}
    return to_bytes(tensors, {"repairability": json.dumps(about)})


def sparse_index() -> Any:
    return json.loads(zlib.decompress(from_bytes(checkpoint("sparse", "int8"))["header"].numpy().tobytes()))


def sparse_file(index: Any) -> bytes:
    parts = dict(from_bytes(checkpoint("sparse", "int8")))
    packed = np.frombuffer(zlib.compress(json.dumps(index).encode()), np.uint8).copy()
    parts["header"] = torch.from_numpy(packed)
    about = {"format": "repairability-sparse-1", "digest": sparse_digest(parts)}
    return to_bytes(parts, {"repairability": json.dumps(about)})


def npz() -> bytes:
    file = io.BytesIO()
    pixels, labels = np.zeros((3, 3, 4, 4), np.uint8), np.array([0, 1, 2])
    np.savez(file, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    return file.getvalue()


@functools.cache
def state() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(epochs=1, frozen=(), test_images=0, augment=False, batch_size=256)
        file = Path(folder) / "x.partial"
        finetune(rp.create_model("networks:small_net"), rp.load_data("random:10"), config=config, partial=file)
        return read_sealed(file)


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save(network().state_dict(), file)
    return file.getvalue()


def json_of(value: Any) -> Any:
    return json.loads(value.to_json())


RUN_FILE = f"records/{RUN_ID}.json"
READERS = [
    Reader("study.toml", lambda: STUDY, used_study, study_content, toml_file),
    Reader(
        "diagnosis.json",
        lambda: diagnosis().to_json().encode(),
        functools.partial(used_table, rp.Diagnosis),
        lambda: json_of(diagnosis()),
    ),
    Reader(
        "allocation.json",
        lambda: allocation().to_json().encode(),
        functools.partial(used_table, rp.Allocation),
        lambda: json_of(allocation()),
    ),
    Reader("diagnosis.csv", lambda: diagnosis().to_csv().encode(), functools.partial(used_table, rp.Diagnosis)),
    Reader("allocation.csv", lambda: allocation().to_csv().encode(), functools.partial(used_table, rp.Allocation)),
    Reader("report.json", lambda: report().to_json().encode(), used_report, lambda: json_of(report())),
    Reader(
        "record.json",
        lambda: sealed_record(record().content()),
        functools.partial(used_store, RUN_FILE),
        lambda: record().content(),
        sealed_record,
    ),
    Reader(
        "detection.json",
        lambda: sealed_record(detection().content()),
        functools.partial(used_store, RUN_FILE),
        lambda: detection().content(),
        sealed_record,
    ),
    Reader(
        "x.json",
        lambda: json.dumps(entry()).encode(),
        functools.partial(used_store, "studies/x.json"),
        entry,
    ),
    Reader("archive.gz", lambda: archived(archive_lines()), used_archive, archive_lines, archived),
    Reader("dense.safetensors", lambda: checkpoint("dense"), used_checkpoint, dense_header, dense_file),
    Reader("sparse.safetensors", lambda: checkpoint("sparse"), used_checkpoint),
    Reader("int8.safetensors", lambda: checkpoint("sparse", "int8"), used_checkpoint, sparse_index, sparse_file),
    Reader("weights.safetensors", lambda: to_bytes(network().state_dict()), used_weights),
    Reader("weights.pt", torch_file, used_weights),
    Reader("data.npz", npz, used_data),
    Reader("net.partial", state, used_state),
]
