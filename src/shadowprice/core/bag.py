"""Bags of independent tasks that run in copies: what a job is that does not train a model.

A bag is done when every task is; a task is done when the first of its copies is, and the others
then stop (CSD, section II). All of it is to end by a deadline, which may be missed with a small
probability. Here are plain numbers only: what a law can answer, `laws` knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

Parameters = Mapping[str, float | str | tuple[float, ...]]


class TaskCopies(NamedTuple):
    """Tasks of one group that run in the same number of copies.

    Attributes
    ----------
    group : int
        Position of the group in `Bag.groups`.
    tasks : int
        How many of its tasks.
    copies : int
        Copies of each; all of them start in the first slot of the plan.
    """

    group: int
    tasks: int
    copies: int


@dataclass(frozen=True, slots=True)
class Law:
    """A law of durations in plain numbers; `shadowprice.laws` turns it into a distribution.

    Parameters
    ----------
    name : str
        ``pareto``, ``weibull``, ``hyper-exponential``, ``log-normal`` or ``empirical``.
    parameters : mapping
        Parameters of the law by name; times in seconds.
    shortest, mean : float
        Shortest possible and expected duration in seconds.
    """

    name: str
    parameters: Parameters
    shortest: float
    mean: float


@dataclass(frozen=True, slots=True)
class BagTasks:
    """Tasks of a bag whose durations follow one law.

    Parameters
    ----------
    count : int
        Number of tasks.
    law : Law
        Of their durations.
    """

    count: int
    law: Law


@dataclass(frozen=True)
class Bag:
    """Independent tasks with a deadline.

    Parameters
    ----------
    groups : tuple of BagTasks
        The tasks.
    deadline : float
        Slots from the beginning of the arrival slot; not necessarily whole. (One written on the
        clock runs from the submission, and what passed until then is taken off.)
    miss_probability : float
        How often the deadline may be missed, in (0, 1).
    slot_seconds : float
        Length of a slot.
    """

    groups: tuple[BagTasks, ...]
    deadline: float
    miss_probability: float
    slot_seconds: float

    @cached_property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(group.count for group in self.groups)

    @property
    def slots(self) -> int:
        """Slots from the arrival slot to the one in which the deadline falls, both counted."""
        return math.ceil(self.deadline)

    @property
    def shortest_slots(self) -> int:
        """Fewest slots in which all tasks can end."""
        longest = max(group.law.shortest for group in self.groups)
        return max(1, math.ceil(longest / self.slot_seconds))

    @property
    def worker_slots(self) -> float:
        """Expected worker-slots of one copy a task; every task takes one slot at least."""
        return sum(
            group.count * max(1.0, group.law.mean / self.slot_seconds) for group in self.groups
        )

    def record(self) -> dict[str, object]:
        """Return the bag as plain values, for the journal."""
        return {
            "groups": [
                {
                    "count": group.count,
                    "law": group.law.name,
                    "parameters": dict(group.law.parameters),
                    "shortest": group.law.shortest,
                    "mean": group.law.mean,
                }
                for group in self.groups
            ],
            "deadline": self.deadline,
            "miss_probability": self.miss_probability,
            "slot_seconds": self.slot_seconds,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Bag:
        """Build the bag that `record` described."""
        groups = tuple(
            BagTasks(
                group["count"],
                Law(group["law"], _plain(group["parameters"]), group["shortest"], group["mean"]),
            )
            for group in record["groups"]
        )
        return cls(**(dict(record) | {"groups": groups}))


def _plain(parameters: Mapping[str, Any]) -> Parameters:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in parameters.items()
    }
