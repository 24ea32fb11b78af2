"""Prices, groups of equal servers, and the cost and placement of a slot."""

import math

import numpy as np
import pytest

from shadowprice.kernels.prices.exponential import (
    UNLIMITED,
    demand_cost,
    exponential_price,
    exponential_prices,
)
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.kernels.slots.groups import SlotGroups, find_groups
from tests.oracles import slotcost as naive
from tests.support.examples import sample
from tests.support.slot_groups import check_groups


class Pool:
    """A random pool over a horizon: its reservations, and its groups, which are updated."""

    def __init__(self, rng, slots, servers, resources):
        kinds = rng.integers(1, 13, (2, resources)) * 1000
        kinds[rng.random(kinds.shape) < 0.1] = 0
        kinds[:, -1] = UNLIMITED if rng.random() < 0.5 else kinds[:, -1]
        self.capacity = kinds[rng.integers(0, 2, servers)]
        self.ln_low = rng.uniform(-9, 0, resources)
        self.ln_high = self.ln_low + rng.uniform(0, 9, resources)
        self.used = np.zeros((slots, servers, resources), np.int64)
        self.slot_groups = SlotGroups(self.capacity, slots, self.ln_low, self.ln_high)
        versions = np.zeros(slots, np.int64)
        for step in range(int(rng.integers(0, 3 * slots))):
            slot = int(rng.integers(0, slots))
            some = rng.random(servers) < 0.4
            room = np.where(self.capacity == UNLIMITED, 10**6, self.capacity)
            level = rng.integers(0, 3, (servers, 1)) * room // 2
            self.used[slot, some] = level[some]
            if rng.random() < 0.2:
                self.used[slot] = 0
            versions[slot] = step + 1
            self.slot_groups.follow(self.used, versions)

    def demand(self, rng):
        demand = rng.integers(0, 4, self.capacity.shape[1]) * 1000
        demand[0] = 1000
        finite = np.where(self.capacity == UNLIMITED, 0, self.capacity).max(axis=0)
        share = np.where(finite > 0, demand / np.maximum(finite, 1), 0.0)
        return demand, share

    def places(self, slot, demand, share):
        prices = exponential_prices(self.used[slot], self.capacity, self.ln_low, self.ln_high)
        return naive.places(self.used[slot], self.capacity, prices, demand, share)


@pytest.mark.parametrize("seed", sample(range(60)))
def test_costs_and_placements_agree_with_the_list_of_places(seed):
    rng = np.random.default_rng(seed)
    slots, resources = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    pools = [Pool(rng, slots, int(rng.integers(1, 9)), resources) for _ in range(2)]
    (worker, worker_share), (server, server_share) = (pool.demand(rng) for pool in pools)
    workers = rng.permutation(np.arange(1, int(rng.integers(2, 16))))
    servers = np.ceil(workers * rng.choice([0.0, 0.3, 1.0])).astype(np.int64)
    cost = slot_costs(
        pools[0].slot_groups.groups,
        worker,
        worker_share,
        pools[1].slot_groups.groups,
        server,
        server_share,
        workers,
        servers,
    )
    choice = np.full(slots, -1)
    for t in range(slots):
        lists = (
            pools[0].places(t, worker, worker_share),
            pools[1].places(t, server, server_share),
        )
        expected = [naive.slot_cost(y, z, *lists) for y, z in zip(workers, servers, strict=True)]
        np.testing.assert_allclose(cost[t], expected, rtol=1e-12)
        feasible = np.nonzero(np.isfinite(cost[t]))[0]
        if len(feasible):
            choice[t] = rng.choice(feasible)

    names = [10 + np.arange(len(pools[0].capacity)), 50 + np.arange(len(pools[1].capacity))]
    entries = expand_choices(
        pools[0].slot_groups.groups,
        worker,
        worker_share,
        names[0],
        pools[1].slot_groups.groups,
        server,
        server_share,
        names[1],
        workers,
        servers,
        choice,
    )
    expected_entries = []
    for t in np.nonzero(choice >= 0)[0]:
        on = naive.standing(workers[choice[t]], pools[0].places(t, worker, worker_share), 9)
        expected_entries += [[t, 10 + s, n, 0] for s, n in enumerate(on) if n]
        on = naive.standing(servers[choice[t]], pools[1].places(t, server, server_share), 9)
        expected_entries += [[t, 50 + s, 0, n] for s, n in enumerate(on) if n]
    assert entries.tolist() == expected_entries


def test_groups_are_exactly_the_equal_servers():
    rng = np.random.default_rng(7)
    used = rng.integers(0, 2, (1, 200, 3)) * 10**15
    capacity = rng.integers(1, 3, (200, 1)) * 10**15 * np.ones(3, np.int64)
    low, high = np.zeros(3), np.ones(3)
    kept = SlotGroups(capacity, 1, low, high)
    kept.follow(used, np.ones(1, np.int64))
    check_groups(kept.groups, 0, used[0], capacity, np.zeros(200, np.bool_), low, high)


