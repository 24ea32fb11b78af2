"""Measured restart costs: the time that jobs lose when their placement changes.

A job reports how long it took to save, to start and to do its first step (`jobs.changes`). The
measured cost replaces the cost that the job file or the cluster file states.

A new job has no measurements, so its cost is estimated from earlier jobs of its tenant. A stated
cost is multiplied by the median ratio of their measured to their stated costs, but never reduced.
Without a stated cost, the estimate is the median of their measured costs.

A job can report any cost. So reported costs are only used for its own tenant, and capped at the
time that the service itself observed.

A first start isn't a restart, so the job doesn't report its cost. The service derives the cost from
the first report. It only enters the ratios: how long other jobs first load their data says little
about a job without a stated cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import median
from types import MappingProxyType
from typing import Final

from shadowprice.core.job import Job

CHANGE_METRICS: Final = ("change_checkpoint", "change_start", "change_first_step")
"""Metrics for the parts of a restart, in seconds."""
DOWNTIME_METRIC: Final = "change_away"  # seconds between generations; no cost of a paused job
SAMPLES_PER_JOB: Final = 5  # number of a job's newest restarts that determine its cost
MIN_RELATIVE_DEVIATION: Final = 0.1  # of measured from estimated cost, below which it isn't revised
COST_STEPS_PER_SLOT: Final = 100  # costs are rounded up to whole steps; one step doesn't matter
SAMPLES_PER_TENANT: Final = 20  # newest measurements, for the estimate of new jobs
MAX_TENANTS: Final = 1_000  # the tenant measured longest ago is dropped first
MIN_SAMPLES: Final = 3  # minimum number of measurements for an estimate


@dataclass(slots=True)
class _Measured:
    generation: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_PER_JOB))


@dataclass(slots=True)
class _TenantCosts:
    """Newest costs of a tenant's jobs in seconds, and ratios of measured to stated costs."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_PER_TENANT))
    factors: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_PER_TENANT))


class RestartCostEstimator:
    """Measured costs: by job in memory only, and by tenant as `record` stores them."""

    def __init__(
        self, stored: Mapping[str, Mapping[str, Iterable[float]]] = MappingProxyType({})
    ) -> None:
        self._measured: dict[str, _Measured] = {}
        self._tenants: dict[str, _TenantCosts] = {}
        for tenant, costs in stored.items():
            restored = self._tenants[tenant] = _TenantCosts()
            restored.seconds.extend(costs["seconds"])
            restored.factors.extend(costs["factors"])

    def record(self) -> dict[str, dict[str, list[float]]]:
        """Return the costs to store, by tenant; the key of jobs without a tenant is empty."""
        return {
            tenant: {"seconds": list(costs.seconds), "factors": list(costs.factors)}
            for tenant, costs in self._tenants.items()
        }

    def estimate(
        self, tenant: str | None, stated: Fraction | None, slot_seconds: float
    ) -> Fraction:
        """Estimate the cost of a new job; both it and the ``stated`` cost are shares of a slot."""
        costs = self._tenants.get(tenant or "", _TenantCosts())
        if stated is None:
            has_enough = len(costs.seconds) >= MIN_SAMPLES
            return _share(median(costs.seconds), slot_seconds) if has_enough else Fraction(0)
        if len(costs.factors) < MIN_SAMPLES:
            return stated
        factor = median(costs.factors)
        # Never below the stated cost, which may allow for worse cases than the measured ones.
        if factor <= 1.0 + MIN_RELATIVE_DEVIATION:
            return stated
        return max(stated, _share(float(stated) * slot_seconds * factor, slot_seconds))

    def record_first_start(self, tenant: str | None, seconds: float, stated: float) -> None:
        """Record the measured and the stated cost of a first start, in seconds; 0 if not stated."""
        if stated:
            self._tenant_costs(tenant).factors.append(seconds / stated)

    def note(
        self,
        name: str,
        tenant: str | None,
        generation: int,
        metrics: Mapping[str, float],
        *,
        resized: bool,
        observed: Callable[[], float],
        stated: Callable[[], float] = lambda: 0.0,
    ) -> bool:
        """Record the restart cost that a generation reports; return whether it is new.

        The cost of every generation except the first is recorded once. If ``resized``, the job was
        resized without a pause, so that the time between the generations counts. ``observed``
        returns the maximum cost that the service's own observations allow, and ``stated`` the
        stated cost, or 0. Both are in seconds, and queried only for a new measurement.
        """
        if generation < 2 or not is_restart(metrics):
            return False
        measured = self._measured.setdefault(name, _Measured())
        if generation <= measured.generation:
            return False
        measured.generation = generation
        away = max(0.0, metrics.get(DOWNTIME_METRIC, 0.0)) if resized else 0.0
        seconds = min(sum(metrics[part] for part in CHANGE_METRICS) + away, max(0.0, observed()))
        measured.seconds.append(seconds)
        self._tenant_costs(tenant).seconds.append(seconds)
        self.record_first_start(tenant, seconds, stated())
        return True

    def _tenant_costs(self, tenant: str | None) -> _TenantCosts:
        """Return a tenant's costs, and make the tenant the last to be dropped."""
        costs = self._tenants.pop(tenant or "", None) or _TenantCosts()
        self._tenants[tenant or ""] = costs
        while len(self._tenants) > MAX_TENANTS:
            del self._tenants[next(iter(self._tenants))]
        return costs

    def revise(self, job: Job, slot_seconds: float) -> Job | None:
        """Return the job with its measured restart cost; None if it hardly differs."""
        measured = self._measured.get(job.name)
        if measured is None or not measured.seconds:
            return None
        restart = _share(median(measured.seconds), slot_seconds)
        difference = abs(restart - job.restart)
        if difference <= max(
            Fraction(1, COST_STEPS_PER_SLOT), job.restart * Fraction(MIN_RELATIVE_DEVIATION)
        ):
            return None
        return replace(job, restart=restart)

    def remove(self, name: str) -> None:
        """Remove the measurements of a job."""
        self._measured.pop(name, None)


def is_restart(metrics: Mapping[str, float]) -> bool:
    """Return whether the metrics of a report include all parts of a restart."""
    return all(metrics.get(part, -1.0) >= 0.0 for part in CHANGE_METRICS)


def _share(seconds: float, slot_seconds: float) -> Fraction:
    """Return seconds as a share of a slot, rounded up so that promises are kept."""
    return Fraction(
        math.ceil(min(1.0, seconds / slot_seconds) * COST_STEPS_PER_SLOT), COST_STEPS_PER_SLOT
    )
