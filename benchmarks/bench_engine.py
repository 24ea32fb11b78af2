"""The engine over months: memory and latency over a million jobs, clones, snapshots, lost servers.

``months`` drives an engine under FIFO, as a service would, with a million jobs that arrive, run and
complete. After every tenth of the jobs it prints the time of an event, the memory of the process,
and the time of a state digest. ``clone`` clones an engine with many open jobs, takes a snapshot and
restores it. ``lost`` removes a server on which a hundred jobs run or are planned. ``rrh`` lets RRH
decide on many jobs, together and one by one. ``large`` drives clusters of up to 100,000 servers of
20 kinds, at the rate of a million jobs a day in slots of a minute. Times are processor times.

Run: ``python benchmarks/bench_engine.py [months|clone|lost|rrh|large ...] [--jobs 1000000]
[--policies fifo,rolling] [--servers 1000,10000,100000]``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import (
    JobsArrived,
    Resize,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Sigmoid
from shadowprice.engine import Engine
from shadowprice.engine.snapshot import clone, restore, snapshot
from shadowprice.policies.registry import make_policy


def servers(count: int, gpus: int = 8) -> Cluster:
    """Return servers on which only GPUs are scarce."""
    amounts = {"gpu": gpus * 1000, "cpu": 64 * gpus * 1000, "memory": 64 * gpus * 2**30}
    return build_cluster(
        slot_seconds=Fraction(1200),
        horizon=300,
        servers=[(f"gpu-{number}", Role.ANY, amounts) for number in range(count)],
        dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, "memory": Dimension.BYTES},
    )


def training_job(on: Cluster, name: str, arrival: int, slots: int, workers: int = 1) -> Job:
    """Return a job that takes a number of slots with a number of workers."""
    return build_job(
        name=name,
        arrival=arrival,
        epochs=slots,
        chunks=workers,
        minibatches=1200,
        speed=StepModel(Fraction(1)),
        worker=on.demand({"gpu": 1000, "cpu": 4000, "memory": 2**30}),
        ps=None,
        utility=Sigmoid(100.0, 0.1, 50.0),
        slot_seconds=on.slot_seconds,
    )


def cpu_seconds(action: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes."""
    began = time.process_time()
    action()
    return time.process_time() - began


def rss() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def months(jobs: int) -> None:
    """Drive an engine through many jobs, and print a row after each tenth of them."""
    on = servers(60)
    engine = Engine(on, make_policy("fifo", PolicyContext(on), {}), saves_policy_state=False)
    rng = np.random.default_rng(0)
    running: dict[str, int] = {}
    made = events = 0
    slot, since = 0, time.process_time()
    latencies: list[float] = []
    titles = ("jobs", "slots", "MiB", "us/event", "p99 us", "digest ms", "records")
    print("".join(f"{title:>10}" for title in titles))

    def send(event: JobsArrived | SlotBegan | SlotEnded) -> None:
        nonlocal events
        began = time.thread_time()  # a shared machine interrupts for longer than an event takes
        commands = engine.handle(event)
        latencies.append(time.thread_time() - began)
        events += 1
        for command in commands:
            if isinstance(command, Start):
                running[command.job] = 1
            elif isinstance(command, Stop):
                del running[command.job]

    report = jobs // 10
    while made < jobs:
        # 40 jobs per slot, each of five slots on average, use two fifths of the 480 GPUs.
        many_jobs = tuple(
            training_job(on, f"job-{made + number}", slot, int(rng.integers(1, 10)))
            for number in range(40)
        )
        made += len(many_jobs)
        send(JobsArrived(slot, many_jobs))
        send(SlotBegan(slot))
        send(SlotEnded(slot, running))
        engine.state.collect()
        slot += 1
        if made % report < len(many_jobs):
            seconds = time.process_time() - since
            digest = cpu_seconds(engine.state_digest)
            print(
                f"{made:>10}{slot:>10}{rss():>10.1f}{seconds / events * 1e6:>10.1f}"
                f"{np.percentile(latencies, 99) * 1e6:>10.0f}{digest * 1e3:>10.2f}"
                f"{len(engine.jobs):>10}",
                flush=True,
            )
            latencies.clear()
            events, since = 0, time.process_time()


