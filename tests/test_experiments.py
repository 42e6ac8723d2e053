from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import PATIENCE, eventually, interruptible, on_ray
from repairability import InputError, _interrupts, create_model, diagnose, load_data
from repairability._torch import state_digest
from repairability.experiments import (
    Executor,
    Files,
    InProcess,
    Processes,
    Progress,
    RayCluster,
    Record,
    RunSpec,
    Store,
    describe,
    only,
    read_study,
    run,
    run_job,
    smoke,
    sweep,
)
from repairability.experiments import shared as shared_module
from repairability.experiments.shared import pack_diagnosis, unpack_diagnosis
from repairability.pruning import plan

SMALL = """
title = "small"
[base]
model = "{model}"
data = "random:10"
repair = "cr+bn-short"
threads = 1
count = 64
[axes]
rule = ["uniform", "erk", "rr"]
sparsity = [0.8, 0.9]
seed = {seeds}
"""
TESTS = Path(__file__).parent


def with_tests() -> str:
    """The path on which another process finds the tests' networks, and what this one finds."""
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])


def study_file(folder: Path, model: str = "networks:small_net", seeds: str = "[0, 1]", text: str = SMALL) -> Path:
    file = folder / "small.toml"
    file.write_text(text.format(model=model, seeds=seeds))
    return file


def swept(file: Path, folder: Path, **options: Any) -> tuple[Store, Progress]:
    study, store = read_study(file), Store(folder)
    jobs = [Files().job(spec, folder) for spec in study.specs]
    return store, sweep(study, jobs, store, **options)


def results(store: Store) -> dict[str, Any]:
    records, problems = store.read_all()
    assert not problems
    return {record.run_id: (record.spec.to_dict(), record.status, record.result) for record in records}


# --- specs --------------------------------------------------------------------------------------------------------


def test_ids_are_frozen() -> None:
    """A changed id loses every record people have: change VERSION on purpose, never an id by accident."""
    base = {"model": "resnet18", "data": "cifar100"}
    contents = {"data": "content:0123456789abcdef", "weights": "fedcba9876543210"}
    assert RunSpec.read(base).run_id({}) == "f1563dd40b17db5e"
    assert RunSpec.read({**base, "sparsity": 0.9, "rule": "erk", "seed": 2}).run_id(contents) == "f8cfe49fbb6f6f9a"
    assert RunSpec.read({**base, "task": "detect", "sweep": [0.9, 0.95]}).run_id(contents) == "ce4fa856eab3f5fb"


def test_what_is_at_its_default_is_not_in_the_id() -> None:
    base = {"model": "resnet18", "data": "cifar100"}
    for fit in ({"score": "second_order"}, {"repair": "reconstruct-all+bn"}, {"conditioned_on": "reconstruct"}):
        assert RunSpec.read({**base, **fit}).fits
    assert not RunSpec.read({**base, "score": "activation", "repair": "affine"}).fits
    assert RunSpec.read({**base, "repair": "reconstruct"}).run_id({}) == "643982b83ee0b1e0"
    assert RunSpec.read({**base, "sparsity": 0.95, "rule": "rr"}).run_id({}) == RunSpec.read(base).run_id({})
    assert RunSpec.read({**base, "rule": "erk"}).run_id({}) != RunSpec.read(base).run_id({})
    assert RunSpec.read(base).run_id({"weights": "a"}) != RunSpec.read(base).run_id({"weights": "b"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparsty": 0.9}, "unknown setting 'sparsty'; did you mean sparsity?"),
        ({"sparsity": 95}, "did you mean 0.95?"),
        ({"sparsity": "high"}, "sparsity: .*not 'high'"),
        ({"rule": "er"}, "unknown rule 'er'; did you mean erk"),
        ({"repair": "cr+xy"}, "unknown repair 'xy'"),
        ({"seed": -1}, "seed: .*not -1"),
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"model": None}, "model: "),
    ],
)
def test_refused_specs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunSpec.read({"model": "resnet18", "data": "cifar100", **given})


