"""What a test injects into every process of a struck sweep, for as long as a file in $FAULTS says so: `clock` holds the
seconds by which the clock has jumped, `full` says that the disk is full.
"""

import errno
import os
import time

_time, _fsync = time.time, os.fsync


def _said(name: str) -> str | None:
    try:
        with open(os.path.join(os.environ["FAULTS"], name), encoding="utf-8") as file:
            return file.read()
    except (KeyError, OSError):
        return None


def _jumped() -> float:
    return _time() + float(_said("clock") or 0)


def _synced(handle: int) -> None:
    if _said("full") is not None:
        raise OSError(errno.ENOSPC, "No space left on device")
    _fsync(handle)


time.time = _jumped
time.time_ns = lambda: int(_jumped() * 1e9)
os.fsync = _synced  # type: ignore[assignment]
