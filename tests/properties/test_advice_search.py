"""The search behind advice: an admitted step right behind a refused one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from shadowprice.advice.candidate_changes import JobChange
from shadowprice.advice.changes import (
    AdmissionOutcome,
    JobVariants,
    NoStepFound,
    StepFound,
    find_smallest_step,
)
from shadowprice.simulator.advice.advisor import ArrivalDelaySearch
from shadowprice.simulator.advice.moments import DecisionPoint
from tests.support.workloads import make_cluster, make_job

STEPS = st.lists(st.booleans(), max_size=60)


@given(
    admitted=STEPS,
    start=st.integers(0, 80),
    aims=st.none() | st.lists(st.integers(-3, 90)),
    evenly=st.booleans(),
)
def test_the_step_before_the_one_found_is_refused_whatever_is_estimated(
    admitted: list[bool], start: int, aims: list[int] | None, evenly: bool
) -> None:
    requests: list[int] = []

    def ask(step: int) -> int | None:
        assert 1 <= step <= len(admitted)
        assert step not in requests
        requests.append(step)
        return step if admitted[step - 1] else None

    def aim() -> int:
        assert aims is not None
        return aims.pop() if aims else 0

    aimed = None if aims is None else aim
    result = find_smallest_step(ask, len(admitted), start, 3 if evenly else 0, aimed)
    if isinstance(result, NoStepFound):
        assert result.tried == len(requests)
        assert not any(admitted[step - 1] for step in requests)
        assert not admitted or len(admitted) in requests
    else:
        assert result.answer == result.step
        assert admitted[result.step - 1]
        assert result.step == 1 or not admitted[result.step - 2]


@given(steps=st.integers(1, 2000), first=st.integers(1, 2000), start=st.integers(0, 2000))
def test_where_more_is_never_worse_the_smallest_is_found_with_few_questions(
    steps: int, first: int, start: int
) -> None:
    calls = 0

    def ask(step: int) -> int | None:
        nonlocal calls
        calls += 1
        return step if step >= first else None

    result = find_smallest_step(ask, steps, start)
    if first > steps:
        assert result == NoStepFound(calls)
        assert calls <= 8
        return
    assert result == StepFound(first, first)
    assert calls <= (2 * (2 * abs(first - min(start, steps))).bit_length() + 3 if start else 13)


@given(admitted=STEPS | st.integers(0, 300).map(lambda at: [False] * at + [True]))
def test_of_later_arrivals_the_slot_before_the_one_found_is_refused(admitted: list[bool]) -> None:
    last = len(admitted)
    values = [f"{5 + step} slots" for step in range(1, last + 1)]
    way = JobChange("arrival", ("arrival",), "5 slots", values, str)
    made = make_cluster(1, 1)
    variants = SimpleNamespace(job=lambda way, step: make_job(made, "late", arrival=5 + step))
    delays = ArrivalDelaySearch(cast("JobVariants", variants), way)

    def walk(steps: Any) -> None:
        for slot in delays.slots(steps):
            step = slot - 5
            yes = AdmissionOutcome(slot) if admitted[step - 1] else None
            moment = SimpleNamespace(slot=slot, quote=lambda late, yes=yes: yes)
            if not delays.visit(cast("DecisionPoint", moment)):
                return

    spread = delays.initial_steps()
    assert list(spread) == sorted(set(spread))
    assert not last or (spread[0], spread[-1]) == (1, last)
    walk(spread)
    walk(delays.skipped_steps())
    result = delays.smallest_delay()
    if isinstance(result, StepFound):
        assert result.answer == AdmissionOutcome(5 + result.step)
        assert result.step == 1 or delays.outcomes[result.step - 1] is None
    else:
        assert not any(admitted[step - 1] for step in spread)
    # Up to 100 slots, none is missed.
    assert list(spread)[:100] == list(range(1, min(last, 100) + 1))
