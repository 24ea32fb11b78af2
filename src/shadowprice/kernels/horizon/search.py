"""The exact search over slots: a choice for each slot, and a completion slot.

OASiS (problem (27)/(28), Algorithm 2) and PD-ORS (Algorithm 2, with (3.16)) have the same
subproblem: given the cost of every choice in every slot, gather ``required`` units with at most one
choice per slot, and maximise utility(completion slot) - cost. `best_schedule` solves it exactly for
any costs and gains, convex and monotone or not. Completion slots are visited by decreasing bound on
their payoff (`horizon.bounds`), and solved exactly (`horizon.core`) only while the bound beats the
best schedule so far. With a gap, the bound must beat the schedule by more than the gap, and the
remaining bounds prove the quality of the schedule.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.horizon.bounds import (
    SlotOptions,
    equal_slots,
    greatest_common_divisor,
    relaxations,
    slot_options,
)
from shadowprice.kernels.horizon.core import best_deviation
from shadowprice.kernels.jit import inlined, kernel

#: Relative difference below which two costs or payoffs count as equal.
TOLERANCE = 1e-12


class BestSchedule(NamedTuple):
    """The best schedule over a horizon.

    Attributes
    ----------
    feasible : bool
        Whether any completion slot can gather enough units.
    completion : int
        Last used slot, -1 if infeasible (0 if nothing is required).
    payoff : float
        Utility at completion less cost; ``-inf`` if infeasible. May be negative.
    cost : float
        Cost of the choices, summed from slot 0 on; ``inf`` if infeasible.
    choice : int64[T]
        Choice in each slot, -1 for none.
    bound : float
        Upper bound of all payoffs, to 1e-9 relative; equal to ``payoff`` without a gap.
    """

    feasible: bool
    completion: int
    payoff: float
    cost: float
    choice: Integers
    bound: float


@kernel
def round_up(
    slot: int, required: int, multiplier: float, class_of: Integers, options: SlotOptions
) -> tuple[Integers, int, Integers]:
    """Round the relaxation; return base options, a break edge's length and the solution.

    Break edges are edges of the hulls whose slope is ``multiplier``. The base option of a class
    ends the edges below that slope. The solution takes whole break edges while they fit, then the
    cheapest step of one slot that covers the rest. Finally `shrink` removes the excess. The
    solution is empty if no single step covers the rest.
    """
    option_gain, option_cost, _, option_count, hull, slope, hull_count = options
    classes = len(option_count)
    base = np.zeros(classes, np.int64)
    edge = np.full(classes, -1, np.int64)
    for k in range(classes):
        low = 0
        high = hull_count[k] - 1
        while low < high:
            middle = (low + high + 1) // 2
            if slope[k, middle] < multiplier:
                low = middle
            else:
                high = middle - 1
        base[k] = hull[k, low]
        if low + 1 < hull_count[k] and slope[k, low + 1] == multiplier:
            edge[k] = hull[k, low + 1]
    modulus = 0
    option = np.empty(slot + 1, np.int64)
    remaining = required
    for s in range(slot + 1):
        k = class_of[s]
        option[s] = base[k]
        remaining -= option_gain[k, base[k]]
    for s in range(slot + 1):
        k = class_of[s]
        if edge[k] >= 0:
            step = option_gain[k, edge[k]] - option_gain[k, base[k]]
            if modulus == 0:
                modulus = step
            if step <= remaining:
                option[s] = edge[k]
                remaining -= step
    if remaining > 0:
        best = np.inf
        best_slot = -1
        best_option = -1
        for s in range(slot + 1):
            k = class_of[s]
            if s > 0 and class_of[s - 1] == k and option[s - 1] == option[s]:
                continue  # the same step was considered in the slot before
            target = option_gain[k, option[s]] + remaining
            low = option[s]
            high = option_count[k]
            while low < high:
                middle = (low + high) // 2
                if option_gain[k, middle] < target:
                    low = middle + 1
                else:
                    high = middle
            if low < option_count[k]:
                step_cost = option_cost[k, low] - option_cost[k, option[s]]
                if step_cost < best:
                    best = step_cost
                    best_slot = s
                    best_option = low
        if best_slot < 0:
            return base, modulus, np.empty(0, np.int64)
        k = class_of[best_slot]
        remaining -= option_gain[k, best_option] - option_gain[k, option[best_slot]]
        option[best_slot] = best_option
    shrink(option, -remaining, class_of, options)
    return base, modulus, option


@kernel
def shrink(option: Integers, excess: int, class_of: Integers, options: SlotOptions) -> None:
    """Lower options by up to ``excess`` units: the largest saving first, on ties the latest."""
    option_gain, option_cost = options.gain, options.cost
    while excess > 0:
        best = 0.0
        best_slot = -1
        best_option = -1
        for s in range(len(option) - 1, -1, -1):
            k = class_of[s]
            if option[s] == 0:
                continue
            # Equal slots save equally; the later one was considered already.
            if s + 1 < len(option) and class_of[s + 1] == k and option[s + 1] == option[s]:
                continue
            target = option_gain[k, option[s]] - excess
            low = 0
            high = option[s]
            while low < high:
                middle = (low + high) // 2
                if option_gain[k, middle] < target:
                    low = middle + 1
                else:
                    high = middle
            if low < option[s]:
                saving = option_cost[k, option[s]] - option_cost[k, low]
                if saving > best or best_slot < 0:
                    best = saving
                    best_slot = s
                    best_option = low
        if best_slot < 0:
            return
        k = class_of[best_slot]
        excess -= option_gain[k, option[best_slot]] - option_gain[k, best_option]
        option[best_slot] = best_option


@inlined
def total_cost(option: Integers, class_of: Integers, options: SlotOptions) -> float:
    """Return the cost of one option per slot, summed from slot 0 on."""
    total = 0.0
    for s in range(len(option)):
        total += options.cost[class_of[s], option[s]]
    return total


@inlined
def solve_prefix(
    slot: int,
    required: int,
    limit: float,
    accept: float,
    lower: float,
    proven: float,
    multiplier: float,
    class_of: Integers,
    options: SlotOptions,
) -> tuple[float, float, Integers]:
    """Find the cheapest way to gather ``required`` units over slots 0..slot, if at most ``limit``.

    ``lower`` is the cost of the relaxation, and ``proven`` the best known lower bound. A solution
    within ``accept`` of the optimum is good enough.

    Returns the cost, ``inf`` if it would exceed ``limit``; a lower bound of all solutions, within
    ``accept`` (and `TOLERANCE`) of the cost or of ``limit``; and the option of each slot (0 is
    nothing), empty if the cost is ``inf``.
    """
    base, modulus, option = round_up(slot, required, multiplier, class_of, options)
    best = np.inf
    if len(option) > 0:
        cost = total_cost(option, class_of, options)
        if cost <= limit:
            best = cost
            limit = cost
            if accept > 0.0:
                limit = cost - accept  # a smaller improvement doesn't count
                if limit <= max(lower, proven):
                    return best, max(lower, proven), option
    gap = limit - lower
    proof = max(proven, limit)
    if limit - proven > TOLERANCE * limit and gap > TOLERANCE * limit:
        copies = np.zeros(len(options.option_count), np.int64)
        need = required
        for s in range(slot + 1):
            copies[class_of[s]] += 1
            need -= options.gain[class_of[s], base[class_of[s]]]
        slack = TOLERANCE / (8.0 * (slot + 1)) * limit
        excess, count = best_deviation(need, modulus, gap, multiplier, slack, copies, base, options)
        if excess < np.inf:
            exact_option = np.empty(slot + 1, np.int64)
            surplus = -required
            for s in range(slot + 1):
                k = class_of[s]
                i = options.option_count[k] - 1
                while count[k, i] == 0:  # the largest options in the earliest slots
                    i -= 1
                count[k, i] -= 1
                exact_option[s] = i
                surplus += options.gain[k, i]
            shrink(exact_option, surplus, class_of, options)
            cost = total_cost(exact_option, class_of, options)
            proof = min(proof, cost)
            if cost < best:
                best = cost
                option = exact_option
    if best == np.inf:
        option = np.empty(0, np.int64)
    return best, proof, option


@kernel
def search_slots(
    cost: Floats, gain: Integers, required: int, utility: Floats, gap: float
) -> tuple[int, float, float, Integers, float]:
    """Return completion slot (-1 for none), payoff, cost, choices and bound of `best_schedule`."""
    slots = cost.shape[0]
    choice = np.full(slots, -1, np.int64)
    if required <= 0:
        return 0, utility[0], 0.0, choice, utility[0]
    divisor = greatest_common_divisor(gain)
    if divisor == 0:
        return -1, -np.inf, np.inf, choice, -np.inf
    # Every reachable total is a multiple of the divisor.
    required = (required + divisor - 1) // divisor
    gain = gain // divisor
    class_of, first = equal_slots(cost)
    options = slot_options(cost, gain, first)
    lower, upper, multiplier = relaxations(class_of, required, options)
    best_known = -np.inf  # payoff of some schedule, not necessarily kept
    rounded = -1
    for t in range(slots):
        if upper[t] < np.inf and utility[t] - upper[t] > best_known:
            best_known = utility[t] - upper[t]
            rounded = t
    if best_known == -np.inf:
        return -1, -np.inf, np.inf, choice, -np.inf

    relaxed = lower.copy()
    best = -np.inf
    best_slot = slots
    best_cost = np.inf
    best_option = np.empty(0, np.int64)
    settled = -np.inf  # upper bound of the payoffs in all settled slots
    if gap > 0.0:
        # Keep the schedule of `best_known`, or an equally good one that completes earlier.
        for t in range(rounded):
            if utility[t] - upper[t] >= best_known - TOLERANCE * (
                abs(utility[t]) + abs(best_known)
            ):
                rounded = t
                break
        _, _, option = round_up(rounded, required, multiplier[rounded], class_of, options)
        if len(option) > 0:
            best_option = option
            best_slot = _last_used(option)
            best_cost = total_cost(option, class_of, options)
            best = utility[best_slot] - best_cost
            best_known = best
    widen = True
    while True:
        # The gap is relative to the payoff, so that the sign of the best payoff is always decided.
        # With a gap, schedules without a positive payoff needn't be compared.
        accept = gap * max(0.0, best)
        min_payoff = max(best_known + accept, 0.0) if gap > 0.0 else best_known
        # The completion slot with the largest bound that may beat the best, or tie earlier.
        target = -1
        target_bound = -np.inf
        for t in range(slots):
            if lower[t] == np.inf:
                continue
            bound = utility[t] - lower[t]
            if bound > target_bound and _is_open(
                bound, utility[t], best_known, min_payoff, t < best_slot, gap
            ):
                target = t
                target_bound = bound
        if target < 0:
            break
        # If the relaxation is flat, a later slot bounds all earlier ones: settle them together.
        last = target
        if widen:
            for t in range(target + 1, slots):
                if lower[t] < lower[target] * (1.0 - TOLERANCE):
                    break
                bound = utility[t] - lower[t]
                if _is_open(bound, utility[t], best_known, min_payoff, t < best_slot, gap):
                    last = t
        limit = utility[target] - min_payoff
        if gap == 0.0:
            limit += 2.0 * TOLERANCE * (abs(utility[target]) + abs(best_known))
        cheapest, proven, option = solve_prefix(
            last, required, limit, accept, relaxed[last], lower[last], multiplier[last], class_of,
            options,
        )  # fmt: skip
        for t in range(last + 1):
            lower[t] = max(lower[t], proven)
        if cheapest == np.inf:
            widen = True
            if last == target:
                settled = max(settled, utility[target] - proven)
                lower[target] = np.inf
            continue
        # A range with a schedule may have a better one that completes earlier: split the range.
        widen = last == target
        used = _last_used(option)
        payoff = utility[used] - cheapest
        margin = 2.0 * TOLERANCE * (abs(utility[used]) + abs(payoff))
        if last == target:
            settled = max(settled, utility[target] - proven)
            lower[target] = np.inf
        best_known = max(best_known, payoff)
        # Payoffs within the margin are equal: the earlier completion wins, then the lower cost.
        if best < best_known - margin:
            better = payoff >= best_known - margin
        else:
            better = payoff >= best_known - margin and (
                used < best_slot or (used == best_slot and cheapest < best_cost)
            )
        if better:
            best = payoff
            best_slot = used
            best_cost = cheapest
            best_option = option
    bound = best
    if gap > 0.0:
        bound = max(bound, settled)
        for t in range(slots):
            if lower[t] < np.inf:
                bound = max(bound, utility[t] - lower[t])
    excess = -required
    for s in range(len(best_option)):
        choice[s] = options.choice[class_of[s], best_option[s]]
        excess += options.gain[class_of[s], best_option[s]]
    # If choices cost the same, for instance nothing, take the smallest that still suffices.
    for s in range(len(best_option) - 1, -1, -1):
        if excess <= 0:
            break
        if choice[s] >= 0:
            old = choice[s]
            for j in range(len(gain)):
                if cost[s, j] <= cost[s, old] and gain[old] - excess <= gain[j] < gain[choice[s]]:
                    choice[s] = j
            excess -= gain[old] - gain[choice[s]]
    return best_slot, best, best_cost, choice, bound


@inlined
def _is_open(
    bound: float, utility: float, best_known: float, min_payoff: float, earlier: bool, gap: float
) -> bool:
    """Return whether a slot's bound allows a better schedule, or an equally good earlier one."""
    margin = 2.0 * TOLERANCE * (abs(utility) + abs(best_known))
    if gap > 0.0:
        return bound > min_payoff + margin
    return bound >= best_known - 0.5 * margin if earlier else bound > best_known + margin