def test_specs_are_frozen_and_every_setting_is_explained() -> None:
    spec = RunSpec.read({"model": "resnet18", "data": "cifar100"})
    with pytest.raises(ValueError, match="frozen"):
        spec.sparsity = 0.5  # type: ignore[misc]
    assert all(meaning for _, _, meaning in describe())
    assert RunSpec.read(spec.to_dict()) == spec


def test_files_enter_by_content(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = create_model("networks:small_net")
    for name, scale in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / name).mkdir()
        save_file({k: scale * v for k, v in model.state_dict().items()}, tmp_path / name / "w.safetensors")
    spec = RunSpec.read({"model": "networks:small_net", "data": "random:10", "weights": "w.safetensors"})
    ids = [Files([tmp_path / name]).job(spec, None).run_id for name in "abc"]
    assert ids[0] == ids[1] != ids[2]
    assert Files([tmp_path / "a"], root=tmp_path).job(spec, tmp_path, "cuda").run_id == ids[0]
    with pytest.raises(InputError, match="no weights 'w.safetensors' in .*--files"):
        Files([tmp_path]).job(spec, None)


def test_a_plain_name_is_an_npz_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").write_bytes(b"")
    assert Files([tmp_path]).data("cifar10") == f"npz:{tmp_path / 'cifar10.npz'}"
    assert Files().data("cifar10") == "cifar10"
    assert Files([tmp_path]).data("npz:cifar10.npz") == f"npz:{tmp_path / 'cifar10.npz'}"


# --- studies ------------------------------------------------------------------------------------------------------


