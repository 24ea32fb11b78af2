"""The testbed's cluster and jobs, scaled so that two cores do for nine servers.

What `traces.testbed` declares is changed in three units only, the same for all: time (slots are
shorter, and so are mini-batches), cores and memory. No scheduler sees a difference: all that it
weighs are shares of servers and slots.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.traces.generator import GeneratorOptions, generate
from shadowprice.traces.testbed import JOBS, SLOT, SLOTS, oasis_testbed_cluster
from shadowprice.traces.workload import NANO

CORES: Final = Fraction(1, 20)
"""A stated core's share of a real one: 32 of a server become 1.6."""

MEMORY: Final = Fraction(1, 4)
SCRIPT: Final = Path(__file__).with_name("train.py")
GRACE: Final = "20s"


@dataclass(frozen=True, slots=True)
class Files:
    """What is run, by whatever driver.

    Parameters
    ----------
    cluster : mapping
        What a cluster file says.
    jobs : tuple of mapping
        What a job file says, by arrival.
    seconds : float
        Length of a slot.
    slots : int
        Slots until it is over.
    pace : mapping of str to float
        Stated seconds of a mini-batch of each job, exchange included.
    """

    cluster: Mapping[str, Any]
    jobs: tuple[Mapping[str, Any], ...]
    seconds: float
    slots: int
    pace: Mapping[str, float]

    def arrival(self, name: str) -> int:
        """Return the slot in which a job arrives."""
        (found,) = (one["arrival"] for one in self.jobs if one["name"] == name)
        return int(str(found).removesuffix(" slots"))

    def speeds(self, job: Mapping[str, Any]) -> dict[int, float]:
        """Return a job's mini-batches a second by number of workers."""
        pace = self.pace[str(job["name"])]
        return {workers: workers / pace for workers in range(1, job["workers"]["max"] + 1)}


def scaled(
    seconds: int,
    *,
    seed: int = 0,
    jobs: int = JOBS,
    slots: int = SLOTS,
    restart: float | None = None,
) -> Files:
    """Return the testbed's files with slots of so many seconds.

    Parameters
    ----------
    seconds : int
        Length of a slot.
    seed : int
        Seed of the jobs.
    jobs, slots : int
        How many jobs arrive, and in how many slots.
    restart : float, optional
        Seconds that a job loses when it begins or is moved; None for none at all.
    """
    options = GeneratorOptions(preset="testbed", jobs=jobs, slots=slots, slot_seconds=SLOT)
    workload = generate(options, seed=seed)
    scale = Fraction(seconds) / SLOT
    cluster = oasis_testbed_cluster(slot_seconds=Fraction(seconds), horizon=slots)
    for server in cluster["servers"]:
        has = server["capacity"]
        has["cpu"] = float(has["cpu"] * CORES)
        has["memory"] = f"{int(has['memory'].removesuffix('GB')) * 1000 * MEMORY}MB"
    if restart is not None:
        cluster["restart_first"] = True
    made = []
    for at in range(len(workload)):
        profile = workload.profiles[at]
        record = workload.to_record(at)
        record["arrival"] = f"{int(workload.arrival[at] / NANO / SLOT)} slots"
        record["minibatch_time"] = f"{float(workload.minibatch_time[at] * scale / NANO):.9f}s"
        record["gradient"] = f"{int(profile.gradient * scale)}B"
        record["worker"] = _scaled(profile.worker)
        record["ps"] = _scaled(profile.ps or {})
        if restart is not None:
            record["restart"] = f"{restart:.2f}s"
        made.append(record)
    on = ClusterSpec.model_validate(cluster).resolve("testbed")
    pace = {str(one["name"]): JobSpec.model_validate(one).resolve(on).step_seconds for one in made}
    return Files(cluster, tuple(made), float(seconds), slots, pace)


def _scaled(asked: Mapping[str, int]) -> dict[str, int | float | str]:
    """Return what a process asks for as a job file writes it."""
    made: dict[str, int | float | str] = {}
    for name, amount in asked.items():
        if name == "memory":
            made[name] = f"{int(amount * MEMORY) // 10**6}MB"
        elif name == BANDWIDTH:
            made[name] = f"{amount // 10**6}Mbps"
        else:
            made[name] = float(amount * (CORES if name == "cpu" else 1)) / MILLI
    return made


def runnable(files: Files, job: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a job as it is submitted: without an arrival, and with what it runs.

    Parameters
    ----------
    files : Files
        Whose job it is.
    job : mapping
        One of its jobs.
    seed : int
        Seed of its data and its first parameters.
    """
    words = [sys.executable, str(SCRIPT), "--family", job["labels"]["family"], "--seed", str(seed)]
    for name in ("epochs", "chunks", "minibatches"):
        words += [f"--{name}", str(job[name])]
    words += ["--pace", f"{files.pace[str(job['name'])]:.6f}"]
    env = {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run = {"command": words, "env": env, "retries": 3, "grace": GRACE, "tolerates": "workers"}
    told = {key: value for key, value in job.items() if key != "arrival"}
    return {**told, "run": run}
