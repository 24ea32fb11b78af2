"""Queries of every change of a job at one decision point."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shadowprice.advice.candidate_changes import JobChange, format_value
from shadowprice.advice.search import NoStepFound, StepFound, find_smallest_step
from shadowprice.advice.variants import JobVariants
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.job import Job
from shadowprice.results.advice import Advice, IneffectiveChange


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """Promise that an admitted job would get."""

    completion: int | None = None  # completion slot, if it is promised
    utility: float | None = None
    price: float | None = None


QuoteFn = Callable[[Job], AdmissionOutcome | None]
"""Function that returns the admission of a job, None if it would be refused."""
SearchResult = StepFound[AdmissionOutcome] | NoStepFound
StepFn = Callable[[int], AdmissionOutcome | None]
"""Function that returns the admission of a step of a change, None if it would be refused."""


def search_changes(
    variants: JobVariants, changes: Sequence[JobChange], quote: QuoteFn
) -> Iterator[tuple[JobChange, SearchResult, StepFn]]:
    """Yield each change with the result of its search, and the function that was searched."""
    smaller_fails = is_smallest_refused(variants, changes, quote)
    work = 0.0  # share of the work with which it was admitted
    for change in changes:
        answer = partial(_answer, variants, quote, change)
        result: SearchResult = NoStepFound(1)
        if not (smaller_fails and is_size(change)):
            # Levels of a priority aren't numbers.
            is_utility = change.kind == "value" and change.key[0] == "utility"
            guess = partial(_break_even_utility_step, change) if is_utility else None
            start = step_of_work(change, work)
            result = find_smallest_step(answer, len(change.values), start, guess=guess)
        yield change, result, answer
        if change.key == ("epochs",) and isinstance(result, StepFound):
            work = change.values[result.step - 1] / int(change.before)


def _answer(
    variants: JobVariants, quote: QuoteFn, change: JobChange, step: int
) -> AdmissionOutcome | None:
    job = variants.job(change, step)
    return None if job is None else quote(job)


def is_smallest_refused(
    variants: JobVariants, changes: Sequence[JobChange], quote: QuoteFn
) -> bool:
    """Return whether the job is refused even with the smallest request of every resource."""
    smallest_job = variants.with_last_values([change for change in changes if is_size(change)])
    return smallest_job is None or quote(smallest_job) is None


def is_size(change: JobChange) -> bool:
    """Return whether a change only reduces the resources that the job needs."""
    # Less bandwidth makes the work take longer.
    return change.kind == "size" and change.key[-1] != BANDWIDTH


def step_of_work(change: JobChange, work: float) -> int:
    """Return the step that leaves about a share of the job's work; 0 for no guess.

    Fewer mini-batches are the same work as fewer epochs, with which the job was admitted.
    """
    if change.key != ("minibatches",) or not work:
        return 0
    return 1 + sum(bool(value > work * int(change.before)) for value in change.values)


def _break_even_utility_step(change: JobChange, step: int, found: AdmissionOutcome) -> int:
    """Return the step at which the job's utility slightly exceeds the price of an admitted step.

    Dinkelbach's step: a job with this utility would still be admitted with the same schedule.
    """
    if not found.price or not found.utility:
        return step
    sufficient = change.values[step - 1] * found.price / found.utility
    return bisect_right(change.values, sufficient) + 1


def describe_result(
    change: JobChange, result: SearchResult, **more: Any
) -> Advice | IneffectiveChange | None:
    """Return the result of a search as advice; None if the change has no values.

    ``more`` are further fields of `Advice`.
    """
    option = change.option
    if isinstance(result, NoStepFound):
        if not change.values:
            return None
        last = change.values[-1]
        ineffective = IneffectiveChange(
            change.kind,
            change.label,
            format_value(last),
            result.tried,
            decreases=True if change.decreases else None,
        )
        if option is None:
            return ineffective
        return replace(ineffective, option=option.name, option_up_to=option.text(last))
    value = change.values[result.step - 1]
    if option is not None:
        more |= {
            "option": option.name,
            "option_before": option.before,
            "option_after": option.text(value),
        }
    refused = change.before if result.step == 1 else format_value(change.values[result.step - 2])
    answer = result.answer
    return Advice(
        way=change.kind,
        key=change.label,
        before=change.before,
        after=format_value(value),
        change=change.describe(value),
        refused=refused,
        completion=answer.completion,
        utility=answer.utility,
        price=answer.price,
        **more,
    )
