"""Non-preemptive gangs on capacity units: the best start, size and placement (Astraea).

A *gang* is a constant number of workers, on constant servers, over consecutive slots, together with
its parameter servers: all or nothing, never moved. Source: Wang, Zhou, Han, Chen and Li, "Online
Scheduling of Distributed Machine Learning Jobs for Incentivizing Sharing in Multi-Tenant Systems"
(IEEE TC 2023). Algorithm 3 solves its problem (9), with the two placements of Algorithms 4 (spread)
and 5 (colocated).

A *unit* is capacity for one worker, or for one parameter server, on a server. Prices and utilities
are integers in millionths of a unit of utility, so that the search, the payments and the accounts
agree exactly and ties are real ties.

*Run ends* replace minima over windows of slots. ``ends[t, k, s]`` is the first slot from ``t`` on
in which server ``s`` has fewer than ``k`` free units, so that over slots ``[t, e)``

- the free units of server ``s`` are the number of ``k >= 1`` with ``ends[t, k, s] >= e``,
- the free units of all servers are the number of pairs ``(k, s)`` with ``ends[t, k, s] >= e``,
- some server has ``k`` workers and ``z`` parameter servers if
  ``max over s of min(worker_ends[t, k, s], ps_ends[t, z, s]) >= e``.

One pass over the servers answers this for every end, and a reservation only changes the run ends of
one server.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order

Ends = npt.NDArray[np.int32]


@kernel
def fill_run_ends(free: Integers, ends: Ends) -> None:
    """Fill the run ends of every server from its free units.

    ``free``: (slots, servers). ``ends`` (slots, maximum of units + 1, servers): first slot from
    ``t`` on with fewer than ``k`` free units, or ``slots``; written.
    """
    slots, servers = free.shape
    for slot in range(slots - 1, -1, -1):
        for units in range(ends.shape[1]):
            for server in range(servers):
                if free[slot, server] < units:
                    ends[slot, units, server] = slot
                elif slot + 1 < slots:
                    ends[slot, units, server] = ends[slot + 1, units, server]
                else:
                    ends[slot, units, server] = slots


@kernel
def reserve_units(
    free: Integers, ends: Ends, server: int, start: int, end: int, amount: int
) -> None:
    """Reserve free units of a server over slots ``[start, end)``, and update its run ends.

    ``free`` and ``ends`` are as in `fill_run_ends`. The caller checks that the units are free.
    """
    slots = free.shape[0]
    for slot in range(start, end):
        free[slot, server] -= amount
    for slot in range(end - 1, -1, -1):
        changed = False
        for units in range(ends.shape[1]):
            if free[slot, server] < units:
                run_end = slot
            elif slot + 1 < slots:
                run_end = ends[slot + 1, units, server]
            else:
                run_end = slots
            if ends[slot, units, server] != run_end:
                ends[slot, units, server] = run_end
                changed = True
        # Before the reservation, a slot's run ends only change if those of the next slot did.
        if slot < start and not changed:
            break


@kernel
def running_sums(amounts: Integers) -> Integers:
    """Return ``sums`` (slots + 1,) with ``sums[e] - sums[s]`` the sum of ``amounts[s:e]``."""
    sums = np.zeros(amounts.size + 1, np.int64)
    for slot in range(amounts.size):
        sums[slot + 1] = sums[slot] + amounts[slot]
    return sums


@kernel
def best_gang(
    value: Integers,
    worker_cost: Integers,
    ps_cost: Integers,
    worker_limit: Integers,
    ps_limit: Integers,
    counts: Integers,
    spread_slots: Integers,
    colocated_slots: Integers,
    reach: Integers,
    worker_ends: Ends,
    ps_ends: Ends,
) -> tuple[int, int, int, int, int, bool]:
    """Find the gang of greatest payoff: Algorithm 3, exact for problem (9).

    For a start and a number of workers, the duration and the workers' price are known. Only the
    number of parameter servers depends on the placement: all of them are on one server (constraint
    (3i) binds each server that has any), which serves the workers elsewhere. A start is skipped if
    its bound can't beat the best payoff; the bound ignores what is free on servers.

    Parameters
    ----------
    value : int64, shape (slots + 1,)
        ``value[e]``: utility, in millionths, of a job whose last slot is ``e - 1``; non-increasing.
    worker_cost, ps_cost : int64, shape (slots + 1,)
        `running_sums` of the price of one worker, and of one parameter server, in each slot
        (millionths).
    worker_limit, ps_limit : int64, shape (slots,)
        Maximum in each slot regardless of the servers: the tenant's unused share (first pass of
        Algorithm 2), or all unused units (second pass).
    counts : int64, shape (choices,)
        Allowed worker counts, increasing, from 1 up.
    spread_slots, colocated_slots : int64, shape (choices,)
        Duration with each worker count, spread over servers or all on the server of the parameter
        servers (Eq. (1)); ``colocated_slots <= spread_slots``. Above ``slots`` if impossible.
    reach : int64, shape (maximum of parameter servers on a server + 1,)
        ``reach[z]``: workers on other servers that ``z`` parameter servers can serve, ``floor(z b_p
        / b_w)``, non-decreasing; -1 if ``z`` is not allowed. A job without parameter servers allows
        only 0.
    worker_ends, ps_ends : int32, shape (slots, maximum of units + 1, servers)
        Run ends; see the module.

    Returns
    -------
    payoff, start, end, workers, ps, colocated : int, int, int, int, int, bool
        The gang occupies slots ``[start, end)``. Of equal payoffs the earliest start, then the
        fewest workers, then colocation (line 6 of Algorithm 3). ``start`` is -1 if no gang has a
        positive payoff (lines 10-12).
    """
    slots = value.size - 1
    max_workers = worker_ends.shape[1] - 1
    ps_choices = reach.size
    fewest_ps = 0
    while fewest_ps < ps_choices and reach[fewest_ps] < 0:
        fewest_ps += 1
    best = 0
    best_start, best_end, best_count, best_ps, best_colocated = -1, 0, 0, 0, False
    if fewest_ps == ps_choices:
        return best, best_start, best_end, best_count, best_ps, best_colocated

    # The fewest parameter servers that a spread gang of each size can have on empty servers.
    spread_ps = np.full(counts.size, ps_choices, np.int64)
    for choice in range(counts.size):
        for ps in range(fewest_ps, ps_choices):
            if reach[ps] >= 1 and counts[choice] - reach[ps] <= max_workers:
                spread_ps[choice] = ps
                break

    worker_block = _first_excess(worker_limit, counts)
    ps_block = _first_excess(ps_limit, np.arange(ps_choices))
    bound = np.zeros(slots, np.int64)  # most favourable payoff by start
    for start in range(slots):
        for choice in range(counts.size):
            count, block = counts[choice], worker_block[start, choice]
            end = start + colocated_slots[choice]
            if count <= max_workers and end <= block and end <= ps_block[start, fewest_ps]:
                payoff = _payoff(value, worker_cost, ps_cost, start, end, count, fewest_ps)
                bound[start] = max(bound[start], payoff)
            end = start + spread_slots[choice]
            ps = spread_ps[choice]
            if ps < ps_choices and end <= block and end <= ps_block[start, ps]:
                payoff = _payoff(value, worker_cost, ps_cost, start, end, count, ps)
                bound[start] = max(bound[start], payoff)

    # The last end up to which a server has so many parameter servers and workers; -1: unknown.
    longest = np.empty((ps_choices, max_workers + 1), np.int64)
    joint = np.empty(slots + 2, np.int64)
    # The best bound first; the order is stable, so of equal bounds the earliest start is first.
    for start in stable_order(-bound):
        if bound[start] <= 0 or bound[start] < best:
            break
        if bound[start] == best and start > best_start:
            continue
        longest[:] = -1
        has_joint = False
        for choice in range(counts.size):
            count = counts[choice]
            block = worker_block[start, choice]

            # Algorithm 5: one server holds every worker and one parameter server.
            end = start + colocated_slots[choice]
            if count <= max_workers and end <= block and end <= ps_block[start, fewest_ps]:
                payoff = _payoff(value, worker_cost, ps_cost, start, end, count, fewest_ps)
                if payoff > best or (payoff == best and start < best_start):
                    if longest[fewest_ps, count] < 0:
                        longest[fewest_ps, count] = _longest_run(
                            worker_ends[start, count], ps_ends[start, fewest_ps]
                        )
                    if longest[fewest_ps, count] >= end:
                        best, best_start, best_end = payoff, start, end
                        best_count, best_ps, best_colocated = count, fewest_ps, True

            # Algorithm 4: one server holds all parameter servers; workers are anywhere.
            end = start + spread_slots[choice]
            if end > block:
                continue
            for ps in range(spread_ps[choice], ps_choices):
                # More parameter servers would also exceed the limit, and cost more.
                if end > ps_block[start, ps]:
                    break
                payoff = _payoff(value, worker_cost, ps_cost, start, end, count, ps)
                if payoff < best or (payoff == best and start >= best_start):
                    break
                if not has_joint:
                    _joint_minima(worker_ends[start], joint)
                    has_joint = True
                # How many workers fit doesn't depend on the number of parameter servers.
                if joint[end] < count:
                    break
                min_free = max(count - reach[ps], 0)
                if min_free > max_workers:
                    continue
                if longest[ps, min_free] < 0:
                    longest[ps, min_free] = _longest_run(
                        worker_ends[start, min_free], ps_ends[start, ps]
                    )
                if longest[ps, min_free] >= end:
                    best, best_start, best_end = payoff, start, end
                    best_count, best_ps, best_colocated = count, ps, False
                    break
    return best, best_start, best_end, best_count, best_ps, best_colocated


@inlined
def _first_excess(limit: Integers, counts: Integers) -> Integers:
    """Return the first slot from each slot on in which a count exceeds the limit.

    The shape is (slots + 1, counts); the value is ``slots`` if there is none.
    """
    slots = limit.size
    block = np.full((slots + 1, counts.size), slots, np.int64)
    for slot in range(slots - 1, -1, -1):
        for choice in range(counts.size):
            exceeds = limit[slot] < counts[choice]
            block[slot, choice] = slot if exceeds else block[slot + 1, choice]
    return block


@inlined
def _payoff(
    value: Integers,
    worker_cost: Integers,
    ps_cost: Integers,
    start: int,
    end: int,
    workers: int,
    ps: int,
) -> int:
    """Return utility minus price of a gang, see `best_gang`."""
    return int(
        value[end]
        - workers * (worker_cost[end] - worker_cost[start])
        - ps * (ps_cost[end] - ps_cost[start])
    )


@inlined
def _longest_run(worker_ends: Ends, ps_ends: Ends) -> int:
    """Return the last end up to which a server has both kinds of units."""
    longest = 0
    for server in range(worker_ends.size):
        run = min(worker_ends[server], ps_ends[server])
        longest = max(longest, run)
    return longest


@inlined
def _joint_minima(worker_ends: Ends, joint: Integers) -> None:
    """Fill ``joint[e]``: the units that stay free up to ``e``, over all servers."""
    joint[:] = 0
    for units in range(1, worker_ends.shape[0]):
        for server in range(worker_ends.shape[1]):
            joint[worker_ends[units, server]] += 1
    for end in range(joint.size - 2, -1, -1):
        joint[end] += joint[end + 1]


@kernel
def place_gang(
    start: int,
    end: int,
    workers: int,
    ps: int,
    colocated: bool,
    reach: Integers,
    precedence: Integers,
    worker_ends: Ends,
    ps_ends: Ends,
) -> tuple[Integers, Integers]:
    """Choose the servers of a gang that `best_gang` found (lines 7-20 of Algorithm 4, 7-11 of 5).

    Servers with fewer free workers over the gang's slots come first, so that large free blocks
    remain for co-location; then servers of lower ``precedence`` (servers,), then of lower number.
    The parameter servers get the first server with enough units for them and for the workers that
    they can't serve elsewhere. Returns the workers and the parameter servers on each server.
    """
    servers = worker_ends.shape[2]
    free = np.zeros(servers, np.int64)
    for units in range(1, worker_ends.shape[1]):
        for server in range(servers):
            if worker_ends[start, units, server] >= end:
                free[server] += 1
    by_precedence = stable_order(precedence)
    order = by_precedence[stable_order(free[by_precedence])]

    workers_on = np.zeros(servers, np.int64)
    ps_on = np.zeros(servers, np.int64)
    min_free = workers if colocated else max(workers - reach[ps], 0)
    remaining = workers
    host = -1
    if colocated or ps > 0:
        for server in order:
            if free[server] >= min_free and ps_ends[start, ps, server] >= end:
                host = server
                break
        if colocated:
            workers_on[host] = workers
        else:
            # At least one worker is on another server, or the gang would be co-located.
            workers_on[host] = min(free[host], workers - 1)
        ps_on[host] = ps
        remaining -= workers_on[host]
    for server in order:
        if remaining == 0:
            break
        if server != host:
            workers_on[server] = min(free[server], remaining)
            remaining -= workers_on[server]
    return workers_on, ps_on


@kernel
def divide(amounts: Integers, contributions: Integers) -> Integers:
    """Divide amounts in proportion to contributions: Eq. (2), or (11) for one type of unit.

    Each owner gets the integer part. The rest, less than 1 per owner, goes to the largest
    fractions, 1 each, on ties to the first owner, so that each row adds up to its amount.
    ``amounts`` (slots,) are payments >= 0. ``contributions`` (slots, owners) are unused units >= 0,
    below 2**31 per slot. The result (slots, owners) is 0 in a slot without contributions.
    """
    slots, owners = contributions.shape
    shares = np.zeros((slots, owners), np.int64)
    fractions = np.zeros(owners, np.int64)
    for slot in range(slots):
        total = 0
        for owner in range(owners):
            total += contributions[slot, owner]
        if total == 0 or amounts[slot] == 0:
            continue
        # With amount = whole * total + remainder, every product stays below 2**62.
        whole = amounts[slot] // total
        remainder = amounts[slot] - whole * total
        undivided = amounts[slot]
        for owner in range(owners):
            contribution = contributions[slot, owner]
            product = remainder * contribution
            shares[slot, owner] = whole * contribution + product // total
            fractions[owner] = product % total
            undivided -= shares[slot, owner]
        while undivided > 0:
            largest = 0
            for owner in range(1, owners):
                if fractions[owner] > fractions[largest]:
                    largest = owner
            shares[slot, largest] += 1
            fractions[largest] = -1
            undivided -= 1
    return shares