@pytest.mark.parametrize("seed", range(4))
def test_known_changes_of_many_servers_move_them_between_groups(seed):
    """Groups get empty and numbers are reused, after few changes and after many."""
    rng = np.random.default_rng(seed)
    servers, slots = 90, 3
    capacity = rng.integers(5, 8, (servers, 2))
    low, high = np.zeros(2), np.ones(2)
    numbers = 2 * np.arange(servers)  # the others belong to another pool
    kept = SlotGroups(capacity, slots, low, high, numbers)
    used = np.zeros((slots, 2 * servers, 2), np.int64)
    versions = np.zeros(slots, np.int64)
    for _ in range(60):
        few = rng.random() < 0.5
        changes = int(rng.integers(1, 5)) if few else int(rng.integers(20, 3 * servers))
        slot, server = rng.integers(0, slots, changes), rng.integers(0, 2 * servers, changes)
        used[slot, server] = rng.integers(0, 6, (changes, 2)) * rng.integers(0, 2, (changes, 1))
        versions[slot] += 1
        kept.follow_changes(used, versions, 10 + slot, server, 10)
        for t in range(slots):
            check_groups(
                kept.groups, t, used[t, numbers], capacity, np.zeros(servers, np.bool_), low, high
            )
    # At most 90 groups have servers; the arrays begin with 34 groups and double.
    assert kept.groups.kind.shape[1] <= 136


@pytest.mark.parametrize("servers", [6, 60])
def test_updates_and_rolling_equal_a_new_table(servers):
    """With 60 servers, few of them change in a slot: they are moved between its groups."""
    rng = np.random.default_rng(8)
    capacity = np.full((servers, 2), 4)
    capacity[::3] = UNLIMITED, 5
    low, high = np.zeros(2), np.ones(2)
    kept = SlotGroups(capacity, 5, low, high)
    used, versions = np.zeros((5, servers, 2), np.int64), np.zeros(5, np.int64)
    lost = np.zeros(servers, np.bool_)
    for step in range(200):
        slot = int(rng.integers(0, 5))
        slots = slice(slot, slot + int(rng.integers(1, 3)))
        changed = rng.integers(0, servers, int(rng.integers(1, 3)))
        used[slots, changed] = rng.integers(0, 5, 2) * int(rng.integers(0, 2))
        versions[slots] = step + 1
        if step % 50 == 30:
            lost = rng.random(servers) < 0.1
            kept.lose(lost)
            versions[:] = step + 1
        kept.follow(used, versions)
        if step % 7 == 6:
            shift = int(rng.integers(0, 7))
            kept.roll(shift)
            used = np.concatenate([used, np.zeros((7, servers, 2), np.int64)])[shift : shift + 5]
            versions = np.concatenate([versions, np.zeros(7, np.int64)])[shift : shift + 5]
        if step % 20 == 19:
            high = high + 0.5
            kept.set_prices(low, high)
        anew = SlotGroups(capacity, 5, low, high)
        anew.lose(lost)
        anew.follow(used, versions)
        a, b = kept.groups, anew.groups
        for t in range(5):
            i, j = a.row_of[t], b.row_of[t]
            assert (i == 0) == (not used[t, ~lost].any())
            everyone = np.arange(servers)
            x = find_groups(a, np.full_like(everyone, i), everyone)
            y = find_groups(b, np.full_like(everyone, j), everyone)
            np.testing.assert_array_equal(a.price[i][:, x], b.price[j][:, y])
            np.testing.assert_array_equal(a.free[i][:, x], b.free[j][:, y])
            np.testing.assert_array_equal(a.members[i, x], b.members[j, y])
            np.testing.assert_array_equal(a.first[i, x], b.first[j, y])
            check_groups(a, t, used[t], capacity, lost, low, high)


def test_an_infinite_price_of_what_is_not_requested_costs_nothing():
    capacity = np.array([[4, 4]])
    full = np.array([[0, 4]])
    pool = SlotGroups(capacity, 1, np.zeros(2), np.array([0.0, 2000.0]))
    pool.follow(full[None], np.ones(1, np.int64))
    row, server = pool.groups.row_of[:1], np.zeros(1, np.int64)
    assert pool.groups.price[row, 1, find_groups(pool.groups, row, server)] == np.inf
    demand, share = np.array([1, 0]), np.array([0.25, 0.0])
    none = np.zeros(2, np.int64)
    cost = slot_costs(
        pool.groups, demand, share, pool.groups, none, share * 0, np.array([1, 4, 5]), none[[0] * 3]
    )
    assert cost.tolist() == [[0.25, 1.0, np.inf]]
    assert demand_cost(np.array([1.0, np.inf]), share) == 0.25


def test_prices_agree_with_sixty_digits():
    rng = np.random.default_rng(9)
    for _ in range(300):
        capacity = int(rng.integers(1, 2**50))
        used = int(capacity * rng.random())
        low = rng.uniform(-1400, 300)
        high = low + rng.uniform(0, 1500)
        result = exponential_price(used, capacity, low, high)
        expected = naive.price(used, capacity, low, high)
        if 1e-290 < expected < math.inf:
            assert result == pytest.approx(expected, rel=1e-11)
        else:
            assert result == pytest.approx(expected, rel=1e-11, abs=1e-290)


def test_prices_at_the_ends_and_beyond_floats():
    assert exponential_price(0, 7, math.log(3.0), 5.0) == pytest.approx(3.0, rel=1e-15)
    assert exponential_price(7, 7, -math.inf, math.log(5.0)) == pytest.approx(5.0, rel=1e-15)
    assert exponential_price(6, 7, -math.inf, 5.0) == 0.0
    assert exponential_price(3, 6, -math.inf, math.inf) == 0.0
    assert exponential_price(0, 7, -5000.0, 9.0) == 0.0
    assert exponential_price(7, 7, 0.0, 5000.0) == math.inf
    assert exponential_price(10**9, UNLIMITED, 3.0, 5.0) == 0.0
    assert exponential_price(0, 0, 3.0, 5.0) == 0.0
