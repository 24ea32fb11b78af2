"""Jobs as round-based policies see them, and reasons why a job can never be scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Utility, utility_value
from shadowprice.policies.tenants.tenancy import UnitClaim

MICRO = 1_000_000  # units of account in one unit of utility
MAX_UTILITY_MICROS = 2**62  # exclusive limit of any sum of prices or utilities, in units of account


@dataclass(frozen=True, eq=False)
class GangJob:
    """A job as a round sees it."""

    name: str
    tenant: int  # index of the owner
    arrival: int
    worker_type: int
    ps_type: int  # ignored without parameter servers
    counts: Integers  # allowed numbers of workers, increasing
    spread_slots: Integers  # needed with that many workers, by placement (Eq. (1))
    colocated_slots: Integers  # never more
    reach: Integers  # workers on other servers that this many PS can serve, see `workers_servable`
    utility: Callable[[Integers], Floats]  # of durations in slots; non-increasing

    @property
    def uses_ps(self) -> bool:
        """Whether the job trains with parameter servers; then it can't run with none."""
        return self.reach.size > 0 and bool(self.reach[0] < 0)

    def values(self, slots: int) -> Integers:
        """Return the utility, in millionths, of ending before each slot up to ``slots``.

        The clock of the *ideal* revenue starts with the round (line 9 of Algorithm 3), however long
        the job waited before. Entry 0, an end before any slot, is 0 and never used.
        """
        values = np.zeros(slots + 1, np.int64)
        utilities = self.utility(np.arange(1, slots + 1, dtype=np.int64)) * MICRO
        if np.abs(utilities).max(initial=0.0) >= MAX_UTILITY_MICROS:
            raise InputError(f"job {self.name!r} is worth too much to count; scale utilities down")
        values[1:] = np.rint(utilities)
        return values


