import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status, as_guaranteed_policy
from shadowprice.core.utility import Constant, Linear, utility_value
from shadowprice.policies.astraea.prices import (
    lemma3_sigma,
    lemma_1_rounds,
    performance,
    price_table,
)
from shadowprice.policies.astraea.rounds import Round, RoundCalendar
from shadowprice.policies.registry import make_policy
from shadowprice.results.job_history import guarantee_text
from shadowprice.simulator.driver import Simulation
from tests.support.astraea_cases import shared_cluster, shared_job


def first(rounds: int, longest: int, count: int) -> list[Round]:
    return list(itertools.islice(RoundCalendar(rounds, longest), count))


def test_the_example_s_batch() -> None:
    # tau_1 = 2, tau_2 = 4: r in [2, 4), our slots 1 and 2, runs in (8, 12] and (12, 16].
    before, after = first(2, 300, 4)[1:3]
    assert before.collected == 1
    assert after == Round(batch=2, number=0, start=8, end=12, collected=3)
    assert first(2, 300, 4)[3] == Round(batch=2, number=1, start=12, end=16, collected=3)


@pytest.mark.parametrize(("rounds", "longest"), [(1, 64), (2, 64), (3, 64), (2, 20), (1, 2)])
def test_consecutive_rounds_include_every_arrival(rounds: int, longest: int) -> None:
    turns = first(rounds, longest, 10 * rounds)
    assert all(a.end == b.start for a, b in itertools.pairwise(turns))
    assert all(a.collected <= b.collected for a, b in itertools.pairwise(turns))
    for turn in turns:
        # A batch is decided when its last arrival is in, and runs no earlier.
        assert turn.collected <= turn.start
        assert turn.end - turn.start == min(2**turn.batch, 2 ** (longest.bit_length() - 1))
    doubling = [turn for turn in turns if 2**turn.batch <= longest]
    assert [turn.start for turn in doubling if not turn.number] == [
        rounds * 2**batch for batch in range(1, 1 + len(doubling) // rounds)
    ]


def test_a_horizon_too_short_for_a_round_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 slots"):
        first(2, 1, 1)


def test_the_price_function_passes_through_the_example() -> None:
    assert price_table(16, 8)[[0, 2, 8]].tolist() == [0, 1_000_000, 15_000_000]
    assert price_table(16, 4)[1] == 1_000_000
    assert price_table(16, 0).tolist() == [0]
    with pytest.raises(InputError, match="theta is 1"):
        price_table(1, 8)


def test_lemma_1_s_rounds() -> None:
    # sigma = 2 (ln 16 + ln 16) = 11.09; ln(420 / 50) / -ln(1 - 1 / sigma) = 22.52: 22 + 1.
    assert lemma_1_rounds(420, 50, 16, 16) == 23
    assert lemma3_sigma(16, 16) == pytest.approx(4 * math.log(16))
    assert lemma3_sigma(1.2, 1.2) == 1.0
    assert lemma_1_rounds(50, 50, 16, 16) == 1
    assert lemma_1_rounds(400, 50, 1.2, 1.2) == 1
    with pytest.raises(InputError, match="least utility"):
        lemma_1_rounds(400, 0, 16, 16)


def test_theorem_1_s_bound_by_hand() -> None:
    on = shared_cluster()
    linear = [
        shared_job(
            on, f"j{index}", None, index, utility={"kind": "linear", "value": 9, "slope": slope}
        )
        for index, slope in enumerate((-1.0, -3.0))
    ]
    # Both are completed by the end of slot 3, the instant 4: L = 2, because tau_2 = 4.
    result = performance(linear, 2, 4)
    assert result.batches == 2
    assert result.loss_at_most == 2 * (3 * -1.0 + 7 * 3 * 3.0)
    assert result.ratio_at_least is None
    # L = ceil(log2 e).
    ends = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17]
    assert [performance(linear, 2, end).batches for end in ends] == [0, 0, 1, 2, 2, 3, 3, 4, 4, 5]

    def convex(scale: float, arrival: int = 0) -> list[Job]:
        return [
            shared_job(
                on,
                f"j{index}",
                None,
                arrival,
                utility={"kind": "power", "scale": scale, "exponent": kappa},
            )
            for index, kappa in enumerate((1.0, 2.0))
        ]

    result = performance(convex(0.5), 2, 2)
    # L = 1: (1/8)^2 * (1 / 2^-1)^1 * (1/2)^2 / (1/2)^1.
    assert result.ratio_at_least == pytest.approx((1 / 8) ** 2 * 2 * 0.25 / 0.5)
    # The printed bound is false where e exceeds t, and t is the cluster's clock.
    assert performance(convex(1000.0), 2, 2).ratio_at_least is None
    assert performance(convex(0.5, arrival=31), 2, 33).ratio_at_least is None
    mixed = performance([linear[0], convex(0.5)[0]], 2, 2)
    assert mixed.loss_at_most is None
    assert mixed.ratio_at_least is None


