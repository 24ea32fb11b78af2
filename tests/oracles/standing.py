"""The slow, obvious twin of `kernels.revision.standing`: every server looked at for every job."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.revision.timeline import FOR_EVER

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Jobs = Log = Any


def stand(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    log: Log,
    kept_workers: Ints,
    kept_ps: Ints,
    new_workers: Ints,
    new_ps: Ints,
    stay: bool,
) -> bool:
    """Put what was packed on servers: what each row keeps, or is given, over all servers."""
    entries = log.used[0]
    servers = len(free)
    if stay:
        seen = np.zeros(len(log.level), np.bool_)
        for at in range(entries):
            row = log.row[at]
            if seen[row]:
                continue
            seen[row] = True
            _keep(
                free, kept_workers[row], jobs.worker[row], jobs.workers[row, log.level[row]],
                new_workers[row],
            )  # fmt: skip
            _keep(free, kept_ps[row], jobs.ps[row], jobs.servers[row, log.level[row]], new_ps[row])
        for row in range(len(seen)):
            if not seen[row]:
                continue
            lack = jobs.workers[row, log.level[row]]
            lack_ps = jobs.servers[row, log.level[row]]
            for s in range(servers):
                lack -= new_workers[row, s]
                lack_ps -= new_ps[row, s]
            if lack > 0 and not put_on(
                free, hosts_workers, jobs.worker[row], lack, new_workers[row]
            ):
                return False
            if lack_ps > 0 and not put_on(free, hosts_ps, jobs.ps[row], lack_ps, new_ps[row]):
                return False
        return True
    complete = True
    for at in range(entries):
        row = log.row[at]
        if log.level[row] < 0:
            continue
        fits = put_on(free, hosts_workers, jobs.worker[row], log.workers[at], new_workers[row])
        if not fits or not put_on(free, hosts_ps, jobs.ps[row], log.servers[at], new_ps[row]):
            complete = False
            _take_back(free, jobs.worker[row], new_workers[row])
            _take_back(free, jobs.ps[row], new_ps[row])
            log.level[row] = -1
    return complete


def _take_back(free: Ints, demand: Ints, new: Ints) -> None:
    """Give back all that a job was given."""
    for s in range(len(new)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] += new[s] * demand[r]
            new[s] = 0


def _keep(free: Ints, kept: Ints, demand: Ints, wanted: int, new: Ints) -> None:
    """Keep up to ``wanted`` where they stand, giving up the smallest groups first."""
    total = 0
    for s in range(len(kept)):
        new[s] = kept[s]
        total += kept[s]
    while total > wanted:
        smallest = -1
        for s in range(len(kept)):
            if new[s] > 0 and (smallest < 0 or new[s] < new[smallest]):
                smallest = s
        gone = min(new[smallest], total - wanted)
        new[smallest] -= gone
        total -= gone
    for s in range(len(kept)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] -= new[s] * demand[r]


def put_on(free: Ints, hosts: Flags, demand: Ints, number: int, new: Ints) -> bool:
    """Place so many of a demand on servers, by the rule of `timeline.put`."""
    rest = number
    asked = demand > 0
    while rest > 0:
        options = []
        for server in np.flatnonzero(hosts).tolist():
            room = int((free[server, asked] // demand[asked]).min()) if asked.any() else FOR_EVER
            if room:
                options.append((room, free[server].tolist(), server))
        if not options:
            return False
        enough = [option for option in options if option[0] >= rest]
        room, _, best = min(enough or [(-room, *others) for room, *others in options])
        each = min(abs(room), rest)
        new[best] += each
        free[best] -= each * demand
        rest -= each
    return True
