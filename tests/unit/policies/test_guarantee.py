"""The premise of Theorem 4 about L, against the exact optimum and against single jobs."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import JobCancelled, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.quote import QuoteAnswer
from shadowprice.core.utility import Constant, Deadline, Sigmoid, utility_value
from shadowprice.engine import Engine
from shadowprice.policies.oasis.policy import server_pools
from shadowprice.policies.offline.problem import full_problem
from shadowprice.policies.offline.solver import solve
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.registry import make_policy
from shadowprice.results.job_history import guarantee_text
from shadowprice.simulator.driver import Simulation
from tests.support.examples import example_count
from tests.support.pdors_cases import random_pool, random_two_rate_job
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)
FREE: dict[str, Any] = {
    "prices": "given",
    "worker": {"L": 1e-12, "U": dict.fromkeys(("gpu", "cpu", "memory", "bandwidth"), 1e-12)},
    "ps": {"L": 1e-12, "U": dict.fromkeys(("cpu", "memory", "bandwidth"), 1e-12)},
}


def random_world(seed: int, jobs: int) -> tuple[Cluster, list[Job]]:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(
        int(rng.integers(1, 3)), int(rng.integers(1, 3)), gpus=int(rng.integers(1, 6)), horizon=6
    )
    return cluster, [random_job(cluster, rng, f"job-{index}", latest=3) for index in range(jobs)]


def ran(name: str, cluster: Cluster, jobs: list[Job], until: int | None, **options: Any) -> Any:
    policy = make_policy(name, PolicyContext(cluster, jobs, until), options)
    engine = Simulation(cluster, jobs, policy, until=until).run()
    done = {name: record.completion for name, record in engine.jobs.items()}
    return policy, done


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_alone_is_when_oasis_completes_a_job_that_costs_nothing(seed: int) -> None:
    cluster, (job,) = random_world(seed, 1)
    # Completing a slot later costs something, however late it is.
    job = replace(job, utility=Sigmoid(1e6, 0.01, 0.0))
    members = server_pools(cluster, halved=False)
    slots = StandaloneValue(cluster, *members).slots(job)
    _, done = ran("oasis", cluster, [job], None, **FREE)
    if slots is None or slots > cluster.horizon:
        assert done.get(job.name) is None
    else:
        assert done[job.name] == job.arrival + slots - 1


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_alone_is_never_before_what_pdors_can_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = random_pool(rng)
    job = random_two_rate_job(on, rng, "job", latest=2)
    job = replace(job, utility=Sigmoid(1e6, 0.01, 0.0))
    slots = StandaloneValue(on, on.hosts_workers, on.hosts_ps).slots(job)
    free = {"prices": "given", "L": 1e-12, "U": dict.fromkeys(on.resources, 1e-12)}
    _, done = ran("pdors", on, [job], None, placement="exact", **free)
    if slots is not None and slots <= on.horizon:
        assert done[job.name] is not None
        assert done[job.name] <= job.arrival + slots - 1


@pytest.mark.extended
@pytest.mark.parametrize("lower", ["guaranteed", "clearing", "theory"])
@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(seed=SEEDS)
def test_premise_is_evaluated_correctly(lower: str, seed: int) -> None:
    """Against the exact optimum; with the guaranteed L the premise holds."""
    cluster, jobs = random_world(seed, 4)
    until = 3 + seed % 5
    best = solve(full_problem(cluster, jobs, until))
    assert best.optimal
    policy, _ = ran("oasis", cluster, jobs, until, lower=lower)
    guarantee: Any = policy.guarantee(jobs)
    slack = 1e-6 * max(1.0, best.utility)
    assert guarantee["optimum_at_least"] <= best.utility + slack
    assert guarantee["optimum_at_most"] >= best.utility - slack
    held = guarantee["D0"] <= best.utility / 2 + slack
    if guarantee["D0_within_half_of_optimum"] is not None:
        assert guarantee["D0_within_half_of_optimum"] == held
    if lower == "guaranteed" and best.utility > 0:
        assert held
        assert guarantee["D0_within_half_of_optimum"] is True


def test_resources_that_a_server_does_not_limit_do_not_limit_the_optimum() -> None:
    servers = [("a", Role.ANY, {"cpu": 8_000}), ("b", Role.ANY, {"cpu": 8_000, "bandwidth": 2})]
    dimensions = {"cpu": Dimension.COUNT, "bandwidth": Dimension.RATE}
    cluster = build_cluster(
        slot_seconds=Fraction(600), horizon=8, servers=servers, dimensions=dimensions
    )
    # Each worker needs more bandwidth than the second server has, so all are on the first.
    amounts = {"cpu": 1000, "bandwidth": 3}
    jobs = [
        make_job(cluster, f"job-{index}", worker_amounts=amounts, ps_amounts=None)
        for index in range(4)
    ]
    best = solve(full_problem(cluster, jobs, 4))
    assert best.optimal
    dear = {"L": 1e9, "U": {"cpu": 1e9, "bandwidth": 1e9}}
    policy, done = ran("oasis", cluster, jobs, 4, prices="given", worker=dear)
    assert set(done.values()) == {None}
    guarantee: Any = policy.guarantee(jobs)
    assert best.utility == pytest.approx(40.0)
    assert guarantee["optimum_at_most"] >= best.utility * (1 - 1e-9)


LONG = {"epochs": 40, "chunks": 1}
"""More slots than any timespan here, for a job that is alone."""


@pytest.mark.parametrize("prices", ["offline", "online"])
@pytest.mark.parametrize("until", [20, None])
@pytest.mark.parametrize(
    ("first", "second", "later"),
    [
        ({"ps": None}, {}, 15),
        ({}, {"ps": None}, 15),
        ({"ps": None, "utility": Constant(1.0)}, {}, 17),
        ({"ps": None}, LONG, 15),
        (LONG, {"ps": None}, 15),
        (LONG, {**LONG, "ps": None}, 15),
    ],
)
def test_the_premise_holds_whichever_job_asks_for_which_pool(
    first: dict[str, Any], second: dict[str, Any], later: int, until: int | None, prices: str
) -> None:
    """T and the best job are those of all jobs, even for a pool that the first doesn't use."""
    cluster = make_cluster(1, 1, horizon=20)
    jobs = [
        make_job(cluster, "first", **first),
        make_job(cluster, "second", arrival=later, **second),
    ]
    best = solve(full_problem(cluster, jobs, until))
    assert best.optimal
    policy, _ = ran("oasis", cluster, jobs, until, lower="guaranteed", prices=prices)
    guarantee: Any = policy.guarantee(jobs)
    assert guarantee["D0"] <= best.utility / 2 * (1 + 1e-9)
    assert guarantee["D0_within_half_of_optimum"] is True
    assert (guarantee["D0"] > 0) == any(job.epochs != LONG["epochs"] for job in jobs)


