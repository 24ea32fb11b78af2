"""Jobs as rounds see them, and why one can never be scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import Utility, utility_value
from shadowprice.policies.tenants.tenancy import Claim

Integers = npt.NDArray[np.int64]


MICRO = 1_000_000
"""Units of account in one unit of utility."""

LARGEST = 2**62
"""No sum of prices or utilities may reach this, in units of account."""


@dataclass(frozen=True, eq=False)
class GangJob:
    """A job as a round sees it.

    Parameters
    ----------
    name : str
        Unique name.
    tenant : int
        Owner.
    arrival : int
        Arrival slot; with the name, the order of service.
    worker_type, ps_type : int
        Types of the places it uses; ``ps_type`` is ignored without parameter servers.
    counts : int64, shape (choices,)
        Numbers of workers it may run with, increasing.
    spread_slots, colocated_slots : int64, shape (choices,)
        Slots it needs with that many, by placement (Eq. (1)); colocated is never slower.
    reach : int64, shape (most parameter servers on a server + 1,)
        Workers elsewhere that so many parameter servers serve, see `reach_of`.
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

        The clock of the *ideal* revenue starts with the round (line 9 of Algorithm 3), whatever
        the job has waited before.

        Returns
        -------
        int64, shape (slots + 1,)
            Entry 0, an end before any slot, is 0 and never asked for.
        """
        values = np.zeros(slots + 1, np.int64)
        utilities = self.utility(np.arange(1, slots + 1, dtype=np.int64)) * MICRO
        if np.abs(utilities).max(initial=0.0) >= LARGEST:
            raise InputError(f"job {self.name!r} is worth too much to count; scale utilities down")
        values[1:] = np.rint(utilities)
        return values


def reach_of(most_ps: int, worker_bandwidth: int, ps_bandwidth: int, served: bool) -> Integers:
    """Return how many workers elsewhere each number of parameter servers can serve: (3i).

    Parameters
    ----------
    most_ps : int
        Most parameter servers on one server.
    worker_bandwidth, ps_bandwidth : int
        b_w and b_p in bit/s; 0 where the job names none, and nothing then binds.
    served : bool
        Whether the job trains with parameter servers at all.

    Returns
    -------
    int64, shape (most_ps + 1,)
        -1 where the job cannot have so many.
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
    """A utility whose clock began some slots ago."""

    __slots__ = ("_shift", "_utility")

    def __init__(self, utility: Utility, shift: int) -> None:
        self._utility = utility
        self._shift = shift

    def __call__(self, slots: Integers) -> npt.NDArray[np.float64]:
        return np.asarray(self._utility.values(slots + self._shift), np.float64)


def gang_job(
    job: Job,
    claim: Claim,
    most_ps: int,
    *,
    remaining: int | None = None,
    restarts: int = 0,
    tenant: int | None = None,
    rigid: bool = False,
    shift: int = 0,
) -> GangJob:
    """Return a job as a round sees it.

    Parameters
    ----------
    job : Job
        The job.
    claim : Claim
        The places it asks for.
    most_ps : int
        Most parameter servers of its type on one server.
    remaining : int, optional
        Progress units still to make; all of them by default.
    restarts : int
        Slots within which its first one is to count as one in which it restarts: those of the
        longest round, as none can take it for longer. 0 where it restarts for nothing.
    tenant : int, optional
        Its owner's position in the market, if not that of the claim.
    rigid : bool
        Whether it runs with its most workers only.
    shift : int
        Slots by which the clock of its utility is ahead of the round's.
    """
    first = len(job.worker_counts) - 1 if rigid else 0
    left = job.required if remaining is None else remaining
    counts = np.ascontiguousarray(job.worker_counts[first:])
    spread = _slots(left, job.gains[first:], job.moved_gains[first:], restarts)
    colocated = _slots(left, job.internal_gains[first:], job.moved_internal_gains[first:], restarts)
    return GangJob(
        name=job.name,
        tenant=claim.tenant if tenant is None else tenant,
        arrival=job.arrival,
        worker_type=claim.worker_type,
        ps_type=claim.ps_type or 0,
        counts=counts,
        spread_slots=spread,
        colocated_slots=np.minimum(colocated, spread),
        reach=reach_of(
            most_ps, job.worker_bandwidth, job.ps_bandwidth, served=claim.ps_type is not None
        ),
        utility=_Shifted(job.utility, shift),
    )


