"""Numbers that nobody can mean: refused by name, before any work, by the command line and by the library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from repairability import CalibrationSet, InputError, create_model, load_data
from repairability._torch import MOST_SEED, MOST_THREADS, seeded, threads
from repairability.cli import checks
from test_cli_images import run

DIGITS = ("digits", "--data", "digits")
ON_IMAGES = [
    ("diagnose", *DIGITS),
    ("prune", *DIGITS, "-s", "0.9"),
    ("detect", *DIGITS),
    ("evaluate", *DIGITS),
    ("doctor", *DIGITS),
    ("finetune", *DIGITS, "--from-scratch", "--out", "net.safetensors"),
]
WRONG = [
    *(("--threads", value) for value in ("0", "-1", "1025", "100000", str(10**30))),
    *(("--image-size", value) for value in ("0", "-3")),
    *(("--seed", value) for value in ("-1", str(2**63), str(2**64), str(10**40))),
]
CASES = [
    *((*verb, *wrong) for verb in ON_IMAGES for wrong in WRONG),
    *((*verb, "--count", value) for verb in ON_IMAGES[:3] for value in ("0", "-5")),
    ("evaluate", *DIGITS, "--limit", "-1"),
    ("prune", *DIGITS, "-s", "0.9", "--evaluate", "-1"),
    ("prune", *DIGITS, "-s", "nan"),
    ("prune", *DIGITS, "--speedup", "nan"),
    ("prune", *DIGITS, "--speedup", "inf"),
    ("prune", *DIGITS, "-s", "0.9", "--budget", "nan"),
    ("prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "nan"),
    ("detect", *DIGITS, "--low", "nan"),
    ("detect", *DIGITS, "--high", "inf"),
    ("detect", *DIGITS, "--sparsities", "0.9,nan"),
    ("diagnose", *DIGITS, "--grid", "0.9,nan"),
    ("diagnose", *DIGITS, "--grid", "0.9,0.8"),
    ("diagnose", *DIGITS, "--grid", ""),
    ("finetune", *DIGITS, "--from-scratch", "--out", "net.safetensors", "--rate", "nan"),
    ("finetune", *DIGITS, "--from-scratch", "--out", "net.safetensors", "--evaluate", "-1"),
    ("sweep", "s.toml", "--limit", "-1"),
    ("sweep", "s.toml", "--gpus", "nan"),
    ("sweep", "s.toml", "--gpus", "-1"),
    ("sweep", "s.toml", "--retries", "-1"),
    ("doctor", *DIGITS, "--samples", "-5"),
    ("accelerate", "digits", "--batch", "-5"),
    ("accelerate", "digits", "--threads", "100000"),
    ("export", *DIGITS, "--limit", "-1", "--out", "x.onnx"),
    ("export", *DIGITS, "--threads", "100000", "--out", "x.onnx"),
    ("demo", "--seeds", "-1"),
    ("demo", "--threads", "100000"),
    ("allocate", "digits", "-s", "nan"),
    ("allocate", "digits", "-s", "0.9", "--seed", str(2**64)),
]


@pytest.mark.parametrize("command", CASES, ids=" ".join)
def test_refused_by_the_command_line(
    command: tuple[str, ...], tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    before = torch.get_num_threads()
    code, out, err = run(capsys, *command)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ") or "note: " in err, err
    assert torch.get_num_threads() == before


def images(count: int, seed: int) -> object:
    return load_data("random:10").unlabeled(count, seed)


def with_threads(count: int) -> None:
    with threads(count):
        pass


def with_seed(seed: int) -> None:
    with seeded(seed):
        pass


CALLS: list[tuple[str, Callable[[], object]]] = [
    ("the count of images must be at least 1, not -1", lambda: images(-1, 0)),
    ("the count of images must be at least 1, not 0", lambda: images(0, 0)),
    ("the count of images must be a whole number, not 1.5", lambda: images(1.5, 0)),  # type: ignore[arg-type]
    ("seed must be at most", lambda: images(8, 2**64)),
    ("seed must be at least 0, not -1", lambda: images(8, -1)),
    ("seed must be at most", lambda: with_seed(2**64)),
    ("seed must be at most", lambda: create_model("digits", seed=2**64)),
    ("seed must be at most", lambda: CalibrationSet.read(torch.randn(8, 3, 8, 8), seed=2**64)),
    ("threads must be at most 1024", lambda: with_threads(100_000)),
    ("threads must be at least 1", lambda: with_threads(0)),
    ("image_size must be at least 1, not 0", lambda: load_data("random:10", image_size=0)),
    ("image_size must be at least 1, not -3", lambda: load_data("digits", image_size=-3)),
    ("limit must be at least 0, not -1", lambda: list(load_data("random:10").test.batches(limit=-1))),
]


@pytest.mark.parametrize(("message", "call"), CALLS, ids=[f"{i} {x[0]}" for i, x in enumerate(CALLS)])
def test_refused_by_the_library(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_command_line_knows_the_librarys_bounds() -> None:
    assert checks.MOST == {"threads": MOST_THREADS, "seed": MOST_SEED}
