"""Queries about a later arrival: in every slot at first, then in slots ever farther apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from shadowprice.advice.candidate_changes import JobChange
from shadowprice.advice.changes import AdmissionOutcome, JobVariants, NoStepFound, StepFound
from shadowprice.core.job import Job
from shadowprice.simulator.advice.moments import DecisionPoint

_CONSECUTIVE_DELAYS: Final = 100
"""Number of delays that are queried one by one: slot by slot up to 100 slots."""
_MAX_GAP_DIVISOR: Final = 6
"""Beyond them, the gap between queried slots is at most the delay divided by this."""


class ArrivalDelaySearch:
    """Answers on a later arrival, by delay.

    A run only goes forward, and over a long horizon a query in every slot would be most of the cost
    of advice on a job that is never admitted. Some later slots are therefore skipped. If one after
    them is admitted, `between` gives the skipped slots to go back to, so that the slot before the
    result is certainly refused. ``outcomes`` are the answers by step of the change.
    """

    def __init__(self, variants: JobVariants, change: JobChange) -> None:
        self._variants = variants
        self._change = change
        self._slots = [int(value.split()[0]) for value in change.values]
        self._steps = {slot: step for step, slot in enumerate(self._slots, start=1)}
        self._first: Job | None = None
        self.outcomes: dict[int, AdmissionOutcome | None] = {}

    def spread(self) -> Sequence[int]:
        """Return the steps to query first; the last one is the largest."""
        steps, step, last = [], 1, len(self._slots)
        while step < last:
            steps.append(step)
            step += 1 if step < _CONSECUTIVE_DELAYS else max(1, step // _MAX_GAP_DIVISOR)
        return [*steps, last] if last else []

    def slots(self, steps: Iterable[int]) -> list[int]:
        """Return the slots of some steps."""
        return [self._slots[step - 1] for step in steps]

    def visit(self, moment: DecisionPoint) -> bool:
        """Query in a slot; return whether later slots matter."""
        step = self._steps[moment.slot]
        job = self._job_from(step)
        self.outcomes[step] = None if job is None else moment.quote(job)
        return self.outcomes[step] is None

    def _job_from(self, step: int) -> Job | None:
        """Return the job with a later arrival, which differs in nothing else."""
        if self._first is None:
            self._first = self._variants.job(self._change, step)
        return None if self._first is None else replace(self._first, arrival=self._slots[step - 1])

    def between(self) -> Sequence[int]:
        """Return the skipped steps right before the one that is admitted."""
        found = self.found()
        if isinstance(found, NoStepFound):
            return ()
        before = max((step for step in self.outcomes if step < found.step), default=0)
        return range(before + 1, found.step)

    def found(self) -> StepFound[AdmissionOutcome] | NoStepFound:
        """Return the smallest delay that is admitted."""
        for step, admission in sorted(self.outcomes.items()):
            if admission is not None:
                return StepFound(step, admission)
        return NoStepFound(len(self.outcomes))
