"""Gangs of a fixed size on capacity units, for schedulers that don't resize jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Integers
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement
from shadowprice.policies.sharing.parameters import Size
from shadowprice.policies.tenants.gang_jobs import gang_job, min_gang_slots
from shadowprice.policies.tenants.tenancy import UnitClaim

GANG: Final = "gang"  # label of a job that states its number of workers


@dataclass(frozen=True, slots=True)
class FixedGang:
    """A job with its fixed size."""

    job: Job
    claim: UnitClaim
    workers: int
    reach: tuple[int, ...]
    """Of each number of parameter servers, see `tenants.gang_jobs.workers_servable`."""


def fixed_gang(
    job: Job, claim: UnitClaim, size: Size, workers: Integers, ps: Integers
) -> FixedGang | Refusal:
    """Choose the largest size up to the requested one that fits empty servers.

    If none does, choose the smallest size that fits. Refuse a job that never fits. The size
    ``label`` is the number in the job's label ``gang``, or the maximum. Units are those of the
    job's types on each server.
    """
    gang = gang_job(job, claim, int(ps.max(initial=0)) if claim.ps_type is not None else 0)
    slots, _ = min_gang_slots(gang, workers, ps)
    possible = gang.counts[slots < UNLIMITED]
    if not possible.size:
        return Refusal(
            RefusalReason.NEVER_FITS,
            f"no gang of {int(gang.counts[0])} workers or more fits the empty cluster",
            bottleneck="places of workers and of parameter servers",
        )
    requested = int(possible[0]) if size == "min" else int(possible[-1])
    if isinstance(size, int):
        requested = size
    elif size == "label" and job.labels.get(GANG, "").isdecimal():
        requested = int(job.labels[GANG])
    smaller = possible[possible <= requested]
    count = int(smaller[-1] if smaller.size else possible[0])
    return FixedGang(job, claim, count, tuple(int(n) for n in gang.reach))


def first_fit(gang: FixedGang, workers: Integers, ps: Integers) -> Placement | None:
    """Place a gang on the first servers with free units, whatever its speed there.

    The parameter servers take the first server that can serve the workers elsewhere, after its own
    free units are filled with workers (Astraea (3i)). ``workers`` and ``ps`` are the free units by
    type and server. Returns None if the gang doesn't fit.
    """
    workers = workers[gang.claim.worker_type]
    if workers.sum() < gang.workers:
        return None
    if gang.claim.ps_type is None:
        return _fill(gang.workers, workers, None, 0)
    ps = ps[gang.claim.ps_type]
    for servers, reach in enumerate(gang.reach):
        if reach < 0:
            continue
        hosts = np.flatnonzero((ps >= servers) & (workers >= gang.workers - reach))
        if hosts.size:
            return _fill(gang.workers, workers, int(hosts[0]), servers)
    return None


def add_ps_placement(gang: FixedGang, cells: Integers, ps: Integers) -> Placement | None:
    """Place the parameter servers of a gang whose workers are on ``cells``.

    The smallest number of parameter servers that works is placed on the server with the most of its
    workers. ``ps`` are the free units by type and server. Returns None if no number works.
    """
    counts_on = {server: [int(cells[server]), 0] for server in np.flatnonzero(cells).tolist()}
    if gang.claim.ps_type is not None:
        ps = ps[gang.claim.ps_type]
        order = np.argsort(-cells, kind="stable")
        host = next(
            (
                (int(server), servers)
                for servers, reach in enumerate(gang.reach)
                if reach >= 0
                for server in order[ps[order] >= servers][:1]
                if gang.workers - cells[server] <= reach
            ),
            None,
        )
        if host is None:
            return None
        counts_on.setdefault(host[0], [0, 0])[1] = host[1]
    return Placement.of((server, counts[0], counts[1]) for server, counts in counts_on.items())


def is_free(gang: FixedGang, placement: Placement, workers: Integers, ps: Integers) -> bool:
    """Return whether the free units, by type and server, suffice for a placement of a gang."""
    servers, claim = list(placement.servers), gang.claim
    if (workers[claim.worker_type, servers] < placement.workers).any():
        return False
    return claim.ps_type is None or not (ps[claim.ps_type, servers] < placement.ps).any()


def occupy(gang: FixedGang, placement: Placement, workers: Integers, ps: Integers) -> None:
    """Subtract the units of a gang from the free ones, by type and server."""
    servers, claim = list(placement.servers), gang.claim
    workers[claim.worker_type, servers] -= placement.workers
    if claim.ps_type is not None:
        ps[claim.ps_type, servers] -= placement.ps


def _fill(count: int, workers: Integers, host: int | None, servers: int) -> Placement:
    entries: list[tuple[int, int, int]] = []
    remaining = count
    if host is not None:
        # The host takes as many workers as it can, so that the PS can serve the rest.
        taken = min(int(workers[host]), remaining)
        entries.append((host, taken, servers))
        remaining -= taken
    for server in np.flatnonzero(workers).tolist():
        if not remaining:
            break
        if server != host:
            taken = min(int(workers[server]), remaining)
            entries.append((server, taken, 0))
            remaining -= taken
    return Placement.of(entries)
