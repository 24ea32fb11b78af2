"""The distinct states of slots, against listing every machine of every slot."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.kernels.prices.exponential import exponential_prices
from shadowprice.kernels.slots.groups import SlotGroups
from shadowprice.kernels.slots.placement import PLACES, slot_states
from tests.support.examples import sample


@pytest.mark.parametrize("seed", sample(range(12)))
def test_states_are_what_every_machine_is_in_every_slot(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, machines, resources = 14, int(rng.integers(1, 7)), int(rng.integers(1, 4))
    capacity = rng.integers(1, 3, (machines, resources)) * 4
    kinds = rng.integers(0, 5, (4, machines, resources))
    used = np.minimum(kinds[rng.integers(0, 4, slots)], capacity)
    used[rng.random(slots) < 0.3] = 0
    low, high = np.full(resources, -2.0), rng.uniform(0, 3, resources)
    pool = SlotGroups(capacity, slots, low, high)
    pool.follow(used, used.any(axis=(1, 2)).astype(np.int64))
    worker = rng.random(resources) * rng.integers(0, 2, resources)
    server = rng.random(resources) * rng.integers(0, 2, resources)
    requested = np.flatnonzero((worker > 0) | (server > 0))
    hosts = rng.integers(0, 2, (2, machines if seed % 2 else 0)).astype(bool)
    groups = pool.groups
    window = slots if seed % 3 else slots - 5
    price_worker, price_server, room, state_of, first = slot_states(
        groups._replace(row_of=groups.row_of[:window]),
        requested,
        worker,
        server,
        hosts,
    )
    seen: set[int] = set()
    for t in range(window):
        state = state_of[t]
        price = exponential_prices(used[t], capacity, low, high)
        assert price_worker[state] == pytest.approx(price @ worker)
        assert price_server[state] == pytest.approx(price @ server)
        assert (room[state, :, : len(requested)] == (capacity - used[t])[:, requested]).all()
        if hosts.shape[1]:
            assert (room[state, :, len(requested) :] == np.where(hosts.T, PLACES, 0)).all()
        if state not in seen:
            assert first[state] == t
            assert state == len(seen)
        seen.add(state)
    assert len(seen) == len(first)
    # Each state once: no two are equal in everything that the job sees.
    prints = {
        (price_worker[k].tobytes(), price_server[k].tobytes(), room[k].tobytes())
        for k in range(len(first))
    }
    assert len(prints) == len(first)
