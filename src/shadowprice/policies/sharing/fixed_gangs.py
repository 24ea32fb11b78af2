"""Gangs of a fixed size on counted places, for the schedulers that do not resize jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement
from shadowprice.policies.sharing.parameters import Size
from shadowprice.policies.tenants.gang_jobs import fewest_slots, gang_job
from shadowprice.policies.tenants.tenancy import Claim

Integers = npt.NDArray[np.int64]

GANG: Final = "gang"
"""Label of a job that says how many workers it runs with."""


@dataclass(frozen=True, slots=True)
class FixedGang:
    """A job with the size it runs with.

    Parameters
    ----------
    job : Job
        The job.
    claim : Claim
        The places it asks for.
    workers : int
        Its workers, always.
    reach : tuple of int
        Workers elsewhere that each number of parameter servers on one server carries, -1 where
        it cannot have so many, see `astraea.market.reach_of`.
    """

    job: Job
    claim: Claim
    workers: int
    reach: tuple[int, ...]


def fixed_gang(
    job: Job, claim: Claim, size: Size, workers: Integers, ps: Integers
) -> FixedGang | Refusal:
    """Choose a job's size: as wished, or the next smaller one that empty servers can carry.

    Parameters
    ----------
    job : Job
        The job.
    claim : Claim
        The places it asks for.
    size : "most", "fewest", "label" or int
        What is wished; ``label``: the number in the job's label ``gang``, its most without one.
    workers, ps : int64, shape (servers,)
        Places of its types on each server.
    """
    gang = gang_job(job, claim, int(ps.max(initial=0)) if claim.ps_type is not None else 0)
    slots, _ = fewest_slots(gang, workers, ps)
    possible = gang.counts[slots < UNLIMITED]
    if not possible.size:
        return Refusal(
            Reason.NEVER_FITS,
            f"no gang of {int(gang.counts[0])} workers or more fits the empty cluster",
            bottleneck="places of workers and of parameter servers",
        )
    wished = int(possible[0]) if size == "fewest" else int(possible[-1])
    if isinstance(size, int):
        wished = size
    elif size == "label" and job.labels.get(GANG, "").isdecimal():
        wished = int(job.labels[GANG])
    smaller = possible[possible <= wished]
    count = int(smaller[-1] if smaller.size else possible[0])
    return FixedGang(job, claim, count, tuple(int(n) for n in gang.reach))


def first_fit(gang: FixedGang, workers: Integers, ps: Integers) -> Placement | None:
    """Place a gang on the first servers that have room, blind to how fast it will run there.

    The parameter servers take the first server that, with the workers it has room for, can carry
    those elsewhere (Astraea (3i)).

    Parameters
    ----------
    gang : FixedGang
        The gang.
    workers, ps : int64, shape (servers,)
        Free places of its types.

    Returns
    -------
    Placement or None
        None where there is no room.
    """
    if workers.sum() < gang.workers:
        return None
    if gang.claim.ps_type is None:
        return _fill(gang.workers, workers, None, 0)
    for servers, reach in enumerate(gang.reach):
        if reach < 0:
            continue
        hosts = np.flatnonzero((ps >= servers) & (workers >= gang.workers - reach))
        if hosts.size:
            return _fill(gang.workers, workers, int(hosts[0]), servers)
    return None


def place_on(gang: FixedGang, cells: Integers, ps: Integers) -> Placement | None:
    """Give a gang that has its workers' places the parameter servers it needs.

    Parameters
    ----------
    gang : FixedGang
        The gang.
    cells : int64, shape (servers,)
        Workers of the gang on each server.
    ps : int64, shape (servers,)
        Free places of its parameter servers.

    Returns
    -------
    Placement or None
        With them on the server that needs the fewest: of these where most of its workers stand.
    """
    here = {server: [int(cells[server]), 0] for server in np.flatnonzero(cells).tolist()}
    if gang.claim.ps_type is not None:
        order = np.argsort(-cells, kind="stable")
        found = next(
            (
                (int(server), servers)
                for servers, reach in enumerate(gang.reach)
                if reach >= 0
                for server in order[ps[order] >= servers][:1]
                if gang.workers - cells[server] <= reach
            ),
            None,
        )
        if found is None:
            return None
        here.setdefault(found[0], [0, 0])[1] = found[1]
    return Placement.of((server, counts[0], counts[1]) for server, counts in here.items())


def _fill(count: int, workers: Integers, host: int | None, servers: int) -> Placement:
    entries: list[tuple[int, int, int]] = []
    left = count
    if host is not None:
        # The host gives what it has, so that the rest is carried.
        given = min(int(workers[host]), left)
        entries.append((host, given, servers))
        left -= given
    for server in np.flatnonzero(workers).tolist():
        if not left:
            break
        if server != host:
            given = min(int(workers[server]), left)
            entries.append((server, given, 0))
            left -= given
    return Placement.of(entries)
