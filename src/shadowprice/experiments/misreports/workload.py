"""Jobs of four tenants, and ways in which one of them misreports its jobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.simulator.audit import (
    Misreport,
    ReportedJob,
    build_misreport,
    misstate_rate,
    scale_urgency,
    scale_value,
    split_job,
    understate_work,
)

TENANTS: Final = ("vision", "speech", "text", "robots")

LIAR: Final = TENANTS[0]  # the tenant that misreports; all tenants draw their jobs alike

ACCOUNTS: Final = (LIAR, *(f"{LIAR}-{number}" for number in range(1, 8)))
"""Names under which the liar can submit jobs."""

WORKERS: Final = 24  # workers of the cluster, on servers of four; as many parameter servers fit

STEPS: Final = 1200  # mini-batches of a slot on one worker: one a second


def build_cluster(*, shares: bool) -> Cluster:
    """Return the cluster; with shares, each tenant owns a quarter of it.

    The liar's further accounts own nothing.
    """
    part = WORKERS // len(TENANTS)
    share = {"worker": part, "ps": part}
    document: dict[str, Any] = {
        "slot": "20min",
        "horizon": 60,
        "servers": [{"name": "node", "count": WORKERS // 4, "capacity": {"worker": 4, "ps": 4}}],
    }
    if shares:
        document["tenants"] = [
            *({"name": name, "share": share} for name in TENANTS),
            *({"name": name} for name in ACCOUNTS[1:]),
        ]
    return ClusterSpec.model_validate(document).resolve("misreports")


def draw_jobs(seed: int, jobs: int, cluster: Cluster) -> list[Job]:
    """Draw as many jobs of each tenant, which together need about twice the cluster.

    Values per worker-slot are log-uniform over a factor of 20.
    """
    random_ = random.Random(f"misreports {seed}")
    slots = jobs // 2
    tenants = [TENANTS[index % len(TENANTS)] for index in range(jobs)]
    random_.shuffle(tenants)
    drawn = []
    for index, arrival in enumerate(sorted(random_.randrange(slots) for _ in range(jobs))):
        workers = random_.choice([1, 2, 2, 4, 4, 8])
        length = random_.choice([2, 3, 4, 6, 8, 12])
        record: dict[str, Any] = {
            "name": f"job-{index}",
            "tenant": tenants[index],
            "arrival": f"{arrival} slots",
            "epochs": length,
            "chunks": workers,
            "minibatches": STEPS,
            # Measured curves count progress in millionths, so small misreports aren't rounded.
            "throughput": {n: round(n**0.9, 3) for n in (1, 2, 4, 8) if n <= workers},
            "worker": {"worker": 1},
            "utility": {
                "kind": "sigmoid",
                "value": round(20.0 ** random_.random() * workers * length, 3),
                "decay": random_.choice([0.05, 0.3, 1.0]),
                "target": f"{round(length * random_.uniform(1.5, 4.0), 1)} slots",
            },
        }
        if random_.random() < 0.5:
            record["ps"] = {"ps": 1}
        drawn.append(JobSpec.model_validate(record).resolve(cluster))
    return drawn


@dataclass(frozen=True, slots=True)
class MisreportCase:
    """A way of misreporting, and its size."""

    kind: str = ""  # key of `STRATEGIES`; empty for an honest report
    size: int = 1  # how much is misreported, such as the factor of the values

    def apply(self, jobs: Sequence[Job]) -> Report:
        """Return the jobs that are submitted if the liar misreports."""
        if not self.kind:
            return Report(Misreport("", "", tuple(jobs)))
        return STRATEGIES[self.kind][1](jobs, self.size)


@dataclass(frozen=True, slots=True)
class Report:
    """A workload as reported, with the jobs that will be cancelled."""

    misreport: Misreport
    incidents: tuple[JobCancelled, ...] = ()


Strategy = Callable[[Sequence[Job], int], Report]
"""Function that misreports the liar's jobs by some size."""


