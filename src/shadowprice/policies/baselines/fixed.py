"""Fixed worker count of a job, for baselines that don't scale jobs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import numpy as np

from shadowprice.core.job import Job
from shadowprice.policies.baselines.parameters import MAX_WORKERS, FixedWorkers


def fixed_workers(setting: FixedWorkers, seed: int) -> Callable[[Job], int]:
    """Return a function from a job to its number of workers.

    A drawn count depends only on the seed and the job's name, so other jobs and their order don't
    change it. The function can be pickled, as a part of the policy state.
    """
    if setting == "max":
        return _max_workers
    if setting == "min":
        return _min_workers
    if setting == "drawn":
        return partial(_random_workers, key=(seed % 2**64).to_bytes(8, "little"))
    return partial(_nearest, wanted=setting)


def _max_workers(job: Job) -> int:
    return job.max_workers


def _min_workers(job: Job) -> int:
    return int(job.worker_counts[0])


def _nearest(job: Job, wanted: int) -> int:
    # Most jobs allow a contiguous range, which needs no search.
    minimum, maximum = int(job.worker_counts[0]), job.max_workers
    if maximum - minimum + 1 == len(job.worker_counts) or wanted <= minimum or wanted >= maximum:
        return min(max(wanted, minimum), maximum)
    return int(job.worker_counts[int(np.abs(job.worker_counts - wanted).argmin())])


def _random_workers(job: Job, key: bytes) -> int:
    counts = job.worker_counts
    allowed = len(counts)
    if int(counts[-1]) > MAX_WORKERS:
        allowed = max(1, int(np.searchsorted(counts, MAX_WORKERS, side="right")))
    digest = blake2b(job.name.encode(), digest_size=8, key=key).digest()
    return int(counts[int.from_bytes(digest, "little") % allowed])
