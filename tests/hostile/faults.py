"""A sweep struck by a fault at a moment drawn by seed, started again as a user would, and beside an undisturbed one.

Whatever the moment, in the end: the same records, none of them made twice, no half file, no lock that is held, no
process that is left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers import RAY, WORKER, Driver, Warm

from repairability._files import read_sealed
from repairability.experiments import Store
from test_experiments import results

STUDY = """
title = "struck"
[base]
model = "networks:SlowNet"
data = "random:10"
repair = "cr"
threads = 1
count = 16
test_images = 64
[axes]
rule = ["uniform", "rr"]
sparsity = [0.8, 0.9]
seed = [0, 1]
"""
RUNS = 8
DAY = 86_400
START = {"local": 0.3, "processes": 4.0, "ray": 8.0}
"""Seconds in which a driver begins, roughly: moments before the first record are drawn from them."""


@dataclass(frozen=True)
class Round:
    """One fault in one sweep; the seed draws the moment and what is hit."""

    executor: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.executor}, {self.seed}"

    def begin(self, warm: Warm, place: Path, store: Path) -> Driver:
        """Its sweep; a second worker matters only beside one that dies."""
        return warm.sweep(place, store, self.executor, 2 if self.kind == "worker killed" else 1)


ROUNDS = {
    "ray": {"driver killed": 1, "worker killed": 1, "node killed": 2},
    "processes": {
        "driver killed": 2,
        "worker killed": 3,
        "disk full": 1,
        "clock a day back": 1,
        "store removed": 1,
    },
    "local": {
        "driver killed": 8,
        "disk full": 7,
        "clock a day forward": 5,
        "clock a day back": 4,
        "store removed": 7,
        "record flipped": 7,
    },
}
"""How many of each; Ray's first, since its agents take a minute to notice that their node is gone."""


def plan() -> list[Round]:
    """Fifty rounds; each kind's seeds count up from 0."""
    seeds: Counter[str] = Counter()
    rounds = []
    for executor, kinds in ROUNDS.items():
        for kind, count in kinds.items():
            rounds += [Round(executor, kind, seeds[kind] + i) for i in range(count)]
            seeds[kind] += count
    return rounds


# --- faults -------------------------------------------------------------------------------------------------------


@dataclass
class Struck:
    """A sweep under way, and what is known of its records since the fault."""

    driver: Driver
    store: Path
    seed: int
    chance: random.Random
    kept: dict[Path, bytes] = field(default_factory=dict)  # whole records that nobody may make again

    def records(self) -> list[Path]:
        return sorted((self.store / "records").glob("*.json"))

    def keep(self) -> None:
        self.kept = {file: file.read_bytes() for file in self.records()}


def await_any(driver: Driver, there: Callable[[], list[Any]]) -> list[Any]:
    """What there is as soon as there is any; nothing where the driver has ended."""
    while not (found := there()) and driver.alive():
        time.sleep(0.002)
    return found


def kill(struck: Struck, pattern: str = "") -> bool:
    """One process of the driver's family, or the driver itself."""
    victims = await_any(struck.driver, lambda: struck.driver.family(pattern)) if pattern else [struck.driver.pid]
    if not victims or not struck.driver.alive():
        return False
    try:
        os.kill(struck.chance.choice(victims), signal.SIGKILL)
    except ProcessLookupError:
        return False
    if not pattern:
        struck.driver.end()
    struck.keep()
    return True


def jump(struck: Struck, seconds: float) -> bool:
    """The clock of every process of the sweep, and the times of all its files."""
    struck.keep()
    Path(struck.driver.mark, "clock").write_text(str(seconds), encoding="utf-8")
    for file in struck.store.rglob("*"):
        try:
            os.utime(file, (time.time() - seconds, time.time() - seconds))
        except FileNotFoundError:
            continue
    return struck.driver.alive()


def fill(struck: Struck) -> bool:
    """No space, until the driver has ended: of its own accord, since nothing can be written."""
    alive = struck.driver.alive()
    ballast = struck.store.parent / "ballast"
    if os.path.ismount(struck.store.parent):
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                pass
    else:
        Path(struck.driver.mark, "full").touch()
    struck.driver.end()
    ballast.unlink(missing_ok=True)
    Path(struck.driver.mark, "full").unlink(missing_ok=True)
    struck.keep()
    return alive


def remove(struck: Struck) -> bool:
    """The folder of the store, as soon as there is one."""
    if not await_any(struck.driver, lambda: [struck.store] if struck.store.exists() else []):
        return False
    alive, gone = struck.driver.alive(), Path(struck.driver.mark, "removed")
    struck.store.rename(gone)
    shutil.rmtree(gone)
    return alive


