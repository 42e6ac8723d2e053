"""Standard streams that are closed, full, cut off, narrow, or of few letters: no traceback, and no work is lost."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forked import BROKEN, CLOSED, Ended, Forks
from repairability.checkpoints import read_content
from repairability.cli import VERBS
from repairability.cli.standard import BROKEN_PIPE
from verbs import DIGITS, QUICK, RUNS, check_done, fill, silent

STREAMS: dict[str, tuple[dict[str, str], int]] = {
    "ascii": ({"encoding": "ascii"}, 0),
    "closed": ({"stdout": CLOSED}, 0),
    "full": ({"stdout": "/dev/full"}, 2),
    "cut off": ({"stdout": BROKEN}, BROKEN_PIPE),
    "errors closed": ({"stderr": CLOSED}, 0),
    "errors full": ({"stderr": "/dev/full"}, 0),
    "errors cut off": ({"stderr": BROKEN}, 0),
    "both closed": ({"stdout": CLOSED, "stderr": CLOSED}, 0),
    "both cut off": ({"stdout": BROKEN, "stderr": BROKEN}, BROKEN_PIPE),
}
TELLING = {"prune", "evaluate", "finetune"}
"""They say things while they work."""
CASES = [
    pytest.param(verb, stream, marks=() if verb in QUICK else pytest.mark.slow, id=f"{verb}, {stream}")
    for verb in VERBS
    for stream in STREAMS
    if verb != "demo" and (verb in TELLING | {"layers"} or stream in ("ascii", "closed", "full", "cut off"))
]


@pytest.mark.parametrize(("verb", "stream"), CASES)
def test_streams(verb: str, stream: str, forks: Forks, folder: Path) -> None:
    streams, code = STREAMS[stream]
    ended = forks.run([verb, *RUNS[verb]], folder, **streams)
    silent(ended)
    assert ended.code == code, ended.err
    check_done(verb, folder)
    assert stream != "full" or "error: the answer cannot be written to standard output: No space left" in ended.err
    assert stream != "ascii" or ended.out


@pytest.mark.parametrize("arguments", [["--help"], ["prune", "--help"], ["layers", "digits", "--json"], ["nothing"]])
@pytest.mark.parametrize("stream", ["ascii", "closed", "full", "cut off", "both closed"])
def test_help_and_mistakes(arguments: list[str], stream: str, forks: Forks, folder: Path) -> None:
    streams, code = STREAMS[stream]
    ended = forks.run(arguments, folder, **streams)
    silent(ended)
    expected = 2 if arguments == ["nothing"] else code
    assert ended.code == expected or (ended.code, code) == (1, BROKEN_PIPE)  # Typer's own way to end


def terminal(columns: int, run: Callable[[str], Ended]) -> tuple[Ended, str]:
    """A run that writes on a terminal so wide, and what stands there."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
    seen: list[bytes] = []

    def look() -> None:
        while True:
            try:
                seen.append(os.read(ours, 4096))
            except OSError:  # closed at the other end
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        ended = run(os.ttyname(theirs))
    finally:
        os.close(theirs)
        looking.join()
        os.close(ours)
    return ended, b"".join(seen).decode(errors="replace")


NARROW = [pytest.param(verb, 20, marks=() if verb in QUICK else pytest.mark.slow) for verb in VERBS if verb != "demo"]


@pytest.mark.parametrize(("verb", "columns"), [*NARROW, *((verb, 1) for verb in QUICK)])
def test_a_narrow_terminal(verb: str, columns: int, forks: Forks, folder: Path) -> None:
    ended, seen = terminal(columns, lambda tty: forks.run([verb, *RUNS[verb]], folder, stdout=tty, stderr=tty))
    assert "Traceback" not in seen
    assert ended.code == 0, seen
    assert seen.strip()
    check_done(verb, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("{} >&-", 0),
        ("{} >/dev/full", 2),
        ("{} 2>/dev/full", 0),
        ("{} >&- 2>&- <&-", 0),
        ("set -o pipefail; {} | head -0", BROKEN_PIPE),
        ("PYTHONIOENCODING=ascii {}", 0),
        ("LC_ALL=C {}", 0),
        ("LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0 {}", 0),
        ("COLUMNS=20 {}", 0),
    ],
)
def test_in_a_shell(command: str, code: int, inputs: Path, tmp_path: Path) -> None:
    """The same by a shell and a fresh interpreter; `--out` of the list of letters that ASCII lacks is written."""
    fill(inputs, tmp_path)
    program = f"{sys.executable} -m repairability prune {' '.join(DIGITS)} -s 0.9 --recipe fast --evaluate 20 --out o"
    ended = subprocess.run(
        ["bash", "-c", command.format(program)], cwd=tmp_path, capture_output=True, text=True, errors="replace"
    )
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    assert read_content(tmp_path / "o").rows


def test_every_verb_is_here() -> None:
    assert set(RUNS) == set(VERBS)
