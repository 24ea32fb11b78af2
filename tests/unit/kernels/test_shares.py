"""Minimum satisfactory shares of pools and of intervals against lists of slots."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shadowprice.kernels.reactive.satisfactory import (
    PlannedJobs,
    allocate_by_return,
    progressive_filling,
)
from shadowprice.kernels.reactive.shares import completion_slot_of_new_job, min_ceiling
from tests.oracles.elasticflow import share
from tests.support.examples import sample

SLOTS = 300


def test_a_pool_s_share_is_the_one_of_lists() -> None:
    kinds = [_compare(np.random.default_rng(seed)) for seed in range(200)]
    # There are some of every kind, and some that end beyond the first part that is searched.
    assert {kind for kind, _ in kinds} == {"none", "fewest", "between", "most"}
    assert {"fewest", "between", "most"} == {kind for kind, end in kinds if end > 64}


def _compare(rng: np.random.Generator) -> tuple[str, int]:
    """Compare one random job with the lists; return its share, and its end."""
    levels = int(rng.integers(2, 9))
    # Two columns; at some levels the second needs nothing more, as parameter servers do.
    demand = np.cumsum(rng.integers((1, 0), (4, 2), (levels, 2)), axis=0)
    gains = np.cumsum(rng.integers(1, 30, levels))
    free = rng.integers(0, 2 * int(demand.max()), (SLOTS, 2))
    first, last = int(rng.integers(0, 2)), int(rng.integers(1, SLOTS))
    # From a slot's work to more than there is time for.
    left = int(gains[-1] * (last + 1) ** rng.uniform(0.0, 1.1)) + 1
    highest = {
        slot: sum(bool((row <= free[slot]).all()) for row in demand)
        for slot in range(first, last + 1)
    }
    curve = [(level + 1, int(gain)) for level, gain in enumerate(gains)]
    expected = share(highest, curve, left, first, last)

    plan = np.full(SLOTS, 99, dtype=np.int16)
    begins, room = np.arange(SLOTS + 1), np.empty(SLOTS, dtype=np.int64)
    after = free.copy()
    end = progressive_filling(after, demand, gains, levels, left, first, last, plan, begins, room)
    if expected is None:
        assert end == -1
        assert (after == free).all()
        return "none", end
    assert end == max(expected)
    ran = {slot: plan[slot] + 1 for slot in range(first, end + 1) if plan[slot] >= 0}
    assert ran == expected
    for slot, workers in expected.items():
        free[slot] -= demand[workers - 1]
    assert (after == free).all()
    ceiling = max(expected.values())
    return {1: "fewest", levels: "most"}.get(ceiling, "between"), end


@pytest.mark.parametrize("width", [1, 10**10])
def test_a_step_that_keeps_a_deadline_precedes_the_largest_savings(width: int) -> None:
    # One unit is free now. The first job misses its deadline without it; it saves the second job,
    # which runs for four slots, half of them.
    free = np.array([[1], [9], [9], [9]])
    plan = np.array([[0, -1, -1, -1], [0, 0, 0, 0]], dtype=np.int16)
    now = np.full(2, -1)
    jobs = PlannedJobs(
        np.array([[[1], [2]]] * 2), np.array([[1, 2], [1, 3]]), np.full(2, 2),
        np.array([[1, 2], [width, width + 1]]), np.array([2, 4]),
    )  # fmt: skip
    last = np.array([0, 3])
    allocate_by_return(free, np.array([1, 0]), jobs, last, last.copy(), plan, now)
    assert now.tolist() == [1, 0]


@pytest.mark.parametrize("size", [1, 10**9])
def test_steps_are_in_the_order_of_savings_per_gpu_at_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(50):
        first = rng.integers(1, 9, 3) * size
        width = np.stack([first, first * rng.integers(5, 10, 3)], axis=1)
        gains = np.stack([np.full(3, 4), rng.integers(5, 16, 3)], axis=1)
        work = rng.integers(10**3, 10**6, 3)
        # Nothing limits the first step of each job, and one unit remains for a second step.
        demand = np.array([[[0], [1]]] * 3)
        none, now = np.full(3, -1), np.full(3, -1)
        jobs = PlannedJobs(demand, gains, np.full(3, 2), width, work)
        free, plan = np.ones((1, 1), dtype=np.int64), np.full((3, 1), -1, dtype=np.int16)
        allocate_by_return(free, np.arange(3), jobs, none, none, plan, now)
        returns = []
        for job_work, job_gains, (few, many) in zip(
            work.tolist(), gains.tolist(), width.tolist(), strict=True
        ):
            slots, fewer = (-(-(job_work - gain) // job_gains[0]) for gain in job_gains)
            returns.append(Fraction((slots - fewer) * few, many - few))
        assert max(returns) < 1  # the return of the first steps
        best = returns.index(max(returns))
        assert now.tolist() == [int(row == best) for row in range(3)]


@pytest.mark.parametrize("seed", sample(range(40)))
def test_intervals_are_the_slots_that_they_stand_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, levels = int(rng.integers(1, 12)), int(rng.integers(1, 7))
    begins = 50 + np.concatenate(([0], np.cumsum(rng.integers(1, 30, count))))
    room = rng.integers(-1, levels, count)
    # In a slot in which a job restarts for long, no gain is certain: 0.
    gains = np.cumsum(rng.integers(0, 20, levels))
    # A first slot without a restart gains more, the more workers there are.
    first = gains + np.cumsum(rng.integers(0, 20, levels)) * rng.integers(2)
    ceilings = np.flatnonzero(rng.random(levels) < 0.6)
    ceilings = ceilings if len(ceilings) else np.array([levels - 1])
    lengths = np.diff(begins)
    end = int(rng.integers(50, begins[-1] + 2))
    left = int(rng.integers(1, max(2, int(gains[-1] * lengths.sum()))))
    slots = np.arange(begins[0], begins[-1] + 1)
    each = np.repeat(room, lengths)
    by_intervals = min_ceiling(
        begins, count, room, gains, ceilings, len(ceilings), left, end, first
    )  # fmt: skip
    by_slots = min_ceiling(
        slots, len(each), each, gains, ceilings, len(ceilings), left, end, first
    )  # fmt: skip
    assert by_intervals == by_slots

    def one_by_one(top: int) -> int:
        missing, begun = left, False
        for slot, most in zip(slots, each, strict=False):
            level = min(top, most)
            if slot < end and level >= 0:
                missing -= gains[level] if begun else first[level]
                begun = True
            if missing <= 0:
                return int(slot)
        return -1

    done = [one_by_one(top) for top in ceilings]
    for top, slot in zip(ceilings, done, strict=True):
        assert completion_slot_of_new_job(begins, count, room, gains, first, top, left, end) == slot
    kept = [index for index, slot in enumerate(done) if slot >= 0]
    assert by_intervals == ((kept[0], done[kept[0]]) if kept else (-1, -1))
