from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.policies.sharing.gandiva_fair import (
    GangRequest,
    SplitStrideScheduler,
    trade_tickets,
)
from tests.support.examples import example_count

PROPERTY = settings(max_examples=example_count(25), deadline=None, derandomize=True)


def run(
    tickets: list[int],
    claims: list[GangRequest],
    places: int,
    slots: int,
    strides: SplitStrideScheduler | None = None,
) -> Counter[str]:
    strides = strides or SplitStrideScheduler(tickets)
    used = Counter[str]()
    for _ in range(slots):
        left = places

        def fits(claim: GangRequest) -> bool:
            nonlocal left
            if claim.workers > left:
                return False
            left -= claim.workers
            return True

        for claim in strides.fill(claims, fits):
            used[claim.name] += claim.workers
        assert left >= 0
    return used


def by_tenant(used: Counter[str], claims: list[GangRequest]) -> list[int]:
    tenants = 1 + max(claim.tenant for claim in claims)
    return [sum(used[c.name] for c in claims if c.tenant == t) for t in range(tenants)]


@PROPERTY
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_long_run_shares_are_proportional_to_tickets(tickets: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    claims = [
        GangRequest(f"{tenant}-{number}", tenant, int(generator.integers(1, 9)))
        for tenant in range(len(tickets))
        for number in range(12)
    ]
    used = by_tenant(run(tickets, claims, 16, 200), claims)
    per_ticket = [amount / count for amount, count in zip(used, tickets, strict=True)]
    # A tenant's lag is at most three slots of the cluster, however long it runs.
    assert max(per_ticket) - min(per_ticket) <= 3 * 16 / min(tickets)


def test_a_wide_gang_is_not_starved_by_narrow_ones() -> None:
    claims = [GangRequest("wide", 0, 16), *(GangRequest(f"narrow-{n}", 1, 1) for n in range(40))]
    used = run([1, 1], claims, 16, 200)
    assert used["wide"] == pytest.approx(16 * 100, abs=16)


def test_idle_time_is_not_saved_up() -> None:
    strides = SplitStrideScheduler([1, 1])
    one, two = [[GangRequest(f"{t}-{n}", t, 1) for n in range(8)] for t in (0, 1)]
    run([], one, 8, 100, strides)
    used = by_tenant(run([], one + two, 8, 50, strides), one + two)
    assert used == [200, 200]


def test_unclaimed_capacity_goes_to_any_tenant() -> None:
    claims = [GangRequest("a", 0, 2), *(GangRequest(f"b{n}", 1, 1) for n in range(20))]
    assert by_tenant(run([9, 1], claims, 10, 10), claims) == [20, 80]
    assert by_tenant(run([9, 0], claims, 10, 10), claims) == [20, 80]


def test_trading_follows_the_second_price() -> None:
    # Tenant 0 gains 1.2 from a fast unit, tenant 2 gains 5; tenant 1's 3 sets the price.
    shares = np.array([[0.0, 2.0], [4.0, 0.0], [9.0, 0.0]])
    speeds = np.array([[1.0, 1.2], [1.0, 3.0], [1.0, 5.0]])
    assert trade_tickets(shares, speeds).tolist() == [[6.0, 0.0], [4.0, 0.0], [3.0, 2.0]]


@PROPERTY
@given(st.integers(0, 2**32 - 1))
def test_trading_loses_no_unit_and_harms_no_tenant(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tenants, types = generator.integers(1, 6), generator.integers(1, 4)
    shares = generator.integers(0, 9, (tenants, types)).astype(np.float64)
    speeds = np.sort(generator.uniform(0.5, 6.0, (tenants, types)), axis=1)
    after = trade_tickets(shares, speeds)
    assert (after >= 0).all()
    np.testing.assert_allclose(after.sum(axis=0), shares.sum(axis=0), atol=1e-9)
    gain = (after * speeds).sum(axis=1) - (shares * speeds).sum(axis=1)
    assert (gain >= -1e-9).all()
