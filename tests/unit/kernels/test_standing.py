"""Groups of equal servers, against examining every server for every job."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.kernels.replanning.placement import (
    Placements,
    compare_placements,
    place_packed_jobs,
    reduce_to_sum,
)
from shadowprice.kernels.replanning.plans import JobArrays, PackingLog
from shadowprice.kernels.replanning.timeline import PS_ROLE, WORKER_ROLE, server_roles
from tests.oracles import standing as twin
from tests.support.examples import sample
from tests.support.placement_cases import dense_counts, random_jobs


@pytest.mark.parametrize("seed", sample(range(60)))
def test_placements_equal_those_of_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, servers, resources = int(rng.integers(1, 9)), int(rng.integers(1, 24)), 2
    kinds = rng.integers(2, 12, (int(rng.integers(1, 4)), resources))
    capacity = kinds[rng.integers(0, len(kinds), servers)]
    hosts_workers, hosts_ps = rng.random(servers) < 0.8, rng.random(servers) < 0.8
    jobs = random_jobs(rng, rows, resources)
    stood = Placements(*(np.zeros(rows, np.int64) for _ in range(2)), *(np.zeros(0, np.int64),) * 3)
    nobody, none = stood, np.full(rows, -1)
    on_workers, on_ps = dense_counts(stood, rows, servers)
    for _ in range(6):
        level = np.where(rng.random(rows) < 0.8, rng.integers(0, 3, rows), -1)
        # A job may be packed in two steps: at a lower level, then the rest of a higher one.
        entries = [(row, 0, int(level[row])) for row in range(rows) if level[row] >= 0]
        # A whole one is packed at once.
        whole = [row for row, _, high in entries if high >= jobs.spread_levels[row]]
        entries = [(row, high if row in whole else low, high) for row, low, high in entries]
        steps = [(row, low, high) for row, low, high in entries if high > low]
        packed = [(row, low) for row, low, _ in entries] + [(row, high) for row, _, high in steps]
        taken: dict[int, tuple[int, int]] = {}
        log_rows, log_workers, log_servers = [], [], []
        for row, at in packed:
            had = taken.get(row, (0, 0))
            now = int(jobs.worker_counts[row, at]), int(jobs.ps_counts[row, at])
            log_rows.append(row)
            log_workers.append(now[0] - had[0])
            log_servers.append(now[1] - had[1])
            taken[row] = now
        log = PackingLog(
            np.array([len(log_rows)]),
            *(np.array(column, np.int64) for column in (log_rows, log_workers, log_servers)),
            level,
        )
        for stay in (True, False):
            free, room = capacity.copy(), capacity.copy()
            old = log._replace(level=level.copy())
            new_workers, new_ps = np.zeros_like(on_workers), np.zeros_like(on_ps)
            whole, found = place_packed_jobs(
                room, server_roles(hosts_workers, hosts_ps), jobs, log, stood, nobody, none, stay
            )
            expected = twin.stand(
                free, hosts_workers, hosts_ps, jobs, old, on_workers, on_ps, new_workers, new_ps,
                stay,
            )  # fmt: skip
            assert whole == expected
            if whole or not stay:
                break
        assert (log.level == old.level).all()
        workers, ps = dense_counts(found, rows, servers)
        assert (workers == new_workers).all()
        assert (ps == new_ps).all()
        assert (room == free).all()
        every = np.arange(rows)
        less = ((workers < on_workers) | (ps < on_ps)).any(axis=1)
        more = ((workers > on_workers) | (ps > on_ps)).any(axis=1)
        assert (compare_placements(every, stood, found) == less * 1 + more * 2).all()
        stood, on_workers, on_ps = found, workers, ps


def test_a_pinned_job_whose_level_does_not_fit_keeps_only_what_is_pinned() -> None:
    jobs = random_jobs(np.random.default_rng(0), 1, 1)._replace(
        worker=np.array([[2]]),
        ps=np.array([[3]]),
        spread_levels=np.array([3]),
        worker_counts=np.array([[1, 2, 3]]),
        ps_counts=np.array([[1, 2, 3]]),
    )
    first, size, one = np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1, np.int64)
    pinned = Placements(first, size, np.zeros(1, np.int64), one, one)
    # The pinned processes fill server 0. Server 1 has no capacity for a PS, but for the worker.
    free = np.array([[5], [2]])
    zero_one = np.array([0, 1])
    log = PackingLog(np.array([2]), np.zeros(2, np.int64), zero_one, 1 - zero_one, np.array([1]))
    roles = np.full(2, PS_ROLE | WORKER_ROLE)
    fits, placements = place_packed_jobs(
        free, roles, jobs, log, pinned, pinned, np.array([0]), False
    )
    assert not fits
    assert log.level.tolist() == [0]
    workers, ps = dense_counts(placements, 1, 2)
    assert workers.tolist() == ps.tolist() == [[1, 0]]
    assert free.tolist() == [[0], [2]]


def test_counts_are_reduced_from_the_smallest_on() -> None:
    for limit, expected in ((9, [3, 1, 4, 1]), (7, [3, 0, 4, 0]), (5, [1, 0, 4, 0]), (0, [0] * 4)):
        assert reduce_to_sum(np.array([3, 1, 4, 1]), limit).tolist() == expected
    assert reduce_to_sum(np.array([2, 1]), -3).tolist() == [0, 0]  # it ends


def packed(
    rng: np.random.Generator, jobs: JobArrays, level: np.ndarray, least: np.ndarray
) -> tuple[PackingLog, PackingLog]:
    """Return the packed rows, with rows that have a minimum level already, and without those."""
    entries = []
    for row in rng.permutation(len(level)).tolist():
        if level[row] > least[row]:
            had = int(least[row])
            workers = int(jobs.worker_counts[row, level[row]])
            ps = int(jobs.ps_counts[row, level[row]])
            if had >= 0:
                workers -= int(jobs.worker_counts[row, had])
                ps -= int(jobs.ps_counts[row, had])
            entries.append((row, workers, ps))
    logs = []
    for some in (entries, [entry for entry in entries if least[entry[0]] < 0]):
        columns = np.array(some, np.int64).reshape(-1, 3).T.copy()
        logs.append(PackingLog(np.array([len(some)]), *columns, level.copy()))
    logs[1].level[least >= 0] = -1
    return logs[0], logs[1]


@pytest.mark.parametrize("rises", [False, True])
@pytest.mark.parametrize("seed", sample(range(40)))
def test_fixed_jobs_stay_and_others_are_placed_independently(seed: int, rises: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, servers, resources = int(rng.integers(2, 9)), int(rng.integers(2, 16)), 2
    kinds = rng.integers(4, 16, (int(rng.integers(1, 4)), resources))
    capacity = kinds[rng.integers(0, len(kinds), servers)]
    roles = server_roles(rng.random(servers) < 0.8, rng.random(servers) < 0.8)
    jobs = random_jobs(rng, rows, resources)
    nobody = Placements(
        *(np.zeros(rows, np.int64) for _ in range(2)), *(np.zeros(0, np.int64),) * 3
    )
    level = np.where(rng.random(rows) < 0.8, rng.integers(0, 3, rows), -1)
    none = np.full(rows, -1)
    log, _ = packed(rng, jobs, level, none)
    _, stood = place_packed_jobs(capacity.copy(), roles, jobs, log, nobody, nobody, none, False)
    on_workers, on_ps = dense_counts(stood, rows, servers)
    # Some running rows are fixed, and some rise: spread ones, to a higher level.
    least = np.where((log.level >= 0) & (rng.random(rows) < 0.6), log.level, -1)
    drawn = np.where(rng.random(rows) < 0.8, rng.integers(0, 3, rows), -1)
    level = np.where(least >= 0, least, drawn)
    if rises:
        level = np.where((least >= 0) & (least < jobs.spread_levels - 1), level + 1, level)
    at = least >= 0
    fixed = stood._replace(size=np.where(at, stood.size, 0))
    for stay in (True, False):
        state = np.random.default_rng(seed)
        log, others = packed(state, jobs, level, least)
        free = capacity.copy()
        whole, found = place_packed_jobs(free, roles, jobs, log, stood, fixed, least, stay)
        workers, ps = dense_counts(found, rows, servers)
        held = np.einsum("js,jr->sr", workers, jobs.worker) + np.einsum("js,jr->sr", ps, jobs.ps)
        assert (held + free == capacity).all()
        assert (free >= 0).all()
        assert (workers[at] >= on_workers[at]).all()
        assert (ps[at] >= on_ps[at]).all()
        if whole or not stay:
            runs = np.flatnonzero(log.level >= 0)
            assert (workers.sum(axis=1)[runs] == jobs.worker_counts[runs, log.level[runs]]).all()
            assert (ps.sum(axis=1)[runs] == jobs.ps_counts[runs, log.level[runs]]).all()
            assert (log.level[at] >= least[at]).all()
        if not rises:
            theirs, their_ps = on_workers * at[:, None], on_ps * at[:, None]
            room = capacity - np.einsum("js,jr->sr", theirs, jobs.worker)
            room -= np.einsum("js,jr->sr", their_ps, jobs.ps)
            same, expected = place_packed_jobs(room, roles, jobs, others, stood, nobody, none, stay)
            some, some_ps = dense_counts(expected, rows, servers)
            assert same == whole
            assert (theirs + some == workers).all()
            assert (their_ps + some_ps == ps).all()
