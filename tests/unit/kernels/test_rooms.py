"""Free capacity of servers slot by slot, against counting processes one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.slots.rooms import choice_costs, choose_servers, subtract_entries
from tests.support.examples import example_count

SEEDS = st.integers(0, 2**32 - 1)


def room(free: np.ndarray, demand: np.ndarray) -> int:
    """Place processes on a server until none fits."""
    left, count = free.copy(), 0
    while (left >= demand).all():
        left -= demand
        count += 1
    return count


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_costs_places_and_what_is_free_agree_with_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, servers, first = int(rng.integers(1, 6)), int(rng.integers(2, 7)), int(rng.integers(2))
    free = rng.integers(0, 9, (first + slots + 1, servers, 2))
    split = int(rng.integers(1, servers))
    rows = rng.permutation(servers)
    pools = np.sort(rows[:split]), np.sort(rows[split:])
    worker, ps = rng.integers(0, 4, 2), rng.integers(0, 4, 2)
    worker[0], ps[1] = max(1, worker[0]), max(1, ps[1])
    workers = np.sort(rng.choice(np.arange(1, 9), 3, replace=False))
    needed = rng.integers(0, 4, 3) * int(rng.integers(0, 2))
    price = rng.uniform(0, 3, (2, slots))
    cost = choice_costs(
        free, first, pools[0], worker, price[0], pools[1], ps, price[1], workers, needed
    )
    choice = np.full(slots, -1)
    for t in range(slots):
        rooms = [
            sum(room(free[first + t, s], demand) for s in members)
            for members, demand in zip(pools, (worker, ps), strict=True)
        ]
        for c in range(3):
            fits = workers[c] <= rooms[0] and needed[c] <= rooms[1]
            expected = workers[c] * price[0, t] + needed[c] * price[1, t] if fits else np.inf
            assert cost[t, c] == expected or abs(cost[t, c] - expected) < 1e-12
            if fits and rng.random() < 0.7:
                choice[t] = c
    entries = choose_servers(free, first, pools[0], worker, pools[1], ps, workers, needed, choice)
    assert entries.tolist() == sorted(entries.tolist())
    for t in range(slots):
        mine = entries[entries[:, 0] == first + t]
        wanted = (0, 0) if choice[t] < 0 else (workers[choice[t]], needed[choice[t]])
        assert (mine[:, 2].sum(), mine[:, 3].sum()) == wanted
        assert set(mine[mine[:, 2] > 0, 1]) <= set(pools[0].tolist())
        assert set(mine[mine[:, 3] > 0, 1]) <= set(pools[1].tolist())
    before = free.copy()
    assert subtract_entries(free, entries, worker, ps, 1)
    taken = np.zeros_like(free)
    for slot, server, count, beside in entries.tolist():
        taken[slot, server] += count * worker + beside * ps
    assert (before - taken == free).all()
    assert (free >= 0).all()
    assert subtract_entries(free, entries, worker, ps, -1)
    assert (before == free).all()


def test_missing_fields_are_not_read() -> None:
    free = np.array([[[4, 4], [1, 4]]])
    before = free.copy()
    entries = np.array([[0, 0, 1, 0], [0, 1, 1, 0]])
    assert not subtract_entries(free, entries, np.array([2, 1]), np.array([0, 0]), 1)
    assert (free == before).all()


def test_places_stay_and_then_fill_the_tightest_servers() -> None:
    free = np.full((2, 3, 1), 4)
    free[0, 0] = free[0, 2] = 1
    one = np.array([1])
    none = np.zeros(0, np.int64)
    entries = choose_servers(
        free, 0, np.arange(3), one, none, one, np.array([2]), np.array([0]), np.array([0, 0])
    )
    assert entries.tolist() == [[0, 0, 1, 0], [0, 2, 1, 0], [1, 0, 1, 0], [1, 2, 1, 0]]
