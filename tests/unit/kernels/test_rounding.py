from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shadowprice.kernels.slots.coupled_lp import solve_slots_lp
from shadowprice.kernels.slots.polygons import Counts, Point
from shadowprice.kernels.slots.polygons import Slot as Machines
from shadowprice.kernels.slots.rounding import (
    RequiredTotals,
    gain_factor,
    mix,
    round_feasibly,
    uniform,
)
from tests.oracles.slot_cases import Slot, random_slot, round_literally

TRIES = 10**9


def stream(seed: int) -> np.uint64:
    return np.uint64(mix(np.uint64(11), seed))


def relax(slot: Slot) -> tuple[np.ndarray, np.ndarray]:
    points = np.zeros((len(slot.workers), 2, slot.machines))
    cost, _, _ = solve_slots_lp(Machines(*slot.place), slot.workers, slot.servers, False, points)
    return cost, points


def feasible_chance(slot: Slot, w: np.ndarray, s: np.ndarray, i: int, gain: float) -> float:
    """Probability that a round is feasible, outcome by outcome."""
    parts = np.concatenate([gain * w, gain * s])
    low = np.floor(parts + 1e-9)
    up = np.where(parts - low > 1e-9, parts - low, 0.0)
    chance = 0.0
    for turn in itertools.product(*[(0, 1) if u else (0,) for u in up]):
        at = low + turn
        at_w, at_s = at[: slot.machines], at[slot.machines :]
        if (
            slot.workers[i] <= at_w.sum() <= slot.workers[-1]
            and slot.servers[i] <= at_s.sum() <= at_w.sum()
            and (np.outer(at_w, slot.worker) + np.outer(at_s, slot.server) <= slot.free).all()
        ):
            chance += float(np.prod(np.where(turn, up, 1 - up)))
    return chance


def rounded(
    slot: Slot, w: np.ndarray, s: np.ndarray, i: int, gain: float, tries: int, seed: int
) -> tuple[int, float, np.ndarray, np.ndarray]:
    out_w, out_s = np.zeros((2, slot.machines), dtype=np.int64)
    rounds, chance = round_feasibly(
        Point(w, s),
        Machines(*slot.place),
        RequiredTotals(int(slot.workers[i]), int(slot.servers[i]), int(slot.workers[-1])),
        gain,
        tries,
        stream(seed),
        Counts(out_w, out_s),
    )
    return rounds, chance, out_w, out_s


def test_probability_of_success_is_that_of_all_outcomes_listed() -> None:
    rng = np.random.default_rng(0)
    between = 0
    for _ in range(120):
        slot = random_slot(rng)
        cost, points = relax(slot)
        solved = np.flatnonzero(np.isfinite(cost))
        if not len(solved):
            continue
        i = int(rng.choice(solved))
        gain = float(rng.choice([1.0 + 1e-6, 1.006, 1.2, 1.7]))
        w, s = points[i]
        if (w > 0).sum() + (s > 0).sum() > 11:
            continue
        expected = feasible_chance(slot, w, s, i, gain)
        rounds, chance, _, _ = rounded(slot, w, s, i, gain, TRIES, 0)
        assert chance == pytest.approx(expected, abs=1e-9)
        assert (rounds == 0) == (chance == 0.0)
        between += 0.01 < chance < 0.99
    assert between > 15


@pytest.fixture(scope="module")
def coin() -> tuple[Slot, np.ndarray, np.ndarray]:
    """Four machines that can round either way, with a joint limit on two of them."""
    slot = Slot(
        np.ones(4),
        np.ones(4),
        np.array([[6], [4], [4], [2]]),
        np.array([2]),
        np.array([1]),
        np.array([5, 7]),
        np.array([2, 3]),
    )
    return slot, np.array([2.4, 1.3, 1.5, 0.6]), np.array([1.2, 0.7, 0.5, 0.4])


def test_results_follow_the_law_of_the_literal_loop(
    coin: tuple[Slot, np.ndarray, np.ndarray],
) -> None:
    slot, w, s = coin
    draws = 4000
    rng = np.random.default_rng(1)
    ours: dict[tuple[int, ...], int] = {}
    loop: dict[tuple[int, ...], int] = {}
    our_rounds, loop_rounds = [], []
    for seed in range(draws):
        rounds, _, at_w, at_s = rounded(slot, w, s, 0, 1.03, TRIES, seed)
        our_rounds.append(rounds)
        key = (*at_w.tolist(), *at_s.tolist())
        ours[key] = ours.get(key, 0) + 1
        rounds, at_w, at_s = round_literally((w, s), slot, 5, 2, 1.03, 10**6, rng)
        loop_rounds.append(rounds)
        key = (*at_w.tolist(), *at_s.tolist())
        loop[key] = loop.get(key, 0) + 1
    chance = rounded(slot, w, s, 0, 1.03, TRIES, 0)[1]
    assert 0.02 < chance < 0.5
    # Two samples of one distribution: the chi-square of the pooled table is near its degrees.
    keys = sorted(set(ours) | set(loop))
    statistic = sum(
        (ours.get(key, 0) - loop.get(key, 0)) ** 2 / (ours.get(key, 0) + loop.get(key, 0))
        for key in keys
    )
    degrees = len(keys) - 1
    assert degrees > 5
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)
    for rounds in (our_rounds, loop_rounds):
        deviation = math.sqrt(1 - chance) / chance / math.sqrt(draws)
        assert np.mean(rounds) == pytest.approx(1 / chance, abs=4 * deviation)


