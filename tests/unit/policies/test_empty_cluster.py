"""What fits on the empty cluster, for policies that place jobs round robin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job, StepModel
from shadowprice.policies.reactive.free_capacity import EmptyCluster, FreeCapacity
from tests.support.workloads import make_cluster, make_job, random_job


def wide_job(cluster: Cluster, min_workers: int) -> Job:
    return make_job(
        cluster,
        "wide",
        chunks=10_000,
        speed=StepModel(Fraction(60)),
        worker_range=(min_workers, 10_000),
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
    )


@pytest.mark.parametrize(("min_workers", "workers"), [(1, 12), (13, 0)])
def test_counts_above_the_capacity_are_not_tried(min_workers: int, workers: int) -> None:
    cluster = make_cluster(3, 0)
    empty = EmptyCluster(cluster)
    assert empty.workers(wide_job(cluster, min_workers), 10_000) == workers
    # Trying each of 9,000 counts took 12 seconds on 100 servers.
    assert len(empty._cached_fits) <= 2


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_count_that_can_be_placed_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(*rng.integers(0, 3, 2).tolist(), 1 + int(rng.integers(0, 2)))
    empty = EmptyCluster(cluster)
    for number in range(10):
        job = random_job(cluster, rng, f"job-{number}")
        wanted = int(rng.choice(job.worker_counts))
        fitting = [
            count
            for count in job.worker_counts.tolist()
            if count <= wanted and FreeCapacity(cluster).place(job, count) is not None
        ]
        assert empty.workers(job, wanted) == max(fitting, default=0)
