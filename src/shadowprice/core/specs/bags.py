"""The models of bags of tasks: tasks with their laws, and a deadline."""

from __future__ import annotations

from typing import Annotated

from pydantic import PositiveInt

from shadowprice.core import bounds
from shadowprice.core.amounts import Duration
from shadowprice.core.bag import Bag, BagTasks
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.fields import Spec, at_most
from shadowprice.core.specs.laws import DurationLaw, Reading


class TaskSpec(Spec):
    """Tasks of a bag that follow one law."""

    count: Annotated[PositiveInt, at_most(bounds.TASKS)] = 1
    duration: DurationLaw


def resolve_bag(
    tasks: list[TaskSpec], deadline: Duration, miss_probability: float, reading: Reading
) -> Bag:
    """Return the bag that a file describes.

    Raises
    ------
    InputError
        If a duration contradicts itself, or the deadline comes before the shortest possible one.
    """
    bounds.TASKS.check(sum(task.count for task in tasks), "tasks")
    groups, faults = [], []
    for position, task in enumerate(tasks):
        try:
            groups.append(BagTasks(task.count, task.duration.law(reading)))
        except InputError as error:
            place = f"tasks[{position}].duration"
            faults += [
                Fault(place, ": ".join(filter(None, (fault.place, fault.message))), fault.mend)
                for fault in error.faults
            ]
    if faults:
        raise InputError(faults)
    slot = reading.slot
    assert slot is not None
    seconds = float(deadline.in_seconds(slot))
    for position, group in enumerate(groups):
        if group.law.shortest >= seconds:
            raise InputError(
                Fault(
                    "deadline",
                    f"{seconds:g}s is not longer than the shortest possible duration of "
                    f"tasks[{position}], {group.law.shortest:g}s: no number of copies helps",
                    "allow a later deadline",
                )
            )
    return Bag(tuple(groups), float(deadline.in_slots(slot)), miss_probability, float(slot))
