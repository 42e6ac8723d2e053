"""Worker processes: whoever dies takes nothing with it but its own job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import PATIENCE, eventually
from hostile.drivers import Driver
from repairability import InputError
from repairability._files import write_atomically
from repairability.errors import PlaceError
from repairability.experiments import Processes, RayCluster
from repairability.experiments.workers import Team, Worker
from test_experiments import alive, with_tests

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes as Linux shows them")


def described(job: dict[str, Any]) -> dict[str, Any]:
    """A job that says who ran it, or raises what it is told to."""
    if "error" in job:
        raise InputError(job["error"])
    return {**job, "worker": os.getpid()}


def test_a_worker_that_dies_idle_costs_no_job_an_attempt() -> None:
    """The only worker is killed between two jobs; the second has one attempt, and ends."""
    outcomes: list[dict[str, Any]] = []

    def jobs() -> Iterator[dict[str, Any]]:
        yield {"name": "first"}
        os.kill(outcomes[0]["worker"], signal.SIGKILL)
        os.waitid(os.P_PID, outcomes[0]["worker"], os.WEXITED | os.WNOWAIT)  # its threads too are gone
        yield {"name": "second"}

    for _, outcome in Processes(1, attempts=1).run(described, jobs()):
        assert isinstance(outcome, dict), outcome
        outcomes.append(outcome)
    assert [outcome["name"] for outcome in outcomes] == ["first", "second"]
    assert outcomes[0]["worker"] != outcomes[1]["worker"]


def test_one_worker_serves_many_jobs_and_says_what_they_raise() -> None:
    team = Team(described)
    try:
        first = team.run({"name": "first"})
        with pytest.raises(InputError, match="not so"):
            team.run({"error": "not so"})
        assert team.run({"name": "first"}) == first
        (worker,) = team.all
    finally:
        team.stop()
    assert not alive(worker.process.pid or 0)


def test_a_worker_begins_deaf_to_an_interrupt() -> None:
    worker = Worker(described)
    try:
        status = Path(f"/proc/{worker.process.pid}/status").read_text(encoding="utf-8")
        blocked = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
        assert blocked & 1 << (signal.SIGINT - 1)
    finally:
        worker.kill()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def writing(job: dict[str, Any]) -> dict[str, Any]:
    """A job in the midst of writing a file."""

    def forever(handle: int) -> None:
        Path(job["file"]).with_suffix(".begun").touch()
        time.sleep(2 * PATIENCE)

    os.fsync = forever  # type: ignore[assignment]
    write_atomically(job["file"], "half")
    return job


def test_a_worker_that_is_told_to_end_leaves_no_half_file(tmp_path: Path) -> None:
    worker = Worker(writing)
    worker.pipe.send({"file": str(tmp_path / "a.json")})
    assert eventually(lambda: (tmp_path / "a.begun").exists() or not worker.process.is_alive())
    assert len(list(tmp_path.glob(".a.json.*.part"))) == 1
    worker.process.terminate()
    worker.process.join(PATIENCE)
    assert not worker.process.is_alive()
    assert os.listdir(tmp_path) == ["a.begun"]


BEGINS = """
from repairability.experiments import RayCluster
from test_workers import described
if __name__ == "__main__":
    jobs = [{"name": str(i), "spec": {"threads": 1}} for i in range(3)]
    assert all(isinstance(outcome, dict) for _, outcome in RayCluster().run(described, iter(jobs)))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_a_worker_of_ray_that_dies_while_it_begins_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its cluster is a fresh one, also where the machine has one already: here one that does not answer."""
    settings = {**os.environ, "PYTHONPATH": with_tests(), "FAULTS": str(tmp_path), "RAY_ADDRESS": "127.0.0.1:9"}
    struck, tries = False, 0
    while not struck:
        tries += 1
        assert tries < 10, "it always ended before it was struck"
        said = tmp_path / f"said-{tries}"
        with said.open("w", encoding="utf-8") as err:
            command = [sys.executable, "-c", BEGINS]
            process = subprocess.Popen(command, env=settings, stderr=err, start_new_session=True)
        driver = Driver(process.pid, tmp_path, str(tmp_path))
        while not struck and process.poll() is None:
            for worker in driver.family(r"^\S*/bin/python\S* .*default_worker\.py")[:1]:  # until it takes its name
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    struck = True
            time.sleep(0.01)
        code, err = process.wait(PATIENCE), said.read_text(encoding="utf-8")
        assert code == 0 or (not struck and "timed out" in err), err


def test_a_cluster_that_does_not_begin_or_is_lost_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")

    def slow(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.")

    def gone() -> None:
        raise ray.exceptions.RaySystemError("no answer")

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(PlaceError, match="no Ray cluster began on this machine .*timed out"):
        list(RayCluster().run(described, iter([{}])))
    with pytest.raises(InputError, match="no Ray cluster at 'elsewhere' .*timed out"):
        list(RayCluster("elsewhere").run(described, iter([{}])))
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", gone)
    with pytest.raises(PlaceError, match="the Ray cluster is gone .*no answer"):
        list(RayCluster().run(described, iter([{}])))
