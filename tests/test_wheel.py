"""The wheel as a stranger installs it: nothing of the repository is needed, and nothing that it needs is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import repairability

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """An environment of its own and an empty folder to work in."""

    wheel: Path
    python: Path
    folder: Path

    def run(self, *command: str | Path) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run([*map(str, command)], cwd=self.folder, env=clean, capture_output=True, text=True)
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def repairability(self, *arguments: str) -> str:
        return self.run(self.python.with_name("repairability"), *arguments)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built, and installed without what it depends on, which is lent by a path: torch alone is a gigabyte."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling (extra dev)")
    place = tmp_path_factory.mktemp("installed")
    (place / "work").mkdir()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", place, ROOT]
    subprocess.run([*map(str, build)], check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "env", with_pip=False)
    python = place / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([*map(str, install)], check=True, capture_output=True)
    (packages,) = place.glob("env/lib/python*/site-packages")
    # a plain path: the .pth files in there, that of the repository's own installation among them, are not read
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return Installed(wheel, python, place / "work")


def test_every_file_is_inside_and_no_other(installed: Installed) -> None:
    source = ROOT / "src"
    there = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == {name for name in there if "__pycache__" not in name}
    assert {"repairability/py.typed", "repairability/report/page.html"} <= inside


def test_it_is_the_installed_one_that_runs(installed: Installed) -> None:
    where = installed.run(installed.python, "-c", "import repairability; print(repairability.__file__)")
    assert where.startswith(str(installed.python.parents[1]))
    assert installed.repairability("--version") == f"repairability {repairability.__version__}\n"
    assert installed.run(installed.python, "-m", "repairability", "--version").endswith(
        f"{repairability.__version__}\n"
    )


NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""


def test_a_stranger_prunes(installed: Installed) -> None:
    """A network of one's own in a file, the package's data, a page: what needs files of the package finds them."""
    (installed.folder / "my_model.py").write_text(NET, encoding="utf-8")
    files = ["--out", "pruned.safetensors", "--format", "sparse"]
    installed.repairability("prune", "my_model.py:build", "--data", "digits", "-s", "0.8", "--recipe", "fast", *files)
    assert "sparse" in installed.repairability("info", "pruned.safetensors")
    installed.repairability("diagnose", "my_model.py:build", "--data", "digits", "--out", "diagnosis.json")
    installed.repairability("report", "diagnosis.json", "--out", "page.html")
    assert "</html>" in (installed.folder / "page.html").read_text(encoding="utf-8")


def test_a_type_checker_knows_the_public_names(installed: Installed) -> None:
    """`typed_user.py`, strictly: py.typed is found, and no public call is of type Any."""
    script = ROOT / "tests" / "typed_user.py"
    options = ["--strict", "--config-file=", f"--python-executable={installed.python}", "--cache-dir", ".mypy_cache"]
    assert "Success" in installed.run(sys.executable, "-m", "mypy", *options, script)
