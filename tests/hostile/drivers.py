"""Sweeps as processes of their own: forked from a warm one, watched, waited for."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conftest import PATIENCE, eventually
from test_experiments import with_tests

HERE = Path(__file__).parent
RAY_BEGINS = 180.0
RAY = r"^\S*/raylet/raylet "
WORKER = r"spawn_main\(|^ray::(IDLE|run_job)"


@dataclass(frozen=True)
class Driver:
    """A sweep that runs: its process, and the folder with what it says."""

    pid: int
    folder: Path
    mark: str

    def alive(self) -> bool:
        return not self.ended(0)

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)

    def end(self) -> tuple[int | None, str, str]:
        """Its exit code (none where it was killed), what it answered and what it said besides."""
        if not self.ended(RAY_BEGINS) and self.family(RAY) and not self.family(WORKER):
            os.kill(self.pid, signal.SIGKILL)  # Ray's own start hangs, now and then, where processes are stopped
        assert self.ended(PATIENCE), f"hangs; it said: {self.said('err')}"
        return int(self.said("code")) if self.said("code") else None, self.said("out"), self.said("err")

    def said(self, name: str) -> str:
        file = self.folder / name
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def family(self, pattern: str = "") -> list[int]:
        """Processes that it started, and they: those whose command line has the pattern."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                ours = f"FAULTS={self.mark}\0".encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if ours and command and re.search(pattern, command):
                found.append(int(entry.name))
        return sorted(found)


class Warm:
    """Where drivers come from: forked from a process that has imported everything, in a hundredth of a second."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(HERE / "injected"), str(HERE), with_tests()])
        settings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        settings |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # a minute by default
        self.drivers: list[Driver] = []
        command = [sys.executable, "-c", "from warm import main; main()"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=settings)

    def sweep(self, place: Path, store: Path, executor: str, workers: int) -> Driver:
        """`repairability sweep` in a folder of its own below the place."""
        folder = place / f"driver-{len(list(place.glob('driver-*')))}"
        folder.mkdir()
        arguments = ["sweep", str(place / "struck.toml"), "--store", str(store), "--executor", executor, "--json"]
        arguments += ["--workers", str(workers)]
        request = {"arguments": arguments, "environment": {"FAULTS": str(place)}, "folder": str(folder)}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        self.drivers.append(Driver(int(self.process.stdout.readline()), folder, str(place)))
        return self.drivers[-1]

    def close(self) -> None:
        """In the end no process is left, of any driver."""
        self.process.communicate()
        for driver in self.drivers:
            assert eventually(lambda: not driver.family()), f"of {driver.folder} processes are left"  # noqa: B023
            assert driver.ended(0)
