"""How often Astraea's properties hold: truthfulness, sharing incentive, Pareto efficiency.

- Truthfulness and sharing incentive: 5 users, 20 servers, 60 jobs. Arrivals are Philly's if the
  trace is available; jobs are drawn from the paper's ranges with a sixteenth of the work. Each
  user's jobs are misreported in many ways, as `shadowprice audit truthfulness` does.
- Pareto efficiency: small random rounds of two tenants (3 servers for 2 workers and a parameter
  server each, 4 slots, 4 jobs). An exact program searches for a schedule that is better for a
  tenant and worse for none, by ideal utility. If there is one, it dominates the round.

Run: ``python -m benchmarks.bench_astraea_promises [MISREPORTS_PER_USER]``
"""

from __future__ import annotations

import sys

import numpy as np
from tests.support.astraea_cases import find_dominating_schedule

from shadowprice.core.policy import PolicyContext
from shadowprice.experiments.astraea.setting import SHORT, draw_jobs, shared_cluster
from shadowprice.policies.astraea.market import RoundMarket, UnitPool
from shadowprice.policies.astraea.optimum import GangBatch
from shadowprice.policies.astraea.prices import min_thetas, price_table
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import make_policy
from shadowprice.policies.tenants.tenancy import MICRO, GangJob, workers_servable
from shadowprice.simulator.audit import audit_sharing, audit_truthfulness
from shadowprice.simulator.scenario import Scenario

BATCHES = 200
SEED = 13  # a stretch of the trace in which several users have jobs


def random_batch(seed: int) -> GangBatch:
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(4):
        counts = np.arange(1, int(rng.integers(2, 6)))
        work = int(rng.integers(1, 9))
        value, slope = float(rng.integers(5, 60)), -float(rng.integers(0, 5))
        jobs.append(
            GangJob(
                name=f"j{number}",
                tenant=number % 2,
                arrival=0,
                worker_type=0,
                ps_type=1,
                counts=counts,
                spread_slots=-(-2 * work // counts),
                colocated_slots=-(-work // counts),
                reach=workers_servable(1, 1, int(rng.integers(1, 4)), served=True),
                utility=lambda d, v=value, s=slope: np.maximum(v + s * d, 0.0),
            )
        )
    return GangBatch(jobs, np.full(3, 2), np.full(3, 1), 4)


def dominated(batch: GangBatch, scale: float) -> tuple[bool, float]:
    """Return whether another schedule dominates a round, and its relative gain in utility.

    ``scale`` is a factor of theta.
    """
    kinds = []
    thetas = min_thetas(batch.jobs, 2)
    for capacity, theta in ((batch.workers, thetas[0]), (batch.ps, thetas[1])):
        total = int(capacity.sum())
        shares = np.array([total - total // 2, total // 2])
        prices = price_table(max(scale * theta, 1.001), total)
        kinds.append(UnitPool(capacity, shares, prices, batch.slots))
    earned = {0: 0.0, 1: 0.0}
    for award in RoundMarket(kinds).schedule(batch.jobs):
        earned[award.job.tenant] += award.gang.value / MICRO
    better = find_dominating_schedule(batch, earned)
    before = sum(earned.values())
    return better is not None, (better.value / before - 1 if better and before else 0.0)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    cluster = shared_cluster(5, 20, 128)
    jobs, source = draw_jobs(cluster, 60, SEED, ranges=SHORT)
    scenario = Scenario(cluster, jobs)
    policy = make_policy("astraea", PolicyContext(cluster, known_jobs=jobs), {})
    true_theta = policy.parameters_in_force()["theta"]["in_force"]  # type: ignore[index]
    for name, settings in (
        ("computed from the reported jobs", {}),
        ("given, computed from the true jobs", {"theta": true_theta}),
    ):
        print(f"truthfulness: {trials} misreports per user, arrivals {source}, theta {name}")
        print("user        honest revenue  gained  largest gain       by")
        for result in audit_truthfulness(
            scenario, PolicyChoice("astraea", settings), trials=trials
        ):
            gained = sum(number for number, _ in result.gained.values())
            best = result.best
            share = best.gain / result.honest_revenue if best else 0.0
            gain = f"{best.gain:8.1f} {share:7.1%}" if best else " " * 16
            description = best.misreport.description if best else "no misreport"
            numbers = f"{result.honest_revenue:14.1f}{gained:8}  {gain}"
            print(f"{result.tenant:<12}{numbers}   {description}")
    print("\nsharing incentive: in the pool, and alone on servers of the own share (batchsche)")
    print("user          alone  own share  revenue  utility kept  revenue kept")
    for row in audit_sharing(scenario, PolicyChoice("astraea"), {}):
        print(
            f"{row.tenant:<10}{row.alone.earned:9.1f}{row.pooled.earned_own:11.1f}"
            f"{row.pooled.revenue:9.1f}  {row.utility_kept!s:>12}  {row.revenue_kept!s:>12}"
        )
    print(f"\nPareto efficiency: {BATCHES} small rounds")
    for scale in (1.0, 0.2):
        results = [dominated(random_batch(seed), scale) for seed in range(BATCHES)]
        share = float(np.mean([is_dominated for is_dominated, _ in results]))
        gains = [gain for is_dominated, gain in results if is_dominated]
        mean = float(np.mean(gains)) if gains else 0.0
        print(f"theta at {scale:.0%}: {share:.1%} dominated, by {mean:.1%} of utility on average")


if __name__ == "__main__":
    main()