def test_guaranteed_is_the_largest_that_one_job_pays_for() -> None:
    """Both pools used and a job of full value alone: D0 is half of that value exactly."""
    cluster = make_cluster(2, 2, horizon=20)
    jobs = [make_job(cluster, f"job-{index}", utility=Constant(10.0)) for index in range(3)]
    guarantee: Any = make_policy(
        "oasis", PolicyContext(cluster, jobs, 12), {"lower": "guaranteed"}
    ).guarantee(jobs)  # type: ignore[attr-defined]
    assert guarantee["D0"] == pytest.approx(5.0)
    assert guarantee["optimum_at_least"] == pytest.approx(10.0)
    assert guarantee["ratio"] == 2 * guarantee["alpha"]


def test_alpha_stays_small_where_the_printed_one_has_no_bound() -> None:
    cluster = make_cluster(2, 2, horizon=300)
    jobs = [make_job(cluster, utility=Sigmoid(50.0, 5.0, 3.0))]
    alphas = {}
    for lower in ("theory", "guaranteed"):
        settled = {"lower": lower, "prices": "offline"}
        policy: Any = make_policy("oasis", PolicyContext(cluster, jobs, 300), settled)
        alphas[lower] = policy.guarantee(jobs)["alpha"]
    assert alphas["theory"] > 1400
    assert alphas["guaranteed"] < 15


