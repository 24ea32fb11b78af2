"""PD-ORS's randomised rounding, (3.26)-(3.27) and Algorithm 4 steps 9-11, from its exact law.

Algorithm 4 rounds ``G`` times the relaxed solution again and again until the result is feasible.
Each machine's outcome (workers up or down, servers up or down) is independent, and feasibility
depends on machines only through their own room and through the two totals. So the probability that
a round is feasible is a convolution over machines, the number of rounds until success is geometric,
and a feasible result can be drawn backwards through the convolution: the same law as the loop, with
no loop. `tests/oracles` holds the loop.

The generator is a hash of (seed, job, slot, workers, purpose): no draw depends on the order of
calls.
"""

import math

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.slots.polygons import room_for

WHOLE = 1e-9
"""Relaxed counts closer than this to an integer are that integer."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_MANTISSA = np.uint64(11)


@kernel
def _multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a * b modulo 2**64 from halves, so that interpreted code wraps without a warning."""
    low = (a & _LOW) * (b & _LOW)
    cross = (((a >> _HALF) * (b & _LOW)) & _LOW) + (((a & _LOW) * (b >> _HALF)) & _LOW)
    high = ((low >> _HALF) + cross) & _LOW
    return (high << _HALF) | (low & _LOW)


@kernel
def mix(stream: np.uint64, word: int) -> np.uint64:
    """Return the stream that `word` selects of `stream` (SplitMix64's output function).

    Parameters
    ----------
    stream : uint64
        A stream, or a seed.
    word : int
        Not negative: a job's number, a slot, a number of workers, a purpose.
    """
    z = stream ^ _multiply(np.uint64(word) ^ _FIRST, _STEP)
    z = _multiply(z ^ (z >> _SHIFTS[0]), _FIRST)
    z = _multiply(z ^ (z >> _SHIFTS[1]), _SECOND)
    return z ^ (z >> _SHIFTS[2])


@kernel
def uniform(stream: np.uint64, word: int) -> float:
    """Return the draw in [0, 1) that `word` selects of `stream`."""
    return np.float64(mix(stream, word) >> _MANTISSA) * 2.0**-53


@kernel
def gain_factor(delta: float, rows: int, cover: float) -> float:
    """Return G of Lemma 1 and, with 2 rows and W_1 = min(m_w, m_p), of Theorem 2.

    Parameters
    ----------
    delta : float
        In (0, 1]: the rounding fails with probability below it.
    rows : int
        m, the number of cover constraints.
    cover : float
        W_a, the least right-hand side over coefficient among them, positive.

    Returns
    -------
    float
        Above 1.
    """
    part = math.log(3.0 * rows / delta) / cover
    return 1.0 + part + math.sqrt(part * part + 2.0 * part)


@kernel
def round_feasibly(
    relaxed_w: NDArray[np.float64],
    relaxed_s: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: int,
    servers: int,
    most: int,
    gain: float,
    tries: int,
    stream: np.uint64,
    out_w: NDArray[np.int64],
    out_s: NDArray[np.int64],
) -> tuple[int, float]:
    """Round `gain` times the relaxed solution until feasible, at most `tries` times.

    Parameters
    ----------
    relaxed_w, relaxed_s : ndarray of float64, shape (machines,)
        The relaxed solution.
    free, worker, server
        Room and demands, as in `polygons.room_for`.
    workers, servers, most : int
        m_w and m_p of (3.24), (3.25) and K of (3.2); (3.5) asks that servers not exceed workers.
    gain : float
        G.
    tries : int
        Most rounds.
    stream : uint64
        Selects the draws.
    out_w, out_s : ndarray of int64, shape (machines,)
        The first feasible result; written where there is one.

    Returns
    -------
    rounds : int
        Rounds made until success, 0 if all tries failed.
    probability : float
        That one round is feasible.
    """
    machines = len(relaxed_w)
    used = np.empty(machines, np.int64)
    low_w = np.empty(machines, np.int64)
    low_s = np.empty(machines, np.int64)
    up_w = np.zeros(machines)
    up_s = np.zeros(machines)
    n, sum_w, sum_s, wide_w, wide_s = 0, 0, 0, 0, 0
    for h in range(machines):
        x, y = gain * relaxed_w[h], gain * relaxed_s[h]
        if x < WHOLE and y < WHOLE:
            continue
        used[n] = h
        low_w[n] = math.floor(x + WHOLE)
        low_s[n] = math.floor(y + WHOLE)
        if x - low_w[n] > WHOLE:
            up_w[n] = x - low_w[n]
            wide_w += 1
        if y - low_s[n] > WHOLE:
            up_s[n] = y - low_s[n]
            wide_s += 1
        sum_w += low_w[n]
        sum_s += low_s[n]
        n += 1
    if sum_w > most or sum_w + wide_w < workers or sum_s + wide_s < servers:
        return 0, 0.0
    # law[i, a, b]: probability that the first i machines all have room and round up a workers
    # and b servers among them.
    law = np.zeros((n + 1, wide_w + 1, wide_s + 1))
    chance = np.zeros((n, 4))
    law[0, 0, 0] = 1.0
    top_a, top_b = 0, 0
    for i in range(n):
        h = used[i]
        more_a, more_b = 0, 0
        for a in range(2):
            if a == 1 and up_w[i] == 0.0:
                continue
            for b in range(2):
                if b == 1 and up_s[i] == 0.0:
                    continue
                if not room_for(free[h], worker, server, low_w[i] + a, low_s[i] + b):
                    continue
                weight = (up_w[i] if a == 1 else 1.0 - up_w[i]) * (
                    up_s[i] if b == 1 else 1.0 - up_s[i]
                )
                chance[i, 2 * a + b] = weight
                more_a, more_b = max(more_a, a), max(more_b, b)
                for x in range(top_a + 1):
                    for y in range(top_b + 1):
                        law[i + 1, x + a, y + b] += weight * law[i, x, y]
        top_a += more_a
        top_b += more_b
    probability = 0.0
    for a in range(top_a + 1):
        for b in range(top_b + 1):
            if workers <= sum_w + a <= most and servers <= sum_s + b <= sum_w + a:
                probability += law[n, a, b]
    if probability <= 0.0:
        return 0, 0.0
    probability = min(probability, 1.0)
    rounds = 1.0
    if probability < 1.0:
        # Geometric, by inversion of a draw in (0, 1].
        rounds += math.floor(math.log(1.0 - uniform(stream, 0)) / math.log1p(-probability))
    if rounds > tries:
        return 0, probability
    # The totals first, then each machine given the totals that the ones before it must make.
    left = uniform(stream, 1) * probability
    end_a, end_b = -1, -1
    for a in range(top_a + 1):
        for b in range(top_b + 1):
            if workers <= sum_w + a <= most and servers <= sum_s + b <= sum_w + a:
                if law[n, a, b] > 0.0 and left >= 0.0:
                    end_a, end_b = a, b
                left -= law[n, a, b]
    out_w[:] = 0
    out_s[:] = 0
    for i in range(n - 1, -1, -1):
        left = uniform(stream, i + 2) * law[i + 1, end_a, end_b]
        taken = -1
        for k in range(4):
            a, b = k // 2, k % 2
            if chance[i, k] == 0.0 or a > end_a or b > end_b:
                continue
            weight = chance[i, k] * law[i, end_a - a, end_b - b]
            if weight > 0.0 and left >= 0.0:
                taken = k
            left -= weight
        end_a -= taken // 2
        end_b -= taken % 2
        out_w[used[i]] = low_w[i] + taken // 2
        out_s[used[i]] = low_s[i] + taken % 2
    return int(rounds), probability
