"""Simulation of the whole open Philly trace under OASiS and FIFO, compared with plain simulators.

The plain simulators (the "twins") are straightforward code. FIFO's visits every queued job, server
and running job in every slot. OASiS's computes the prices of all servers and slots in numpy, and a
dense table, at every arrival (`oasis_twin`). It takes the same decisions, so it is only timed for
the first arrivals, on the policy's ledger. Each line runs in its own process, whose peak memory is
printed. A first simulation compiles the kernels and doesn't count. `recorded` lines also record the
content of a run directory. On a busy machine, processor times matter, not seconds.

Run: ``python -m benchmarks.bench_replay [--trace philly:PATH] [--load 1]``. Without the trace's
file, the workload is a generated one that resembles it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from collections import deque
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.bench_fifo_replay import philly_like
from benchmarks.oasis_twin import decide

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, JobsArrived, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, View
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.traces.generator import cluster_for
from shadowprice.traces.locate import parse_spec, read_trace
from shadowprice.traces.synthesis import SynthesisOptions, synthesize

TWIN_ARRIVALS = 300


def workload(spec: str, load: float) -> tuple[Cluster, list[Job]]:
    """Return the trace's jobs and a cluster sized for them, or a generated workload."""
    if not spec:
        return philly_like(52_826)
    parsed = parse_spec(spec)
    traced = read_trace(parsed)
    synthesised = synthesize(traced, Fraction(1200), SynthesisOptions(), seed=0)
    spec_of_cluster, faults = validate(
        ClusterSpec, cluster_for(synthesised, load=load), "sized cluster"
    )
    assert spec_of_cluster is not None, faults
    cluster = spec_of_cluster.resolve("sized cluster")
    return cluster, synthesised.fitted_to(cluster).to_jobs(cluster)


class TwinTimer:
    """Wraps a policy, and times the twin's decisions on the first arrivals."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.seconds = 0.0
        self.arrivals = 0

    def resume(self, view: View) -> None:
        """Reset the policy."""
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters of the policy."""
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Let the twin decide first, on the same ledger."""
        decisions = iter(self.policy.decide(view, event))
        for job in event.jobs if isinstance(event, JobsArrived) else ():
            if self.arrivals < TWIN_ARRIVALS:
                began = time.perf_counter()
                decide(view, *self.policy._planner.boards, job)  # type: ignore[attr-defined,call-arg]
                self.seconds += time.perf_counter() - began
                self.arrivals += 1
            yield next(decisions)
        yield from decisions


Reserved = list[tuple[int, list[int]]]  # server and amounts of each process


class PlainLedger:
    """Free capacity as lists; places one worker or parameter server at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.free = [row.tolist() for row in cluster.capacity]
        self.hosts = (cluster.hosts_workers.tolist(), cluster.hosts_ps.tolist())

    def reserve(self, demand: list[int], count: int, allowed: list[bool]) -> Reserved:
        """Reserve capacity on the first servers that have it, for at most ``count`` processes."""
        reserved: Reserved = []
        for server, free in enumerate(self.free):
            while allowed[server] and len(reserved) < count:
                if any(have < want for have, want in zip(free, demand, strict=True)):
                    break
                for column, want in enumerate(demand):
                    free[column] -= want
                reserved.append((server, demand))
        return reserved

    def release(self, reserved: Reserved) -> None:
        """Release capacity."""
        for server, demand in reserved:
            for column, amount in enumerate(demand):
                self.free[server][column] += amount

    def start(self, job: Job) -> Reserved | None:
        """Reserve capacity for a job's minimum number of workers; None if it doesn't fit."""
        workers, ps = int(job.worker_counts[0]), int(job.ps_counts[0])
        reserved = self.reserve(job.worker.tolist(), workers, self.hosts[0])
        fits = len(reserved) == workers
        if fits and job.ps is not None:
            more = self.reserve(job.ps.tolist(), ps, self.hosts[1])
            fits = len(more) == ps
            reserved += more
        if fits:
            return reserved
        self.release(reserved)
        return None


