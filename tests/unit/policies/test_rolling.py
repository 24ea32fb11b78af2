"""`rolling` on worked cases, against an exact program, and against `oasis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.errors import InputError, PolicyError
from shadowprice.core.events import (
    CapacityChanged,
    Commit,
    Decided,
    Decision,
    JobFailed,
    JobRevised,
    JobsArrived,
    Promise,
    Queue,
    Reject,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import PolicyContext
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import Constant, Deadline, Linear, Reciprocal, Sigmoid
from shadowprice.engine import Engine
from shadowprice.engine.decisions import apply_decision
from shadowprice.kernels.replanning.next_slot import min_cluster_slots
from shadowprice.policies.milp import LinearProgram, weighted
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling import policy as policy_module
from shadowprice.policies.rolling import prices
from shadowprice.policies.rolling.open_jobs import ColocationFit, OpenJobs
from shadowprice.policies.rolling.prices import ServerPools
from shadowprice.policies.rolling.quotas import build_quotas
from shadowprice.results.recorder import Recorder
from shadowprice.results.tables import decision_records
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.rolling_cases import gpus, promises, rolling, training
from tests.support.workloads import DIMENSIONS, faster_together, make_cluster, make_job, random_job


def decide(cluster: Cluster, jobs: Sequence[Job], **settings: object) -> list[Decision]:
    """Return the decisions on jobs that arrive together in slot 0."""
    policy = make_policy("rolling", PolicyContext(cluster), settings)
    commands = Engine(cluster, policy).handle(JobsArrived(0, tuple(jobs)))
    return [command.decision for command in commands]  # type: ignore[union-attr]


# ------------------------------------------------------------------ promises


@pytest.mark.parametrize(
    ("closed", "servers"),
    [(1, "gpu-0 is unavailable"), (2, "gpu-0 and gpu-1 are unavailable"), (3, "gpu-0 and 2 other")],
)
def test_a_job_that_waits_for_closed_servers_names_them(closed: int, servers: str) -> None:
    on = gpus(closed, 1)
    engine = rolling(on)
    states = {name: ServerState(Role.WORKER, {"gpu": 1000}, cordoned=True) for name in on.names}
    engine.handle(CapacityChanged(0, states))
    (decided,) = engine.handle(JobsArrived(0, (training(on, "a", utility=Constant(5.0)),)))
    assert isinstance(decided, Decided)
    assert isinstance(decided.decision, Queue)
    assert servers in decided.decision.message


def test_a_promise_lasts_as_long_as_the_utility_does() -> None:
    on = gpus(1, 4)
    (made,) = decide(on, [training(on, "a", utility=Deadline(10.0, 5.0))])
    assert isinstance(made, Promise)
    assert (made.completion, made.utility, made.cost) == (5, 10.0, 0.0)


def test_promise_made_worthless_by_a_revision_is_renewed_or_withdrawn() -> None:
    """If it were kept, the promise would be met and earn nothing."""
    on = gpus(1, 4)
    job = training(on, "a", chunks=4, worker_range=(1, 4), utility=Deadline(10.0, 30.0))
    other = training(on, "b", chunks=4, worker_range=(1, 4), utility=Deadline(10.0, 30.0))
    for soonest, steady in ((8.0, False), (8.0, True), (1.0, True)):
        engine = rolling(on, steady=steady)
        engine.handle(JobsArrived(0, (job, other)))
        engine.handle(SlotBegan(0))
        assert engine.jobs["a"].promise == 30
        tight = replace(job, utility=Deadline(10.0, soonest))
        engine.handle(JobRevised(1, tight))
        engine.handle(SlotEnded(0, dict.fromkeys(engine.running, 0)))
        decisions = [
            entry.decision for entry in engine.handle(SlotBegan(1)) if isinstance(entry, Decided)
        ]
        (made,) = [decision for decision in decisions if isinstance(decision, Promise)][:1]
        assert made.job == "a"
        assert "revised" in made.message
        if soonest > 1.0:
            assert made.completion == soonest
            assert made.utility == 10.0
        else:
            assert made.completion is None
        assert engine.jobs["b"].promise == 30


@pytest.mark.parametrize(
    ("kinds", "placements"),
    [
        # Workers, put first, fill the one server for parameter servers: the larger, as both fit.
        ([(Role.ANY, 7000), (Role.WORKER, 4000)], {"s-0": (1, 1), "s-1": (1, 0)}),
        # Servers with equal free capacity: not the number of a server decides, but its roles.
        ([(Role.ANY, 7000), (Role.WORKER, 7000)], {"s-0": (0, 1), "s-1": (2, 0)}),
        ([(Role.WORKER, 7000), (Role.ANY, 7000)], {"s-0": (2, 0), "s-1": (0, 1)}),
    ],
)
def test_lone_feasible_job_is_promised_and_runs_as_planned(
    kinds: list[tuple[Role, int]], placements: dict[str, tuple[int, int]]
) -> None:
    rows = [(f"s-{index}", role, {"cpu": amount}) for index, (role, amount) in enumerate(kinds)]
    cluster = build_cluster(
        slot_seconds=Fraction(600), horizon=8, servers=rows, dimensions=DIMENSIONS
    )
    single_job = make_job(
        cluster,
        "one",
        epochs=1,
        chunks=2,
        minibatches=20,
        worker_range=(2, 2),
        worker_amounts={"cpu": 3500},
        ps_amounts={"cpu": 2500},
        utility=Deadline(9.0, 1.0),
    )
    engine = rolling(cluster, evidence=1.0)
    engine.handle(JobsArrived(0, (single_job,)))
    engine.handle(SlotBegan(0))
    assert engine.open_jobs["one"].promise == 1
    placement = engine.running["one"]
    rows_of = zip(placement.servers, placement.workers, placement.ps, strict=True)
    assert {cluster.names[server]: (workers, ps) for server, workers, ps in rows_of} == placements


@pytest.mark.extended
def test_all_servers_may_differ() -> None:
    # A timeline keeps a limited number of groups. Kinds beyond it were written into other
    # intervals, and with some thousands beyond the arrays.
    many = 600
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=100,
        servers=[
            (f"gpu-{index}", Role.WORKER, {"gpu": 1000 * (index + 1)}) for index in range(many)
        ],
        dimensions=DIMENSIONS,
    )
    workers = many * (many + 1) // 2
    all_of_it = {"epochs": 1, "chunks": workers, "worker_range": (1, workers)}
    engine = rolling(cluster)
    engine.handle(
        JobsArrived(0, (training(cluster, "a", utility=Deadline(9.0, 2.0), **all_of_it),))
    )
    engine.handle(SlotBegan(0))
    assert engine.running["a"].total_workers == workers


def test_promise_loses_at_most_the_allowed_utility(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = gpus(1, 1)
    # Eight slots alone; a hundredth is gone in slot 15, a thousandth in slot 13.
    flat = training(on, "a", utility=Sigmoid(10.0, 1.0, 20.0))
    for slack, last in ((0.0, 7), (0.001, 13), (0.01, 15), (0.5, 20)):
        monkeypatch.setattr(policy_module, "_UTILITY_TOLERANCE", slack)
        (made,) = decide(on, [flat])
        assert isinstance(made, Promise)
        assert made.completion == last
        planned, promised, later = flat.utility.values(np.array([7.0, last, last + 1.0]))
        assert later < planned * (1.0 - slack) <= promised


def test_promise_is_limited_by_observed_durations_of_other_jobs() -> None:
    on = gpus(2, 2, horizon=40)
    # A quarter of a horizon counts as watched before the first arrival: ten slots, and this one.
    # The job takes ten slots of the whole cluster.
    large = training(on, "large", epochs=10, chunks=4, utility=Reciprocal(10.0))
    half = replace(large, name="half", required=large.required // 2)
    watched = 80 * (1 - np.exp(-11 / 80))
    other = training(on, "other", epochs=40, chunks=4, utility=Constant(1e-3))
    for one, evidence, known in (
        (large, 10.1 / watched, True),
        (large, 9.9 / watched, False),
        (half, 4.9 / watched, False),
        (half, 5.1 / watched, True),
    ):
        decision, _ = decide(on, [one, other], evidence=evidence)
        assert isinstance(decision, Promise if known else Queue)
        limit = f"{evidence * watched:.3g} slots (evidence {evidence:g} x 10.3 slots observed)"
        assert known or f"more than the limit of a promise, {limit}" in decision.message
        # A job that can't wait isn't kept waiting, and known prices need no observation.
        for settings in ({"standby": False}, {"prices": "given"}):
            decision, _ = decide(on, [one, other], evidence=evidence, **settings)
            assert isinstance(decision, Promise)


def test_a_job_that_is_alone_may_be_promised_six_times_as_much() -> None:
    on = gpus(2, 2, horizon=40)
    watched = 80 * (1 - np.exp(-11 / 80))
    # Ten slots of the whole cluster each.
    first, second = (
        training(on, name, epochs=10, chunks=4, utility=Linear(100.0, -1.0)) for name in "ab"
    )
    for evidence, known in ((10.1 / 6 / watched, True), (9.9 / 6 / watched, False)):
        (decisions,) = decide(on, [first], evidence=evidence)
        assert isinstance(decisions, Promise if known else Queue)
        limit = f"9.9 slots (evidence {evidence:g} x 10.3 slots observed x 6 for a lone job)"
        assert known or f"more than the limit of a promise, {limit}" in decisions.message
        assert all(
            isinstance(entry, Queue) for entry in decide(on, [first, second], evidence=evidence)
        )
    # With shares, the job has to be its tenant's only one.
    shared = gpus(2, 2, horizon=40, tenants=[Tenant(name, {"gpu": 2000}) for name in "ab"])
    for owners, answer in (("ab", Promise), ("aa", Queue)):  # twenty slots of the tenant's share
        mine = [
            replace(one, tenant=name) for one, name in zip((first, second), owners, strict=True)
        ]
        decisions = decide(shared, mine, evidence=20.1 / 6 / watched)
        assert [type(entry) for entry in decisions] == [answer, answer]


def test_a_lone_job_that_can_earn_little_of_its_utility_is_promised_no_more_than_others() -> None:
    on = gpus(2, 2, horizon=40)
    watched = 80 * (1 - np.exp(-11 / 80))
    # Ten slots of the whole cluster: at most 9 of 30, just the required part, or 8.9.
    enough, little = (
        training(on, "a", epochs=10, chunks=4, utility=Linear(30.0, -slope / 9))
        for slope in (21.0, 21.1)
    )
    for job, factor, answer in ((enough, 6, Promise), (little, 6, Queue), (little, 1, Promise)):
        (made,) = decide(on, [job], evidence=10.1 / factor / watched)
        assert isinstance(made, answer)


def test_the_maximum_utility_is_what_the_job_can_reach() -> None:
    # 32 workers would take 4 slots, two GPUs take 64.
    on = gpus(1, 2, horizon=400)
    wide = training(on, "wide", epochs=4, chunks=32, utility=Reciprocal(10.0))
    for predicted in (False, True):
        (made,) = decide(on, [replace(wide, predicted=predicted)], evidence=1e6)
        assert isinstance(made, Promise)


def test_a_job_that_uses_nothing_has_a_finite_density() -> None:
    on = make_cluster(1, 1, horizon=40)
    idle = make_job(on, utility=Constant(1e12), worker_amounts={}, ps_amounts=None)
    (made,) = decide(on, [idle], evidence=1e6)
    assert isinstance(made, Promise)
    assert made.cost == 0.0


def test_predicted_work_is_planned_whatever_the_unit_of_progress() -> None:
    # A slot yields 4e13 units, so a job that never expires could do more than int64 counts.
    on = gpus(1, 1, horizon=40)
    job = training(on, "fast", epochs=8, chunks=1, utility=Constant(5.0))
    gains = job.gains * 4 * 10**13
    fast = replace(job, gains=gains, internal_gains=gains, required=int(gains[0]) * 8)
    expected, made = (
        decide(on, [replace(each, predicted=True)], evidence=1e6)[0] for each in (job, fast)
    )
    assert isinstance(expected, Promise)
    assert expected.expected == 7
    assert made == replace(expected, job="fast")


def test_a_promise_earns_at_least_a_part_of_the_maximum_utility(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prices, "_SCARCITY", 1.0)
    on = gpus(1, 1, horizon=40)
    # Beside a promise of eight slots, four slots of work complete in slot 11.
    first = training(on, "first", epochs=8, chunks=1, utility=Deadline(100.0, 7.0))
    steep, flat = (
        training(on, "second", epochs=4, chunks=1, utility=Linear(value, -1.0))
        for value in (12.0, 30.0)  # 1 of 9, and 19 of 27
    )
    for second, known in ((steep, False), (flat, True)):
        decisions = decide(on, [first, second], evidence=1e6)
        assert [type(entry) for entry in decisions] == [Promise, Promise if known else Queue]
        assert known or decisions[1].message.endswith(
            "its utility by slot 11 is 1, less than 30% of its maximum, 9"
        )
        decisions = decide(on, [first, second], evidence=1e6, standby=False)
        assert isinstance(decisions[1], Promise)


def test_a_job_that_takes_all_of_a_resource_without_a_price_pays() -> None:
    # The jobs before fill the GPUs, so the CPUs have no price of their own.
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=40,
        servers=[("s", Role.ANY, {"gpu": 4000, "cpu": 100_000})],
        dimensions=DIMENSIONS,
    )
    dense = [
        make_job(
            cluster, f"a-{index}", epochs=4, chunks=4, ps_amounts=None,
            utility=Deadline(100.0, 3.0), worker_amounts={"gpu": 1000, "cpu": 1000},
        )
        for index in range(12)
    ]  # fmt: skip
    poor, rich = (
        make_job(
            cluster, "b", epochs=1, chunks=1, ps_amounts=None, utility=Constant(value),
            worker_amounts={"cpu": 100_000},
        )
        for value in (1e-3, 100.0)
    )  # fmt: skip
    for job, promised in ((poor, False), (rich, True)):
        engine = rolling(cluster, evidence=1e6)
        engine.handle(JobsArrived(0, tuple(dense)))
        engine.handle(JobsArrived(0, (job,)))
        assert (engine.jobs["b"].promise is not None) == promised


def test_waiting_job_runs_and_is_promised_when_less_work_remains() -> None:
    on = gpus(1, 4, horizon=40)
    job = training(on, "a", epochs=16, chunks=4, utility=Reciprocal(5.0))
    policy = make_policy("rolling", PolicyContext(on), {})
    recorder = Recorder(on, [job], policy)
    Simulation(on, [job], policy).run([recorder])
    assert recorder.completions["a"] == job.shortest_slots - 1  # not a slot later for it
    decisions_on_a = [(slot, made) for slot, made in recorder.decisions if made.job == "a"]
    assert isinstance(decisions_on_a[0][1], Queue)
    assert isinstance(decisions_on_a[-1][1], Promise)
    assert 0 < decisions_on_a[-1][0] < job.shortest_slots


@pytest.mark.parametrize("restart_first", [False, True])
def test_job_that_loses_a_slot_to_its_start_runs_on_otherwise_idle_capacity(
    *, restart_first: bool
) -> None:
    """No plan counts on a slot of it, so nothing is promised; idle servers run it all the same."""
    on = replace(gpus(1, 4, horizon=40), restart_first=restart_first)
    jobs = [
        training(on, name, arrival=arrival, epochs=6, utility=value, restart_seconds=Fraction(600))
        for name, arrival, value in (("a", 0, Reciprocal(5.0)), ("b", 1, Reciprocal(50.0)))
    ]
    policy = make_policy("rolling", PolicyContext(on), {})
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy, until=40).run([recorder])
    slots = sum(job.shortest_slots for job in jobs)
    # Every start, the first ones too where they count, costs its slot and no more.
    assert recorder.completions.keys() == {"a", "b"}
    assert max(recorder.completions.values()) < slots + 4


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(3, 4), Fraction(1)])
def test_a_job_that_no_plan_with_restarts_completes_is_promised_one_that_never_moves(
    share: Fraction,
) -> None:
    # Eight slots of work on one GPU, due in ten: with a restart in every slot it takes sixteen.
    on = gpus(2, 1, horizon=40)
    jobs = [
        training(
            on, name, epochs=8, chunks=1, utility=Deadline(5.0, 10.0),
            restart_seconds=on.slot_seconds * share,
        )
        for name in ("a", "b", "c")
    ]  # fmt: skip
    decisions = decide(on, jobs, evidence=1e6)
    assert [type(entry) for entry in decisions] == [Promise, Promise, Queue]
    policy = make_policy("rolling", PolicyContext(on), {"evidence": 1e6})
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy).run([recorder])
    assert recorder.completions == {"a": 7, "b": 7}


@pytest.mark.parametrize("restart_first", [False, True])
@pytest.mark.parametrize("share", [Fraction(1, 10), Fraction(2, 3)])
def test_a_first_start_counts_as_a_restart_only_where_it_costs_one(
    share: Fraction, *, restart_first: bool
) -> None:
    """Work that takes one slot is promised that slot, even if a restart takes most of it."""
    on = replace(gpus(1, 4), restart_first=restart_first)
    job = training(on, "a", epochs=1, utility=Deadline(5.0, 0.0))
    job = replace(job, restart=share)
    assert job.shortest_slots == 1
    (answer,) = decide(on, [job])
    assert isinstance(answer, Queue if restart_first else Promise)
    engine = Engine(on, make_policy("rolling", PolicyContext(on), {}))
    engine.handle(JobsArrived(0, (job,)))
    engine.handle(SlotBegan(0))
    assert engine.running["a"].total_workers == 4


@pytest.mark.parametrize("share", [Fraction(1, 10), Fraction(1, 2)])
def test_waiting_jobs_are_planned_by_density_also_if_limited_by_restarts(
    share: Fraction,
) -> None:
    on = gpus(1, 4, horizon=60)
    long = replace(training(on, "long", epochs=20, utility=Reciprocal(5.0)), restart=share)
    tight = training(on, "tight", arrival=1, epochs=6, utility=Constant(50.0))
    tight = replace(tight, utility=Deadline(50.0, tight.shortest_slots - 1), restart=share)
    # Neither job is worth that price, so both wait.
    policy = make_policy("rolling", PolicyContext(on), {"prices": "given", "price": 1e12})
    recorder = Recorder(on, [long, tight], policy)
    Simulation(on, [long, tight], policy, until=60).run([recorder])
    assert recorder.completions["tight"] == tight.arrival + tight.shortest_slots - 1
    assert recorder.completions["long"] < 60


@pytest.mark.parametrize("share", [Fraction(3, 4), Fraction(9, 10), Fraction(1)])
def test_a_job_that_completes_only_where_it_does_not_restart_is_planned_before_less_dense_ones(
    share: Fraction,
) -> None:
    """It gets no promise; planned as if it stayed, it is in time."""
    on = gpus(1, 4, horizon=60)
    lost = on.slot_seconds * share
    long = training(on, "long", epochs=20, utility=Reciprocal(5.0), restart_seconds=lost)
    tight = training(on, "tight", arrival=1, epochs=6, utility=Constant(50.0), restart_seconds=lost)
    tight = replace(tight, utility=Deadline(50.0, tight.shortest_slots - 1))
    policy = make_policy("rolling", PolicyContext(on), {"evidence": 0.01})
    recorder = Recorder(on, [long, tight], policy)
    Simulation(on, [long, tight], policy, until=60).run([recorder])
    assert recorder.completions["tight"] == tight.arrival + tight.shortest_slots - 1
    assert recorder.completions["long"] < 60


@pytest.mark.parametrize("seed", sample(range(20)))
def test_minimum_demand_is_that_of_the_most_efficient_level(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(3, 2, 2)
    jobs = faster_together([random_job(cluster, rng, f"job-{index}") for index in range(4)], rng)
    opened, pools = (
        OpenJobs(cluster, None, build_quotas(cluster, enabled=False)),
        ServerPools(cluster),
    )
    rows = np.array([opened.add(job) for job in jobs])
    shares = pools.shares(opened.arrays.worker[rows], opened.arrays.ps[rows])
    total = cluster.capacity.sum(axis=0)
    for job, slot in zip(jobs, min_cluster_slots(opened.arrays, rows, *shares), strict=True):
        ways = [
            (job.gains, range(len(job.gains))),
            (job.internal_gains, ColocationFit(cluster).choices(job)),
        ]
        expected = min(
            float((taken / total).max()) * job.required / int(gains[n])
            for gains, choices in ways
            for n in choices
            for taken in [
                job.worker_counts[n] * job.worker
                + (0 if job.ps is None else job.ps_counts[n] * job.ps)
            ]
        )
        assert slot == pytest.approx(expected)


@pytest.mark.parametrize("most", [1024, 1025, 10_000])
def test_jobs_with_many_worker_counts_have_a_limited_number_of_levels(most: int) -> None:
    cluster = make_cluster(3, 2, 2)
    opened = OpenJobs(cluster, None, build_quotas(cluster, enabled=False))
    row = opened.add(make_job(cluster, chunks=most))
    arrays = opened.arrays
    workers = arrays.worker_counts[row, : arrays.levels[row]]
    assert arrays.gains.shape[1] <= 1024
    assert workers[0] == 1
    assert workers[-1] == most
    assert opened.max_gain[row] == arrays.gains[row, : arrays.levels[row]].max()
    if most == 1024:
        assert len(workers) == most
    gaps = np.diff(workers)
    assert (gaps >= 1).all()
    assert (gaps[:511] == 1).all()
    assert (gaps <= 1 + 0.01 * workers[:-1]).all()


def test_without_scarcity_flexible_jobs_displace_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = gpus(1, 1)
    # Promises are too expensive for all, so waiting jobs are planned slot by slot. The denser one
    # could wait.
    jobs = [
        training(on, "late", epochs=1, chunks=2, utility=Deadline(90.0, 4.0)),
        training(on, "soon", epochs=1, chunks=2, utility=Deadline(10.0, 2.0)),
    ]
    for together, outcome in ((False, "refused"), (True, "finished")):
        monkeypatch.setattr(policy_module, "_MAX_TOGETHER", 16 if together else 0)
        settings = {"prices": "given", "price": 1e12, "spare": False}
        policy = make_policy("rolling", PolicyContext(on), settings)
        engine = Simulation(on, jobs, policy).run([])
        assert engine.jobs["late"].status.value == "finished"
        assert engine.jobs["soon"].status.value == outcome


def test_promised_job_is_replanned_for_a_later_arrival() -> None:
    on = gpus(1, 2)
    engine = rolling(on)
    # 8 worker-slots within 8 slots: alone it runs on both GPUs for 4 slots.
    first = training(on, "first", utility=Deadline(10.0, 7.0))
    urgent = training(on, "urgent", arrival=1, epochs=1, utility=Deadline(10.0, 1.0))
    engine.handle(JobsArrived(0, (first,)))
    engine.handle(SlotBegan(0))
    assert engine.running["first"].total_workers == 2
    engine.handle(SlotEnded(0, {"first": 2}))
    engine.handle(JobsArrived(1, (urgent,)))
    engine.handle(SlotBegan(1))
    assert engine.running["urgent"].total_workers == 2
    assert "first" not in engine.running
    assert engine.jobs["first"].promise == 7
    assert engine.jobs["urgent"].promise == 2


@pytest.mark.parametrize("price", [0.0, 1.0])
def test_a_promise_states_the_plan_that_others_made_room_for(price: float) -> None:
    """Alone, `last` would complete in slot 4; beside `fixed`, it completes in slot 6."""
    on = gpus(1, 2)
    engine = rolling(on, prices="given", price=price, evidence=10.0)
    jobs = {
        "fixed": training(on, "fixed", epochs=3, chunks=1, utility=Deadline(100.0, 3.0)),
        "flexible": training(on, "flexible", epochs=4, chunks=2, utility=Deadline(100.0, 20.0)),
        "last": training(on, "last", epochs=5, chunks=2, utility=Deadline(100.0, 7.0)),
    }
    made = {}
    for name, job in jobs.items():
        (command,) = engine.handle(JobsArrived(0, (job,)))
        assert isinstance(command, Decided)
        made[name] = command.decision
    promise = made["last"]
    assert isinstance(promise, Promise)
    cost = 10 * price / 2  # `price` is that of both GPUs; the work is ten worker-slots
    assert (promise.completion, promise.expected) == (7, 6)
    assert (promise.utility, promise.cost) == (100.0, pytest.approx(cost))
    assert promise.payoff == pytest.approx(100.0 - cost)
    for slot in range(7):
        engine.handle(SlotBegan(slot))
        done = {name: engine.running[name].total_workers for name in engine.running}
        engine.handle(SlotEnded(slot, done))
    assert engine.jobs["fixed"].completion == 2
    assert engine.jobs["last"].completion == 6


def test_a_plan_that_others_made_room_for_is_worth_its_price() -> None:
    """Alone, `late` runs on one GPU for six slots; beside `soon`, on two for five slots."""
    on = gpus(1, 2)
    soon = training(on, "soon", epochs=1, chunks=2, utility=Deadline(100.0, 0.0))
    curve = {1: Fraction(10, 600), 2: Fraction(12, 600)}
    late = training(
        on, "late", epochs=1, chunks=2, minibatches=30, speed=curve, utility=Deadline(4.0, 5.0)
    )
    given = {"prices": "given", "price": 1.0, "evidence": 10.0}
    (alone,) = decide(on, [late], **given)
    assert isinstance(alone, Promise)
    assert (alone.expected, alone.cost) == (5, pytest.approx(3.0))
    first, second = decide(on, [soon, late], **given)
    assert isinstance(first, Promise)
    assert isinstance(second, Queue)
    assert "is 4, below the price of its plan, 5: it lacks 1" in second.message


def test_a_revision_that_keeps_its_promise_states_the_plan_in_force() -> None:
    on = gpus(1, 2)
    engine = rolling(on, evidence=10.0)
    job = training(on, "a", epochs=3, chunks=2, utility=Deadline(10.0, 20.0))
    engine.handle(JobsArrived(0, (job,)))
    more = training(on, "a", epochs=4, chunks=2, utility=Deadline(10.0, 20.0))
    commands = engine.handle(JobRevised(0, more, admission=True))
    decided = [command.decision for command in commands if isinstance(command, Decided)]
    (promise,) = [decision for decision in decided if isinstance(decision, Promise)]
    assert (promise.completion, promise.expected) == (20, 7)
    assert promise.payoff == promise.utility - promise.cost


@pytest.mark.parametrize("revision", [True, False])
def test_a_plan_of_too_many_changes_is_refused_and_leaves_all_capacity(revision: bool) -> None:
    """Slot by slot a GPU becomes free, so the plan of `elastic` changes in nearly every slot."""
    on = gpus(300, 1)
    slot: Any = {"epochs": 1, "speed": StepModel(Fraction(600))}
    rigid = [
        training(on, f"r{end}", chunks=1, minibatches=end + 1, utility=Deadline(500.0, end), **slot)
        for end in range(1, 299)
    ]
    engine = rolling(on, prices="given", price=0.0, evidence=1000.0, revision=revision)
    assert len(promises(engine.handle(JobsArrived(0, tuple(rigid))))) == len(rigid)
    elastic = training(
        on, "elastic", chunks=300, minibatches=146, utility=Deadline(500.0, 295.0), **slot
    )
    (command,) = engine.handle(JobsArrived(0, (elastic,)))
    assert isinstance(command, Decided)
    decision = command.decision
    assert isinstance(decision, Queue)
    assert "would change its number of workers at least 256 times" in decision.message
    assert "price" not in decision.message
    # Two GPUs are free from the first slot on.
    small = training(on, "small", chunks=2, minibatches=10, utility=Deadline(500.0, 9.0), **slot)
    assert promises(engine.handle(JobsArrived(0, (small,)))) == [("small", 9)]


def test_plans_are_kept_when_capacity_grows() -> None:
    on = gpus(3, 4)
    jobs = [
        training(
            on,
            f"j{index}",
            utility=Sigmoid(5.0 + index % 7, 0.3, 20.0 + index),
            epochs=1 + index % 3,
        )
        for index in range(200)
    ]

    def answers(engine: Engine) -> list[str]:
        results = []
        for slot in range(len(jobs) // 4):
            come = tuple(replace(job, arrival=slot) for job in jobs[4 * slot : 4 * slot + 4])
            results.append(repr(engine.handle(JobsArrived(slot, come))))
            results.append(repr(engine.handle(SlotBegan(slot))))
            progress = dict.fromkeys(engine.running, 1)
            results.append(repr(engine.handle(SlotEnded(slot, progress))))
        return results

    growing = answers(rolling(on))
    roomy: Any = make_policy("rolling", PolicyContext(on), {})
    roomy._planner.reserve(roomy._state, 4096)
    assert answers(Engine(on, roomy)) == growing
    assert any("Promise" in text for text in growing)


def test_plan_is_kept_without_revision() -> None:
    on = gpus(1, 2)
    jobs = [
        training(on, "first", utility=Sigmoid(10.0, 3.0, 4.0)),
        training(on, "urgent", arrival=1, epochs=1, utility=Deadline(10.0, 1.0)),
    ]
    policy = make_policy("rolling", PolicyContext(on), {"revision": False, "standby": False})
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy).run([recorder])
    refused = [made for _, made in recorder.decisions if isinstance(made, Reject)]
    assert [made.job for made in refused] == ["urgent"]
    assert recorder.completions == {"first": 3}


def test_job_below_its_price_waits_with_the_missing_resource() -> None:
    on = gpus(1, 4)
    poor = training(on, "poor", utility=Constant(1.0))
    (made,) = decide(on, [poor], prices="given", price=10.0)
    assert isinstance(made, Queue)
    # 8 worker-slots of 4 in a slot: two slots of the whole cluster, at 10 each.
    assert "its utility by slot" in made.message
    assert "is 1, below the price of its plan, 20: it lacks 19" in made.message


def test_without_standby_a_job_below_its_price_is_refused() -> None:
    on = gpus(1, 4)
    poor = training(on, "poor", utility=Constant(1.0))
    (made,) = decide(on, [poor], prices="given", price=10.0, standby=False)
    assert isinstance(made, Reject)
    assert made.refusal.reason is RefusalReason.PRICE
    assert (made.refusal.value, made.refusal.cost) == (1.0, pytest.approx(20.0))


def test_job_that_would_break_a_promise_names_it_and_a_feasible_change() -> None:
    on = gpus(1, 2)
    jobs = [
        training(on, "first", utility=Deadline(50.0, 3.0)),
        training(on, "second", utility=Deadline(10.0, 3.0)),
    ]
    first, second = decide(on, jobs, standby=False)
    assert isinstance(first, Promise)
    assert isinstance(second, Reject)
    assert second.refusal.reason is RefusalReason.NO_ROOM
    assert "it could complete by slot 7" in second.refusal.message
    late = replace(jobs[1], utility=Deadline(10.0, 7.0))
    assert all(isinstance(made, Promise) for made in decide(on, [jobs[0], late], standby=False))


def test_a_job_that_is_worth_nothing_by_the_time_it_could_complete_is_refused() -> None:
    on = gpus(1, 2)
    (made,) = decide(on, [training(on, "late", utility=Deadline(10.0, 1.0))])
    assert isinstance(made, Reject)
    assert made.refusal.reason is RefusalReason.TOO_LATE


def test_jobs_that_arrive_together_choose_by_what_they_earn_by_their_share() -> None:
    on = gpus(1, 2)
    jobs = [
        training(on, "dull", utility=Deadline(10.0, 3.0)),
        training(on, "bright", utility=Deadline(11.0, 3.0)),
    ]
    first, second = decide(on, jobs)
    assert isinstance(first, Promise)
    assert first.job == "bright"
    assert isinstance(second, Queue)


def test_waiting_job_is_promised_when_capacity_frees_and_abandoned_when_worthless() -> None:
    on = gpus(2, 1)
    jobs = [
        training(on, "first", epochs=1, utility=Deadline(50.0, 1.0)),
        training(on, "second", epochs=1, utility=Deadline(10.0, 3.0)),
        training(on, "third", epochs=1, utility=Deadline(9.0, 3.0)),
    ]
    policy = make_policy("rolling", PolicyContext(on), {"prices": "given", "price": 4.0})
    engine = Simulation(on, jobs, policy).run([])  # a recorder would take finished jobs over
    outcomes = {name: record.status.value for name, record in engine.jobs.items()}
    assert outcomes == {"first": "finished", "second": "finished", "third": "refused"}


def test_promise_broken_by_a_lost_server_is_reported_immediately() -> None:
    on = gpus(2, 2)
    engine = rolling(on)
    engine.handle(JobsArrived(0, (training(on, "a", utility=Sigmoid(10.0, 0.2, 4.0)),)))
    assert engine.jobs["a"].promise == 1
    engine.handle(SlotBegan(0))
    engine.handle(SlotEnded(0, {"a": 4}))
    commands = engine.handle(ServerLost(1, on.names[0]))
    commands += engine.handle(SlotBegan(1))
    promised = [c.decision for c in commands if isinstance(getattr(c, "decision", None), Promise)]
    assert [made.completion for made in promised] == [2]
    assert promised[0].message == "servers were lost"
    assert engine.jobs["a"].promise == 2


@pytest.mark.parametrize("steady", [False, True])
def test_arrival_within_a_slot_breaks_no_promise(steady: bool) -> None:
    # "a" needs all of both slots. Work that the running slot has yet to yield isn't counted.
    on = gpus(1, 4)
    engine = rolling(on, steady=steady)
    engine.handle(JobsArrived(0, (training(on, "a", utility=Deadline(10.0, 1.0)),)))
    engine.handle(SlotBegan(0))
    assert promises(engine.handle(JobsArrived(1, (training(on, "b", arrival=1),)))) == [("b", 401)]
    engine.handle(SlotEnded(0, {"a": 4}))
    assert promises(engine.handle(SlotBegan(1))) == []
    assert engine.running["a"].total_workers == 4
    # In its last slot nothing of it is left to plan, so other jobs find all of the next.
    urgent = training(on, "c", arrival=2, utility=Deadline(10.0, 1.0))
    assert promises(engine.handle(JobsArrived(2, (urgent,)))) == [("c", 3)]
    engine.handle(SlotEnded(1, {"a": 4}))
    assert engine.jobs["a"].completion == engine.jobs["a"].promise == 1
    engine.handle(SlotBegan(2))
    assert engine.running["c"].total_workers == 4


@pytest.mark.parametrize(("yields", "new"), [(0, 3), (3, 2)])
def test_underestimated_promise_is_reported_at_the_slot_end(yields: int, new: int) -> None:
    on = gpus(1, 4)
    engine = rolling(on)
    engine.handle(JobsArrived(0, (training(on, "a", utility=Sigmoid(10.0, 3.0, 1.0)),)))
    assert engine.jobs["a"].promise == 1
    engine.handle(SlotBegan(0))
    assert promises(engine.handle(JobsArrived(1, (training(on, "b", arrival=1),)))) == [("b", 401)]
    engine.handle(SlotEnded(0, {"a": yields}))
    assert promises(engine.handle(SlotBegan(1))) == [("a", new)]


def test_job_that_ended_in_the_current_slot_is_not_planned_further() -> None:
    on = gpus(1, 4)
    engine = rolling(on)
    engine.handle(JobsArrived(0, (training(on, "a", utility=Deadline(10.0, 1.0)),)))
    engine.handle(SlotBegan(0))
    engine.handle(JobFailed(1, "a", 1, "out of memory", retries=3))
    promised = promises(engine.handle(JobsArrived(1, (training(on, "b", arrival=1),))))
    assert ("a", None) in promised


def test_no_promise_is_in_the_past_or_beyond_the_end() -> None:
    on = gpus(1, 2)
    engine = rolling(on)
    job = training(on, "a")
    engine.handle(JobsArrived(0, (job,)))
    engine.state.until = 3
    for completion in (-1, 3):
        with pytest.raises(PolicyError, match="promised for slot"):
            apply_decision(engine.state, Promise("a", completion))


def test_invalid_parameters_are_refused_with_their_location() -> None:
    on = gpus(1, 1)
    for name, value in (("price", -1.0), ("evidence", 0.0), ("evidence", 1e7)):
        with pytest.raises(InputError, match=f"policy rolling.*{name}"):
            make_policy("rolling", PolicyContext(on), {name: value})


def test_a_run_keeps_the_history_of_a_promise() -> None:
    on = gpus(2, 2)
    jobs = [training(on, "a", utility=Sigmoid(10.0, 0.2, 4.0))]
    policy = make_policy("rolling", PolicyContext(on), {})
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy, incidents=[ServerLost(1, "gpu-0")]).run([recorder])
    lines = list(decision_records(recorder))
    assert [(line["outcome"], line["promise"]) for line in lines] == [("admitted", 1), ("moved", 2)]
    assert lines[1]["reason"] == "servers were lost"
    assert recorder.completions == {"a": 2}


def test_prices_are_posted_server_by_server() -> None:
    cluster = make_cluster(2, 1)
    engine = rolling(cluster, prices="given", price=6.0)
    prices = engine.policy.slot_prices(engine.view)  # type: ignore[attr-defined]
    assert prices.shape == cluster.capacity.shape
    # 6 for all GPUs of the two worker servers: 3 for those of one, none where there are none.
    assert prices[:, cluster.column["gpu"]].tolist() == [3.0, 3.0, 0.0]
    assert prices[:, cluster.column["cpu"]].tolist() == [3.0, 3.0, 6.0]


# ------------------------------------------------------------------ against an exact program


def joint(on: int, jobs: Sequence[Job]) -> bool:
    """Whether all jobs can meet their deadlines on a number of GPUs, as an integer program."""
    program = LinearProgram()
    end = max(int(job.utility.by) for job in jobs) + 1  # type: ignore[attr-defined]
    used: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    for job in jobs:
        gained: list[tuple[int, float]] = []
        for slot in range(int(job.utility.by) + 1):  # type: ignore[attr-defined]
            choices = [program.column(upper=1.0) for _ in job.worker_counts]
            program.row(weighted(choices), upper=1.0)
            used[slot] += zip(choices, job.worker_counts.tolist(), strict=True)
            gained += zip(choices, job.gains.tolist(), strict=True)
        program.row(gained, lower=float(job.required))
    for workers in used:
        program.row(workers, upper=float(on))
    return program.solve().feasible


def random_set(cluster: Cluster, rng: np.random.Generator) -> list[Job]:
    """Return jobs with deadlines, of which some sets fit and some don't."""
    jobs = []
    for index in range(int(rng.integers(2, 5))):
        most = int(rng.integers(1, 4))
        work = int(rng.integers(1, 6))
        speed: Mapping[int, Fraction] | None = None
        if rng.random() < 0.5:
            curve = np.cumsum(np.sort(rng.integers(1, 10, most))[::-1])
            speed = {n + 1: Fraction(int(curve[n]), 3000) for n in range(most)}
        values: dict[str, Any] = {"epochs": 1, "chunks": max(work, most), "minibatches": 10}
        if speed is not None:
            values["speed"] = speed
        jobs.append(
            training(
                cluster,
                f"job-{index}",
                worker_range=(1, most),
                utility=Deadline(10.0, float(rng.integers(1, 6))),
                **values,
            )
        )
    return jobs


