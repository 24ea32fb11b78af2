"""Asking about a later arrival: slot by slot at first, then in slots ever farther apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from shadowprice.core.job import Job
from shadowprice.simulator.advice.moments import Admission, Moment
from shadowprice.simulator.advice.search import Found, Nothing
from shadowprice.simulator.advice.variants import Variants
from shadowprice.simulator.advice.ways import Way

_EVERY: Final = 100
"""So many delays are asked about one by one: those of up to 100 slots, slot by slot."""
_GAP: Final = 6
"""Beyond, between slots that are asked about lies at most one in so many of the delay so far."""


class Delays:
    """What is answered on arriving later, by how much later.

    A run goes forward only, and over a long horizon a question in every slot that is left would
    make up most of what advice on a hopeless job costs. So some of the later ones are passed over;
    where one behind them is admitted, `between` tells those to go back to, so that the slot before
    the one found is refused for certain.

    Parameters
    ----------
    variants : Variants
        The job.
    way : Way
        The way of arriving later.

    Attributes
    ----------
    told : dict of int to Admission or None
        What was answered, by step of the way.
    """

    def __init__(self, variants: Variants, way: Way) -> None:
        self._variants = variants
        self._way = way
        self._slots = [int(value.split()[0]) for value in way.values]
        self._steps = {slot: step for step, slot in enumerate(self._slots, start=1)}
        self._first: Job | None = None
        self.told: dict[int, Admission | None] = {}

    def spread(self) -> Sequence[int]:
        """Return the steps to ask about first: the last of them is the largest."""
        steps, step, last = [], 1, len(self._slots)
        while step < last:
            steps.append(step)
            step += 1 if step < _EVERY else max(1, step // _GAP)
        return [*steps, last] if last else []

    def slots(self, steps: Iterable[int]) -> list[int]:
        """Return the slots of some steps."""
        return [self._slots[step - 1] for step in steps]

    def visit(self, moment: Moment) -> bool:
        """Ask in a slot; return whether later ones are of interest."""
        step = self._steps[moment.slot]
        job = self._job_from(step)
        self.told[step] = None if job is None else moment.ask(job)
        return self.told[step] is None

    def _job_from(self, step: int) -> Job | None:
        """Return the job with a later arrival: they differ in nothing else, as all are in slots."""
        if self._first is None:
            self._first = self._variants.job(self._way, step)
        return None if self._first is None else replace(self._first, arrival=self._slots[step - 1])

    def between(self) -> Sequence[int]:
        """Return the steps that were passed over right before the one that is admitted."""
        found = self.found()
        if isinstance(found, Nothing):
            return ()
        before = max((step for step in self.told if step < found.step), default=0)
        return range(before + 1, found.step)

    def found(self) -> Found[Admission] | Nothing:
        """Return the smallest delay that is admitted."""
        for step, admission in sorted(self.told.items()):
            if admission is not None:
                return Found(step, admission)
        return Nothing(len(self.told))
