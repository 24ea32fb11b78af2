"""PD-ORS through the engine, against the integer program of Find-Sch and worked cases."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import InputError
from shadowprice.core.events import (
    Commit,
    Decided,
    Decision,
    Drop,
    JobCancelled,
    JobsArrived,
    Reject,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.specs import JobSpec, validate
from shadowprice.core.utility import Constant, Deadline, Reciprocal
from shadowprice.engine import Engine
from shadowprice.policies.pdors import PdorsParameters
from shadowprice.policies.pdors.policy import Pdors, PdorsPricedJob
from shadowprice.policies.pricing.constants import ConstantsLearner, PricePool
from shadowprice.policies.pricing.offers import TooExpensiveProof
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.oracles.pdors_schedule import best_payoff
from tests.support.examples import sample
from tests.support.pdors_cases import (
    GBPS,
    PRICES,
    PdorsEngine,
    build_pool,
    build_two_rate_job,
    plan_rows,
    random_pool,
    random_two_rate_job,
    single_decision,
)
from tests.support.workloads import make_job as job_of


def found_payoff(decision: Decision) -> float:
    """Return the payoff of a decision, -inf if there was no schedule at all."""
    if isinstance(decision, Commit):
        return decision.payoff
    assert isinstance(decision, Reject)
    if decision.refusal.reason is RefusalReason.PRICE:
        return decision.refusal.numbers["payoff"]
    return -math.inf


def exact_payoff(arena: PdorsEngine, job: Any, *, literal: bool = False) -> float:
    """Return the optimum of Find-Sch at the ledger's prices, from the integer program."""
    on, ledger = arena.on, arena.engine.ledger
    ps = np.zeros_like(job.worker) if job.ps is None else job.ps
    price = arena.prices()
    roles = [(job.worker, on.hosts_workers), (ps, on.hosts_ps)]
    free = (on.capacity - ledger.used) // 1000
    places = np.stack([np.where(hosts, 1000, 0) for _, hosts in roles], axis=-1)
    free = np.concatenate([free, np.broadcast_to(places, (*free.shape[:2], 2))], axis=2)
    outside, inside, offered = (
        (job.worker_bandwidth, job.internal_bandwidth, job.ps_bandwidth)
        if job.ps is not None
        else (0, 0, 1)
    )
    if not literal:
        inside = outside
    units = math.gcd(*job.gains.tolist(), *job.internal_gains.tolist(), job.required)
    return best_payoff(
        price @ job.worker,
        price @ ps,
        free,
        np.append(job.worker // 1000, [1, 0]),
        np.append(ps // 1000, [0, 1]),
        job.max_workers,
        (int(job.gains[0]) // units, int(job.internal_gains[0]) // units),
        (outside // GBPS, inside // GBPS, max(offered // GBPS, 1)),
        job.required // units,
        job.utility.values(np.arange(on.horizon)),
        spread=literal and inside > outside,
    )


@pytest.mark.parametrize("roles", [False, True], ids=["any", "roles"])
def test_exact_placement_is_the_optimum_of_find_sch(roles: bool) -> None:
    rng = np.random.default_rng(3)
    admitted = refused = together = 0
    for _ in range(12):
        arena = PdorsEngine.of(random_pool(rng, roles=roles), placement="exact")
        for index in range(3):
            job = random_two_rate_job(arena.on, rng, f"job-{index}")
            best = exact_payoff(arena, job)
            decision = arena.arrive(job)
            if isinstance(decision, Reject) and decision.refusal.reason is RefusalReason.NEVER_FITS:
                assert best == -math.inf
                continue
            assert found_payoff(decision) == pytest.approx(best, rel=1e-6, abs=1e-9)
            assert isinstance(decision, Commit) == (best > 0)
            admitted += best > 0
            refused += best <= 0
            if isinstance(decision, Commit):
                together += int(decision.schedule.totals()[2].sum())
    assert admitted > 8
    assert refused > 3
    assert together > 8


def test_exact_placement_is_the_optimum_by_the_letter_of_3_4() -> None:
    rng = np.random.default_rng(4)
    compared = 0
    for _ in range(10):
        arena = PdorsEngine.of(random_pool(rng), placement="exact", bandwidth="literal")
        for index in range(2):
            inside = int(rng.integers(2, 5))
            job = build_two_rate_job(
                arena.on,
                f"job-{index}",
                most=int(rng.integers(1, 5)),
                work=int(rng.integers(1, 40)),
                bandwidths=(1, inside, int(rng.integers(1, 7))),
                worker=(1, int(rng.integers(1, 3)), 0),
            )
            decision_before = exact_payoff(arena, job, literal=True)
            decision = arena.arrive(job)
            if isinstance(decision, Reject) and decision.refusal.reason is RefusalReason.NEVER_FITS:
                continue
            assert found_payoff(decision) == pytest.approx(decision_before, rel=1e-6, abs=1e-9)
            compared += decision_before > 0
    assert compared > 5


def wide(cluster: Cluster, rng: np.random.Generator, name: str, arrival: int = 0) -> Job:
    """Draw a job of one rate that must be spread over machines, with odd amounts."""
    return build_two_rate_job(
        cluster,
        name,
        arrival=arrival,
        most=8,
        work=int(rng.integers(20, 90)),
        speed=(100, 100),
        bandwidths=(1, 1, int(rng.integers(1, 5))),
        worker=(int(rng.integers(0, 3)), int(rng.integers(1, 4)), int(rng.integers(1, 4))),
        ps=(0, int(rng.integers(1, 4)), int(rng.integers(1, 4))),
        utility=Reciprocal(float(rng.uniform(20, 200))),
    )


def test_rounding_is_feasible_whenever_anything_is_and_never_better_than_the_optimum() -> None:
    rng = np.random.default_rng(5)
    dearer = feasible = 0
    for index in range(40):
        on = build_pool(rng.integers(3, 12, (6, 3)).tolist(), horizon=5)
        job = wide(on, rng, "job")
        results = {}
        for placement in ("exact", "randomised", "greedy"):
            arena = PdorsEngine.of(on, placement=placement, seed=index)
            arena.reserve_randomly(np.random.default_rng(index))
            results[placement] = found_payoff(arena.arrive(job))
        exact = results["exact"]
        feasible += exact > -math.inf
        for payoff in results.values():
            assert (payoff == -math.inf) == (exact == -math.inf)
            assert payoff == exact or payoff <= exact + 1e-9 * max(1.0, abs(exact))
        dearer += results["randomised"] < exact - 1e-9
    assert feasible > 15
    assert dearer > 5  # rounding has a cost


def test_choices_report_bounds_and_rounds() -> None:
    on = build_pool([(2, 6, 6)] * 4)
    arena = PdorsEngine.of(on)
    arena.arrive(build_two_rate_job(on, "first", most=3, work=20))
    policy = arena.engine.policy
    assert isinstance(policy, Pdors)
    policy._planner.follow(arena.engine.view.ledger)
    job = build_two_rate_job(on, "second", most=4, bandwidths=(1, 1, 3), speed=(100, 100))
    quote = policy._planner.quote(arena.engine.view, job, job.required)
    choices = quote.choices  # type: ignore[attr-defined]
    counts = len(job.worker_counts)
    external = choices.cost[:, :counts]
    placed = np.isfinite(external)
    assert placed.any()
    assert (external[placed] >= choices.relaxed[placed] * (1 - 1e-12)).all()
    assert (choices.rounds[placed] != 0).all()


def test_locality_is_honoured_choice_by_choice() -> None:
    rng = np.random.default_rng(6)
    inside = outside = 0
    for index in range(80):
        on = random_pool(rng, roles=index % 4 == 0, horizon=6)
        arena = PdorsEngine.of(on, seed=index, bandwidth=["internal", "literal"][index % 2])
        arena.arrive(random_two_rate_job(on, rng, "first"))
        job = random_two_rate_job(on, rng, "second")
        policy = arena.engine.policy
        assert isinstance(policy, Pdors)
        policy._planner.follow(arena.engine.view.ledger)
        quote = policy._planner.quote(arena.engine.view, job, job.required)
        offer = quote.best()
        if offer is None:
            continue
        counts = len(job.worker_counts)
        schedule = quote.schedule(offer)
        claimed = offer.choice[offer.choice >= 0]
        workers, _, alone = schedule.totals()
        assert (alone == (claimed >= counts)).all()  # Fact 1, both ways
        assert (workers == job.worker_counts[claimed % counts]).all()
        cost = (
            schedule.workers * (arena.prices() @ job.worker)[schedule.slots, schedule.servers]
        ).sum()
        if job.ps is not None:
            cost += (
                schedule.ps * (arena.prices() @ job.ps)[schedule.slots, schedule.servers]
            ).sum()
        assert cost == pytest.approx(offer.cost, rel=1e-9)
        inside += int(alone.sum())
        outside += int((~alone).sum())
    assert inside > 20
    assert outside > 20


def test_a_job_that_trains_faster_together_is_put_on_one_machine() -> None:
    on = build_pool([(2, 3, 9), (4, 6, 9), (2, 3, 9)])
    plan = plan_rows(PdorsEngine.of(on).arrive(build_two_rate_job(on, most=4, work=30)))
    assert all(row[1] == 1 for row in plan)


def test_literal_mode_forbids_one_machine_with_fast_internal_links() -> None:
    on = build_pool([(4, 8, 9)] * 2)
    job = build_two_rate_job(on, most=4, work=10, bandwidths=(1, 40, 3), utility=Constant(30.0))
    plan = plan_rows(PdorsEngine.of(on, bandwidth="literal").arrive(job))
    machines_by_slot = {slot: {row[1] for row in plan if row[0] == slot} for slot, *_ in plan}
    assert all(len(machines) == 2 for machines in machines_by_slot.values())
    # Slow enough for the servers, co-location is allowed, at ceil(w b_i / B) servers.
    job = build_two_rate_job(on, most=4, work=32, bandwidths=(1, 2, 3), speed=(120, 75))
    for slot, _, workers, ps in plan_rows(PdorsEngine.of(on, bandwidth="literal").arrive(job)):
        assert ps == math.ceil(workers * 2 / 3), slot


def test_all_reduce_trains_faster_on_one_machine_too() -> None:
    on = build_pool([(2, 8, 8), (4, 8, 8)])
    job = build_two_rate_job(on, ps=None, most=4, work=32)
    plan = plan_rows(PdorsEngine.of(on).arrive(job))
    assert plan == [[0, 1, 4, 0]]
    spread = build_two_rate_job(on, ps=None, most=6, work=30, fewest=6)
    first = [row for row in plan_rows(PdorsEngine.of(on).arrive(spread)) if row[0] == 0]
    assert [(row[1], row[2]) for row in first] == [(0, 2), (1, 4)]


def test_one_role_only() -> None:
    on = build_pool([(4, 8, 8)] * 2, roles=[Role.WORKER] * 2)
    assert plan_rows(PdorsEngine.of(on).arrive(build_two_rate_job(on, ps=None)))
    served = [build_two_rate_job(on)]
    with pytest.raises(InputError, match=r"job.* have parameter servers, and no server .* any"):
        make_policy("pdors", PolicyContext(on, served), {})
    # Without a known job set each such job is refused, with the reason.
    refused = PdorsEngine.of(on).arrive(served[0])
    assert isinstance(refused, Reject)
    assert refused.refusal.reason is RefusalReason.NEVER_FITS
    with pytest.raises(InputError, match="no server of the cluster carries workers"):
        make_policy("pdors", PolicyContext(build_pool([(4, 8, 8)], roles=[Role.PS]), []), {})


def test_separate_roles_never_co_locate() -> None:
    on = build_pool([(4, 8, 8), (4, 8, 8), (0, 8, 8)], roles=[Role.WORKER, Role.WORKER, Role.PS])
    for _, server, workers, ps in plan_rows(PdorsEngine.of(on).arrive(build_two_rate_job(on))):
        assert (workers > 0) == (server < 2)
        assert (ps > 0) == (server == 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gain": 1.0}, "G must be above 1"),
        ({"gain": "0.5"}, "G must be above 1"),
        ({"gain": "lemma"}, "lemma is not a gain factor"),
        ({"gain": float("nan")}, "G must be above 1"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"tries": 0}, "tries"),
        ({"placement": "best"}, "placement"),
        ({"prices": "given"}, "needs L and U"),
        ({"L": 1.0}, "only read with prices=given"),
        ({"prices": "given", "L": 2.0, "U": {"gpu": 1.0}}, "below L"),
        ({"prices": "given", "L": 1.0, "U": {"disk": 2.0}}, "no server has it"),
        ({"prices": "offline"}, "whole job set"),
    ],
)
def test_invalid_parameters_are_refused_with_a_hint(settings: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_policy("pdors", PolicyContext(build_pool([(1, 1, 1)]), None), settings)


def test_theorem_2_gives_the_gain_from_delta() -> None:
    assert PdorsParameters(gain="theorem", delta=1.0).factor == 0.0
    assert PdorsParameters(gain=2).factor == 2.0
    on = build_pool([(4, 8, 8)] * 3)
    job = build_two_rate_job(on, ps=None, most=6, work=30, fewest=6)
    assert plan_rows(PdorsEngine.of(on, gain="theorem", delta=1.0).arrive(job))


def test_internal_bandwidth_below_the_external_one_is_refused() -> None:
    record = {
        "name": "job",
        "minibatch_time": "1s",
        "gradient": "100MB",
        "worker": {"gpu": 1, "bandwidth": "4Gbps"},
        "internal_bandwidth": "1Gbps",
        "utility": {"kind": "constant", "value": 1},
    }
    spec, faults = validate(JobSpec, record, "jobs")
    assert spec is None
    assert "co-location never slows a job down" in faults[0].message


def test_constants_of_one_pool() -> None:
    on = build_pool([(4, 8, 8), (2, 4, 8)])
    job = build_two_rate_job(on, most=4, work=60, speed=(100, 50), utility=Reciprocal(12.0))
    learner = ConstantsLearner(PricePool.of(on, np.ones(2, dtype=bool)), "both", on.horizon, 10)
    learner.learn([job])
    constants = learner.constants()
    share = (job.worker + job.ps) / np.array([4000, 8000, 8000])  # type: ignore[operator]
    # (3.13): 60 mini-batches at 4 workers of 12 a slot inside take 2 slots.
    upper = 12.0 / (1 + math.ceil(60 * 50 / 600 / 4)) / share
    assert np.exp(constants.ln_upper) == pytest.approx(upper)
    # (3.14): the window is 4 slots; 60 mini-batches of 100 s are 10 worker-slots outside.
    total = (4 + 2) / 4 + (8 + 4) / 8 + (8 + 8) / 8
    eta = 10 * total / (10 * share.sum())
    lower = 12.0 / 4 / (10 * share.sum()) / (2 * eta)
    assert math.exp(constants.ln_lower) == pytest.approx(lower)


def test_the_first_job_pays_the_printed_lower_price() -> None:
    """On an empty machine every price is L: the payoff is u - L x use, with L of (3.14)."""
    timespan = 10
    on = build_pool([(4, 4, 4)], horizon=timespan)
    worth, work = (50.0, 20.0, 10.0), (12, 6, 9)
    jobs = [
        build_two_rate_job(
            on,
            f"job-{index}",
            most=4,
            work=work[index],
            speed=(600, 600),
            bandwidths=(1, 1, 4),
            utility=Constant(worth[index]),
        )
        for index in range(3)
    ]
    # One mini-batch takes a worker a slot. A worker and its PS take 1, 2 and 2 of 4 units.
    uses = [slots * (1 / 4 + 2 / 4 + 2 / 4) for slots in work]
    mu = timespan * 3 / min(uses)
    lower = 1 / (2 * mu) * min(value / use for value, use in zip(worth, uses, strict=True))
    # The machine holds three workers and their PS, so the first job takes four slots.
    paid = lower * (12 * 3 / 4 + 4 * 2 / 4)
    context = PolicyContext(on, jobs, timespan)
    arena = Engine(on, make_policy("pdors", context, {"preset": "paper"}))
    payoffs = [
        found.decision.payoff
        for found in arena.handle(JobsArrived(0, (jobs[0],)))
        if isinstance(found, Decided) and isinstance(found.decision, Commit)
    ]
    assert payoffs == [pytest.approx(50.0 - paid, rel=1e-9)]


def test_prices_learnt_online_are_the_offline_ones_of_the_admitted_jobs() -> None:
    rng = np.random.default_rng(8)
    on = random_pool(rng)
    jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=3) for index in range(6)]
    learning = {"preset": "paper", "prices": "online"}
    online = make_policy("pdors", PolicyContext(on, jobs, 8), learning)
    engine = Simulation(on, jobs, online, until=8).run()
    admitted = [job for job in jobs if engine.jobs[job.name].plans]
    assert admitted
    offline = make_policy("pdors", PolicyContext(on, admitted, 8), {"preset": "paper"})
    assert online.parameters_in_force()["ln_L"] == offline.parameters_in_force()["ln_L"]
    assert online.parameters_in_force()["ln_U"] == offline.parameters_in_force()["ln_U"]


def test_cost_over_value_is_the_least_factor_that_admits() -> None:
    on = build_pool([(4, 8, 8), (2, 4, 8)])
    arena = PdorsEngine.of(on)
    arena.arrive(build_two_rate_job(on, "first", work=60))
    before = PdorsEngine.of(on)
    before.arrive(build_two_rate_job(on, "first", work=60))
    refused = arena.arrive(build_two_rate_job(on, "second", utility=Reciprocal(0.01)))
    assert isinstance(refused, Reject)
    assert refused.refusal.reason is RefusalReason.PRICE
    refusal = refused.refusal
    assert refusal.bottleneck is not None
    assert "of the cost over slots" in refusal.bottleneck
    assert refusal.cost is not None
    assert refusal.value is not None
    factor = refusal.cost / refusal.value
    less = Reciprocal(0.01 * factor * 0.999)
    assert isinstance(arena.arrive(build_two_rate_job(on, "less", utility=less)), Reject)
    more = Reciprocal(0.01 * factor * 1.001)
    assert isinstance(arena.arrive(build_two_rate_job(on, "more", utility=more)), Commit)


def test_other_refusals_state_the_reason() -> None:
    on = build_pool([(4, 8, 8), (2, 4, 8)])
    late = PdorsEngine.of(on).arrive(build_two_rate_job(on, work=1000))
    assert isinstance(late, Reject)
    assert late.refusal.reason is RefusalReason.TOO_LATE
    # 4 workers inside do 4 * 8 mini-batches a slot.
    assert late.refusal.numbers["slots_needed"] == math.ceil(1000 / 32)
    arena = PdorsEngine.of(on)
    assert isinstance(
        arena.arrive(build_two_rate_job(on, "big", most=4, work=128, utility=Constant(1e3))), Commit
    )
    full = arena.arrive(build_two_rate_job(on, "next", most=4, work=100))
    assert isinstance(full, Reject)
    assert full.refusal.reason is RefusalReason.NO_ROOM
    assert full.refusal.bottleneck in {f"{name} of servers" for name in on.resources}
    nothing = PdorsEngine.of(on).arrive(
        build_two_rate_job(on, work=100, utility=Deadline(1.0, 0.0))
    )
    assert isinstance(nothing, Reject)
    assert nothing.refusal.reason is RefusalReason.NO_VALUE


def test_lost_server_moves_its_jobs() -> None:
    on = build_pool([(4, 8, 8), (4, 8, 8)], horizon=8)
    arena = PdorsEngine.of(on)
    engine = arena.engine
    first = plan_rows(arena.arrive(build_two_rate_job(on, work=96, utility=Constant(1e3))))
    (home,) = {row[1] for row in first}
    engine.handle(SlotBegan(0))
    engine.handle(SlotEnded(0, {"job": engine.jobs["job"].job.gain(4, colocated=True)}))
    moved = single_decision(engine.handle(ServerLost(1, engine.cluster.names[home])))
    plan = plan_rows(moved)
    assert {row[1] for row in plan} == {1 - home}
    assert plan[0][0] == 1
    lost = single_decision(engine.handle(ServerLost(1, engine.cluster.names[1 - home])))
    assert isinstance(lost, Drop)
    assert lost.refusal.reason is RefusalReason.SERVER_LOST
    assert not engine.ledger.used.any()


def test_cancellation_releases_all_reservations() -> None:
    on = build_pool([(4, 8, 8)] * 2)
    arena = PdorsEngine.of(on)
    arena.arrive(build_two_rate_job(on))
    arena.engine.handle(SlotBegan(0))
    arena.engine.handle(SlotEnded(0, {"job": 1}))
    arena.engine.handle(JobCancelled(1, "job"))
    assert not arena.engine.ledger.used.any()
    replanned = plan_rows(arena.arrive(build_two_rate_job(on, "again", arrival=1)))
    fresh = plan_rows(PdorsEngine.of(on).arrive(build_two_rate_job(on, "again")))
    assert replanned == [[slot + 1, *row] for slot, *row in fresh]


def test_runs_depend_only_on_the_seed() -> None:
    rng = np.random.default_rng(11)
    on = build_pool(rng.integers(3, 12, (6, 3)).tolist(), horizon=12)
    jobs = [wide(on, rng, f"job-{index}", arrival=index // 2) for index in range(16)]

    def plans(seed: int, jobs: Any = jobs) -> Any:
        policy = make_policy("pdors", PolicyContext(on, jobs, 20, seed), PRICES)
        engine = Simulation(on, jobs, policy, until=20).run()
        return {name: record.plan.rows() for name, record in engine.jobs.items()}

    assert plans(1) == plans(1)
    assert plans(1) != plans(2)
    # Jobs that never fit don't affect the others' draws.
    giant = build_two_rate_job(on, "giant", worker=(12, 9, 9))
    assert plans(1, [giant, *jobs]) == plans(1) | {"giant": []}


def test_oasis_takes_half_of_the_same_machines() -> None:
    rng = np.random.default_rng(12)
    on = build_pool([(3, 8, 8)] * 4, horizon=12)
    jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=8) for index in range(12)]
    policy = make_policy("oasis", PolicyContext(on, jobs, 20), {"split": "half"})
    engine = Simulation(on, jobs, policy, until=20).run()
    finished = [r for r in engine.jobs.values() if r.status is Status.FINISHED]
    assert finished
    for record in finished:
        assert (record.plan.servers[record.plan.workers > 0] < 2).all()
        assert (record.plan.servers[record.plan.ps > 0] >= 2).all()


def test_measured_throughputs_and_worker_ranges() -> None:
    on = build_pool([(3, 8, 8), (2, 8, 8)], horizon=8)
    measured = job_of(
        on,
        worker_amounts={"gpu": 1000, "cpu": 1000},
        ps_amounts={"cpu": 1000},
        chunks=5,
        speed={1: Fraction(1, 100), 3: Fraction(2, 100), 5: Fraction(4, 100)},
        worker_bandwidth=GBPS,
        ps_bandwidth=2 * GBPS,
        minibatches=12,
        utility=Constant(100.0),
    )
    decision = PdorsEngine.of(on).arrive(measured)
    assert isinstance(decision, Commit)
    workers, ps, _ = decision.schedule.totals()
    assert set(workers.tolist()) <= {1, 3, 5}
    assert (ps == -(-workers // 2)).all()
    assert sum(measured.gain(int(w)) for w in workers) >= measured.required
    ranged = build_two_rate_job(on, "ranged", fewest=4, most=5, work=50, utility=Constant(100.0))
    second = PdorsEngine.of(on).arrive(ranged)
    assert isinstance(second, Commit)
    assert set(second.schedule.totals()[0].tolist()) <= {4, 5}


@pytest.mark.parametrize("roles", [False, True], ids=["any", "roles"])
@pytest.mark.parametrize("bandwidth", ["internal", "literal"])
def test_a_bound_refuses_nothing_that_placing_would_admit(
    bandwidth: str, roles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[bool] = []
    real = PdorsPricedJob.prove_too_expensive

    def watched(quote: PdorsPricedJob) -> TooExpensiveProof | None:
        proof = real(quote)
        settled.append(proof is not None)
        if proof is not None:
            offer = quote.best()
            assert offer is None or offer.payoff <= proof.bound + 1e-9 * offer.cost <= 0
        return proof

    monkeypatch.setattr(PdorsPricedJob, "prove_too_expensive", watched)
    rng = np.random.default_rng(17)
    refused = 0
    for seed in sample(range(8)):
        on = random_pool(rng, roles=roles)
        context = PolicyContext(on, None, None, seed)
        requested, plain = (
            PdorsEngine(
                on, Engine(on, make_policy("pdors", entry, PRICES | {"bandwidth": bandwidth}))
            )
            for entry in (replace(context, explained=False), context)
        )
        jobs = [random_two_rate_job(on, rng, f"job-{index}") for index in range(6)]
        for job in jobs:
            first, second = requested.arrive(job), plain.arrive(job)
            assert type(first) is type(second)
            if isinstance(first, Commit) and isinstance(second, Commit):
                assert first.schedule.rows() == second.schedule.rows()
                continue
            assert isinstance(second, Reject)
            refused += second.refusal.reason is not RefusalReason.NEVER_FITS
    # A quote is worth its time, even if machines of a few units make rounding expensive.
    assert refused > 5
    assert sum(settled) > refused / 4
