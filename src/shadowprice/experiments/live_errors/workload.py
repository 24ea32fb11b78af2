"""Jobs of three tenants whose real work differs from their stated work."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import utility_value
from shadowprice.executors.virtual import Rate, VirtualJob, stated_rate

SLOT: Final = 1200  # seconds of a slot: the papers' 20 minutes

STEPS: Final = 1200  # mini-batches of a slot on one worker: one a second

START: Final = (0.01, 0.05)
"""Minimum and maximum share of a slot that a start takes, drawn for every placement."""

SAVE: Final = 0.01  # share of a slot that a checkpoint takes on SIGTERM

RESTART: Final = "1min"  # restart cost that jobs state

AHEAD: Final = 30.0  # seconds before its slot at which a job is submitted

FIRST: Final = 1  # slot in which the first job may arrive

TENANTS: Final = ("vision", "speech", "text")

CLUSTER: Final[Mapping[str, Any]] = {
    "slot": f"{SLOT}s",
    "horizon": 60,
    # Units of capacity, so that policies with tenants' shares run on the same cluster as others.
    "servers": [{"name": "node", "count": 6, "capacity": {"worker": 4, "ps": 4}}],
    "tenants": [{"name": name, "share": {"worker": 8, "ps": 8}} for name in TENANTS],
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One draw."""

    records: tuple[Mapping[str, Any], ...]  # records of job files, by arrival
    arrivals: tuple[int, ...]  # slots of arrival
    luck: tuple[float, ...]  # error of each job's stated work, in [-1, 1] times the size of errors
    starts: tuple[tuple[float, ...], ...]  # seconds of each job's starts

    def resolved(self) -> list[Job]:
        """Return the jobs as schedulers see them."""
        on = ClusterSpec.model_validate(CLUSTER).resolve("live-errors")
        return [
            JobSpec.model_validate({**record, "arrival": f"{arrival} slots"}).resolve(on)
            for record, arrival in zip(self.records, self.arrivals, strict=True)
        ]

    def on_offer(self) -> float:
        """Return the total value if each job completed as fast as possible."""
        return sum(
            utility_value(job.utility, job.min_slots_colocated - 1) for job in self.resolved()
        )

    def submissions(self, error: float) -> list[tuple[float, Mapping[str, Any], VirtualJob]]:
        """Return the submission time, the record and the real behaviour of each job.

        ``error`` is the size of errors: the maximum share by which a job takes longer or shorter
        than stated.
        """
        results: list[tuple[float, Mapping[str, Any], VirtualJob]] = []
        jobs = zip(
            self.records, self.arrivals, self.luck, self.starts, self.resolved(), strict=True
        )
        for record, arrival, luck, starts, job in jobs:
            rate, factor = stated_rate(job, SLOT), 1.0 + luck * error
            behaviour = VirtualJob(
                work=float(job.work),
                rate=_slower_rate(rate, factor),
                start_seconds=starts,
                save_seconds=SAVE * SLOT,
                report_every=SLOT / 5,
            )
            run = {"command": ["train"], "grace": f"{SLOT // 10}s"}
            results.append((arrival * SLOT - AHEAD, {**record, "run": run}, behaviour))
        return results


def _slower_rate(rate: Rate, factor: float) -> Rate:
    return lambda shares: rate(shares) / factor


def draw(seed: int, jobs: int, slots: int) -> Workload:
    """Draw jobs that arrive over some slots.

    The cluster has 24 workers, and the jobs need about one and a half times as many.
    """
    random_ = random.Random(f"live-errors {seed}")
    arrivals = sorted(random_.randrange(FIRST, slots) for _ in range(jobs))
    records: list[Mapping[str, Any]] = []
    for number, _ in enumerate(arrivals):
        workers = random_.choice([1, 2, 2, 4, 4, 8])
        length = random_.choice([2, 3, 4, 6, 8, 12])
        value = random_.uniform(1.0, 10.0) * workers * length
        target = round(length * random_.uniform(1.5, 4.0), 1)
        urgency = random_.choice([0.05, 0.3, 1.0])
        record: dict[str, Any] = {
            "name": f"job-{number}",
            "tenant": random_.choice(TENANTS),
            "epochs": length,
            "chunks": workers,
            "minibatches": STEPS,
            "minibatch_time": f"{float(Fraction(SLOT, STEPS))}s",
            "worker": {"worker": 1},
            "restart": RESTART,
            "utility": {
                "kind": "sigmoid",
                "value": round(value, 3),
                "decay": urgency,
                "target": f"{target} slots",
            },
        }
        if random_.random() < 0.5:
            record["ps"] = {"ps": 1}
        records.append(record)
    luck = tuple(random_.uniform(-1.0, 1.0) for _ in records)
    starts = tuple(tuple(SLOT * random_.uniform(*START) for _ in range(30)) for _ in records)
    return Workload(tuple(records), tuple(arrivals), luck, starts)
