"""Setting of Astraea's experiments: cluster and jobs, one run of a scheduler, and presets.

Philly's trace gives the arrivals and virtual clusters of jobs. Epochs, chunks, mini-batches, times,
gradients, bandwidths and utilities are drawn from the ranges of section 5.1. The available trace
has eight virtual clusters, but the paper has fourteen users. So several users share the jobs of the
busiest cluster at random, and its servers. Two clusters of unpublished size have the smallest size.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.events import Charge, Command, Commit, Completed, Decided, DriverEvent
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Linear, Power, Utility
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.policies.tenants.tenancy import read_tenant_shares
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from shadowprice.traces.locate import read_trace, traces_folder

# ------------------------------------------------------------------ cluster and jobs


Demand = Literal["chunks", "trace"]  # source of a job's worker counts; see `draw_jobs`
HOUR: Final = Fraction(3600)
WORKERS_A_SERVER: Final = 8
PS_A_SERVER: Final = 1
TRACE: Final = "philly/philly.csv.gz"

NODES: Final[Mapping[str, int]] = {
    "6214e9": 64, "b436b2": 64, "103959": 8, "0e4a51": 32, "2869ce": 16, "e13805": 16, "23dbec": 8,
    "51b7ef": 8,
}  # fmt: skip
"""Servers of each virtual cluster (philly_vc.csv); the last two sizes are not published."""

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
        # About Philly's rate, 20.7 jobs an hour, in bursts: the factors of gaps have the mean 1.
        gaps = generator.exponential(1 / 20.7, count) * generator.choice(
            [0.05, 4.8], count, p=[0.8, 0.2]
        )
        # Shares of Philly's jobs, in the order of `NODES`.
        weights = np.array([0.78, 0.14, 0.037, 0.027, 0.008, 0.007, 0.0005, 0.0005])
        owners = generator.choice(list(NODES), count, p=weights / weights.sum())
        slots = np.floor(np.cumsum(gaps)).astype(int)
        # A second generator, so that drawing sizes doesn't change later draws of ``generator``.
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
    """Divide servers among users in proportion to their virtual clusters, at least one each.

    Up to eight users are the virtual clusters with the most jobs. Further users get equal parts of
    the busiest cluster.
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
    # The largest fractions get the remaining servers.
    by_fraction = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_fraction[: servers - sum(shares.values())]:
        shares[name] += 1
    return shares


