"""The search over slots against brute force, a table over units, and cases worked by hand."""

import numpy as np
import pytest

from shadowprice.kernels.horizon.batch import JobRows, JobSchedules, price_jobs
from shadowprice.kernels.horizon.bounds import SlotOptions
from shadowprice.kernels.horizon.core import residue_costs
from shadowprice.kernels.horizon.search import best_schedule
from tests.oracles.knapsack import best_payoff, brute_force_costs, random_instance, table_costs
from tests.support.completion_costs import cost_bounds, every_cost
from tests.support.examples import sample


def assert_same(cost, gain, required, utility, costs, unit=1):
    """All results of the kernel agree with the costs of a twin."""
    gain, required = gain * unit, required * unit
    exact, lower, upper = every_cost(cost, gain, required)
    np.testing.assert_allclose(exact, costs, rtol=1e-9, atol=0)
    feasible = np.isfinite(costs)
    np.testing.assert_array_equal(np.isfinite(lower), feasible)
    assert (lower[feasible] <= costs[feasible] * (1 + 1e-12)).all()
    assert (upper[feasible] >= costs[feasible] * (1 - 1e-12)).all()

    payoff, slot = best_payoff(costs, utility)
    answer = best_schedule(cost, gain, required, utility)
    assert answer.feasible == (slot >= 0)
    if slot < 0:
        assert answer.completion == -1
        assert answer.payoff == -np.inf
        assert (answer.choice == -1).all()
        return
    scale = max(abs(payoff), abs(utility).max(), 1e-300)
    assert answer.payoff == pytest.approx(payoff, rel=0, abs=1e-9 * scale)
    assert answer.payoff == utility[answer.completion] - answer.cost
    assert answer.completion <= slot
    slots = np.nonzero(answer.choice >= 0)[0]
    assert gain[answer.choice[slots]].sum() >= required
    np.testing.assert_allclose(cost[slots, answer.choice[slots]].sum(), answer.cost, rtol=1e-9)
    if required > 0:
        assert answer.completion == slots[-1]
        assert answer.cost == pytest.approx(costs[answer.completion], rel=1e-9, abs=0)


def test_brute_force_agrees_on_tiny_instances():
    for seed in sample(range(250)):
        instance = random_instance(np.random.default_rng([1, seed]), 5, 3)
        assert_same(*instance, brute_force_costs(*instance[:3]), unit=(1, 7, 10**9)[seed % 3])


def test_table_agrees_on_middling_instances():
    for seed in sample(range(800)):
        instance = random_instance(np.random.default_rng([2, seed]), 25, 8)
        assert_same(*instance, table_costs(*instance[:3]), unit=(1, 10**6)[seed % 2])


@pytest.mark.parametrize("equal", ["all", "none", "almost"])
def test_table_agrees_on_parameter_server_staircases(equal):
    # 60 workers a slot, one parameter server for each ten started: almost every choice is near the
    # hull, and equal slots make every reduced cost a tie.
    rng = np.random.default_rng(3)
    workers = np.arange(1, 61)
    price = {"all": np.ones(40), "none": rng.random(40) + 0.5, "almost": 1 + 1e-7 * rng.random(40)}
    cost = (workers * 0.37 + np.ceil(workers / 10) * 0.9) * price[equal][:, None]
    for required in (1, 7, 64, 603, 1201, 2399, 2400, 2401):
        costs = table_costs(cost, workers, required)
        utility = 1000.0 / (1 + np.arange(40.0))
        assert_same(cost, workers, required, utility, costs)


def test_a_cheaper_larger_choice_wins_where_costs_are_not_monotone():
    answer = best_schedule(np.array([[3.0, 1.0]]), np.array([2, 5]), 2, np.array([4.0]))
    assert answer.choice.tolist() == [1]
    assert answer.payoff == 3.0


def test_gains_that_fall_with_more_workers_are_left_alone():
    # Two workers are slower than one and dearer: never chosen.
    cost = np.tile([1.0, 2.0, 3.0], (3, 1))
    answer = best_schedule(cost, np.array([10, 8, 25]), 45, np.full(3, 100.0))
    assert sorted(answer.choice.tolist()) == [0, 0, 2]
    assert answer.cost == 5.0


def test_ties_complete_as_early_as_they_can():
    answer = best_schedule(np.ones((6, 2)), np.array([1, 3]), 6, np.full(6, 9.0))
    assert answer.choice.tolist() == [1, 1, -1, -1, -1, -1]
    assert answer.completion == 1


def test_a_negative_payoff_is_returned():
    answer = best_schedule(np.array([[5.0], [2.0]]), np.array([1]), 1, np.array([1.0, 0.5]))
    assert (answer.completion, answer.payoff) == (1, -1.5)


def test_nothing_reachable_is_infeasible():
    answer = best_schedule(np.ones((3, 1)), np.array([4]), 13, np.ones(3))
    assert not answer.feasible
    assert answer.cost == np.inf
    assert np.isinf(every_cost(np.ones((3, 1)), np.array([4]), 13)[0]).all()
    empty = best_schedule(np.ones((2, 0)), np.empty(0, np.int64), 1, np.ones(2))
    assert not empty.feasible


def test_nothing_required_is_done_at_once():
    answer = best_schedule(np.ones((3, 1)), np.array([4]), 0, np.array([7.0, 3.0, 1.0]))
    assert (answer.feasible, answer.completion, answer.payoff, answer.cost) == (True, 0, 7.0, 0.0)