@inlined
def _last_used(option: Integers) -> int:
    """Return the last slot that takes an option."""
    used = len(option) - 1
    while used > 0 and option[used] == 0:
        used -= 1
    return used


def _check_inputs(cost: Floats, gain: Integers) -> tuple[Floats, Integers]:
    """Return contiguous arrays; raise ValueError for wrong shapes, costs < 0 or gains < 1."""
    cost = np.ascontiguousarray(cost, dtype=np.float64)
    # A copy, because numba would compile everything again for a read-only array.
    gain = np.array(gain, dtype=np.int64)
    if cost.ndim != 2 or gain.shape != (cost.shape[1],) or cost.shape[0] == 0:
        raise ValueError(
            f"cost must be slots x choices and gain one entry a choice, "
            f"not {cost.shape} and {gain.shape}"
        )
    if cost.size and not cost.min() >= 0.0:
        raise ValueError("costs must be numbers >= 0 (inf where a choice is infeasible)")
    if gain.size and gain.min() < 1:
        raise ValueError("gains must be >= 1; leave out choices that add nothing")
    return cost, gain


def best_schedule(
    cost: Floats, gain: Integers, required: int, utility: Floats, *, gap: float = 0.0
) -> BestSchedule:
    """Return the schedule of largest payoff: exactly (to 1e-9 relative), or to within a gap.

    This is OASiS problem (27): max over t of f(t - a) - cost(t), where cost(t) is problem (28). On
    equal payoffs the earliest completion wins; with a gap, of rounded schedules only. The same
    input always gives the same choices. Raise `ValueError` if an argument is out of range.

    Parameters
    ----------
    cost : float64[T, C]
        Cost >= 0 of each choice in each slot; ``inf`` (or >= 1e300) if infeasible. Doing nothing is
        free and need not be listed.
    gain : int64[C]
        Progress units >= 1 that each choice adds, in any order and shape.
    required : int
        Progress units to gather.
    utility : float64[T]
        Value of completing in each slot, non-increasing.
    gap : float
        Relative gap >= 0: if the largest payoff is positive, ``bound - payoff`` is at most this
        share of ``bound``. If it isn't, and the gap isn't 0, the result is any schedule without a
        positive payoff, with a bound that isn't positive either.
    """
    cost, gain = _check_inputs(cost, gain)
    utility = np.ascontiguousarray(utility, dtype=np.float64)
    if utility.shape != (cost.shape[0],):
        raise ValueError(f"utility must have one entry a slot ({cost.shape[0]})")
    if not 0.0 <= gap < np.inf:
        raise ValueError(f"the gap must be a number >= 0, not {gap}: 0 for the optimum")
    slot, payoff, total, choice, bound = search_slots(cost, gain, required, utility, float(gap))
    return BestSchedule(slot >= 0, int(slot), float(payoff), float(total), choice, float(bound))