def test_capped_tries_fail_as_often_as_they_should(
    coin: tuple[Slot, np.ndarray, np.ndarray],
) -> None:
    slot, w, s = coin
    chance = rounded(slot, w, s, 0, 1.03, TRIES, 0)[1]
    failed = np.mean([rounded(slot, w, s, 0, 1.03, 3, seed)[0] == 0 for seed in range(4000)])
    assert failed == pytest.approx((1 - chance) ** 3, abs=0.035)


def test_draws_do_not_depend_on_the_order_of_calls(
    coin: tuple[Slot, np.ndarray, np.ndarray],
) -> None:
    slot, w, s = coin
    forward = [rounded(slot, w, s, 0, 1.03, 100, seed) for seed in range(20)]
    backward = [rounded(slot, w, s, 0, 1.03, 100, seed) for seed in reversed(range(20))]
    for ours, theirs in zip(forward, reversed(backward), strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2].tolist() == theirs[2].tolist()


def test_streams_are_splitmix_and_spread_evenly() -> None:
    mask = 2**64 - 1

    def reference(stream: int, word: int) -> int:
        z = stream ^ (((word ^ 0xBF58476D1CE4E5B9) * 0x9E3779B97F4A7C15) & mask)
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert [int(mix(np.uint64(seed), word)) for seed in range(9) for word in range(9)] == [
        reference(seed, word) for seed in range(9) for word in range(9)
    ]
    draws = np.array([uniform(stream(seed), word) for seed in range(200) for word in range(50)])
    assert 0.0 <= draws.min() < draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 19 + 4 * math.sqrt(38)


@pytest.mark.parametrize("delta", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(("rows", "cover"), [(1, 7.0), (2, 1.0), (2, 20.0), (5, 3.0)])
def test_gain_factor_solves_the_equation_it_comes_from(
    delta: float, rows: int, cover: float
) -> None:
    # Appendix A: exp(-(1 - 1/G)^2 G W_a / 2) = delta / (3 m); the text prints delta / m.
    gain = gain_factor(delta, rows, cover)
    assert gain > 1.0
    assert math.exp(-((1 - 1 / gain) ** 2) * gain * cover / 2) == pytest.approx(delta / (3 * rows))


def test_rounding_keeps_the_bounds_of_lemma_1() -> None:
    # Monte-Carlo on covers and packings with general coefficients: cost beyond 3 G / delta, a
    # cover row missed, or a packing row beyond its allowance happens less often than delta. The
    # allowance is Appendix A's, with ln(3 r / delta); the lemma as printed drops the logarithm.
    rng = np.random.default_rng(2)
    draws = 3000
    for _ in range(12):
        variables, covers, packings = 14, 3, 2
        delta = float(rng.choice([0.3, 0.6, 1.0]))
        point = rng.uniform(0.2, 4.0, variables)
        cover = rng.uniform(0.1, 1.0, (covers, variables))
        packing = rng.uniform(0.1, 1.0, (packings, variables))
        needs, room = cover @ point, packing @ point
        price = rng.uniform(0.0, 1.0, variables)
        gain = gain_factor(delta, covers, float((needs[:, None] / cover).min()))
        raised = gain * point
        low = np.floor(raised)
        x = low + (rng.random((draws, variables)) < raised - low)
        dear = x @ price > 3 * gain / delta * (price @ point)
        missed = (x @ cover.T < needs).any(axis=1)
        wide = float((room[:, None] / packing).min())
        allowance = gain * (1 + math.sqrt(3 / (gain * wide) * math.log(3 * packings / delta)))
        over = (x @ packing.T > room * allowance).any(axis=1)
        assert missed.mean() <= delta / 3
        assert over.mean() <= delta / 3
        assert (dear | missed | over).mean() < delta


def test_lemma_1_as_printed_allows_too_little() -> None:
    # Without the logarithm the bound delta / (3 r) fails: 60 coins in one tight row, G near 1 (the
    # lemma's own G where covers ask for much).
    delta, variables, draws = 0.01, 60, 40_000
    room = variables / 2.0  # the row's fractional value, and its W_b: coefficients are 1
    gain = gain_factor(delta, 1, 1e6)
    rng = np.random.default_rng(3)
    total = (rng.random((draws, variables)) < gain / 2.0).sum(axis=1)
    printed = room * gain * (1 + math.sqrt(3 / (gain * room)))
    proved = room * gain * (1 + math.sqrt(3 / (gain * room) * math.log(3 / delta)))
    assert (total > printed).mean() > delta / 3
    assert (total > proved).mean() <= delta / 3
