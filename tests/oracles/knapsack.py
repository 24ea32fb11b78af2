"""Slow, obvious twins of the search over slots."""

import itertools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def brute_force_costs(cost: Floats, gain: Ints, required: int) -> Floats:
    """Minimum cost for every completion slot, by trying every combination of choices."""
    slots, choices = cost.shape
    best = np.full(slots, np.inf)
    for picks in itertools.product(range(-1, choices), repeat=slots):
        units = 0
        total = 0.0
        for slot, pick in enumerate(picks):
            if pick >= 0:
                units += int(gain[pick])
                total += float(cost[slot, pick])
            if units >= required:
                best[slot] = min(best[slot], total)
    return np.minimum.accumulate(best)


def table_costs(cost: Floats, gain: Ints, required: int) -> Floats:
    """Minimum cost for every completion slot, by a table over progress units (small ones only)."""
    slots, choices = cost.shape
    need = max(int(required), 0)
    table = np.full(need + 1, np.inf)
    table[0] = 0.0
    best = np.empty(slots)
    for slot in range(slots):
        after = table.copy()
        for pick in range(choices):
            if not np.isfinite(cost[slot, pick]):
                continue
            step = min(int(gain[pick]), need)
            moved = table + cost[slot, pick]
            after[step:] = np.minimum(after[step:], moved[: need + 1 - step])
            after[need] = min(after[need], moved[need - step :].min())
        table = after
        best[slot] = table[need]
    return best


def best_payoff(costs: Floats, utility: Floats) -> tuple[float, int]:
    """Maximum utility less cost, and the earliest slot that has it (-1 if none is feasible)."""
    payoff = np.where(np.isfinite(costs), utility - np.where(np.isfinite(costs), costs, 0), -np.inf)
    if not np.isfinite(costs).any():
        return -np.inf, -1
    return float(payoff.max()), int(payoff.argmax())


def random_instance(
    rng: np.random.Generator, slots: int, choices: int
) -> tuple[Floats, Ints, int, Floats]:
    """Draw an instance of one of several difficult kinds, at most ``slots`` x ``choices``.

    Kinds: unrelated costs, few integer costs (ties), all slots equal, equal slots with a staircase,
    a few kinds of slots, costs over 24 orders of magnitude, increasing costs, almost equal slots.
    """
    slots = int(rng.integers(1, slots + 1))
    choices = int(rng.integers(1, choices + 1))
    kind = int(rng.integers(0, 8))
    gain = rng.integers(1, int(rng.choice([3, 10, 30])), choices)
    cost = rng.random((slots, choices)) * gain
    if kind == 1:
        cost = rng.integers(0, 6, (slots, choices)).astype(float)
    elif kind == 2:
        cost = np.repeat(cost[:1], slots, 0)
    elif kind == 3:
        gain = np.arange(1, choices + 1)
        row = gain * rng.random() + np.ceil(gain * rng.random() * 0.6) * rng.random()
        cost = np.repeat(row[None], slots, 0)
    elif kind == 4:
        cost = cost[rng.integers(0, min(3, slots), slots)]
    elif kind == 5:
        cost = 10.0 ** rng.uniform(-12, 12, (slots, choices))
    elif kind == 6:
        cost, gain = np.sort(cost, 1), np.sort(gain)
    elif kind == 7:
        gain = np.arange(1, choices + 1)
        near = rng.random() * (1 + 1e-9 * rng.random((slots, 1)))
        cost = gain * near + np.ceil(gain * 0.4) * 0.3
    if rng.random() < 0.5:
        cost[rng.random(cost.shape) < rng.choice([0.1, 0.5])] = np.inf
    most = int(gain.max()) * slots
    required = int(rng.integers(0, (most if rng.random() < 0.8 else most // 4) + 2))
    utility = np.sort(rng.random(slots))[::-1] * rng.choice([0.0, 1.0, 10.0, 100.0])
    if rng.random() < 0.4:
        utility = np.full(slots, rng.random() * 10)
    if rng.random() < 0.3:
        utility = np.round(utility)
    return cost, gain.astype(np.int64), required, utility
