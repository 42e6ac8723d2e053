"""Sparse files: any tensors come back, near the bound; what was tampered with is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from repairability import InputError, PruneResult, create_model, load, prune
from repairability.checkpoints import read_content, write_content
from repairability.checkpoints.content import sparse_digest
from repairability.checkpoints.positions import ALL, MASK, RICE, decode, encode, entropy_bytes
from repairability.checkpoints.sparse import pack
from repairability.pruning import PruneConfig

PAGE = Path(__file__).parents[1] / "docs" / "sparse_format.md"


@pytest.fixture
def saved(result: PruneResult, tmp_path: Path) -> Path:
    result.save(tmp_path / "pruned.safetensors", format="sparse")
    return tmp_path / "pruned.safetensors"


def sparse_tensor(*shape: int, sparsity: float, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=random) >= sparsity
    return torch.randn(shape, generator=random) * kept


# --- positions -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.data())
def test_any_positions_come_back(total: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, max(0, total - 1)), max_size=total if total else 0))
    where = np.array(sorted(chosen if total else ()), dtype=np.int64)
    coding, bits, stream = encode(where, total)
    np.testing.assert_array_equal(decode(coding, bits, stream, len(where), total), where)
    assert len(stream) <= (total + 7) // 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30))
def test_gaps_of_any_length_come_back(gaps: list[int]) -> None:
    where = np.cumsum(np.array(gaps) + 1) - 1
    total = int(where[-1]) + 1
    coding, bits, stream = encode(where, total)
    if coding != MASK or total < 10**6:
        np.testing.assert_array_equal(decode(coding, bits, stream, len(where), total), where)


@pytest.mark.parametrize("sparsity", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999])
def test_positions_are_near_their_entropy(sparsity: float) -> None:
    total = 200_000
    where = np.flatnonzero(sparse_tensor(total, sparsity=sparsity).numpy())
    bound = entropy_bytes(total, len(where))
    longest = (total + 7) // 8 if sparsity < 0.6 else 1.04 * bound + 2
    assert bound <= len(encode(where, total)[2]) <= longest


@pytest.mark.parametrize("kept", [10_000, 5_000, 2_000, 1_000])
def test_clustered_positions_take_little_more(kept: int) -> None:
    """The bound on Rice's code knows only how many stay, not where."""
    total = 100_000
    for where in (np.arange(kept), np.arange(total - kept, total), np.arange(0, total, total // kept)[:kept]):
        assert len(encode(where, total)[2]) <= 1.12 * entropy_bytes(total, kept)


def test_known_codes() -> None:
    assert encode(np.array([2, 3]), 4) == (MASK, 0, np.packbits([0, 0, 1, 1]))
    assert encode(np.arange(5), 5)[:2] == (ALL, 0)
    coding, bits, stream = encode(np.array([100]), 2000)
    quotient, remainder = divmod(100, 2**bits)
    unary = np.packbits([0] * quotient + [1])
    lowest_first = np.packbits([(remainder >> i) & 1 for i in range(bits)])
    assert coding == RICE
    np.testing.assert_array_equal(stream, np.concatenate([unary, lowest_first]))


# --- files -----------------------------------------------------------------------------------------------------------


def test_float32_is_exact(result: PruneResult, saved: Path, tmp_path: Path) -> None:
    model = create_model("networks:Residual", seed=9)
    found = load(saved, model)
    result.save(tmp_path / "dense.safetensors")
    for key, value in load(tmp_path / "dense.safetensors", model).model.state_dict().items():
        assert torch.equal(found.model.state_dict()[key], value), key
    assert found.allocation == result.allocation
    assert found.recipe == result.recipe


def test_the_same_pruning_gives_the_same_bytes(result: PruneResult, saved: Path, tmp_path: Path) -> None:
    result.save(tmp_path / "again.safetensors", format="sparse")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("values", ["float32", "float16", "int8"])
@pytest.mark.parametrize("sparsity", [0.9, 0.95, 0.98])
def test_bytes_are_within_five_percent_of_the_bound(tmp_path: Path, sparsity: float, values: str) -> None:
    tensors = {"w": sparse_tensor(256, 256, 3, 3, sparsity=sparsity), "b": torch.randn(256)}
    info = write_content(tmp_path / "x", {}, tensors, format="sparse", values=values)
    n, kept = tensors["w"].numel(), int(tensors["w"].count_nonzero())
    width = {"float32": 4, "float16": 2, "int8": 1}[values]
    bound = entropy_bytes(n, kept) + width * kept + 4 * 256 + (256 if values == "int8" else 0)
    assert info.bound == pytest.approx(bound)
    assert info.size == (tmp_path / "x").stat().st_size
    assert bound < info.size < 1.05 * bound
    assert info.above == pytest.approx(info.size / bound - 1)


@pytest.mark.parametrize(("values", "limit"), [("float16", 2**-11), ("int8", 0.5 / 127 * 2**0.125)])
def test_rounded_values_are_as_near_as_told(result: PruneResult, tmp_path: Path, values: str, limit: float) -> None:
    info = result.save(tmp_path / "x", format="sparse", values=values)
    model = load(tmp_path / "x", create_model("networks:Residual")).model
    worst = 0.0
    for name, given_ in result.model.state_dict().items():
        found = model.state_dict()[name]
        if given_.dim() < 2:
            assert torch.equal(found, given_)
            continue
        assert not found[given_ == 0].any()
        off, largest = ((x.abs().flatten(1).double()).amax(1) for x in (found - given_, given_))
        worst = max(worst, float((off / largest.clamp(min=1e-30)).max()))
    assert 0 < worst <= 1.01 * limit
    assert info.error == pytest.approx(worst, rel=1e-4)
    assert load(tmp_path / "x", create_model("networks:Residual")).header["rounded"]["error"] == info.error
    assert f"values {values}: largest error" in str(info)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("values", ["float32", "int8"])
def test_tensors_of_any_type_and_shape(tmp_path: Path, dtype: torch.dtype, values: str) -> None:
    tensors = {
        "matrix": (4 * sparse_tensor(9, 7, sparsity=0.6)).to(dtype),
        "zeros": torch.zeros(3, 3, dtype=dtype),
        "number": torch.tensor(3).to(dtype),
        "none": torch.zeros(0, 4, dtype=dtype),
    }
    write_content(tmp_path / "x", {}, tensors, format="sparse", values=values)
    found = read_content(tmp_path / "x").tensors()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (dtype, tensor.shape)
        close = {"rtol": 0, "atol": 0.1} if values == "int8" and dtype.is_floating_point else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found[name], tensor, **close)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_subnormal=True), min_size=1, max_size=50))