def test_a_study_is_base_cases_axes_minus_exclusions(tmp_path: Path) -> None:
    text = """
title = "t"
section = "accuracy"
[base]
data = "random:10"
[[cases]]
model = "resnet20"
[[cases]]
model = "resnet56"
seed = 7
[axes]
rule = ["erk", "lamp", "rr"]
sparsity = [0.8, 0.9]
[[exclude]]
model = "resnet56"
rule = ["erk", "lamp"]
"""
    study = read_study(study_file(tmp_path, text=text))
    cells = [(s.model, s.rule, s.sparsity, s.seed) for s in study.specs]
    assert len(cells) == 6 + 2
    assert cells[-1] == ("resnet56", "rr", 0.9, 7)
    assert [s.rule for s in only(study, ["rule=rr", "rule=erk", "sparsity=0.9"]).specs] == ["erk", "rr", "rr"]
    with pytest.raises(InputError, match=r"no cell of small fits rule=raw; it has \{'rule': \['erk', 'lamp', 'rr'\]\}"):
        only(study, ["rule=raw"])
    with pytest.raises(InputError, match="--only takes SETTING=VALUE"):
        only(study, ["rr"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axis = 1", "small.toml, line 1: unknown key 'axis'; did you mean axes?"),
        ("[axes]\nrulle = ['rr']", "unknown setting 'rulle'; did you mean rule"),
        ("[axes]\nrule = 'rr'", "small.toml: axes.rule: Input should be a valid list, not 'rr'"),
        ("[base]\nmodel = 'resnet20'\ndata = 'random:10'\nsparsty = 1", "unknown setting 'sparsty'"),
        ("[base", "small.toml is not TOML"),
        ("[base]\nmodel = 'a'\ndata = 'b'\n[[exclude]]\nmodel = 'a'", "no cell is left"),
        ("[base]\nmodel = 'a'\ndata = 'b'\n[[exclude]]\nmodle = 'a'", "unknown setting 'modle'"),
        ("cases = 3", "small.toml, line 1: cases: Input should be a valid list, not 3"),
    ],
)
def test_refused_studies(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_study(study_file(tmp_path, text=text.replace("{", "{{")))


def test_smoke_keeps_the_shape_and_shrinks_the_work() -> None:
    study = read_study(TESTS.parent / "reproduction" / "studies" / "main_results.toml")
    small = smoke(study)
    assert {s.rule for s in small.specs} == {s.rule for s in study.specs}
    assert len({s.sparsity for s in small.specs}) == 2
    assert {s.seed for s in small.specs} == {0}
    assert {(s.weights, s.data) for s in small.specs} == {(None, "random:100")}
    assert {(s.count, s.test_images, s.repair) for s in small.specs} == {(64, 64, "cr+bn-short")}


# --- the store ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return swept(study_file(tmp_path), tmp_path / "runs", limit=2)[0]


def test_records(store: Store) -> None:
    (first, second), problems = store.read_all()
    assert not problems
    assert first.status == second.status == "done"
    assert Record.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    assert {"top1", "achieved", "global_sparsity", "dense_top1", "allocation", "n"} <= set(first.result)
    assert {"commit", "torch", "hardware", "host", "seconds", "peak_memory_mb"} <= set(first.provenance)
    assert first.provenance["seconds"]["repair"] > 0
    assert first.provenance["peak_memory_mb"] > 50
    weights = [state_digest(create_model("networks:small_net", seed=seed)) for seed in (0, 1)]
    assert [first.provenance["weights"], second.provenance["weights"]] == [
        weights[x.spec.seed] for x in (first, second)
    ]
    assert first.provenance["data"] == second.provenance["data"]
    frame = store.frame()
    assert list(frame["run_id"]) == [first.run_id, second.run_id]
    assert frame["top1"].tolist() == [first.result["top1"], second.result["top1"]]


OLD_RECORD = """{"run_id": "f1563dd40b17db5e", "status": "done", "spec": {"model": "resnet18", "data": "cifar100",
"task": "prune", "weights": null, "num_classes": null, "image_size": null, "rule": "rr", "options": {},
"score": "magnitude", "repair": "cr+bn", "conditioned_on": null, "sparsity": 0.95, "grid": [0.9], "observe": "layer",
"seed": 0, "count": 128, "test_images": null, "held_out": 0, "precision": "float32", "objective": false,
"method": "cts", "sweep": null, "null": true, "threads": 1}, "result": {"achieved": 0.95, "global_sparsity": 0.94,
"n": 10, "top1": 0.5, "allocation": {"a.b": 0.25}, "loss": Infinity}, "error": "",
"provenance": {"host": "vm", "seconds": {"load": 0.1}}, "digest": "f85c5378f299d236"}"""


def test_a_record_of_an_earlier_version_keeps_its_digest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path("f1563dd40b17db5e").parent.mkdir()
    store.path("f1563dd40b17db5e").write_text(OLD_RECORD)
    record = store.read("f1563dd40b17db5e")
    assert record is not None
    assert (record.spec.grid, record.result["allocation"]) == ((0.9,), {"a.b": 0.25})
    old = {key: value for key, value in json.loads(OLD_RECORD).items() if key != "digest"}
    assert record.content() == {**old, "result": {**old["result"], "loss": None}}  # undefined: today's word for it


@pytest.mark.parametrize("damage", ["truncated", "edited", "foreign", "binary", "bare", "renamed"])
def test_damaged_records_are_reported_and_made_again(damage: str, store: Store, tmp_path: Path) -> None:
    whole = results(store)
    victim, other = sorted(whole)
    file = store.path(victim)
    text = file.read_text()
    harm = {
        "truncated": text[: len(text) // 2].encode(),
        "edited": text.replace('"top1": ', '"top1": 1').encode(),
        "foreign": b"[1, 2]",
        "binary": bytes(range(256)),
        "bare": b'{"digest": "44136fa355b3678a"}',  # of nothing
        "renamed": store.path(other).read_bytes(),
    }
    file.write_bytes(harm[damage])
    records, problems = store.read_all()
    assert [record.run_id for record in records] == [other]
    assert len(problems) == 1
    assert str(file) in problems[0]
    _, progress = swept(tmp_path / "small.toml", store.folder, limit=1)
    assert len(progress.problems) == 1
    assert "run again" in progress.problems[0]
    assert file.with_name(f"{file.name}.damaged").read_bytes() == harm[damage]
    assert results(store) == whole


def test_a_failed_run_is_a_record(tmp_path: Path) -> None:
    text = SMALL.replace('rule = ["uniform", "erk", "rr"]', 'rule = ["erk"]').replace("[0.8, 0.9]", "[0.8, 0.999]")
    file = study_file(tmp_path, text=text, seeds="[0]")
    store, progress = swept(file, tmp_path / "runs")
    assert (progress.done, progress.failed, progress.left) == (1, 1, 0)
    (failed,) = (record for record in store.read_all()[0] if record.status == "failed")
    assert "BudgetError" in failed.error
    assert failed.spec.sparsity == 0.999
    assert failed.provenance["hardware"]
    assert swept(file, tmp_path / "runs")[1].running == 0  # it is not tried again ...
    again = swept(file, tmp_path / "runs", retry_failed=True)[1]  # ... unless asked for
    assert (again.known, again.done, again.failed) == (1, 0, 1)


def test_studies_of_a_store(store: Store) -> None:
    ((entry,), _) = store.studies()
    assert (entry.name, entry.title, len(entry.run_ids)) == ("small", "small", 12)
    (store.folder / "studies" / "broken.json").write_text("{")
    entries, (problem,) = store.studies()  # one that is broken blocks no other
    assert entries == [entry]
    assert "broken.json is not a study" in problem


# --- sharing ------------------------------------------------------------------------------------------------------


def test_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"diagnose": 0, "create_model": 0}
    places = {"diagnose": plan, "create_model": shared_module}

    def counting(name: str, original: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        return counted

    for name, place in places.items():
        monkeypatch.setattr(place, name, counting(name, getattr(place, name)))
    for shared in (shared_module._network, shared_module._data, shared_module.calibration_images):
        shared.cache_clear()
    swept(study_file(tmp_path, seeds="[0]"), tmp_path / "runs")
    assert calls == {"diagnose": 1, "create_model": 1}
    for shared in (shared_module._network, shared_module._data, shared_module.calibration_images):
        shared.cache_clear()
    for file in (tmp_path / "runs" / "records").iterdir():
        file.unlink()
    swept(study_file(tmp_path, seeds="[0]"), tmp_path / "runs")  # as another process would: from the disk
    assert calls["diagnose"] == 1


def test_a_diagnosis_goes_through_the_cache_unchanged() -> None:
    model, images = create_model("digits"), torch.randn(128, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    diagnosis = diagnose(model, images)
    back = unpack_diagnosis(pack_diagnosis(diagnosis))
    assert back == diagnosis
    assert back.statistics is not None
    assert diagnosis.statistics is not None
    for layer, moments in diagnosis.statistics.items():
        assert torch.equal(back.statistics[layer].mean, moments.mean)
        assert torch.equal(back.statistics[layer].var, moments.var)
        assert back.statistics[layer].count == moments.count
    assert back.output is None
    felt = diagnose(model, images, measures=("output",))
    again = unpack_diagnosis(pack_diagnosis(felt))
    assert again == felt
    assert again.output is not None
    assert again.measures == ("raw", "residual", "rr", "output")


def test_curves_that_also_tell_the_output_are_kept_apart() -> None:
    """A key that did not say so would hand them to each other."""
    given = {"model": "digits", "data": "digits", "score": "alternating", "repair": "rectified", "rule": "residual"}
    plain, felt = (RunSpec.read({**given, "rule": rule}) for rule in ("residual", "output"))
    assert plain.fits
    assert felt.fits
    keys = []
    for spec in (plain, felt):
        wanted = plan.measurement_for(spec.recipe, [spec.sparsity], spec.config)
        assert wanted is not None
        keys.append(wanted.key)
    assert keys[0] != keys[1]
    assert keys[1][: len(keys[0])] == keys[0]


def test_the_strong_recipe_runs_as_a_study(tmp_path: Path) -> None:
    """Diagnosis at the output, search and refit, on the digits' small network; then from the cache."""
    text = '[base]\nmodel = "{model}"\ndata = "digits"\nrecipe = "strong"\nrepair = "rectified@64"\ngrid = "auto"\n'
    text += "count = 64\ntest_images = 64\n[axes]\nsparsity = [0.9, 0.95]\nseed = {seeds}\n"
    store, progress = swept(study_file(tmp_path, "digits", "[0]", text), tmp_path / "runs")
    assert (progress.done, progress.failed) == (2, 0)
    records, problems = store.read_all()
    assert not problems
    for record in records:
        assert (record.spec.rule, record.spec.score) == ("output", "alternating")
        assert record.result["achieved"] == pytest.approx(
            record.spec.sparsity, abs=0.01
        )  # a budget is rounded by layer
        assert len(set(record.result["allocation"].values())) > 1
    assert len(list((tmp_path / "runs").rglob("curves*"))) >= 1


def test_the_cache_computes_once_and_notices_damage(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def compute() -> bytes:
        calls.append(1)
        return b"content"

    for _ in range(2):
        assert store.cached("kind", "key", compute) == b"content"
    assert len(calls) == 1
    (tmp_path / "cache" / "kind" / "key").write_bytes(b"half")
    for _ in range(2):
        assert store.cached("kind", "key", compute) == b"content"
    assert len(calls) == 2


ONE_OF_MANY = """
import sys, time
from pathlib import Path
from repairability.experiments import Store
folder = Path(sys.argv[1])

def compute():
    (folder / f"computed-{sys.argv[2]}").touch()
    time.sleep(0.5)
    return b"x" * 100_000

assert Store(folder).cached("kind", "key", compute) == b"x" * 100_000
"""


@pytest.mark.slow
def test_many_processes_compute_once(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ONE_OF_MANY, str(tmp_path), str(i)]) for i in range(3)]
    assert [process.wait(300) for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("computed-*"))) == 1


def test_a_state_digest_sees_every_weight() -> None:
    model = create_model("networks:small_net")
    before = state_digest(model)
    with torch.no_grad():
        model.get_parameter("0.bias")[3] += 1e-6
    assert state_digest(model) != before


# --- executors ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Processes(2), RayCluster()], ids=["processes", "ray"])
def test_every_executor_gives_the_same_results(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if isinstance(executor, RayCluster):
        request.getfixturevalue("one_ray")
    monkeypatch.setenv("PYTHONPATH", with_tests())
    file = study_file(tmp_path, seeds="[0]")
    here, _ = swept(file, tmp_path / "here", executor=InProcess())
    there, progress = on_ray(lambda: swept(file, tmp_path / "there", executor=executor))
    assert (progress.done, progress.left) == (6, 0)
    assert results(here) == results(there)


def sometimes_deadly(job: dict[str, Any]) -> dict[str, Any]:
    """A job that leaves a trace of each attempt; a deadly one takes its process with it."""
    Path(job["folder"], f"{job['name']}-by-{os.getpid()}").touch()
    time.sleep(0.1 if job["deadly"] else 0.3)
    if job["deadly"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


@pytest.mark.slow
def test_a_job_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    """The others are neither failed nor charged an attempt: each of them runs once."""
    jobs = [{"name": f"job{i}", "deadly": i == 2, "folder": str(tmp_path)} for i in range(6)]
    outcomes = {job["name"]: result for job, result in Processes(2, attempts=2).run(sometimes_deadly, iter(jobs))}
    reason = outcomes.pop("job2")
    assert isinstance(reason, str)
    assert reason.startswith("the worker died, 2 times")
    assert outcomes == {job["name"]: job for job in jobs if not job["deadly"]}
    attempts = sorted(file.name.partition("-by-")[0] for file in tmp_path.iterdir())
    assert attempts == ["job0", "job1", "job2", "job2", "job3", "job4", "job5"]


def write_whole(file: Path, content: object) -> None:
    """Others read it at any moment."""
    file.with_suffix(".new").write_text(str(content), encoding="utf-8")
    file.with_suffix(".new").rename(file)


def sleeping(job: dict[str, Any]) -> dict[str, Any]:
    """A job that says where it runs and then takes longer than anybody waits."""
    write_whole(Path(job["file"]), os.getpid())
    time.sleep(2 * PATIENCE)
    return job


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_worker_ends_with_its_driver(tmp_path: Path) -> None:
    program = """
import sys
from repairability.experiments import Processes
from test_experiments import sleeping
if __name__ == "__main__":
    list(Processes(1).run(sleeping, iter([{"file": sys.argv[1]}])))
"""
    file, environment = tmp_path / "pid", {**os.environ, "PYTHONPATH": with_tests()}
    with subprocess.Popen([sys.executable, "-c", program, str(file)], env=environment) as process:
        assert eventually(lambda: file.exists() or process.poll() is not None)
        worker = int(file.read_text())
        assert alive(worker)
        process.kill()
    assert eventually(lambda: not alive(worker))


def test_a_small_data_set_does_for_calibration_and_held_out_images(tmp_path: Path) -> None:
    (spec, *_) = read_study(study_file(tmp_path)).specs  # random:10 has 256 images, calibration would take them all
    record = run_job(Files().job(spec.model_copy(update={"held_out": 100}), None).to_dict())
    assert record["status"] == "done", record["error"]
    assert record["result"]["agreement"]["n"] == 100
    record = run_job(Files().job(spec.model_copy(update={"held_out": 193}), None).to_dict())  # 64 are the statistics'
    assert "256 training images, 257 were asked for" in record["error"]


def test_an_error_behind_an_interrupt_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may swallow the interrupt, and fail later of what it left half-done."""

    def broken(_: object) -> dict[str, Any]:
        raise RuntimeError("trying to pop from empty mode stack")

    (spec, *_) = read_study(study_file(tmp_path)).specs
    job = Files().job(spec, None).to_dict()
    monkeypatch.setitem(run._TASKS, "prune", broken)
    assert run_job(job)["status"] == "failed"
    monkeypatch.setattr(_interrupts, "came", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        run_job(job)


def test_a_job_leaves_the_threads_as_they_were(tmp_path: Path) -> None:
    (spec, *_) = read_study(study_file(tmp_path)).specs
    threads = torch.get_num_threads()
    record = run_job(Files().job(spec.model_copy(update={"threads": 1}), None).to_dict())
    assert record["status"] == "done"
    assert torch.get_num_threads() == threads


def driver(file: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "repairability", "sweep", str(file), "--store", str(folder), "--json", *more]
    hold = str(folder.with_name("hold"))
    environment = {**os.environ, "PYTHONPATH": with_tests(), "OMP_NUM_THREADS": "1", "HOLD": hold}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)


def records_in(folder: Path) -> int:
    return len(list((folder / "records").glob("*.json")))


def wait_for_records(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    assert eventually(lambda: records_in(folder) >= count or process.poll() is not None)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The worker processes of a driver (the spawned ones, not multiprocessing's tracker)."""
    workers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_text()
            except (OSError, ValueError):
                continue
            if parent == process.pid and "spawn_main" in command:
                workers.append(int(entry.name))
    return workers


def kill_worker(process: subprocess.Popen[str]) -> bool:
    """One of the driver's workers, if it has any."""
    for worker in workers_of(process):
        with suppress(ProcessLookupError):  # it ends just now
            os.kill(worker, signal.SIGKILL)
            return True
    return False


@pytest.mark.slow
def test_kill_9_of_the_driver_and_of_workers(tmp_path: Path) -> None:
    """Ten times at random moments, driver and worker in turn: nothing is lost, nothing doubled, nothing differs."""
    file = study_file(tmp_path, "networks:SlowNet", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
    calm, _ = swept(file, tmp_path / "calm")
    folder, moments = tmp_path / "runs", random.Random(0)
    process, struck = None, {"driver": 0, "worker": 0}
    for i in range(10):
        known = records_in(folder)
        write_whole(tmp_path / "hold", known + 5)  # so that it is at work whenever it is struck
        if process is None or process.poll() is not None:
            process = driver(file, folder, "--executor", "processes", "--workers", "1")
        wait_for_records(folder, known + 2, process)
        time.sleep(moments.random() * 0.5)
        if i % 2:
            struck["driver"] += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
        else:
            struck["worker"] += eventually(lambda: kill_worker(process))  # noqa: B023
        Store(folder).read_all()
    assert struck == {"driver": 5, "worker": 5}  # none of them came too late
    write_whole(tmp_path / "hold", 60)  # all
    last = driver(file, folder, "--executor", "processes", "--workers", "1")
    out, err = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, err
    assert json.loads(out)["left"] == 0
    assert results(Store(folder)) == results(calm)
    assert not list((folder / "records").glob("*.part"))


@pytest.mark.slow
def test_two_sweeps_on_one_store_do_the_work_once(tmp_path: Path) -> None:
    file = study_file(tmp_path, "networks:SlowNet", "[0, 1, 2, 3]")
    both = [driver(file, tmp_path / "runs") for _ in range(2)]
    summaries = []
    for process in both:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        summaries.append(json.loads(out))
    assert sum(summary["done"] for summary in summaries) == 24
    assert all(summary["known"] + summary["done"] + summary["elsewhere"] == 24 for summary in summaries)
    assert len(results(Store(tmp_path / "runs"))) == 24


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_an_interrupted_sweep_resumes(executor: str, tmp_path: Path) -> None:
    file = study_file(tmp_path, "networks:SlowNet")
    write_whole(tmp_path / "hold", 8)  # of 12: so that it is at work whenever it is interrupted
    process = driver(file, tmp_path / "runs", "--executor", executor, "--workers", "1")
    wait_for_records(tmp_path / "runs", 2, process)
    workers = workers_of(process)
    assert len(workers) == (executor == "processes")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not any(map(alive, workers))
    records, problems = Store(tmp_path / "runs").read_all()
    assert 2 <= len(records) < 12
    assert not problems
    store, progress = swept(file, tmp_path / "runs")
    assert (progress.known, progress.done) == (len(records), 12 - len(records))
    assert len(results(store)) == 12


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_a_ray_cluster_loses_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head and two workers on loopback; one worker is killed while it works; the study completes all the same."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", with_tests())
    memory = {"object_store_memory": 80 * 2**20}
    cluster = on_ray(lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory}))
    try:
        nodes = [on_ray(lambda: cluster.add_node(num_cpus=1, **memory)) for _ in range(2)]
        file = study_file(tmp_path, "networks:SlowNet", "[0, 1, 2]")
        calm, _ = swept(file, tmp_path / "calm")
        killed = []

        def watch(progress: Progress) -> None:
            if progress.done >= 4 and not killed:
                killed.append(nodes[0])
                cluster.remove_node(nodes[0], allow_graceful=False)

        store, progress = swept(file, tmp_path / "runs", executor=RayCluster(cluster.address), watch=watch)
        assert killed
        assert (progress.done, progress.failed, progress.left) == (18, 0, 0)
        assert results(store) == results(calm)
    finally:
        cluster.shutdown()


def test_no_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with pytest.raises(InputError, match="no Ray cluster at 'ray-is-not-here'"):
        list(RayCluster("ray-is-not-here").run(run_job, iter([])))


def test_random_data_is_the_same_each_time() -> None:
    first, second = (load_data("random:7") for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert (first.classes, len(first.train), len(first.test)) == (7, 256, 64)
    with pytest.raises(InputError, match="random:CLASSES takes a number"):
        load_data("random:many")


WITH_A_LOCK = """
import sys
from pathlib import Path
from repairability.experiments import Store

lock = Store(Path(sys.argv[1])).claim("kind-key")
print(lock is not None, flush=True)
sys.stdin.read()
"""


def test_what_another_process_computes_is_known_and_free_when_it_dies(tmp_path: Path) -> None:
    store, pipe = Store(tmp_path), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WITH_A_LOCK, str(tmp_path)], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert store.busy("kind", "key")
        assert not store.busy("kind", "other")
        assert store.claim("kind-key") is None
        other.kill()
    assert not store.busy("kind", "key")


def test_it_imports_where_there_is_no_fcntl_and_no_resource() -> None:
    """As on Windows."""
    program = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import repairability.cli, repairability.experiments.archive
from repairability.provenance import peak_memory
assert peak_memory() is None or peak_memory() > 10
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
