"""Placement of jobs on spare capacity, against examining every server for every job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shadowprice.kernels.replanning.next_slot import StepWeights, best_step
from shadowprice.kernels.replanning.placement import Placements, place_paused_jobs
from shadowprice.kernels.replanning.plans import PackingLog
from shadowprice.kernels.replanning.timeline import PS_ROLE, WORKER_ROLE, server_roles
from tests.oracles.standing import put_on
from tests.support.examples import sample
from tests.support.placement_cases import dense_counts, random_jobs

Array = np.ndarray[Any, Any]


@dataclass
class Twin:
    """The slow, obvious way."""

    free: Array
    carries: Array
    jobs: Any
    worth: Array
    terms: StepWeights

    def step(self, row: int, below: int) -> tuple[float, int]:
        """Return the maximum gain by weight of a level above the given one, and that level."""
        jobs, spread = self.jobs, int(self.jobs.spread_levels[row])
        for levels in (range(spread, below), range(min(below, spread))):
            best, target = 0.0, -1
            for level in levels:
                more = float(min(jobs.gains[row, level], jobs.remaining[row]))
                more *= (
                    1.0 if self.terms.previous_level[row] == level else 1.0 - self.terms.loss[row]
                )
                cost = self.terms.process[row, 0] * jobs.worker_counts[row, level]
                cost += self.terms.process[row, 1] * jobs.ps_counts[row, level]
                if not self.terms.forbidden[row, level] and more > best * cost * (1.0 + 1e-9):
                    best, target = more / cost, level
                if jobs.gains[row, level] >= jobs.remaining[row]:
                    break
            if target >= 0:
                return best, target
        return 0.0, -1

    def fits(self, row: int, level: int) -> tuple[Array, Array] | None:
        """Place a job at a level if it fits; return its workers and servers by server."""
        jobs = self.jobs
        count, count_ps = int(jobs.worker_counts[row, level]), int(jobs.ps_counts[row, level])
        workers, ps = np.zeros(len(self.free), np.int64), np.zeros(len(self.free), np.int64)
        if level >= jobs.spread_levels[row]:
            role = WORKER_ROLE | PS_ROLE if jobs.ps[row].any() else WORKER_ROLE
            demand = count * jobs.worker[row] + count_ps * jobs.ps[row]
            if not put_on(self.free, self.carries, role, demand, 1, workers):
                return None
            return workers * count, workers * count_ps
        first = (WORKER_ROLE, jobs.worker[row], count, workers)
        second = (PS_ROLE, jobs.ps[row], count_ps, ps)
        for order in ((first, second), (second, first)):
            free = self.free.copy()
            workers[:], ps[:] = 0, 0
            if all(put_on(free, self.carries, *one) for one in order):
                self.free[:] = free
                return workers, ps
        return None

    def seat(self, level: Array) -> dict[int, tuple[Array, Array]]:
        """Place jobs that run nowhere, one after the other."""
        below = {row: int(self.jobs.levels[row]) for row in np.flatnonzero(level < 0).tolist()}
        seated = {}
        while True:
            offers = []
            for row, most in below.items():
                value, target = self.step(row, most)
                if target >= 0:
                    key = -value * self.worth[row] / self.jobs.remaining[row]
                    offers.append((key, row, target))
            if not offers:
                return seated
            _, row, target = min(offers)
            result = self.fits(row, target)
            if result is None:
                below[row] = target
                continue
            level[row] = target
            seated[row] = result
            del below[row]


@pytest.mark.parametrize("seed", sample(range(80)))
def test_waiting_jobs_are_placed_as_by_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, servers, resources = int(rng.integers(1, 12)), int(rng.integers(1, 16)), 2
    jobs = random_jobs(rng, rows, resources)._replace(remaining=rng.integers(1, 12, rows))
    free = rng.integers(0, 9, (servers, resources))
    carries = server_roles(rng.random(servers) < 0.8, rng.random(servers) < 0.8)
    level = np.where(rng.random(rows) < 0.3, 0, -1)
    there = [row for row in range(rows) if level[row] >= 0]
    stood = Placements(
        np.cumsum(level >= 0) - (level >= 0),
        (level >= 0).astype(np.int64),
        rng.integers(0, servers, len(there)),
        np.ones(len(there), np.int64),
        np.zeros(len(there), np.int64),
    )
    worth = rng.random(rows) * (rng.random(rows) < 0.9)
    terms = StepWeights(
        worth,
        rng.random((rows, 2)) + 0.1,
        rng.choice([0.0, 0.1, 1.0], rows),
        rng.integers(-1, 3, rows),
        rng.random((rows, 3)) < 0.1,
    )
    before = dense_counts(stood, rows, servers)
    twin = Twin(free.copy(), carries, jobs, worth, terms)
    expected = level.copy()
    seated = twin.seat(expected)
    none = np.zeros(0, np.int64)
    log = PackingLog(np.zeros(1, np.int64), none, none, none, level)
    every = np.arange(rows)
    rest = free.copy()
    result = place_paused_jobs(rest, carries, jobs, every, terms, stood, log)
    assert level.tolist() == expected.tolist()
    assert (rest == twin.free).all()
    assert (rest >= np.minimum(free, 0)).all()
    workers, ps = dense_counts(result, rows, servers)
    for row in range(rows):
        one, other = seated.get(row, (before[0][row], before[1][row]))
        assert workers[row].tolist() == one.tolist(), row
        assert ps[row].tolist() == other.tolist(), row


def test_a_step_that_takes_nothing_priced_has_a_finite_value() -> None:
    jobs = random_jobs(np.random.default_rng(3), 1, 2)
    jobs = jobs._replace(remaining=np.full(1, 1 << 60))
    nothing = np.zeros((0, 0), np.bool_)
    terms = StepWeights(np.zeros(1), np.zeros((1, 2)), np.zeros(1), np.full(1, -1), nothing)
    value, level = best_step(jobs, 0, -1, 0, int(jobs.spread_levels[0]), terms)
    assert level >= 0
    # Times a utility of 0 it is 0, and not NaN, which would break the order of a heap.
    assert value * 0.0 == 0.0
