"""What every reported figure carries: commit, versions, hardware; and what it took of time and memory."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
def processor() -> str:
    """Its name; where that tells no generation, with family and model too: "AMD EPYC 25/17"."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        facts = [line.split(":", 1) for line in text.partition("\n\n")[0].splitlines() if ":" in line]
        known = {key.strip(): value.strip() for key, value in facts}
        name = known.get("model name")
        if name and not any(x.isdigit() for x in name) and {"cpu family", "model"} <= known.keys():
            name = f"{name} {known['cpu family']}/{known['model']}"
        if name:
            return name
    return platform.processor() or platform.machine()


@cache
def hardware() -> str:
    """The processor, its threads in use, and the accelerator if there is one."""
    parts = [processor(), f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the seconds of a block to its stage's."""
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start


def forget_peak_memory() -> None:
    """Linux forgets a process's peak when asked; elsewhere the peak is that of all runs so far."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory() -> float | None:
    """Of this process, in MB; None where the system does not say."""
    known = _status("VmHWM")
    if known is not None:
        return known
    with suppress(ImportError):
        import resource  # Windows has none

        unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
    return None


@dataclass(frozen=True)
class MemoryGrowth:
    """By how much this process grew at its peak since here, without resetting anything that others read."""

    now: float | None = field(default_factory=lambda: _status("VmRSS"))
    peak: float | None = field(default_factory=peak_memory)

    def megabytes(self) -> float | None:
        """None where it is not known: the system does not say, or the peak of all is an earlier one."""
        highest = peak_memory()
        if highest is None or self.now is None or self.peak is None or highest <= self.peak:
            return None
        return round(highest - self.now, 1)


def _status(line: str) -> float | None:
    """Of this process, by Linux, in MB."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return round(next(int(x.split()[1]) for x in lines if x.startswith(line)) / 1024, 1)
    return None


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
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none (not a checkout)"
    return commit.stdout.decode().strip() + (" (changed)" if changed.stdout.strip() else "")
