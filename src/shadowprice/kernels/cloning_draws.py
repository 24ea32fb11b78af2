"""Kernels that draw durations: one law at a time, and whole trials of a job.

A law is a kind, up to three parameters, and a stretch of flat arrays where it has phases or
steps. Draws come as uniform numbers from outside, so that any generator can feed them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DRAW_PARETO = 0
"""parameters: shape, minimum"""
DRAW_WEIBULL = 1
"""parameters: shape, scale, minimum"""
DRAW_LOG_NORMAL = 2
"""parameters: sigma, median, minimum"""
DRAW_STEPS = 3
"""parameters: factor, tail order (0: none), threshold; first: times, second: share left after"""
DRAW_PHASES = 4
"""parameters: minimum; first: share up to and with the phase, second: its mean"""


@kernel
def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile: Wichura's AS 241, PPND16 (Applied Statistics 37, 1988).

    Accurate to about 1e-16 of its value.
    """
    q = probability - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = (
            ((((((2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r
            + 6.7265770927008700853e4) * r + 4.5921953931549871457e4) * r
            + 1.3731693765509461125e4) * r + 1.9715909503065514427e3) * r
            + 1.3314166789178437745e2) * r + 3.3871328727963666080e0
        )  # fmt: skip
        bottom = (
            ((((((5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r
            + 3.9307895800092710610e4) * r + 2.1213794301586595867e4) * r
            + 5.3941960214247511077e3) * r + 6.8718700749205790830e2) * r
            + 4.2313330701600911252e1) * r + 1.0
        )  # fmt: skip
        return q * top / bottom
    r = probability if q < 0.0 else 1.0 - probability
    r = math.sqrt(-math.log(r))
    if r <= 5.0:
        r -= 1.6
        top = (
            ((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r
            + 2.41780725177450611770e-1) * r + 1.27045825245236838258e0) * r
            + 3.64784832476320460504e0) * r + 5.76949722146069140550e0) * r
            + 4.63033784615654529590e0) * r + 1.42343711074968357734e0
        )  # fmt: skip
        bottom = (
            ((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r
            + 1.51986665636164571966e-2) * r + 1.48103976427480074590e-1) * r
            + 6.89767334985100004550e-1) * r + 1.67638483018380384940e0) * r
            + 2.05319162663775882187e0) * r + 1.0
        )  # fmt: skip
    else:
        r -= 5.0
        top = (
            ((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r
            + 1.24266094738807843860e-3) * r + 2.65321895265761230930e-2) * r
            + 2.96560571828504891230e-1) * r + 1.78482653991729133580e0) * r
            + 5.46378491116411436990e0) * r + 6.65790464350110377720e0
        )  # fmt: skip
        bottom = (
            ((((((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r
            + 1.84631831751005468180e-5) * r + 7.86869131145613259100e-4) * r
            + 1.48753612908506148525e-2) * r + 1.36929880922735805310e-1) * r
            + 5.99832206555887937690e-1) * r + 1.0
        )  # fmt: skip
    return -top / bottom if q < 0.0 else top / bottom


@kernel
def duration(
    kind: int,
    parameters: Floats,
    begin: int,
    end: int,
    first: Floats,
    second: Floats,
    log_survival: float,
) -> float:
    """Return the time that a task outlives with probability exp(``log_survival``)."""
    one, two, three = float(parameters[0]), float(parameters[1]), float(parameters[2])
    if kind == DRAW_PARETO:
        return two * math.exp(-log_survival / one)
    if kind == DRAW_WEIBULL:
        if one == 1.0:
            return three - two * log_survival
        return three + two * float((-log_survival) ** (1.0 / one))
    if kind == DRAW_LOG_NORMAL:
        # exp(-1e-300) is 1: the quantile of 1 itself would be infinite.
        probability = min(math.exp(log_survival), 1.0 - 1.2e-16)
        return three + two * math.exp(-one * normal_quantile(probability))
    goal = math.exp(log_survival)
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if second[middle] <= goal:
            high = middle
        else:
            low = middle + 1
    if low == end:
        if two > 0.0:
            over = (float(second[end - 1]) / goal) ** (1.0 / two)
            return one * three * float(over)
        low = end - 1
    return one * float(first[low])


@kernel
def phase_duration(
    parameters: Floats, begin: int, end: int, first: Floats, second: Floats, uniform: float
) -> float:
    """Return a hyper-exponential duration: a uniform number picks the phase, its rest the time."""
    below = 0.0
    last = end - 1
    for p in range(begin, end):
        if uniform < first[p] or p == last:
            rest = (uniform - below) / (first[p] - below)
            return float(parameters[0] - second[p] * math.log1p(-min(rest, 1.0 - 1.2e-16)))
        below = first[p]
    return float(parameters[0])


@kernel
def run_trials(
    law: Integers,
    copies: Integers,
    kinds: Integers,
    parameters: Floats,
    begins: Integers,
    ends: Integers,
    first: Floats,
    second: Floats,
    uniforms: Floats,
    winners: bool,
    flowtime: Floats,
    machine_time: Floats,
) -> None:
    """Run a job once a row of uniform numbers: every task as long as its first copy to finish.

    Parameters
    ----------
    law, copies : ndarray of int64, shape (tasks,)
        Law and number of copies of every task.
    kinds, parameters, begins, ends, first, second
        The laws, flat.
    uniforms : ndarray, shape (trials, draws)
        Numbers in [0, 1), one a copy (or one a task where ``winners``, laws of phases excepted).
    winners : bool
        Draw the winner: the least of r draws outlives t with probability S(t)^r.
    flowtime, machine_time : ndarray, shape (trials,)
        Receive max t and sum r t.
    """
    for trial in range(uniforms.shape[0]):
        place = 0
        last, used = 0.0, 0.0
        for task in range(law.shape[0]):
            j = law[task]
            r = copies[task]
            if kinds[j] == DRAW_PHASES:
                time = np.inf
                for _ in range(r):
                    time = min(
                        time,
                        phase_duration(
                            parameters[j], begins[j], ends[j], first, second,
                            uniforms[trial, place],
                        ),
                    )  # fmt: skip
                    place += 1
            else:
                if winners:
                    log_survival = math.log1p(-uniforms[trial, place]) / r
                    place += 1
                else:
                    # The inverse falls in S, so the least time is that of the least number: it
                    # is turned into a time once, with the same result as turning every copy.
                    least = uniforms[trial, place]
                    place += 1
                    for _ in range(r - 1):
                        least = min(least, uniforms[trial, place])
                        place += 1
                    log_survival = math.log1p(-least)
                time = duration(
                    kinds[j], parameters[j], begins[j], ends[j], first, second, log_survival
                )
            used += r * time
            last = max(last, time)
        flowtime[trial] = last
        machine_time[trial] = used
