"""Tests of the linear program of a slot: against HiGHS, by its dual bound, and by properties."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.kernels.slots.coupled_lp import solve_slots_lp
from shadowprice.kernels.slots.polygons import Slot as SlotServers
from shadowprice.kernels.slots.polygons import group_machines, slot_corners
from tests.oracles.slot_cases import Slot as SlotCase
from tests.oracles.slot_cases import polygon_corners, random_slot
from tests.oracles.slot_placement import solve_slot

NONE = np.zeros((0, 0, 0))


def solve(slot: SlotCase, whole: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = np.zeros((len(slot.workers), 2, slot.machines))
    cost, duals, _ = solve_slots_lp(
        SlotServers(*slot.place), slot.workers, slot.servers, whole, points
    )
    return cost, duals, points


def prices(slot: SlotCase) -> tuple[np.ndarray, np.ndarray]:
    usable = np.isfinite(slot.price_worker) & np.isfinite(slot.price_server)
    return np.where(usable, slot.price_worker, 0.0), np.where(usable, slot.price_server, 0.0)


def test_every_optimum_equals_that_of_highs() -> None:
    rng = np.random.default_rng(0)
    solved = infeasible = 0
    for _ in range(260):
        slot = random_slot(rng)
        cost, _, _ = solve(slot)
        for i, (workers, servers) in enumerate(zip(slot.workers, slot.servers, strict=True)):
            most = int(slot.workers[-1])
            expected, _, _ = solve_slot(*slot.place, int(workers), int(servers), most=most)
            if np.isinf(expected):
                assert np.isinf(cost[i])
                infeasible += 1
            else:
                assert cost[i] == pytest.approx(expected, rel=1e-9, abs=1e-13)
                solved += 1
    assert solved > 1000
    assert infeasible > 300


@pytest.mark.parametrize("wide_prices", [False, True])
def test_solutions_carry_their_own_proof(wide_prices: bool) -> None:
    # The solution is feasible, and its dual bound equals its cost. No other solver is needed. So
    # the test also covers prices that differ by 12 orders of magnitude, where HiGHS loses digits.
    rng = np.random.default_rng(1)
    proved = 0
    for _ in range(150):
        slot = random_slot(rng, wide_prices=wide_prices)
        cost, duals, points = solve(slot)
        price_w, price_s = prices(slot)
        usable = np.isfinite(slot.price_worker) & np.isfinite(slot.price_server)
        most = int(slot.workers[-1])
        corners = [polygon_corners(slot, h, most) for h in range(slot.machines)]
        for i in np.flatnonzero(np.isfinite(cost)):
            w, s = points[i]
            assert w.sum() == pytest.approx(slot.workers[i], abs=1e-9)
            assert s.sum() == pytest.approx(slot.servers[i], abs=1e-9)
            assert min(w.min(), s.min()) >= 0.0
            assert not w[~usable].any()
            used = np.outer(w, slot.worker) + np.outer(s, slot.server)
            assert (used <= slot.free * (1 + 1e-9) + 1e-9).all()
            assert price_w @ w + price_s @ s == pytest.approx(cost[i], rel=1e-9, abs=1e-300)
            dual_w, dual_s = duals[i]
            assert min(dual_w, dual_s) >= 0.0
            bound = dual_w * slot.workers[i] + dual_s * slot.servers[i]
            magnitude = bound
            for h in np.flatnonzero(usable):
                gain = corners[h] @ (dual_w - price_w[h], dual_s - price_s[h])
                bound -= max(gain.max(), 0.0)
            assert bound == pytest.approx(cost[i], rel=1e-9, abs=1e-12 * magnitude)
            proved += 1
    assert proved > 400


def test_at_most_two_servers_use_no_polygon_corner() -> None:
    rng = np.random.default_rng(2)
    between = 0
    for _ in range(100):
        slot = random_slot(rng)
        _, _, points = solve(slot)
        corners = [polygon_corners(slot, h, int(slot.workers[-1])) for h in range(slot.machines)]
        for w, s in points:
            off = 0
            for h in range(slot.machines):
                gaps = np.abs(corners[h] - (w[h], s[h])).max(axis=1)
                off += gaps.min() > 1e-7
            assert off <= 2
            between = max(between, off)
    assert between == 2


def test_grouping_equal_servers_keeps_the_cost() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        slot = random_slot(rng)
        twice = SlotCase(
            np.tile(slot.price_worker, 3),
            np.tile(slot.price_server, 3),
            np.tile(slot.free, (3, 1)),
            slot.worker,
            slot.server,
            slot.workers,
            slot.servers,
        )
        # Prices differ slightly, so that no two servers are grouped.
        apart = SlotCase(
            twice.price_worker * (1 + 1e-14 * np.arange(twice.machines)),
            twice.price_server,
            twice.free,
            slot.worker,
            slot.server,
            slot.workers,
            slot.servers,
        )
        np.testing.assert_allclose(solve(twice)[0], solve(apart)[0], rtol=1e-9, atol=1e-13)


def test_groups_ignore_resources_that_the_job_does_not_use() -> None:
    free = np.array([[4, 1], [4, 2], [3, 1], [4, 3]])
    price = np.array([1.0, 1.0, 1.0, np.inf])
    worker, server = np.array([1, 0]), np.array([2, 0])
    first, count, following, classes = group_machines(
        SlotServers(price, price, free, worker, server)
    )
    assert classes == 2
    assert first[:2].tolist() == [0, 2]
    assert count[:2].tolist() == [2, 1]
    assert following.tolist() == [1, -1, -1, -1]


def test_hull_is_the_hull_of_the_integer_points() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        free = rng.integers(0, 40, (1, 2))
        worker, server = rng.integers(1, 9, (2, 2))
        one = np.ones(1)
        begin, w, s, *_ = slot_corners(SlotServers(one, one, free, worker, server), 12, 9, True)
        grid = np.array([(x, y) for x in range(13) for y in range(10)])
        inside = grid[(np.outer(grid[:, 0], worker) + np.outer(grid[:, 1], server) <= free).all(1)]
        if len(begin) == 1:
            assert inside.tolist() == [[0, 0]]
            continue
        corners = np.column_stack([w, s])
        assert all(corner in inside.tolist() for corner in corners.tolist())
        for direction in rng.normal(size=(40, 2)):
            assert (corners @ direction).max() == pytest.approx((inside @ direction).max())


def test_integer_hull_bound_lies_between_lp_bound_and_optimum() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        slot = random_slot(rng)
        plain, whole = solve(slot)[0], solve(slot, whole=True)[0]
        assert (whole >= plain * (1 - 1e-9)).all()
        i = int(rng.integers(len(slot.workers)))
        optimum, _, _ = solve_slot(
            *slot.place,
            int(slot.workers[i]),
            int(slot.servers[i]),
            most=int(slot.workers[-1]),
            integer=True,
        )
        assert np.isinf(optimum) or whole[i] <= optimum * (1 + 1e-9)


def test_optimum_is_convex_in_the_demands() -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        slot = random_slot(rng)
        level = SlotCase(*slot.place, slot.workers, np.minimum(slot.servers, slot.servers[0]))
        cost = solve(level)[0]
        cost = cost[np.isfinite(cost)]
        assert (np.diff(cost, 2) >= -1e-9 * cost[2:]).all()


def test_unlimited_resources_and_huge_amounts_stay_exact() -> None:
    free = np.array([[UNLIMITED, 3 * 10**12], [UNLIMITED, 5 * 10**12]])
    worker, server = np.array([10**9, 10**12]), np.array([10**10, 0])
    price = np.array([1.0, 2.0])
    cost, _, _ = solve_slots_lp(
        SlotServers(price, price, free, worker, server),
        np.arange(1, 10),
        np.zeros(9, np.int64),
        False,
        NONE,
    )
    assert cost.tolist() == [1, 2, 3, 5, 7, 9, 11, 13, np.inf]
