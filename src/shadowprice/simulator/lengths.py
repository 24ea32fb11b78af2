"""Job lengths that policies don't know: stated lengths, and how they follow the true ones.

A job's length is the number of slots that its work takes at its fastest worker count. With hidden
lengths, the engine and the policy see descriptions of this module, in which only the work and what
depends on it differ. The simulated cluster runs the true jobs. `HiddenLengths` makes the
descriptions from jobs that have finished, so nothing depends on the future.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import JobsArrived, SlotEnded
from shadowprice.core.job import MICRO, Job
from shadowprice.core.utility import Constant, Deadline
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.baselines.fixed import gpus_of_worker
from shadowprice.policies.choice import PolicyChoice

KNOWN: Final = "known"
LIMITS: Final = "limits"
UNKNOWN: Final = "unknown"
LENGTHS: Final = (KNOWN, LIMITS, UNKNOWN)
"""Values of ``--lengths``: policies see true lengths, time limits, or predictions."""

DEFAULT_SECONDS: Final = 3600
"""Predicted length of a job without history, as for a command that is submitted without a time."""

QUANTILE: Final = Fraction(3, 4)  # quantile of earlier lengths that is predicted

MIN_SIMILAR: Final = 3  # minimum number of earlier jobs that a prediction is made from

MAX_SIMILAR: Final = 50  # maximum number of earlier jobs, because older ones may be outdated

GROWTH: Final = 2  # factor by which a stated length grows if no earlier job ran as long

_GENERATED_PART: Final = re.compile(r"[-_.:/][^-_.:/]*\d[^-_.:/]*$")


def parse_lengths(text: str, location: str = "--lengths") -> tuple[str, ...]:
    """Parse comma-separated values of ``--lengths``."""
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    hint = f"write one or several of {', '.join(LENGTHS)}"
    if not values:
        raise InputError(Fault(location, "names no lengths", hint))
    for value in values:
        if value not in LENGTHS:
            raise InputError(Fault(location, f"unknown value {quote_for_display(value)}", hint))
        if values.count(value) > 1:
            raise InputError(Fault(location, f"{value!r} is repeated"))
    return values


def check_advice_lengths(lengths: Iterable[str], location: str) -> None:
    """Refuse advice on runs with hidden lengths: it is a search that knows them."""
    if any(value != KNOWN for value in lengths):
        raise InputError(Fault(location, "needs known lengths", "leave out one of the two"))


def walltime_limits(jobs: Iterable[Job]) -> dict[str, int]:
    """Return the progress units that stated ``walltime`` allows at most, by name of the job."""
    return {
        job.name: max(1, job.walltime * int(job.gains.max()))
        for job in jobs
        if job.walltime is not None and job.bag is None
    }


@dataclass(slots=True)
class _OpenJob:
    """A job that hasn't finished: the true one, and the one that the policy sees."""

    true: Job
    stated: Job
    progress: int = 0


