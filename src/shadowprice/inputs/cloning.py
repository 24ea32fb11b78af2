"""Cloning files: machines, a deadline, how often it may be missed, and tasks with their laws.

::

    machines: 200
    deadline: 60s
    miss_probability: 0.05
    tasks:
      - {count: 20, duration: {kind: pareto, shape: 2.0, mean: 12s}}
"""

from __future__ import annotations

import csv
import difflib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, field_validator, model_validator

from shadowprice.cloning.api import (
    CloningProblem,
    Distribution,
    Empirical,
    HyperExponential,
    LogNormal,
    Pareto,
    TaskGroup,
    Weibull,
    fit_pareto_tail,
)
from shadowprice.core.amounts import Duration, parse_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, validate
from shadowprice.core.specs.fields import DurationField
from shadowprice.inputs.text import load_yaml, read_lines

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = float


def _seconds(value: Duration) -> Seconds:
    if value.slots:
        raise ValueError("there are no slots here; write seconds, minutes or hours")
    return float(value.seconds)


class _LawSpec(Spec):
    """What every law of a file can say and do."""

    @field_validator("*", mode="after")
    @classmethod
    def _no_slots(cls, value: Any) -> Any:
        if isinstance(value, Duration):
            _seconds(value)
        return value

    @abstractmethod
    def law(self, folder: Path) -> Distribution:
        """Return the law; files are found from ``folder``."""


class ParetoSpec(_LawSpec):
    """``S(t) = (minimum / t)^shape``, by its mean or its minimum."""

    kind: Literal["pareto"]
    shape: Positive
    mean: DurationField | None = None
    minimum: DurationField | None = None

    @model_validator(mode="after")
    def _one_scale(self) -> ParetoSpec:
        if (self.mean is None) == (self.minimum is None):
            raise ValueError("give one of mean and minimum: the order and either fix the other")
        return self

    def law(self, folder: Path) -> Distribution:  # noqa: ARG002
        """Return the law."""
        if self.mean is not None and self.shape > 1.0:
            return Pareto.of_mean(self.shape, _seconds(self.mean))
        minimum = self.minimum or self.mean
        assert minimum is not None
        return Pareto(self.shape, _seconds(minimum))


class WeibullSpec(_LawSpec):
    """Weibull with a shape of 1 or less, by its mean; the minimum is part of the mean."""

    kind: Literal["weibull"]
    shape: Positive
    mean: DurationField
    minimum: DurationField = Duration()

    def law(self, folder: Path) -> Distribution:  # noqa: ARG002
        """Return the law."""
        return Weibull(self.shape, _seconds(self.mean), _seconds(self.minimum))


class ExponentialSpec(_LawSpec):
    """The exponential, the boundary of Lemma 1: a copy costs nothing."""

    kind: Literal["exponential"]
    mean: DurationField
    minimum: DurationField = Duration()

    def law(self, folder: Path) -> Distribution:  # noqa: ARG002
        """Return the law."""
        return Weibull(1.0, _seconds(self.mean), _seconds(self.minimum))


class PhaseSpec(Spec):
    """One phase of a hyper-exponential."""

    share: Positive
    mean: DurationField


class HyperExponentialSpec(_LawSpec):
    """A mixture of exponentials: a share of tasks, and the mean of those."""

    kind: Literal["hyper-exponential"]
    phases: Annotated[list[PhaseSpec], Field(min_length=1)]
    minimum: DurationField = Duration()

    def law(self, folder: Path) -> Distribution:  # noqa: ARG002
        """Return the law."""
        return HyperExponential(
            tuple(phase.share for phase in self.phases),
            tuple(_seconds(phase.mean) for phase in self.phases),
            _seconds(self.minimum),
        )


class LogNormalSpec(_LawSpec):
    """Log-normal, by sigma and its mean or its median; both include the minimum."""

    kind: Literal["log-normal"]
    sigma: Positive
    mean: DurationField | None = None
    median: DurationField | None = None
    minimum: DurationField = Duration()

    @model_validator(mode="after")
    def _one_scale(self) -> LogNormalSpec:
        if (self.mean is None) == (self.median is None):
            raise ValueError("give one of mean and median: sigma and either fix the other")
        return self

    def law(self, folder: Path) -> Distribution:  # noqa: ARG002
        """Return the law."""
        minimum = _seconds(self.minimum)
        if self.mean is not None:
            return LogNormal.of_mean(self.sigma, _seconds(self.mean), minimum)
        assert self.median is not None
        return LogNormal(self.sigma, _seconds(self.median) - minimum, minimum)


