from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.placement import (
    EXACT,
    GREEDY,
    RANDOMISED,
    REPAIRED,
    SEARCHED,
    Gains,
    Method,
    Pairs,
    Slots,
    internal_rivals,
    place_external,
    place_internal,
    slot_choices,
)
from shadowprice.kernels.slots.polygons import Slot as Machines
from shadowprice.kernels.slots.rounding import mix
from tests.oracles.pdors_schedule import best_payoff
from tests.oracles.slot_cases import Slot, random_slot
from tests.oracles.slot_placement import solve_slot
from tests.support.examples import example_count

METHODS = (RANDOMISED, EXACT, GREEDY)


def place(
    slot: Slot,
    method: int,
    *,
    spread: bool = False,
    only: int = -1,
    seed: int = 0,
    enough: np.ndarray | None = None,
    gain: float = 1.006,
    tries: int = 1000,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    if enough is None:
        enough = np.full(len(slot.workers), np.inf)
    cost, relaxed, rounds, (at_w, at_s) = place_external(
        Machines(*slot.place),
        Pairs(slot.workers, slot.servers),
        enough,
        Method(method, spread, gain, 0.5, tries),
        np.uint64(mix(np.uint64(seed), 5)),
        only,
    )
    return cost, relaxed, rounds, at_w, at_s


def test_exact_placement_is_the_optimum_of_the_integer_program() -> None:
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(110):
        slot = random_slot(rng)
        for spread in (False, True):
            cost, relaxed, *_ = place(slot, EXACT, spread=spread)
            assert (relaxed <= cost * (1 + 1e-12)).all()
            for i in rng.choice(len(cost), min(2, len(cost)), replace=False):
                expected, _, _ = solve_slot(
                    *slot.place,
                    int(slot.workers[i]),
                    int(slot.servers[i]),
                    most=int(slot.workers[-1]),
                    integer=True,
                    spread=spread,
                )
                assert cost[i] == pytest.approx(expected, rel=1e-9, abs=1e-12)
                solved += np.isfinite(expected)
    assert solved > 150


@settings(max_examples=example_count(60), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    method=st.sampled_from(METHODS),
    spread=st.booleans(),
    gain=st.sampled_from([0.0, 1.000001, 1.006, 1.4]),
    tries=st.sampled_from([1, 1000]),
)
def test_placements_keep_every_constraint(
    seed: int, method: int, spread: bool, gain: float, tries: int
) -> None:
    slot = random_slot(np.random.default_rng(seed))
    settings_ = {"spread": spread, "gain": gain, "tries": tries, "seed": seed}
    cost, relaxed, rounds, *_ = place(slot, method, **settings_)
    best = place(slot, EXACT, spread=spread)[0]
    # Every method finds a placement if there is one.
    assert np.isfinite(cost).tolist() == np.isfinite(best).tolist()
    assert (cost >= best * (1 - 1e-12)).all()
    for i in np.flatnonzero(np.isfinite(cost)):
        again, _, _, w, s = place(slot, method, only=int(i), **settings_)
        assert again[i] == cost[i]
        assert min(w.min(), s.min()) >= 0
        assert w.sum() == slot.workers[i] <= slot.workers[-1]  # (3.2), (3.24)
        assert s.sum() == slot.servers[i] <= w.sum()  # (3.5), (3.25), and so (3.4)
        used = np.outer(w, slot.worker) + np.outer(s, slot.server)
        assert (used <= slot.free).all()  # (3.23), in integers
        assert not spread or ((w + s) > 0).sum() > 1
        on = (w + s) > 0
        assert slot.price_worker[on] @ w[on] + slot.price_server[on] @ s[on] == pytest.approx(
            cost[i]
        )
        assert relaxed[i] <= cost[i] * (1 + 1e-9)
        assert rounds[i] in (REPAIRED, SEARCHED) or 1 <= rounds[i] <= tries
        assert method == RANDOMISED or rounds[i] < 0


def test_rounding_repair_and_search_all_happen() -> None:
    rng = np.random.default_rng(1)
    seen = np.concatenate([place(random_slot(rng), RANDOMISED)[2] for _ in range(80)])
    assert {REPAIRED, SEARCHED, 0, 1} <= set(seen.tolist())
    assert seen.max() > 1


def test_choices_already_beaten_are_left_out() -> None:
    slot = Slot(
        np.array([1.0, 2.0]),
        np.array([1.0, 2.0]),
        np.array([[4], [4]]),
        np.array([1]),
        np.array([1]),
        np.arange(1, 5),
        np.array([1, 1, 1, 1]),
    )
    cost, relaxed, *_ = place(slot, EXACT, enough=np.array([np.inf, 3.0, 3.9, 4.1]))
    assert relaxed.tolist() == [2.0, 3.0, 4.0, 6.0]
    assert cost.tolist() == [2.0, np.inf, np.inf, np.inf]


def test_internal_choice_is_the_cheapest_machine_that_holds_all() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        slot = random_slot(rng)
        cost, machine = place_internal(Machines(*slot.place), slot.workers, slot.servers)
        for i, (w, s) in enumerate(zip(slot.workers, slot.servers, strict=True)):
            fits = (w * slot.worker + s * slot.server <= slot.free).all(axis=1)
            price = np.where(fits, w * slot.price_worker + s * slot.price_server, np.inf)
            assert cost[i] == price.min()
            assert machine[i] == (int(price.argmin()) if np.isfinite(price.min()) else -1)
            held += machine[i] >= 0
    assert held > 200


def test_one_machine_not_allowed_holds_nothing() -> None:
    slot = random_slot(np.random.default_rng(3))
    cost, machine = place_internal(Machines(*slot.place), slot.workers, np.zeros(0, dtype=np.int64))
    assert np.isinf(cost).all()
    assert (machine == -1).all()


def test_rivals_are_the_cheapest_that_gain_as_much() -> None:
    cost = np.array([1.0, 5.0, 3.0])
    rivals = internal_rivals(cost, np.array([2, 4, 9]), np.array([2, 4, 8]))
    assert rivals.tolist() == [1.0, 3.0, np.inf]


@pytest.mark.extended
@pytest.mark.parametrize("literal", [False, True])
def test_schedules_are_the_optimum_of_the_whole_problem(literal: bool) -> None:
    # Find-Sch: placements by the exact method and the search over slots, against one integer
    # program that chooses rates, placements and the completion slot together.
    rng = np.random.default_rng(4)
    feasible = both_rates = 0
    for _ in range(40):
        slots, machines = int(rng.integers(3, 6)), int(rng.integers(2, 4))
        worker, server = rng.integers(1, 4, (2, 2))
        free = rng.integers(0, 12, (slots, machines, 2))
        price = rng.uniform(0.1, 1.0, (slots, machines, 2))
        workers = np.arange(1, int(rng.integers(2, 6)) + 1)
        external, offered = 10, int(rng.integers(10, 40))
        internal = external * int(rng.integers(1, 5))
        servers = -(-workers * external // offered)
        internal_servers = servers
        if literal:
            internal_servers = -(-workers * internal // offered)
            if (internal_servers > workers).any():
                internal_servers = np.zeros(0, dtype=np.int64)
        gains, internal_gains = workers * 10, workers * int(rng.integers(10, 30))
        required = int(rng.integers(20, 200))
        utility = np.sort(rng.uniform(0, 20, slots))[::-1].copy()
        cost, *_ = slot_choices(
            Slots(price @ worker, price @ server, free, worker, server),
            Pairs(workers, servers),
            internal_servers,
            Gains(gains, internal_gains),
            Method(EXACT, literal, 1.006, 0.5, 100),
            np.arange(slots, dtype=np.uint64),
        )
        result = best_schedule(cost, np.concatenate([gains, internal_gains]), required, utility)
        expected = best_payoff(
            price @ worker,
            price @ server,
            free,
            worker,
            server,
            int(workers[-1]),
            (int(gains[0]), int(internal_gains[0])),
            (external, internal if literal else external, offered),
            required,
            utility,
            spread=literal,
        )
        assert result.feasible == np.isfinite(expected)
        if result.feasible:
            assert result.payoff == pytest.approx(expected, rel=1e-9, abs=1e-9)
            feasible += 1
            chosen = result.choice[result.choice >= 0]
            both_rates += len({bool(choice < len(workers)) for choice in chosen}) == 2
    assert feasible > 15
    assert literal or both_rates > 3


@pytest.mark.parametrize("method", METHODS)
def test_machines_without_a_finite_price_are_not_used(method: int) -> None:
    # Cheap servers on a machine with unaffordable workers, and the reverse.
    slot = Slot(
        np.array([np.inf, 0.1, 1.0, 2.0]),
        np.array([0.1, np.inf, 1.0, 2.0]),
        np.full((4, 1), 5),
        np.array([2]),
        np.array([1]),
        np.arange(1, 5),
        np.arange(1, 5),
    )
    assert place(slot, method)[0].tolist() == [2.0, 5.0, 8.0, np.inf]
    cost, _ = place_internal(Machines(*slot.place), slot.workers, slot.servers)
    assert cost.tolist() == [2.0, np.inf, np.inf, np.inf]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("literal", [False, True])
def test_rate_of_a_choice_is_that_of_its_placement(method: int, literal: bool) -> None:
    # Fact 1: an external choice is on several machines, whichever way ties are broken.
    rng = np.random.default_rng(7)
    external = 0
    for _ in range(80):
        slot = random_slot(rng)
        held = np.zeros(0, dtype=np.int64) if literal else slot.servers
        seed = np.uint64(mix(np.uint64(0), 5))
        cost, machine, relaxed, _ = slot_choices(
            Slots(
                slot.price_worker[None],
                slot.price_server[None],
                slot.free[None],
                slot.worker,
                slot.server,
            ),
            Pairs(slot.workers, slot.servers),
            held,
            Gains(slot.workers, slot.workers),
            Method(method, literal, 1.006, 0.5, 1000),
            np.array([seed]),
        )
        choices = len(slot.workers)
        assert not literal or (machine == -1).all()
        for i in np.flatnonzero(np.isfinite(cost[0, :choices])):
            again, _, _, w, s = place(slot, method, spread=literal, only=int(i))
            assert again[i] == cost[0, i] >= relaxed[0, i] * (1 - 1e-9)
            assert ((w + s) > 0).sum() > 1
            assert cost[0, i] < cost[0, choices + i]
            external += 1
    assert external > 60
