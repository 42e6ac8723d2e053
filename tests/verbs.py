"""Every verb of the command line with a small thing to do, what it reads, and what must be there when it is done."""

from __future__ import annotations

import json
from pathlib import Path

from forked import Ended, Forks
from repairability._files import read_sealed
from repairability.checkpoints import read_content

STUDY = """
title = "small Größe ±"
[base]
model = "digits"
data = "digits"
repair = "cr+bn-short"
test_images = 40
count = 32
[axes]
rule = ["uniform", "erk"]
sparsity = [0.8, 0.9]
"""
DIGITS = ["digits", "--data", "digits"]
RUNS = {
    "doctor": [*DIGITS, "--samples", "4", "--out", "o.json"],
    "layers": ["digits"],
    "allocate": ["digits", "-s", "0.9", "--csv", "o.csv"],
    "diagnose": [*DIGITS, "--count", "32", "--out", "o.json"],
    "prune": [*DIGITS, "-s", "0.9", "--count", "32", "--evaluate", "40", "--out", "o.safetensors"],
    "detect": [*DIGITS, "--count", "32", "--no-null", "--sparsities", "0.9,0.95", "--out", "o.json"],
    "evaluate": [*DIGITS, "--checkpoint", "p.safetensors", "--limit", "100", "--out", "o.json"],
    "finetune": [*DIGITS, "--from-scratch", "--epochs", "2", "--evaluate", "40", "--out", "o.safetensors"],
    "info": ["p.safetensors"],
    "compress": ["p.safetensors", "--out", "o.safetensors"],
    "export": [*DIGITS, "--checkpoint", "p.safetensors", "--limit", "8", "--out", "o.onnx"],
    "accelerate": ["digits", "--checkpoint", "p.safetensors", "--threads", "1", "--out", "o.json"],
    "sweep": ["s.toml", "--store", "new"],
    "list": ["--store", "runs"],
    "report": ["--store", "runs", "--out", "o.html", "--format", "html,md,csv"],
    "renew": ["d.md", "--store", "runs"],
    "archive": ["--store", "runs", "--out", "results"],
    "demo": ["--seeds", "1", "--out", "demo"],
}
"""Every verb with a small thing to do; beside its inputs it writes into the folder it runs in."""

QUICK = ("layers", "allocate", "info", "list")
WRITTEN = {
    **dict.fromkeys(("doctor", "diagnose", "detect", "evaluate", "accelerate"), ("o.json",)),
    **dict.fromkeys(("prune", "compress"), ("o.safetensors",)),
    "finetune": ("o.safetensors", "o.json"),
    "allocate": ("o.csv",),
    "export": ("o.onnx",),
    "report": ("o.html",),
    "archive": ("results/runs.jsonl.gz",),
    "sweep": ("new/studies/s.json",),
}
INPUTS = ("p.safetensors", "small.toml", "s.toml", "d.md", "runs")


def make_inputs(folder: Path, forks: Forks) -> None:
    """What the verbs read."""
    (folder / "small.toml").write_text(STUDY, encoding="utf-8")
    (folder / "s.toml").write_text('title = "small"\nruns_of = ["small"]\n', encoding="utf-8")
    (folder / "d.md").write_text("<!-- studies -->\n<!-- end -->\n", encoding="utf-8")
    for arguments in (
        ["prune", *DIGITS, "-s", "0.9", "--recipe", "fast", "--count", "32", "--out", "p.safetensors"],
        ["sweep", "small.toml", "--store", "runs"],
    ):
        made = forks.run(arguments, folder)
        assert made.code == 0, made.err


def fill(inputs: Path, folder: Path) -> None:
    for name in INPUTS:
        if name == "d.md":  # which is written
            (folder / name).write_bytes((inputs / name).read_bytes())
        else:
            (folder / name).symlink_to(inputs / name)


def check_whole(folder: Path) -> None:
    """No file is half of one, and none is left over."""
    for file in (x for x in folder.rglob("*") if x.is_file() and not x.is_symlink()):
        assert not file.name.endswith((".part", ".lock")), file
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".partial":
            read_sealed(file)
        elif file.suffix == ".html":
            assert file.read_text(encoding="utf-8").rstrip().endswith("</html>")
        elif file.suffix == ".safetensors" and b"repairability" in file.read_bytes()[:4096]:
            read_content(file)
        assert file.stat().st_size or "locks" in file.parts, file


def check_done(verb: str, folder: Path) -> None:
    check_whole(folder)
    for name in WRITTEN.get(verb, ()):
        assert (folder / name).is_file(), name
    assert verb != "renew" or "small" in (folder / "d.md").read_text(encoding="utf-8")


def silent(ended: Ended) -> None:
    for words in ("Traceback", "Exception ignored", "Error in ", "leaked", "Broken pipe"):
        assert words not in ended.err, ended.err
        assert words not in ended.out, ended.out
