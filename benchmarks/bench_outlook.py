"""Processor time of outlooks: why a job waits or was refused, and changes that get it admitted.

Jobs are drawn for 60 servers of eight GPUs, and submitted twenty per slot under the live service's
policy until the requested number is open. A third of them state only a run time. Half of the
outlooks are for waiting jobs, half for jobs that don't fit on any server.

    python benchmarks/bench_outlook.py [OPEN_JOBS [OUTLOOKS]]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Any

from shadowprice.core.events import JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.engine.engine import Engine
from shadowprice.engine.snapshot import clone
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.queries.outlook import build_outlook
from shadowprice.service.state.operations import EngineFork
from shadowprice.service.state.recovery import build_live_policy
from shadowprice.service.state.submission import resolve_job

CAPACITY = {"gpu": 8, "cpu": 96, "memory": "512GiB"}
CLUSTER = ClusterSpec.model_validate(
    {"slot": "20min", "horizon": 300, "servers": [{"name": "g", "count": 60, "capacity": CAPACITY}]}
).resolve()
CALENDAR = SlotCalendar.starting(1_800_000_000 * SECOND, CLUSTER.slot_seconds)
PER_SLOT = 20


def draw(name: str, rng: random.Random) -> dict[str, Any]:
    """Return the record of a job."""
    worker = {"gpu": rng.choice([1, 2, 4]), "cpu": 4, "memory": "16GiB"}
    if rng.random() < 1 / 3:
        hours = f"{rng.randint(1, 20)}h"
        return {"name": name, "steps": 1, "minibatch_time": hours, "worker": worker}
    return {
        "name": name,
        "steps": rng.randint(2_000, 60_000),
        "minibatch_time": "2s",
        "worker": worker,
        "workers": {"min": 1, "max": rng.choice([4, 8, 16])},
        "utility": {
            "kind": "sigmoid",
            "value": rng.uniform(1, 100),
            "decay": 0.3,
            "target": f"{rng.randint(10, 100)} slots",
        },
    }


def main(open_jobs: int, outlooks: int) -> None:
    """Print the median and the maximum processor time."""
    rng = random.Random(1)
    engine = Engine(CLUSTER, build_live_policy(PolicyChoice("rolling"), CLUSTER))
    records: dict[str, dict[str, Any]] = {}
    while len(engine.open_jobs) < open_jobs:
        slot = engine.slot
        moment = CALENDAR.begins(slot)
        drawn = [draw(f"job-{len(records) + index}", rng) for index in range(PER_SLOT)]
        records |= {record["name"]: record for record in drawn}
        jobs = [
            resolve_job(JobSpec.model_validate(record), CLUSTER, CALENDAR, moment)
            for record in drawn
        ]
        engine.handle(JobsArrived(slot, tuple(jobs)))
        engine.handle(SlotBegan(slot))
        progress = {
            name: min(
                engine.open_jobs[name].remaining,
                engine.open_jobs[name].job.gain(
                    placement.total_workers, colocated=placement.colocated
                ),
            )
            for name, placement in engine.running.items()
        }
        engine.handle(SlotEnded(slot, progress))
    waiting = [
        name
        for name, record in engine.open_jobs.items()
        if record.promise is None and name not in engine.running
    ]
    # None stands for a new job that doesn't fit.
    names: list[str | None] = [*rng.sample(waiting, min(len(waiting), outlooks // 2))]
    names += [None] * (outlooks - len(names))
    moment = CALENDAR.begins(engine.slot)
    seconds, untried = [], 0
    for index, name in enumerate(names):
        record = records[name] if name else draw(f"late-{index}", rng)
        if name is None:
            record["worker"]["gpu"] = 16  # a server has 8

        def resolve(spec: JobSpec) -> Job:
            return resolve_job(spec, CLUSTER, CALENDAR, moment)

        started = time.process_time()
        job = resolve(JobSpec.model_validate(record))
        fork = EngineFork(clone(engine), CALENDAR, job, resolve)
        outlook = build_outlook(fork, record, waits=name is not None)
        seconds.append(time.process_time() - started)
        untried += bool(outlook.untried)
    of_waiting = seconds[: len(names) // 2]
    print(f"{len(engine.open_jobs)} open jobs, of which {len(engine.running)} run")
    for label, values in (("waiting", of_waiting), ("refused", seconds[len(of_waiting) :])):
        print(
            f"{label}: {statistics.median(values):.2f} s median, {max(values):.2f} s at most, "
            f"{len(values)} outlooks"
        )
    print(f"outlooks with changes that were not tried, to limit the time: {untried}")


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    main(*words, *(500, 40)[len(words) :])