def test_verdicts_are_those_of_an_exact_program() -> None:
    """Jobs that are promised together always fit; refused ones almost never would have."""
    rng = np.random.default_rng(7)
    refused = missed = 0
    for _ in range(60):
        size = int(rng.integers(2, 6))
        on = gpus(1, size)
        jobs = {entry.name: entry for entry in random_set(on, rng)}
        jobs |= {
            f"{entry.name}b": replace(entry, name=f"{entry.name}b") for entry in random_set(on, rng)
        }
        kept: list[Job] = []
        for decision in decide(on, list(jobs.values()), prices="given"):
            job = jobs[decision.job]  # type: ignore[union-attr]
            if isinstance(decision, Promise):
                kept.append(job)
                continue
            refused += 1
            missed += joint(size, [*kept, job])
        assert not kept or joint(size, kept)
    assert refused > 150
    assert missed <= 0.01 * refused


# ------------------------------------------------------------------ against oasis


def test_one_job_at_a_given_price_is_decided_as_by_oasis() -> None:
    rng = np.random.default_rng(11)
    outcomes = set()
    for _ in range(150):
        servers, each = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        on = gpus(servers, each)
        job = training(
            on,
            "a",
            epochs=int(rng.integers(1, 8)),
            worker_range=(1, int(rng.integers(1, 5))),
            utility=Sigmoid(float(rng.uniform(1, 40)), float(rng.uniform(0, 2)), 4.0),
        )
        price = float(rng.uniform(0.01, 3.0))
        oasis = make_policy(
            "oasis",
            PolicyContext(on),
            {"prices": "given", "worker": {"L": price, "U": {"gpu": price}}},
        )
        (theirs,) = Engine(on, oasis).handle(JobsArrived(0, (job,)))
        (ours,) = decide(
            on, [job], prices="given", price=price * servers, revision=False, standby=False
        )
        decision = theirs.decision  # type: ignore[union-attr]
        outcomes.add(type(decision))
        if isinstance(decision, Commit):
            assert isinstance(ours, Promise)
            assert ours.payoff == pytest.approx(decision.payoff)
            assert ours.expected == decision.schedule.completion
        else:
            assert isinstance(ours, Reject)
    assert outcomes == {Commit, Reject}