def workers_servable(
    max_ps: int, worker_bandwidth: int, ps_bandwidth: int, served: bool
) -> Integers:
    """Return the workers elsewhere that each number of parameter servers can serve: (3i).

    The numbers go up to ``max_ps`` on one server; -1 if the job can't have this number. Bandwidths
    are b_w and b_p in bit/s; there is no limit if the job states none (0). ``served`` is whether
    the job trains with parameter servers at all.
    """
    reach = np.full(max_ps + 1, -1, np.int64)
    if not served:
        reach[0] = UNLIMITED
        return reach
    for ps in range(1, max_ps + 1):
        if worker_bandwidth and ps_bandwidth:
            reach[ps] = min(ps * ps_bandwidth // worker_bandwidth, UNLIMITED)
        else:
            reach[ps] = UNLIMITED
    return reach


class _Shifted:
    """A utility whose clock started a number of slots ago."""

    __slots__ = ("_shift", "_utility")

    def __init__(self, utility: Utility, shift: int) -> None:
        self._utility = utility
        self._shift = shift

    def __call__(self, slots: Integers) -> Floats:
        return np.asarray(self._utility.values(slots + self._shift), np.float64)


def gang_job(
    job: Job,
    claim: UnitClaim,
    max_ps: int,
    *,
    remaining: int | None = None,
    restarts: int = 0,
    tenant: int | None = None,
    rigid: bool = False,
    shift: int = 0,
) -> GangJob:
    """Convert a job to the form that rounds use.

    ``max_ps`` is the maximum of parameter servers of its type on one server. ``remaining`` are the
    remaining progress units; None for all. If the job can end within ``restarts`` slots, its
    first slot counts as a restart: that is the length of the longest round, which can't schedule a
    longer job, or 0 if restarts are free. ``tenant`` is its owner's position in the market, if not
    that of the claim. If ``rigid``, it runs only with its maximum number of workers. The clock of
    its utility is ``shift`` slots ahead of the round's.
    """
    first = len(job.worker_counts) - 1 if rigid else 0
    work = job.required if remaining is None else remaining
    counts = np.ascontiguousarray(job.worker_counts[first:])
    spread = _slots(work, job.gains[first:], job.moved_gains[first:], restarts)
    colocated = _slots(
        work, job.internal_gains[first:], job.restart_internal_gains[first:], restarts
    )
    return GangJob(
        name=job.name,
        tenant=claim.tenant if tenant is None else tenant,
        arrival=job.arrival,
        worker_type=claim.worker_type,
        ps_type=claim.ps_type or 0,
        counts=counts,
        spread_slots=spread,
        colocated_slots=np.minimum(colocated, spread),
        reach=workers_servable(
            max_ps, job.worker_bandwidth, job.ps_bandwidth, served=claim.ps_type is not None
        ),
        utility=_Shifted(job.utility, shift),
    )


def _slots(remaining: int, gains: Integers, moved: Integers, restarts: int) -> Integers:
    """Return the slots that ``remaining`` progress units take at each number of workers."""
    plain, with_restart = -(-remaining // gains), -(-(remaining + gains - moved) // gains)
    return np.asarray(np.where(with_restart <= restarts, with_restart, plain), np.int64)


def min_gang_slots(job: GangJob, workers: Integers, ps: Integers) -> tuple[Integers, Integers]:
    """Return how fast each gang size runs on empty servers with these units.

    The first array has the minimum of slots; ``UNLIMITED`` if this many workers can't be placed at
    all. The second has 1 if the minimum requires all processes on one server.
    """
    counts = job.counts
    slots = np.full(counts.size, UNLIMITED, np.int64)
    together = np.zeros(counts.size, np.int64)
    for servers in np.flatnonzero(job.reach >= 0).tolist():
        worker_units = workers[ps >= servers]
        if not worker_units.size:
            continue
        max_units, reach = int(worker_units.max()), int(job.reach[servers])
        spread = (counts <= workers.sum()) & (counts - np.minimum(reach, counts) <= max_units)
        spread &= reach >= 1
        slots = np.where(spread, np.minimum(slots, job.spread_slots), slots)
        faster = (counts <= max_units) & (job.colocated_slots < slots)
        slots = np.where(faster, job.colocated_slots, slots)
        together = np.where(faster, 1, together)
    return slots, together


def infeasibility(
    job: Job, gang: GangJob, workers: Integers, ps: Integers, longest: int, *, own: bool
) -> Refusal | None:
    """Return why no round can ever schedule a job; None if an empty round could.

    ``gang`` is the job on its own clock. The units of its types that rounds can use belong to its
    tenant alone if ``own``. ``longest`` is the length of the longest round.
    """
    slots, _ = min_gang_slots(gang, workers, ps)
    best = int(np.argmin(slots))
    minimum, count = int(slots[best]), int(gang.counts[best])
    where, have, none = "the empty cluster", "has", "no server of the empty cluster"
    if own:
        where, have = "its tenant's own servers", "have"
        none = f"none of {where}"
    if minimum >= UNLIMITED:
        smallest = int(gang.counts[0])
        if smallest > workers.sum():
            total = int(workers.sum())
            message = f"needs {smallest} workers at once, {where} {have} room for {total}"
            return Refusal(RefusalReason.NEVER_FITS, message, bottleneck="places of workers")
        message = (
            f"needs a server whose parameter servers serve its {smallest} workers on other "
            f"servers; {none} can"
        )
        return Refusal(
            RefusalReason.NEVER_FITS,
            message,
            bottleneck="places and bandwidth of parameter servers",
        )
    if minimum > longest:
        return Refusal(
            RefusalReason.TOO_LATE,
            f"takes {minimum} slots at best, with {count} workers; the longest round has {longest}",
            bottleneck="length of the longest round",
            numbers={"slots": float(minimum), "longest_round": float(longest)},
        )
    if gang.values(minimum)[minimum] <= 0:
        return Refusal(
            RefusalReason.NO_VALUE,
            f"its utility is 0 after the {minimum} slots that it takes at best",
            value=utility_value(job.utility, minimum),
            cost=0.0,
            bottleneck="its utility",
        )
    return None
