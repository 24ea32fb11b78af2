"""Properties of the search over slots."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.horizon.search import best_schedule
from tests.oracles.knapsack import best_payoff, table_costs
from tests.support.completion_costs import every_cost
from tests.support.examples import example_count

COST = st.one_of(
    st.integers(0, 4).map(float), st.floats(0, 50), st.just(np.inf), st.sampled_from([1e-30, 1e30])
)


@st.composite
def instances(draw):
    slots = draw(st.integers(1, 7))
    gain = np.array(draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    row = st.lists(COST, min_size=len(gain), max_size=len(gain))
    rows = draw(st.lists(row, min_size=1, max_size=slots))
    cost = np.array([rows[draw(st.integers(0, len(rows) - 1))] for _ in range(slots)])
    required = draw(st.integers(1, 1 + int(gain.max()) * slots))
    drop = st.lists(st.floats(0, 20), min_size=slots, max_size=slots)
    return cost, gain, required, 60.0 - np.cumsum(draw(drop))


def close(a, b, *scales):
    if a == b:
        return True
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b), *(abs(s) for s in scales))


EXAMPLES = settings(deadline=None, max_examples=example_count(150), derandomize=True)


@EXAMPLES
@given(instances())
def test_equal_to_the_table(instance):
    cost, gain, required, utility = instance
    costs = table_costs(cost, gain, required)
    np.testing.assert_allclose(every_cost(cost, gain, required)[0], costs, rtol=1e-9)
    payoff, slot = best_payoff(costs, utility)
    answer = best_schedule(cost, gain, required, utility)
    assert close(answer.payoff, payoff, 60.0)
    assert answer.completion <= slot


@EXAMPLES
@given(instances(), st.data())
def test_payoff_never_falls_when_costs_fall(instance, data):
    cost, gain, required, utility = instance
    factor = data.draw(st.lists(st.floats(0, 1), min_size=cost.size, max_size=cost.size))
    finite = np.where(np.isfinite(cost), cost, 1e3)  # an infeasible slot becomes expensive
    cheaper = finite * np.reshape(factor, cost.shape)
    before = best_schedule(cost, gain, required, utility).payoff
    after = best_schedule(np.minimum(cheaper, cost), gain, required, utility).payoff
    assert after >= before or close(after, before, 60.0)


@EXAMPLES
@given(instances(), st.integers(1, 9), st.lists(COST, min_size=7, max_size=7))
def test_payoff_never_falls_when_a_choice_is_added(instance, extra, column):
    cost, gain, required, utility = instance
    before = best_schedule(cost, gain, required, utility).payoff
    wider = np.column_stack([cost, column[: len(cost)]])
    after = best_schedule(wider, np.append(gain, extra), required, utility).payoff
    assert after >= before or close(after, before, 60.0)


@EXAMPLES
@given(instances(), st.integers(1, 10**6))
def test_the_unit_of_progress_does_not_matter(instance, unit):
    cost, gain, required, utility = instance
    one = best_schedule(cost, gain, required, utility)
    other = best_schedule(cost, gain * unit, required * unit, utility)
    assert one.choice.tolist() == other.choice.tolist()
    assert one.payoff == other.payoff


@EXAMPLES
@given(instances(), st.sampled_from([1e-3, 0.05, 0.3]))
def test_within_a_gap_of_the_table_and_the_bound_proves_it(instance, gap):
    cost, gain, required, utility = instance
    largest, _ = best_payoff(table_costs(cost, gain, required), utility)
    answer = best_schedule(cost, gain, required, utility, gap=gap)
    exact = best_schedule(cost, gain, required, utility)
    assert answer.feasible == exact.feasible
    assert exact.bound == exact.payoff
    if not answer.feasible:
        return
    error = 1e-9 * 60.0
    assert (answer.payoff > error) >= (largest > error)  # it always decides whether a plan pays
    if largest > error:
        assert answer.payoff >= (1.0 - gap) * largest - error
        assert largest - error <= answer.bound
        assert answer.bound - answer.payoff <= gap * answer.bound + error
    else:
        assert answer.payoff <= error
        assert answer.bound <= error
    on = answer.choice >= 0
    assert gain[answer.choice[on]].sum() >= required
    spent = cost[np.flatnonzero(on), answer.choice[on]].sum()
    assert close(answer.cost, spent, 60.0)
    assert close(answer.payoff, utility[answer.completion] - spent, spent)
    assert np.flatnonzero(on).max(initial=0) == answer.completion
