"""Cloning files: machines, a deadline, the allowed probability of a miss, and groups of tasks.

machines: 200
deadline: 60s
miss_probability: 0.05
tasks:
  - {count: 20, duration: {kind: pareto, shape: 2.0, mean: 12s}}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, field_validator

from shadowprice.cloning.problem import CloningProblem, TaskGroup
from shadowprice.core import bounds
from shadowprice.core.amounts import Duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, fields, validate
from shadowprice.core.specs.distributions import DistributionContext, DurationDistributionSpec
from shadowprice.core.specs.fields import DurationField, Number
from shadowprice.core.specs.jobs import TaskSpec
from shadowprice.distributions.empirical import build_distribution
from shadowprice.inputs.durations import duration_loader
from shadowprice.inputs.text import load_yaml


class _TaskDuration(Spec):
    """The key ``duration`` of a group of tasks, without the other keys."""

    duration: DurationDistributionSpec


class CloningSpec(Spec):
    """Content of a cloning file."""

    machines: Annotated[PositiveInt, fields.max_value(bounds.MACHINES)]
    deadline: DurationField
    miss_probability: Number
    tasks: Annotated[list[TaskSpec], Field(min_length=1), fields.max_length(bounds.TASKS)]

    @field_validator("deadline")
    @classmethod
    def _plain_deadline(cls, value: Duration) -> Duration:
        if value.slots:
            raise ValueError("slots aren't valid here; write seconds, minutes or hours")
        return fields.check_positive(value)


@dataclass(frozen=True)
class CloningFile:
    """A validated cloning file."""

    groups: tuple[TaskGroup, ...]  # groups of equal tasks
    machines: int  # number of machines M
    deadline: float  # deadline T_d in seconds
    miss_probability: float  # largest probability epsilon that the deadline is missed
    location: str  # name of the file in errors

    def problem(self) -> CloningProblem:
        """Return the problem in which all tasks start at once, the light regime of the paper.

        Raises `InputError` if there are too few machines.
        """
        try:
            return CloningProblem(self.groups, self.machines, self.deadline, self.miss_probability)
        except InputError as error:
            faults = [
                replace(fault, location=f"{self.location}: {fault.location}")
                for fault in error.faults
            ]
            raise InputError(faults) from error


def read_cloning(path: Path) -> CloningFile:
    """Read a cloning file (YAML); paths of files of durations are relative to its folder."""
    return parse_cloning(load_yaml(path), str(path), path.parent)


def parse_cloning(document: object, location: str, folder: Path) -> CloningFile:
    """Validate the content of a cloning file.

    Errors begin with ``location``. Paths of files of durations are relative to ``folder``.
    """
    spec, faults = validate(CloningSpec, document, location)
    context = DistributionContext(measured=duration_loader(folder))
    groups: list[TaskGroup] = []
    tasks = document.get("tasks") if isinstance(document, dict) else None
    for position, task in enumerate(tasks if isinstance(tasks, list) else ()):
        # Durations are checked even if the file is refused, so that all problems are reported.
        duration = task.get("duration") if isinstance(task, dict) else None
        task_spec, _ = validate(_TaskDuration, {"duration": duration}, location)
        if task_spec is None:  # already among the faults of the whole file
            continue
        try:
            distribution = build_distribution(task_spec.duration.distribution(context))
        except InputError as error:
            duration_location = f"{location}: tasks[{position}].duration"
            faults += [
                Fault(
                    duration_location,
                    ": ".join(filter(None, (fault.location, fault.message))),
                    fault.hint,
                )
                for fault in error.faults
            ]
            continue
        if spec is not None:
            groups.append(TaskGroup(spec.tasks[position].count, distribution))
    if spec is None or faults:
        raise InputError(faults)
    return CloningFile(
        tuple(groups), spec.machines, float(spec.deadline.seconds), spec.miss_probability, location
    )