def plain_fifo(cluster: Cluster, jobs: list[Job]) -> tuple[int, float]:
    """Run jobs by arrival with their minimum workers; return completed jobs and seconds."""
    began = time.perf_counter()
    ledger = PlainLedger(cluster)
    arriving = deque(sorted(jobs, key=lambda job: job.arrival))
    queue: deque[Job] = deque()
    running: list[tuple[Reserved, int, int]] = []  # capacity, remaining work, work per slot
    slot = done = 0
    while arriving or queue or running:
        while arriving and arriving[0].arrival <= slot:
            queue.append(arriving.popleft())
        while queue:
            job = queue[0]
            reserved = ledger.start(job)
            if reserved is not None:
                running.append((reserved, job.required, int(job.gains[0])))
            elif running:
                break
            queue.popleft()  # it runs, or doesn't even fit on the empty cluster
        continuing = []
        for reserved, remaining, gain in running:
            if remaining <= gain:
                ledger.release(reserved)
                done += 1
            else:
                continuing.append((reserved, remaining - gain, gain))
        running = continuing
        slot += 1
    return done, time.perf_counter() - began


def replay(name: str, spec: str, load: float) -> dict[str, Any]:
    """Run one line of the table in this process."""
    cluster, jobs = workload(spec, load)
    scenario = Scenario(cluster, jobs)
    settings: dict[str, Any] = {"workers": "min"} if "fifo" in name else {"preset": "paper"}
    if name == "fifo twin":
        cpu = time.process_time()
        done, seconds = plain_fifo(cluster, jobs)
        cpu = time.process_time() - cpu
        return {"jobs": len(jobs), "done": done, "seconds": seconds, "cpu": cpu}
    if name == "oasis twin":
        # Price constants are those of the whole job set, but only the first jobs arrive.
        timer = TwinTimer(make_policy("oasis", PolicyContext(cluster, jobs), settings))
        Simulation(cluster, jobs[: 2 * TWIN_ARRIVALS], timer).run()
        return {"jobs": timer.arrivals, "done": None, "seconds": timer.seconds}
    policy, recorded = name.split(maxsplit=1)[0], "recorded" in name
    warm = Scenario(cluster, jobs[:300])
    Simulation(cluster, warm.jobs, PolicyChoice(policy, settings).build(warm.context())).run()
    scheduler = PolicyChoice(policy, settings).build(scenario.context())
    began, cpu = time.perf_counter(), time.process_time()
    if recorded:
        done = record_run(scenario, policy, scheduler).info["summary"]["finished"]
    else:
        engine = Simulation(cluster, jobs, scheduler).run()
        done = sum(record.completion is not None for record in engine.jobs.values())
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"jobs": len(jobs), "done": done, "seconds": seconds, "cpu": cpu}


def replay_in_child(name: str, spec: str, load: float, results: Any) -> None:
    """Run a line, and send its results with the peak memory to the parent process."""
    result = replay(name, spec, load)
    result["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put(result)


LINES = (
    ("oasis", "60"),
    ("oasis recorded", "60"),
    ("oasis twin", ""),
    ("fifo", "5"),
    ("fifo recorded", "5"),
    ("fifo twin", ""),
)


def main() -> None:
    folder = Path(os.environ.get("SHADOWPRICE_TRACES", "../shared/traces"))
    file = folder / "philly" / "philly.csv.gz"
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trace", default=f"philly:{file}" if file.exists() else "")
    options.add_argument("--load", type=float, default=1.0)
    given = options.parse_args()
    print(given.trace or "generated workload", f"load {given.load:g}")
    print(
        f"{'':<16}{'jobs':>8}{'done':>8}{'seconds':>9}{'CPU s':>8}"
        f"{'jobs/s':>9}{'aim s':>7}{'peak MiB':>10}"
    )
    spawn = multiprocessing.get_context("spawn")
    for name, aim in LINES:
        results = spawn.Queue()
        arguments = (name, given.trace, given.load, results)
        process = spawn.Process(target=replay_in_child, args=arguments)
        process.start()
        result = results.get()
        process.join()
        done = "" if result["done"] is None else result["done"]
        print(
            f"{name:<16}{result['jobs']:>8}{done:>8}{result['seconds']:>9.1f}"
            f"{result.get('cpu', result['seconds']):>8.1f}"
            f"{result['jobs'] / result['seconds']:>9.0f}{aim:>7}{result['mib']:>10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
