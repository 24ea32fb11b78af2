"""DRF's progressive filling by Algorithm 1, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job


def useful(job: Job) -> list[int]:
    """Numbers of workers that gain more than every smaller one."""
    best, counts = 0, []
    for count, gain in zip(job.worker_counts.tolist(), job.gains.tolist(), strict=True):
        if gain > best:
            best = gain
            counts.append(count)
    return counts


def progressive_filling(cluster: Cluster, jobs: list[Job]) -> list[int]:
    """Return the workers of each job by Algorithm 1, on one server for each role."""
    pools = [cluster.capacity[index].tolist() for index in range(2)]
    total = [sum(row) if max(row) < UNLIMITED else 0 for row in zip(*pools, strict=True)]
    counts = [0] * len(jobs)
    shares = [Fraction(0)] * len(jobs)
    active = set(range(len(jobs)))

    def used(at: int, workers: int) -> tuple[list[int], list[int]]:
        one = jobs[at]
        servers = one.ps_needed(workers)
        ps = [0] * len(total) if one.ps is None else one.ps.tolist()
        return [workers * need for need in one.worker.tolist()], [servers * need for need in ps]

    while active:
        at = min(active, key=lambda one: (shares[one], one))
        larger = [count for count in useful(jobs[at]) if count > counts[at]]
        trial = list(counts)
        if larger:
            trial[at] = larger[0]
        sums = [
            [
                sum(column)
                for column in zip(*(used(k, trial[k])[pool] for k in range(len(jobs))), strict=True)
            ]
            for pool in range(2)
        ]
        fits = all(
            need <= have
            for needs, pool in zip(sums, pools, strict=True)
            for need, have in zip(needs, pool, strict=True)
        )
        if not larger or not fits:
            active.discard(at)
            continue
        counts = trial
        worker, ps = used(at, counts[at])
        shares[at] = max(
            Fraction(a + b, whole) for a, b, whole in zip(worker, ps, total, strict=True) if whole
        )
    return counts
