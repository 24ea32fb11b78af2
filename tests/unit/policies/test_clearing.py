"""The clearing price against its definition, and its effect on revenue."""

import math
from dataclasses import replace

import highspy
import numpy as np
import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.policies.pricing.clearing import ClearingPrice, ln_price_of_promises
from shadowprice.policies.pricing.contributions import PriceContribution
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.workloads import GBPS, make_cluster, make_job


def add(market: ClearingPrice, arrival: int, ln_density: float, use: Floats) -> None:
    """Add a job by its density, not by its value."""
    market.add(arrival, ln_density + math.log(use.sum()), ln_density, use, use)


def test_clearing_price_is_the_density_of_the_marginal_job() -> None:
    market = ClearingPrice(np.array([2.0, 4.0]), 10)
    for density, use in ((5.0, 6.0), (1.0, 9.0), (3.0, 15.0), (2.0, 1.0)):
        add(market, 3, math.log(density), np.array([use, 1.0]))
    # 10 slots of 2: the jobs of density 5 and 3 take 21 of 20, so 3 is the last that counts.
    assert market.ln_price() == pytest.approx(math.log(3.0))


def test_clearing_price_is_zero_without_scarcity() -> None:
    market = ClearingPrice(np.array([2.0, 0.0]), 10)
    add(market, 0, 0.0, np.array([19.0, 7.0]))
    assert market.ln_price() == -math.inf
    assert ClearingPrice(np.array([1.0]), 5).ln_price() == -math.inf


@pytest.mark.parametrize("seed", sample(range(8)))
def test_clearing_price_is_the_dual_price_of_the_pooled_machine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    density, use = rng.uniform(0.1, 9, 30), rng.uniform(1, 5, 30)
    market = ClearingPrice(np.array([1.0]), 40)
    for ln_density, amount in zip(np.log(density), use, strict=True):
        add(market, 0, float(ln_density), np.array([amount]))
    model = highspy.Highs()
    model.silent()
    x = [model.addVariable(0, 1, -float(d * u)) for d, u in zip(density, use, strict=True)]
    row = model.addConstr(sum(float(u) * v for u, v in zip(use, x, strict=True)) <= 40.0)
    model.run()
    dual = -model.getSolution().row_dual[row.index]
    assert math.exp(market.ln_price()) == pytest.approx(dual)


def test_the_busiest_window_counts() -> None:
    market = ClearingPrice(np.array([1.0]), 10)
    for arrival, density in ((0, 2.0), (3, 7.0), (5, 4.0), (25, 9.0), (26, 3.0), (26, 2.0)):
        add(market, arrival, math.log(density), np.array([6.0]))
    # Slots 0-9: 7 and 4 fill the machine. Slots 20-29: 9 and 3 do.
    assert market.ln_price() == pytest.approx(math.log(4.0))


def promised(density: float, use: float) -> tuple[int, PriceContribution]:
    """Return a job of one resource that takes ``use`` shares times slots."""
    none = np.zeros(1)
    shares = np.array([use])
    best = math.log(density * use)
    return 0, PriceContribution(none, best, best, math.log(use), 1, 10, none, shares, best, none)


def test_promised_jobs_clear_half_of_the_pool() -> None:
    jobs = [promised(density, 6.0) for density in (2.0, 7.0, 4.0, 3.0)]
    # Two servers for 10 slots; 7 and 4 fill half of them.
    price = ln_price_of_promises(jobs, np.array([2.0]), 40, 10)
    assert price == pytest.approx(math.log(0.45 * 4.0))
    # In a new service, capacity counts from the beginning on.
    new = ln_price_of_promises(jobs, np.array([2.0]), 4, 10)
    assert new == pytest.approx(math.log(0.45 * 7.0))


def test_without_scarcity_the_price_falls_below_every_promised_job() -> None:
    jobs = [promised(5.0, 2.0), promised(3.0, 2.0), promised(4.0, 2.0)]
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
