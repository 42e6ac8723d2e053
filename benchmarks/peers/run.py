"""Measure the peers, each in its own environment, and keep a record of each piece of work in results/.

    python benchmarks/peers/run.py SHARED DATA [PEERS...] [--only accuracy|masks|seconds|install] [--again]

SHARED holds data/checkpoints, DATA what data/prepare.py writes (cifar10, cifar100); the language model lies beside
DATA, where benchmarks/transformer.py leaves it. What has a record is not done again, so a run that was stopped goes on
where it was. `--only seconds` times every pruning on an idle machine, three times, without evaluation, and
`--only masks` allocation and masks, seven times; page.py --write prints docs/peers.md from all that is there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import records
from environments import READY, ROOT, InstallError, made, python_of, remake

from repairability._json import read_json
from repairability.provenance import hardware, provenance

KINDS = ("install", "masks", "accuracy", "seconds")
DEFAULT = ("install", "masks", "accuracy")


def facts() -> dict[str, str]:
    return {"commit": provenance()["commit"], "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}


def installed(name: str, folder: Path, again: bool) -> bool:
    """Whether the peer's environment is there; if need be it is made, and what that took is recorded, once."""
    known = records.read(name)
    if known["install"] and not again:
        if "failed" in known["install"]:
            return False
        if not (folder / READY).exists():
            print(f"{name}: making its environment once more in {folder}", flush=True)
            try:
                remake(name, folder)
            except InstallError as error:  # it went before: an error of the place
                sys.exit(f"{name}: its environment cannot be made once more: {error}")
        return True
    print(f"{name}: making its environment in {folder}", flush=True)
    load = round(os.getloadavg()[0], 1)
    try:
        figures: dict[str, Any] = made(name, folder, records.PEERS[name].statement)
    except InstallError as error:
        figures = {"failed": str(error)}
    known["install"] = {**figures, **facts(), "hardware": hardware(), "load": load}
    records.write(known)
    print(f"{name}: {figures.get('failed') or 'installed'}", flush=True)
    return "failed" not in figures


def run_script(name: str, folder: Path, words: list[str], threads: int, timeout: float | None) -> Any:
    """What a peer's script writes; a script that dies is a failed piece of work."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "figures.json"
        command = [str(python_of(folder)), str(records.script_of(name)), *words, "--out", str(out)]
        settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": str(threads)}
        try:
            done = subprocess.run(
                command, env=settings, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"it took more than {timeout:g} s"}
        last = [x for x in done.stdout.splitlines() if x.strip()][-1:]
        if done.returncode == records.OURS:
            sys.exit(f"{name}: our part of the work fails in its environment, {folder}: {' '.join(last)}")
        if done.returncode or not out.is_file():
            return {"failed": " ".join([f"the process ended with {done.returncode}:", *last])[:400]}
        return read_json(out.read_text(encoding="utf-8"))


def pieces(
    entries: dict[str, Any], kinds: tuple[str, ...], networks: list[str]
) -> Iterator[tuple[str, str, str, float]]:
    """(what, network, entry, sparsity), the masks first."""
    if "masks" in kinds:
        yield from (
            ("masks", records.MASKS[0], entry, records.MASKS[1]) for entry in entries if entries[entry]["masks"]
        )
    for what in ("accuracy", "seconds"):
        if what in kinds:
            for network in networks:
                for entry in (x for x in entries if network in entries[x]["networks"]):
                    yield from ((what, network, entry, sparsity) for sparsity in records.SPARSITIES[network])


def measure(name: str, given: argparse.Namespace) -> None:
    folder: Path = given.cache / name
    if not installed(name, folder, given.again and "install" in given.only):
        print(f"{name}: its install failed, which is on record; --only install --again tries anew", flush=True)
        return
    places = [str(given.shared.resolve()), str(given.data.resolve())]
    entries = run_script(name, folder, [*places, "--list"], given.threads, None)
    if "failed" in entries:
        sys.exit(f"{name}: {entries['failed']}")
    wanted = list(pieces(entries, given.only, given.networks))
    known = [] if given.again else records.read(name)["work"]
    done = {records.key_of(x) for x in known if records.final(x)}
    failed = {(x["network"], x["entry"]) for x in known if "failed" in x}
    todo = [x for x in wanted if x not in done and x[1:3] not in failed]
    for i, (what, network, entry, sparsity) in enumerate(todo, 1):
        if (network, entry) in failed:
            continue  # it would fail at every sparsity, each time after its imports
        words = ["--what", what, "--network", network, "--entry", entry, "--sparsity", str(sparsity)]
        words += ["--threads", str(given.threads)]
        figures = run_script(name, folder, [*places, *words], given.threads, given.timeout)
        work = {"what": what, "network": network, "entry": entry, "sparsity": sparsity, **figures, **facts()}
        content = records.read(name)
        content["work"] = [x for x in content["work"] if records.key_of(x) != records.key_of(work)] + [work]
        records.write(content)
        if "failed" in figures:
            failed.add((network, entry))
        said = figures.get("failed") or f"{figures.get('score', '')} {figures['seconds']:.3f} s"
        print(f"{name} {i}/{len(todo)}: {what}, {network}, {entry}, {sparsity:g}: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="holds data/checkpoints")
    parser.add_argument("data", type=Path, help="holds cifar10.npz and cifar100.npz")
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(records.PEERS)}; all where none is named")
    parser.add_argument("--only", action="append", choices=KINDS, help=f"may be repeated; else {', '.join(DEFAULT)}")
    parser.add_argument("--networks", default="resnet20,resnet18,gpt", help="with commas between")
    parser.add_argument("--again", action="store_true", help="do what has a record once more")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one piece of work may take")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers", help="where environments are made")
    given = parser.parse_args()
    given.only, given.networks = tuple(given.only or DEFAULT), given.networks.split(",")
    for name in (x for x in given.peers if x not in records.PEERS):
        parser.error(f"no peer is called {name!r}; there are {', '.join(records.PEERS)}")
    for name in (x for x in given.networks if x not in records.SPARSITIES):
        parser.error(f"no network is called {name!r}; there are {', '.join(records.SPARSITIES)}")
    for place in (given.shared / "data" / "checkpoints", given.data / "cifar10.npz", given.data / "cifar100.npz"):
        if not place.exists():
            parser.error(f"{place} is not there")
    if "gpt" in given.networks and not list((given.data.parent / "transformer").glob("gpt-*.safetensors")):
        # an error of the place is no result
        print("gpt is left out: python benchmarks/transformer.py --sparsities '' trains it first", file=sys.stderr)
        given.networks.remove("gpt")
    provenance()  # of the code that runs, whatever is changed meanwhile
    try:
        for name in given.peers or records.PEERS:
            measure(name, given)
    except KeyboardInterrupt:
        print("stopped; what was done is kept, the same command goes on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
