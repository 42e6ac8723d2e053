"""What the verbs share of their options: single ones, and bundles that build what they describe.

A bundle is a dataclass; `calling.as_command` spreads its fields over the command line. Nothing heavy is imported before
a bundle builds something, so the names of the library's registries stand here as text, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typer import Argument, Option

import repairability as rp
from repairability._files import read_text
from repairability._json import read_json
from repairability.cli.checks import check_weights
from repairability.cli.output import note, notices
from repairability.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from repairability.data import Data
    from repairability.network.batches import Batch

RULES = "uniform, global, erk, lamp, raw, residual, rr, output, forced"
SCORES = "magnitude, activation, second_order, alternating"
REPAIRS = (
    "none, cr, cr-simultaneous, cr-median, cr-mean, cr-small-mean, affine, affine-moments, bn, bn-cumulative, "
    "bn-short, reconstruct, reconstruct-all, rectified, match, match-flips, match-crops"
)
OBSERVED = "layer, norm, norm-or-layer, literal"
METHODS = "cts, agreement"
EXECUTORS = "local, processes, ray"
FILE_FORMATS = "dense, sparse"
VALUES = "float32, float16, int8"
FORMATS = "html, md, csv, latex, png, pdf, svg"
DATA_SETS = "cifar10, cifar100, stl10, pets, imagenette, imagewoof"
NETWORKS = "resnet20, resnet32, resnet44, resnet56, resnet110, vgg16_bn_quarter, resnet50_v1, digits"
FIRST_CONV, LAST_LINEAR = "@first", "@last"
TYPES = "conv (= conv2d), conv1d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, linear"


def completing(names: str) -> Callable[[str], list[str]]:
    """What a shell offers for a beginning, of names with commas between."""

    def offered(incomplete: str) -> list[str]:
        return [name for name in names.split(", ") if name.startswith(incomplete)]

    return offered


SPARSITY = Option(..., "--sparsity", "-s", help="Target over the prunable weights: 0.95 is 95 %.")
RULE_OPTIONS = Option(
    None,
    metavar="NAME=VALUE",
    help="The rule's own (repeatable; VALUE as JSON or text): floor, cap (erk), over=prunable (global), solver=exact "
    "(raw, residual, rr; output has it), pinned, rest (forced).",
)
CURVES = Option(
    None,
    metavar="FILE",
    help="A diagnosis (.json or .csv, from the verb diagnose), for raw, residual and rr; for output one made with "
    "--output.",
)
SCORE = Option("magnitude", help=f"Which weights go: {SCORES}.", autocompletion=completing(SCORES))
REPAIR = Option("cr+bn", help=f"{REPAIRS}, or a chain such as cr+bn.", autocompletion=completing(REPAIRS))
OBSERVE = Option("layer", help=f"Where damage is measured: {OBSERVED}.", autocompletion=completing(OBSERVED))
COUNT = Option(128, help="Calibration images for the statistics.")
SEED = Option(0, help="Of random weights where none are given, and of which images are drawn.")
SEEDS = Option(1, help="How many draws of calibration images.")
ROOT = Option(Path("data"), help="Where torchvision's data sets lie, or are downloaded to.")
DEVICE = Option("cpu", help="cpu, cuda, cuda:1, mps ...")
THREADS = Option(None, help="CPU threads. Default: torch's own choice.")
FILE_FORMAT = Option(
    "dense",
    metavar="FORMAT",
    help=f"{FILE_FORMATS}: with all zeros, or near the entropy of what stays. Each is safetensors, and loads alike.",
    autocompletion=completing(FILE_FORMATS),
)
VALUE_TYPE = Option(
    "float32",
    "--values",
    metavar="TYPE",
    help=f"Of a sparse file's weights: {VALUES}. float32 is exact; int8 has a scale for each filter.",
    autocompletion=completing(VALUES),
)
STORE = Option(..., metavar="DIR", help="A store of runs, or an archive of one.")


@dataclass(frozen=True)
class Network:
    """Which network, and its weights."""

    panel: ClassVar[str] = "Network"
    model: str = Argument(
        metavar="MODEL",
        help="torchvision's (resnet18), resnet50_v1, resnet20/32/44/56/110, vgg16_bn_quarter, digits, or "
        "package.module:callable or path/to/file.py:callable (your own code: it is run).",
        autocompletion=completing(NETWORKS),
    )
    weights: str | None = Option(
        None,
        metavar="FILE",
        help="State dict (safetensors, or torch read weights-only), 'imagenet', or for digits 'trained'.",
    )
    num_classes: int | None = Option(None, help="Classes of the model's head.")

    def build(self, seed: int = 0, device: torch.device | str = "cpu", *, layers_only: bool = False) -> nn.Module:
        """Random weights are mentioned, unless only the layers are asked for: on images such a network means little. A
        callable's network comes as it is built, and may hold weights.
        """
        if self.weights == rp.training.TRAINED:
            rp.training.check_trained(self.model, num_classes=self.num_classes)
            return rp.training.digits_network(rp.load_data("digits")).to(device)
        model = self.create(self.num_classes, seed)
        if self.weights is None and not layers_only:
            self._mention_random(seed)
        return model.to(device)

    def create(self, num_classes: int | None, seed: int, *, new_head: bool = False) -> nn.Module:
        """As the weights' file has it, or random."""
        check_weights(self.weights)
        with notices.working(f"building {self.model}"):
            return rp.create_model(
                self.model, num_classes=num_classes, weights=self.weights, new_head=new_head, seed=seed
            )

    def _mention_random(self, seed: int) -> None:
        from repairability.models import has_pretrained, names_a_callable

        if not names_a_callable(self.model):
            more = " or 'imagenet'" if has_pretrained(self.model) else " or 'trained'" if self.model == "digits" else ""
            note(f"{self.model} has random weights (seed {seed}); --weights takes a file{more}")