def _slots(left: int, gains: Integers, moved: Integers, restarts: int) -> Integers:
    """Return the slots that so much work takes at each number of workers, in one place."""
    without, with_one = -(-left // gains), -(-(left + gains - moved) // gains)
    return np.asarray(np.where(with_one <= restarts, with_one, without), np.int64)


def fewest_slots(job: GangJob, workers: Integers, ps: Integers) -> tuple[Integers, Integers]:
    """Return how fast each size of gang runs on empty servers.

    Parameters
    ----------
    job : GangJob
        The job.
    workers, ps : int64, shape (servers,)
        Places of its types on each server.

    Returns
    -------
    slots : int64, shape (choices,)
        Fewest slots, ``UNLIMITED`` where that many workers cannot be placed at all.
    colocated : int64, shape (choices,)
        1 where these slots need everything on one server.
    """
    counts = job.counts
    slots = np.full(counts.size, UNLIMITED, np.int64)
    together = np.zeros(counts.size, np.int64)
    for servers in np.flatnonzero(job.reach >= 0).tolist():
        beside = workers[ps >= servers]
        if not beside.size:
            continue
        most, reach = int(beside.max()), int(job.reach[servers])
        spread = (counts <= workers.sum()) & (counts - np.minimum(reach, counts) <= most)
        spread &= reach >= 1
        slots = np.where(spread, np.minimum(slots, job.spread_slots), slots)
        alone = (counts <= most) & (job.colocated_slots < slots)
        slots = np.where(alone, job.colocated_slots, slots)
        together = np.where(alone, 1, together)
    return slots, together


def hopeless(
    job: Job, gang: GangJob, workers: Integers, ps: Integers, longest: int, *, own: bool
) -> Refusal | None:
    """Return why no round can ever schedule a job, None if an empty one could.

    Parameters
    ----------
    job : Job
        The job.
    gang : GangJob
        As rounds see it, on its own clock.
    workers, ps : int64, shape (servers,)
        Places of its types that rounds have.
    longest : int
        Slots of the longest round.
    own : bool
        Whether these places are its tenant's alone.
    """
    slots, _ = fewest_slots(gang, workers, ps)
    best = int(np.argmin(slots))
    fewest, count = int(slots[best]), int(gang.counts[best])
    where = "its tenant's own servers" if own else "the empty cluster"
    if fewest >= UNLIMITED:
        least = int(gang.counts[0])
        if least > workers.sum():
            message = f"needs {least} workers at once, {where} have room for {int(workers.sum())}"
            message = message.replace("cluster have", "cluster has")
            return Refusal(Reason.NEVER_FITS, message, bottleneck="places of workers")
        message = (
            f"needs a server whose parameter servers carry its workers elsewhere, with {least} "
            f"workers; {where.replace('the empty cluster', 'no server of the empty cluster')} can"
        )
        if own:
            message = message.replace(f"{where} can", f"none of {where} can")
        return Refusal(
            Reason.NEVER_FITS,
            message,
            bottleneck="places and bandwidth of parameter servers",
        )
    if fewest > longest:
        return Refusal(
            Reason.TOO_LATE,
            f"takes {fewest} slots at best, with {count} workers; the longest round has {longest}",
            bottleneck="length of the longest round",
            numbers={"slots": float(fewest), "longest_round": float(longest)},
        )
    if gang.values(fewest)[fewest] <= 0:
        return Refusal(
            Reason.NO_VALUE,
            f"is worth nothing after the {fewest} slots that it takes at best",
            value=utility_value(job.utility, fewest),
            cost=0.0,
            bottleneck="its utility",
        )
    return None