def shared_cluster(users: int, servers: int, horizon: int, *, mixed: bool = False) -> Cluster:
    """Return servers with places for workers and one parameter server, each owned by one user.

    With ``mixed``, servers have 2 or 8 workers in Philly's proportion, evenly spread over users;
    otherwise all have 8.
    """
    sizes = [
        WORKERS_A_SERVER
        # Large if the rounded number of large servers grows with this one: evenly spread.
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
LESS: Final = Ranges(epochs=(13, 25))  # a quarter of the work
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

    Except for their users, the jobs don't depend on the cluster. Utilities of a duration d are
    k d + g, or (e/d)^kappa if ``convex``. With the ``demand`` ``chunks``, a job may have up to as
    many workers as chunks. With ``trace``, it has as many workers as GPUs in the trace, but at most
    its chunks. The label ``gang`` has this number in both cases.
    """
    rng = np.random.default_rng(seed)
    arriving = arrivals(count, rng)
    names = [tenant.name for tenant in cluster.tenants]
    worker = cluster.demand({"worker": MILLI})
    ps_demand = cluster.demand({"ps": MILLI})
    jobs = []
    for number in range(count):
        ps_bandwidth = int(rng.uniform(5, 20) * 1e9)
        # (6) needs a parameter server at least as fast as a worker.
        bandwidth = min(int(rng.uniform(100, 5 * 1024) * 1e6), ps_bandwidth)
        # In whole microseconds.
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
        gang = min(arriving.gpus[number], sizes[1])
        jobs.append(
            build_job(
                name=f"{arriving.owners[number]}-{number:05}",
                arrival=arriving.slots[number],
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
                tenant=_owner(arriving.owners[number], names, rng),
                worker_range=(gang, gang) if demand == "trace" else None,
                labels={"gang": str(gang)},
            )
        )
    return jobs, arriving.source


def _owner(virtual_cluster: str, names: Sequence[str], rng: np.random.Generator) -> str:
    users = [name for name in names if name.partition("/")[0] == virtual_cluster]
    # With fewer than eight users, some virtual clusters have none: any user gets their jobs.
    return str(rng.choice(users or list(names)))


# ------------------------------------------------------------------ one run


POLICIES: Final = ("astraea", "gandiva_fair", "hived", "batchsche")
COLOURS: Final[Mapping[str, str]] = {
    "astraea": "#009E73",
    "gandiva_fair": "#0072B2",
    "hived": "#D55E00",
    "batchsche": "#6B6B6B",
}
MICRO: Final = 1_000_000


def draw_bars_by_jobs(axes: Any, table: pl.DataFrame, column: str, tick: str) -> list[Any]:
    """Draw a group of bars by policy for each number of jobs, and return the bars."""
    counts = sorted(table["jobs"].unique().to_list())
    bars = []
    for index, policy in enumerate(POLICIES):
        heights = table.filter(policy=policy).sort("jobs")[column]
        positions = np.arange(len(counts)) + (index - 1.5) * 0.2
        bars.append(axes.bar(positions, heights, 0.19, color=COLOURS[policy], label=policy))
    axes.set_xticks(range(len(counts)), [tick.format(count) for count in counts])
    axes.grid(visible=False, axis="x")
    return bars


@dataclass(eq=False)
class RevenueObserver(Observer):
    """Records a run's utilities, payments, busy workers and times."""

    cluster: Cluster
    jobs: Sequence[Job]
    earned: dict[str, float] = field(default_factory=dict)  # by completed job, from its arrival
    commits: dict[str, Commit] = field(default_factory=dict)  # with ideal utility and cost
    balance: Counter[str] = field(default_factory=Counter)  # received minus paid, in millionths
    borrowers: set[str] = field(default_factory=set)  # jobs that paid
    busy: dict[int, int] = field(default_factory=dict)  # workers running in each slot
    deciding: float = 0.0  # seconds of all decisions
    seconds: float = 0.0  # of the run

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Record utilities, commitments and payments."""
        del event
        for command in commands:
            if isinstance(command, Completed):
                self.earned[command.job] = command.utility
            elif isinstance(command, Decided):
                decision = command.decision
                if isinstance(decision, Commit):
                    self.commits[decision.job] = decision
                elif isinstance(decision, Charge):
                    amount = sum(decision.amounts.values())
                    self.balance[decision.payer] -= amount
                    self.balance[decision.payee] += amount
                    self.borrowers.add(decision.job)

    def on_slot(self, engine: Engine, slot: int) -> None:
        """Record the number of running workers."""
        self.busy[slot] = sum(placement.total_workers for placement in engine.running.values())

    def on_decision(self, seconds: float) -> None:
        """Record the time of a decision."""
        self.deciding += seconds

    @property
    def revenue(self) -> float:
        """Total utility, counted from arrivals."""
        return sum(self.earned.values())

    @property
    def ideal(self) -> float:
        """Total utility counted from the beginning of rounds (line 9 of Algorithm 3).

        Equals `revenue` for policies without rounds.
        """
        if not self.commits:
            return self.revenue
        return sum(commit.utility for name, commit in self.commits.items() if name in self.earned)

    @property
    def makespan(self) -> int:
        """Slots until the completion of the last job."""
        return max((slot for slot, count in self.busy.items() if count), default=-1) + 1

    def fairness(self, *, ideal: bool = False) -> dict[str, float]:
        """Return the revenue fairness ratio of each tenant (section 5.1).

        Payments only move revenue between tenants, so the mean ratio, weighted by initial shares,
        is 1 under every policy. If no ratio is below 1, all are exactly 1.
        """
        utilities: Mapping[str, float] = self.earned
        if ideal and self.commits:
            utilities = {name: self.commits[name].utility for name in self.earned}
        total = sum(utilities.values())
        gains: dict[str, float] = dict.fromkeys((str(job.tenant) for job in self.jobs), 0.0)
        for job in self.jobs:
            gains[str(job.tenant)] += utilities.get(job.name, 0.0)
        return {
            name: (gains.get(name, 0.0) + self.balance[name] / MICRO) / total / share
            if total
            else 0.0
            for name, share in initial_shares(self.cluster).items()
        }


def initial_shares(cluster: Cluster) -> dict[str, float]:
    """Return each tenant's share of the cluster: the mean of its shares of workers and of PS."""
    tenancy = read_tenant_shares(cluster)
    kinds = np.split(tenancy.owned, [len(tenancy.worker_types)])
    parts = sum(shares.sum(axis=0) / shares.sum() / 2 for shares in kinds)
    return {name: float(part) for name, part in zip(tenancy.tenants, parts, strict=True)}


# ------------------------------------------------------------------ presets


@dataclass(frozen=True, slots=True)
class Preset:
    """One setting of cluster, jobs and policies."""

    title: str
    colour: str  # colour of its curves in figures that compare presets
    ranges: Ranges = PAPER  # ranges of the jobs' work
    demand: Demand = "chunks"  # workers that a job may have
    mixed: bool = False  # whether machines have 2 or 8 workers, as Philly's have
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of policies, by policy."""

    def cluster(self, users: int, servers: int, horizon: int) -> Cluster:
        """Return the servers and their owners."""
        return shared_cluster(users, servers, horizon, mixed=self.mixed)

    def draw(
        self, cluster: Cluster, count: int, seed: int, *, convex: bool = False
    ) -> tuple[list[Job], str]:
        """Draw jobs; return them, and the source of their arrivals."""
        return draw_jobs(
            cluster, count, seed, ranges=self.ranges, convex=convex, demand=self.demand
        )

    def run(
        self, policy: str, cluster: Cluster, jobs: Sequence[Job], theta_scale: float = 1.0
    ) -> RevenueObserver:
        """Run a policy that knows all jobs, as theta's definition requires.

        Theta is scaled if the policy has one.
        """
        settings = dict(self.settings.get(policy, {}))
        if theta_scale != 1.0:
            scale = float(settings.get("theta", {}).get("scale", 1.0))
            settings["theta"] = {"scale": scale * theta_scale}
        scheduler = make_policy(policy, PolicyContext(cluster, known_jobs=jobs), settings)
        outcome = RevenueObserver(cluster, jobs)
        began = time.perf_counter()
        Simulation(cluster, jobs, scheduler).run([outcome])
        outcome.seconds = time.perf_counter() - began
        return outcome


def _gangs(size: int | str, *, rounds: int = 1, scale: float = 0.05) -> dict[str, dict[str, Any]]:
    """Return settings: of the market, and gangs of ``size`` for policies that don't choose it."""
    market = {"lambda": rounds, "theta": {"scale": scale}}
    gangs = {"workers": size}
    return {"astraea": market, "batchsche": market, "gandiva_fair": gangs, "hived": gangs}


STATED: Final = Preset("as the paper states it", "#009E73")
FOUND: Final = Preset("found by search", "#0072B2", LESS, settings=_gangs(4))
"""Setting that a search found to reproduce Fig. 4; not evidence of the paper's real setting. It
differs in three respects that the paper leaves open or states differently: a quarter of the epochs,
lambda = 1 with a twentieth of theta, and gangs of 4 in schedulers that don't choose a size.
"""

PRESETS: Final[Mapping[str, Preset]] = {"paper": STATED, "found": FOUND}

VARIANTS: Final[Mapping[str, Preset]] = {
    "paper": STATED,
    "found": FOUND,
    "found, theta as defined": Preset("", "", LESS, settings=_gangs(4, scale=1.0)),
    "found, lambda 2": Preset("", "", LESS, settings=_gangs(4, rounds=2)),
    "found, gangs of 8": Preset("", "", LESS, settings=_gangs(8)),
    "found, gangs of 2": Preset("", "", LESS, settings=_gangs(2)),
    "found, gangs as wide as possible": Preset("", "", LESS, settings=_gangs("max")),
    "found, gangs per job": Preset("", "", LESS, settings=_gangs("label")),
    "found, machines of 2 and 8": Preset("", "", LESS, mixed=True, settings=_gangs(4)),
    "found, demand of the trace": Preset("", "", LESS, "trace", settings=_gangs("max")),
    "found, demand of the trace, machines of 2 and 8": Preset(
        "", "", LESS, "trace", mixed=True, settings=_gangs("max")
    ),
}
"""Variants that show the effect of each part of the setting."""
