from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import ShadowpriceError
from shadowprice.policies.tenants.cells import (
    BuddyAllocator,
    Cell,
    VirtualClusters,
    assign_cells,
    split_into_cells,
)
from tests.support.examples import example_count

PROPERTY = settings(max_examples=example_count(80), deadline=None, derandomize=True)


def idle_units(clusters: VirtualClusters, tenant: int) -> int:
    """Return the number of a tenant's own units that are idle."""
    unbound = sum(size * count for size, count in clusters._unbound[tenant].items())
    bound = [bound for on_server in clusters._bound[tenant].values() for bound in on_server]
    inside = [cell for one in bound for cell in one.inside._free_cells]
    return unbound + sum(cell.size for cell in inside)


def test_a_server_is_the_cells_of_its_binary_digits() -> None:
    assert split_into_cells(3, 6) == [Cell(3, 0, 4), Cell(3, 4, 2)]
    assert split_into_cells(0, 8) == [Cell(0, 0, 8)]
    assert split_into_cells(0, 0) == []


def test_buddies_split_the_smallest_and_merge_again() -> None:
    buddies = BuddyAllocator([Cell(0, 0, 4), Cell(1, 0, 2)])
    first = buddies.allocate(1)
    second = buddies.allocate(1)
    assert (first, second) == (Cell(1, 0, 1), Cell(1, 1, 1))
    assert buddies.allocate(4) == Cell(0, 0, 4)
    assert buddies.allocate(1) is None
    for cell in (second, Cell(0, 0, 4), first):
        assert not buddies.idle
        buddies.release(cell)
    assert buddies.idle


def test_tenants_get_whole_servers_first() -> None:
    assert assign_cells([8, 8, 2], [9, 8, 1]) == [
        [Cell(0, 0, 8), Cell(2, 0, 1)],
        [Cell(1, 0, 8)],
        [Cell(2, 1, 1)],
    ]
    with pytest.raises(ShadowpriceError, match="more than the servers hold"):
        assign_cells([2], [3])


@PROPERTY
@given(st.integers(0, 2**32 - 1))
def test_every_share_is_cut_to_the_last_place(seed: int) -> None:
    places, shares = draw(np.random.default_rng(seed))
    owned = assign_cells(places, shares)
    assert [sum(cell.size for cell in cells) for cells in owned] == shares
    placed = [
        (cell.server, cell.offset + unit)
        for cells in owned
        for cell in cells
        for unit in range(cell.size)
    ]
    assert len(placed) == len(set(placed))
    assert all(unit < places[server] for server, unit in placed)


def draw(generator: np.random.Generator) -> tuple[list[int], list[int]]:
    places = generator.integers(1, 9, generator.integers(1, 7)).tolist()
    shares = generator.multinomial(sum(places), np.full(3, 1 / 3)).tolist()
    return places, shares


@PROPERTY
@given(st.integers(0, 2**32 - 1))
def test_a_tenant_s_own_cells_are_always_available_to_it(seed: int) -> None:
    generator = np.random.default_rng(seed)
    places, shares = draw(generator)
    owned = [Counter(cell.size for cell in cells) for cells in assign_cells(places, shares)]
    clusters = VirtualClusters(places, owned)
    running: list[tuple[int, list[Cell]]] = []
    used = Counter[int]()
    for _ in range(60):
        if running and generator.random() < 0.45:
            tenant, cells = running.pop(int(generator.integers(len(running))))
            for cell in cells:
                clusters.release(tenant, cell)
            used[tenant] -= sum(cell.size for cell in cells)
        else:
            tenant = int(generator.integers(3))
            workers = int(generator.integers(1, 10))
            taken = clusters.allocate(tenant, workers, 8)
            # HiveD's promise: within its share a tenant is never refused.
            assert (taken is not None) == (used[tenant] + workers <= shares[tenant])
            if taken is not None:
                assert sum(cell.size for cell in taken) == workers
                running.append((tenant, taken))
                used[tenant] += workers
        assert all(idle_units(clusters, t) == shares[t] - used[t] for t in range(3))
        held = [
            (cell.server, cell.offset + place)
            for _, cells in running
            for cell in cells
            for place in range(cell.size)
        ]
        assert len(held) == len(set(held))
        assert all(place < places[server] for server, place in held)


def test_a_gang_is_on_one_server_if_the_tenant_owns_it() -> None:
    clusters = VirtualClusters([8, 8], [{8: 1}, {4: 1, 2: 2}])
    assert clusters.allocate(1, 1, 8) == [Cell(0, 0, 1)]
    whole = clusters.allocate(0, 8, 8)
    assert whole == [Cell(1, 0, 8)]
    assert clusters.allocate(1, 4, 8) == [Cell(0, 4, 4)]
    assert clusters.allocate(1, 3, 8) == [Cell(0, 2, 2), Cell(0, 1, 1)]
    assert clusters.allocate(1, 1, 8) is None
