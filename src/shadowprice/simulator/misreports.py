"""Ways in which a tenant can misstate its jobs, and what it truly gets when it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Final

import numpy as np

from shadowprice.core import bounds
from shadowprice.core.events import Charge, Command, Decided, DriverEvent, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.utility import (
    Constant,
    Deadline,
    Linear,
    Power,
    Reciprocal,
    Sigmoid,
    Utility,
    utility_value,
)
from shadowprice.results.observer import Observer

Lie = Callable[[Job], Job | None]
"""Turns a job into its misstated form; None where the job has nothing to misstate that way."""

_FACTORS: Final = (0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 10.0)
_WORTH: Final[Mapping[type, tuple[str, ...]]] = {
    Constant: ("value",),
    Sigmoid: ("value",),
    Reciprocal: ("value",),
    Linear: ("value", "slope"),
    Power: ("scale",),
    Deadline: ("value",),
}
"""Parameters that scale the whole utility; Power's scale does so to the power of its exponent."""
_HURRY: Final[Mapping[type, tuple[str, ...]]] = {
    Sigmoid: ("decay", "target"),
    Linear: ("slope",),
    Power: ("exponent",),
    Deadline: ("by",),
}
"""Parameters that say how much waiting costs."""


@dataclass(frozen=True, slots=True)
class Misreport:
    """A whole workload with one tenant's jobs misstated.

    Parameters
    ----------
    kind : str
        ``value``, ``urgency``, ``workers``, ``work``, ``arrival``, ``several`` or ``sham``.
    story : str
        What is misstated, for a person.
    jobs : tuple of Job
        What the policy is told.
    """

    kind: str
    story: str
    jobs: tuple[Job, ...]


