"""The smallest step of a way that is admitted, found with few questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

EVENLY: Final = 3
"""Steps asked about, spread evenly, where the largest is refused."""

_NEAR: Final = 4
"""Stride at which a first step is given up, unless the largest is admitted."""

_AIMS: Final = 6
"""Steps that are aimed at before halving does the rest."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Found(Generic[Answer]):
    """The step found."""

    step: int
    """The step; the one before it is refused."""
    answer: Answer
    """What was answered on it."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No step that was asked about is admitted."""

    tried: int
    """How many were."""


def smallest(
    ask: Callable[[int], Answer | None],
    steps: int,
    start: int = 0,
    evenly: int = EVENLY,
    guess: Callable[[int, Answer], int] | None = None,
    aim: Callable[[], int] | None = None,
) -> Found[Answer] | Nothing:
    """Return a step that is admitted while the step before it is refused.

    Where more is never worse, this is the smallest step that is admitted. Where it may be, it is
    the end of a run of refused steps: every smaller step that was asked about is refused, and the
    one right before it for certain.

    Parameters
    ----------
    ask : callable
        What is answered on a step, None where it is refused. Step 0, no change, is refused.
    steps : int
        Number of the largest step.
    start : int
        A step near which the answer may lie, 0 where nothing is known of it.
    evenly : int
        Steps asked about, spread evenly, where the largest is refused.
    guess : callable, optional
        Given an admitted step and what was answered, a smaller step that may be admitted as well:
        good guesses save questions, bad ones cost a few.
    aim : callable, optional
        Where the answer lies, to judge by what was answered so far; 0 where that tells nothing. For
        questions that cost as much as running everything again.
    """
    known: dict[int, Answer | None] = {0: None}

    def answer(step: int) -> Answer | None:
        if step not in known:
            known[step] = ask(step)
        return known[step]

    step = min(max(start, 0), steps)
    if step > 0:
        low, high = _around(answer, step, steps, aim)
    else:
        low, high = 0, steps if steps > 0 and answer(steps) is not None else 0
    if not high:
        high = _spread(answer, steps, evenly)
        low = max((step for step in known if step < high and known[step] is None), default=0)
    if not high:
        return Nothing(len(known) - 1)
    if guess is not None:
        low, high = _guessed(answer, low, high, guess)
    aims = _AIMS if aim is not None else 0
    while high - low > 1:
        middle = (low + high) // 2
        if aim is not None and aims > 0:
            aims -= 1
            middle = min(max(aim() or middle, low + 1), high - 1)
        if answer(middle) is None:
            low = middle
        else:
            high = middle
    found = known[high]
    assert found is not None
    return Found(high, found)


def _around(
    answer: Callable[[int], object], step: int, steps: int, aim: Callable[[], int] | None
) -> tuple[int, int]:
    """Return a refused and an admitted step about one, in doubling strides; (0, 0) without any."""
    stride = 1
    if answer(step) is not None:
        high = step
        while high - stride > 0:
            step = high - stride
            if aim is not None:
                step = max(min(step, aim() or step), 1)
            if answer(step) is None:
                return step, high
            high, stride = step, 2 * stride
        return 0, high
    low = step
    while low < steps:
        if stride == _NEAR and answer(steps) is None:
            break
        step = low + stride
        if aim is not None and stride < 2 * _NEAR:
            step = max(step, aim())
        step = min(step, steps)
        if answer(step) is not None:
            return low, step
        low, stride = step, 2 * stride
    return 0, 0


def _guessed(
    answer: Callable[[int], Answer | None],
    low: int,
    high: int,
    guess: Callable[[int, Answer], int],
) -> tuple[int, int]:
    """Return closer bounds: guesses are followed down while they are admitted."""
    while high - low > 1:
        found = answer(high)
        assert found is not None
        step = guess(high, found)
        if not low < step < high:
            return low, high
        if answer(step) is None:
            # Nearly: what lies right above is more likely than the middle.
            stride = 1
            while step + stride < high:
                if answer(step + stride) is not None:
                    return step + stride // 2, step + stride
                stride *= 2
            return step + stride // 2, high
        high = step
    return low, high


def _spread(answer: Callable[[int], object], steps: int, evenly: int) -> int:
    """Return the first admitted of the smallest and some steps spread evenly, 0 if none is."""
    if steps > 0 and evenly and answer(1) is not None:
        return 1
    for part in range(1, evenly + 1):
        step = part * steps // (evenly + 1)
        if step > 0 and answer(step) is not None:
            return step
    return 0
