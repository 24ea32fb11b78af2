"""The smallest step of a way that is admitted, found with few questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

EVENLY: Final = 5
"""Steps asked about, spread evenly, where the largest is refused."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Found(Generic[Answer]):
    """The step found.

    Parameters
    ----------
    step : int
        The step; the one before it is refused.
    answer : object
        What was answered on it.
    """

    step: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Nothing:
    """No step that was asked about is admitted.

    Parameters
    ----------
    tried : int
        How many were.
    """

    tried: int


def smallest(
    ask: Callable[[int], Answer | None], steps: int, start: int = 1, evenly: int = EVENLY
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
        Where to begin.
    evenly : int
        Steps asked about, spread evenly, where the largest is refused.
    """
    known: dict[int, Answer | None] = {0: None}

    def answer(step: int) -> Answer | None:
        if step not in known:
            known[step] = ask(step)
        return known[step]

    low, high = 0, 0
    step = min(max(start, 1), steps)
    if steps > 0 and answer(step) is not None:
        # Below a first guess, in doubling strides.
        high, stride = step, 1
        while high - stride > 0 and answer(high - stride) is not None:
            high, stride = high - stride, 2 * stride
        low = max(high - stride, 0)
    elif steps > 0 and answer(steps) is not None:
        low, stride = step, 1
        while not high:
            step = min(low + stride, steps)
            if answer(step) is not None:
                high = step
            else:
                low, stride = step, 2 * stride
    else:
        high = _spread(answer, steps, evenly)
        low = max((step for step in known if step < high and known[step] is None), default=0)
    if not high:
        return Nothing(len(known) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if answer(middle) is None:
            low = middle
        else:
            high = middle
    found = known[high]
    assert found is not None
    return Found(high, found)


def _spread(answer: Callable[[int], object], steps: int, evenly: int) -> int:
    """Return the first admitted of some steps spread evenly, 0 if none is."""
    for part in range(1, evenly + 1):
        step = part * steps // (evenly + 1)
        if step > 0 and answer(step) is not None:
            return step
    return 0
