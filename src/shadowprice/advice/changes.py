"""Variants of a job with one key changed, and queries for the smallest change that admits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from shadowprice.advice.candidate_changes import (
    JobChange,
    JobFileRecord,
    Key,
    format_value,
    with_value,
)
from shadowprice.core.amounts import parse_amount, parse_duration
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.specs import JobSpec, resolve_utility, validate
from shadowprice.core.specs.fields import to_integer_amounts
from shadowprice.core.specs.utilities import UtilitySpec
from shadowprice.results.advice import Advice, IneffectiveChange

_UTILITY: Final[TypeAdapter[Any]] = TypeAdapter(UtilitySpec)


class JobVariants:
    """Cache of a job's variants, each resolved from its record with one key changed.

    ``entry`` is the record in the file, and ``job`` the job resolved from the record. ``resolve``
    is the function that resolves records, by default `JobSpec.resolve`. The function raises
    `InputError` for an invalid job.
    """

    def __init__(
        self,
        entry: JobFileRecord,
        job: Job,
        cluster: Cluster,
        resolve: Callable[[JobSpec], Job] | None = None,
    ) -> None:
        self.entry = entry
        self._job = job
        self._cluster = cluster
        self._spec = JobSpec.model_validate(entry)
        self._resolve = resolve or (lambda spec: spec.resolve(cluster))
        # Slots from the submission to the start of the arrival slot. A job has them as a float, so
        # they are computed exactly if the record has the arrival, as in a job file.
        self._before_arrival = Fraction(job.before_arrival)
        if resolve is None:
            self._before_arrival = job.arrival - self._spec.arrival.in_slots(cluster.slot_seconds)
        # A utility can be resolved without the rest of the record if that gives the job's utility.
        self._resolves_utility_alone = self._utility(entry) == job.utility
        self._cached: dict[tuple[Key, Any], Job | None] = {}

    def job(self, change: JobChange, step: int) -> Job | None:
        """Return the job with the ``step``-th value of a change, from 1; None if it's invalid."""
        # The same values are tried first at the decision, then in a full run.
        key = change.key, change.values[step - 1]
        if key not in self._cached:
            self._cached[key] = self.with_value(*key)
        return self._cached[key]

    def with_last_values(self, changes: Iterable[JobChange]) -> Job | None:
        """Return the job with the last values of several changes; None without changes."""
        entry: JobFileRecord | None = None
        for change in changes:
            entry = with_value(entry or self.entry, change.key, change.values[-1])
        return None if entry is None else self._resolve_or_none(validate(JobSpec, entry, "job")[0])

    def with_value(self, key: Key, value: Any) -> Job | None:
        """Return the job with a value of its record replaced; None if the value is invalid."""
        # Most changes affect one number, so the whole record needn't be resolved again.
        is_demand = len(key) == 2 and key[0] in ("worker", "ps") and key[1] != BANDWIDTH
        # The default utility depends on the worker's GPUs, so its jobs are resolved again.
        if is_demand and not self._job.has_default_utility:
            amounts = to_integer_amounts(getattr(self._spec, str(key[0])))
            amounts[str(key[1])] = parse_amount(value).value
            demand: Any = self._cluster.demand(amounts)
            return replace(self._job, **{str(key[0]): demand})
        if key[0] == "utility" and self._resolves_utility_alone:
            utility = self._utility(with_value(self.entry, key, value))
            return None if utility is None else replace(self._job, utility=utility)
        spec: JobSpec | None
        if key in (("steps",), ("epochs",), ("minibatches",)):
            spec = self._spec.model_copy(update={str(key[0]): value})
        elif key == ("arrival",):  # tried in every remaining slot, so it has to be fast
            spec = self._spec.model_copy(update={"arrival": parse_duration(value)})
        else:
            spec, _ = validate(JobSpec, with_value(self.entry, key, value), "job")
        return self._resolve_or_none(spec)

    def _resolve_or_none(self, spec: JobSpec | None) -> Job | None:
        try:
            return None if spec is None else self._resolve(spec)
        except InputError:
            return None

    def _utility(self, entry: JobFileRecord) -> Any:
        if entry.get("utility") is None:  # the default utility depends on the whole record
            return None
        try:
            spec = _UTILITY.validate_python(entry["utility"])
        except ValidationError:
            return None
        return resolve_utility(spec, self._cluster.slot_seconds, self._before_arrival)


# ---------------------------------------------------------------- search

PROBES_WHEN_MAX_REFUSED: Final = 3
"""Number of evenly spaced steps that are queried if the largest step is refused."""

_MAX_STRIDE_BEFORE_MAX_CHECK: Final = 4
"""Stride at which the search near a first step ends, unless the largest step is admitted."""

_MAX_ESTIMATES: Final = 6  # number of estimated steps before bisection
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StepFound(Generic[Answer]):
    """An admitted step whose previous step is refused."""

    step: int
    answer: Answer  # answer of ``evaluate`` to the step


@dataclass(frozen=True, slots=True)
class NoStepFound:
    """No queried step is admitted."""

    tried: int  # number of queried steps


