"""Experiments: studies of many runs, resumable, on one machine or many."""

from __future__ import annotations

from repairability.experiments.executors import EXECUTORS, Executor, InProcess, Processes, RayCluster
from repairability.experiments.files import Files
from repairability.experiments.record import Record
from repairability.experiments.run import run_job
from repairability.experiments.spec import Job, RunSpec, describe
from repairability.experiments.store import Store
from repairability.experiments.study import Study, StudyEntry, only, read_study, smoke
from repairability.experiments.sweep import Progress, sweep

__all__ = [
    "EXECUTORS",
    "Executor",
    "Files",
    "InProcess",
    "Job",
    "Processes",
    "Progress",
    "RayCluster",
    "Record",
    "RunSpec",
    "Store",
    "Study",
    "StudyEntry",
    "describe",
    "only",
    "read_study",
    "run_job",
    "smoke",
    "sweep",
]