def flip(struck: Struck) -> bool:
    """One bit of one byte of one record."""
    files = await_any(struck.driver, struck.records)
    if not files or not struck.driver.alive():
        return False
    struck.keep()
    file = struck.chance.choice(files)
    place = struck.chance.randrange(file.stat().st_size)
    with file.open("r+b") as record:
        record.seek(place)
        byte = record.read(1)[0] ^ 1 << struck.chance.randrange(8)
        record.seek(place)
        record.write(bytes([byte]))
    del struck.kept[file]
    return True


NODE = (RAY, r"^\S*/gcs_server ")
FAULTS: dict[str, Callable[[Struck], bool]] = {
    "driver killed": kill,
    "worker killed": lambda struck: kill(struck, WORKER),
    "node killed": lambda struck: kill(struck, NODE[struck.seed % len(NODE)]),
    "disk full": fill,
    "clock a day forward": lambda struck: jump(struck, DAY),
    "clock a day back": lambda struck: jump(struck, -DAY),
    "store removed": remove,
    "record flipped": flip,
}
"""Each strikes, and says whether it struck while the driver ran."""
ENDS: dict[str, tuple[int | None, ...]] = {
    "driver killed": (None, 0),  # 0: struck when all was done
    "worker killed": (0,),
    "node killed": (0, 1, 2, None),  # without its head Ray ends the driver, too
    "clock a day forward": (0,),
    "clock a day back": (0,),
}
"""Exit codes of a struck sweep; of the others 0, 1 or 2: it got over it, or said what is wrong."""


# --- a round ------------------------------------------------------------------------------------------------------


def strike(warm: Warm, this: Round, place: Path, store: Path) -> Struck | None:
    """Begin a sweep and strike it after some records, or before the first; none where it came too late."""
    (place / "struck.toml").write_text(STUDY, encoding="utf-8")
    struck = Struck(this.begin(warm, place, store), store, this.seed, random.Random(f"{this} {place.name}"))
    after = struck.chance.randrange(RUNS - 1)
    await_any(struck.driver, lambda: [None] if len(struck.records()) >= after else [])
    struck.driver.ended(struck.chance.random() * (0.1 if after else START[this.executor]))
    if not FAULTS[this.kind](struck):
        return None
    code, out, err = struck.driver.end()
    if this.executor == "ray" and this.kind == "worker killed" and code in (2, None):
        return None  # no cluster began, which is said
    assert "Traceback" not in err, err
    assert code in ENDS.get(this.kind, (0, 1, 2)), err
    assert code != 0 or this.kind in ("record flipped", "store removed") or json.loads(out)["left"] == 0
    return struck


def run_round(warm: Warm, this: Round, place: Path, disk: Path, calm: dict[str, Any]) -> None:
    """Strike, start again, compare. Where the fault came too late the round is begun anew, at another moment."""
    for late in range(50):
        attempt, store = place / f"attempt-{late}", disk / f"store-{late}"
        attempt.mkdir()
        struck = strike(warm, this, attempt, store)
        if struck is not None:
            break
    else:
        raise AssertionError("the fault always came too late")
    for _ in range(10 if this.executor == "ray" else 1):  # on a busy machine a cluster may be too slow to begin
        code, out, err = this.begin(warm, attempt, store).end()
        assert "Traceback" not in err, err
        if code == 0:
            break
    assert (code, json.loads(out or "{}").get("left")) == (0, 0), err
    code, out, err = this.begin(warm, attempt, store).end()
    assert code == 0, err
    counts = json.loads(out)
    assert (counts["known"], counts["done"], counts["problems"]) == (RUNS, 0, []), counts
    inspect(store, calm, struck.kept)


def inspect(store: Path, calm: dict[str, Any], kept: dict[Path, bytes]) -> None:
    """What must hold of a store, whatever struck its sweep."""
    assert results(Store(store)) == calm
    ((entry,), problems) = Store(store).studies()
    assert (sorted(entry.run_ids), problems) == (sorted(calm), [])
    assert {file: file.read_bytes() for file in kept} == kept, "a record that was there was made again"
    aside = {name for run_id in calm for name in (f"{run_id}.json", f"{run_id}.json.damaged")}
    assert {file.name for file in (store / "records").iterdir()} <= aside
    assert not [file for file in store.rglob("*") if file.name.endswith(".part")], "a half file is left"
    for file in (store / "cache").rglob("*"):
        assert file.is_dir() or read_sealed(file)
    for file in (store / "locks").iterdir():
        lock = Store(store).claim(file.name)
        assert lock is not None, f"{file.name} is still locked"
        lock.release()