def _by_job(misreport: Callable[[Job, int], ReportedJob | None]) -> Strategy:
    """Return the strategy of misreporting every job in the same way."""

    def strategy(jobs: Sequence[Job], size: int) -> Report:
        misreported = {
            index: report
            for index, job in enumerate(jobs)
            if job.tenant == LIAR and (report := misreport(job, size)) is not None
        }
        return Report(build_misreport("several", "", jobs, misreported))

    return strategy


def _split(job: Job, parts: int) -> ReportedJob | None:
    """Split a job into parts, of one progress unit at least."""
    return split_job(job, min(parts, job.required), whole=False)


def _inflate_late(jobs: Sequence[Job], size: int) -> Report:
    """Report values honestly for the first half of the time, and inflated ones afterwards."""
    half = jobs[-1].arrival // 2
    return _by_job(lambda job, size: scale_value(job, size) if job.arrival > half else None)(
        jobs, size
    )


def _inflate_tenth(jobs: Sequence[Job], size: int) -> Report:
    """Inflate the values of every tenth job."""
    own = [job.name for job in jobs if job.tenant == LIAR][::10]
    return _by_job(lambda job, size: scale_value(job, size) if job.name in own else None)(
        jobs, size
    )


def _use_accounts(jobs: Sequence[Job], size: int) -> Report:
    """Submit the jobs under several names in turn, the tenant's own included."""
    own = [index for index, job in enumerate(jobs) if job.tenant == LIAR]
    renamed = {
        index: ReportedJob.of(replace(jobs[index], tenant=ACCOUNTS[number % size]), jobs[index])
        for number, index in enumerate(own)
    }
    return Report(build_misreport("several", "", jobs, renamed))


def _add_shams(sham: Callable[[Job, int], Job]) -> Strategy:
    """Return the strategy of a sham before every job, which is cancelled a slot later."""

    def strategy(jobs: Sequence[Job], size: int) -> Report:
        stated: list[Job] = []
        incidents: list[JobCancelled] = []
        for job in jobs:
            if job.tenant == LIAR:
                name = f"{job.name}+sham"
                stated.append(replace(sham(job, size), name=name))
                incidents.append(JobCancelled(job.arrival + 1, name))
            stated.append(job)
        return Report(Misreport("sham", "", tuple(stated)), tuple(incidents))

    return strategy


def _overstate_value(job: Job, size: int) -> Job:
    report = scale_value(job, size)
    return job if report is None else report.jobs[0]


def _overstate_job_work(job: Job, size: int) -> Job:
    return replace(job, required=job.required * size, epochs=job.epochs * size)


STRATEGIES: Final[Mapping[str, tuple[tuple[int, ...], Strategy]]] = {
    "inflate": ((2, 10, 100, 1000), _by_job(scale_value)),
    "inflate late": ((1000,), _inflate_late),
    "inflate a tenth": ((1000,), _inflate_tenth),
    "split": ((2, 8, 64), _by_job(_split)),
    "accounts": ((8,), _use_accounts),
    "cancel dense": ((1000,), _add_shams(_overstate_value)),
    "cancel poor": ((1000,), _add_shams(_overstate_job_work)),
    "less work": ((2, 4), _by_job(lambda job, size: understate_work(job, Fraction(1, size)))),
    "slower": ((2,), _by_job(lambda job, size: misstate_rate(job, Fraction(1, size)))),
    "urgent": ((2,), _by_job(scale_urgency)),
}
"""Sizes and strategy of each way of misreporting.

- inflate: multiply all values, or those of the later half, or of a tenth of the jobs.
- split: submit each job as parts, each worth its part.
- accounts: submit the jobs under several names.
- cancel: submit a sham of each job a slot before it can be cancelled, with the size times its value
  (dense) or its work (poor).
- less work, slower: divide the work, or the throughput.
- urgent: divide deadlines and targets, and multiply the decay.
"""
