"""One environment for each peer, from exact pins: how long it takes, what it holds, how long its import takes."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PINS = HERE / "pins"
BASE = "torch_prune"  # torch alone: what every other environment begins with
HARNESS = "harness"  # what work.py needs beside a peer, installed when the peer has been measured
READY = ".ready"  # stands in an environment that is whole
IMPORTS = 5  # processes whose import is timed; the median counts


class InstallError(Exception):
    """pip refused; its last lines say why."""


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def pip(folder: Path, *words: str) -> float:
    """Seconds of one pip install, without its cache, so that a second time is like the first."""
    command = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--no-cache-dir", *words]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = [x for x in done.stdout.splitlines() if x.strip() and not x.startswith(("WARNING", "[notice]"))]
        raise InstallError("\n".join(lines[-6:]))
    return time.perf_counter() - start


def packages(folder: Path) -> dict[str, str]:
    """Every distribution there but pip itself, with its version."""
    command = [str(python_of(folder)), "-m", "pip", "list", "--format", "freeze", "--exclude", "pip"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return dict(line.split("==", 1) for line in done.stdout.split() if "==" in line)


def megabytes(folder: Path) -> float:
    """Of all files below, links not followed."""
    sizes = (os.lstat(Path(place) / name).st_size for place, _, names in os.walk(folder) for name in names)
    return round(sum(sizes) / 1e6, 1)


def import_seconds(folder: Path, statement: str) -> float:
    """The median of fresh processes, less what the interpreter takes to start; bytecode is there."""

    def once(code: str) -> float:
        start = time.perf_counter()
        command = [str(python_of(folder)), "-c", code]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    once(statement)
    times = [once(statement) - once("pass") for _ in range(IMPORTS)]
    return round(statistics.median(times), 3)


def made(name: str, folder: Path, statement: str) -> dict[str, Any]:
    """A fresh environment of a peer, and what it costs beside torch; then what the work needs."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    base = pip(folder, "-r", str(PINS / f"{BASE}.txt"))
    before, size = packages(folder), megabytes(folder)
    facts: dict[str, Any] = {"torch_seconds": round(base, 1), "torch_mb": size, "torch_packages": len(before)}
    seconds = 0.0
    if name != BASE:
        seconds = pip(folder, "-r", str(PINS / f"{name}.txt"), *((str(ROOT),) if name == "repairability" else ()))
    after = packages(folder)
    facts |= {
        "seconds": round(seconds, 1),
        "mb": round(megabytes(folder) - size, 1),
        "packages": sorted(f"{k}=={v}" for k, v in after.items() if before.get(k) != v),
        "import": statement,
    }
    try:
        facts["import_seconds"] = import_seconds(folder, statement)
        facts["torch_import_seconds"] = import_seconds(folder, "import torch")
    except subprocess.CalledProcessError as error:
        raise InstallError(f"it is installed, but {statement!r} fails") from error
    finish(folder)
    return facts


def finish(folder: Path) -> None:
    """What the work needs beside the peer: the harness's own versions of what the peer has not pinned."""
    pip(folder, "--no-deps", "-r", str(PINS / f"{HARNESS}.txt"))
    (folder / READY).touch()


def remake(name: str, folder: Path) -> None:
    """The same environment once more, for a peer whose install is on record: nothing is timed, torch's files are links
    to those of BASE beside it.
    """
    base = folder.parent / BASE
    if not (base / READY).exists():
        shutil.rmtree(base, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
        pip(base, "-r", str(PINS / f"{BASE}.txt"))
        finish(base)
    if name != BASE:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder, symlinks=True, copy_function=os.link)
        (folder / READY).unlink()
        pip(folder, "-r", str(PINS / f"{name}.txt"), *((str(ROOT),) if name == "repairability" else ()))
        finish(folder)
