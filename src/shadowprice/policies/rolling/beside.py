"""The timeline of capacity beside plans with fixed servers: bags of tasks and pinned jobs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.revision.beside import begin_beside
from shadowprice.kernels.revision.timeline import FOR_EVER, Timeline
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.stays import Stays

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def starts_of(now: int, bags: BagBook, stays: Stays) -> list[int]:
    """Return the slots from ``now`` on in which the capacity beside these plans changes."""
    return sorted({now, *bags.cuts(now), *(slot for slot in stays.ends() if slot > now)})


def begin(
    line: Timeline,
    starts: list[int],
    bags: BagBook,
    stays: Stays,
    whole: Integers,
    roles: Integers,
    up: Flags,
) -> None:
    """Initialise a timeline in which only bags and pinned jobs take capacity.

    Their plans name their servers, so the capacity that they leave is known server by server.

    Parameters
    ----------
    line : Timeline
        Written.
    starts : list of int
        As of `starts_of`.
    whole : ndarray of int64, shape (servers, resources)
        Capacity of the servers; 0 for lost ones.
    roles : ndarray of int64, shape (servers,)
        Roles as in `Timeline`.
    up : ndarray of bool, shape (servers,)
        Whether each server is up.
    """
    now, cuts = starts[0], set(bags.cuts(starts[0]))
    usage = np.array([bags.held_by(slot) + stays.held_by(slot) for slot in starts], np.int64)
    end, server, amount = stays.entries()
    before = bags.held(now)
    servers, changes, first = [server[:0]], [amount[:0]], [0, 0]
    for slot in starts[1:]:
        over = end + 1 == slot
        servers.append(server[over])
        changes.append(amount[over])
        if slot in cuts:
            after = bags.held(slot)
            differ = np.flatnonzero((after != before).any(axis=1))
            servers.append(differ)
            changes.append(before[differ] - after[differ])
            before = after
        first.append(sum(map(len, servers)))
    if not begin_beside(
        line, np.array(starts, np.int64), whole - bags.held(now) - stays.held(now), roles, up,
        np.array(first, np.int64), np.concatenate(servers), np.concatenate(changes), usage,
    ):  # fmt: skip
        _begin_narrow(line, starts, bags, stays, whole, roles, up, usage)


def _begin_narrow(
    line: Timeline,
    starts: list[int],
    bags: BagBook,
    stays: Stays,
    whole: Integers,
    roles: Integers,
    up: Flags,
    held: Integers,
) -> None:
    """Initialise the timeline if there are more groups than it can hold.

    The first groups in order of role and free capacity are dropped.
    """
    width = line.servers.shape[1]
    for interval, slot in enumerate(starts):
        free = np.maximum(whole - bags.held(slot) - stays.held(slot), 0)
        groups, count = np.unique(np.column_stack((roles, free))[up], axis=0, return_counts=True)
        groups, count = groups[-width:], count[-width:]
        number = len(groups)
        line.groups[interval] = number
        line.servers[interval, :number] = count
        line.role[interval, :number] = groups[:, 0]
        line.free[interval, :number] = groups[:, 1:]
        line.held[interval] = held[interval]
        line.start[interval], line.state[interval] = slot, interval
    line.used[:] = len(starts)
    line.start[len(starts)] = FOR_EVER