def test_any_floats_come_back(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32)
    packed = pack({"x": tensor})
    np.testing.assert_array_equal(packed.values.view(np.int32), tensor[tensor != 0].view(torch.int32).numpy())


def test_what_cannot_be_rounded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="w holds 100000, and float16 ends at 65504"):
        write_content(tmp_path / "x", {}, {"w": torch.full((2, 2), 1e5)}, format="sparse", values="float16")
    with pytest.raises(InputError, match="w holds numbers that are not finite, which int8 does not hold"):
        write_content(tmp_path / "x", {}, {"w": torch.full((2, 2), float("inf"))}, format="sparse", values="int8")
    with pytest.raises(InputError, match="unknown file format 'spares'; did you mean sparse?"):
        write_content(tmp_path / "x", {}, {}, format="spares")
    with pytest.raises(InputError, match="unknown type of values 'int4'"):
        write_content(tmp_path / "x", {}, {}, format="sparse", values="int4")
    with pytest.raises(InputError, match="a dense file holds the tensors as they are"):
        write_content(tmp_path / "x", {}, {}, values="int8")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("values", ["float32", "float16", "int8"])
def test_the_reader_in_the_docs_reads_it_without_this_package(result: PruneResult, tmp_path: Path, values: str) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    result.save(tmp_path / "x.safetensors", format="sparse", values=values)
    (tmp_path / "reader.py").write_text(
        f"{code}\nimport sys\nfound = read_sparse('x.safetensors')\nnp.savez('out.npz', **found)\n"
        "assert 'repairability' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "reader.py"], cwd=tmp_path, check=True)
    expected = load(tmp_path / "x.safetensors", create_model("networks:Residual")).model.state_dict()
    with np.load(tmp_path / "out.npz") as found:
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor.numpy())
    assert len(code.splitlines()) <= 45


# --- files that were tampered with ------------------------------------------------------------------------------------


def parts_of(file: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["repairability"])
    parts = load_file(file)
    return parts, json.loads(zlib.decompress(parts["header"].numpy().tobytes())), about


def write_parts(file: Path, parts: dict[str, Tensor], index: dict[str, Any], about: dict[str, Any]) -> None:
    """With a digest that fits: who edits a file may know how."""
    parts["header"] = torch.from_numpy(np.frombuffer(zlib.compress(json.dumps(index).encode()), np.uint8).copy())
    about["digest"] = sparse_digest(parts)
    save_file(parts, file, {"repairability": json.dumps(about)})


def refused(file: Path, words: str) -> None:
    model = create_model("networks:Residual")
    with pytest.raises(InputError, match=words) as error:
        load(file, model)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    refused(saved, "is truncated or not a safetensors file")


