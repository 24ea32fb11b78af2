"""Values of jobs relative to those of their tenant's other jobs.

Without a budget a stated value costs nothing, so values of different tenants can't be compared. The
relative value of a job is its stated value times a factor: `VALUE_PER_GPU_HOUR`, the rate of the
default utility, divided by the mean value per GPU-hour that the tenant states. If a tenant
multiplies all its values by a constant, its relative values stay as they are. A relative value is
at most that of an `urgent` job with the default utility.

The mean is over the job itself, and the tenant's jobs that are admitted or finished recently.
Refused, cancelled and failed jobs are left out. A job that waits, or arrives at the same time, is
included only if it raises the mean. So jobs that use nothing can't lower it.

Jobs with the default utility keep their value. So do jobs of tenants with a budget, because those
tenants pay.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import gpus_per_worker
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, Status
from shadowprice.core.specs.utilities import PRIORITY_LEVELS, VALUE_PER_GPU_HOUR
from shadowprice.core.utility import Utility, utility_value
from shadowprice.core.wording import quote_for_display

STATED: Final = "stated"
RELATIVE: Final = "relative"
VALUE_MODES: Final = (STATED, RELATIVE)  # how a simulation interprets stated values

AUTO: Final = "auto"
SERVICE_VALUES: Final = (AUTO, *VALUE_MODES)
"""How a service interprets stated values.

With `AUTO` they are relative once there is a tenant. Without tenants, no one can be outbid.
"""

MEMORY_HORIZONS: Final = 2.0
"""Time constant, in horizons, of the decay of a finished job's weight.

Arrivals in the prices of `rolling` decay as fast.
"""

MAX_VALUE_PER_GPU_HOUR: Final = PRIORITY_LEVELS["urgent"].multiple * VALUE_PER_GPU_HOUR
"""Maximum relative value per GPU-hour: that of an `urgent` job with the default utility.

Without it, one inflated job could be worth as much as all of its tenant's other jobs together.
"""

MAX_TENANTS: Final = 1_000  # maximum number of tenants with finished jobs that a service stores

MIN_SHARE_OF_NOMINAL: Final = 1e-3
"""Minimum value of a job, as a share of its utility if it completed on arrival.

If a utility falls to almost 0 before the job can complete, its factor would grow without limit.
"""

MIN_VALUE: Final = 1e-200
"""Minimum utility at arrival of a job whose value is relative; smaller utilities stay as stated.

Every larger value stays a finite positive float when it is scaled.
"""

PRECISION_BITS: Final = 24
"""Significant bits of relative values. Rounding hides floating-point errors of scaled values."""

MAX_BLOCK_JOBS: Final = 256  # maximum number of jobs in a block of `DensestFirst`
_FRACTION_BITS: Final = 1074  # binary digits after the point of the smallest positive float


def to_exact(number: float) -> int:
    """Return a finite float as a multiple of 2^-1074."""
    numerator, denominator = number.as_integer_ratio()  # the denominator is a power of 2
    return numerator << (_FRACTION_BITS + 1 - denominator.bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class SizedJob:
    """Value and GPU-hours of a job in units of 2^-1074; the densest job sorts first."""

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

    def raises_mean(self, value: int, gpu_hours: int) -> bool:
        """Return whether adding this job raises the ratio of two sums, value per GPU-hour."""
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

        Density falls, so once a job doesn't raise the ratio, no later job does. If the last job of
        a block raises the ratio, all jobs of the block do.
        """
        for block in self._blocks:
            last = block.jobs[-1]
            before = value + block.value - last.value, gpu_hours + block.gpu_hours - last.gpu_hours
            if last.raises_mean(*before):
                value, gpu_hours = value + block.value, gpu_hours + block.gpu_hours
                continue
            for job in block.jobs:
                if not job.raises_mean(value, gpu_hours):
                    return value, gpu_hours
                value, gpu_hours = value + job.value, gpu_hours + job.gpu_hours
        return value, gpu_hours


@dataclass(slots=True)
class _TenantSums:
    """Sums of a tenant's admitted jobs, and its waiting jobs."""

    value: int = 0
    gpu_hours: int = 0
    waiting: DensestFirst = field(default_factory=DensestFirst)


@dataclass(frozen=True, slots=True)
class _CountedJob:
    job: Job
    is_admitted: bool
    size: SizedJob


class OpenValues:
    """Sums of the values and GPU-hours of an engine's open jobs by tenant.

    The sums are updated incrementally, because a service has thousands of open jobs. They are
    exact: every finite float is a multiple of 2^-1074, so it is kept as an integer. A sum therefore
    doesn't depend on the order of its terms, and equals a sum recomputed from all jobs.

    ``open_jobs`` changes with the engine. ``changed`` receives the names of jobs that may have
    changed; first it has all open jobs.
    """

    def __init__(self, open_jobs: Mapping[str, JobState], changed: set[str]) -> None:
        self._open_jobs, self._changed = open_jobs, changed
        self._counted: dict[str, _CountedJob] = {}
        self._tenants: defaultdict[str, _TenantSums] = defaultdict(_TenantSums)

    def add_arriving(self, jobs: Iterable[Job], cluster: Cluster) -> None:
        """Count arriving and revised jobs as waiting jobs until the next call."""
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

        ``value`` and ``gpu_hours`` are the sums of finished jobs. The job itself and the admitted
        jobs of its tenant count too, and the waiting ones that raise the mean, the densest first.
        """
        counted = self._counted[name]
        own, tenant = counted.size, self._tenants[counted.job.tenant or ""]
        tenant.waiting.remove(own)  # it is in the sums below, whether or not it raises the mean
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
        value, gpu_hours = _size(job, cluster)
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


def check_values(text: str, location: str, modes: Sequence[str] = VALUE_MODES) -> None:
    """Raise InputError unless a text is one of the modes."""
    if text not in modes:
        expected = f"{', '.join(modes[:-1])} or {modes[-1]}"
        problem = f"expected {expected}, got {quote_for_display(text)}"
        raise InputError(Fault(location, problem, f"write {modes[0]}"))


@dataclass(frozen=True, slots=True)
class ValueSum:
    """Values and GPU-hours of a tenant's finished jobs, decayed to ``slot``."""

    value: float = 0.0
    gpu_hours: float = 0.0
    slot: int = 0

    def aged(self, slot: int, horizon: int) -> ValueSum:
        """Return the sum decayed to a later slot; it never decays backwards."""
        weight = math.exp(-max(0, slot - self.slot) / (MEMORY_HORIZONS * horizon))
        return ValueSum(self.value * weight, self.gpu_hours * weight, max(slot, self.slot))

    def plus(self, value: float, gpu_hours: float) -> ValueSum:
        """Return the sum with another job."""
        return replace(self, value=self.value + value, gpu_hours=self.gpu_hours + gpu_hours)


