"""Archives: small, whole, and read back field by field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability.experiments import Record, RunSpec, Store, StudyEntry
from repairability.experiments.archive import DIGITS, RUNS, copy_known, read_archive, read_studies, write_archive
from test_report_studies import SECTIONS, detected, failed, run, seeds, study_tables


def rounded(value: Any) -> Any:
    """What an archive keeps of a value."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def odd_records() -> list[Record]:
    """Everything a record may hold: options, a grid, missing parts, other layers, errors of several lines."""
    similar = {"same": 1 / 3, "kl": 2e-9, "logit_error": 0.1, "n": 512, "chance": 0.01}
    pinned = {"pinned": {"*downsample*": 0.7}, "rest": "erk", "floor": 0.0}
    spec = RunSpec.read({"model": "5", "data": "true", "weights": 'a, "b".th'})
    return [
        *seeds((1 / 3, 2 / 3), rule="rr", sparsity=0.95, result={"agreement": similar, "objective": 0.123456789}),
        run(0.1, rule="forced", options=pinned, repair="bn", grid=[0.7, 0.95]),
        run(
            0.2,
            rule="erk",
            model="resnet20",
            result={"allocation": {"a": 0.1, "b.c": 0.9999999}, "totals": {"a": 3, "b.c": 7}},
        ),
        run(0.2, rule="erk", seed=5, result={"projections": [], "loss": float("inf")}),
        run(
            0.2,
            rule="erk",
            seed=6,
            result={
                "by_layer": {"layer1.0": 0.5, "fc": 1},
                "totals": {"b": 2, "a.0": 1},
                "allocation": {"a.0": 0.5, "b": 0.25},
            },
        ),
        detected((0.95, 0.955), None, seed=1),
        failed(rule="lamp"),
        Record("bare", spec, "failed", {}, 'worker died\nkilled, "9"', {}),
        Record(
            "hosted", spec, "failed", {}, "x", {"torch": "2.4", "host": "vm", "seconds": {}, "peak_memory_mb": None}
        ),
    ]


def stored(records: list[Record], folder: Path, *, smoke: bool = False) -> Store:
    store = Store(folder)
    for record in records:
        store.write(record)
    ids = tuple(record.run_id for record in records)
    store.write_study(StudyEntry("odd", 'Odd, "all" of them', ("accuracy",), "one\ntwo", (*ids, "missing"), smoke))
    return store


def test_a_record_comes_back_field_by_field(tmp_path: Path) -> None:
    records = odd_records()
    write_archive(stored(records, tmp_path / "runs"), tmp_path / "kept")
    archived = read_archive(tmp_path / "kept")[1]
    assert set(archived) == {record.run_id for record in records}
    for record in records:
        back, about = archived[record.run_id], dict(record.provenance)
        about.pop("host", None)
        assert back.spec == record.spec
        assert (back.status, back.error) == (record.status, record.error)
        assert back.result == rounded(record.result)
        assert list(back.result.get("allocation", {})) == list(record.result.get("allocation", {}))
        assert back.provenance == rounded(about)
    ((entry, of_study),) = read_studies(tmp_path / "kept")[0]
    assert entry == Store(tmp_path / "runs").studies()[0][0]
    assert [record.run_id for record in of_study] == [record.run_id for record in records]


def test_an_archive_of_an_archive_is_the_same(tmp_path: Path) -> None:
    first = write_archive(stored(odd_records(), tmp_path / "runs"), tmp_path / "kept")
    again = stored(list(read_archive(tmp_path / "kept")[1].values()), tmp_path / "copied")
    ((entry,), _) = Store(tmp_path / "runs").studies()
    again.write_study(entry)
    second = write_archive(again, tmp_path / "again")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_every_section_takes_archived_records(tmp_path: Path) -> None:
    records = [run(0.1 + 0.01 * s, rule=rule, sparsity=0.95, seed=s) for rule in ("rr", "erk", "lamp") for s in (0, 1)]
    records.append(detected((0.95, 0.955), None, seed=1))
    write_archive(stored(records, tmp_path / "runs"), tmp_path / "kept")
    ((_, back),) = read_studies(tmp_path / "kept")[0]
    for section in SECTIONS:
        assert [str(x) for x in study_tables(section, back)] == [str(x) for x in study_tables(section, records)]


