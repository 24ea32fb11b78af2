"""Bags of independent tasks, which run in copies.

A bag is done when every task is done. A task is done when its first copy is done, and its other
copies then stop (section II of the paper in design/0005-cloning.md). The whole bag has a deadline,
which it may miss with a small probability. This module only has the parameters of the durations;
`shadowprice.distributions` implements their distributions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

Parameters = Mapping[str, float | str | tuple[float, ...]]


class TaskCopies(NamedTuple):
    """Tasks of one group that run in equally many copies, all from the plan's first slot on."""

    group: int  # index in `Bag.groups`
    tasks: int
    copies: int  # of each task


@dataclass(frozen=True, slots=True)
class DurationDistribution:
    """Name and parameters of a distribution of durations."""

    name: str  # pareto, weibull, hyper-exponential, log-normal or empirical
    parameters: Parameters  # times in seconds
    shortest: float  # minimum duration in seconds
    mean: float  # seconds


@dataclass(frozen=True, slots=True)
class BagTaskGroup:
    """A number of tasks whose durations follow one distribution."""

    count: int
    distribution: DurationDistribution


@dataclass(frozen=True)
class Bag:
    """Independent tasks with a deadline.

    ``deadline`` is in slots from the start of the arrival slot, and may be fractional. If a file
    states it in units of time from the submission, the wait for the arrival slot is deducted.
    """

    groups: tuple[BagTaskGroup, ...]
    deadline: float
    miss_probability: float  # allowed probability of missing the deadline, in (0, 1)
    slot_seconds: float

    @cached_property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(group.count for group in self.groups)

    @property
    def slots(self) -> int:
        """Number of slots from the arrival slot to the slot of the deadline, both included."""
        return math.ceil(self.deadline)

    @property
    def shortest_slots(self) -> int:
        """Minimum number of slots in which all tasks can end."""
        min_seconds = max(group.distribution.shortest for group in self.groups)
        return max(1, math.ceil(min_seconds / self.slot_seconds))

    @property
    def worker_slots(self) -> float:
        """Expected worker-slots with one copy of each task; every task takes at least one slot."""
        return sum(
            group.count * max(1.0, group.distribution.mean / self.slot_seconds)
            for group in self.groups
        )

    def record(self) -> dict[str, object]:
        """Return the bag as plain values, for the journal."""
        groups = [
            {
                "count": group.count,
                "distribution": group.distribution.name,
                "parameters": dict(group.distribution.parameters),
                "shortest": group.distribution.shortest,
                "mean": group.distribution.mean,
            }
            for group in self.groups
        ]
        return {
            "groups": groups,
            "deadline": self.deadline,
            "miss_probability": self.miss_probability,
            "slot_seconds": self.slot_seconds,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Bag:
        """Build the bag from the result of `record`."""
        groups = []
        for group in record["groups"]:
            parameters = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in group["parameters"].items()
            }
            distribution = DurationDistribution(
                group["distribution"], parameters, group["shortest"], group["mean"]
            )
            groups.append(BagTaskGroup(group["count"], distribution))
        return cls(**{**record, "groups": tuple(groups)})