def test_free_choices_take_no_more_than_needed():
    answer = best_schedule(np.zeros((4, 2)), np.array([2, 5]), 7, np.full(4, 1.0))
    assert answer.choice.tolist() == [1, 0, -1, -1]
    assert answer.cost == 0.0


def test_prices_hundreds_of_orders_apart_do_not_blur():
    # Earlier slots cost 1e200, and must leave no rounding error behind.
    cost = np.array([[1e200], [1e200], [3e-40], [2e-40]])
    answer = best_schedule(cost, np.array([1]), 2, np.full(4, 1e-30))
    assert answer.choice.tolist() == [-1, -1, 0, 0]
    assert answer.cost == pytest.approx(5e-40, rel=1e-12)


def test_gains_of_a_trillion_are_not_tabulated():
    rng = np.random.default_rng(5)
    gain = np.array([3, 5, 8, 13]) * 10**11 + rng.integers(0, 10**6, 4)
    cost = rng.random((200, 4)) * gain / 1e11
    answer = best_schedule(cost, gain, 3 * 10**13 + 17, np.full(200, 1e6))
    lower, upper = cost_bounds(cost, gain, 3 * 10**13 + 17)
    assert lower[-1] <= answer.cost <= upper[-1]


@pytest.mark.parametrize(
    ("cost", "gain", "utility", "word"),
    [
        (np.array([[-1.0]]), [1], [1.0], "costs"),
        (np.array([[np.nan]]), [1], [1.0], "costs"),
        (np.array([[1.0]]), [0], [1.0], "gains"),
        (np.array([[1.0]]), [1, 2], [1.0], "choices"),
        (np.array([[1.0]]), [1], [1.0, 2.0], "utility"),
    ],
)
def test_nonsense_is_refused(cost, gain, utility, word):
    with pytest.raises(ValueError, match=word):
        best_schedule(cost, np.array(gain), 1, np.array(utility))


def test_residue_costs_are_shortest_paths_on_the_circle():
    rng = np.random.default_rng(6)
    for _ in range(60):
        modulus = int(rng.integers(2, 14))
        count = rng.integers(1, 6, 3)
        gain = np.sort(rng.integers(0, 30, (3, 6)), 1)
        cost = np.sort(rng.random((3, 6)), 1)
        base = rng.integers(0, count)
        copies = rng.integers(0, 2, 3)
        gap, multiplier = rng.random(), rng.random() * 0.2
        steps = [(modulus - 1, multiplier)]
        for k in np.nonzero(copies)[0]:
            for i in range(count[k]):
                d = gain[k, i] - gain[k, base[k]]
                reduced = max(0.0, cost[k, i] - cost[k, base[k]] - multiplier * d)
                if reduced <= gap:
                    steps.append((d % modulus, reduced))
        least = np.full(modulus, np.inf)
        least[0] = 0.0
        for _ in range(modulus):
            for step, reduced in steps:
                least = np.minimum(least, np.roll(least, step) + reduced)
        options = SlotOptions(gain, cost, gain, count, gain, cost, count)
        result = residue_costs(modulus, gap, multiplier, copies, base, options)
        np.testing.assert_allclose(result, least, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gap", [-1e-3, np.nan, np.inf])
def test_a_gap_that_is_no_number_of_at_least_0_is_refused(gap):
    with pytest.raises(ValueError, match="the gap must be a number >= 0"):
        best_schedule(np.ones((2, 1)), np.ones(1, np.int64), 1, np.ones(2), gap=gap)


@pytest.mark.parametrize("seed", sample(range(6)))
def test_a_gap_holds_on_measured_curves_over_long_horizons(seed):
    """Slots whose costs are nearly, but not, equal: the hardest for the exact search."""
    rng = np.random.default_rng(seed)
    slots, gap = 400, 1e-3
    workers = np.array([1, 2, 4, 8, 16])
    gain = np.ceil(1e6 * workers ** rng.uniform(0.7, 0.98)).astype(np.int64)
    cost = workers * (1.0 + 0.01 * rng.random((slots, 1)))
    required = int(rng.uniform(0.05, 0.5) * gain.max() * slots)
    utility = required / 1e6 * rng.uniform(4, 12) / (1.0 + np.arange(slots) / slots)
    quick = best_schedule(cost, gain, required, utility, gap=gap)
    exact = best_schedule(cost, gain, required, utility)
    assert exact.payoff > 0
    assert exact.payoff * (1 - gap) <= quick.payoff <= exact.payoff * (1 + 1e-9)
    assert exact.payoff <= quick.bound * (1 + 1e-9)
    assert quick.bound - quick.payoff <= gap * quick.bound * (1 + 1e-9)


def test_a_job_whose_gains_over_all_slots_exceed_int64_is_priced() -> None:
    slots, gain = 100, 1 << 57
    one = np.array([1])
    rows = JobRows(
        first=np.array([0]), slots=np.array([slots]), required=np.array([2 * gain]),
        kind=np.array([0]), choice_start=np.array([0, 1]), workers=one, ps_counts=0 * one,
        gains=np.array([gain]), worth_start=np.array([0, slots]), worth=np.full(slots, 5.0),
        tail=np.zeros(1),
    )  # fmt: skip
    result = JobSchedules(
        np.zeros(1), np.zeros(1), np.zeros((1, slots), np.int64), np.zeros((1, slots), np.int64)
    )
    price = np.full((1, slots), 1.0)
    assert price_jobs(np.array([0]), rows, price, price, 0.0, result) == pytest.approx(3.0)
    assert result.workers.sum() == 2
