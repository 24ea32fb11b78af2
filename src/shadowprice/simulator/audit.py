"""Audits of a policy's promises to tenants: that misreports don't pay, and that sharing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.accounts import TenantAccount, compute_tenant_accounts
from shadowprice.simulator.misreports import MISREPORT_KINDS, Misreport, TrueRevenue, misreports
from shadowprice.simulator.scenario import Scenario, run_policy

Progress = Callable[[int, int], None]

EPSILON = 1e-6  # utility below which a gain is a rounding error


@dataclass(frozen=True, slots=True)
class MisreportGain:
    """Gain of a misreport."""

    misreport: Misreport
    revenue: float  # the tenant's true revenue with it
    utility: float  # the tenant's true utility with it
    gain: float  # revenue minus that of the honest report


@dataclass(frozen=True, slots=True)
class TruthfulnessResult:
    """Gains of one tenant by misreports of its jobs, among those tried."""

    tenant: str
    honest_revenue: float  # revenue with the true report
    honest_utility: float  # utility with the true report
    trials: int  # number of misreports tried
    gained: Mapping[str, tuple[int, int]]
    """Numbers of misreports that gained and that were tried, by kind."""
    best: MisreportGain | None  # misreport with the largest gain; None if none gained

    def record(self) -> dict[str, object]:
        """Return the result as plain values."""
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
) -> list[TruthfulnessResult]:
    """Run a workload repeatedly with one tenant's jobs misreported; return one result per tenant.

    By default every tenant with jobs is tried, with ``trials`` misreports each, which delay
    arrivals by up to ``latest`` slots. ``progress`` is called with (runs done, runs in total). The
    search proves the gains that it finds, but not that there are no others. Raises `InputError` if
    a tenant has no jobs.
    """
    with_jobs = list(dict.fromkeys(job.tenant for job in scenario.jobs if job.tenant is not None))
    names = with_jobs if tenants is None else list(tenants)
    for name in names:
        if name not in with_jobs:
            listed = ", ".join(with_jobs) or "none"
            raise InputError(Fault("tenant", f"{name!r} has no jobs", f"with jobs: {listed}"))
    results = []
    done, total = 0, len(names) * (trials + 1)
    for name in names:
        truth = {job.name: job for job in scenario.jobs if job.tenant == name}
        stated = Misreport("", "", tuple(scenario.jobs))
        honest = _true_revenue(scenario, choice, stated, truth, name)
        best: MisreportGain | None = None
        won: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        for misreport in misreports(scenario.jobs, name, trials, scenario.seed, latest):
            result = _true_revenue(scenario, choice, misreport, truth, name)
            gain = result.revenue - honest.revenue
            tried[misreport.kind] += 1
            won[misreport.kind] += gain > EPSILON
            if gain > (best.gain if best else EPSILON):
                best = MisreportGain(misreport, result.revenue, result.utility, gain)
            done += 1
            if progress is not None:
                progress(done, total)
        done += 1
        results.append(
            TruthfulnessResult(
                name,
                honest.revenue,
                honest.utility,
                sum(tried.values()),
                {kind: (won[kind], tried[kind]) for kind in MISREPORT_KINDS if kind in tried},
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
    reported = replace(scenario, jobs=stated.jobs, execution=stated.execution(scenario.execution))
    observer = TrueRevenue(truth, tenant, stated.reported)
    reported.simulation(choice.build(reported.context())).run([observer])
    return observer


@dataclass(frozen=True, slots=True)
class SharingIncentive:
    """Accounts of a tenant in the pool, and alone on servers of its share."""

    tenant: str
    pooled: TenantAccount  # its accounts under the policy
    alone: TenantAccount  # its accounts under ``batchsche`` with the same settings

    @property
    def utility_kept(self) -> bool:
        """Whether the jobs within its share earn at least as much as alone."""
        return self.pooled.earned_own >= self.alone.earned - EPSILON

    @property
    def revenue_kept(self) -> bool:
        """Whether its revenue is at least that of being alone."""
        return self.pooled.revenue >= self.alone.revenue - EPSILON

    def record(self) -> dict[str, object]:
        """Return the result as plain values."""
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
) -> list[SharingIncentive]:
    """Compare every tenant's accounts with those of the same jobs alone on its share.

    ``alone`` are the parameters of ``batchsche``, which keeps tenants apart.
    """
    pooled = compute_tenant_accounts(run_policy(scenario, choice))
    apart = compute_tenant_accounts(run_policy(scenario, PolicyChoice("batchsche", alone)))
    return [
        SharingIncentive(name, account, apart.accounts[name])
        for name, account in pooled.accounts.items()
    ]
