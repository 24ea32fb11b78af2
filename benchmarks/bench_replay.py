"""Replay of the whole open Philly trace under OASiS and FIFO, each beside a plain simulator.

The twins are what one writes first. FIFO's walks through every slot and, in each, every queued job,
server and running job. OASiS's prices every server and slot in numpy and fills a dense table
(`oasis_twin`) at every arrival; it takes the same decisions, so it is timed on the first arrivals
only, on the ledger that the policy left. Each line runs in a process of its own, whose peak memory
is told; the first replay, which compiles, is not counted. `recorded` keeps what a run directory
needs. Seconds are those on the clock; those of the processor matter where others share it.

Run: ``python -m benchmarks.bench_replay [--trace philly:PATH] [--load 1]``. Without the trace's
file, a generated workload of its shape is used.
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
    """Return the trace's jobs on a cluster sized to them, or jobs of its shape."""
    if not spec:
        return philly_like(52_826)
    parsed = parse_spec(spec)
    traced = read_trace(parsed)
    made = synthesize(traced, Fraction(1200), SynthesisOptions(), seed=0)
    built, faults = validate(ClusterSpec, cluster_for(made, load=load), "sized cluster")
    assert built is not None, faults
    cluster = built.resolve("sized cluster")
    return cluster, made.fitted_to(cluster).to_jobs(cluster)


class Shadow:
    """Puts a policy's first arrivals to the twin and times it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.seconds = 0.0
        self.arrivals = 0

    def resume(self, view: View) -> None:
        """Reset the policy."""
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the policy's."""
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Ask the twin first."""
        decisions = iter(self.policy.decide(view, event))
        for job in event.jobs if isinstance(event, JobsArrived) else ():
            if self.arrivals < TWIN_ARRIVALS:
                began = time.perf_counter()
                decide(view, *self.policy._planner.boards, job)  # type: ignore[attr-defined,call-arg]
                self.seconds += time.perf_counter() - began
                self.arrivals += 1
            yield next(decisions)
        yield from decisions


Taken = list[tuple[int, list[int]]]


class PlainRoom:
    """What is free, as lists: one worker or parameter server is placed at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.free = [row.tolist() for row in cluster.capacity]
        self.hosts = (cluster.hosts_workers.tolist(), cluster.hosts_ps.tolist())

    def places(self, demand: list[int], count: int, allowed: list[bool]) -> Taken:
        """Take the first places there are, at most ``count``."""
        taken: Taken = []
        for server, room in enumerate(self.free):
            while allowed[server] and len(taken) < count:
                if any(have < want for have, want in zip(room, demand, strict=True)):
                    break
                for column, want in enumerate(demand):
                    room[column] -= want
                taken.append((server, demand))
        return taken

    def give_back(self, taken: Taken) -> None:
        """Free places again."""
        for server, demand in taken:
            for column, amount in enumerate(demand):
                self.free[server][column] += amount

    def start(self, job: Job) -> Taken | None:
        """Take all places a job needs at its fewest workers, or none."""
        width, servers = int(job.worker_counts[0]), int(job.ps_counts[0])
        held = self.places(job.worker.tolist(), width, self.hosts[0])
        fits = len(held) == width
        if fits and job.ps is not None:
            more = self.places(job.ps.tolist(), servers, self.hosts[1])
            fits = len(more) == servers
            held += more
        if fits:
            return held
        self.give_back(held)
        return None


def plain_fifo(cluster: Cluster, jobs: list[Job]) -> tuple[int, float]:
    """Run jobs in order of arrival at their fewest workers; return how many ended, and seconds."""
    began = time.perf_counter()
    room = PlainRoom(cluster)
    waiting = deque(sorted(jobs, key=lambda job: job.arrival))
    queue: deque[Job] = deque()
    running: list[tuple[Job, Taken, int, int]] = []
    slot = done = 0
    while waiting or queue or running:
        while waiting and waiting[0].arrival <= slot:
            queue.append(waiting.popleft())
        while queue:
            job = queue[0]
            held = room.start(job)
            if held is not None:
                running.append((job, held, job.required, int(job.gains[0])))
            elif running:
                break
            queue.popleft()  # it runs, or it does not fit even alone
        left = []
        for job, held, remaining, gain in running:
            if remaining <= gain:
                room.give_back(held)
                done += 1
            else:
                left.append((job, held, remaining - gain, gain))
        running = left
        slot += 1
    return done, time.perf_counter() - began


def replay(name: str, spec: str, load: float) -> dict[str, Any]:
    """Run one line of the table in this process."""
    cluster, jobs = workload(spec, load)
    scenario = Scenario(cluster, jobs)
    settings: dict[str, Any] = {"workers": "min"} if "fifo" in name else {"preset": "paper"}
    if name == "fifo twin":
        busy = time.process_time()
        done, seconds = plain_fifo(cluster, jobs)
        busy = time.process_time() - busy
        return {"jobs": len(jobs), "done": done, "seconds": seconds, "busy": busy}
    if name == "oasis twin":
        # The prices of the whole job set, the decisions of its first arrivals.
        shadow = Shadow(make_policy("oasis", PolicyContext(cluster, jobs), settings))
        Simulation(cluster, jobs[: 2 * TWIN_ARRIVALS], shadow).run()
        return {"jobs": shadow.arrivals, "done": None, "seconds": shadow.seconds}
    policy, recorded = name.split(maxsplit=1)[0], "recorded" in name
    warm = Scenario(cluster, jobs[:300])
    Simulation(cluster, warm.jobs, PolicyChoice(policy, settings).build(warm.context())).run()
    built = PolicyChoice(policy, settings).build(scenario.context())
    began, busy = time.perf_counter(), time.process_time()
    if recorded:
        done = record_run(scenario, policy, built).info["summary"]["finished"]
    else:
        engine = Simulation(cluster, jobs, built).run()
        done = sum(record.completion is not None for record in engine.jobs.values())
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return {"jobs": len(jobs), "done": done, "seconds": seconds, "busy": busy}


def child(name: str, spec: str, load: float, results: Any) -> None:
    """Run a line and send back what it took."""
    found = replay(name, spec, load)
    found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put(found)


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
        f"{'':<16}{'jobs':>8}{'done':>8}{'seconds':>9}{'of CPU':>8}"
        f"{'jobs/s':>9}{'aim s':>7}{'peak MiB':>10}"
    )
    spawn = multiprocessing.get_context("spawn")
    for name, aim in LINES:
        results = spawn.Queue()
        process = spawn.Process(target=child, args=(name, given.trace, given.load, results))
        process.start()
        found = results.get()
        process.join()
        done = "" if found["done"] is None else found["done"]
        print(
            f"{name:<16}{found['jobs']:>8}{done:>8}{found['seconds']:>9.1f}"
            f"{found.get('busy', found['seconds']):>8.1f}{found['jobs'] / found['seconds']:>9.0f}"
            f"{aim:>7}{found['mib']:>10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