class TrueRevenue(Observer):
    """Counts what a tenant truly gets from a run, whatever was reported.

    A job counts as done in the slot in which its progress reaches what it truly needs, and earns
    its true utility from its true arrival; payments and incomes are what was charged.

    Parameters
    ----------
    truth : mapping of str to Job
        The tenant's true jobs.
    tenant : str
        The tenant.
    """

    def __init__(self, truth: Mapping[str, Job], tenant: str) -> None:
        self._truth = truth
        self._tenant = tenant
        self._progress = dict.fromkeys(truth, 0)
        self.done: dict[str, int] = {}
        self.balance = 0

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Take note of progress and of payments."""
        if isinstance(event, SlotEnded):
            for name, gained in event.progress.items():
                if name in self._progress and name not in self.done:
                    self._progress[name] += gained
                    if self._progress[name] >= self._truth[name].required:
                        self.done[name] = event.slot
        for command in commands:
            if isinstance(command, Decided) and isinstance(command.decision, Charge):
                charge = command.decision
                amount = sum(charge.amounts.values())
                if charge.payer == self._tenant:
                    self.balance -= amount
                if charge.payee == self._tenant:
                    self.balance += amount

    @property
    def utility(self) -> float:
        """True utility of what was truly done."""
        return sum(
            utility_value(self._truth[name].utility, slot - self._truth[name].arrival)
            for name, slot in self.done.items()
        )

    @property
    def revenue(self) -> float:
        """Utility, less what was paid, plus what was received."""
        return self.utility + self.balance / 1_000_000


def misreports(
    jobs: Sequence[Job], tenant: str, trials: int, seed: int, latest: int
) -> Iterator[Misreport]:
    """Yield misstated workloads: a lie about all jobs, about one, then mixtures.

    Parameters
    ----------
    jobs : sequence of Job
        The true workload.
    tenant : str
        Who lies.
    trials : int
        How many.
    seed : int
        Seed of the choice among single lies, and of the mixtures.
    latest : int
        Most slots that an arrival is delayed.
    """
    rng = np.random.default_rng(seed)
    mine = [at for at, job in enumerate(jobs) if job.tenant == tenant]
    lies = list(_lies(latest))
    everything = list(_about_all(jobs, mine, lies))
    singles = list(_singles(jobs, mine, lies))
    singles = [singles[at] for at in rng.permutation(len(singles))]
    # A third each, as far as there are so many.
    third = trials // 3
    kept = [*everything[:third], *singles[: max(third, trials - third - len(everything[:third]))]]
    yield from kept[:trials]
    yield from islice(_mixtures(jobs, mine, lies, rng), max(0, trials - len(kept)))


def _singles(
    jobs: Sequence[Job], mine: Sequence[int], lies: Sequence[tuple[str, str, Lie]]
) -> Iterator[Misreport]:
    for at in mine:
        for kind, story, lie in lies:
            told = lie(jobs[at])
            if told is not None:
                yield Misreport(kind, f"{jobs[at].name}: {story}", _with(jobs, {at: told}))
    for at in mine:
        sham = replace(jobs[at], name=f"{jobs[at].name}+sham")
        story = f"{jobs[at].name}: a second one, worth nothing"
        yield Misreport("sham", story, (*jobs, sham))


def _about_all(
    jobs: Sequence[Job], mine: Sequence[int], lies: Sequence[tuple[str, str, Lie]]
) -> Iterator[Misreport]:
    for kind, story, lie in lies:
        told = {at: changed for at in mine if (changed := lie(jobs[at])) is not None}
        if told:
            yield Misreport(kind, f"all jobs: {story}", _with(jobs, told))


def _mixtures(
    jobs: Sequence[Job],
    mine: Sequence[int],
    lies: Sequence[tuple[str, str, Lie]],
    rng: np.random.Generator,
) -> Iterator[Misreport]:
    while mine:
        told: dict[int, Job] = {}
        stories = []
        for at in mine:
            if rng.random() < 0.5:
                _, story, lie = lies[int(rng.integers(len(lies)))]
                changed = lie(jobs[at])
                if changed is not None:
                    told[at] = changed
                    stories.append(f"{jobs[at].name}: {story}")
        if told:
            shown = "; ".join(stories[:3]) + (
                f"; and {len(stories) - 3} more" if stories[3:] else ""
            )
            yield Misreport("several", shown, _with(jobs, told))


def _with(jobs: Sequence[Job], told: Mapping[int, Job]) -> tuple[Job, ...]:
    return tuple(told.get(at, job) for at, job in enumerate(jobs))


def _lies(latest: int) -> Iterator[tuple[str, str, Lie]]:
    for factor in _FACTORS:
        yield "value", f"worth {factor:g} times as much", _utility_lie(_WORTH, factor)
        yield "urgency", f"waiting costs {factor:g} times as much", _utility_lie(_HURRY, factor)
    yield "workers", "exactly its most workers", _width_lie(lambda counts: counts == counts[-1])
    yield (
        "workers",
        "at most half its workers",
        _width_lie(lambda counts: counts <= counts[-1] // 2),
    )
    yield (
        "workers",
        "at most a quarter of its workers",
        _width_lie(lambda counts: counts <= counts[-1] // 4),
    )
    yield (
        "workers",
        "at least half its workers",
        _width_lie(lambda counts: counts >= counts[-1] // 2),
    )
    yield "workers", "one worker", _width_lie(lambda counts: counts == counts[0])
    for factor in (1.1, 1.5, 2.0):
        yield "work", f"{factor:g} times the work", _work_lie(factor)
    for delay in sorted({1, 2, 3, 5, 8, latest}):
        if 0 < delay <= latest:
            slots = "a slot" if delay == 1 else f"{delay} slots"
            yield "arrival", f"arrives {slots} later", _delay(delay)


def _utility_lie(parameters: Mapping[type, tuple[str, ...]], factor: float) -> Lie:
    def lie(job: Job) -> Job | None:
        names = parameters.get(type(job.utility), ())
        changes: dict[str, Any] = {
            field.name: getattr(job.utility, field.name) * _factor(field.name, factor)
            for field in fields(job.utility)  # type: ignore[arg-type]  # families are dataclasses
            if field.name in names
        }
        if not any(getattr(job.utility, name) != value for name, value in changes.items()):
            return None
        told: Utility = replace(job.utility, **changes)  # type: ignore[type-var]
        return replace(job, utility=told)

    return lie


def _factor(name: str, factor: float) -> float:
    # More hurry is an earlier target or deadline.
    return 1 / factor if name in {"target", "by"} else factor


def _width_lie(keeps: Callable[[Any], Any]) -> Lie:
    def lie(job: Job) -> Job | None:
        kept = keeps(job.worker_counts)
        if not kept.any() or kept.all():
            return None
        names = ("worker_counts", "gains", "internal_gains", "ps_counts")
        return replace(job, **{name: getattr(job, name)[kept] for name in names})

    return lie


def _work_lie(factor: float) -> Lie:
    def lie(job: Job) -> Job | None:
        required = math.ceil(job.required * factor)
        return replace(job, required=required) if required < bounds.PROGRESS.most else None

    return lie


def _delay(slots: int) -> Lie:
    return lambda job: replace(job, arrival=job.arrival + slots)
