"""The clearing price against its definition, and what it does to revenue."""

import math

import highspy
import numpy as np
import pytest

from shadowprice.policies.pricing.clearing import ClearingPrice


def test_it_is_the_density_of_the_job_that_uses_up_the_pool() -> None:
    market = ClearingPrice(np.array([2.0, 4.0]))
    for density, use in ((5.0, 6.0), (1.0, 9.0), (3.0, 15.0), (2.0, 1.0)):
        market.add(math.log(density), np.array([use, 1.0]))
    # 10 slots of 2: the jobs of density 5 and 3 take 21 of 20, so 3 is the last that counts.
    assert market.ln_price(10) == pytest.approx(math.log(3.0))


def test_it_is_zero_where_there_is_room_for_all() -> None:
    market = ClearingPrice(np.array([2.0, 0.0]))
    market.add(0.0, np.array([19.0, 7.0]))
    assert market.ln_price(10) == -math.inf
    assert ClearingPrice(np.array([1.0])).ln_price(5) == -math.inf


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_dual_price_of_the_pool_as_one_machine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    density, use = rng.uniform(0.1, 9, 30), rng.uniform(1, 5, 30)
    market = ClearingPrice(np.array([1.0]))
    for ln_density, amount in zip(np.log(density), use, strict=True):
        market.add(float(ln_density), np.array([amount]))
        market._due = 1  # work it out for the whole set, not for the jobs seen a fiftieth ago
    model = highspy.Highs()
    model.silent()
    x = [model.addVariable(0, 1, -float(d * u)) for d, u in zip(density, use, strict=True)]
    row = model.addConstr(sum(float(u) * v for u, v in zip(use, x, strict=True)) <= 40.0)
    model.run()
    dual = -model.getSolution().row_dual[row.index]
    assert math.exp(market.ln_price(40)) == pytest.approx(dual)
