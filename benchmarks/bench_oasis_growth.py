"""Growth of `oasis` with the number of servers: the same 10,000 jobs on servers of 20 kinds.

The workload ``alike`` has jobs with equal demands that last 1 to 6 slots. ``calibrated`` has the
generator's jobs with parameter servers, whose demands all differ. Jobs arrive over 1,000 slots; the
horizon is 100. Each run has its own process, whose peak memory is measured. Times are processor
times, without compiling. Equal schedules have equal digests.

Run: ``python -m benchmarks.bench_oasis_growth [--workloads alike] [--servers 1000,100000]``
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import resource
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction

import numpy as np
from benchmarks.bench_engine import servers_of_kinds, training_job

from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.events import Commit, Decision, JobsArrived, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, View
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from shadowprice.traces.generator import GeneratorOptions, generate

KINDS = 20
TIMED = 5
"""Only every so many decisions are timed: reading the clock may take longer than deciding."""

HORIZON = 100
TITLES = ("workload", "servers", "T", "jobs", "admitted", "CPU s", "median ms", "p99", "MiB")


class Stopwatch:
    """Times a policy's decisions on arrivals, and digests them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.milliseconds: list[float] = []
        self.decided = self.admitted = 0
        self.digest = hashlib.sha256()

    def resume(self, view: View) -> None:
        """Reset the policy."""
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters of the policy."""
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Time each decision on an arrival."""
        decisions = iter(self.policy.decide(view, event))
        for _ in event.jobs if isinstance(event, JobsArrived) else ():
            self.decided += 1
            if self.decided % TIMED == 0:
                began = time.process_time()
                decision = next(decisions)
                self.milliseconds.append(1e3 * (time.process_time() - began))
            else:
                decision = next(decisions)
            if isinstance(decision, Commit):
                self.admitted += 1
                self.digest.update(repr(decision.schedule.rows()).encode())
            yield decision
        yield from decisions


def alike(servers: int, jobs: int, slots: int) -> tuple[Cluster, list[Job]]:
    """Return servers that host both roles, and jobs with equal demands."""
    on = replace(
        servers_of_kinds(servers, KINDS),
        slot_seconds=Fraction(1200),
        horizon=min(slots, HORIZON),
    )
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, jobs)
    arrivals = np.sort(rng.integers(0, slots, jobs))
    return on, [
        training_job(on, f"job-{index}", int(arrivals[index]), int(lengths[index]))
        for index in range(jobs)
    ]


def calibrated(servers: int, jobs: int, slots: int) -> tuple[Cluster, list[Job]]:
    """Return servers, half of them for parameter servers, and the generator's jobs."""
    rows = []
    for number in range(servers):
        kind = number % KINDS
        worker = kind % 2 == 0
        capacity = {
            "cpu": 36 + 2 * kind,
            "memory": f"{(488 if worker else 60) + 4 * kind}GiB",
            "storage": "1TB",
            BANDWIDTH: f"{20 + kind}Gbps",
        } | ({"gpu": 4 + 4 * (kind % 4)} if worker else {})
        role = "worker" if worker else "ps"
        rows.append({"name": f"server-{number}", "role": role, "capacity": capacity})
    document = {"slot": "20min", "horizon": min(slots, HORIZON), "servers": rows}
    spec, faults = validate(ClusterSpec, document, "generated cluster")
    assert spec is not None, faults
    on = spec.resolve("generated cluster")
    options = GeneratorOptions(
        preset="calibrated",
        jobs=jobs,
        slots=slots,
        slot_seconds=Fraction(1200),
    )
    return on, generate(options).to_jobs(on)


WORKLOADS = {"alike": alike, "calibrated": calibrated}


def measure(workload: str, servers: int, jobs: int, slots: int, prices: str) -> str:
    """Run a small workload, which compiles the kernels, then the measured one; return its row."""
    for count, number in ((40, 20), (servers, jobs)):
        on, arriving = WORKLOADS[workload](count, number, slots)
        policy = make_policy("oasis", PolicyContext(on, arriving, slots), {"prices": prices})
        watch = Stopwatch(policy)
        began = time.process_time()
        Simulation(on, arriving, watch, until=slots).run()
        seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = np.array(watch.milliseconds)
    return (
        f"{workload:<12}{servers:>10}{slots:>10}{jobs:>10}{watch.admitted:>10}{seconds:>10.1f}"
        f"{np.median(spent):>10.2f}{np.percentile(spent, 99):>10.2f}{peak:>10.0f}"
        f"  {watch.digest.hexdigest()[:12]}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workloads", default=",".join(WORKLOADS))
    options.add_argument("--servers", default="1000,100000")
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--slots", type=int, default=1000)
    options.add_argument("--prices", default="offline", help="the policy's parameter `prices`")
    given = options.parse_args()
    print(f"{TITLES[0]:<12}" + "".join(f"{title:>10}" for title in TITLES[1:]) + "  schedules")
    for workload in given.workloads.split(","):
        for servers in given.servers.split(","):
            row = (workload, int(servers), given.jobs, given.slots, given.prices)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(measure, *row).result(), flush=True)


if __name__ == "__main__":
    main()
