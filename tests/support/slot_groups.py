"""Compares the groups of a slot with its servers, one by one."""

from __future__ import annotations

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.kernels.prices.exponential import UNLIMITED, exponential_prices
from shadowprice.kernels.slots.groups import Groups, find_groups


def check_groups(
    groups: Groups,
    slot: int,
    used: Integers,
    capacity: Integers,
    lost: Flags,
    ln_low: Floats,
    ln_high: Floats,
) -> None:
    """Assert that a slot's groups are its distinct servers.

    ``used`` and ``capacity`` have the shape (servers, resources), and ``lost`` (servers,).
    """
    row = groups.row_of[slot]
    full = np.where(capacity < UNLIMITED, capacity, 0)
    shown = np.where(lost[:, None], full, used)
    servers = [
        (bool(out), *has, *uses)
        for out, has, uses in zip(lost, capacity.tolist(), shown.tolist(), strict=True)
    ]
    everyone = np.arange(len(servers))
    found = find_groups(groups, np.full_like(everyone, row), everyone).tolist()
    group_of = dict(zip(servers, found, strict=True))
    assert found == [group_of[server] for server in servers]
    assert len(set(found)) == len(group_of)
    order, numbers = list(group_of), list(group_of.values())
    count = groups.groups[row]
    assert np.flatnonzero(groups.kind[row, :count] >= 0).tolist() == sorted(numbers)
    assert groups.members[row, :count].sum() == np.count_nonzero(~lost)
    first = [servers.index(server) for server in order]
    assert groups.first[row, numbers].tolist() == first
    sizes = [0 if lost[s] else servers.count(each) for s, each in zip(first, order, strict=True)]
    assert groups.members[row, numbers].tolist() == sizes
    free = np.where(capacity < UNLIMITED, capacity - shown, capacity)[first]
    assert np.array_equal(groups.free[row][:, numbers].T, free)
    prices = exponential_prices(shown[first], capacity[first], ln_low, ln_high)
    assert np.array_equal(groups.price[row][:, numbers].T, prices)