class EmpiricalSpec(_LawSpec):
    """Measured durations: a column of a CSV file, or one number a line."""

    kind: Literal["empirical"]
    file: Annotated[str, Field(min_length=1)]
    column: str | None = None
    unit: Annotated[str, Field(min_length=1)] = "s"
    tail: Literal["pareto", "none"] = "pareto"
    factor: Positive = 1.0

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, unit: str) -> str:
        try:
            _seconds(parse_duration(f"1{unit}"))
        except InputError as error:
            raise ValueError(f"{unit!r} is no unit of time; write s, ms or min") from error
        return unit

    def law(self, folder: Path) -> Distribution:
        """Return the sample as a law, its tail fitted unless ``tail: none``."""
        path = Path(self.file)
        path = path if path.is_absolute() else folder / path
        sample = read_durations(path, self.column) * _seconds(parse_duration(f"1{self.unit}"))
        tail = fit_pareto_tail(sample) if self.tail == "pareto" else None
        return Empirical(sample, tail, self.factor, self.file)


LAWS: Final[dict[str, type[_LawSpec]]] = {
    "pareto": ParetoSpec,
    "weibull": WeibullSpec,
    "exponential": ExponentialSpec,
    "hyper-exponential": HyperExponentialSpec,
    "log-normal": LogNormalSpec,
    "empirical": EmpiricalSpec,
}
"""Laws of durations by the name that files give them."""


class TaskSpec(Spec):
    """Tasks that follow one law."""

    count: PositiveInt = 1
    duration: dict[str, Any]


class CloningSpec(Spec):
    """A cloning file."""

    machines: PositiveInt
    deadline: DurationField
    miss_probability: float
    tasks: Annotated[list[TaskSpec], Field(min_length=1)]

    @field_validator("deadline")
    @classmethod
    def _plain_deadline(cls, value: Duration) -> Duration:
        if not _seconds(value):
            raise ValueError("it must be longer than nothing")
        return value


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
    groups: list[TaskGroup] = []
    known: dict[str, Distribution] = {}
    for position, law_document in _laws(document):
        where = f"{place}: tasks[{position}].duration"
        key = repr(law_document)
        if key not in known:
            law, wrong = _law(law_document, where, folder)
            faults += wrong
            if law is None:
                continue
            known[key] = law
        if spec is not None:
            groups.append(TaskGroup(spec.tasks[position].count, known[key]))
    if spec is None or faults:
        raise InputError(faults)
    return CloningFile(
        tuple(groups), spec.machines, _seconds(spec.deadline), spec.miss_probability, place
    )


def _laws(document: object) -> list[tuple[int, dict[str, Any]]]:
    tasks = document.get("tasks") if isinstance(document, dict) else None
    found = []
    for position, task in enumerate(tasks if isinstance(tasks, list) else ()):
        duration = task.get("duration") if isinstance(task, dict) else None
        if isinstance(duration, dict):
            found.append((position, duration))
    return found


def _law(
    document: dict[str, Any], place: str, folder: Path
) -> tuple[Distribution | None, list[Fault]]:
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in LAWS:
        names = ", ".join(LAWS)
        if kind is None:
            return None, [Fault(f"{place}.kind", "is missing", f"write one of {names}")]
        close = difflib.get_close_matches(str(kind), LAWS, 1, cutoff=0.5)
        mend = f"did you mean {close[0]!r}?" if close else f"write one of {names}"
        return None, [Fault(f"{place}.kind", f"no law is called {kind!r}", mend)]
    spec, faults = validate(LAWS[kind], document, place)
    if spec is None:
        return None, faults
    return _built(lambda: spec.law(folder), place)


def _built(
    build: Callable[[], Distribution], place: str
) -> tuple[Distribution | None, list[Fault]]:
    try:
        return build(), []
    except InputError as error:
        return None, [Fault(one.place or place, one.message, one.mend) for one in error.faults]


def read_durations(path: Path, column: str | None = None) -> NDArray[np.float64]:
    """Read durations from a CSV file with a header, or from one number a line.

    Parameters
    ----------
    path : Path
        The file, also gzipped.
    column : str, optional
        Name of the column; without it every line holds one number.

    Returns
    -------
    ndarray of float64
        The numbers as they stand, all positive.

    Raises
    ------
    InputError
        With the line of every value that is no positive number (the first 20).
    """
    values: list[float] = []
    faults: list[Fault] = []
    at: int | None = 0 if column is None else None
    for number, line in read_lines(path):
        if not line.strip():
            continue
        cells = [line] if column is None else next(csv.reader([line]))
        if at is None:
            if column not in cells:
                close = difflib.get_close_matches(str(column), cells, 1)
                mend = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(cells)}"
                raise InputError(Fault(f"{path}: line {number}", f"has no column {column!r}", mend))
            at = cells.index(column)
            continue
        text = cells[at] if at < len(cells) else ""
        value = _number(text)
        if math.isfinite(value) and value > 0.0:
            values.append(value)
        elif len(faults) < 20:
            mend = "" if column is not None else "name the column of a CSV file by `column`"
            faults.append(
                Fault(f"{path}: line {number}", f"{text.strip()!r} is no positive number", mend)
            )
    if faults:
        raise InputError(faults)
    if not values:
        raise InputError(Fault(str(path), "holds no durations"))
    return np.array(values)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