@pytest.mark.parametrize("slots", [1, 5, 20, 100])
def test_theorem_1_bounds_the_loss_of_a_job_that_runs_alone(slots: int) -> None:
    on = shared_cluster(1, horizon=256)
    stated = shared_job(on, "j", None, chunks=1, epochs=slots, minibatches=1, ps=None)
    only = replace(stated, utility=Linear(1000.0, -1.0))
    policy = make_policy("astraea", PolicyContext(on, known_jobs=[only]), {"lambda": "lemma"})
    proved = as_guaranteed_policy(policy)
    assert proved is not None
    completion = Simulation(on, [only], policy).run([]).jobs["j"].completion
    assert completion is not None
    best = only.min_slots_colocated - 1
    loss = utility_value(only.utility, best) - utility_value(only.utility, completion)
    limit = proved.guarantee([only])["loss_at_most"]
    assert isinstance(limit, float)
    assert loss <= limit


WIDE: Any = {"worker": 200, "ps": 1, "horizon": 64}
"""A server with many units, beside which a gang of one worker is small."""


def small_job(on: Cluster, name: str, arrival: int = 0, slots: int = 1, **changes: Any) -> Job:
    """Return a job of one worker that is worth at least 1 per slot of 64."""
    record = {"chunks": 1, "epochs": slots, "minibatches": 1, "ps": None, **changes}
    return replace(shared_job(on, name, None, arrival, **record), utility=Linear(90.0, -0.1))


def claim(on: Cluster, jobs: list[Job], *incidents: Any, **options: Any) -> dict[str, Any]:
    """Return the claims of a run of Astraea, by default with the premises of its theorem."""
    settings = {"lambda": "lemma", **options}
    until = settings.pop("until", None)
    policy = make_policy("astraea", PolicyContext(on, known_jobs=jobs, until=until), settings)
    Simulation(on, jobs, policy, incidents=incidents, until=until).run([])
    proved = as_guaranteed_policy(policy)
    assert proved is not None
    return dict(proved.guarantee(jobs))


CLAIMS = (
    "theta_is_lemma_3",
    "gangs_are_small",
    "utility_covers_slots",
    "undisturbed",
    "lambda_is_lemma_1",
    "rounds_double",
    "all_jobs_completed",
)


def broken(guarantee: dict[str, Any]) -> set[str]:
    """Return the false premises, and check the sums of premises and the text."""
    names = {name for name in CLAIMS if not guarantee[name]}
    lemma_3 = not names & set(CLAIMS[:4])
    assert guarantee["lemma_3_premises_held"] is lemma_3
    assert guarantee["premises_held"] is (not names)
    of_lemma, _, of_theorem = (
        guarantee_text({"guarantee": guarantee}).partition("(Lemma 3)")[2].partition("Theorem 1)")
    )
    assert ("not proved here" in of_lemma) is not lemma_3
    assert ("not proved here" in of_theorem) is bool(names)
    return names


