"""What every reported figure carries: commit, versions, hardware."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import torch


@cache
def provenance() -> dict[str, str]:
    """Facts of this installation and machine, as short strings."""
    return {
        "repairability": _version("repairability"),
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "hardware": hardware(),
    }


@cache
def hardware() -> str:
    """The processor, its threads in use, and the accelerator if there is one."""
    names: list[str] = []
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    parts = [names[0] if names else platform.processor() or platform.machine(), f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Of the checkout this package runs from, with a mark where files differ from it; an installed one has none."""
    folder = Path(__file__).parent
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none (not a checkout)"
    return commit.stdout.strip() + (" (changed)" if changed.stdout.strip() else "")
