"""The timeline against servers one by one, and the learnt prices against a linear program."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.kernels.replanning.duals import shadow_prices
from shadowprice.kernels.replanning.timeline import (
    PS_ROLE,
    WORKER_ROLE,
    Timeline,
    add_tenant_usage,
    copy_state,
    init_timeline,
    new_timeline,
    pack,
    pack_ps_first,
    split_interval_at,
    tenant_headroom,
    total_fit,
)
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.rolling.open_jobs import upper_hull
from tests.oracles.standing import put_on
from tests.support.examples import sample


def unshared(resources: int) -> np.ndarray:
    """Return the limits of a timeline without shares."""
    return np.full((1, resources), -1)


def reset(line: Timeline, slot: int, count: np.ndarray, role: np.ndarray, free: np.ndarray) -> None:
    """Make all capacity free from a slot on."""
    no_changes = np.zeros(2, np.int64), np.zeros(0, np.int64), free[:0]
    unused = np.zeros((1, *line.tenant_usage.shape[1:]), np.int64)
    assert init_timeline(line, np.array([slot]), free.copy(), role, count, *no_changes, unused)


def contents(line: Timeline, interval: int) -> list[tuple[int, ...]]:
    """Return role and free capacity of every single server of an interval, sorted."""
    state = int(line.state[interval])
    rows: list[tuple[int, ...]] = []
    for group in range(int(line.groups[state])):
        row = (int(line.role[state, group]), *line.free[state, group].tolist())
        rows += [row] * int(line.servers[state, group])
    return sorted(rows)


@pytest.mark.parametrize("seed", sample(range(40)))
def test_groups_pack_as_servers_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds, resources = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    count = rng.integers(1, 5, kinds)
    role = rng.integers(1, 4, kinds)
    capacity = rng.integers(2, 12, (kinds, resources))
    line = new_timeline(8, int(count.sum()), unshared(resources), False)
    reset(line, 5, count, role, capacity)
    free = np.repeat(capacity, count, axis=0)
    roles = np.repeat(role, count)
    for _ in range(12):
        bit = WORKER_ROLE if rng.random() < 0.6 else PS_ROLE
        demand = rng.integers(0, 5, resources)
        demand[rng.integers(resources)] += 1
        hosts = (roles & bit) > 0
        holds = np.where(demand > 0, free // np.maximum(demand, 1), 10**6).min(axis=1)
        everything = int(holds[hosts].sum())
        assert total_fit(line, 0, bit, demand, 10**9) == everything
        number = int(rng.integers(1, 8))
        assert total_fit(line, 0, bit, demand, number) == min(number, everything)
        if number > everything:
            continue
        assert pack(line, 0, bit, demand, number)
        assert put_on(free, roles, bit, demand, number, np.zeros(len(free), np.int64))
        expected = sorted((int(r), *row) for r, row in zip(roles, free.tolist(), strict=True))
        assert contents(line, 0) == expected


@pytest.mark.parametrize("seed", sample(range(60)))
def test_parameter_servers_go_first_if_workers_take_their_resources(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, resources = int(rng.integers(1, 5)), int(rng.integers(1, 3))
    role = rng.choice([WORKER_ROLE | PS_ROLE, WORKER_ROLE | PS_ROLE, WORKER_ROLE, PS_ROLE], count)
    capacity = rng.integers(2, 14, (count, resources))
    requests = [
        (WORKER_ROLE, rng.integers(1, 6, resources), int(rng.integers(1, 5))),
        (PS_ROLE, rng.integers(1, 6, resources), int(rng.integers(1, 4))),
    ]
    expected, wanted = 0, sorted((int(r), *row) for r, row in zip(role, capacity, strict=True))
    for first in (requests, requests[::-1]):
        free = capacity.copy()
        if all(put_on(free, role, *one, np.zeros(count, np.int64)) for one in first):
            expected = first[0][0]
            wanted = sorted((int(r), *row) for r, row in zip(role, free.tolist(), strict=True))
            break
    line = new_timeline(8, count, unshared(resources), False)
    reset(line, 0, np.ones(count, np.int64), role, capacity)
    copy_state(line, 0, 5)
    found = 0
    if all(pack(line, 0, *one) for one in requests):
        found = WORKER_ROLE
    elif pack_ps_first(line, 0, 5, *requests[0][1:], *requests[1][1:]):
        found = PS_ROLE
    assert found == expected
    assert contents(line, 0) == wanted


def test_without_groups_to_spare_room_is_given_up_but_never_invented() -> None:
    rng = np.random.default_rng(3)
    line = new_timeline(4, 3, unshared(1), False)
    reset(line, 0, np.array([40]), np.array([WORKER_ROLE]), np.array([[60]]))
    real = np.full((40, 1), 60)
    carries = np.full(40, WORKER_ROLE)
    for _ in range(60):
        demand = np.array([int(rng.integers(1, 30))])
        if total_fit(line, 0, WORKER_ROLE, demand, 1) < 1:
            continue
        assert pack(line, 0, WORKER_ROLE, demand, 1)
        assert put_on(real, carries, WORKER_ROLE, demand, 1, np.zeros(40, np.int64))
    state = int(line.state[0])
    held = line.servers[state, : line.groups[state]].sum()
    assert held == 40
    assert (line.free[state, : line.groups[state], 0] >= 0).all()


def test_splits_keep_what_is_there_and_are_found_again() -> None:
    line = new_timeline(16, 4, unshared(1), False)
    reset(line, 3, np.array([2]), np.array([WORKER_ROLE]), np.array([[4]]))
    assert split_interval_at(line, 10) == 1
    assert pack(line, int(line.state[0]), WORKER_ROLE, np.array([3]), 1)
    assert split_interval_at(line, 6) == 1
    assert split_interval_at(line, 10) == 2
    assert split_interval_at(line, 3) == 0
    assert line.start[:3].tolist() == [3, 6, 10]
    assert contents(line, 0) == contents(line, 1) == [(1, 1), (1, 4)]
    assert contents(line, 2) == [(1, 4), (1, 4)]
    for slot in range(20, 60):
        split_interval_at(line, slot)
    assert split_interval_at(line, 99) == -1  # no interval is left, and nothing is lost
    assert contents(line, 0) == [(1, 1), (1, 4)]


def test_a_tenants_limit_is_its_share_and_unowned_capacity() -> None:
    share = np.array([[4, 0], [2, 0], [0, 0]])
    line = new_timeline(4, 2, np.vstack((share, [3, -1])), False)
    reset(line, 0, np.array([1]), np.array([WORKER_ROLE]), np.array([[9, 9]]))
    none = np.zeros(2, np.int64)
    assert [tenant_headroom(line, 0, tenant, 0) for tenant in range(3)] == [7, 5, 3]
    add_tenant_usage(
        line, 0, 0, np.array([5, 1]), 1, none, 0
    )  # its 4, and one of the 3 that nobody owns
    assert [tenant_headroom(line, 0, tenant, 0) for tenant in range(3)] == [2, 4, 2]
    add_tenant_usage(line, 0, 2, np.array([1, 1]), 2, none, 0)
    assert [tenant_headroom(line, 0, tenant, 0) for tenant in range(3)] == [0, 2, 0]
    assert tenant_headroom(line, 0, 2, 1) > 10**9  # a resource without shares
    split_interval_at(line, 6)
    assert tenant_headroom(line, int(line.state[1]), 1, 0) == 2


def dual_value(value: np.ndarray, use: np.ndarray, weight: np.ndarray, budget: np.ndarray) -> float:
    """Return the optimum of the linear program whose dual is priced."""
    program = LinearProgram()
    for worth, often in zip(value, weight, strict=True):
        program.column(cost=float(worth * often), upper=1.0, integer=False)
    for r, room in enumerate(budget):
        program.row(enumerate((use[:, r] * weight).tolist()), upper=float(room))
    return program.solve().objective


@pytest.mark.parametrize("seed", sample(range(20)))
def test_prices_of_one_resource_are_the_dual_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 30))
    value, weight = rng.uniform(1, 10, jobs), rng.uniform(0.1, 1, jobs)
    use = rng.uniform(0.1, 2, (jobs, 1))
    budget = np.array([rng.uniform(0.2, jobs / 2)])
    price = shadow_prices(value, use, weight[None], budget[None], 3)[0]
    dual = float(budget @ price + weight @ np.maximum(0, value - use @ price))
    assert dual == pytest.approx(dual_value(value, use, weight, budget), rel=1e-7)


@pytest.mark.parametrize("seed", sample(range(20)))
def test_prices_of_several_resources_bound_the_optimum_and_come_near(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, resources = 40, 3
    value, weight = rng.uniform(1, 10, jobs), rng.uniform(0.1, 1, jobs)
    use = rng.uniform(0.1, 2, (jobs, resources))
    budget = rng.uniform(2, 12, resources)
    price = shadow_prices(value, use, weight[None], budget[None], 4)[0]
    dual = float(budget @ price + weight @ np.maximum(0, value - use @ price))
    best = dual_value(value, use, weight, budget)
    assert best - 1e-6 <= dual <= 1.25 * best


def test_the_hull_keeps_what_wastes_no_worker() -> None:
    workers = np.array([1, 2, 4, 8])
    assert upper_hull(workers, np.array([10, 20, 40, 80])).tolist() == [0, 1, 2, 3]
    # 1 and 2 waste workers: 4 gain more than four times as much as 1.
    assert upper_hull(workers, np.array([5, 12, 60, 90])).tolist() == [2, 3]
    assert upper_hull(workers, np.array([100, 150, 160, 250])).tolist() == [0, 1, 3]
    assert upper_hull(np.array([3]), np.array([1])).tolist() == [0]