@dataclass(frozen=True)
class DataSource:
    """Which data, and where they lie."""

    panel: ClassVar[str] = "Data"
    data: str = Option(
        ...,
        metavar="DATA",
        help=f"{DATA_SETS}, digits, npz:PATH or folder:PATH; images alone, without labels, are enough to prune.",
        autocompletion=completing(f"{DATA_SETS}, digits, npz:, folder:"),
    )
    root: Path = ROOT
    image_size: int | None = Option(None, help="Resize images to this side (bilinear, antialiased).")

    def read(self) -> Data:
        with notices.working(f"reading {self.data}"):
            return rp.load_data(self.data, root=self.root, image_size=self.image_size)


@dataclass(frozen=True)
class LayerChoice:
    """Which layers may be pruned."""

    panel: ClassVar[str] = "Layers"
    types: str = Option(
        "auto",
        help=f"auto: convolutions, and linear layers where they hold most weights; or, comma-separated: {TYPES}.",
    )
    skip: list[str] = Option(
        [FIRST_CONV, LAST_LINEAR],
        metavar="GLOB",
        help=f"Layers to leave dense (repeatable). {FIRST_CONV}: the first convolution, {LAST_LINEAR}: the last linear "
        "layer; '' skips nothing.",
    )
    only: list[str] = Option(["*"], metavar="GLOB", help="Only these layers (repeatable).")

    def settings(self) -> dict[str, Any]:
        """As `prunable_layers` and `PruneConfig` take them."""
        kinds = tuple(kind.strip() for kind in self.types.split(","))
        types = self.types if self.types == "auto" else kinds
        return {"types": types, "skip": tuple(glob for glob in self.skip if glob), "only": tuple(self.only)}

    @property
    def usual(self) -> bool:
        """Whether nobody chose."""
        return self.settings() == {"types": "auto", "skip": (FIRST_CONV, LAST_LINEAR), "only": ("*",)}

    def of(self, model: nn.Module, batch: Batch = None) -> rp.Layers:
        return rp.prunable_layers(model, batch=batch, **self.settings())


@dataclass(frozen=True)
class Machine:
    """Where it is reckoned."""

    panel: ClassVar[str] = "Machine"
    device: str = DEVICE
    threads: int | None = THREADS

    def ready(self) -> torch.device:
        """The device, once it is known to be there; the threads are set."""
        from repairability._torch import device_of

        use_threads(self.threads)
        return device_of(self.device)


def draws(seed: int, seeds: int) -> range:
    """The seeds of so many draws."""
    return range(seed, seed + seeds)


def use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def calibration_images(data: Data, count: int, seed: int, more: int = 0) -> rp.CalibrationSet:
    """The statistics' images, as many of BatchNorm's as the training part has, and `more`; by seed, labels unread."""
    from repairability.calibration import images_for

    wanted = min(len(data.train), images_for(count, more))
    with notices.working("drawing calibration images"):
        return rp.CalibrationSet(data.unlabeled(wanted, seed), count=count)


def sparsities_of(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} takes sparsities with commas between, such as 0.9,0.95, not {text!r}") from error


def rule_options(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE as a rule takes it: a value that is JSON means what JSON says, any other is text."""
    options: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise InputError(f"--option takes NAME=VALUE, such as solver=exact, not {pair!r}")
        if name in options:
            raise InputError(f"--option {name} is given twice: {options[name]!r} and {text!r}")
        try:
            options[name] = read_json(text)
        except InputError:
            options[name] = text
    return options


def by_rule(rules: Sequence[str], pairs: list[str] | None) -> dict[str, dict[str, Any]]:
    """The options that each rule takes. A name nobody knows, and an option that no rule takes, are refused."""
    from repairability.rules import get_rule, own_options

    given = rule_options(pairs)
    own = {rule: own_options(rule, rules, given) for rule in rules}
    for rule in rules:
        get_rule(rule).check(own[rule])
    return own


def read_diagnosis(file: Path | None) -> rp.Diagnosis | None:
    """As the verb diagnose writes it, in CSV or JSON by the file's name."""
    if file is None:
        return None
    text = read_text(file)
    try:
        return rp.Diagnosis.from_csv(text) if is_csv(file) else rp.Diagnosis.from_json(text)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"