@dataclass
class LengthHistory:
    """Lengths of finished jobs, from which the length of a similar job is predicted.

    Similar jobs belong to the same tenant. Jobs of the same name and GPUs count; if there are fewer
    than `MIN_SIMILAR`, those of the same GPUs; then all jobs of the tenant.
    """

    cluster: Cluster
    _lengths: dict[tuple[object, ...], deque[float]] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Record a job that finished."""
        length = job.required / int(job.gains.max())
        for key in self._keys(job):
            self._lengths.setdefault(key, deque(maxlen=MAX_SIMILAR)).append(length)

    def predict(self, job: Job, attained: float = 0.0) -> float:
        """Return the predicted length in slots of a job that has attained a length.

        It is the `QUANTILE` of the lengths of similar jobs that exceed the attained one. Without
        any, it is `DEFAULT_SECONDS`, or `GROWTH` times the attained length if that is larger.
        """
        similar = next(
            (
                lengths
                for key in self._keys(job)
                if len(lengths := self._lengths.get(key, ())) >= MIN_SIMILAR
            ),
            (),
        )
        longer = sorted(length for length in similar if length > attained)
        if longer:
            return longer[math.ceil(QUANTILE * len(longer)) - 1]
        if similar:
            return GROWTH * attained
        return max(DEFAULT_SECONDS / float(self.cluster.slot_seconds), GROWTH * attained)

    def copy(self) -> LengthHistory:
        """Return an independent copy."""
        lengths = {key: copy(value) for key, value in self._lengths.items()}
        return LengthHistory(self.cluster, lengths)

    def _keys(self, job: Job) -> Sequence[tuple[object, ...]]:
        """Return the groups of similar jobs that a job belongs to, the closest first."""
        gpus = gpus_of_worker(job, self.cluster)
        resources = (job.tenant, gpus, int(job.worker_counts[0]), job.max_workers)
        return ((*resources, name_stem(job.name)), resources, (job.tenant,))


class HiddenLengths:
    """Descriptions of jobs whose length the policy doesn't know, in one simulation.

    ``limits`` are the progress units that time limits allow, by job; empty to predict all lengths.
    With ``shows_limits``, the policy also sees ``walltime``.
    """

    def __init__(self, cluster: Cluster, limits: Mapping[str, int], *, shows_limits: bool) -> None:
        self._slot_seconds = float(cluster.slot_seconds)
        self._limits = limits
        self._shows_limits = shows_limits
        self._history = LengthHistory(cluster)
        self._open: dict[str, _OpenJob] = {}

    def copy(self) -> HiddenLengths:
        """Return an independent copy in the same state."""
        twin = copy(self)
        twin._history = self._history.copy()
        twin._open = {name: copy(job) for name, job in self._open.items()}
        return twin

    def describe(self, event: JobsArrived) -> JobsArrived:
        """Return arrivals as the policy sees them; bags of tasks have no stated length."""
        return replace(event, jobs=tuple(self._describe(job) for job in event.jobs))

    def _describe(self, job: Job) -> Job:
        if job.bag is not None:
            return job
        required = self._limits.get(job.name)
        if required is None:
            required = _units(job, self._history.predict(job))
        else:
            required = min(required, _units(job, bounds.JOB_SLOTS.maximum))
        stated = self._with_work(job, required)
        self._open[job.name] = _OpenJob(job, stated)
        return stated

    def remove(self, name: str) -> None:
        """Remove a job that was cancelled."""
        self._open.pop(name, None)

    def revise(self, event: SlotEnded) -> SlotEnded:
        """Return the end of a slot with the lengths that its progress reveals.

        A job that is truly done gets its true description, so it completes. A job that has done all
        its stated work, and isn't done, gets a longer one.
        """
        lengths: dict[str, Job] = {}
        finished: list[Job] = []
        for name, gained in event.progress.items():
            job = self._open.get(name)
            if job is None:
                continue
            job.progress += gained
            if job.progress >= job.true.required:
                lengths[name] = job.true
                finished.append(job.true)
                del self._open[name]
            elif job.progress >= job.stated.required:
                longer = _units(job.true, self._longer(job))
                required = max(job.progress + 1, longer)
                lengths[name] = job.stated = self._with_work(job.true, required)
        for true in finished:
            self._history.add(true)
        return replace(event, lengths=lengths) if lengths else event

    def _longer(self, job: _OpenJob) -> float:
        """Return the new length in slots of a job that has done all its stated work."""
        attained = job.progress / int(job.true.gains.max())
        if job.true.name in self._limits:
            return GROWTH * attained
        return self._history.predict(job.true, attained)

    def _with_work(self, job: Job, required: int) -> Job:
        """Return a job with other work; nothing of the result depends on the job's own work."""
        if bool((job.gains == job.worker_counts).all()):  # progress counts worker-slots
            minibatches = required * self._slot_seconds / job.step_seconds
        else:
            minibatches = required / MICRO
        utility = job.utility
        if job.value_per_unit is not None and isinstance(utility, Constant | Deadline):
            utility = replace(utility, value=job.value_per_unit * required)
        return replace(
            job,
            required=required,
            epochs=1,
            chunks=job.max_workers,
            minibatches=max(1, math.ceil(minibatches / job.max_workers)),
            utility=utility,
            walltime=job.walltime if self._shows_limits else None,
            predicted=True,
        )


def name_stem(name: str) -> str:
    """Return a job's name without numbered or generated parts at its end.

    ``train-x7k2mf`` and ``train-3`` become ``train``; ``resnet50`` is unchanged.
    """
    while (shorter := _GENERATED_PART.sub("", name)) not in ("", name):
        name = shorter
    return name


def _units(job: Job, slots: float) -> int:
    """Return the progress units of a length in slots, within limits."""
    gain = int(job.gains.max())
    slots = min(slots, bounds.JOB_SLOTS.maximum)
    return max(1, min(math.ceil(slots * gain), int(bounds.PROGRESS.maximum)))


def with_lengths_in_label(choice: PolicyChoice, lengths: str) -> PolicyChoice:
    """Return a policy whose label names the lengths that it sees, unless it knows them."""
    if lengths == KNOWN:
        return choice
    return replace(choice, titled=f"{choice.label} lengths={lengths}")
