"""Search for the smallest admitted variant of a job, in few queries.

Steps number the variants by size of the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PROBES_WHEN_MAX_REFUSED: Final = 3
"""Number of evenly spaced steps that are queried if the largest is refused."""

_MAX_STRIDE_BEFORE_MAX_CHECK: Final = 4
"""Stride at which the search near a first step ends, unless the largest step is admitted."""

_MAX_ESTIMATES: Final = 6  # number of estimated steps before bisection

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StepFound(Generic[Answer]):
    """Smallest admitted step."""

    step: int  # the step before it is refused
    answer: Answer  # answer to its query


@dataclass(frozen=True, slots=True)
class NoStepFound:
    """No queried step is admitted."""

    tried: int  # number of queried steps


def find_smallest_step(
    evaluate: Callable[[int], Answer | None],
    steps: int,
    start: int = 0,
    evenly: int = PROBES_WHEN_MAX_REFUSED,
    guess: Callable[[int, Answer], int] | None = None,
    estimate: Callable[[], int] | None = None,
) -> StepFound[Answer] | NoStepFound:
    """Return a step that is admitted while the step before it is refused.

    If a larger step is never worse, this is the smallest admitted step. Otherwise the previous step
    and every smaller queried step are refused, but a smaller step may be admitted.

    ``evaluate`` returns the answer to a step, None if it is refused; step 0, no change, is refused.
    ``steps`` is the largest step, and ``start`` a step near which the result may be, or 0.
    ``evenly`` steps are queried if the largest one is refused. ``guess`` returns, for an admitted
    step and its answer, a smaller step that may be admitted; a bad guess costs a few queries.
    ``estimate`` returns the probable result after the answers so far, 0 if unknown; it is for
    queries that cost a full run each.
    """
    answers: dict[int, Answer | None] = {0: None}

    def answer(step: int) -> Answer | None:
        if step not in answers:
            answers[step] = evaluate(step)
        return answers[step]

    step = min(max(start, 0), steps)
    if step > 0:
        low, high = _bracket_near_start(answer, step, steps, estimate)
    else:
        low, high = 0, steps if steps > 0 and answer(steps) is not None else 0
    if not high:
        high = _probe_evenly(answer, steps, evenly)
        low = max((step for step in answers if step < high and answers[step] is None), default=0)
    if not high:
        return NoStepFound(len(answers) - 1)
    if guess is not None:
        low, high = _follow_guesses(answer, low, high, guess)
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
    """Return a refused and an admitted step near another, by doubling strides; (0, 0) if none."""
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


def _follow_guesses(
    answer: Callable[[int], Answer | None],
    low: int,
    high: int,
    guess: Callable[[int, Answer], int],
) -> tuple[int, int]:
    """Return closer bounds, by following guesses while they are admitted."""
    while high - low > 1:
        admitted = answer(high)
        assert admitted is not None
        step = guess(high, admitted)
        if not low < step < high:
            return low, high
        if answer(step) is None:
            # The result is more likely right above the estimate than in the middle.
            stride = 1
            while step + stride < high:
                if answer(step + stride) is not None:
                    return step + stride // 2, step + stride
                stride *= 2
            return step + stride // 2, high
        high = step
    return low, high


def _probe_evenly(answer: Callable[[int], object], steps: int, evenly: int) -> int:
    """Query step 1, then evenly spaced steps; return the first admitted one, or 0."""
    if steps > 0 and evenly and answer(1) is not None:
        return 1
    for position in range(1, evenly + 1):
        step = position * steps // (evenly + 1)
        if step > 0 and answer(step) is not None:
            return step
    return 0
