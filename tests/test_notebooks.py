"""The notebooks run from top to bottom, and what they end in is shown as tables and charts."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat (extra dev)")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient (extra dev)")
pytest.importorskip("ipykernel", reason="needs ipykernel (extra dev)")
Config = pytest.importorskip("traitlets.config", reason="needs nbclient (extra dev)").Config

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def test_they_are_there() -> None:
    assert [file.stem for file in EXAMPLES] == ["quickstart", "your_model"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_nothing_generated_is_kept(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shown", "charts"), [("quickstart", 7, 6), ("your_model", 5, 5)])
def test_it_runs(name: str, shown: int, charts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shown` cells end in HTML, with so many charts, or more."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # a history of its own
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (file,) = (file for file in EXAMPLES if file.stem == name)
    notebook = nbformat.read(file, as_version=4)
    files = {"transport": "ipc", "ip": str(tmp_path / "kernel")}  # a free port may be another process's by then
    given = {"timeout": 600, "startup_timeout": 600, "config": Config({"KernelManager": files})}
    nbclient.NotebookClient(notebook, kernel_name="python3", **given).execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(pages) == shown
    assert sum(page.count("<svg") for page in pages) >= charts
    assert not any("<script" in page for page in pages)
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
