"""The price certificate: above every schedule at any prices, and close to the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.policies.offline.bound import PricedJobs, upper_bound
from shadowprice.policies.offline.problem import whole_problem
from shadowprice.policies.offline.solver import solve
from tests.workloads import cluster, job, random_job

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(SEEDS)
def test_any_prices_bound_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    jobs = [random_job(on, rng, f"job-{at}", latest=3) for at in range(5)]
    best = solve(whole_problem(on, jobs, 6))
    assert best.optimal
    floor = best.utility * (1 - 1e-6) - 1e-6
    priced = PricedJobs(on, jobs, 6)
    for scale in (0.0, 1.0, 20.0):
        value, _ = priced.bound(rng.uniform(0, scale, priced.shape))
        assert value >= floor
    found = upper_bound(on, jobs, 6)
    assert found.value >= floor
    assert found.value <= priced.bound(np.zeros(priced.shape))[0] + 1e-9
    assert priced.bound(found.prices)[0] == pytest.approx(found.value)
    assert found.master <= found.value * (1 + 1e-9) + 1e-9


def test_it_finds_the_price_that_clears_one_machine() -> None:
    # Ten jobs that fill the machine for two slots each, in ten slots: five can be had.
    on = cluster(1, 0, gpus=4, horizon=10)
    jobs = [
        job(
            on,
            f"job-{value}",
            chunks=1,
            epochs=2,
            minibatches=10,
            worker_amounts={"gpu": 4000},
            ps_amounts=None,
            utility=job(on).utility.__class__(float(value)),
        )
        for value in range(1, 11)
    ]
    found = upper_bound(on, jobs, 10, tolerance=1e-9, rounds=200)
    assert found.value == pytest.approx(10 + 9 + 8 + 7 + 6, rel=1e-6)


def test_no_jobs_earn_nothing() -> None:
    assert upper_bound(cluster(), []).value == 0.0
