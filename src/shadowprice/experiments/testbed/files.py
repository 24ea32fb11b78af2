"""The testbed's cluster and jobs, scaled down from nine servers to two cores.

Three units of `traces.testbed` change, equally for all: time (shorter slots and mini-batches),
cores and memory. Schedulers see no difference, because they only compare shares of servers and
slots.
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
"""A real core's share per stated core: 32 cores of a server become 1.6."""

MEMORY: Final = Fraction(1, 4)
SCRIPT: Final = Path(__file__).with_name("train.py")
GRACE: Final = "20s"


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Records to run with any driver."""

    cluster: Mapping[str, Any]  # record of the cluster file
    jobs: tuple[Mapping[str, Any], ...]  # records of the job file, by arrival
    seconds: float  # length of a slot
    slots: int  # slots of the run
    pace: Mapping[str, float]  # stated seconds of each job's mini-batch, including exchange

    def arrival(self, name: str) -> int:
        """Return the slot in which a job arrives."""
        (arrival,) = (job["arrival"] for job in self.jobs if job["name"] == name)
        return int(str(arrival).removesuffix(" slots"))

    def speeds(self, job: Mapping[str, Any]) -> dict[int, float]:
        """Return a job's mini-batches per second by number of workers."""
        pace = self.pace[str(job["name"])]
        return {workers: workers / pace for workers in range(1, job["workers"]["max"] + 1)}


def scaled(
    seconds: int,
    *,
    seed: int = 0,
    jobs: int = JOBS,
    slots: int = SLOTS,
    restart: float | None = None,
    share: Fraction = Fraction(1),
) -> InputFiles:
    """Return the testbed's files for a length of slots in seconds.

    ``jobs`` arrive within ``slots``. ``restart`` is the seconds that a job loses at each start and
    move; None for none. ``share`` scales cores and memory once more, so that several copies of the
    cluster fit on one machine.
    """
    cores, memory = share * CORES, share * MEMORY
    options = GeneratorOptions(preset="testbed", jobs=jobs, slots=slots, slot_seconds=SLOT)
    workload = generate(options, seed=seed)
    scale = Fraction(seconds) / SLOT
    cluster = oasis_testbed_cluster(slot_seconds=Fraction(seconds), horizon=slots)
    for server in cluster["servers"]:
        capacity = server["capacity"]
        capacity["cpu"] = float(capacity["cpu"] * cores)
        capacity["memory"] = f"{int(capacity['memory'].removesuffix('GB')) * 1000 * memory}MB"
    if restart is not None:
        cluster["restart_first"] = True
    records = []
    for index in range(len(workload)):
        profile = workload.profiles[index]
        record = workload.to_record(index)
        record["arrival"] = f"{int(workload.arrival[index] / NANO / SLOT)} slots"
        record["minibatch_time"] = f"{float(workload.minibatch_time[index] * scale / NANO):.9f}s"
        record["gradient"] = f"{int(profile.gradient * scale)}B"
        record["worker"] = _scale_resources(profile.worker, cores, memory)
        record["ps"] = _scale_resources(profile.ps or {}, cores, memory)
        if restart is not None:
            record["restart"] = f"{restart:.2f}s"
        records.append(record)
    on = ClusterSpec.model_validate(cluster).resolve("testbed")
    pace = {
        str(item["name"]): JobSpec.model_validate(item).resolve(on).step_seconds for item in records
    }
    return InputFiles(cluster, tuple(records), float(seconds), slots, pace)


def _scale_resources(
    request: Mapping[str, int], cores: Fraction, memory: Fraction
) -> dict[str, int | float | str]:
    """Return the resources of a process as in a job file."""
    amounts: dict[str, int | float | str] = {}
    for name, amount in request.items():
        if name == "memory":
            amounts[name] = f"{int(amount * memory) // 10**6}MB"
        elif name == BANDWIDTH:
            amounts[name] = f"{amount // 10**6}Mbps"
        else:
            amounts[name] = float(amount * (cores if name == "cpu" else 1)) / MILLI
    return amounts


def to_submission(files: InputFiles, job: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a job as submitted: without an arrival, and with its command.

    ``seed`` is for its data and its initial parameters.
    """
    argv = [sys.executable, str(SCRIPT), "--family", job["labels"]["family"], "--seed", str(seed)]
    for name in ("epochs", "chunks", "minibatches"):
        argv += [f"--{name}", str(job[name])]
    argv += ["--pace", f"{files.pace[str(job['name'])]:.6f}"]
    env = {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run = {"command": argv, "env": env, "retries": 3, "grace": GRACE, "tolerates": "workers"}
    stated = {key: value for key, value in job.items() if key != "arrival"}
    return {**stated, "run": run}
