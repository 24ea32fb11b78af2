"""Cloning files: machines, a deadline, how often it may be missed, and tasks with their laws.

::

    machines: 200
    deadline: 60s
    miss_probability: 0.05
    tasks:
      - {count: 20, duration: {kind: pareto, shape: 2.0, mean: 12s}}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, field_validator

from shadowprice.cloning.problem import CloningProblem, TaskGroup
from shadowprice.core import bounds
from shadowprice.core.amounts import Duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, validate
from shadowprice.core.specs.bags import TaskSpec
from shadowprice.core.specs.fields import DurationField, Number, at_most, at_most_long, positive
from shadowprice.core.specs.laws import DurationLaw, Reading
from shadowprice.inputs.durations import measured_in
from shadowprice.inputs.text import load_yaml
from shadowprice.laws.named import law_of


class _TaskLaw(Spec):
    """The law of some tasks, whatever else of them is wrong."""

    duration: DurationLaw


class CloningSpec(Spec):
    """A cloning file."""

    machines: Annotated[PositiveInt, at_most(bounds.MACHINES)]
    deadline: DurationField
    miss_probability: Number
    tasks: Annotated[list[TaskSpec], Field(min_length=1), at_most_long(bounds.TASKS)]

    @field_validator("deadline")
    @classmethod
    def _plain_deadline(cls, value: Duration) -> Duration:
        if value.slots:
            raise ValueError("there are no slots here; write seconds, minutes or hours")
        return positive(value)


@dataclass(frozen=True)
class CloningFile:
    """What a cloning file says, whichever regime it is for.

    Attributes
    ----------
    groups : tuple of TaskGroup
        The tasks.
    machines : int
        M.
    deadline : float
        T_d in seconds.
    miss_probability : float
        epsilon.
    place : str
        What errors call the file.
    """

    groups: tuple[TaskGroup, ...]
    machines: int
    deadline: float
    miss_probability: float
    place: str

    def problem(self) -> CloningProblem:
        """Return the problem of the light regime: every task at once.

        Raises
        ------
        InputError
            If there are fewer machines than tasks, or a number is out of range.
        """
        try:
            return CloningProblem(self.groups, self.machines, self.deadline, self.miss_probability)
        except InputError as error:
            raise InputError(
                [Fault(f"{self.place}: {one.place}", one.message, one.mend) for one in error.faults]
            ) from error


def read_cloning(path: Path) -> CloningFile:
    """Read a cloning file (YAML).

    Parameters
    ----------
    path : Path
        The file; files of durations are found from its folder.

    Returns
    -------
    CloningFile
        Tasks, machines, deadline and miss probability.

    Raises
    ------
    InputError
        With every fault of the file.
    """
    return parse_cloning(load_yaml(path), str(path), path.parent)


def parse_cloning(document: object, place: str, folder: Path) -> CloningFile:
    """Validate the content of a cloning file.

    Parameters
    ----------
    document : object
        What the file holds.
    place : str
        What errors call it.
    folder : Path
        Where files of durations are found.
    """
    spec, faults = validate(CloningSpec, document, place)
    reading = Reading(measured=measured_in(folder))
    groups: list[TaskGroup] = []
    tasks = document.get("tasks") if isinstance(document, dict) else None
    for position, task in enumerate(tasks if isinstance(tasks, list) else ()):
        # A law is looked into even where the file is refused: all faults are told at once.
        duration = task.get("duration") if isinstance(task, dict) else None
        known, _ = validate(_TaskLaw, {"duration": duration}, place)
        if known is None:
            continue
        try:
            law = law_of(known.duration.law(reading))
        except InputError as error:
            where = f"{place}: tasks[{position}].duration"
            faults += [
                Fault(where, ": ".join(filter(None, (one.place, one.message))), one.mend)
                for one in error.faults
            ]
            continue
        if spec is not None:
            groups.append(TaskGroup(spec.tasks[position].count, law))
    if spec is None or faults:
        raise InputError(faults)
    return CloningFile(
        tuple(groups), spec.machines, float(spec.deadline.seconds), spec.miss_probability, place
    )
