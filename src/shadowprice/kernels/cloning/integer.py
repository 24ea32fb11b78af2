"""Kernels of CSD's integer problem: the exact search over the core that a bound leaves.

For any k, l >= 0 a choice of integer copies costs

    sum g = D(k, l) + sum of penalties + k (C - sum phi) + l (M - sum r)

A penalty is the excess of a task's g + k phi + l r over its minimum over integer r. All terms but
the first are >= 0 for a choice that meets both constraints. So a choice that beats a known one by
cost has penalties below the gap to D; the search visits only such choices. `bound` explains D, k
and l, and `curves` g and phi.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.curves import Program, curve_of, miss
from shadowprice.kernels.jit import kernel


@kernel
def min_penalties(
    program: Program, k: float, l: float, copies: Integers, min_penalty: Floats
) -> None:
    """Write each group's smallest penalty of one copy more or less for a task.

    Rounding may make it slightly negative.
    """
    columns, relaxed = program.columns, program.relaxed
    decay = columns.decay
    for j in range(decay.shape[0]):
        min_penalty[j] = np.inf
        base = copies[j]
        cost, _, _ = curve_of(columns, j, float(base))
        base_value = cost + k * miss(decay[j], float(base), relaxed) + l * base
        for c in (base - 1, base + 1):
            if 1 <= c <= program.max_copies[j]:
                changed_cost, _, _ = curve_of(columns, j, float(c))
                penalty = changed_cost + k * miss(decay[j], float(c), relaxed) + l * c - base_value
                min_penalty[j] = min(min_penalty[j], penalty)


@kernel
def balanced_options(
    group: int,
    count: int,
    program: Program,
    k: float,
    l: float,
    base: int,
    gap: float,
    penalty: Floats,
    lateness: Floats,
    change: Integers,
) -> int:
    """List changes of a group's total copies with a penalty within the gap; return their number.

    If g is convex in r, the cheapest way to have a total number of copies is an even distribution
    over the group's ``count`` tasks. ``base`` is the copies of each task before. ``penalty``,
    ``lateness`` (change of sum phi) and ``change`` (of copies) are written; the first change is 0.
    If the arrays are too short, the result exceeds their length by 1.
    """
    columns, relaxed = program.columns, program.relaxed
    decay = columns.decay
    cost, _, _ = curve_of(columns, group, float(base))
    phi = miss(decay[group], float(base), relaxed)
    base_value = cost + k * phi + l * base
    penalty[0] = 0.0
    lateness[0] = 0.0
    change[0] = 0
    count_listed = 1
    for direction in (1, -1):
        step_penalty, step_lateness = 0.0, 0.0
        step = 0
        c = base + direction
        open_ended = True
        while open_ended and 1 <= c <= program.max_copies[group]:
            changed_cost, _, _ = curve_of(columns, group, float(c))
            changed_phi = miss(decay[group], float(c), relaxed)
            next_penalty = max(changed_cost + k * changed_phi + l * c - base_value, 0.0)
            for moved in range(1, count + 1):  # tasks with c copies; others are one step behind
                total = (count - moved) * step_penalty + moved * next_penalty
                if total > gap:
                    open_ended = False
                    break
                if count_listed >= penalty.shape[0]:
                    return count_listed + 1
                penalty[count_listed] = total
                lateness[count_listed] = (count - moved) * step_lateness + moved * (
                    changed_phi - phi
                )
                change[count_listed] = direction * (step * count + moved)
                count_listed += 1
            step_penalty = next_penalty
            step_lateness = changed_phi - phi
            step += 1
            c += direction
    return count_listed


@kernel
def multisets(
    count: int,
    moves: int,
    penalty: Floats,
    lateness: Floats,
    machines: Integers,
    gap: float,
    limit: int,
    chosen: Integers,
    out_penalty: Floats,
    out_late: Floats,
    out_machines: Integers,
) -> int:
    """List the ways to distribute a group's ``count`` tasks over moves, within the gap.

    A move changes a task's copies, at a ``penalty``, a change of phi (``lateness``) and of copies
    (``machines``), all (moves,). Row w of ``chosen`` receives how many tasks make each move, and
    the other results their sums; row 0 has no moves. Returns the number of ways, ``limit + 1`` if
    there are more than ``limit``.
    """
    moved = np.zeros(moves, dtype=np.int64)
    ways = 0
    unmoved = count
    total_penalty, total_late, total_machines = 0.0, 0.0, 0
    while True:
        if ways >= limit:
            return limit + 1
        chosen[ways, :moves] = moved
        out_penalty[ways] = total_penalty
        out_late[ways] = total_late
        out_machines[ways] = total_machines
        ways += 1
        # The next multiset in odometer order; a digit that would exceed the gap returns to 0.
        digit = 0
        while digit < moves:
            if unmoved > 0 and total_penalty + penalty[digit] <= gap:
                moved[digit] += 1
                unmoved -= 1
                break
            unmoved += moved[digit]
            moved[digit] = 0
            total_penalty, total_late, total_machines = 0.0, 0.0, 0
            for m in range(moves):
                total_penalty += moved[m] * penalty[m]
                total_late += moved[m] * lateness[m]
                total_machines += moved[m] * machines[m]
            digit += 1
        if digit == moves:
            return ways
        total_penalty, total_late, total_machines = 0.0, 0.0, 0
        for m in range(moves):
            total_penalty += moved[m] * penalty[m]
            total_late += moved[m] * lateness[m]
            total_machines += moved[m] * machines[m]


class Sums(NamedTuple):
    """Sums of changes, as arrays of shape (ways,): a group's options, or states of the search."""

    penalty: Floats  # sums of penalties
    late: Floats  # changes of sum phi
    machines: Integers  # changes of sum r


