"""Minimum satisfactory shares: the fewest workers at once that complete a job in time.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithm 1. Under a *ceiling*, a job has in every interval the highest level up to
the ceiling that fits. The least ceiling that completes its work in time is its share.

The caller defines what fits: a pool's sums slot by slot (`satisfactory`), or groups of servers over
intervals (`replanning.plans`). If a level fits, all smaller ones must fit, so that one number per
interval is enough.
"""

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import allocation_free, constant

NOTHING = constant(-1)
"""Level of a paused job."""


@allocation_free
def completes(
    begins: Integers, intervals: int, room: Integers, gains: Integers, top: int, left: int, end: int
) -> int:
    """Return the completion slot of a job with a maximum level, -1 if not before ``end``.

    ``begins`` (intervals + 1,): first slot of each interval, ascending, and the end of the last.
    ``room`` (intervals,): highest level that fits in each that starts before ``end``; -1 for none.
    ``gains`` (levels,): progress units of a slot with each level; 0 if nothing is certain.
    ``left``: remaining progress units.
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
            if slots > 1:  # avoid the division for single slots: it takes longer than the rest
                needed = (left + gain - 1) // gain
                if needed <= slots:
                    return int(begins[k] + needed - 1)
            left -= slots * gain
    return -1


@allocation_free
def completes_fresh(
    begins: Integers,
    intervals: int,
    room: Integers,
    gains: Integers,
    first: Integers,
    top: int,
    left: int,
    end: int,
) -> int:
    """Return `completes` for a job whose first slot of running may yield more.

    ``first`` (levels,) are the progress units of the first slot with each level, at least
    ``gains``.
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


@allocation_free
def least_ceiling(
    begins: Integers,
    intervals: int,
    room: Integers,
    gains: Integers,
    ceilings: Integers,
    count: int,
    left: int,
    end: int,
    first: Integers,
) -> tuple[int, int]:
    """Return the least ceiling that completes before ``end``, by position, and the completion slot.

    Returns -1, -1 without a ceiling. ``ceilings`` (count,) are the levels that may be ceilings,
    ascending. The other parameters are those of `completes_fresh`. Neither ``gains`` nor ``first``
    may decrease from one ceiling to the next.
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
