"""One run of a scheduler, with the values that the figures need."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Charge, Command, Commit, Completed, Decided, DriverEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.policies.tenants.tenancy import read_tenant_shares
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation

POLICIES: Final = ("astraea", "gandiva_fair", "hived", "batchsche")
COLOURS: Final[Mapping[str, str]] = {
    "astraea": "#009E73",
    "gandiva_fair": "#0072B2",
    "hived": "#D55E00",
    "batchsche": "#6B6B6B",
}
MICRO: Final = 1_000_000


@dataclass(eq=False)
class RevenueObserver(Observer):
    """Result of a run."""

    cluster: Cluster
    jobs: Sequence[Job]
    earned: dict[str, float] = field(default_factory=dict)
    """Utility of each completed job, from its arrival."""
    commits: dict[str, Commit] = field(default_factory=dict)
    """Commitments of planners, with ideal utility and cost."""
    balance: Counter[str] = field(default_factory=Counter)
    """Received minus paid, by tenant, in millionths."""
    borrowers: set[str] = field(default_factory=set)  # jobs that paid
    busy: dict[int, int] = field(default_factory=dict)  # workers running in each slot
    decisions: int = 0
    deciding: float = 0.0
    seconds: float = 0.0

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
        self.decisions += 1
        self.deciding += seconds

    @property
    def revenue(self) -> float:
        """Total utility, counted from arrivals."""
        return sum(self.earned.values())

    @property
    def ideal(self) -> float:
        """Total utility as in the rounds (line 9 of Algorithm 3); the real one without rounds."""
        if not self.commits:
            return self.revenue
        return sum(commit.utility for name, commit in self.commits.items() if name in self.earned)

    @property
    def makespan(self) -> int:
        """Slots until the completion of the last job."""
        return max((slot for slot, count in self.busy.items() if count), default=-1) + 1

    def fairness(self, *, ideal: bool = False) -> dict[str, float]:
        """Return the revenue fairness ratio of each tenant (section 5.1).

        Payments move revenue between tenants, so the mean weighted by initial shares is 1 under
        every policy. All tenants reach 1 only if all are at exactly 1.
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
    parts = sum(
        shares.sum(axis=0) / shares.sum() / 2
        for shares in (tenancy.worker_shares, tenancy.ps_shares)
    )
    return {name: float(part) for name, part in zip(tenancy.tenants, parts, strict=True)}


def run(
    policy: str,
    cluster: Cluster,
    jobs: Sequence[Job],
    settings: Mapping[str, Any] | None = None,
    *,
    until: int | None = None,
) -> RevenueObserver:
    """Run jobs under a scheduler that knows them all, as theta's definition requires."""
    scheduler = make_policy(
        policy, PolicyContext(cluster, known_jobs=jobs, until=until), settings or {}
    )
    outcome = RevenueObserver(cluster, jobs)
    began = time.perf_counter()
    Simulation(cluster, jobs, scheduler, until).run([outcome])
    outcome.seconds = time.perf_counter() - began
    return outcome
