"""The verbs that read and write files of pruned models: info, compress, export, and what prune writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from repairability import load, prune
from repairability.checkpoints import FORMATS, VALUES
from repairability.cli import options
from repairability.models import create_model
from test_cli import run

pytestmark = pytest.mark.usefixtures("quiet")
NET = "networks:small_net"
IMAGES = torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    result = prune(create_model(NET), IMAGES, sparsity=0.9, recipe="fast")
    result.save(tmp_path / "dense.safetensors")
    return tmp_path / "dense.safetensors"


def test_the_help_names_what_there_is() -> None:
    assert tuple(options.FILE_FORMATS.split(", ")) == FORMATS
    assert tuple(options.VALUES.split(", ")) == VALUES


def test_compress_and_back(file: Path, tmp_path: Path, capsys: Capture) -> None:
    small, back = tmp_path / "small.safetensors", tmp_path / "back.safetensors"
    code, out, _ = run(capsys, "compress", str(file), "--out", str(small))
    assert code == 0
    assert "times smaller" in out
    assert f"wrote {small}" in out
    assert small.stat().st_size < 0.6 * file.stat().st_size
    code, out, _ = run(capsys, "compress", str(small), "--out", str(back), "--format", "dense", "--json")
    assert code == 0
    assert json.loads(out)["after"]["size"] == back.stat().st_size
    assert "not smaller" in run(capsys, "compress", str(small), "--out", str(back), "--format", "dense")[1]
    model = create_model(NET)
    states = [load(x, model).model.state_dict() for x in (file, small, back)]
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name])
        assert torch.equal(states[0][name], states[2][name])
    assert load(file, model).header == load(back, model).header


def test_rounded_values_are_told_and_stay_told(file: Path, tmp_path: Path, capsys: Capture) -> None:
    small, again = tmp_path / "small", tmp_path / "again"
    _, out, _ = run(capsys, "compress", str(file), "--out", str(small), "--values", "int8", "--json")
    error = json.loads(out)["after"]["error"]
    assert 0 < error < 0.005
    _, out, _ = run(capsys, "compress", str(small), "--out", str(again), "--format", "dense", "--json")
    assert json.loads(out)["after"]["error"] == error
    assert "values int8: largest error 0.4" in run(capsys, "info", str(small))[1]
    assert "values float32 (once rounded to int8): largest error 0.4" in run(capsys, "info", str(again))[1]
    _, out, _ = run(capsys, "compress", str(small), "--out", str(again), "--json")  # sparse, as float32
    before, after = (json.loads(out)[name] for name in ("before", "after"))
    assert (before["values"], before["rounded"], before["error"]) == ("int8", "int8", error)
    assert (after["values"], after["rounded"], after["error"]) == ("float32", "int8", error)
    _, out, _ = run(capsys, "compress", str(small), "--out", str(again), "--values", "float16", "--json")
    after = json.loads(out)["after"]
    assert (after["values"], after["rounded"]) == ("float16", "int8, float16")
    assert after["error"] > error
    before = json.loads(run(capsys, "info", str(file), "--json")[1])
    assert (before["values"], before["rounded"], before["error"]) == ("float32", None, 0)


def test_info_without_the_model(file: Path, tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "info", str(file), "--json")
    info = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert code == 0
    assert (info["format"], info["size"], info["recipe"]) == ("dense", file.stat().st_size, "fast")
    assert info["dense_bytes"] == sum(4 * x.numel() for x in create_model(NET).parameters())
    weight = next(x for x in info["tensors"] if x["name"] == "2.weight")
    assert (weight["bytes"], weight["shape"]) == (4 * 1152, [16, 8, 3, 3])
    assert weight["bound"] < weight["count"] * 4 + 1152 / 8
    code, out, _ = run(capsys, "info", str(file))
    assert "entropy bound" in out
    assert "% of the prunable weights are zero (fast)" in out


def test_a_pruned_file_is_no_file_of_weights(file: Path, tmp_path: Path, capsys: Capture) -> None:
    """But for a dense one by the name of such, which it makes of the others."""
    other, sparse, back = tmp_path / "net.pruned", tmp_path / "sparse.safetensors", tmp_path / "back.safetensors"
    other.write_bytes(file.read_bytes())
    assert run(capsys, "compress", str(file), "--out", str(sparse))[0] == 0
    for given, kind in ((other, "dense"), (sparse, "sparse")):
        code, _, err = run(capsys, "layers", NET, "--weights", str(given))
        assert code == 2
        assert f"{given} is a pruned checkpoint of ours ({kind}): give it as --checkpoint" in err
        advice = err[err.index("repairability compress") :].split()[1:]
        assert run(capsys, *advice[:-1], str(back))[0] == 0
        assert run(capsys, "layers", NET, "--weights", str(back))[0] == 0


@pytest.mark.parametrize("verb", ["info", "compress"])
def test_files_that_are_none_end_in_one_sentence(verb: str, file: Path, tmp_path: Path, capsys: Capture) -> None:
    more = ("--out", str(tmp_path / "out")) if verb == "compress" else ()
    code, _, err = run(capsys, verb, str(tmp_path / "missing"), *more)
    assert (code, err.count("\n")) == (2, 1)
    assert "no checkpoint at" in err
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    code, _, err = run(capsys, verb, str(file), *more)
    assert code == 2
    assert "is truncated or not a safetensors file" in err
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, _, err = run(capsys, verb, str(file), *more)
    assert code == 2
    assert "was changed after it was written" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--format", "zip"), "unknown file format 'zip'; known: dense, sparse"),
        (("--values", "int4", "--format", "sparse"), "unknown type of values 'int4'"),
        (("--values", "int8", "--format", "dense"), "a dense file holds the tensors as they are"),
    ],
)
def test_formats_nobody_knows_are_refused_before_any_work(
    given: tuple[str, ...], words: str, file: Path, tmp_path: Path, capsys: Capture
) -> None:
    code, _, err = run(capsys, "compress", str(file), "--out", str(tmp_path / "x"), *given)
    assert code == 2
    assert words in err
    code, _, err = run(capsys, "prune", NET, "--data", "npz:missing", "-s", "0.9", *given)
    assert code == 2
    assert words in err


def test_prune_writes_a_sparse_file_and_export_takes_it(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out, written = tmp_path / "x.safetensors", tmp_path / "x.onnx"
    how = ("-s", "0.9", "--recipe", "fast", "--count", "32", "--format", "sparse", "--values", "float16")
    code, text, _ = run(capsys, "prune", "digits", "--data", "digits", *how, "--out", str(out), "--json")
    assert code == 0
    figures = json.loads(text)["file"]
    assert (figures["format"], figures["values"], figures["size"]) == ("sparse", "float16", out.stat().st_size)
    given = ("--checkpoint", str(out), "--data", "digits", "--limit", "20")
    code, text, _ = run(capsys, "export", "digits", *given, "--compact", "--out", str(written), "--json")
    assert code == 0
    answer = json.loads(text)
    assert (answer["images"], answer["same"], answer["size"]) == (20, 20, written.stat().st_size)
    assert answer["compact"]["parameters"][1] <= answer["compact"]["parameters"][0]
    code, text, _ = run(capsys, "export", "digits", *given, "--out", str(written))
    assert code == 0
    assert "20 of 20" in text
    code, _, err = run(capsys, "export", "digits", *given, "--out", str(tmp_path / "nowhere" / "x.onnx"))
    assert code == 2
    assert "cannot write" in err
    code, _, err = run(capsys, "export", "digits", *given[:-1], "0", "--out", str(written))
    assert code == 2
    assert "--limit must be at least 1, not 0" in err