def test_the_guarantee_covers_jobs_that_come_one_by_one() -> None:
    """Learnt constants: after the last job D0 is within half of the values of jobs alone."""
    rng = np.random.default_rng(4)
    cluster = make_cluster(2, 2, horizon=6)
    jobs = sorted(
        (random_job(cluster, rng, f"job-{index}", latest=30) for index in range(12)),
        key=lambda one: one.arrival,
    )
    policy, _ = ran("oasis", cluster, jobs, None, lower="guaranteed", prices="online")
    guarantee: Any = policy.guarantee(jobs)
    assert 0 < guarantee["D0"] <= guarantee["optimum_at_least"] / 2
    assert guarantee["D0_within_half_of_optimum"] is True


def test_exact_placements_of_pdors_have_the_ratio_of_oasis() -> None:
    rng = np.random.default_rng(8)
    on = random_pool(rng)
    jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=3) for index in range(6)]
    ratios = {}
    for placement in ("exact", "randomised", "greedy"):
        options = {"placement": placement, "delta": 1.0, "lower": "guaranteed"}
        policy: Any = make_policy("pdors", PolicyContext(on, jobs, 8), options)
        guarantee = policy.guarantee(jobs)
        ratios[placement] = guarantee["ratio"]
        assert guarantee["D0"] <= guarantee["optimum_at_least"] / 2 * (1 + 1e-9)
    assert ratios["exact"] == 2 * guarantee["alpha"]
    # G of Theorem 2 at delta = 1 and W_1 = 1 is 5.4.
    assert ratios["randomised"] == pytest.approx(6 * 5.397 * guarantee["alpha"], rel=1e-3)
    assert ratios["greedy"] is None


def test_a_wrong_ratio_moves_the_constant_that_absorbs_it() -> None:
    cluster = make_cluster()
    jobs = [make_job(cluster, f"job-{index}", utility=Constant(5.0 + index)) for index in range(3)]

    def worker_prices(**options: Any) -> Any:
        return make_policy("oasis", PolicyContext(cluster, jobs), options).parameters_in_force()[
            "worker"
        ]

    exact = worker_prices()
    low = worker_prices(price_scale=0.5, price_scale_absorbs="L")
    assert low["ln_L"] == pytest.approx(exact["ln_L"] + math.log(2))
    for name, upper in exact["ln_U"].items():
        assert low["ln_U"][name] == pytest.approx(max(upper, low["ln_L"]))


@pytest.mark.parametrize(
    ("policy", "options", "covered"),
    [
        ("oasis", {"lower": "theory"}, False),
        ("oasis", {"lower": "clearing"}, False),
        ("oasis", {"lower": "guaranteed"}, True),
        ("pdors", {"lower": "theory", "placement": "exact"}, False),
        ("pdors", {"lower": "guaranteed", "placement": "exact"}, True),
    ],
)
def test_missed_ratio_is_not_claimed(
    policy: str, options: dict[str, Any], *, covered: bool
) -> None:
    """Jobs worth 1 fill a server before jobs that are worth 1,000 in their arrival slot only."""
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=1,
        servers=[("a", Role.ANY, {"cpu": 100_000})],
        dimensions={"cpu": Dimension.COUNT},
    )
    demands: dict[str, Any] = {"worker_amounts": {"cpu": 1000}, "ps_amounts": None}
    small = [
        make_job(cluster, f"small-{index}", epochs=1, chunks=1, utility=Constant(1.0), **demands)
        for index in range(99)
    ]
    urgent = [
        replace(small[0], name=f"urgent-{index}", utility=Deadline(1000.0, 0))
        for index in range(100)
    ]
    jobs = [*small, *urgent]
    built, done = ran(policy, cluster, jobs, 1, prices="offline", **options)
    worth = {job.name: utility_value(job.utility, 0) for job in jobs}
    earned = sum(worth[name] for name, slot in done.items() if slot is not None)
    guarantee: Any = built.guarantee(jobs)
    assert guarantee["U_covers_all_jobs"] is covered
    assert (earned * guarantee["ratio"] >= 100_000.0) is covered