def test_it_is_small_and_lines_of_json(tmp_path: Path) -> None:
    about = {"commit": "0123456789ab", "torch": "2.13.0+cpu", "hardware": "two cores", "host": "vm"}
    seconds = dict.fromkeys(("load", "diagnose", "allocate", "mask", "repair", "evaluate", "dense"), 12.3456)
    plan = {layer: 1 / (i + 1.5) for i, layer in enumerate(run().result["totals"])}
    made = [run(1 / (3 + s), rule="rr", seed=s, weights="resnet18_cifar100.safetensors") for s in range(50)]
    records = [
        Record(x.run_id, x.spec, "done", {**x.result, "allocation": plan}, "", {**about, "seconds": seconds})
        for x in made
    ]
    (file,) = write_archive(stored(records, tmp_path / "runs"), tmp_path / "kept")
    assert file.stat().st_size < 150 * len(records)
    text = gzip.decompress(file.read_bytes()).decode()
    study, line, *_ = map(json.loads, text.splitlines())
    assert study["study"]["name"] == "odd"
    assert line["record"]["spec"]["rule"] == "rr"
    assert line["record"]["provenance"]["seconds"]["repair"] == 12.3456
    assert "vm" not in text


def test_smoke_runs_stay_out_and_loose_runs_come_in(tmp_path: Path) -> None:
    shared, loose, tried = run(0.1, seed=0), run(0.2, seed=1), run(0.3, seed=2)
    store = stored([shared], tmp_path / "runs")
    for record in (loose, tried):
        store.write(record)
    store.write_study(StudyEntry("odd-smoke", "", ("accuracy",), "", (shared.run_id, tried.run_id), smoke=True))
    write_archive(store, tmp_path / "kept")
    assert set(read_archive(tmp_path / "kept")[1]) == {shared.run_id, loose.run_id}
    assert [entry.name for entry, _ in read_studies(tmp_path / "kept")[0]] == ["odd"]
    with pytest.raises(InputError, match=r"only has no runs to archive \(1 of smoke studies\)"):
        write_archive(stored([shared], tmp_path / "only", smoke=True), tmp_path / "none")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"run_id":"', '"run_id":', "is damaged: "),
        ('"rule":', '"rool":', "is damaged: unknown setting 'rool'; did you mean rule"),
        ('"status":', '"state":', "is damaged: status: Field required"),
        ('"spec":{', '"spec":7,"more":{', "is damaged: spec: .*not 7"),
        ('"run_ids":', '"runs":', "is damaged: run_ids: Field required"),
        ('{"record":', '{"recorded":', "is damaged: 'record'"),
    ],
)
def test_damage_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    (file,) = write_archive(stored(seeds((0.1, 0.2), rule="rr"), tmp_path / "runs"), tmp_path / "kept")
    text = gzip.decompress(file.read_bytes()).decode()
    assert old in text
    file.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))
    with pytest.raises(InputError, match=f"{RUNS} {message}"):
        read_archive(tmp_path / "kept")[1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (file,) = write_archive(stored(seeds((0.1, 0.2), rule="rr"), tmp_path / "runs"), tmp_path / "kept")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (whole[: len(whole) // 2], bytes(flipped), b"noise", b""):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{RUNS} is damaged"):
            read_archive(tmp_path / "kept")[1]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no archive: it has no runs\.jsonl\.gz"):
        read_archive(tmp_path)[1]


def test_known_runs_are_copied_where_they_lack(tmp_path: Path) -> None:
    mine, theirs, other = run(0.1, seed=0), run(0.2, seed=1), run(0.3, seed=2)
    store = Store(tmp_path)
    store.write(mine)
    changed = Record(mine.run_id, mine.spec, "failed", {}, "worse", {})
    known = {record.run_id: record for record in (changed, theirs, other)}
    assert copy_known(known, store, [mine.run_id, theirs.run_id, "nobody's"]) == 1
    assert store.read(mine.run_id) == mine
    assert store.read(theirs.run_id) == theirs
    assert store.read(other.run_id) is None
