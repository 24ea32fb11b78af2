"""OASiS's planner against an exact MILP of (27) and against Algorithm 2 as printed."""

from __future__ import annotations

import pytest

from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import utility_value
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.validation import check_commitment
from tests.oracles.oasis import literal_payoff, milp_payoff, schedule_cost
from tests.support.examples import sample
from tests.support.oasis_cases import Market, random_case

BATCH = 52


def keeps_rules(market: Market, job: Job, schedule: Schedule, remaining: int) -> None:
    """Check (2), (3), (6), (7), pools and window, and reserve it: (4), (5)."""
    record = JobRecord(job, 0, progress=job.required - remaining)
    ledger = market.ledger
    check_commitment(record, schedule, market.on, ledger.end)
    carries_workers, carries_ps = market.members
    assert carries_workers[schedule.servers[schedule.workers > 0]].all()
    assert carries_ps[schedule.servers[schedule.ps > 0]].all()
    copy = Ledger(market.on, market.on.horizon, ledger.start)
    copy.capacity[:] = ledger.capacity
    copy.used[:] = ledger.used
    copy.reserve("job", schedule, job.worker, job.ps)


@pytest.mark.parametrize("batch", range(10))
def test_the_payoff_is_that_of_the_exact_milp_and_the_schedule_keeps_every_rule(batch: int) -> None:
    offers = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        market, job, remaining = random_case(seed)
        start, slots = market.ledger.start, market.on.horizon
        sides = market.sides()
        offer = (priced := market.priced(job, remaining)).best()
        exact = milp_payoff(job, start, slots, remaining, *sides)
        assert (offer is None) == (exact is None), seed
        if offer is None or exact is None:
            continue
        offers += 1
        assert offer.payoff == pytest.approx(exact, rel=1e-6, abs=1e-6), seed
        schedule = priced.schedule(offer)
        keeps_rules(market, job, schedule, remaining)
        assert schedule.completion == offer.completion
        cost = schedule_cost(job, schedule, start, *sides)
        assert cost == pytest.approx(offer.cost, rel=1e-9, abs=1e-12), seed
        worth = utility_value(job.utility, schedule.completion - job.arrival)
        assert offer.payoff == pytest.approx(worth - cost, rel=1e-9, abs=1e-9)
    assert offers > BATCH // 3  # the draws have feasible instances


def test_whole_chunks_are_those_of_algorithm_2_line_by_line() -> None:
    offers = 0
    for seed in range(2000, 2150):
        market, job, _ = random_case(seed, horizon=4, linear=True)
        start, end = market.ledger.start, market.ledger.end
        offer = (priced := market.priced(job, job.required, literal=True)).best()
        printed = literal_payoff(job, start, end - start, market.on.slot_seconds, *market.sides())
        assert (offer is None) == (printed is None), seed
        exact = market.priced(job, job.required).best()
        if offer is None or printed is None:
            continue
        offers += 1
        assert offer.payoff == pytest.approx(printed[0], rel=1e-9, abs=1e-9), seed
        assert exact is not None
        assert exact.payoff >= offer.payoff - 1e-9 * abs(offer.payoff), seed
        keeps_rules(market, job, priced.schedule(offer), job.required)
    assert offers > 50


def test_whole_chunks_can_lose_what_the_exact_search_finds() -> None:
    """With a chunk of 0.6 worker-slots, literal rounding spends a whole worker on each."""
    better = 0
    for seed in range(3000, 3060):
        market, job, _ = random_case(seed, horizon=4, linear=True)
        exact = market.priced(job, job.required).best()
        literal = market.priced(job, job.required, literal=True).best()
        if exact is not None:
            better += literal is None or literal.payoff < exact.payoff - 1e-6 * abs(exact.payoff)
    assert better > 5


def test_searching_near_slots_first_misses_no_offer() -> None:
    ended_near = 0
    for seed in range(4000, 4019):
        market, job, remaining = random_case(seed, horizon=44)
        start, end = market.ledger.start, market.ledger.end
        offer = market.priced(job, remaining).best()
        exact = milp_payoff(job, start, end - start, remaining, *market.sides())
        assert (offer is None) == (exact is None)
        if offer is not None:
            assert offer.payoff == pytest.approx(exact, rel=1e-6, abs=1e-6)
            ended_near += len(offer.choice) < end - start
    assert 4 < ended_near < 15


def test_offer_within_a_gap_states_an_upper_bound() -> None:
    short = 0
    for seed in (*range(4000, 4019), *range(6000, 6060)):
        market, job, remaining = random_case(seed, **({"horizon": 44} if seed < 5000 else {}))
        start, end = market.ledger.start, market.ledger.end
        offer = market.priced(job, remaining, gap=0.5).best()
        exact = milp_payoff(job, start, end - start, remaining, *market.sides())
        assert (offer is None) == (exact is None)
        if offer is None or exact is None:
            continue
        assert offer.bound is not None
        error = 1e-6 * max(1.0, abs(exact))
        assert offer.payoff <= exact + error <= offer.bound + 2 * error, seed
        short += offer.payoff < exact - error
    assert short  # the gap was used: the bound differs from the payoff


def test_equal_queries_have_equal_results() -> None:
    for seed in sample(range(5000, 5030)):
        answers = []
        for _ in range(2):
            market, job, remaining = random_case(seed)
            priced = market.priced(job, remaining)
            offer = priced.best()
            rows = None if offer is None else priced.schedule(offer).rows()
            answers.append((None if offer is None else offer.payoff, rows))
        assert answers[0] == answers[1]


def test_without_a_slot_there_is_no_offer() -> None:
    market, job, _ = random_case(1)
    assert market.priced(job, job.required, slots=0).best() is None
