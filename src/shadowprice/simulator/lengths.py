"""Job lengths that policies don't know: stated lengths, and their changes while jobs run.

A job's length is the number of slots that its work takes at its fastest worker count. With hidden
lengths, the engine and the policy see a description of each job with other work, and so with
another length. The simulated cluster runs the true jobs. `HiddenLengths` predicts lengths from jobs
that have finished, so nothing depends on the future.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import JobsArrived, SlotEnded
from shadowprice.core.job import MICRO, Job
from shadowprice.core.length_history import (
    DEFAULT_SECONDS,
    GROWTH,
    LengthHistory,
    kind_of_job,
    utility_of_length,
)
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.choice import PolicyChoice

KNOWN: Final = "known"
LIMITS: Final = "limits"
UNKNOWN: Final = "unknown"
LENGTHS: Final = (KNOWN, LIMITS, UNKNOWN)
"""Values of ``--lengths``: policies see true lengths, time limits, or predictions."""


def parse_lengths(text: str, location: str = "--lengths") -> tuple[str, ...]:
    """Parse comma-separated values of ``--lengths``."""
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    hint = f"write one or several of {', '.join(LENGTHS)}"
    if not values:
        raise InputError(Fault(location, "is empty", hint))
    for value in values:
        if value not in LENGTHS:
            raise InputError(Fault(location, f"unknown value {quote_for_display(value)}", hint))
        if values.count(value) > 1:
            raise InputError(Fault(location, f"{value!r} is repeated"))
    return values


def check_advice_lengths(lengths: Iterable[str], location: str) -> None:
    """Refuse advice on runs with hidden lengths, because its search knows the true lengths."""
    if any(value != KNOWN for value in lengths):
        raise InputError(Fault(location, "needs known lengths", "leave out one of the two"))


def walltime_limits(jobs: Iterable[Job]) -> dict[str, int]:
    """Return the maximum progress within each stated ``walltime``, by name of the job."""
    return {
        job.name: max(1, job.walltime * int(job.gains.max()))
        for job in jobs
        if job.walltime is not None and job.bag is None
    }


@dataclass(slots=True)
class _OpenJob:
    true: Job
    stated: Job  # its description for the policy
    progress: int = 0


class HiddenLengths:
    """Descriptions of jobs whose length the policy doesn't know, in one simulation.

    ``limits`` are the maximum progress within time limits, by job. The lengths of other jobs are
    predicted. With ``shows_limits``, the policy also sees ``walltime``.
    """

    def __init__(self, cluster: Cluster, limits: Mapping[str, int], *, shows_limits: bool) -> None:
        self._slot_seconds = float(cluster.slot_seconds)
        self._limits = limits
        self._shows_limits = shows_limits
        self._cluster = cluster
        self._history = LengthHistory(DEFAULT_SECONDS / self._slot_seconds)
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
            required = _work_of_length(job, self._predict(job))
        else:
            required = min(required, _work_of_length(job, bounds.JOB_SLOTS.maximum))
        stated = self._with_work(job, required)
        self._open[job.name] = _OpenJob(job, stated)
        return stated

    def remove(self, name: str) -> None:
        """Remove a job that was cancelled."""
        self._open.pop(name, None)

    def revise(self, event: SlotEnded) -> SlotEnded:
        """Return the end of a slot with the lengths that its progress reveals.

        A job that is truly done gets its true description, so it completes. A job that has done all
        its stated work, but isn't truly done, gets a longer description.
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
                longer = _work_of_length(job.true, self._extended_length(job))
                required = max(job.progress + 1, longer)
                lengths[name] = job.stated = self._with_work(job.true, required)
        for true in finished:
            length = true.required / int(true.gains.max())
            self._history.add(kind_of_job(true, self._cluster), length)
        return replace(event, lengths=lengths) if lengths else event

    def _extended_length(self, job: _OpenJob) -> float:
        """Return the new length in slots of a job that has done all its stated work."""
        attained = job.progress / int(job.true.gains.max())
        if job.true.name in self._limits:
            return GROWTH * attained
        return self._predict(job.true, attained)

    def _predict(self, job: Job, attained: float = 0.0) -> float:
        """Return the predicted length of a job that has run for ``attained``; both in slots."""
        return self._history.predict(kind_of_job(job, self._cluster), attained).length

    def _with_work(self, job: Job, required: int) -> Job:
        """Return a job with other work. Nothing in the result reveals the job's own work."""
        if bool((job.gains == job.worker_counts).all()):  # progress counts worker-slots
            minibatches = required * self._slot_seconds / job.step_seconds
        else:
            minibatches = required / MICRO
        return replace(
            job,
            required=required,
            epochs=1,
            chunks=job.max_workers,
            minibatches=max(1, math.ceil(minibatches / job.max_workers)),
            utility=utility_of_length(job, required),
            walltime=job.walltime if self._shows_limits else None,
            predicted=True,
        )


def _work_of_length(job: Job, slots: float) -> int:
    """Return the work, in units of progress, that takes a length in slots; within limits."""
    gain = int(job.gains.max())
    slots = min(slots, bounds.JOB_SLOTS.maximum)
    return max(1, min(math.ceil(slots * gain), int(bounds.PROGRESS.maximum)))


def with_lengths_in_label(choice: PolicyChoice, lengths: str) -> PolicyChoice:
    """Return a policy whose label names the lengths that it sees, unless it knows them."""
    if lengths == KNOWN:
        return choice
    return replace(choice, titled=f"{choice.label} lengths={lengths}")
