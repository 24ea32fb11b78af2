"""Free capacity over time: intervals of equal slots, each with groups of equal servers.

A plan changes at the start and end of jobs, not in every slot. Of the servers of a kind, only the
number with equal free capacity matters. So the capacity of a horizon is a few intervals, each with
a few groups, for any number of slots and servers. Everything that enters an interval is packed
server by server, so that the content of a timeline can be placed on real servers.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined

WORKER_ROLE, PS_ROLE = constant(1), constant(2)
"""Bits of a group's role: its servers may host workers, parameter servers, or both."""

INFINITE_SLOT = constant(np.iinfo(np.int64).max // 4)  # end of the last interval
UNLIMITED_COUNT = constant(np.iinfo(np.int64).max // 4)
"""A count or amount without a limit; sums of up to four don't overflow."""

ONE = constant(1)


class Timeline(NamedTuple):
    """Free capacity over time: intervals, and the state of each, which has groups of servers."""

    used: Integers  # number of intervals, and of states in use, shape (2,)
    start: Integers  # first slot of each interval and end of the last, ascending, (capacity + 1,)
    state: Integers  # state of each interval, shape (capacity,)
    groups: Integers  # number of groups of each state, shape (capacity,)
    servers: Integers  # number of servers of each group, shape (capacity, width)
    role: Integers  # role of its servers, shape (capacity, width)
    free: Integers  # free capacity of each of its servers, shape (capacity, width, resources)
    tenant_usage: Integers  # usage by state, shape (capacity, tenants, resources)
    limits: Integers
    """Shares of tenants, then the capacity that no tenant owns, shape (tenants + 1, resources).

    -1 marks a resource of which no tenant has a share. If no tenant has a share of anything, there
    is one row, and plans aren't confined to shares.
    """
    fitting: Integers  # result of `plans.fitting_levels`, shape (capacity,)
    shared: bool  # whether some servers host both workers and parameter servers
    # With one more array, compiled callers copy the record: planning takes half as long again.


def new_timeline(max_states: int, width: int, limits: Integers, shared: bool) -> Timeline:
    """Allocate states with up to ``width`` groups each; the last state is scratch space."""
    tenants, resources = len(limits) - 1, limits.shape[1]
    return Timeline(
        np.zeros(2, np.int64),
        np.zeros(max_states + 1, np.int64),
        np.zeros(max_states, np.int64),
        np.zeros(max_states, np.int64),
        np.zeros((max_states, width), np.int64),
        np.zeros((max_states, width), np.int64),
        np.zeros((max_states, width, resources), np.int64),
        np.zeros((max_states, tenants, resources), np.int64),
        limits,
        np.zeros(max_states, np.int64),
        shared,
    )


def server_roles(hosts_workers: Flags, hosts_ps: Flags) -> Integers:
    """Return the role of each server; 0 if it hosts nothing."""
    return np.asarray(hosts_workers * WORKER_ROLE + hosts_ps * PS_ROLE, np.int64)


@allocation_free
def copy_state(line: Timeline, source: int, target: int) -> None:
    """Copy the groups of one state over another."""
    groups = line.groups[source]
    line.groups[target] = groups
    resources = line.free.shape[2]
    for g in range(groups):
        line.servers[target, g] = line.servers[source, g]
        line.role[target, g] = line.role[source, g]
        for r in range(resources):
            line.free[target, g, r] = line.free[source, g, r]
    for t in range(len(line.limits) - 1):
        for r in range(resources):
            line.tenant_usage[target, t, r] = line.tenant_usage[source, t, r]


@allocation_free
def tenant_headroom(line: Timeline, state: int, tenant: int, resource: int) -> int:
    """Return a tenant's headroom: what is left of its share and of the common capacity.

    Usage beyond shares reduces the common capacity.
    """
    common = line.limits[-1, resource]
    if common < 0:
        return UNLIMITED_COUNT
    for t in range(len(line.limits) - 1):
        common -= max(0, line.tenant_usage[state, t, resource] - line.limits[t, resource])
    own_share = line.limits[tenant, resource] - line.tenant_usage[state, tenant, resource]
    return int(max(0, own_share) + max(0, common))


@inlined
def add_tenant_usage(
    line: Timeline,
    state: int,
    tenant: int,
    demand: Integers,
    workers: int,
    ps: Integers,
    ps_count: int,
) -> None:
    """Add workers and parameter servers to a tenant's usage in a state."""
    if len(line.limits) > 1:
        for r in range(len(demand)):
            line.tenant_usage[state, tenant, r] += workers * demand[r] + ps_count * ps[r]


@allocation_free
def split_interval_at(line: Timeline, slot: int) -> int:
    """Start an interval at a slot; return its position, or -1 if the arrays are full.

    The slot is in or after the first interval.
    """
    intervals = line.used[0]
    low = int(np.searchsorted(line.start[:intervals], slot, side="right")) - 1
    if line.start[low] == slot:
        return low
    if line.used[1] >= len(line.state) - 1:  # the last state is scratch space
        return -1
    new_state = line.used[1]
    line.used[1] += 1
    copy_state(line, line.state[low], new_state)
    line.start[intervals + 1] = INFINITE_SLOT
    for k in range(intervals, low + 1, -1):
        line.start[k] = line.start[k - 1]
        line.state[k] = line.state[k - 1]
    line.start[low + 1] = slot
    line.state[low + 1] = new_state
    line.used[0] += 1
    return low + 1


@inlined
def fit_on_server(free: Integers, demand: Integers, limit: int) -> int:
    """Return how many times a demand fits into the free capacity of a server, up to a limit."""
    count = limit
    for r in range(len(demand)):
        needed = demand[r]
        if needed > 0:
            if free[r] < needed:
                return 0
            # Avoid the division if the product shows that all fit; below 2^62 it can't overflow.
            if count >= 1 << 16 or needed >= 1 << 46 or free[r] < needed * count:
                count = min(count, free[r] // needed)
    return count


@allocation_free
def total_fit(line: Timeline, state: int, role: int, demand: Integers, limit: int) -> int:
    """Return how many times a demand fits on all servers of a role together, at most ``limit``."""
    total = 0
    for g in range(line.groups[state]):
        if line.role[state, g] & role:
            total += line.servers[state, g] * fit_on_server(line.free[state, g], demand, limit)
            if total >= limit:
                return limit
    return total


@allocation_free
def copy_capacity(
    line: Timeline, demand: Integers, tenant: int, limit: int, end: int, counts: Integers
) -> None:
    """Write to ``counts`` how many copies of a bag's task fit in each slot, at most ``limit``.

    ``counts`` begins with the timeline's first slot, and ``end`` is exclusive. ``demand`` is of one
    copy, on a server for workers. The tenant's headroom limits the counts.
    """
    next_slot = line.start[0]
    for k in range(line.used[0]):
        if line.start[k] >= end:
            break
        state = line.state[k]
        count = total_fit(line, state, WORKER_ROLE, demand, limit)
        if len(line.limits) > 1:
            for r in range(len(demand)):
                if demand[r] > 0:
                    count = min(count, tenant_headroom(line, state, tenant, r) // demand[r])
        for slot in range(line.start[k], min(line.start[k + 1], end)):
            counts[slot - next_slot] = count


@inlined
def best_fit_group(
    groups: int,
    free: Integers,
    role: Integers,
    size: Integers,
    needed_role: int,
    demand: Integers,
    remaining: int,
) -> tuple[int, int]:
    """Return the best-fitting group for ``remaining`` demands, or -1, and how many fit on a server.

    ``free`` (groups, resources), ``role`` and ``size`` (groups,) describe the groups; empty groups
    are skipped. If servers fit all remaining demands, the best group is the one that they fill
    best; otherwise it is the group whose servers fit the most demands.
    """
    best = -1
    best_fit_count = 0
    for g in range(groups):
        if size[g] == 0 or role[g] & needed_role != needed_role:
            continue
        fit_count = fit_on_server(free[g], demand, UNLIMITED_COUNT)
        if fit_count == 0:
            continue
        if best < 0:
            better = True
        elif fit_count == best_fit_count:
            better = _precedes(free, role, g, best)
        elif fit_count >= remaining:
            better = best_fit_count < remaining or fit_count < best_fit_count
        else:
            better = best_fit_count < remaining and fit_count > best_fit_count
        if better:
            best = g
            best_fit_count = fit_count
    return best, best_fit_count


@inlined
def _precedes(free: Integers, role: Integers, group: int, other: int) -> bool:
    """Return whether a group precedes another with the same fit: the one with less free capacity.

    The order depends only on the groups' contents. So packing the same demands in the same order
    fills the same servers, regardless of the groups' numbers.
    """
    for r in range(free.shape[1]):
        if free[group, r] != free[other, r]:
            return bool(free[group, r] < free[other, r])
    return bool(role[group] < role[other])


@inlined
def _drop_if_empty(line: Timeline, state: int, group: int) -> None:
    """If a group has no servers, move the last group to its position."""
    if line.servers[state, group] == 0:
        last = line.groups[state] - 1
        line.servers[state, group] = line.servers[state, last]
        line.role[state, group] = line.role[state, last]
        for r in range(line.free.shape[2]):
            line.free[state, group, r] = line.free[state, last, r]
        line.groups[state] = last


@inlined
def _find_group(
    line: Timeline, state: int, role: int, free: Integers, demand: Integers, count: int
) -> int:
    """Return the group of servers with a role and ``free`` less ``count`` demands, -1 for none."""
    for g in range(line.groups[state]):
        equal = line.role[state, g] == role
        for r in range(len(free)):
            equal = equal and line.free[state, g, r] == max(0, free[r] - count * demand[r])
        if equal:
            return g
    return -1


@inlined
def _add_group(
    line: Timeline, state: int, role: int, free: Integers, demand: Integers, count: int
) -> int:
    """Add a group without servers, with ``free`` less ``count`` demands; return it."""
    g = line.groups[state]
    line.groups[state] = g + 1
    line.servers[state, g] = 0
    line.role[state, g] = role
    for r in range(len(free)):
        line.free[state, g, r] = max(0, free[r] - count * demand[r])
    return int(g)


@inlined
def _allocate(
    line: Timeline, state: int, group: int, servers: int, demand: Integers, per_server: int
) -> None:
    """Allocate ``per_server`` demands on each of ``servers`` servers, which leave their group."""
    resources = line.free.shape[2]
    role = line.role[state, group]
    free = line.free[state, group]
    target = _find_group(line, state, role, free, demand, per_server)
    takes_all = line.servers[state, group] == servers
    if target < 0 and not takes_all and line.groups[state] == line.servers.shape[1]:
        # All groups are in use. These servers join a group with less free capacity, which loses
        # the difference but never overbooks. Without such a group, the demands are subtracted from
        # all servers of this one.
        for g in range(line.groups[state]):
            if g != group and line.role[state, g] == role:
                lower = True
                for r in range(resources):
                    lower = lower and line.free[state, g, r] <= free[r] - per_server * demand[r]
                if lower:
                    target = g
                    break
        takes_all = target < 0
    if target < 0 and takes_all:
        for r in range(resources):
            free[r] -= per_server * demand[r]
        return
    if target < 0:
        target = _add_group(line, state, role, free, demand, per_server)
    line.servers[state, target] += servers
    line.servers[state, group] -= servers
    _drop_if_empty(line, state, group)


@allocation_free
def pack(line: Timeline, state: int, role: int, demand: Integers, count: int) -> bool:
    """Pack ``count`` equal demands into a state; return whether all of them fit.

    Servers need all bits of ``role``; a co-located job with parameter servers has both. Demands
    that fit together on one server go to the server that they fill best. While more remain, the
    freest servers are filled first, so that a job is on few of them. A failure changes the state.
    """
    remaining = count
    while remaining > 0:
        best, fit_count = best_fit_group(
            line.groups[state], line.free[state], line.role[state], line.servers[state], role,
            demand, remaining,
        )  # fmt: skip
        if best < 0:
            return False
        per_server = min(remaining, fit_count)
        servers = min(line.servers[state, best], remaining // per_server)
        _allocate(line, state, best, servers, demand, per_server)
        remaining -= servers * per_server
    return True


@inlined
def pack_ps_first(
    line: Timeline,
    state: int,
    backup: int,
    worker: Integers,
    workers: int,
    ps: Integers,
    ps_count: int,
) -> bool:
    """Pack parameter servers and then workers, which didn't fit in the other order.

    On servers that host both, workers may have taken the only place of a parameter server.
    ``backup`` is a state with the content before the first try; a failure restores it.
    """
    copy_state(line, backup, state)
    if pack(line, state, PS_ROLE, ps, ps_count) and pack(line, state, WORKER_ROLE, worker, workers):
        return True
    copy_state(line, backup, state)
    return False


@allocation_free
def init_timeline(
    line: Timeline,
    starts: Integers,
    free: Integers,
    role: Integers,
    count: Integers,
    first: Integers,
    changed: Integers,
    changes: Integers,
    usage: Integers,
) -> bool:
    """Initialise a timeline of intervals in which rows of servers have different free capacity.

    Returns False if the timeline is too narrow for all different groups.

    - ``starts`` (intervals,): first slot of each interval, ascending.
    - ``free`` (rows, resources): free capacity of each server in the first interval. On return, it
      is that in the last interval.
    - ``role``, ``count`` (rows,): role and number of servers.
    - ``first`` (intervals + 1,): position in ``changed`` of the first change at each interval's
      start, and the number of changes.
    - ``changed`` (changes,): row whose free capacity changes, in order of intervals.
    - ``changes`` (changes, resources): the amounts that are added.
    - ``usage`` (intervals, tenants, resources): usage of the plans that are allocated already.
    """
    line.groups[0] = 0
    for s in range(len(free)):
        if not _add_servers(line, 0, role[s], free[s], count[s]):
            return False
    for k in range(len(starts)):
        if k > 0:
            copy_state(line, k - 1, k)
            for index in range(first[k], first[k + 1]):
                s = changed[index]
                _remove_servers(line, k, role[s], free[s], count[s])
                for r in range(free.shape[1]):
                    free[s, r] += changes[index, r]
                if not _add_servers(line, k, role[s], free[s], count[s]):
                    return False
        line.start[k] = starts[k]
        line.state[k] = k
        for t in range(usage.shape[1]):
            for r in range(usage.shape[2]):
                line.tenant_usage[k, t, r] = usage[k, t, r]
    line.used[:] = len(starts)
    line.start[len(starts)] = INFINITE_SLOT
    return True


@allocation_free
def _add_servers(line: Timeline, state: int, role: int, free: Integers, count: int) -> bool:
    """Add equal servers to a state; return False if all groups are in use."""
    if count == 0:
        return True
    g = _find_group(line, state, role, free, free, 0)
    if g < 0:
        if line.groups[state] == line.servers.shape[1]:
            return False
        g = _add_group(line, state, role, free, free, 0)
    line.servers[state, g] += count
    return True


@inlined
def _remove_servers(line: Timeline, state: int, role: int, free: Integers, count: int) -> None:
    if count > 0:
        g = _find_group(line, state, role, free, free, 0)
        line.servers[state, g] -= count
        _drop_if_empty(line, state, g)
