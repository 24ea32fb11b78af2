"""The worked example of Sections 4.2-4.4 of Astraea, run end to end through the simulator."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shadowprice.core.policy import Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.engine import Engine
from tests.support.astraea_cases import (
    EXAMPLE,
    SETTINGS,
    DecisionRecorder,
    example_cluster,
    example_jobs,
    simulate,
)

MICRO = 1_000_000


@pytest.fixture(scope="module")
def played() -> tuple[Engine, DecisionRecorder]:
    cluster, notes = example_cluster(), DecisionRecorder()
    # The example ends after sixteen slots.
    engine = simulate(
        cluster, example_jobs(cluster), "astraea", SETTINGS, until=16, observers=[notes]
    )
    return engine, notes


def test_placements_and_payoffs_are_the_example_s(played: tuple[Engine, DecisionRecorder]) -> None:
    engine, notes = played
    expected = EXAMPLE["own_share"] + EXAMPLE["borrowed"]
    assert notes.commits.keys() == {row["job"] for row in expected}
    for row in expected:
        commit = notes.commits[row["job"]]
        first, last = row["slots"]
        assert commit.schedule.active_slots.tolist() == list(range(first, last + 1))
        for _, placement in commit.schedule.placements():
            names = [f"s{server + 1}" for server in placement.servers]
            for kind in ("workers", "ps"):
                counts = dict(zip(names, getattr(placement, kind), strict=True))
                assert {name: n for name, n in counts.items() if n} == row[kind]
        assert (commit.utility, commit.cost) == (row["ideal"], row["cost"])
        assert engine.jobs[row["job"]].completion == last
    assert notes.commits["j12"].payoff == 76


def test_incomes_and_prices_are_the_example_s(played: tuple[Engine, DecisionRecorder]) -> None:
    _, notes = played
    row = EXAMPLE["borrowed"][0]
    assert {charge.job for charge in notes.charges} == {"j12"}
    assert {charge.payer for charge in notes.charges} == {"u1"}
    income: Counter[str] = Counter()
    for charge in notes.charges:
        income[charge.payee] += sum(charge.amounts.values())
    assert income == {name: amount * MICRO for name, amount in row["income"].items()}
    assert sum(income.values()) == row["cost"] * MICRO
    # Once j12 is placed, 5 of 8 workers and 2 of 4 parameter servers are used in slots 8 to 11.
    per_server = [2 * (16 ** (5 / 8) - 1), 16 ** (2 / 4) - 1]
    for slot in range(8, 12):
        assert notes.prices[slot] == pytest.approx(np.tile(per_server, (4, 1)), abs=1e-5)
    assert not any(prices.any() for slot, prices in notes.prices.items() if not 8 <= slot < 12)


def test_j22_is_postponed_until_the_timespan_ends(
    played: tuple[Engine, DecisionRecorder],
) -> None:
    never = "needs 30 workers at once, the empty cluster has room for 8"
    assert played[1].waits["j22"] == ["joins batch 2, decided in slot 8"]
    refused = played[0].jobs["j22"]
    assert refused.status is Status.REFUSED
    assert refused.refusal is not None
    assert refused.refusal.reason is RefusalReason.NEVER_FITS
    assert refused.refusal.message == never


@pytest.mark.parametrize("horizon", [16, 64, 512])
def test_j22_is_tried_in_every_later_interval(horizon: int) -> None:
    # "We save it by set J_2 and try to schedule it in the third interval." On 30 workers it would
    # take 4 slots, so it is never worthless, however long a round may be.
    cluster, notes = example_cluster(horizon), DecisionRecorder()
    engine = simulate(
        cluster, example_jobs(cluster), "astraea", SETTINGS, until=64, observers=[notes]
    )
    never = "needs 30 workers at once, the empty cluster has room for 8"
    assert notes.waits["j22"] == [
        "joins batch 2, decided in slot 8",
        f"postponed to batch 3, decided in slot 16: {never}",
        f"postponed to batch 4, decided in slot 32: {never}",
    ]
    refusal = engine.jobs["j22"].refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (RefusalReason.NEVER_FITS, never)
    assert notes.commits.keys() == {"j11", "j12", "j21"}


def test_j22_is_refused_at_once_if_the_timespan_is_open() -> None:
    cluster, notes = example_cluster(), DecisionRecorder()
    engine = simulate(cluster, example_jobs(cluster), "astraea", SETTINGS, observers=[notes])
    assert "j22" not in notes.waits
    assert engine.jobs["j22"].status is Status.REFUSED


def test_the_books_are_the_ones_of_the_real_clock(played: tuple[Engine, DecisionRecorder]) -> None:
    engine, _ = played
    earned = {
        name: float(
            record.job.utility.values(np.array([record.completion - record.job.arrival]))[0]
        )
        for name, record in engine.jobs.items()
        if record.completion is not None
    }
    # j12's payoff of 76 counts from the round; from its arrival it earns 82 and pays 16.
    assert earned == {"j11": 86.0, "j12": 82.0, "j21": 82.0}
