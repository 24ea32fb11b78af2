"""Random jobs for placement kernels."""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.reactive.worth import Worths
from shadowprice.kernels.replanning.placement import (
    Placements,
)
from shadowprice.kernels.replanning.plans import JobArrays


def random_jobs(rng: np.random.Generator, rows: int, resources: int) -> JobArrays:
    """Return the rows of jobs that may run at three levels, some of them whole.

    Some have parameter servers.
    """
    workers = np.sort(rng.choice(np.arange(1, 9), (rows, 3)), axis=1)
    ps = rng.integers(0, 4, (rows, resources)) * (rng.random(rows) < 0.6)[:, None]
    none, wide = np.zeros(rows, np.int64), np.zeros((rows, 3), np.int64)
    return JobArrays(
        worker=rng.integers(0, 4, (rows, resources)) + np.eye(1, resources, dtype=np.int64),
        ps=ps,
        levels=np.full(rows, 3),
        spread_levels=rng.integers(1, 4, rows),
        worker_counts=workers,
        ps_counts=-(-workers // 2) * (ps.sum(axis=1) > 0)[:, None],
        gains=workers,
        counted_gains=wide,
        first_start_free=np.zeros(rows, np.bool_),
        hull_size=none,
        spread_hull_size=none,
        hull=wide,
        remaining=none,
        arrival=none,
        last_slot=none,
        tenant=none,
        worths=Worths(
            none, np.zeros((rows, 3)), np.zeros((rows, 0), np.int64), np.zeros((rows, 0))
        ),
    )


def dense_counts(stood: Placements, rows: int, servers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return workers and parameter servers by row and server."""
    workers, ps = np.zeros((rows, servers), np.int64), np.zeros((rows, servers), np.int64)
    for row in range(rows):
        part = slice(int(stood.first[row]), int(stood.first[row] + stood.size[row]))
        assert (np.diff(stood.server[part]) > 0).all()
        workers[row, stood.server[part]] = stood.workers[part]
        ps[row, stood.server[part]] = stood.ps[part]
    return workers, ps
