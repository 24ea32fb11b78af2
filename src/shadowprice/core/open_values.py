"""Sums of the values and GPU-hours of open jobs by tenant, which arriving jobs are compared with.

A service has thousands of open jobs, so the sums follow the jobs that change instead of going
through all of them. They are exact: every finite float is a multiple of 2^-1074, so it is kept as
an integer. A sum therefore doesn't depend on the order of its terms, and equals that over all jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, Status

MAX_BLOCK_JOBS: Final = 256  # jobs in a block of `DensestFirst`, above which it is split

_FRACTION_BITS: Final = 1074  # binary digits after the point of the smallest positive float


def to_exact(number: float) -> int:
    """Return a finite float as a multiple of 2^-1074."""
    numerator, denominator = number.as_integer_ratio()
    return numerator << (_FRACTION_BITS + 1 - denominator.bit_length())


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class SizedJob:
    """Value and GPU-hours of a job, exact; the densest is first in order."""

    name: str
    value: int
    gpu_hours: int
    density: float
    """Value per GPU-hour, rounded. Rounding keeps the order, so exact numbers only decide ties."""

    @classmethod
    def of(cls, name: str, value: float, gpu_hours: float) -> SizedJob:
        """Return a job's size."""
        return cls(name, to_exact(value), to_exact(gpu_hours), value / gpu_hours)

    def __lt__(self, other: SizedJob) -> bool:
        """Return whether this job is denser."""
        if self.density != other.density:
            return self.density > other.density
        cross, other_cross = self.value * other.gpu_hours, other.value * self.gpu_hours
        return (-cross, self.name) < (-other_cross, other.name)

    def raises(self, value: int, gpu_hours: int) -> bool:
        """Return whether this job raises a mean value per GPU-hour."""
        return self.value * gpu_hours > value * self.gpu_hours


@dataclass(slots=True)
class _Block:
    """Consecutive jobs, and their sums."""

    jobs: list[SizedJob]
    value: int
    gpu_hours: int

    @classmethod
    def of(cls, jobs: list[SizedJob]) -> _Block:
        return cls(jobs, sum(job.value for job in jobs), sum(job.gpu_hours for job in jobs))


def _last_job(block: _Block) -> SizedJob:
    return block.jobs[-1]


class DensestFirst:
    """Jobs in order of their value per GPU-hour, in blocks with sums."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, job: SizedJob) -> None:
        """Add a job."""
        if not self._blocks:
            self._blocks.append(_Block.of([job]))
            return
        index = min(bisect_left(self._blocks, job, key=_last_job), len(self._blocks) - 1)
        block = self._blocks[index]
        insort(block.jobs, job)
        block.value, block.gpu_hours = block.value + job.value, block.gpu_hours + job.gpu_hours
        if len(block.jobs) > MAX_BLOCK_JOBS:
            half = len(block.jobs) // 2
            parts = block.jobs[:half], block.jobs[half:]
            self._blocks[index : index + 1] = map(_Block.of, parts)

    def remove(self, job: SizedJob) -> None:
        """Remove a job that was added."""
        index = bisect_left(self._blocks, job, key=_last_job)
        block = self._blocks[index]
        del block.jobs[bisect_left(block.jobs, job)]
        block.value, block.gpu_hours = block.value - job.value, block.gpu_hours - job.gpu_hours
        if not block.jobs:
            del self._blocks[index]

    def add_while_raising(self, value: int, gpu_hours: int) -> tuple[int, int]:
        """Add jobs to sums, the densest first, until one doesn't raise their ratio.

        A job after one that doesn't raise it doesn't raise it either. So if the last job of a block
        raises it, all jobs of the block do.
        """
        for block in self._blocks:
            last = block.jobs[-1]
            before = value + block.value - last.value, gpu_hours + block.gpu_hours - last.gpu_hours
            if last.raises(*before):
                value, gpu_hours = value + block.value, gpu_hours + block.gpu_hours
                continue
            for job in block.jobs:
                if not job.raises(value, gpu_hours):
                    return value, gpu_hours
                value, gpu_hours = value + job.value, gpu_hours + job.gpu_hours
        return value, gpu_hours


@dataclass(slots=True)
class _TenantSums:
    value: int = 0
    gpu_hours: int = 0
    waiting: DensestFirst = field(default_factory=DensestFirst)


@dataclass(frozen=True, slots=True)
class _CountedJob:
    job: Job
    is_admitted: bool
    size: SizedJob


class OpenValues:
    """Sums over open jobs by tenant.

    ``open_jobs`` changes with the engine. ``changed`` receives the names of jobs that may have
    changed; first it has all open jobs. ``size`` returns a job's value and GPU-hours on a cluster;
    a value of 0 if it isn't compared.
    """

    def __init__(
        self,
        open_jobs: Mapping[str, JobState],
        changed: set[str],
        size: Callable[[Job, Cluster], tuple[float, float]],
    ) -> None:
        self._open_jobs, self._changed, self._size = open_jobs, changed, size
        self._counted: dict[str, _CountedJob] = {}
        self._tenants: defaultdict[str, _TenantSums] = defaultdict(_TenantSums)

    def add_arriving(self, jobs: Iterable[Job], cluster: Cluster) -> None:
        """Count jobs that arrive or are revised as waiting, until the next call."""
        for name in self._changed:
            state = self._open_jobs.get(name)
            if state is None:
                self._remove(name)
            else:
                self._count(state.job, cluster, is_admitted=state.status is Status.ADMITTED)
        self._changed.clear()
        for job in jobs:
            self._count(job, cluster, is_admitted=False)
            self._changed.add(job.name)

    def tenants(self) -> set[str]:
        """Return the tenants that have a job whose value is compared."""
        return {name for name, sums in self._tenants.items() if sums.value or sums.waiting}

    def mean_with(self, name: str, value: float, gpu_hours: float) -> float:
        """Return the mean value per GPU-hour that an arriving job is compared with.

        ``value`` and ``gpu_hours`` are sums that count besides. The job itself and the admitted
        jobs of its tenant count too, and the waiting ones that raise the mean, the densest first.
        """
        counted = self._counted[name]
        own, tenant = counted.size, self._tenants[counted.job.tenant or ""]
        tenant.waiting.remove(own)
        total = tenant.waiting.add_while_raising(
            to_exact(value) + tenant.value + own.value,
            to_exact(gpu_hours) + tenant.gpu_hours + own.gpu_hours,
        )
        tenant.waiting.add(own)
        return total[0] / total[1]

    def _count(self, job: Job, cluster: Cluster, *, is_admitted: bool) -> None:
        counted = self._counted.get(job.name)
        if counted is not None and counted.job is job and counted.is_admitted == is_admitted:
            return
        self._remove(job.name)
        value, gpu_hours = self._size(job, cluster)
        if not value:
            return
        size, tenant = SizedJob.of(job.name, value, gpu_hours), self._tenants[job.tenant or ""]
        self._counted[job.name] = _CountedJob(job, is_admitted, size)
        if is_admitted:
            tenant.value += size.value
            tenant.gpu_hours += size.gpu_hours
        else:
            tenant.waiting.add(size)

    def _remove(self, name: str) -> None:
        counted = self._counted.pop(name, None)
        if counted is None:
            return
        size, tenant = counted.size, self._tenants[counted.job.tenant or ""]
        if counted.is_admitted:
            tenant.value -= size.value
            tenant.gpu_hours -= size.gpu_hours
        else:
            tenant.waiting.remove(size)