def test_known_jobs_are_ignored() -> None:
    cluster = make_cluster(2, 1)
    jobs = [
        make_job(cluster, f"job-{index}", arrival=index, epochs=1 + index % 3) for index in range(8)
    ]
    offers = []
    for known in (None, jobs, [replace(job, utility=Constant(1e9)) for job in jobs]):
        policy = make_policy("rolling", PolicyContext(cluster, known), {})
        recorder = Recorder(cluster, jobs, policy)
        Simulation(cluster, jobs, policy).run([recorder])
        offers.append(recorder.decisions)
    assert offers[0] == offers[1] == offers[2]


@pytest.mark.parametrize(
    ("until", "reason"), [(None, RefusalReason.NO_VALUE), (7, RefusalReason.TOO_LATE)]
)
def test_abandoned_job_states_when_its_remaining_work_would_end(
    until: int | None, reason: RefusalReason
) -> None:
    cluster = make_cluster(1, 0, gpus=1)
    lasting = make_job(cluster, "lasting", epochs=4, chunks=1, ps_amounts=None)
    lasting = replace(lasting, utility=Deadline(10.0, 6 if until is None else 60))
    engine = Engine(
        cluster, make_policy("rolling", PolicyContext(cluster, None, until, 0), {}), until=until
    )
    engine.handle(JobsArrived(0, (lasting,)))
    for slot in range(2):
        engine.handle(SlotBegan(slot))
        gain = lasting.gain(1) if engine.running else 0
        engine.handle(SlotEnded(slot, {"lasting": gain} if gain else {}))
    assert engine.jobs["lasting"].remaining == 2
    engine.handle(ServerLost(2, cluster.names[0]))
    refusal, slot = None, 2
    while (refusal := engine.jobs["lasting"].refusal) is None:
        assert slot < 20
        engine.handle(SlotBegan(slot))
        engine.handle(SlotEnded(slot, {}))
        slot += 1
    assert refusal.reason is reason
    assert refusal.completion == slot
    assert f"it could complete in slot {slot} at the earliest" in refusal.message
