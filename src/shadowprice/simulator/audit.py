"""Trying out what a policy promises its tenants: that lying does not pay, and that sharing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.accounts import Account, books_of
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.misreports import KINDS, Misreport, TrueRevenue, misreports
from shadowprice.simulator.scenario import Scenario, run_policy

Progress = Callable[[int, int], None]

EPSILON = 1e-6
"""Utility below which a gain is rounding."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a misreport gained."""

    misreport: Misreport
    """The misstatement."""
    revenue: float
    """The tenant's true revenue, and true utility, with it."""
    utility: float
    """The tenant's true revenue, and true utility, with it."""
    gain: float
    """Revenue less that of the honest report."""


@dataclass(frozen=True, slots=True)
class Truthfulness:
    """What one tenant can gain by misstating its jobs, as far as was tried."""

    tenant: str
    """The tenant."""
    honest_revenue: float
    """With its true report."""
    honest_utility: float
    """With its true report."""
    trials: int
    """Misreports tried."""
    gained: Mapping[str, tuple[int, int]]
    """By kind of misreport, how many gained and how many were tried."""
    best: Gain | None
    """The largest gain found; None where none gained."""

    def record(self) -> dict[str, object]:
        """Return it as plain values."""
        best = self.best
        return {
            "tenant": self.tenant,
            "honest_revenue": self.honest_revenue,
            "honest_utility": self.honest_utility,
            "trials": self.trials,
            "gained": {
                kind: {"gained": won, "tried": tried} for kind, (won, tried) in self.gained.items()
            },
            "largest_gain": best.gain if best else 0.0,
            "misreport": None
            if best is None
            else {
                "kind": best.misreport.kind,
                "story": best.misreport.story,
                "revenue": best.revenue,
                "utility": best.utility,
            },
        }


def audit_truthfulness(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    tenants: Sequence[str] | None = None,
    trials: int = 200,
    latest: int = 8,
    progress: Progress | None = None,
) -> list[Truthfulness]:
    """Run a workload again and again with one tenant's jobs misstated.

    Parameters
    ----------
    scenario : Scenario
        The true workload.
    choice : PolicyChoice
        Who decides.
    tenants : sequence of str, optional
        Who is tried; every tenant with jobs by default.
    trials : int
        Misreports tried for each of them.
    latest : int
        Most slots that an arrival is delayed.
    progress : callable, optional
        Called with (runs done, runs in all).

    Returns
    -------
    list of Truthfulness
        One a tenant. What was not found may still exist: a search proves gains, not their absence.

    Raises
    ------
    InputError
        If a tenant has no jobs.
    """
    having = list(dict.fromkeys(job.tenant for job in scenario.jobs if job.tenant is not None))
    names = having if tenants is None else list(tenants)
    for name in names:
        if name not in having:
            known = ", ".join(having) or "none"
            raise InputError(Fault("tenant", f"{name!r} has no jobs", f"with jobs: {known}"))
    results = []
    done, total = 0, len(names) * (trials + 1)
    for name in names:
        truth = {job.name: job for job in scenario.jobs if job.tenant == name}
        stated = Misreport("", "", tuple(scenario.jobs))
        honest = _true_revenue(scenario, choice, stated, truth, name)
        best: Gain | None = None
        won: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        for misreport in misreports(scenario.jobs, name, trials, scenario.seed, latest):
            told = _true_revenue(scenario, choice, misreport, truth, name)
            gain = told.revenue - honest.revenue
            tried[misreport.kind] += 1
            won[misreport.kind] += gain > EPSILON
            if gain > (best.gain if best else EPSILON):
                best = Gain(misreport, told.revenue, told.utility, gain)
            done += 1
            if progress is not None:
                progress(done, total)
        done += 1
        results.append(
            Truthfulness(
                name,
                honest.revenue,
                honest.utility,
                sum(tried.values()),
                {kind: (won[kind], tried[kind]) for kind in KINDS if kind in tried},
                best,
            )
        )
    return results


def _true_revenue(
    scenario: Scenario,
    choice: PolicyChoice,
    stated: Misreport,
    truth: Mapping[str, Job],
    tenant: str,
) -> TrueRevenue:
    told = Scenario(
        scenario.cluster,
        stated.jobs,
        scenario.until,
        scenario.seed,
        scenario.incidents,
        (),
        stated.execution(scenario.execution),
    )
    observer = TrueRevenue(truth, tenant, stated.told)
    Simulation(
        cluster=told.cluster,
        jobs=stated.jobs,
        policy=choice.build(told.context()),
        until=told.until,
        execution=told.execution,
        incidents=told.incidents,
    ).run([observer])
    return observer


@dataclass(frozen=True, slots=True)
class Incentive:
    """What a tenant gets in the pool, and alone on servers of its own share."""

    tenant: str
    """The tenant."""
    pooled: Account
    """Its books under the policy, and under ``batchsche`` with the same settings."""
    alone: Account
    """Its books under the policy, and under ``batchsche`` with the same settings."""

    @property
    def utility_kept(self) -> bool:
        """Whether its jobs within its share earn at least what they would alone."""
        return self.pooled.earned_own >= self.alone.earned - EPSILON

    @property
    def revenue_kept(self) -> bool:
        """Whether all that it gets is at least what it would get alone."""
        return self.pooled.revenue >= self.alone.revenue - EPSILON

    def record(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "tenant": self.tenant,
            "earned_in_share": self.pooled.earned_own,
            "earned": self.pooled.earned,
            "revenue": self.pooled.revenue,
            "alone": self.alone.earned,
            "utility_kept": self.utility_kept,
            "revenue_kept": self.revenue_kept,
        }


def audit_sharing(
    scenario: Scenario, choice: PolicyChoice, alone: Mapping[str, Any]
) -> list[Incentive]:
    """Compare every tenant's books with those of the same jobs on its share alone.

    Parameters
    ----------
    scenario : Scenario
        The workload.
    choice : PolicyChoice
        Who decides.
    alone : mapping
        Parameters of ``batchsche``, which keeps tenants apart.
    """
    pooled = books_of(run_policy(scenario, choice))
    apart = books_of(run_policy(scenario, PolicyChoice("batchsche", alone)))
    return [
        Incentive(name, account, apart.accounts[name]) for name, account in pooled.accounts.items()
    ]
