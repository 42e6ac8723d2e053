"""The program's way out, in processes of their own: a handler of signals is the whole process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import interruptible

HEAD = """
import signal, sys, time
from repairability import _interrupts, cli
from repairability.__main__ import main

def strike():
    signal.raise_signal(signal.SIGINT)

class Struck:
    def __del__(self):
        strike()

def swallowed():
    try:
        strike()
    except KeyboardInterrupt:
        pass

def lost():
    swallowed()
    raise RuntimeError("of a module that is half imported")

def in_a_destructor():
    Struck()
    time.sleep(60)

def done():
    _interrupts.all_done()
    strike()

def ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _interrupts.listen()
    strike()

def failing():
    raise RuntimeError("a mistake of ours")

def ending():
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("strike", 130, ""),
        ("swallowed", 0, ""),
        ("lost", 130, ""),
        ("in_a_destructor", 130, ""),
        ("done", 0, ""),
        ("ignored", 0, ""),
        ("ending", 3, ""),
        ("failing", 1, "RuntimeError: a mistake of ours"),
    ],
)
def test_the_way_out(what: str, code: int, said: str) -> None:
    program = f"{HEAD}\ncli.main = {what}\nmain()\n"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, preexec_fn=interruptible
    )
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert bool(ended.stderr) == bool(said)


@pytest.mark.parametrize(("error", "code"), [("InputError('x')", 130), ("RuntimeError('x')", 130), ("None", 0)])
def test_an_error_behind_an_interrupt_is_its_consequence(error: str, code: int) -> None:
    """In a verb: a library that swallowed it fails later, perhaps of an extra that seems to be absent."""
    program = f"""{HEAD}
from repairability.cli import calling
from repairability.cli.output import Answer
from repairability.errors import InputError

def verb() -> Answer:
    swallowed()
    error = {error}
    if error is not None:
        raise error
    return Answer({{}}, ["whole"])

cli.main = lambda: calling.as_command(verb)(as_json=False)
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, preexec_fn=interruptible
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == ("interrupted; no file is half-written\n" if code else "")