def filled_engine(policy: str, jobs: int, count: int = 60) -> Engine:
    """Return an engine with a number of open jobs."""
    on = servers(count)
    engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
    many_jobs = tuple(training_job(on, f"job-{number}", 0, 4) for number in range(jobs))
    engine.handle(JobsArrived(0, many_jobs))
    engine.handle(SlotBegan(0))
    return engine


def clones(jobs: int) -> None:
    """Clone an engine with many open jobs, take its snapshot and restore it."""
    titles = ("policy", "open", "clone ms", "snapshot ms", "restore ms", "MiB")
    print("".join(f"{title:>12}" for title in titles))
    for policy in ("fifo", "oasis"):
        engine = filled_engine(policy, jobs)
        clone(engine)
        cloning = statistics.median(cpu_seconds(lambda e=engine: clone(e)) for _ in range(7))
        writing = cpu_seconds(lambda e=engine: snapshot(e))
        text = json.dumps(snapshot(engine))
        fresh = make_policy(policy, PolicyContext(engine.cluster), {})
        restoring = cpu_seconds(lambda t=text, f=fresh: restore(json.loads(t), f))
        print(
            f"{policy:>12}{len(engine.open_jobs):>12}{cloning * 1e3:>12.1f}{writing * 1e3:>12.1f}"
            f"{restoring * 1e3:>12.1f}{len(text) / 2**20:>12.1f}"
        )


GPUS_PER_SERVER = {
    "fifo": 106,
    "srtf": 106,
    "las": 106,
    "drf": 106,
    "rrh": 106,
    "dorm": 100,
    "elasticflow": 106,
    "rolling": 100,
    "oasis": 131,
    "pdors": 131,
}
"""GPUs of a server by policy, so that a hundred jobs or more run on the fullest server."""


def lost() -> None:
    """Remove the server on which most jobs run or are planned."""
    print(f"{'policy':<12}{'displaced':>10}{'ms':>9}{'ms/job':>9}")
    for policy, gpus in GPUS_PER_SERVER.items():
        jobs, on = gpus, servers(20, gpus=gpus)
        engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
        many_jobs = tuple(training_job(on, f"job-{number}", 0, 20) for number in range(19 * jobs))
        engine.handle(JobsArrived(0, many_jobs))
        engine.handle(SlotBegan(0))
        engine.handle(SlotEnded(0, dict.fromkeys(engine.running, 1)))
        warm = clone(engine)
        fullest = max(range(on.servers), key=lambda row: len(engine.ledger.holders(row)))
        displaced = len(engine.ledger.holders(fullest))
        warm.handle(ServerLost(1, on.names[fullest]))  # compiles
        seconds = cpu_seconds(
            lambda e=engine, name=on.names[fullest]: e.handle(ServerLost(1, name))
        )
        each = seconds / max(displaced, 1)
        print(f"{policy:<12}{displaced:>10}{seconds * 1e3:>9.1f}{each * 1e3:>9.2f}")


def rrh(jobs: int) -> None:
    """Let RRH decide on many jobs, together and one by one."""
    on = servers(60)
    print(f"{'arrive':<12}{'jobs':>7}{'seconds':>9}{'us/job':>9}")
    for together in (True, False):
        engine = Engine(on, make_policy("rrh", PolicyContext(on), {}), saves_policy_state=False)
        many_jobs = tuple(training_job(on, f"job-{number}", 0, 4) for number in range(jobs))
        batches: list[tuple[Job, ...]] = [many_jobs] if together else [(job,) for job in many_jobs]

        def admit(e: Engine = engine, groups: list[tuple[Job, ...]] = batches) -> None:
            for group in groups:
                e.handle(JobsArrived(0, group))

        seconds = cpu_seconds(admit)
        print(
            f"{'together' if together else 'one by one':<12}{len(engine.open_jobs):>7}"
            f"{seconds:>9.2f}{seconds / jobs * 1e6:>9.1f}"
        )