class Limits(NamedTuple):
    """Limits of states that can still be part of a better choice."""

    gap: float  # maximum of the penalties and the value of unused slack together
    k: float  # price of slack in sum phi
    l: float  # price of slack in sum r
    slack_late: float  # slack of sum phi
    slack_machines: int  # slack of sum r
    min_late: float  # minimum change of sum phi of the remaining groups
    max_late: float
    min_machines: int  # minimum change of sum r of the remaining groups
    max_machines: int


@kernel
def extend(
    states: Sums, options: Sums, limits: Limits, new: Sums, parent: Integers, option: Integers
) -> int:
    """Combine every state with every option of the next group; keep states that can still win.

    Options are sorted by penalty. A state is kept if the remaining groups can still bring both sums
    within their slack, with penalties and unused slack worth less than the gap. ``new`` receives
    the states, ``parent`` and ``option`` what each combines. Returns the number of states; if the
    arrays are too short, one more than their length.
    """
    size = 0
    for s in range(states.penalty.shape[0]):
        for o in range(options.penalty.shape[0]):
            total_penalty = states.penalty[s] + options.penalty[o]
            if total_penalty > limits.gap:
                break
            total_late = states.late[s] + options.late[o]
            if total_late + limits.min_late > limits.slack_late:
                continue
            total_machines = states.machines[s] + options.machines[o]
            if total_machines + limits.min_machines > limits.slack_machines:
                continue
            unused = limits.k * max(limits.slack_late - total_late - limits.max_late, 0.0)
            unused += limits.l * max(
                limits.slack_machines - total_machines - limits.max_machines, 0
            )
            if total_penalty + unused > limits.gap:
                continue
            if size >= new.penalty.shape[0]:
                return size + 1
            new.penalty[size] = total_penalty
            new.late[size] = total_late
            new.machines[size] = total_machines
            parent[size] = s
            option[size] = o
            size += 1
    return size


@kernel
def list_undominated(
    order: Integers,
    penalty: Floats,
    late: Floats,
    machines: Integers,
    k: float,
    l: float,
    by_machines: bool,
    keep: Integers,
) -> int:
    """List the states that no other state beats in cost, lateness and machines at once.

    ``order`` sorts by machines if ``by_machines``, then by lateness. Only states with equal
    machines are compared then. The cost relative to the bound is penalty - k late - l machines.
    Returns the number of states, which are written to ``keep``.
    """
    size = 0
    best = np.inf
    for i in range(order.shape[0]):
        s = order[i]
        if i == 0 or (by_machines and machines[s] != machines[order[i - 1]]):
            best = np.inf
        cost = penalty[s] - k * late[s] - l * machines[s]
        if cost < best:
            best = cost
            keep[size] = s
            size += 1
    return size
