"""Problem (4) as an integer program, beside plain enumeration and beside the rounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shadowprice.policies.astraea.market import RoundMarket, UnitPool
from shadowprice.policies.astraea.optimum import GangBatch
from shadowprice.policies.astraea.prices import price_table
from shadowprice.policies.tenants.tenancy import MICRO, GangJob, workers_servable
from tests.support.astraea_cases import find_dominating_schedule
from tests.support.examples import sample


def random_batch(seed: int, *, jobs: int = 3, slots: int = 3, servers: int = 2) -> GangBatch:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(jobs):
        counts = np.arange(1, int(rng.integers(2, 5)))
        work = int(rng.integers(1, 2 * slots))
        value, slope = float(rng.integers(5, 30)), -float(rng.integers(0, 5))
        made.append(
            GangJob(
                name=f"j{number}",
                tenant=number % 2,
                arrival=0,
                worker_type=0,
                ps_type=1,
                counts=counts,
                spread_slots=-(-2 * work // counts),
                colocated_slots=-(-work // counts),
                reach=workers_servable(1, 1, int(rng.integers(1, 3)), served=True),
                utility=lambda d, v=value, s=slope: np.maximum(v + s * d, 0.0),
            )
        )
    return GangBatch(made, np.full(servers, 2), np.full(servers, 1), slots)


def enumerate_best(batch: GangBatch) -> float:
    """Try every combination of (start, workers on each server, host) for all jobs."""
    servers = batch.workers.size

    def plans(job: GangJob) -> list[tuple[float, np.ndarray, np.ndarray]]:
        results = [
            (0.0, np.zeros((batch.slots, servers), int), np.zeros((batch.slots, servers), int))
        ]
        for on in product(*(range(int(c) + 1) for c in batch.workers)):
            count = sum(on)
            if count not in job.counts:
                continue
            at = int(np.searchsorted(job.counts, count))
            for host in range(servers):
                beside = count - on[host]
                if beside > job.reach[1]:
                    continue
                length = int((job.spread_slots if beside else job.colocated_slots)[at])
                for start in range(batch.slots - length + 1):
                    workers = np.zeros((batch.slots, servers), int)
                    ps = np.zeros((batch.slots, servers), int)
                    workers[start : start + length] = on
                    ps[start : start + length, host] = 1
                    worth = float(job.utility(np.array([start + length]))[0])
                    results.append((worth, workers, ps))
        return results

    def best(at: int, workers: np.ndarray, ps: np.ndarray) -> float:
        if (workers > batch.workers).any() or (ps > batch.ps).any():
            return -np.inf
        if at == len(batch.jobs):
            return 0.0
        return max(
            worth + best(at + 1, workers + more, ps + more_ps)
            for worth, more, more_ps in choices[at]
        )

    choices = [plans(job) for job in batch.jobs]
    nothing = np.zeros((batch.slots, servers), int)
    return best(0, nothing, nothing)


@pytest.mark.parametrize("seed", sample(range(4)))
def test_the_program_finds_what_enumeration_finds(seed: int) -> None:
    batch = random_batch(seed, jobs=2)
    optimum = batch.solve()
    assert optimum.proved
    assert optimum.value == pytest.approx(enumerate_best(batch), abs=1e-5)


def market_of(batch: GangBatch, theta: float) -> RoundMarket:
    def places(capacity: np.ndarray) -> UnitPool:
        total = int(capacity.sum())
        shares = np.array([total - total // 2, total // 2])
        return UnitPool(capacity, shares, price_table(theta, total), batch.slots)

    return RoundMarket([places(batch.workers), places(batch.ps)])


@pytest.mark.parametrize("seed", sample(range(6)))
def test_a_round_is_at_most_the_optimum_and_totals_bound_it(seed: int) -> None:
    batch = random_batch(seed, jobs=5, slots=4, servers=3)
    awards = market_of(batch, 4.0).schedule(batch.jobs)
    earned = sum(award.gang.value for award in awards) / MICRO
    optimum = batch.solve()
    totals = batch.solve(placed=False)
    assert earned <= optimum.value + 1e-5
    assert optimum.value <= totals.bound + 1e-5


def test_a_refused_job_beside_idle_places_is_not_pareto_efficient() -> None:
    # Theorem 5 claims Pareto efficiency. A posted price above a job's value leaves units idle that
    # would have helped its tenant and harmed no other.
    batch = random_batch(2, jobs=4, slots=4, servers=3)

    def earned(theta: float) -> dict[int, float]:
        values = {0: 0.0, 1: 0.0}
        for award in market_of(batch, theta).schedule(batch.jobs):
            values[award.job.tenant] += award.gang.value / MICRO
        return values

    dear = earned(1e6)
    better = find_dominating_schedule(batch, dear)
    assert better is not None
    gained = dict.fromkeys(dear, 0.0)
    for way in better.chosen:
        gained[batch.jobs[way.job].tenant] += way.worth
    assert all(gained[tenant] >= dear[tenant] - 1e-5 for tenant in dear)
    # Nothing dominates the optimum itself.
    best = batch.solve()
    split = dict.fromkeys(dear, 0.0)
    for way in best.chosen:
        split[batch.jobs[way.job].tenant] += way.worth
    assert find_dominating_schedule(batch, split) is None
