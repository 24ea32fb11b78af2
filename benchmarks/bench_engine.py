"""The engine over months: memory and latency over a million jobs, clones, snapshots, lost servers.

``months`` drives an engine under FIFO with jobs that come, run and leave, as a service would, and
tells at equal distances what an event takes, how much memory the process holds, and what a digest
takes. ``clone`` fills an engine with open jobs and clones it, takes a snapshot of it and restores
that. ``lost`` takes away a server on which a hundred jobs stand or are planned. ``rrh`` lets RRH
admit a crowd. ``large`` drives clusters of 20 kinds of servers, up to a hundred thousand of them,
at the pace of a million jobs a day in slots of a minute. Times are those of the processor.

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
    """Return GPU servers with plenty of everything else."""
    amounts = {"gpu": gpus * 1000, "cpu": 64 * gpus * 1000, "memory": 64 * gpus * 2**30}
    return build_cluster(
        slot_seconds=Fraction(1200),
        horizon=300,
        servers=[(f"gpu-{at}", Role.ANY, amounts) for at in range(count)],
        dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, "memory": Dimension.BYTES},
    )


def training(on: Cluster, name: str, arrival: int, slots: int, width: int = 1) -> Job:
    """Return a job of so many slots at a width."""
    return build_job(
        name=name,
        arrival=arrival,
        epochs=slots,
        chunks=width,
        minibatches=1200,
        speed=StepModel(Fraction(1)),
        worker=on.demand({"gpu": 1000, "cpu": 4000, "memory": 2**30}),
        ps=None,
        utility=Sigmoid(100.0, 0.1, 50.0),
        slot_seconds=on.slot_seconds,
    )


def busy(action: Callable[[], object]) -> float:
    """Return the processor seconds that something takes."""
    began = time.process_time()
    action()
    return time.process_time() - began


def rss() -> float:
    """Return the memory that the process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def months(jobs: int) -> None:
    """Drive an engine through a million jobs and tell every tenth how it fares."""
    on = servers(60)
    engine = Engine(on, make_policy("fifo", PolicyContext(on), {}), saves_policy_state=False)
    rng = np.random.default_rng(0)
    running: dict[str, int] = {}
    made = events = 0
    slot, since = 0, time.process_time()
    latencies: list[float] = []
    titles = ("jobs", "slots", "MiB", "us/event", "p99 us", "digest ms", "known")
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
        # 40 jobs a slot of five slots each keep 480 GPUs two fifths busy.
        many_jobs = tuple(
            training(on, f"job-{made + at}", slot, int(rng.integers(1, 10))) for at in range(40)
        )
        made += len(many_jobs)
        send(JobsArrived(slot, many_jobs))
        send(SlotBegan(slot))
        send(SlotEnded(slot, running))
        engine.state.collect()
        slot += 1
        if made % report < len(many_jobs):
            seconds = time.process_time() - since
            digest = busy(engine.state_digest)
            print(
                f"{made:>10}{slot:>10}{rss():>10.1f}{seconds / events * 1e6:>10.1f}"
                f"{np.percentile(latencies, 99) * 1e6:>10.0f}{digest * 1e3:>10.2f}"
                f"{len(engine.jobs):>10}",
                flush=True,
            )
            latencies.clear()
            events, since = 0, time.process_time()


def crowded(policy: str, jobs: int, count: int = 60) -> Engine:
    """Return an engine with so many open jobs."""
    on = servers(count)
    engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
    many_jobs = tuple(training(on, f"job-{at}", 0, 4) for at in range(jobs))
    engine.handle(JobsArrived(0, many_jobs))
    engine.handle(SlotBegan(0))
    return engine


def clones(jobs: int) -> None:
    """Clone, keep and restore an engine with many open jobs."""
    titles = ("policy", "open", "clone ms", "snapshot ms", "restore ms", "MiB")
    print("".join(f"{title:>12}" for title in titles))
    for policy in ("fifo", "oasis"):
        engine = crowded(policy, jobs)
        clone(engine)
        cloned = statistics.median(busy(lambda e=engine: clone(e)) for _ in range(7))
        taken = busy(lambda e=engine: snapshot(e))
        text = json.dumps(snapshot(engine))
        fresh = make_policy(policy, PolicyContext(engine.cluster), {})
        given = busy(lambda t=text, f=fresh: restore(json.loads(t), f))
        print(
            f"{policy:>12}{len(engine.open_jobs):>12}{cloned * 1e3:>12.1f}{taken * 1e3:>12.1f}"
            f"{given * 1e3:>12.1f}{len(text) / 2**20:>12.1f}"
        )


