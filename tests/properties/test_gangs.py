import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.market.gangs import fill_run_ends, reserve_units
from tests.oracles.gang_cases import random_instance, solve
from tests.oracles.gangs import Instance, algorithm_3, breaks, cost_of, optimum
from tests.support.examples import example_count


def test_the_search_finds_what_plain_loops_find() -> None:
    generator = np.random.default_rng(4)
    found = 0
    for _ in range(1500):
        instance = random_instance(generator)
        plan, twin = solve(instance), algorithm_3(instance)
        assert plan == twin
        if plan is not None:
            found += 1
            assert not breaks(instance, plan)
            cost = cost_of(instance, plan.start, plan.end, sum(plan.workers_on), sum(plan.ps_on))
            assert plan.payoff == instance.value[plan.end] - cost
    assert 300 < found < 1500


def test_algorithm_3_reaches_the_optimum_of_problem_9() -> None:
    generator = np.random.default_rng(9)
    kinds = set()
    for _ in range(60):
        instance = random_instance(generator, small=True)
        plan = solve(instance)
        assert (plan.payoff if plan else 0) == pytest.approx(optimum(instance), abs=1e-6)
        kinds.add(plan and plan.colocated)
    assert kinds == {None, True, False}


def case(**changes: object) -> Instance:
    """Two free slots, two servers of two workers and one parameter server, everything free."""
    values: dict[str, object] = {
        "free_workers": [[2, 2]] * 2,
        "free_ps": [[1, 1]] * 2,
        "worker_price": [0, 0],
        "ps_price": [0, 0],
        "worker_limit": [4, 4],
        "ps_limit": [2, 2],
        "value": [0, 9, 8],
        "counts": [1],
        "work": 1,
        "spread_rate": 1,
        "colocated_rate": 1,
        "worker_bandwidth": 1,
        "ps_bandwidth": 1,
    }
    return Instance(**(values | changes))  # type: ignore[arg-type]


def test_lemma_2_fails_for_line_8_as_printed() -> None:
    # Three workers on servers of one worker each; two are elsewhere and need two parameter servers.
    # The first server has only one: line 8 cuts its need down to one, line 10 prefers it for that,
    # and (3i) is broken.
    instance = case(
        free_workers=[[1, 1, 1]] * 2,
        free_ps=[[1, 2, 0]] * 2,
        counts=[3],
        ps_limit=[3, 3],
    )
    literal, plan = algorithm_3(instance, literal=True), solve(instance)
    assert literal is not None
    assert breaks(instance, literal) == "(3i)"
    assert plan is not None
    assert plan.ps_on == [0, 2, 0]
    assert plan.payoff == optimum(instance) == 9


def test_lemma_2_fails_for_line_8_s_limit_as_printed() -> None:
    # The tenant has workers left but no parameter server; line 8 checks only workers.
    instance = case(free_workers=[[1, 1]] * 2, counts=[2], ps_limit=[0, 0])
    literal = algorithm_3(instance, literal=True)
    assert literal is not None
    assert breaks(instance, literal) == "(3a) or (3b)"
    assert solve(instance) is None
    assert optimum(instance) == 0


def test_lemma_2_fails_for_algorithm_5_s_price_as_printed() -> None:
    # Two slots of work on the one server. With the start slot's price for both, 3 + 3 > 5; with the
    # slots' own prices, 3 + 0.
    instance = case(
        free_workers=[[1]] * 2,
        free_ps=[[1]] * 2,
        worker_price=[3, 0],
        value=[0, 9, 5],
        work=2,
    )
    literal, plan = algorithm_3(instance, literal=True), solve(instance)
    assert literal is None
    assert plan is not None
    assert plan.payoff == optimum(instance) == 2


@settings(max_examples=example_count(40), deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_reservations_update_run_ends_like_a_new_table(seed: int) -> None:
    generator = np.random.default_rng(seed)
    slots, servers, most = generator.integers(1, 9), generator.integers(1, 4), 3
    free = generator.integers(0, most + 1, (slots, servers))
    ends = np.empty((slots, most + 1, servers), np.int32)
    fill_run_ends(free, ends)
    for _ in range(4):
        start, end = np.sort(generator.integers(0, slots + 1, 2))
        server = int(generator.integers(servers))
        amount = int(free[start:end, server].min(initial=0))
        reserve_units(free, ends, server, start, end, amount)
    for slot, places, server in itertools.product(range(slots), range(most + 1), range(servers)):
        run = slot
        while run < slots and free[run, server] >= places:
            run += 1
        assert ends[slot, places, server] == run
