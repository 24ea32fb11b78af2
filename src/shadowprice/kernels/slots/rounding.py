"""PD-ORS's randomised rounding, (3.26)-(3.27) and Algorithm 4 steps 9-11, in distribution.

Algorithm 4 rounds ``G`` times the relaxed solution repeatedly until the result is feasible. Each
machine's outcome (workers up or down, parameter servers up or down) is independent. Feasibility
depends on machines only through their own capacity and through the two totals. So the probability
that a round is feasible is a convolution over machines, the number of rounds until success is
geometric, and a feasible result can be drawn backwards through the convolution. Results have the
same distribution as those of the loop, which is in `tests/oracles`.

The random generator is a hash of (seed, job, slot, workers, purpose), so that no draw depends on
the order of calls.
"""

import math
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.slots.polygons import Counts, Point, Slot, fits_on_machine

WHOLE = 1e-9
"""Relaxed counts closer than this to an integer are integers."""

# Constants of SplitMix64, and of 64-bit products from 32-bit halves.
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_MANTISSA = np.uint64(11)  # bits of a word beyond the 53 of a float's mantissa

ROUNDS, OUTCOME = constant(0), constant(1)
"""Purposes of draws: the number of rounds until success, and its totals; then one per machine."""


@inlined
def _multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a * b modulo 2**64; interpreted, a direct product would warn of an overflow."""
    low = (a & _LOW) * (b & _LOW)
    cross = (((a >> _HALF) * (b & _LOW)) & _LOW) + (((a & _LOW) * (b >> _HALF)) & _LOW)
    high = ((low >> _HALF) + cross) & _LOW
    return (high << _HALF) | (low & _LOW)


@kernel
def mix(stream: np.uint64, word: int) -> np.uint64:
    """Return the stream that `word` selects in `stream` (SplitMix64's output function).

    A seed is a stream. Words are not negative: a job's number, a slot, a worker count, a purpose.
    """
    z = stream ^ _multiply(np.uint64(word) ^ _FIRST, _STEP)
    z = _multiply(z ^ (z >> _SHIFTS[0]), _FIRST)
    z = _multiply(z ^ (z >> _SHIFTS[1]), _SECOND)
    return z ^ (z >> _SHIFTS[2])


@inlined
def uniform(stream: np.uint64, word: int) -> float:
    """Return the draw in [0, 1) that `word` selects in `stream`."""
    return np.float64(mix(stream, word) >> _MANTISSA) * 2.0**-53


@inlined
def gain_factor(delta: float, rows: int, cover: float) -> float:
    """Return G of Lemma 1 and, with 2 rows and W_1 = min(m_w, m_p), of Theorem 2; it exceeds 1.

    The rounding fails with probability below ``delta``, in (0, 1]. ``rows`` is m, the number of
    cover constraints. ``cover`` is W_a, the minimum ratio of right-hand side and coefficient in
    these constraints; it is positive.
    """
    part = math.log(3.0 * rows / delta) / cover
    return 1.0 + part + math.sqrt(part * part + 2.0 * part)


class RequiredTotals(NamedTuple):
    """Limits of a feasible placement's totals."""

    workers: int  # minimum of workers, m_w of (3.24)
    ps_count: int  # minimum of parameter servers, m_p of (3.25)
    max_workers: int  # K of (3.2); (3.5) bounds parameter servers by workers


class Parts(NamedTuple):
    """Values to round, as arrays (used,): integer parts, and probabilities of rounding up."""

    machine: Integers  # the used machines, on which a value isn't 0
    low_w: Integers  # workers rounded down
    low_s: Integers  # parameter servers rounded down
    up_w: Floats  # probability of one more worker, 0 for integers
    up_s: Floats


class TotalDistribution(NamedTuple):
    """Distribution of the totals of the first machines, if all outcomes fit.

    ``totals[i, a, b]`` is the probability that the first i machines all fit, and round up a workers
    and b parameter servers among them. ``chance`` (used, 4) is the probability of each outcome of a
    machine, 2 a + b; 0 if the outcome doesn't fit.
    """

    totals: Floats
    chance: Floats


@inlined
def _parts(gain: float, relaxed: Point) -> Parts:
    """Split `gain` times the relaxed solution into integer parts and probabilities."""
    machines = len(relaxed.w)
    used = np.empty(machines, np.int64)
    low_w = np.empty(machines, np.int64)
    low_s = np.empty(machines, np.int64)
    up_w = np.zeros(machines)
    up_s = np.zeros(machines)
    n = 0
    for h in range(machines):
        x, y = gain * relaxed.w[h], gain * relaxed.s[h]
        if x < WHOLE and y < WHOLE:
            continue
        used[n] = h
        low_w[n] = math.floor(x + WHOLE)
        low_s[n] = math.floor(y + WHOLE)
        if x - low_w[n] > WHOLE:
            up_w[n] = x - low_w[n]
        if y - low_s[n] > WHOLE:
            up_s[n] = y - low_s[n]
        n += 1
    return Parts(used[:n], low_w[:n], low_s[:n], up_w[:n], up_s[:n])


@inlined
def _total_distribution(slot: Slot, parts: Parts) -> TotalDistribution:
    """Convolve the outcomes that fit, machine by machine."""
    up_w, up_s = parts.up_w, parts.up_s
    n = len(parts.machine)
    totals = np.zeros((n + 1, (up_w > 0.0).sum() + 1, (up_s > 0.0).sum() + 1))
    chance = np.zeros((n, 4))
    totals[0, 0, 0] = 1.0
    top_a, top_b = 0, 0
    for i in range(n):
        free = slot.free[parts.machine[i]]
        more_a, more_b = 0, 0
        for a in range(2):
            if a == 1 and up_w[i] == 0.0:
                continue
            for b in range(2):
                if b == 1 and up_s[i] == 0.0:
                    continue
                if not fits_on_machine(
                    free, slot.worker, slot.ps, parts.low_w[i] + a, parts.low_s[i] + b
                ):
                    continue
                weight = (up_w[i] if a == 1 else 1.0 - up_w[i]) * (
                    up_s[i] if b == 1 else 1.0 - up_s[i]
                )
                chance[i, 2 * a + b] = weight
                more_a, more_b = max(more_a, a), max(more_b, b)
                for x in range(top_a + 1):
                    for y in range(top_b + 1):
                        totals[i + 1, x + a, y + b] += weight * totals[i, x, y]
        top_a += more_a
        top_b += more_b
    return TotalDistribution(totals, chance)


@inlined
def _feasible(required: RequiredTotals, workers: int, ps_count: int) -> bool:
    """Return whether totals meet the constraints of all machines together."""
    return (
        required.workers <= workers <= required.max_workers
        and required.ps_count <= ps_count <= workers
    )


@inlined
def _draw(
    parts: Parts,
    distribution: TotalDistribution,
    end_a: int,
    end_b: int,
    stream: np.uint64,
    out: Counts,
) -> None:
    """Draw each machine's outcome, from the last to the first, given the totals rounded up."""
    totals, chance = distribution.totals, distribution.chance
    out_w, out_s = out
    out_w[:] = 0
    out_s[:] = 0
    for i in range(len(parts.machine) - 1, -1, -1):
        remaining = uniform(stream, i + 2) * totals[i + 1, end_a, end_b]
        outcome = -1
        for k in range(4):
            a, b = k // 2, k % 2
            if chance[i, k] == 0.0 or a > end_a or b > end_b:
                continue
            weight = chance[i, k] * totals[i, end_a - a, end_b - b]
            if weight > 0.0 and remaining >= 0.0:
                outcome = k
            remaining -= weight
        end_a -= outcome // 2
        end_b -= outcome % 2
        out_w[parts.machine[i]] = parts.low_w[i] + outcome // 2
        out_s[parts.machine[i]] = parts.low_s[i] + outcome % 2


@inlined
def round_feasibly(
    relaxed: Point,
    slot: Slot,
    required: RequiredTotals,
    gain: float,
    tries: int,
    stream: np.uint64,
    out: Counts,
) -> tuple[int, float]:
    """Round `gain` times the relaxed solution until feasible, at most `tries` times.

    Returns the number of rounds until success, 0 if all tries fail, and the probability that a
    round is feasible. ``out`` receives the first feasible result, if any.
    """
    parts = _parts(gain, relaxed)
    sum_w: int = parts.low_w.sum()
    sum_s: int = parts.low_s.sum()
    if (
        sum_w > required.max_workers
        or sum_w + (parts.up_w > 0.0).sum() < required.workers
        or sum_s + (parts.up_s > 0.0).sum() < required.ps_count
    ):
        return 0, 0.0
    distribution = _total_distribution(slot, parts)
    last = distribution.totals[len(parts.machine)]
    probability = 0.0
    for a in range(last.shape[0]):
        for b in range(last.shape[1]):
            if _feasible(required, sum_w + a, sum_s + b):
                probability += last[a, b]
    if probability <= 0.0:
        return 0, 0.0
    probability = min(probability, 1.0)
    rounds = 1.0
    if probability < 1.0:
        # Geometric, by inversion of a draw in (0, 1].
        rounds += math.floor(math.log(1.0 - uniform(stream, ROUNDS)) / math.log1p(-probability))
    if rounds > tries:
        return 0, probability
    # Draw the totals first, then each machine's outcome.
    remaining = uniform(stream, OUTCOME) * probability
    end_a, end_b = -1, -1
    for a in range(last.shape[0]):
        for b in range(last.shape[1]):
            if _feasible(required, sum_w + a, sum_s + b):
                if last[a, b] > 0.0 and remaining >= 0.0:
                    end_a, end_b = a, b
                remaining -= last[a, b]
    _draw(parts, distribution, end_a, end_b, stream, out)
    return int(rounds), probability
