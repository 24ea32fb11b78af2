"""Cluster and jobs of section 5.1, with arrivals of Philly's virtual clusters.

The trace gives the arrivals and virtual clusters of jobs. Epochs, chunks, mini-batches, times,
gradients, bandwidths and utilities are drawn from the paper's ranges. The available trace has eight
virtual clusters, not fourteen. So the jobs and servers of the busiest one are divided at random
among several users. Two clusters whose size isn't published have the smallest size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, Literal

import numpy as np

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.utility import Linear, Power, Utility
from shadowprice.traces.locate import read_trace, traces_folder

Demand = Literal["chunks", "trace"]

HOUR: Final = Fraction(3600)
WORKERS_A_SERVER: Final = 8
PS_A_SERVER: Final = 1
TRACE: Final = "philly/philly.csv.gz"

NODES: Final[Mapping[str, int]] = {
    "6214e9": 64,
    "b436b2": 64,
    "103959": 8,
    "0e4a51": 32,
    "2869ce": 16,
    "e13805": 16,
    "23dbec": 8,
    "51b7ef": 8,
}
"""Servers of each virtual cluster (philly_vc.csv); the last two are not published."""

BUSIEST: Final = "6214e9"

GPU_COUNTS: Final = (1, 2, 4, 8)
GPU_SHARES: Final = (0.967, 0.005, 0.016, 0.012)
"""Distribution of GPUs per job in the trace; the few jobs with more than 8 count as 8."""

SMALL_MACHINE: Final = 2
LARGE_SHARE: Final = Fraction(231, 552)
"""Share of machines of 8 GPUs; the rest have 2: 2,490 GPUs on 552 machines."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals and owners of jobs."""

    source: str  # ``philly``, or ``generated`` without the trace folder
    slots: tuple[int, ...]  # arrival slots, ascending
    owners: tuple[str, ...]  # virtual cluster of each job
    gpus: tuple[int, ...]  # GPUs that each job requests


@cache
def _philly() -> tuple[np.ndarray, list[str], np.ndarray] | None:
    if not (traces_folder() / TRACE).is_file():
        return None
    jobs = read_trace(f"philly:{TRACE}?duplicates=drop").jobs
    return jobs["submit"].to_numpy(), jobs["tenant"].to_list(), jobs["gpus"].to_numpy()


def arrivals(count: int, generator: np.random.Generator) -> Arrivals:
    """Return a contiguous stretch of jobs from a random position of the trace."""
    traced = _philly()
    if traced is None:
        gaps = generator.exponential(1 / 20.7, count) * generator.choice(
            [0.05, 4.8], count, p=[0.8, 0.2]
        )
        weights = np.array([0.78, 0.14, 0.037, 0.027, 0.008, 0.007, 0.0005, 0.0005])
        owners = generator.choice(list(NODES), count, p=weights / weights.sum())
        slots = np.floor(np.cumsum(gaps)).astype(int)
        # A generator of its own, so that arrivals and owners don't depend on it.
        sizes = np.random.default_rng([count, len(NODES)])
        gpus = sizes.choice(GPU_COUNTS, count, p=GPU_SHARES)
        return Arrivals(
            "generated", tuple(slots.tolist()), tuple(owners.tolist()), tuple(gpus.tolist())
        )
    submit, names, requested = traced
    first = int(generator.integers(0, len(submit) - count))
    hours = np.floor((submit[first : first + count] - submit[first]) / 3600).astype(int)
    stretch = slice(first, first + count)
    gpus = np.maximum(1, requested[stretch]).astype(int)
    return Arrivals("philly", tuple(hours.tolist()), tuple(names[stretch]), tuple(gpus.tolist()))


def user_shares(users: int, servers: int) -> dict[str, int]:
    """Return the number of servers of each user: all servers, and at least one for each.

    Up to eight users are the virtual clusters with the most jobs. More users divide the busiest
    one.
    """
    names = list(NODES)[: min(users, len(NODES))]
    parts = max(1, users - len(NODES) + 1)
    weights: dict[str, float] = {}
    for name in names:
        for part in range(parts if name == BUSIEST else 1):
            label = f"{name}/{part}" if name == BUSIEST and parts > 1 else name
            weights[label] = NODES[name] / (parts if name == BUSIEST else 1)
    total = sum(weights.values())
    spare = servers - len(weights)
    exact = {name: spare * weight / total for name, weight in weights.items()}
    shares = {name: 1 + int(part) for name, part in exact.items()}
    by_rest = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_rest[: servers - sum(shares.values())]:
        shares[name] += 1
    return shares


