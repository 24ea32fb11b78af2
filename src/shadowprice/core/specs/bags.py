"""Models of bags of tasks: tasks with their distributions, and a deadline."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import PositiveInt

from shadowprice.core import bounds
from shadowprice.core.amounts import Duration
from shadowprice.core.bag import Bag, BagTaskGroup
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.distributions import DistributionContext, DurationDistributionSpec
from shadowprice.core.specs.fields import Spec, max_value


class TaskSpec(Spec):
    """Tasks of a bag that follow one distribution."""

    count: Annotated[PositiveInt, max_value(bounds.TASKS)] = 1
    duration: DurationDistributionSpec


def resolve_bag(
    tasks: list[TaskSpec],
    deadline: Duration,
    miss_probability: float,
    reading: DistributionContext,
    before: Fraction = Fraction(0),
) -> Bag:
    """Return the bag that a file describes.

    A deadline in units of time counts from the submission, which is ``before`` slots before the
    start of the arrival slot. A deadline in slots counts from that start. Raises InputError if a
    duration is invalid, or the deadline precedes the shortest possible duration of a task.
    """
    bounds.TASKS.check(sum(task.count for task in tasks), "tasks")
    groups, faults = [], []
    for position, task in enumerate(tasks):
        try:
            groups.append(BagTaskGroup(task.count, task.duration.distribution(reading)))
        except InputError as error:
            location = f"tasks[{position}].duration"
            faults += [
                Fault(
                    location, ": ".join(filter(None, (fault.location, fault.message))), fault.hint
                )
                for fault in error.faults
            ]
    if faults:
        raise InputError(faults)
    slot = reading.slot
    assert slot is not None
    slots = deadline.in_slots(slot) - (before if deadline.on_clock else 0)
    seconds = float(slots * slot)
    for position, group in enumerate(groups):
        if group.distribution.shortest >= seconds:
            raise InputError(
                Fault(
                    "deadline",
                    f"the {seconds:g}s that it leaves from the beginning of the arrival slot are "
                    f"not longer than the shortest possible duration of tasks[{position}], "
                    f"{group.distribution.shortest:g}s: no number of copies helps",
                    "allow a later deadline",
                )
            )
    return Bag(tuple(groups), float(slots), miss_probability, float(slot))
