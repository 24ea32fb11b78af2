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
    variants: JobVariants, ways: Sequence[JobChange], quote: QuoteFn
) -> Iterator[tuple[JobChange, SearchResult, StepFn]]:
    """Yield each change with the result of its search, and the function that was searched."""
    smaller_fails = is_smallest_refused(variants, ways, quote)
    work = 0.0  # share of the work with which it was admitted
    for way in ways:
        answer = partial(_answer, variants, quote, way)
        result: SearchResult = NoStepFound(1)
        if not (smaller_fails and is_size(way)):
            # Levels of a priority aren't numbers.
            is_utility = way.name == "value" and way.key[0] == "utility"
            guess = partial(_break_even_utility_step, way) if is_utility else None
            start = step_of_work(way, work)
            result = find_smallest_step(answer, len(way.values), start, guess=guess)
        yield way, result, answer
        if way.key == ("epochs",) and isinstance(result, StepFound):
            work = way.values[result.step - 1] / int(way.before)


def _answer(
    variants: JobVariants, quote: QuoteFn, way: JobChange, step: int
) -> AdmissionOutcome | None:
    job = variants.job(way, step)
    return None if job is None else quote(job)


def is_smallest_refused(variants: JobVariants, ways: Sequence[JobChange], quote: QuoteFn) -> bool:
    """Return whether the job is refused even with the smallest request of every resource."""
    smallest_job = variants.with_last_values([way for way in ways if is_size(way)])
    return smallest_job is None or quote(smallest_job) is None


def is_size(way: JobChange) -> bool:
    """Return whether a change only reduces the resources that the job needs."""
    return way.name == "size" and way.key[-1] != BANDWIDTH  # less of it makes the work take longer


def step_of_work(way: JobChange, work: float) -> int:
    """Return the step that leaves about a share of the job's work; 0 for no guess.

    Fewer mini-batches are the same work as fewer epochs, with which the job was admitted.
    """
    if way.key != ("minibatches",) or not work:
        return 0
    return 1 + sum(bool(value > work * int(way.before)) for value in way.values)


def _break_even_utility_step(way: JobChange, step: int, found: AdmissionOutcome) -> int:
    """Return the step at which the job's utility slightly exceeds the price of an admitted step.

    Dinkelbach's step: a job with this utility would still be admitted with the same schedule.
    """
    if not found.price or not found.utility:
        return step
    sufficient = way.values[step - 1] * found.price / found.utility
    return bisect_right(way.values, sufficient) + 1


def describe_result(
    way: JobChange, result: SearchResult, **more: Any
) -> Advice | IneffectiveChange | None:
    """Return the result of a search as advice; None if the change has no values.

    ``more`` are further fields of `Advice`.
    """
    option = way.option
    if isinstance(result, NoStepFound):
        if not way.values:
            return None
        last = way.values[-1]
        ineffective = IneffectiveChange(
            way.name,
            way.label,
            format_value(last),
            result.tried,
            decreases=True if way.decreases else None,
        )
        if option is None:
            return ineffective
        return replace(ineffective, option=option.name, option_up_to=option.text(last))
    value = way.values[result.step - 1]
    if option is not None:
        more |= {
            "option": option.name,
            "option_before": option.before,
            "option_after": option.text(value),
        }
    refused = way.before if result.step == 1 else format_value(way.values[result.step - 2])
    answer = result.answer
    return Advice(
        way=way.name,
        key=way.label,
        before=way.before,
        after=format_value(value),
        change=way.change(value),
        refused=refused,
        completion=answer.completion,
        utility=answer.utility,
        price=answer.price,
        **more,
    )
