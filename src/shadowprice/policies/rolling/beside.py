"""The timeline that plans leave which name their servers: of bags, and of jobs that stay."""

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
    """Return the slots from ``now`` on at which such plans begin to leave other room."""
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
    """Make a timeline in which nothing but plans that name their servers takes room.

    Copies of bags and jobs that stay have servers of their own until they end, so that what they
    leave free is known server by server.

    Parameters
    ----------
    line : Timeline
        What is written.
    starts : list of int
        As of `starts_of`.
    bags, stays : BagBook, Stays
        Who holds what.
    whole : ndarray of int64, shape (servers, resources)
        What servers hold; 0 where they are out.
    roles : ndarray of int64, shape (servers,)
        What they may carry.
    up : ndarray of bool, shape (servers,)
        Which there are.
    """
    now, cuts = starts[0], set(bags.cuts(starts[0]))
    held = np.array([bags.held_by(slot) + stays.held_by(slot) for slot in starts], np.int64)
    end, server, amount = stays.entries()
    there = bags.held(now)
    servers, changes, first = [server[:0]], [amount[:0]], [0, 0]
    for slot in starts[1:]:
        over = end + 1 == slot
        servers.append(server[over])
        changes.append(amount[over])
        if slot in cuts:
            after = bags.held(slot)
            differ = np.flatnonzero((after != there).any(axis=1))
            servers.append(differ)
            changes.append(there[differ] - after[differ])
            there = after
        first.append(sum(map(len, servers)))
    if not begin_beside(
        line, np.array(starts, np.int64), whole - bags.held(now) - stays.held(now), roles, up,
        np.array(first, np.int64), np.concatenate(servers), np.concatenate(changes), held,
    ):  # fmt: skip
        _begin_narrow(line, starts, bags, stays, whole, roles, up, held)


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
    """Make the same where there are more groups than it has room for: the emptiest count."""
    width = line.servers.shape[1]
    for at, slot in enumerate(starts):
        free = np.maximum(whole - bags.held(slot) - stays.held(slot), 0)
        groups, count = np.unique(np.column_stack((roles, free))[up], axis=0, return_counts=True)
        groups, count = groups[-width:], count[-width:]
        number = len(groups)
        line.groups[at] = number
        line.servers[at, :number] = count
        line.role[at, :number] = groups[:, 0]
        line.free[at, :number] = groups[:, 1:]
        line.held[at] = held[at]
        line.start[at], line.state[at] = slot, at
    line.used[:] = len(starts)
    line.start[len(starts)] = FOR_EVER