def find_smallest_step(
    evaluate: Callable[[int], Answer | None],
    steps: int,
    start: int = 0,
    evenly: int = PROBES_WHEN_MAX_REFUSED,
    estimate: Callable[[], int] | None = None,
) -> StepFound[Answer] | NoStepFound:
    """Return an admitted step whose previous step is refused.

    A step is the position of a value among a change's values; step 0 is no change.

    If a larger step is never worse, this is the smallest admitted step. Otherwise it is the
    smallest queried step that is admitted; a smaller one that wasn't queried may be admitted too.

    ``evaluate`` returns the answer to a step, None if it is refused. ``steps`` is the largest step,
    and ``start`` a step near which the result may be, or 0. ``evenly`` spaced steps are queried if
    the largest step is refused. ``estimate`` returns the probable result after the answers so far,
    0 if unknown; it is for queries that cost a full run each.
    """
    answers: dict[int, Answer | None] = {0: None}  # without a change the job is refused

    def answer(step: int) -> Answer | None:
        if step not in answers:
            answers[step] = evaluate(step)
        return answers[step]

    step = min(max(start, 0), steps)
    if step > 0:
        low, high = _bracket_near_start(answer, step, steps, estimate)
    else:
        is_max_admitted = steps > 0 and answer(steps) is not None
        low, high = 0, (steps if is_max_admitted else 0)
    if not high:
        high = _probe_evenly(answer, steps, evenly)
        low = max((step for step in answers if step < high and answers[step] is None), default=0)
    if not high:
        return NoStepFound(len(answers) - 1)
    remaining_estimates = _MAX_ESTIMATES if estimate is not None else 0
    while high - low > 1:
        middle = (low + high) // 2
        if estimate is not None and remaining_estimates > 0:
            remaining_estimates -= 1
            middle = min(max(estimate() or middle, low + 1), high - 1)
        if answer(middle) is None:
            low = middle
        else:
            high = middle
    result = answers[high]
    assert result is not None
    return StepFound(high, result)


def _bracket_near_start(
    answer: Callable[[int], object], step: int, steps: int, estimate: Callable[[], int] | None
) -> tuple[int, int]:
    """Return a refused and a later admitted step near ``step``, or (0, 0); strides double."""
    stride = 1
    if answer(step) is not None:
        high = step
        while high - stride > 0:
            step = high - stride
            if estimate is not None:
                step = max(min(step, estimate() or step), 1)
            if answer(step) is None:
                return step, high
            high, stride = step, 2 * stride
        return 0, high
    low = step
    while low < steps:
        if stride == _MAX_STRIDE_BEFORE_MAX_CHECK and answer(steps) is None:
            break
        step = low + stride
        if estimate is not None and stride < 2 * _MAX_STRIDE_BEFORE_MAX_CHECK:
            step = max(step, estimate())
        step = min(step, steps)
        if answer(step) is not None:
            return low, step
        low, stride = step, 2 * stride
    return 0, 0


def _probe_evenly(answer: Callable[[int], object], steps: int, evenly: int) -> int:
    """Query step 1, then evenly spaced steps; return the first admitted one, or 0."""
    if steps > 0 and evenly and answer(1) is not None:
        return 1
    for position in range(1, evenly + 1):
        step = position * steps // (evenly + 1)
        if step > 0 and answer(step) is not None:
            return step
    return 0


# ---------------------------------------------------------------- queries


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """Completion, utility and price of a job if it's admitted; None if unknown."""

    completion: int | None = None  # promised completion slot
    utility: float | None = None
    price: float | None = None


QuoteFn = Callable[[Job], AdmissionOutcome | None]
"""Function that returns the admission of a job, None if it would be refused."""
SearchResult = StepFound[AdmissionOutcome] | NoStepFound
StepFn = Callable[[int], AdmissionOutcome | None]
"""Function that returns the admission of a step of a change, None if it would be refused."""


class ChangeSearch:
    """Search for the smallest step of each change that gets the job admitted."""

    def __init__(self, variants: JobVariants, changes: Sequence[JobChange], quote: QuoteFn) -> None:
        self._variants = variants
        self._changes = changes
        self._quote = quote
        self._admitted_work = 0.0  # share of the work with which the job is admitted, 0 if unknown

    def answer(self, change: JobChange, step: int) -> AdmissionOutcome | None:
        """Return the admission of a step of a change, None if it would be refused."""
        job = self._variants.job(change, step)
        return None if job is None else self._quote(job)

    def find(self, change: JobChange, evenly: int = PROBES_WHEN_MAX_REFUSED) -> SearchResult:
        """Return the smallest step; ``evenly`` is as in `find_smallest_step`."""
        if is_size(change) and self.is_smallest_refused:
            return NoStepFound(1)
        # Work is epochs times mini-batches, so the result for epochs shows where to start.
        start = 0
        if change.key == ("minibatches",) and self._admitted_work:
            minibatches = self._admitted_work * int(change.before)
            start = 1 + sum(1 for value in change.values if value > minibatches)
        result = find_smallest_step(partial(self.answer, change), len(change.values), start, evenly)
        if change.key == ("epochs",) and isinstance(result, StepFound):
            self._admitted_work = change.values[result.step - 1] / int(change.before)
        return result

    @cached_property
    def is_smallest_refused(self) -> bool:
        """Whether the job is refused even with the smallest demand of every resource."""
        sizes = [change for change in self._changes if is_size(change)]
        smallest_job = self._variants.with_last_values(sizes)
        return smallest_job is None or self._quote(smallest_job) is None


def is_size(change: JobChange) -> bool:
    """Return whether a change only reduces the resources that the job needs."""
    # With less bandwidth, the job also runs longer.
    return change.kind == "size" and change.key[-1] != BANDWIDTH


def describe_result(
    change: JobChange, result: SearchResult, **more: Any
) -> Advice | IneffectiveChange | None:
    """Return the result of a search as advice with ``more`` fields; None for an empty change."""
    option = change.option  # of `submit`; None unless options set the job's keys
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