def test_run_that_keeps_every_premise_claims_lemma_3_and_theorem_1() -> None:
    on = shared_cluster(1, **WIDE)
    jobs = [small_job(on, f"j{index}", index) for index in range(3)]
    guarantee = claim(on, jobs)
    assert broken(guarantee) == set()
    assert guarantee["loss_at_most"] > 0
    # theta of workers is 1 more than 89.9 per worker-slot; there are no parameter servers.
    assert guarantee["sigma"] == pytest.approx(lemma3_sigma(90.9, 1.0))


@pytest.mark.parametrize("theta", [{"worker": "2", "ps": "2"}, {"source": "known", "scale": 0.5}])
def test_a_theta_that_lemma_3_does_not_allow_breaks_the_premises(theta: Any) -> None:
    on = shared_cluster(1, **WIDE)
    jobs = [small_job(on, f"j{index}", index) for index in range(3)]
    assert broken(claim(on, jobs, theta=theta)) == {"theta_is_lemma_3"}


def test_a_lambda_below_lemma_1_s_breaks_the_premises() -> None:
    on = shared_cluster(1, **WIDE)
    jobs = [small_job(on, f"j{index}", index) for index in range(3)]
    assert broken(claim(on, jobs, **{"lambda": 1})) == {"lambda_is_lemma_1"}


def test_a_refused_job_breaks_the_premises() -> None:
    """The job needs more slots than the longest round; the loss is its whole utility."""
    on = shared_cluster(1, **WIDE)
    jobs = [small_job(on, "a"), small_job(on, "b", slots=65)]
    assert broken(claim(on, jobs)) == {"all_jobs_completed"}
    text = guarantee_text({"guarantee": claim(on, jobs)})
    assert "not proved here: some job was not completed" in text


def test_a_job_whose_utility_is_over_breaks_the_premises() -> None:
    """Its batch would begin too late, so a round abandons it."""
    on = shared_cluster(1, **WIDE)
    late = replace(small_job(on, "b"), utility=Linear(90.0, -90.0))
    policy = make_policy("astraea", PolicyContext(on, known_jobs=[late]), {"clock": "arrival"})
    record = Simulation(on, [late], policy).run([]).jobs["b"]
    assert record.status is Status.REFUSED
    options = {"clock": "arrival", "lambda": 1}
    assert "all_jobs_completed" in broken(claim(on, [small_job(on, "a"), late], **options))


def test_an_open_job_breaks_the_premises() -> None:
    on = shared_cluster(1, **WIDE)
    jobs = [small_job(on, "a")]
    proved = as_guaranteed_policy(
        make_policy("astraea", PolicyContext(on, known_jobs=jobs), {"lambda": "lemma"})
    )
    assert proved is not None
    assert broken(dict(proved.guarantee(jobs))) == {"all_jobs_completed"}


def test_large_gangs_break_lemma_3_s_premises() -> None:
    """One of two jobs fits; the first takes the only unit from one worth 1,000 times as much."""
    on = shared_cluster(1, worker=1, ps=1, horizon=64)
    jobs = [
        replace(small_job(on, name, slots=2), utility=Constant(value))
        for name, value in (("a", 2.0), ("b", 2000.0))
    ]
    guarantee = claim(on, jobs)
    assert guarantee["gangs_are_small"] is False
    assert guarantee["lemma_3_premises_held"] is False
    text = guarantee_text({"guarantee": guarantee})
    assert "(Lemma 3); not proved here: some gang takes a large part of its pool" in text


def test_cheap_gangs_break_lemma_3_s_premises() -> None:
    on = shared_cluster(1, **WIDE)
    jobs = [replace(small_job(on, "a", slots=2), utility=Linear(1.5, -0.001))]
    assert broken(claim(on, jobs)) == {"utility_covers_slots"}


def test_a_lost_server_breaks_lemma_3_s_premises() -> None:
    on = shared_cluster(2, **WIDE)
    jobs = [small_job(on, f"j{index}", index) for index in range(3)]
    guarantee = claim(on, jobs, ServerLost(0, on.names[1], 1))
    assert broken(guarantee) == {"undisturbed"}
