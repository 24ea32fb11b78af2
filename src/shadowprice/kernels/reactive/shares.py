"""Minimum satisfactory shares: the fewest workers at once with which a job completes in time.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithm 1. Under a *ceiling* a job has, in every interval, the most workers up to
the ceiling that find room there. The least ceiling that completes its work in time is its share.

What room there is, and what a level takes, is the caller's: a pool's sums slot by slot
(`satisfactory`), or groups of servers over intervals (`revision.plans`). It has to be such that
where a level finds room, every smaller one does, so that one number an interval says it all.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, kernel

Ints = NDArray[np.int64]

NOTHING = constant(-1)
"""Level of a job that stands still."""


@kernel
def completes(
    begins: Ints, intervals: int, room: Ints, gains: Ints, top: int, left: int, end: int
) -> int:
    """Return the slot in which a job completes with at most a level, -1 if not before ``end``.

    Parameters
    ----------
    begins : int64[intervals + 1]
        First slot of each interval, ascending, and the end of the last.
    intervals : int
        How many there are.
    room : int64[intervals]
        Highest level that finds room in each that begins before ``end``; -1 for none.
    gains : int64[levels]
        Progress units of a slot with each level; 0 where nothing is sure.
    top : int
        The level.
    left : int
        Progress units to make.
    end : int
        Slot before which it has to be complete.
    """
    for k in range(intervals):
        if begins[k] >= end:
            break
        level = min(top, room[k])
        if level >= 0 and gains[level] > 0:
            gain = gains[level]
            if left <= gain:
                return int(begins[k])
            slots = min(begins[k + 1], end) - begins[k]
            if slots > 1:  # single slots need no division, which takes longer than all the rest
                needed = (left + gain - 1) // gain
                if needed <= slots:
                    return int(begins[k] + needed - 1)
            left -= slots * gain
    return -1


@kernel
def completes_fresh(
    begins: Ints,
    intervals: int,
    room: Ints,
    gains: Ints,
    first: Ints,
    top: int,
    left: int,
    end: int,
) -> int:
    """Return what `completes` does where the first slot in which a job runs may yield more.

    Parameters
    ----------
    begins, intervals, room, gains, top, left, end
        As in `completes`.
    first : int64[levels]
        Progress units of that slot with each level, no less than those of another.
    """
    for k in range(intervals):
        if begins[k] >= end:
            break
        if room[k] >= 0:
            level = min(top, room[k])
            left -= first[level] - gains[level]
            if left <= gains[level]:
                return int(begins[k])
            return completes(begins, intervals, room, gains, top, left, end)
    return -1


@kernel
def least_ceiling(
    begins: Ints,
    intervals: int,
    room: Ints,
    gains: Ints,
    ceilings: Ints,
    count: int,
    left: int,
    end: int,
    first: Ints,
) -> tuple[int, int]:
    """Return the least ceiling that completes before ``end``, and the slot in which it does.

    Parameters
    ----------
    begins, intervals, room, gains, left, end
        As in `completes`; gains may not fall from one ceiling to the next.
    ceilings : int64[count]
        Levels that may be ceilings, ascending.
    count : int
        How many there are.
    first : int64[levels]
        As in `completes_fresh`; those may not fall either. The same as gains where no slot yields
        more.

    Returns
    -------
    (int, int)
        Position of the ceiling, and the slot; -1, -1 where there is none.
    """
    high = count - 1
    done = completes_fresh(begins, intervals, room, gains, first, ceilings[high], left, end)
    if done < 0:
        return -1, -1
    low = 0
    while low < high:
        middle = (low + high) // 2
        slot = completes_fresh(begins, intervals, room, gains, first, ceilings[middle], left, end)
        if slot >= 0:
            high = middle
            done = slot
        else:
            low = middle + 1
    return high, done