STANDING = {
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
"""By policy, GPUs a server with which at least a hundred jobs stand on the fullest one."""


def lost() -> None:
    """Take away a server that many jobs stand on or are planned for."""
    print(f"{'policy':<12}{'displaced':>10}{'ms':>9}{'ms/job':>9}")
    for policy, gpus in STANDING.items():
        jobs, on = gpus, servers(20, gpus=gpus)
        engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
        many_jobs = tuple(training(on, f"job-{at}", 0, 20) for at in range(19 * jobs))
        engine.handle(JobsArrived(0, many_jobs))
        engine.handle(SlotBegan(0))
        engine.handle(SlotEnded(0, dict.fromkeys(engine.running, 1)))
        twin = clone(engine)
        fullest = max(range(on.servers), key=lambda row: len(engine.ledger.holders(row)))
        held = len(engine.ledger.holders(fullest))
        twin.handle(ServerLost(1, on.names[fullest]))  # compiles
        seconds = busy(lambda e=engine, name=on.names[fullest]: e.handle(ServerLost(1, name)))
        print(f"{policy:<12}{held:>10}{seconds * 1e3:>9.1f}{seconds / max(held, 1) * 1e3:>9.2f}")


def rrh(jobs: int) -> None:
    """Let RRH admit a crowd, at once and one by one."""
    on = servers(60)
    print(f"{'arrive':<12}{'jobs':>7}{'seconds':>9}{'us/job':>9}")
    for together in (True, False):
        engine = Engine(on, make_policy("rrh", PolicyContext(on), {}), saves_policy_state=False)
        many_jobs = tuple(training(on, f"job-{at}", 0, 4) for at in range(jobs))
        batches: list[tuple[Job, ...]] = (
            [many_jobs] if together else [(each,) for each in many_jobs]
        )

        def admit(e: Engine = engine, groups: list[tuple[Job, ...]] = batches) -> None:
            for group in groups:
                e.handle(JobsArrived(0, group))

        seconds = busy(admit)
        print(
            f"{'together' if together else 'one by one':<12}{len(engine.open_jobs):>7}"
            f"{seconds:>9.2f}{seconds / jobs * 1e6:>9.1f}"
        )


A_MINUTE = 694
"""Jobs that arrive in a minute at a million a day."""


def kinds_of_servers(count: int, kinds: int = 20) -> Cluster:
    """Return servers of so many kinds, with slots of a minute."""

    def amounts(kind: int) -> dict[str, int]:
        gpus = 1 + kind % 8
        return {"gpu": gpus * 1000, "cpu": (16 + 4 * kind) * 1000, "memory": (64 + kind) * 2**30}

    return build_cluster(
        slot_seconds=Fraction(60),
        horizon=300,
        servers=[(f"gpu-{at}", Role.ANY, amounts(at % kinds)) for at in range(count)],
        dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, "memory": Dimension.BYTES},
    )


def large(policy: str, count: int, slots: int = 12) -> None:
    """Fill a part of a cluster, then let jobs come, run and leave for some slots."""
    on = kinds_of_servers(count)
    rng = np.random.default_rng(0)
    share = count / 100_000
    engine = Engine(on, make_policy(policy, PolicyContext(on), {}), saves_policy_state=False)
    running: dict[str, int] = {}
    took: dict[str, list[float]] = {}
    made = 0

    def send(event: JobsArrived | SlotBegan | SlotEnded) -> None:
        began = time.thread_time()
        commands = engine.handle(event)
        took.setdefault(type(event).__name__, []).append(time.thread_time() - began)
        for command in commands:
            if isinstance(command, Start | Resize):
                job = engine.jobs[command.job].job
                running[command.job] = job.gain(command.placement.total_workers, colocated=True)
            elif isinstance(command, Stop):
                del running[command.job]

    def come(number: int, slot: int) -> None:
        nonlocal made
        for _ in range(number):
            job = training(on, f"job-{made}", slot, int(rng.integers(1, 7)))
            made += 1
            send(JobsArrived(slot, (job,)))

    for slot in range(slots):
        come(max(1, round(A_MINUTE * share)) * (40 if slot == 0 else 1), slot)
        if slot == 0:
            took.clear()  # kernels are loaded, and the cluster is filled
        send(SlotBegan(slot))
        send(SlotEnded(slot, running))
        engine.state.collect()
    cells = [f"{policy:<10}{count:>8}{made:>8}{len(engine.running):>8}"]
    for name in ("JobsArrived", "SlotBegan", "SlotEnded"):
        seconds = took[name]
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
            wide = (12, 10) * 3
            print(f"{'policy':<10}{'servers':>8}{'jobs':>8}{'running':>8}", end="")
            print("".join(f"{t:>{w}}" for t, w in zip(titles, wide, strict=True)) + f"{'MiB':>8}")
            for policy in given.policies.split(","):
                for count in given.servers.split(","):
                    large(policy, int(count))


if __name__ == "__main__":
    main()