@pytest.mark.parametrize("part", ["header", "values", "positions"])
def test_a_flipped_bit_is_refused(saved: Path, part: str) -> None:
    parts, _, about = parts_of(saved)
    parts[part][len(parts[part]) // 2] ^= 1
    save_file(parts, saved, {"repairability": json.dumps(about)})
    refused(saved, "was changed after it was written")


def test_swapped_tensors_are_refused(saved: Path) -> None:
    parts, index, about = parts_of(saved)
    one, two = (next(r for r in index["tensors"] if r["name"] == name) for name in ("bn1.weight", "bn2.weight"))
    one["name"], two["name"] = two["name"], one["name"]
    digest = about["digest"]
    write_parts(saved, parts, index, about)
    about["digest"] = digest
    save_file(parts, saved, {"repairability": json.dumps(about)})
    refused(saved, "was changed after it was written")
    parts["values"], parts["positions"] = parts["positions"], parts["values"]
    write_parts(saved, parts, index, about)
    refused(saved, "counts that do not fit: its values take")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 3}, "counts that do not fit"),
        ({"count": -3}, "a header that cannot be read: depthwise.weight has counts that cannot be"),
        ({"count": 10**9}, "depthwise.weight has counts that cannot be"),
        ({"count": 2.5}, "depthwise.weight has counts that cannot be"),
        ({"coding": "zip"}, "depthwise.weight has a coding that nobody knows"),
        ({"coding": "all"}, "depthwise.weight holds .* values of 108, and no positions"),
        ({"dtype": "object"}, "a coding that nobody knows"),
        ({"bits": 70}, "a coding that nobody knows"),
        ({"bits": 9}, "counts that do not fit: depthwise.weight"),
        ({"positions": 10**9}, "counts that do not fit: its positions take"),
        ({"shape": [10**6, 10**6, 10**6]}, "does not fit Residual: depthwise.weight is"),
        ({"shape": "abc"}, "a header that cannot be read"),
        ({"shape": []}, "a header that cannot be read: depthwise.weight has counts that cannot be"),
        ({"values": "int8"}, "depthwise.weight has a scale that cannot be"),
        ({"values": "int8", "scale": "big"}, "a header that cannot be read"),
        ({"values": "int8", "scale": float("nan")}, "depthwise.weight has a scale that cannot be"),
        ({"values": "int8", "scale": 1.0}, "counts that do not fit: its values take"),
        ({"values": "float64"}, "stored as float64, which is no way to store float32"),
        ({"values": "float16"}, "counts that do not fit"),
        ({"name": 3}, "3 is no name of a tensor"),
        ({"more": 3}, "a header that cannot be read"),
        ({"name": "stem.weight"}, "names a tensor twice"),
    ],
)
def test_counts_that_do_not_fit_are_refused(saved: Path, change: dict[str, Any], words: str) -> None:
    parts, index, about = parts_of(saved)
    row = next(row for row in index["tensors"] if row["name"] == "depthwise.weight")
    assert row["coding"] != "all"
    row.update(change)
    write_parts(saved, parts, index, about)
    refused(saved, words)


def test_headers_that_are_none_are_refused(saved: Path) -> None:
    parts, _, about = parts_of(saved)
    for index in ({}, {"header": {}, "tensors": 3}, {"header": {}, "tensors": [3]}, {"header": {}, "tensors": [{}]}):
        write_parts(saved, parts, index, about)
        refused(saved, "has a header that cannot be read")
    write_parts(saved, parts, {"header": [], "tensors": []}, about)
    refused(saved, "has a header that cannot be read: it is a list")
    write_parts(saved, parts_of(saved)[0], {"header": {}, "tensors": []}, about)
    refused(saved, "its values take|does not say how it was pruned")
    parts["header"] = torch.zeros(8, dtype=torch.uint8)
    about["digest"] = sparse_digest(parts)
    save_file(parts, saved, {"repairability": json.dumps(about)})
    refused(saved, "has a header that cannot be read")
    del parts["values"]
    save_file(parts, saved, {"repairability": json.dumps(about)})
    refused(saved, "must hold header, positions, values as bytes")


def test_another_architecture_is_refused(saved: Path) -> None:
    with pytest.raises(InputError, match=r"head.bias is \(5,\) torch.float32 there and \(7,\)"):
        load(saved, create_model("networks:Residual", num_classes=7))


def test_shared_weights_survive(tmp_path: Path) -> None:
    model = create_model("networks:Shared")
    config = PruneConfig(count=8, only=("a", "b"))
    way = {"rule": "uniform", "score": "magnitude", "repair": "none"}
    found = prune(model, torch.randn(8, 3, 12, 12), sparsity=0.5, config=config, **way)
    found.save(tmp_path / "x", format="sparse")
    back = load(tmp_path / "x", model).model
    assert back.get_submodule("b").weight is back.get_submodule("b_tied").weight
    assert isinstance(back.get_submodule("b").weight, nn.Parameter)
