"""Refunds of a price are what was paid for the very slots that weren't used."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.schedule import Schedule
from shadowprice.service.budgets.usage import (
    ANY_SLOT,
    UnusedSlots,
    consume_slot,
    pay_slot,
    price_of_unused,
    split_price_by_slot,
)
from tests.support.examples import example_count

MOST = 10**15


@st.composite
def plans(draw: Any) -> tuple[Schedule, list[float], int]:
    slots = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted))
    count = len(slots)
    workers = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    ps = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    costs = draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count))
    servers = np.zeros(count, np.int64)
    plan = Schedule(np.array(slots), servers, np.array(workers), np.array(ps))
    return plan, costs, draw(st.integers(1, MOST))


def _paid(plan: Schedule, costs: list[float], price: int) -> UnusedSlots:
    return split_price_by_slot(price, plan, costs)


@settings(deadline=None, max_examples=example_count(60))
@given(plans())
def test_slots_share_a_price_by_their_cost_to_the_last_millionth(
    plan: tuple[Schedule, list[float], int],
) -> None:
    schedule, costs, price = plan
    result = split_price_by_slot(price, schedule, costs)
    assert price_of_unused(result) == price
    if not sum(costs):  # its slots are equal
        workers, ps, _ = schedule.totals()
        assert result == ((ANY_SLOT, int(workers.sum() + ps.sum()), price),)
        return
    assert [slot for slot, _, _ in result] == schedule.active_slots.tolist()
    for (_, _, paid), cost in zip(result, costs, strict=True):
        assert paid >= 0
        assert abs(paid - price * cost / sum(costs)) <= 1 + 1e-9 * price


@settings(deadline=None, max_examples=example_count(60))
@given(plans(), st.data())
def test_a_job_placed_as_planned_uses_the_cost_of_its_slots(
    plan: tuple[Schedule, list[float], int], data: st.DataObject
) -> None:
    paid = _paid(*plan)
    stood = data.draw(st.sets(st.sampled_from([slot for slot, _, _ in paid])))
    left = paid
    for slot, places, _ in paid:
        if slot in stood:
            left = consume_slot(left, slot, places)
    assert left == tuple(entry for entry in paid if entry[0] not in stood)


@settings(deadline=None, max_examples=example_count(60))
@given(plans(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30))
def test_places_are_used_one_by_one_in_their_order(
    plan: tuple[Schedule, list[float], int], stood: list[tuple[int, int]]
) -> None:
    left = _paid(*plan)
    slots = [slot for slot, places, _ in left for _ in range(places)]  # a twin that only counts
    for slot, places in stood:
        for _ in range(places):
            order = [slot, *range(ANY_SLOT, slot), *range(60, slot, -1)]
            used = next((entry for entry in order if entry in slots), None)
            if used is not None:
                slots.remove(used)
        before, left = left, consume_slot(left, slot, places)
        assert price_of_unused(left) <= price_of_unused(before)
        assert all(price >= 0 for _, _, price in left)
    assert [slot for slot, places, _ in left for _ in range(places)] == slots


@settings(deadline=None, max_examples=example_count(60))
@given(plans(), st.integers(1, 50), st.integers(1, MOST))
def test_processes_of_no_slot_are_used_before_those_of_later_slots(
    plan: tuple[Schedule, list[float], int], places: int, price: int
) -> None:
    paid = _paid(*plan)
    first, here, _ = paid[0]
    left = consume_slot(((ANY_SLOT, places, price), *paid), first, here + places)
    assert left == paid[1:]


@settings(deadline=None, max_examples=example_count(60))
@given(plans(), st.lists(st.tuples(st.integers(1, 12), st.integers(0, MOST)), max_size=8))
def test_slots_beyond_the_plan_use_what_is_left_before_they_cost_more(
    plan: tuple[Schedule, list[float], int], beyond: list[tuple[int, int]]
) -> None:
    left = _paid(*plan)
    price, debited, used = plan[2], 0, 0
    for slot, (places, cost) in enumerate(beyond, start=40):  # in the plan, and after it
        before = price_of_unused(left)
        paid, lacking = pay_slot(left, slot, places, cost)
        assert lacking == max(0, cost - before)
        assert price_of_unused(paid) == before + lacking
        debited += lacking
        left = consume_slot(paid, slot, places)
        used += cost
        assert price + debited == used + price_of_unused(left)
        assert all(points >= 0 for _, _, points in left)
        assert left == tuple(sorted(left))
