"""Kernels of CSD's integer problem: the exact search over the core that a bound leaves.

For any k, l >= 0 a choice of integer copies costs

    sum g = D(k, l) + sum of penalties + k (C - sum phi) + l (M - sum r)

A penalty is the excess of a task's g + k phi + l r over its minimum over integer r. All terms but
the first are >= 0 for a choice that meets both constraints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.columns import Columns
from shadowprice.kernels.cloning.curves import curve_of, miss
from shadowprice.kernels.jit import kernel


@kernel
def least_penalties(
    columns: Columns,
    most: Integers,
    relaxed: bool,
    k: float,
    l: float,  # noqa: E741
    copies: Integers,
    least: Floats,
) -> None:
    """Find each group's smallest penalty of a move; rounding may make it slightly negative."""
    decay = columns.decay
    for j in range(decay.shape[0]):
        least[j] = np.inf
        base = copies[j]
        cost, _, _ = curve_of(columns, j, float(base))
        home = cost + k * miss(decay[j], float(base), relaxed) + l * base
        for c in (base - 1, base + 1):
            if 1 <= c <= most[j]:
                there, _, _ = curve_of(columns, j, float(c))
                extra = there + k * miss(decay[j], float(c), relaxed) + l * c - home
                least[j] = min(least[j], extra)


@kernel
def balanced_options(
    group: int,
    count: int,
    columns: Columns,
    most: Integers,
    relaxed: bool,
    k: float,
    l: float,  # noqa: E741
    base: int,
    gap: float,
    penalty: Floats,
    late: Floats,
    change: Integers,
) -> int:
    """List changes of a group's total copies with a penalty within the gap; return their number.

    If g is convex in r, the cheapest way to have a total number of copies is to distribute it
    evenly. The first change is of 0 copies. If the arrays are too short, the result exceeds their
    length by 1.
    """
    decay = columns.decay
    cost, _, _ = curve_of(columns, group, float(base))
    phi = miss(decay[group], float(base), relaxed)
    home = cost + k * phi + l * base
    penalty[0] = 0.0
    late[0] = 0.0
    change[0] = 0
    found = 1
    for direction in (1, -1):
        here, behind = 0.0, 0.0
        step = 0
        c = base + direction
        open_ended = True
        while open_ended and 1 <= c <= most[group]:
            there, _, _ = curve_of(columns, group, float(c))
            other = miss(decay[group], float(c), relaxed)
            extra = max(there + k * other + l * c - home, 0.0)
            for moved in range(1, count + 1):
                total = (count - moved) * here + moved * extra
                if total > gap:
                    open_ended = False
                    break
                if found >= penalty.shape[0]:
                    return found + 1
                penalty[found] = total
                late[found] = (count - moved) * behind + moved * (other - phi)
                change[found] = direction * (step * count + moved)
                found += 1
            here = extra
            behind = other - phi
            step += 1
            c += direction
    return found


@kernel
def multisets(
    count: int,
    moves: int,
    penalty: Floats,
    late: Floats,
    machines: Integers,
    gap: float,
    limit: int,
    chosen: Integers,
    out_penalty: Floats,
    out_late: Floats,
    out_machines: Integers,
) -> int:
    """List the numbers of a group's tasks that make each move, within the gap; count the ways.

    Row 0 has no moves. Returns ``limit + 1`` if there are more than ``limit``.
    """
    number = np.zeros(moves, dtype=np.int64)
    found = 0
    left = count
    spent, behind, more = 0.0, 0.0, 0
    while True:
        if found >= limit:
            return limit + 1
        chosen[found, :moves] = number
        out_penalty[found] = spent
        out_late[found] = behind
        out_machines[found] = more
        found += 1
        # The next multiset in odometer order; a digit that would exceed the gap returns to 0.
        place = 0
        while place < moves:
            if left > 0 and spent + penalty[place] <= gap:
                number[place] += 1
                left -= 1
                break
            left += number[place]
            number[place] = 0
            spent, behind, more = 0.0, 0.0, 0
            for m in range(moves):
                spent += number[m] * penalty[m]
                behind += number[m] * late[m]
                more += number[m] * machines[m]
            place += 1
        if place == moves:
            return found
        spent, behind, more = 0.0, 0.0, 0
        for m in range(moves):
            spent += number[m] * penalty[m]
            behind += number[m] * late[m]
            more += number[m] * machines[m]


class Sums(NamedTuple):
    """Changes by moves, as arrays of shape (ways,): a group's options, or states of the search."""

    penalty: Floats  # sums of penalties
    late: Floats  # changes of sum phi
    machines: Integers  # changes of sum r


class Limits(NamedTuple):
    """Limits of states that can still be part of a better choice."""

    gap: float  # maximum of the penalties and the value of unused slack together
    k: float  # price of slack in sum phi
    l: float  # price of slack in sum r  # noqa: E741
    room_late: float  # slack of sum phi
    room_machines: int  # slack of sum r
    least_late: float  # minimum change of sum phi of the remaining groups
    most_late: float
    least_machines: int  # minimum change of sum r of the remaining groups
    most_machines: int


@kernel
def extend(
    states: Sums, options: Sums, limits: Limits, new: Sums, parent: Integers, option: Integers
) -> int:
    """Combine every state with every option of the next group, and keep those that can still win.

    Options are sorted by penalty. A state is kept if the remaining groups can still bring both sums
    within their slack, with penalties and unused slack worth less than the gap. Returns the number
    of states; if the arrays are too short, one more than their length.
    """
    kept = 0
    for s in range(states.penalty.shape[0]):
        for o in range(options.penalty.shape[0]):
            total = states.penalty[s] + options.penalty[o]
            if total > limits.gap:
                break
            behind = states.late[s] + options.late[o]
            if behind + limits.least_late > limits.room_late:
                continue
            more = states.machines[s] + options.machines[o]
            if more + limits.least_machines > limits.room_machines:
                continue
            unused = limits.k * max(limits.room_late - behind - limits.most_late, 0.0)
            unused += limits.l * max(limits.room_machines - more - limits.most_machines, 0)
            if total + unused > limits.gap:
                continue
            if kept >= new.penalty.shape[0]:
                return kept + 1
            new.penalty[kept] = total
            new.late[kept] = behind
            new.machines[kept] = more
            parent[kept] = s
            option[kept] = o
            kept += 1
    return kept


@kernel
def list_undominated(
    order: Integers,
    penalty: Floats,
    late: Floats,
    machines: Integers,
    k: float,
    l: float,  # noqa: E741
    by_machines: bool,
    keep: Integers,
) -> int:
    """List the states that no other state beats in cost, lateness and machines at once.

    ``order`` sorts by machines (if they matter), then lateness. The cost relative to the bound is
    penalty - k late - l machines. Returns the number of states, which are written to ``keep``.
    """
    kept = 0
    best = np.inf
    for i in range(order.shape[0]):
        s = order[i]
        if i == 0 or (by_machines and machines[s] != machines[order[i - 1]]):
            best = np.inf
        cost = penalty[s] - k * late[s] - l * machines[s]
        if cost < best:
            best = cost
            keep[kept] = s
            kept += 1
    return kept
