import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, as_guaranteed_policy
from shadowprice.core.utility import Linear, utility_value
from shadowprice.policies.astraea.calendar import Round, RoundCalendar
from shadowprice.policies.astraea.guarantees import lemma3_sigma, performance
from shadowprice.policies.astraea.prices import lemma_1_rounds, price_table
from shadowprice.policies.registry import make_policy
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
    # Both are completed by the end of slot 2: L = 2, because tau_2 = 3.
    result = performance(linear, 2, 3)
    assert result.batches == 2
    assert result.loss_at_most == 2 * (3 * -1.0 + 7 * 3 * 3.0)
    assert result.ratio_at_least is None
    assert performance(linear, 2, 4).batches == 3

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

    result = performance(convex(0.5), 2, 1)
    # L = 1: (1/8)^2 * (1 / 2^-1)^1 * (1/2)^2 / (1/2)^1.
    assert result.ratio_at_least == pytest.approx((1 / 8) ** 2 * 2 * 0.25 / 0.5)
    # The printed bound is false where e exceeds t, and t is the cluster's clock.
    assert performance(convex(1000.0), 2, 1).ratio_at_least is None
    assert performance(convex(0.5, arrival=31), 2, 33).ratio_at_least is None
    mixed = performance([linear[0], convex(0.5)[0]], 2, 1)
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


@pytest.mark.parametrize(
    ("theta", "held"),
    [
        ("known", True),
        ({"worker": "2", "ps": "2"}, False),
        ({"source": "known", "scale": 0.5}, False),
    ],
)
def test_a_theta_that_lemma_3_does_not_allow_breaks_the_premises(theta: Any, *, held: bool) -> None:
    on = shared_cluster(horizon=64)
    jobs = [shared_job(on, f"j{index}", None, index) for index in range(3)]
    context = PolicyContext(on, known_jobs=jobs)
    proved = as_guaranteed_policy(
        make_policy("astraea", context, {"lambda": "lemma", "theta": theta})
    )
    assert proved is not None
    assert proved.guarantee(jobs)["premises_held"] is held


def test_run_states_whether_the_theorem_applies() -> None:
    on = shared_cluster(horizon=64)
    jobs = [shared_job(on, f"j{index}", None, index) for index in range(3)]
    for rounds, held in ((1, False), ("lemma", True)):
        context = PolicyContext(on, known_jobs=jobs)
        policy = make_policy("astraea", context, {"lambda": rounds})
        proved = as_guaranteed_policy(policy)
        assert proved is not None
        guarantee = proved.guarantee(jobs)
        assert guarantee["premises_held"] is held
        thetas = (t[0] for t in policy.pools[0].thetas())  # type: ignore[attr-defined]
        assert guarantee["sigma"] == pytest.approx(lemma3_sigma(*thetas))