def test_a_run_whose_gain_is_not_theorem_2_s_claims_no_ratio() -> None:
    rng = np.random.default_rng(8)
    on = random_pool(rng)
    jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=3) for index in range(6)]
    for gain, held in ((1.006, False), ("theorem", True)):
        policy: Any = make_policy("pdors", PolicyContext(on, jobs, 8), {"gain": gain})
        guarantee = policy.guarantee(jobs)
        assert guarantee["gain_is_theorem_2"] is held
        assert guarantee["no_placement_repaired"] is True  # nothing was decided
        assert ("G is not" in guarantee_text({"guarantee": guarantee})) is not held


PREMISES = (
    "D0_within_half_of_optimum",
    "U_covers_all_jobs",
    "horizon_reaches_end",
    "demands_are_small",
    "constants_known_in_advance",
    "empty_is_priced",
    "schedules_are_optimal",
    "moves_are_free",
    "undisturbed",
)


def places(count: int, horizon: int = 1) -> Cluster:
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=horizon,
        servers=[("a", Role.WORKER, {"cpu": count * 1000})],
        dimensions={"cpu": Dimension.COUNT},
    )


def one_slot_job(cluster: Cluster, name: str, value: float, workers: int = 1, **more: Any) -> Job:
    return make_job(
        cluster,
        name,
        epochs=1,
        chunks=workers,
        worker_amounts={"cpu": 1000},
        ps_amounts=None,
        **{"utility": Constant(value), **more},
    )


def claim(
    cluster: Cluster, jobs: list[Job], until: int | None, *incidents: Any, **options: Any
) -> tuple[dict[str, Any], float]:
    """Return the claims of a run of OASiS, and the utility that it earns."""
    known = None if options.get("prices") == "online" else jobs
    settings = {"lower": "guaranteed", "gap": 0, "restarts": "ignored", **options}
    policy: Any = make_policy("oasis", PolicyContext(cluster, known, until), settings)
    engine = Simulation(cluster, jobs, policy, incidents=incidents, until=until).run()
    earned = sum(
        utility_value(record.job.utility, record.completion - record.job.arrival)
        for record in engine.jobs.values()
        if record.completion is not None
    )
    return policy.guarantee(jobs), earned


def broken(guarantee: dict[str, Any]) -> set[str]:
    return {name for name in PREMISES if guarantee[name] is not True}


def test_a_run_that_keeps_every_premise_claims_its_ratio() -> None:
    cluster = places(100)
    jobs = [one_slot_job(cluster, f"a-{index}", 1.0) for index in range(100)]
    jobs += [one_slot_job(cluster, f"b-{index}", 1000.0) for index in range(100)]
    guarantee, earned = claim(cluster, jobs, 1)
    assert broken(guarantee) == set()
    assert guarantee["premises_held"] is True
    assert guarantee["max_share_of_server"] == 0.01
    assert earned * guarantee["ratio"] >= 100_000
    assert "not proved" not in guarantee_text({"guarantee": guarantee})


def test_no_ratio_is_claimed_if_an_empty_cluster_admits_what_l_prices_out() -> None:
    """A job worth 1 fills the server before jobs worth 100,000 together."""
    cluster = places(100)
    jobs = [one_slot_job(cluster, "a", 1.0, workers=100, utility=Deadline(1.0, 0))]
    jobs += [one_slot_job(cluster, f"b-{index}", 1000.0) for index in range(100)]
    guarantee, earned = claim(cluster, jobs, 1, empty="admits")
    assert earned == 1.0
    assert earned * guarantee["ratio"] < 100_000
    assert "empty_is_priced" in broken(guarantee)
    assert guarantee["premises_held"] is False
    assert "empty=admits lowers L" in guarantee_text({"guarantee": guarantee})


