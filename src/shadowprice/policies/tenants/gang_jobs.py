"""Jobs as round-based policies see them, and reasons why a job can never be scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Utility, utility_value
from shadowprice.policies.tenants.tenancy import UnitClaim

Integers = npt.NDArray[np.int64]


MICRO = 1_000_000
"""Units of account in one unit of utility."""

MAX_UTILITY_MICROS = 2**62
"""Exclusive limit of any sum of prices or utilities, in units of account."""


@dataclass(frozen=True, eq=False)
class GangJob:
    """A job as a round sees it.

    Parameters
    ----------
    name : str
        Unique name.
    tenant : int
        Index of the owner.
    arrival : int
        Arrival slot; jobs are served by arrival, then name.
    worker_type, ps_type : int
        Unit types of its processes; ``ps_type`` is ignored without parameter servers.
    counts : int64, shape (choices,)
        Allowed numbers of workers, increasing.
    spread_slots, colocated_slots : int64, shape (choices,)
        Slots needed with that many workers, by placement (Eq. (1)); co-located is never slower.
    reach : int64, shape (most parameter servers on a server + 1,)
        Workers on other servers that this many parameter servers can serve, see `workers_servable`.
    utility : callable
        From durations in slots (int64 array) to utilities (float64 array), non-increasing.
    """

    name: str
    tenant: int
    arrival: int
    worker_type: int
    ps_type: int
    counts: Integers
    spread_slots: Integers
    colocated_slots: Integers
    reach: Integers
    utility: Callable[[Integers], npt.NDArray[np.float64]]

    def values(self, slots: int) -> Integers:
        """Return the utility, in millionths, of ending before each slot up to ``slots``.

        The clock of the *ideal* revenue starts with the round (line 9 of Algorithm 3), however long
        the job waited before.

        Returns
        -------
        int64, shape (slots + 1,)
            Entry 0, an end before any slot, is 0 and never used.
        """
        values = np.zeros(slots + 1, np.int64)
        utilities = self.utility(np.arange(1, slots + 1, dtype=np.int64)) * MICRO
        if np.abs(utilities).max(initial=0.0) >= MAX_UTILITY_MICROS:
            raise InputError(f"job {self.name!r} is worth too much to count; scale utilities down")
        values[1:] = np.rint(utilities)
        return values


def workers_servable(
    most_ps: int, worker_bandwidth: int, ps_bandwidth: int, served: bool
) -> Integers:
    """Return the workers elsewhere that each number of parameter servers can serve: (3i).

    Parameters
    ----------
    most_ps : int
        Maximum of parameter servers on one server.
    worker_bandwidth, ps_bandwidth : int
        b_w and b_p in bit/s; 0 if the job states none, and then there is no limit.
    served : bool
        Whether the job trains with parameter servers at all.

    Returns
    -------
    int64, shape (most_ps + 1,)
        -1 if the job can't have this number.
    """
    reach = np.full(most_ps + 1, -1, np.int64)
    if not served:
        reach[0] = UNLIMITED
        return reach
    for ps in range(1, most_ps + 1):
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

    def __call__(self, slots: Integers) -> npt.NDArray[np.float64]:
        return np.asarray(self._utility.values(slots + self._shift), np.float64)


def gang_job(
    job: Job,
    claim: UnitClaim,
    most_ps: int,
    *,
    remaining: int | None = None,
    restarts: int = 0,
    tenant: int | None = None,
    rigid: bool = False,
    shift: int = 0,
) -> GangJob:
    """Convert a job to the form that rounds use.

    Parameters
    ----------
    job : Job
        The job.
    claim : Claim
        Its owner and unit types.
    most_ps : int
        Maximum of parameter servers of its type on one server.
    remaining : int, optional
        Progress units still to make; all of them by default.
    restarts : int
        If the job can end within this number of slots, its first slot counts as a restart. That is
        the length of the longest round, which can't schedule a longer job. 0 if restarts are free.
    tenant : int, optional
        Its owner's position in the market, if not that of the claim.
    rigid : bool
        Whether it runs only with its maximum number of workers.
    shift : int
        Slots by which the clock of its utility is ahead of the round's.
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
            most_ps, job.worker_bandwidth, job.ps_bandwidth, served=claim.ps_type is not None
        ),
        utility=_Shifted(job.utility, shift),
    )


def _slots(left: int, gains: Integers, moved: Integers, restarts: int) -> Integers:
    """Return the slots that ``left`` progress units take at each number of workers."""
    plain, with_restart = -(-left // gains), -(-(left + gains - moved) // gains)
    return np.asarray(np.where(with_restart <= restarts, with_restart, plain), np.int64)


def fewest_slots(job: GangJob, workers: Integers, ps: Integers) -> tuple[Integers, Integers]:
    """Return how fast each gang size runs on empty servers.

    Parameters
    ----------
    job : GangJob
        The job.
    workers, ps : int64, shape (servers,)
        Units of its types on each server.

    Returns
    -------
    slots : int64, shape (choices,)
        Minimum of slots; ``UNLIMITED`` if this many workers can't be placed at all.
    colocated : int64, shape (choices,)
        1 if the minimum requires all processes on one server.
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

    Parameters
    ----------
    job : Job
        The job.
    gang : GangJob
        The job as rounds see it, on its own clock.
    workers, ps : int64, shape (servers,)
        Units of its types that rounds can use.
    longest : int
        Slots of the longest round.
    own : bool
        Whether these units belong to its tenant alone.
    """
    slots, _ = fewest_slots(gang, workers, ps)
    best = int(np.argmin(slots))
    minimum, count = int(slots[best]), int(gang.counts[best])
    where = "its tenant's own servers" if own else "the empty cluster"
    if minimum >= UNLIMITED:
        smallest = int(gang.counts[0])
        if smallest > workers.sum():
            message = (
                f"needs {smallest} workers at once, {where} have room for {int(workers.sum())}"
            )
            message = message.replace("cluster have", "cluster has")
            return Refusal(RefusalReason.NEVER_FITS, message, bottleneck="places of workers")
        message = (
            f"needs a server whose parameter servers carry its workers elsewhere, with {smallest} "
            f"workers; {where.replace('the empty cluster', 'no server of the empty cluster')} can"
        )
        if own:
            message = message.replace(f"{where} can", f"none of {where} can")
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
            f"is worth nothing after the {minimum} slots that it takes at best",
            value=utility_value(job.utility, minimum),
            cost=0.0,
            bottleneck="its utility",
        )
    return None