class RelativeValues:
    """Sums of finished jobs by tenant, and the relative values that follow from them.

    The key of jobs without a tenant is the empty string.
    """

    def __init__(self, finished: Mapping[str, ValueSum] = MappingProxyType({})) -> None:
        self.finished = dict(finished)

    @classmethod
    def from_record(cls, text: str | None) -> RelativeValues:
        """Restore values from a result of `record`; ``text`` is None if nothing was recorded."""
        sums = json.loads(text or "{}")
        return cls({tenant: ValueSum(*values) for tenant, values in sums.items()})

    def record(self) -> str:
        """Return the values of finished jobs as text, to store."""
        return json.dumps({name: astuple(values) for name, values in self.finished.items()})

    def weigh(
        self, jobs: Sequence[Job], open_values: OpenValues, cluster: Cluster, slot: int
    ) -> tuple[Job, ...]:
        """Return jobs that arrive or are revised together, with their relative utilities."""
        open_values.add_arriving(jobs, cluster)
        weighed = []
        for job in jobs:
            if not is_relative(job):
                weighed.append(job)
                continue
            past = self.finished.get(job.tenant or "", ValueSum()).aged(slot, cluster.horizon)
            mean = open_values.mean_with(job.name, past.value, past.gpu_hours)
            value, gpu_hours = _size(job, cluster)
            factor = min(VALUE_PER_GPU_HOUR / mean, _max_factor(value, gpu_hours))
            weighed.append(scale_utility(job, factor))
        return tuple(weighed)

    def sum_with(self, job: Job, cluster: Cluster, slot: int) -> ValueSum:
        """Return the sum of a job's tenant with the finished job; the caller stores it."""
        past = self.finished.get(job.tenant or "", ValueSum())
        return past.aged(slot, cluster.horizon).plus(*_size(job, cluster))


def _size(job: Job, cluster: Cluster) -> tuple[float, float]:
    """Return a job's value and GPU-hours; zeros if its value isn't relative."""
    value = _value(job)
    return (value, _gpu_hours(job, cluster)) if value else (0.0, 0.0)


def is_relative(job: Job) -> bool:
    """Return whether a job's value counts relative to those of its tenant's other jobs."""
    return _value(job) > 0


def scale_utility(job: Job, factor: float) -> Job:
    """Return the job with its stated utility times a factor as its relative utility."""
    stated = job.earned_utility
    return replace(job, utility=_round_utility(stated.scaled(factor)), stated_utility=stated)


def cap_utility(job: Job, cluster: Cluster) -> Job:
    """Return a job whose speed was measured, with its relative utility capped for its GPU-hours."""
    if job.stated_utility is None:
        return job
    limit = _max_factor(_value(job), _gpu_hours(job, cluster))
    return scale_utility(job, limit) if utility_factor(job) > limit else job


def utility_factor(job: Job) -> float:
    """Return the factor from a job's stated utility to its relative one; 1 if none applies."""
    if job.stated_utility is None:
        return 1.0
    return utility_value(job.utility, 0) / utility_value(job.stated_utility, 0)


def _max_factor(value: float, gpu_hours: float) -> float:
    """Return the factor at which a job's value per GPU-hour is `MAX_VALUE_PER_GPU_HOUR`."""
    return MAX_VALUE_PER_GPU_HOUR * gpu_hours / value


def _value(job: Job) -> float:
    """Return a job's stated utility at its earliest completion; 0 if its value isn't relative."""
    if job.points is not None or job.has_default_utility:
        return 0.0
    nominal = utility_value(job.earned_utility, 0)
    if nominal < MIN_VALUE:
        return 0.0
    best = utility_value(job.earned_utility, job.min_slots_colocated - 1)
    return max(best, MIN_SHARE_OF_NOMINAL * nominal)


def _gpu_hours(job: Job, cluster: Cluster) -> float:
    demand = zip(cluster.resources, job.worker.tolist(), strict=False)
    return job.worker_slots * float(cluster.slot_seconds) / 3600 * gpus_per_worker(demand)


def _round_utility(utility: Utility) -> Utility:
    changes = {}
    for name in ("value", "slope", "scale"):  # the parameters that `Utility.scaled` changes
        if any(parameter.name == name for parameter in fields(utility)):  # type: ignore[arg-type]
            mantissa, exponent = math.frexp(getattr(utility, name))
            scaled = round(math.ldexp(mantissa, PRECISION_BITS))
            changes[name] = math.ldexp(scaled, exponent - PRECISION_BITS)
    return replace(utility, **changes)  # type: ignore[type-var]
