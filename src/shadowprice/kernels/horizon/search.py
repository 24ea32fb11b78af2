"""The exact search over slots: which choice in which slot, and when to complete.

OASiS (problem (27)/(28), Algorithm 2) and PD-ORS (Algorithm 2, with (3.16)) both ask: given what
every choice costs in every slot, gather ``required`` units with at most one choice a slot, so that
utility(completion slot) - cost is largest. `best_schedule` answers it exactly for any costs and any
gains: neither need be convex or monotone. Completion slots are visited by decreasing bound on their
payoff (`horizon.bounds`), and solved exactly (`horizon.core`) only while the bound beats the best
schedule found.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.horizon.bounds import (
    equal_slots,
    greatest_common_divisor,
    relaxations,
    slot_options,
)
from shadowprice.kernels.horizon.prefix import TOLERANCE, solve_prefix
from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Schedule(NamedTuple):
    """The best schedule over a horizon.

    Attributes
    ----------
    feasible : bool
        Whether any completion slot can gather what is required.
    completion : int
        Last slot used, -1 if infeasible (0 if nothing is required).
    payoff : float
        Utility at completion less cost; ``-inf`` if infeasible. May be negative.
    cost : float
        Cost of the choices, summed from slot 0 on; ``inf`` if infeasible.
    choice : int64[T]
        Choice in each slot, -1 for none.
    """

    feasible: bool
    completion: int
    payoff: float
    cost: float
    choice: Ints


@kernel
def _search(
    cost: Floats, gain: Ints, required: int, utility: Floats
) -> tuple[int, float, float, Ints]:
    """Best completion slot (-1: none), payoff, cost and choices; see `best_schedule`."""
    slots = cost.shape[0]
    choice = np.full(slots, -1, np.int64)
    if required <= 0:
        return 0, utility[0], 0.0, choice
    divisor = greatest_common_divisor(gain)
    if divisor == 0:
        return -1, -np.inf, np.inf, choice
    required = (required + divisor - 1) // divisor
    gain = gain // divisor
    class_of, first = equal_slots(cost)
    option_gain, option_cost, option_choice, option_count, hull, slope, hull_count = slot_options(
        cost, gain, first
    )
    lower, upper, multiplier = relaxations(
        class_of, required, option_gain, option_cost, hull, slope, hull_count
    )
    known = -np.inf  # payoff of some schedule, not necessarily kept
    for t in range(slots):
        if upper[t] < np.inf:
            known = max(known, utility[t] - upper[t])
    if known == -np.inf:
        return -1, -np.inf, np.inf, choice

    relaxed = lower.copy()
    best = -np.inf
    best_slot = slots
    best_cost = np.inf
    best_option = np.empty(0, np.int64)
    widen = True
    while True:
        # The completion slot of the largest bound that may still beat the best, or tie earlier.
        target = -1
        target_bound = -np.inf
        for t in range(slots):
            if lower[t] == np.inf:
                continue
            bound = utility[t] - lower[t]
            margin = 2.0 * TOLERANCE * (abs(utility[t]) + abs(known))
            if t < best_slot:
                is_open = bound >= known - 0.5 * margin
            else:
                is_open = bound > known + margin
            if is_open and bound > target_bound:
                target = t
                target_bound = bound
        if target < 0:
            break
        # Where the relaxation is flat, a later slot bounds every earlier one: settle them together.
        last = target
        if widen:
            for t in range(target + 1, slots):
                if lower[t] < lower[target] * (1.0 - TOLERANCE):
                    break
                bound = utility[t] - lower[t]
                margin = 2.0 * TOLERANCE * (abs(utility[t]) + abs(known))
                if (t < best_slot and bound >= known - 0.5 * margin) or bound > known + margin:
                    last = t
        margin = 2.0 * TOLERANCE * (abs(utility[target]) + abs(known))
        limit = utility[target] - known + margin
        found, option = solve_prefix(
            last, required, limit, relaxed[last], lower[last], multiplier[last], class_of,
            option_gain, option_cost, option_count, hull, slope, hull_count,
        )  # fmt: skip
        proven = min(found, limit)
        for t in range(last + 1):
            if lower[t] < proven:
                lower[t] = proven
        if found == np.inf:
            widen = True
            if last == target:
                lower[target] = np.inf
            continue
        widen = last == target
        used = len(option) - 1
        while option[used] == 0:
            used -= 1
        payoff = utility[used] - found
        margin = 2.0 * TOLERANCE * (abs(utility[used]) + abs(payoff))
        if last == target:
            lower[target] = np.inf
        known = max(known, payoff)
        if best < known - margin:
            better = payoff >= known - margin
        else:
            better = payoff >= known - margin and (
                used < best_slot or (used == best_slot and found < best_cost)
            )
        if better:
            best = payoff
            best_slot = used
            best_cost = found
            best_option = option
    over = -required
    for s in range(len(best_option)):
        choice[s] = option_choice[class_of[s], best_option[s]]
        over += option_gain[class_of[s], best_option[s]]
    # Among choices of one price (free ones, say) take no more than is needed.
    for s in range(len(best_option) - 1, -1, -1):
        if over <= 0:
            break
        if choice[s] >= 0:
            had = choice[s]
            for j in range(len(gain)):
                if cost[s, j] <= cost[s, had] and gain[had] - over <= gain[j] < gain[choice[s]]:
                    choice[s] = j
            over -= gain[had] - gain[choice[s]]
    return best_slot, best, best_cost, choice


def _checked(cost: Floats, gain: Ints) -> tuple[Floats, Ints]:
    """Contiguous arrays of agreeing shape, non-negative costs and positive gains."""
    cost = np.ascontiguousarray(cost, dtype=np.float64)
    # Copied: for a read-only array everything would be compiled a second time.
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


def best_schedule(cost: Floats, gain: Ints, required: int, utility: Floats) -> Schedule:
    """Schedule of largest payoff, exactly (to 1e-9 relative).

    Parameters
    ----------
    cost : float64[T, C]
        Cost >= 0 of each choice in each slot; ``inf`` (or >= 1e300) where infeasible. Doing
        nothing is free and need not be listed.
    gain : int64[C]
        Progress units >= 1 that each choice adds, in any order and shape.
    required : int
        Progress units to gather.
    utility : float64[T]
        Value of completing in each slot, non-increasing.

    Returns
    -------
    Schedule
        On equal payoffs the earliest completion. The same input always gives the same choices.

    Raises
    ------
    ValueError
        If shapes disagree, a cost is negative or not a number, or a gain is below 1.

    Notes
    -----
    OASiS problem (27): max over t of f(t - a) - cost(t), where cost(t) is problem (28).
    """
    cost, gain = _checked(cost, gain)
    utility = np.ascontiguousarray(utility, dtype=np.float64)
    if utility.shape != (cost.shape[0],):
        raise ValueError(f"utility must have one entry a slot ({cost.shape[0]})")
    slot, payoff, total, choice = _search(cost, gain, required, utility)
    return Schedule(slot >= 0, int(slot), float(payoff), float(total), choice)