def test_no_ratio_is_claimed_if_a_job_can_fill_a_server() -> None:
    """The job pays the price of an empty server for all of it."""
    cluster = places(100)
    jobs = [one_slot_job(cluster, "a", 251.0, workers=100, utility=Deadline(251.0, 0))]
    jobs += [one_slot_job(cluster, f"b-{index}", 1000.0) for index in range(100)]
    guarantee, earned = claim(cluster, jobs, 1)
    assert earned == 251.0
    assert earned * guarantee["ratio"] < 100_000
    assert guarantee["max_share_of_server"] == 1.0
    assert broken(guarantee) == {"demands_are_small"}
    assert "one job can take 1 of a server" in guarantee_text({"guarantee": guarantee})


def test_shares_count_processes_that_fit_and_both_kinds_of_one_pool() -> None:
    cluster = make_cluster(0, 0, 2, gpus=4, horizon=4)
    jobs = [make_job(cluster, chunks=3, worker_amounts={"gpu": 1000}, ps_amounts=None)]
    for policy, options in (("oasis", {}), ("pdors", {"placement": "exact"})):
        built: Any = make_policy(policy, PolicyContext(cluster, jobs, 4), options)
        assert built.guarantee(jobs)["max_share_of_server"] == 0.75
    many = [make_job(cluster, chunks=9, worker_amounts={"gpu": 1500}, ps_amounts=None)]
    built = make_policy("oasis", PolicyContext(cluster, many, 4), {})
    assert built.guarantee(many)["max_share_of_server"] == 0.75  # two of 1.5 GPUs


def test_no_ratio_is_claimed_for_learnt_constants() -> None:
    """Jobs worth 1 fill the server before any job has taught that others are worth 1,000."""
    cluster = places(100)
    jobs = [one_slot_job(cluster, f"a-{index}", 1.0) for index in range(99)]
    jobs += [one_slot_job(cluster, f"b-{index}", 1000.0) for index in range(100)]
    guarantee, earned = claim(cluster, jobs, 1, prices="online")
    assert earned * guarantee["ratio"] < 100_000
    assert broken(guarantee) == {"constants_known_in_advance"}
    assert "were learnt" in guarantee_text({"guarantee": guarantee})


def test_no_ratio_is_claimed_if_the_horizon_ends_before_the_timespan() -> None:
    """Only one of the 40 slots can be planned when all jobs arrive."""
    cluster = places(100)
    jobs = [one_slot_job(cluster, f"a-{index}", 1.0) for index in range(3000)]
    guarantee, earned = claim(cluster, jobs, 40)
    assert earned * guarantee["ratio"] < 3000
    assert broken(guarantee) == {"horizon_reaches_end"}
    for horizon, until, held in ((1, 2, False), (2, 2, True), (1, None, True)):
        cluster = places(100, horizon)
        jobs = [one_slot_job(cluster, "a", 1.0)]
        assert claim(cluster, jobs, until)[0]["horizon_reaches_end"] is held
    cluster = places(100, horizon=3)
    jobs = [one_slot_job(cluster, f"j-{slot}", 1.0, arrival=slot) for slot in (0, 2)]
    assert claim(cluster, jobs, None)[0]["horizon_reaches_end"] is False


def test_no_ratio_is_claimed_for_schedules_within_a_gap_or_in_whole_chunks() -> None:
    cluster = places(100)
    jobs = [one_slot_job(cluster, "a", 1.0)]
    for options in ({"gap": 1e-3}, {"chunks": "literal"}):
        assert broken(claim(cluster, jobs, 1, **options)[0]) == {"schedules_are_optimal"}


def test_no_ratio_is_claimed_if_moving_costs_time() -> None:
    cluster = places(100)
    costly = replace(one_slot_job(cluster, "a", 1.0), restart=1)
    assert broken(claim(cluster, [costly], 1, restarts="counted")[0]) == {"moves_are_free"}
    assert broken(claim(cluster, [costly], 1)[0]) == set()
    fixed = replace(one_slot_job(cluster, "a", 1.0), resumable=False)
    assert broken(claim(cluster, [fixed], 1)[0]) == {"moves_are_free"}


