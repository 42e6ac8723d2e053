"""The peers, and the records of what was measured: one small JSON file for each in results/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairability._files import write_atomically
from repairability._json import read_json, strict_json

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SPARSITIES = {
    "resnet20": (0.7, 0.8, 0.9, 0.95, 0.975),
    "resnet18": (0.7, 0.8, 0.9, 0.95, 0.975),
    "gpt": (0.5, 0.7, 0.8, 0.9),
}
OURS = 3
"""What a script ends with where our own part of it fails, before the peer's: an error of the place, never a record."""

MASKS = ("resnet18", 0.95)
"""The network and the sparsity at which allocation and masks are timed."""


@dataclass(frozen=True)
class Peer:
    """How it is called, and the statement that a user's code begins with."""

    label: str
    statement: str


PEERS = {
    "repairability": Peer("repairability", "from repairability import prune"),
    "torch_prune": Peer("torch.nn.utils.prune", "from torch.nn.utils import prune"),
    "nncf": Peer("NNCF", "import nncf, nncf.torch"),
    "fasterai": Peer("fasterai", "from fasterai.sparse.sparsifier import Sparsifier"),
    "nni": Peer("NNI", "from nni.compression.pruning import LevelPruner"),
    "torchao": Peer("torchao", "from torchao.sparsity import WandaSparsifier"),
    "torch_pruning": Peer("Torch-Pruning", "import torch_pruning"),
    "llmcompressor": Peer("llm-compressor", "from llmcompressor import oneshot"),
}
INSTALL_FIELDS = ("commit", "date", "hardware")
WORK_FIELDS = ("what", "entry", "network", "sparsity", "commit", "date", "seed", "threads", "hardware", "versions")


def quiet(work: dict[str, Any]) -> bool:
    """Whether its seconds count: before it, the machine had no more to do than work like this, one after the other."""
    return "load" in work and work["load"] <= work.get("threads", 1) + 0.8


def final(work: dict[str, Any]) -> bool:
    """Whether it need not be done again: seconds that were taken beside other work are no figure."""
    return "failed" in work or work["what"] == "accuracy" or quiet(work)


def script_of(name: str) -> Path:
    return HERE / f"with_{name}.py"


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What is known of a peer; of a new one, nothing."""
    file = folder / f"{name}.json"
    if not file.is_file():
        return {"peer": name, "install": None, "work": []}
    content: dict[str, Any] = read_json(file.read_text(encoding="utf-8"))
    return content


def write(content: dict[str, Any], folder: Path = RESULTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content["work"].sort(key=key_of)
    write_atomically(folder / f"{content['peer']}.json", strict_json(content, indent=1) + "\n")


def key_of(work: dict[str, Any]) -> tuple[str, str, str, float]:
    return work["what"], work["network"], work["entry"], work["sparsity"]


def every(folder: Path = RESULTS) -> Iterator[tuple[str, dict[str, Any]]]:
    """All peers that have a record, in the order of PEERS."""
    return ((name, read(name, folder)) for name in PEERS if (folder / f"{name}.json").is_file())