def shared_cluster(users: int, servers: int, horizon: int, *, mixed: bool = False) -> Cluster:
    """Return servers of workers and one parameter server each, each owned by one user.

    With ``mixed``, servers have 2 or 8 workers in Philly's proportion, evenly spread over users;
    otherwise all have 8.
    """
    sizes = [
        WORKERS_A_SERVER
        if not mixed or (index + 1) * LARGE_SHARE // 1 > index * LARGE_SHARE // 1
        else SMALL_MACHINE
        for index in range(servers)
    ]
    names = ("worker", "ps")
    tenants, first = [], 0
    for name, count in user_shares(users, servers).items():
        owned = sum(sizes[first : first + count])
        tenants.append(Tenant(name, {"worker": owned * MILLI, "ps": count * PS_A_SERVER * MILLI}))
        first += count
    return build_cluster(
        slot_seconds=HOUR,
        horizon=horizon,
        servers=[
            (f"s{index}", Role.ANY, {"worker": size * MILLI, "ps": PS_A_SERVER * MILLI})
            for index, size in enumerate(sizes)
        ],
        dimensions=dict.fromkeys(names, Dimension.COUNT),
        tenants=tenants,
    )


@dataclass(frozen=True, slots=True)
class Ranges:
    """Uniform ranges of the drawn quantities; the defaults are section 5.1's."""

    epochs: tuple[int, int] = (50, 100)  # E
    chunks: tuple[int, int] = (20, 50)  # D
    minibatches: tuple[int, int] = (10, 50)  # M
    minibatch_hours: tuple[float, float] = (0.001, 0.05)  # m


PAPER: Final = Ranges()
FOUND: Final = Ranges(epochs=(13, 25))  # a quarter of the work
SHORT: Final = Ranges(epochs=(3, 7))
"""A sixteenth of the work: a median job fills a server for half a day, not for ten days."""
TINY: Final = Ranges(epochs=(2, 5), minibatches=(4, 16))
"""For the offline optimum, which needs small instances: a few hours on one server."""


def draw_jobs(
    cluster: Cluster,
    count: int,
    seed: int,
    *,
    ranges: Ranges = PAPER,
    convex: bool = False,
    demand: Demand = "chunks",
) -> tuple[list[Job], str]:
    """Draw a workload for a `shared_cluster`; return the jobs, and the source of their arrivals.

    Except for their users, the jobs don't depend on the cluster. Utilities are k d + g, or
    (e/d)^kappa if ``convex``. ``demand`` says how many workers a job may have: up to its chunks, or
    exactly its GPUs in the trace (limited by its chunks). The job's label ``gang`` has that number
    of GPUs in either case.
    """
    rng = np.random.default_rng(seed)
    when = arrivals(count, rng)
    names = [tenant.name for tenant in cluster.tenants]
    worker = cluster.demand({"worker": MILLI})
    ps_demand = cluster.demand({"ps": MILLI})
    jobs = []
    for number in range(count):
        ps_bandwidth = int(rng.uniform(5, 20) * 1e9)
        # (6) needs a parameter server at least as fast as a worker.
        bandwidth = min(int(rng.uniform(100, 5 * 1024) * 1e6), ps_bandwidth)
        minibatch = Fraction(int(3.6e9 * rng.uniform(*ranges.minibatch_hours)), 10**6)
        update = Fraction(int(rng.integers(10, 101)), 1000)
        gradient = int(rng.uniform(30, 575) * 1e6)
        linear = Linear(float(rng.uniform(100, 1000)), float(rng.uniform(-2.0, -0.1)))
        power = Power(float(rng.uniform(100, 1000)), float(rng.uniform(1.0, 2.0)))
        utility: Utility = power if convex else linear
        sizes = [
            int(rng.integers(low, high + 1))
            for low, high in (ranges.epochs, ranges.chunks, ranges.minibatches)
        ]
        gang = min(when.gpus[number], sizes[1])
        jobs.append(
            build_job(
                name=f"{when.owners[number]}-{number:05}",
                arrival=when.slots[number],
                epochs=sizes[0],
                chunks=sizes[1],
                minibatches=sizes[2],
                speed=StepModel(minibatch, update, gradient),
                worker=worker,
                ps=ps_demand,
                utility=utility,
                slot_seconds=cluster.slot_seconds,
                worker_bandwidth=bandwidth,
                ps_bandwidth=ps_bandwidth,
                internal_bandwidth=UNLIMITED,
                tenant=_owner(when.owners[number], names, rng),
                worker_range=(gang, gang) if demand == "trace" else None,
                labels={"gang": str(gang)},
            )
        )
    return jobs, when.source


def _owner(cluster: str, names: Sequence[str], rng: np.random.Generator) -> str:
    users = [name for name in names if name.partition("/")[0] == cluster]
    # Jobs of virtual clusters beyond the chosen ones go to any user.
    return str(rng.choice(users or list(names)))
