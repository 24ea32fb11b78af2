"""Minimum satisfactory shares: the fewest workers at once that complete a job in time.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithm 1. The *levels* of a job are its useful worker counts, ascending. Under a
*ceiling*, a job has in every interval of slots the highest level up to the ceiling that fits. The
least ceiling that completes its work in time is its share.

The caller defines what fits: a pool's sums slot by slot (`satisfactory`), or groups of servers over
intervals (`replanning.plans`). If a level fits, all lower levels must fit, so that one number per
interval is enough.
"""

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import allocation_free, constant

PAUSED = constant(-1)
"""Level of a paused job."""


@allocation_free
def completion_slot(
    starts: Integers,
    intervals: int,
    fitting: Integers,
    gains: Integers,
    top: int,
    remaining: int,
    end: int,
) -> int:
    """Return the completion slot of a job with a maximum level, -1 if not before ``end``.

    - ``starts`` (intervals + 1,): first slot of each interval, ascending, and the end of the last.
    - ``fitting`` (intervals,): highest level that fits in each interval that starts before
      ``end``; -1 for none.
    - ``gains`` (levels,): progress units of a slot with each level; 0 if nothing is certain.
    - ``top``: the maximum level.
    - ``remaining``: progress units that are still to be done.
    """
    for k in range(intervals):
        if starts[k] >= end:
            break
        level = min(top, fitting[k])
        if level >= 0 and gains[level] > 0:
            gain = gains[level]
            if remaining <= gain:
                return int(starts[k])
            slots = min(starts[k + 1], end) - starts[k]
            if slots > 1:  # avoid the division for single slots: it takes longer than the rest
                needed = (remaining + gain - 1) // gain
                if needed <= slots:
                    return int(starts[k] + needed - 1)
            remaining -= slots * gain
    return -1


@allocation_free
def completion_slot_of_new_job(
    starts: Integers,
    intervals: int,
    fitting: Integers,
    gains: Integers,
    first: Integers,
    top: int,
    remaining: int,
    end: int,
) -> int:
    """Return `completion_slot` for a job whose first slot of running may yield more.

    ``first`` (levels,) are the progress units of the first slot with each level, at least
    ``gains``.
    """
    for k in range(intervals):
        if starts[k] >= end:
            break
        if fitting[k] >= 0:
            level = min(top, fitting[k])
            remaining -= first[level] - gains[level]
            if remaining <= gains[level]:
                return int(starts[k])
            return completion_slot(starts, intervals, fitting, gains, top, remaining, end)
    return -1


@allocation_free
def min_ceiling(
    starts: Integers,
    intervals: int,
    fitting: Integers,
    gains: Integers,
    ceilings: Integers,
    count: int,
    remaining: int,
    end: int,
    first: Integers,
) -> tuple[int, int]:
    """Return the position of the least ceiling that completes before ``end``, and when.

    Returns -1, -1 if no ceiling does. ``ceilings`` (count,) are the levels that may be ceilings,
    ascending. The other parameters are those of `completion_slot_of_new_job`. Neither ``gains`` nor
    ``first`` may decrease from one ceiling to the next, because the search is a bisection.
    """
    high = count - 1
    completion = completion_slot_of_new_job(
        starts, intervals, fitting, gains, first, ceilings[high], remaining, end
    )
    if completion < 0:
        return -1, -1
    low = 0
    while low < high:
        middle = (low + high) // 2
        slot = completion_slot_of_new_job(
            starts, intervals, fitting, gains, first, ceilings[middle], remaining, end
        )
        if slot >= 0:
            high = middle
            completion = slot
        else:
            low = middle + 1
    return high, completion
