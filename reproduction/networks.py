"""The networks of the studies: `networks.toml`, and the one command that copies or trains each of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from repairability._files import write_atomically
from repairability.errors import InputError, unknown
from repairability.experiments.spec import Checked, read_as
from repairability.experiments.study import read_toml
from repairability.tables import Table

FILE = Path(__file__).parent / "networks.toml"


class Measured(Checked):
    """What was noted of a network, and where."""

    top1: float
    images: int
    source: str
    minutes: float | None = None


class Network(Checked):
    """How one network came to be. `given` is the file it is a copy of; others are trained, from `start` or scratch."""

    what: ClassVar[str] = "key of a network"
    file: str
    model: str
    data: str
    about: str
    num_classes: int | None = None
    image_size: int | None = None
    given: str | None = None
    sha256: str | None = None
    start: str | None = None
    freeze: str | None = None
    epochs: int = 5
    rate: float = 0.05
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    measured: Measured | None = None

    def command(self, folder: Path, data: str) -> list[str]:
        """The training as `repairability` is called; `data` is where the images are."""
        start = ["--from-scratch"] if self.start is None else ["--weights", str(folder / self.start)]
        start += [] if self.freeze is None else ["--freeze", self.freeze]
        sizes = {"--num-classes": self.num_classes, "--image-size": self.image_size}
        more = [word for option, size in sizes.items() if size is not None for word in (option, str(size))]
        recipe = ["--epochs", str(self.epochs), "--rate", str(self.rate), "--seed", str(self.seed)]
        recipe += ["--precision", self.precision]
        return ["finetune", self.model, *start, "--data", data, *more, *recipe, "--out", str(folder / self.file)]


class NetworksFile(Checked):
    """What networks.toml may say."""

    network: list[Network] = Field([])


def read_networks(file: Path = FILE) -> dict[str, Network]:
    """By their files, each after the one it starts from."""
    networks = read_as(NetworksFile, read_toml(file)[1]).network
    known: dict[str, Network] = {}
    for network in networks:
        if network.start is not None and network.start not in known:
            raise unknown(f"network that {network.file} starts from", network.start, known)
        known[network.file] = network
    return known


def make(folder: Path, given: Path, data: Path, only: Sequence[str] = (), file: Path = FILE) -> Iterator[str]:
    """Copy or train what is not in `folder` yet, and say of each what was done. `given` holds the checkpoints, `data`
    the npz files; `only` takes some of the networks, and those they start from.
    """
    networks = read_networks(file)
    for name in only:
        if name not in networks:
            raise unknown("network", name, networks)
    wanted = set(only or networks)
    for name in reversed(networks):
        wanted |= {start for start in (networks[name].start,) if start is not None and name in wanted}
    folder.mkdir(parents=True, exist_ok=True)
    for name, network in networks.items():
        if name in wanted and (folder / name).is_file():
            yield f"{name} is there"
        elif name in wanted and network.given is not None:
            _copy(network, network.given, given if (given / network.given).is_file() else data, folder)
            yield f"{name}: copied"
        elif name in wanted:
            images = data / f"{network.data}.npz"
            command = network.command(folder, f"npz:{images}" if images.is_file() else network.data)
            yield f"{name}: repairability {' '.join(command)}"
            if subprocess.run([sys.executable, "-m", "repairability", *command], check=False).returncode:
                raise InputError(f"{name} was not trained; the same command goes on from its last whole epoch")


def table(file: Path = FILE) -> Table:
    """Every network with its recipe and what was measured."""
    rows = []
    for network in read_networks(file).values():
        scratch = "from scratch" if network.start is None else f"from {network.start}"
        precision = "" if network.precision == "float32" else f", {network.precision}"
        how = "given" if network.given else f"{scratch}, {network.epochs} epochs, seed {network.seed}{precision}"
        noted = network.measured
        figures = ("defined, not trained yet", "", "") if noted is None else _figures(noted)
        rows.append((network.file, f"{network.model} / {network.data}", how, network.about, *figures))
    head = ("file", "network", "how", "about", "top-1 as measured", "minutes", "noted in")
    return Table(head, rows, "Networks")


def _figures(noted: Measured) -> tuple[str, str, str]:
    minutes = "" if noted.minutes is None else f"{noted.minutes:g}"
    return f"{noted.top1:g} % of {noted.images:,} images", minutes, noted.source


def _copy(network: Network, name: str, place: Path, folder: Path) -> None:
    source = place / name
    if not source.is_file():
        raise InputError(f"{network.file} is a copy of {source}, which is not there")
    content = source.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    if digest != network.sha256:
        raise InputError(f"{source} is another file than networks.toml means: {digest}, not {network.sha256}")
    write_atomically(folder / network.file, content)
