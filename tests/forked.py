"""The command line in children of a process that has imported everything: a run costs what it does, not what torch's
import does. A child is a program of its own: its group, streams, working directory and way out.

As a program it is that process: it is asked on one pipe and answers on another, a line of JSON each.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAVY = (
    *("torch", "numpy", "scipy.optimize", "scipy.sparse", "safetensors.torch", "sklearn.datasets", "pandas"),
    *("altair", "vl_convert", "jinja2", "onnx", "onnxscript", "numba", "PIL.Image"),
    *("pebble", "torch.onnx", "torch.export", "torch.fx", "repairability.cli", "repairability.report.store"),
    *("repairability.experiments", "repairability.demo", "repairability.checkup", "repairability.deploy"),
    *("repairability.detect", "repairability.pruning", "repairability.training"),
)
WORKED = ".worked"
INTERRUPT = [signal.SIGINT]
MODE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY
CLOSED, BROKEN = "closed", "broken"
"""In the place of a stream's file; broken: a pipe that nobody reads any more."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (negative: by that signal), what it said, and after how many seconds it had done
    what it had to, whatever its way out took.
    """

    code: int
    out: str
    err: str
    seconds: float


class Forks:
    """Starts children; one at a time. `begin` gives the child's process id, `end` waits for it."""

    def __init__(self) -> None:
        (self._asked, asking), (answering, self._answered) = os.pipe(), os.pipe()
        asks, answers = self._asked, self._answered
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(asks), str(answers)],
            pass_fds=(asks, answers),
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
        )
        os.close(asks)
        os.close(answers)
        self._asking, self._answering = os.fdopen(asking, "w"), os.fdopen(answering)
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        return json.loads(self._answering.readline())

    def begin(self, arguments: list[str], folder: Path, *, struck: bool = False, **streams: str) -> int:
        """`streams` are stdout and stderr (files, CLOSED or BROKEN), and the encoding of stdout. `struck`: it is
        interrupted as soon as it has begun.
        """
        given = {"stdout": str(folder / ".stdout"), "stderr": str(folder / ".stderr"), "encoding": "utf-8", **streams}
        self._given, self._worked = given, folder / WORKED
        asked = {"arguments": arguments, "folder": str(folder), "struck": struck, **given}
        self._asking.write(json.dumps(asked) + "\n")
        self._asking.flush()
        return int(self._answer())

    def ends_within(self, seconds: float) -> bool:
        return bool(select.select([self._answering], [], [], seconds)[0])

    def end(self) -> Ended:
        status, said = self._answer(), []
        for name in ("stdout", "stderr"):
            file = Path(self._given[name])
            said.append(file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "")
            if file.name.startswith(".std"):
                file.unlink()
        seconds = float(self._worked.read_text(encoding="utf-8")) if self._worked.exists() else 0.0
        self._worked.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), *said, seconds)

    def run(self, arguments: list[str], folder: Path, **streams: str) -> Ended:
        self.begin(arguments, folder, **streams)
        return self.end()

    def close(self) -> None:
        self._asking.close()
        self.process.wait(60)
        self._answering.close()


def _serve(asked: int, answered: int) -> dict[str, Any] | None:
    """Answer until nobody asks any more; in a child, what was asked."""
    for line in os.fdopen(asked):
        wanted: dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            os.close(answered)
            return wanted
        os.setpgid(child, child)  # it does so too: whoever comes first
        os.write(answered, f"{child}\n".encode())
        os.write(answered, f"{os.waitpid(child, 0)[1]}\n".encode())
    return None


def _become(wanted: dict[str, Any]) -> None:
    """What a program finds when it begins."""
    os.setpgid(0, 0)
    os.chdir(wanted["folder"])
    if wanted["struck"]:
        os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["repairability", *wanted["arguments"]]
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.close(descriptor)
        setattr(sys, name, None)
        if wanted[name] == CLOSED:
            continue
        opened = _broken_pipe() if wanted[name] == BROKEN else os.open(wanted[name], MODE, 0o666)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        encoding, errors = (wanted["encoding"], "strict") if descriptor == 1 else ("utf-8", "backslashreplace")
        stream = open(descriptor, "w", closefd=False, encoding=encoding, errors=errors)  # noqa: SIM115
        setattr(sys, name, stream)


def _broken_pipe() -> int:
    read, write = os.pipe()
    moved = os.dup(write)  # the first free numbers are the standard streams' own
    os.close(read)
    os.close(write)
    return moved


def _main() -> None:
    from repairability._vision import torchvision

    for module in HEAVY:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:  # an extra that is not there
            continue
    for module in ("models", "datasets", "transforms.v2"):
        torchvision(module)
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "a thread does not survive a fork"
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)  # a child is interrupted when it has begun
    gc.freeze()  # a child need not look through what is here already
    os.write(int(sys.argv[2]), b'"ready"\n')
    wanted = _serve(int(sys.argv[1]), int(sys.argv[2]))
    if wanted is not None:
        _become(wanted)
        from repairability import __main__, _interrupts, cli

        command_line, all_done, begun = cli.main, _interrupts.all_done, time.perf_counter()

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)  # what came before comes now
            command_line()

        def end() -> None:
            all_done()
            Path(wanted["folder"], WORKED).write_text(str(time.perf_counter() - begun), encoding="utf-8")

        cli.main, _interrupts.all_done = begin, end
        __main__.main()


if __name__ == "__main__":
    _main()
