"""A process that has imported everything and run nothing: for each line it reads it forks, the child is a driver."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from repairability import cli

IMPORTED = ("repairability.experiments.archive", "repairability.report.sections", "scipy.special")
"""What a sweep imports on its way."""


def main() -> None:
    """Of each request {"arguments", "environment", "folder"}: the process id of its driver, on standard output."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is imported is not copied page by page to be looked at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the drivers here
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            drive(request["arguments"], request["environment"], Path(request["folder"]))
        print(child, flush=True)


def drive(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    """The command line as it is, in a session of its own; what it says and its exit code go into the folder."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environment)
    for stream, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        os.dup2(os.open(folder / name, flags | os.O_CREAT, 0o600), stream)
    try:
        cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    (folder / "code").write_text(str(code), encoding="utf-8")
    threading._shutdown()  # as an interpreter ends, but without taking what was imported to pieces
    atexit._run_exitfuncs()
    os._exit(code)
