"""Open jobs as rows of a table that caches properties of jobs that left."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shadowprice.core.job import Job, StepModel
from shadowprice.policies.reactive.table import JobTable
from tests.support.workloads import make_cluster, make_job

CLUSTER = make_cluster()


def table_job(number: int, workers: int, cpu: int) -> Job:
    return make_job(
        CLUSTER,
        f"job-{number}",
        chunks=workers,
        speed=StepModel(Fraction(60)),
        worker_range=(1, workers),
        worker_amounts={"cpu": cpu},
        ps_amounts=None,
    )


def check_rows(table: JobTable) -> None:
    """Check that rows have their jobs' counts, and one class if their demands are equal too."""
    classes: dict[tuple[bytes, int], int] = {}
    for row in table.rows.values():
        job, first = table.jobs[row], table.first[row]
        assert job is not None
        counts = table.counts[first : first + table.choices[row]]
        assert np.array_equal(counts, job.worker_counts)
        kind = (job.worker.tobytes(), job.max_workers)
        assert classes.setdefault(kind, int(table.alike[row])) == table.alike[row]
    assert len(set(classes.values())) == len(classes)


def test_shapes_of_jobs_that_left_are_forgotten() -> None:
    table = JobTable(CLUSTER)
    for number in range(12_000):
        # Demands are all different; worker counts add up to millions.
        table.add(table_job(number, 1 + number % 2000, 1 + number))
        if number >= 10:
            table.remove(f"job-{number - 10}")
        if number % 1500 == 0:
            check_rows(table)
        assert len(table._alike) < 5000
        assert len(table.counts) < 300_000
    check_rows(table)


def test_shapes_of_open_jobs_are_kept() -> None:
    table = JobTable(CLUSTER)
    for number in range(6000):
        table.add(table_job(number, 1 + number % 7, 1 + number % 5000))
    check_rows(table)