JOBS_PER_MINUTE = 694  # a million a day


def servers_of_kinds(count: int, kinds: int = 20) -> Cluster:
    """Return servers of a number of kinds, with slots of a minute."""

    def amounts(kind: int) -> dict[str, int]:
        gpus = 1 + kind % 8
        return {"gpu": gpus * 1000, "cpu": (16 + 4 * kind) * 1000, "memory": (64 + kind) * 2**30}

    return build_cluster(
        slot_seconds=Fraction(60),
        horizon=300,
        servers=[(f"gpu-{number}", Role.ANY, amounts(number % kinds)) for number in range(count)],
        dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, "memory": Dimension.BYTES},
    )


def large(policy: str, count: int, slots: int = 12) -> None:
    """Fill a part of a cluster, then let jobs arrive, run and complete for some slots."""
    on = servers_of_kinds(count)
    rng = np.random.default_rng(0)
    share = count / 100_000  # smaller clusters get proportionally fewer jobs
    engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
    running: dict[str, int] = {}
    times: dict[str, list[float]] = {}  # seconds by type of event
    made = 0

    def send(event: JobsArrived | SlotBegan | SlotEnded) -> None:
        began = time.thread_time()
        commands = engine.handle(event)
        times.setdefault(type(event).__name__, []).append(time.thread_time() - began)
        for command in commands:
            if isinstance(command, Start | Resize):
                job = engine.jobs[command.job].job
                running[command.job] = job.gain(command.placement.total_workers, colocated=True)
            elif isinstance(command, Stop):
                del running[command.job]

    def submit(number: int, slot: int) -> None:
        nonlocal made
        for _ in range(number):
            job = training_job(on, f"job-{made}", slot, int(rng.integers(1, 7)))
            made += 1
            send(JobsArrived(slot, (job,)))

    for slot in range(slots):
        submit(max(1, round(JOBS_PER_MINUTE * share)) * (40 if slot == 0 else 1), slot)
        if slot == 0:
            times.clear()  # don't measure the loading of kernels and the filling of the cluster
        send(SlotBegan(slot))
        send(SlotEnded(slot, running))
        engine.state.collect()
    cells = [f"{policy:<10}{count:>8}{made:>8}{len(engine.running):>8}"]
    for name in ("JobsArrived", "SlotBegan", "SlotEnded"):
        seconds = times[name]
        cells.append(f"{np.median(seconds) * 1e3:>12.2f}{np.percentile(seconds, 99) * 1e3:>10.2f}")
    print("".join(cells) + f"{rss():>8.0f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", default=["months", "clone", "lost", "rrh", "large"])
    options.add_argument("--jobs", type=int, default=1_000_000)
    options.add_argument("--policies", default="fifo,rolling")
    options.add_argument("--servers", default="1000,10000")
    given = options.parse_args()
    for part in given.parts:
        if part == "months":
            months(given.jobs)
        elif part == "clone":
            clones(min(given.jobs, 6000))
        elif part == "lost":
            lost()
        elif part == "rrh":
            rrh(min(given.jobs, 20_000))
        elif part == "large":
            titles = ("arrival ms", "p99", "begin ms", "p99", "end ms", "p99")
            widths = (12, 10) * 3
            print(f"{'policy':<10}{'servers':>8}{'jobs':>8}{'running':>8}", end="")
            print("".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)) + f"{'MiB':>8}")
            for policy in given.policies.split(","):
                for count in given.servers.split(","):
                    large(policy, int(count))


if __name__ == "__main__":
    main()
