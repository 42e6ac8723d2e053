"""Studies of more cells than anybody can run: said and refused before the first of them is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairability import InputError
from repairability.experiments import study as study_module
from repairability.experiments.study import MOST_CELLS, read_study
from test_cli_images import run

BASE = 'title = "many"\n[base]\nmodel = "digits"\ndata = "digits"\nrule = "erk"\n'


def study(folder: Path, cases: int = 0, **axes: list[object]) -> Path:
    file = folder / "many.toml"
    words = "".join(f"[[cases]]\ncount = {i + 1}\n" for i in range(cases))
    listed = "".join(f"{name} = {values}\n" for name, values in axes.items())
    file.write_text(f"{BASE}{words}[axes]\n{listed}", encoding="utf-8")
    return file


SPARSITIES: list[object] = [round(0.5 + 0.004 * i, 4) for i in range(100)]
MANY = {
    "a million": (0, {"seed": list(range(10_000)), "sparsity": SPARSITIES}, "1,000,000"),
    "many in one axis": (0, {"seed": list(range(200_000))}, "200,000"),
    "cases count": (11, {"seed": list(range(100)), "sparsity": SPARSITIES}, "110,000"),
    "one too many": (0, {"seed": list(range(MOST_CELLS + 1))}, "100,001"),
    "beyond 64 bits": (0, {x: list(range(1, 10_001)) for x in ("seed", "count", "test_images", "held_out", "a")}, ""),
}


@pytest.fixture
def no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: object) -> None:
        pytest.fail("a cell was made")

    monkeypatch.setattr(study_module.RunSpec, "read", made)


@pytest.mark.usefixtures("no_cell")
@pytest.mark.parametrize("kind", MANY)
def test_too_many_cells(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, axes, count = MANY[kind]
    file = study(tmp_path, cases, **axes)
    with pytest.raises(InputError, match=f"has {count}.*cells; a study takes at most 100,000"):
        read_study(file)
    code, out, err = run(capsys, "sweep", str(file), "--store", str(tmp_path / "runs"), "--dry-run")
    assert (code, out) == (2, "")
    assert "many.toml" in err
    assert len(err) < 1000
    assert not (tmp_path / "runs").exists()


def test_as_many_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "MOST_CELLS", 20)
    assert len(read_study(study(tmp_path, seed=list(range(20)))).specs) == 20
    with pytest.raises(InputError, match="has 21 cells; a study takes at most 20"):
        read_study(study(tmp_path, seed=list(range(21))))
