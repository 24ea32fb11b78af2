"""The clearing price against its definition, and its effect on revenue."""

import math
from dataclasses import replace

import highspy
import numpy as np
import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.policies.pricing.constants import (
    PriceContribution,
    ln_price_of_known,
    ln_price_of_promises,
)
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.workloads import GBPS, make_cluster, make_job


def job_of(density: float, *uses: float, arrival: int = 0) -> tuple[int, PriceContribution]:
    """Return a job with shares times slots of each resource, and its density."""
    none, shares = np.zeros(len(uses)), np.array(uses)
    best, ln_use = math.log(density * shares.sum()), math.log(shares.sum())
    ln_best = np.array([best, best])
    return arrival, PriceContribution(ln_best, none, best, ln_use, 1, 10, none, shares)


def test_clearing_price_is_the_density_of_the_marginal_job() -> None:
    jobs = [
        job_of(density, use, 1.0, arrival=3)
        for density, use in ((5.0, 6.0), (1.0, 9.0), (3.0, 15.0), (2.0, 1.0))
    ]
    # 10 slots of 2: the jobs of density 5 and 3 take 21 of 20, so 3 is the last that counts.
    assert ln_price_of_known(jobs, np.array([2.0, 4.0]), 10) == pytest.approx(math.log(3.0))


def test_clearing_price_is_zero_without_scarcity() -> None:
    assert ln_price_of_known([job_of(1.0, 19.0, 7.0)], np.array([2.0, 0.0]), 10) == -math.inf
    assert ln_price_of_known([], np.array([1.0]), 5) == -math.inf


@pytest.mark.parametrize("seed", sample(range(8)))
def test_clearing_price_is_the_dual_price_of_the_pooled_machine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    density, use = rng.uniform(0.1, 9, 30), rng.uniform(1, 5, 30)
    jobs = [job_of(d, u) for d, u in zip(density.tolist(), use.tolist(), strict=True)]
    model = highspy.Highs()
    model.silent()
    x = [model.addVariable(0, 1, -float(d * u)) for d, u in zip(density, use, strict=True)]
    row = model.addConstr(sum(float(u) * v for u, v in zip(use, x, strict=True)) <= 40.0)
    model.run()
    dual = -model.getSolution().row_dual[row.index]
    assert math.exp(ln_price_of_known(jobs, np.array([1.0]), 40)) == pytest.approx(dual)


def test_the_busiest_window_counts() -> None:
    jobs = [
        job_of(density, 6.0, arrival=arrival)
        for arrival, density in ((0, 2.0), (3, 7.0), (5, 4.0), (25, 9.0), (26, 3.0), (26, 2.0))
    ]
    # Slots 0-9: 7 and 4 fill the machine. Slots 20-29: 9 and 3 do.
    assert ln_price_of_known(jobs, np.array([1.0]), 10) == pytest.approx(math.log(4.0))


def test_promised_jobs_clear_half_of_the_pool() -> None:
    jobs = [job_of(density, 6.0) for density in (2.0, 7.0, 4.0, 3.0)]
    # Two servers for 10 slots; 7 and 4 fill half of them.
    price = ln_price_of_promises(jobs, np.array([2.0]), 40, 10)
    assert price == pytest.approx(math.log(0.45 * 4.0))
    # In a new service, capacity counts from the beginning on.
    new = ln_price_of_promises(jobs, np.array([2.0]), 4, 10)
    assert new == pytest.approx(math.log(0.45 * 7.0))


def test_without_scarcity_the_price_falls_below_every_promised_job() -> None:
    jobs = [job_of(5.0, 2.0), job_of(3.0, 2.0), job_of(4.0, 2.0)]
    prices = [ln_price_of_promises(jobs, np.array([room]), 10, 10) for room in (1.6, 8.0, 80.0)]
    # 6 of 8, 40 and 400 to the fourth power.
    assert prices == pytest.approx(
        [math.log(0.45 * 3.0 * (6 / half) ** 4) for half in (8, 40, 400)]
    )
    assert ln_price_of_promises([], np.array([1.0]), 10, 10) == -math.inf


@pytest.mark.parametrize("prices", ["offline", "online"])
@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_resource_unlimited_on_most_servers_is_not_scarce(policy: str, prices: str) -> None:
    cluster = make_cluster(4, 0)
    capacity = cluster.capacity.copy()
    bandwidth = cluster.resources.index("bandwidth")
    capacity[:-1, bandwidth] = UNLIMITED
    capacity[-1, bandwidth] = GBPS // 2  # less than a worker needs
    cluster = replace(cluster, capacity=capacity)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            ps_amounts=None,
            chunks=2,
            utility=Constant(5.0 if index < 4 else 50.0),
        )
        for index in range(24)
    ]
    built = make_policy(policy, PolicyContext(cluster, jobs, None), {"prices": prices})
    engine = Simulation(cluster, jobs, built).run()
    # Their 96 worker-slots are less than the other three hold in the 12 slots of the horizon.
    assert all(record.completion is not None for record in engine.jobs.values())
