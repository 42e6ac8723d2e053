from __future__ import annotations

import numpy as np
import pytest

from repairability import Curves, InputError


def test_grids_may_differ_per_layer() -> None:
    curves = Curves("rr", {"a": [0.5, 0.7], "b": [0.9]}, {"a": [1.0, 0.8], "b": [0.2]})
    assert list(curves) == ["a", "b"]
    np.testing.assert_array_equal(curves["a"], [1.0, 0.8])
    np.testing.assert_array_equal(curves.grid["b"], [0.9])
    assert str(curves).splitlines()[2].split() == ["a", "1.0000", "0.8000"]


def test_there_and_back() -> None:
    curves = Curves.on_grid("raw", [0.1, 1 / 3], {"x": [1 / 7, 2.0], "y": [0.0, 1e-300]})
    assert Curves.from_json(curves.to_json()) == curves
    assert Curves.on_grid("raw", [0.1, 1 / 3], {"x": [1 / 7, 2.0], "y": [0.0, 0.0]}) != curves


def test_values_are_read_only() -> None:
    source = np.array([1.0, 2.0])
    curves = Curves.on_grid("raw", [0.1, 0.2], {"x": source})
    source[0] = 9
    assert curves["x"][0] == 1
    with pytest.raises(ValueError, match="read-only"):
        curves["x"][0] = 5


@pytest.mark.parametrize(
    ("grid", "values", "message"),
    [
        ([0.5, 0.5], [1, 2], "must rise"),
        ([0.7, 0.5], [1, 2], "must rise"),
        ([0.5, 1.5], [1, 2], "must rise"),
        ([-0.5, 0.5], [1, 2], "must rise"),
        ([np.nan, 0.5], [1, 2], "must rise"),
        ([0.5], [1, 2], "as many values"),
        ([], [], "as many values"),
        ([0.5, 0.7], [1, np.nan], "raw holds nan or inf"),
    ],
)
def test_refused(grid: list[float], values: list[float], message: str) -> None:
    with pytest.raises(InputError, match=f"layer 'x'.*{message}"):
        Curves.on_grid("raw", grid, {"x": values})


def test_unknown_layers() -> None:
    curves = Curves.on_grid("raw", [0.5], {"layer1": [1.0]})
    assert "layer2" not in curves
    with pytest.raises(InputError, match=r"unknown layer 'layer2'; did you mean layer1\?"):
        curves["layer2"]
    with pytest.raises(InputError, match=r"different layers: \['y'\]"):
        Curves("raw", {"x": [0.5]}, {"x": [0.5], "y": [0.5]})


def test_shuffled() -> None:
    curves = Curves.on_grid("rr", [0.5, 0.9], {f"layer{i}": [i, i + 10] for i in range(8)})
    other = curves.shuffled(np.random.default_rng(0))
    assert list(other) == list(curves)
    assert other != curves
    assert sorted(other[x].tolist() for x in other) == sorted(curves[x].tolist() for x in curves)
    assert other == curves.shuffled(np.random.default_rng(0))