@pytest.mark.parametrize("incident", [ServerLost(1, "a", 0), JobCancelled(1, "j-0")])
def test_no_ratio_is_claimed_after_a_lost_server_or_a_cancellation(incident: Any) -> None:
    cluster = places(100, horizon=4)
    jobs = [one_slot_job(cluster, f"j-{slot}", 1.0, arrival=slot) for slot in (0, 2)]
    jobs[0] = replace(jobs[0], utility=Constant(1.0), required=3 * jobs[0].required)
    assert broken(claim(cluster, jobs, 4)[0]) == set()
    assert broken(claim(cluster, jobs, 4, incident)[0]) == {"undisturbed"}


def test_pdors_claims_no_ratio_if_a_placement_was_repaired() -> None:
    """With Theorem 2's G, rounding fails on a server that a worker fills."""
    cluster = make_cluster(0, 0, 2, gpus=2, horizon=4)
    demands: dict[str, Any] = {"worker_amounts": {"gpu": 1000}, "ps_amounts": None}
    wide = make_job(cluster, epochs=1, chunks=3, utility=Constant(1000.0), **demands)
    alone = make_job(cluster, epochs=1, chunks=1, utility=Constant(1000.0), **demands)
    for job, gain, repaired in ((wide, "theorem", True), (alone, 1.006, False)):
        options = {"gain": gain, "lower": "guaranteed", "tries": 5}
        policy, done = ran("pdors", cluster, [job], 4, **options)
        assert done[job.name] is not None
        guarantee: Any = policy.guarantee([job])
        assert guarantee["no_placement_repaired"] is not repaired
        assert guarantee["gain_is_theorem_2"] is (gain == "theorem")
        assert guarantee["premises_held"] is False
        text = guarantee_text({"guarantee": guarantee})
        assert ("was repaired or searched" in text) is repaired
        assert "Theorem 2 holds with probability 1 - delta for each rounding" in text
    exact: Any = ran("pdors", cluster, [wide], 4, placement="exact")[0].guarantee([wide])
    assert "no_placement_repaired" not in exact
    assert exact["schedules_are_optimal"] is True


def test_a_quote_of_pdors_does_not_change_its_claim() -> None:
    cluster = make_cluster(0, 0, 2, gpus=2, horizon=4)
    demands: dict[str, Any] = {"worker_amounts": {"gpu": 1000}, "ps_amounts": None}
    wide = make_job(cluster, epochs=1, chunks=3, utility=Constant(1000.0), **demands)
    options = {"gain": "theorem", "lower": "guaranteed", "tries": 5}
    policy: Any = make_policy("pdors", PolicyContext(cluster, [wide], 4), options)
    assert Engine(cluster, policy, until=4).quote(wide).answer is QuoteAnswer.ADMITTED
    assert policy.guarantee([])["no_placement_repaired"] is True


@pytest.mark.parametrize(
    ("lower", "earned"), [("theory", 5005.0), ("clearing", 5005.0), ("guaranteed", 10_000.0)]
)
def test_jobs_that_are_due_at_once_leave_capacity_to_later_ones(lower: str, earned: float) -> None:
    """Ten jobs worth 1, then ten worth 1,000, all for a unit in the same slot.

    With U = 10,000 per server, theory's L is 0.05: at k tenths the price of a unit is
    0.005 * 200,000^(k / 10), which is 0.66 for the fifth job and 2.2 for the sixth. The largest L
    that a job pays for is 50, so that a unit costs 5.
    """
    cluster = places(10, horizon=5)
    jobs = [
        one_slot_job(cluster, f"{name}-{index}", value, utility=Deadline(value, 0))
        for name, value in (("a", 1.0), ("b", 1000.0))
        for index in range(10)
    ]
    guarantee, total = claim(cluster, jobs, 5, lower=lower)
    assert total == earned
    assert guarantee["U_covers_all_jobs"] is True
