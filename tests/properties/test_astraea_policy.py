"""Astraea and BatchSche through the engine, on random workloads with lost servers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.events import (
    JobCancelled,
    JobsArrived,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.astraea.market import NEARLY_FREE
from shadowprice.policies.astraea.rounds import RoundCalendar
from shadowprice.policies.registry import make_policy
from tests.support.astraea_cases import (
    DecisionRecorder,
    random_jobs,
    shared_cluster,
    shared_job,
    simulate,
)
from tests.support.examples import example_count
from tests.support.straggling_execution import StragglerExecution

TENANTS = {"a": {"worker": 3, "ps": 2}, "b": {"worker": 4, "ps": 1}, "c": {"worker": 1, "ps": 1}}
CLUSTER = shared_cluster(4, TENANTS)
SHARE = {name: share["worker"] for name, share in TENANTS.items()}


def books(notes: DecisionRecorder) -> dict[tuple[str, int], int]:
    paid: dict[tuple[str, int], int] = defaultdict(int)
    for charge in notes.charges:
        paid[charge.job, charge.slot] += sum(charge.amounts.values())
    return paid


@settings(max_examples=example_count(25), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["astraea", "batchsche"]),
    rounds=st.integers(1, 3),
    workers=st.sampled_from(["elastic", "rigid"]),
    theta=st.sampled_from(["known", "online"]),
    clock=st.sampled_from(["round", "arrival"]),
    troubled=st.booleans(),
)
def test_every_job_ends_and_nothing_is_overbooked(
    seed: int, policy: str, rounds: int, workers: str, theta: str, clock: str, troubled: bool
) -> None:
    jobs = random_jobs(CLUSTER, 14, seed)
    incidents: list[Any] = []
    if troubled:
        incidents = [
            ServerLost(9, CLUSTER.names[1]),
            ServerBack(23, CLUSTER.names[1]),
            JobCancelled(12, jobs[3].name),
        ]
    notes = DecisionRecorder()
    chosen = {"lambda": rounds, "workers": workers, "theta": theta, "clock": clock}
    # The engine refuses whatever overbooks a server, breaks (3i), or moves a plan into the past.
    engine = simulate(CLUSTER, jobs, policy, chosen, incidents=incidents, observers=[notes])
    assert not engine.open_jobs
    for name, commit in notes.commits.items():
        assert commit.payoff > 0, name
        placements = {placement for _, placement in commit.schedule.placements()}
        slots = commit.schedule.active_slots
        # A gang: constant, on constant servers, over consecutive slots.
        assert len(placements) == 1
        assert slots.tolist() == list(range(slots[0], slots[-1] + 1))
    for record in engine.jobs.values():
        if record.status in {Status.REFUSED, Status.DROPPED}:
            assert record.refusal is not None
            assert record.refusal.message


@settings(max_examples=example_count(15), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_payments_are_received_and_only_made_beyond_the_share(seed: int) -> None:
    jobs = {job.name: job for job in random_jobs(CLUSTER, 16, seed)}
    notes = DecisionRecorder()
    simulate(CLUSTER, list(jobs.values()), "astraea", {}, observers=[notes])
    borrowed = {charge.job for charge in notes.charges}
    paid: Counter[str] = Counter()
    for (name, _), amount in books(notes).items():
        paid[name] += amount
    for name in borrowed:
        assert paid[name] == round(notes.commits[name].cost * 1e6)
    # Jobs that pay nothing stay, together, within their tenants' shares in every slot.
    for slot, running in notes.running.items():
        used: Counter[str] = Counter()
        for name, placement in running.items():
            if name not in borrowed:
                used[jobs[name].tenant] += placement.total_workers
        assert all(count <= SHARE[tenant] for tenant, count in used.items()), slot


def test_the_same_inputs_give_the_same_books() -> None:
    jobs = random_jobs(CLUSTER, 20, seed=5)
    runs = []
    for _ in range(2):
        notes = DecisionRecorder()
        engine = simulate(CLUSTER, jobs, "astraea", {}, observers=[notes])
        runs.append((engine.state_digest(), notes.charges))
    assert runs[0] == runs[1]
    assert runs[0][1]


@settings(max_examples=example_count(15), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["astraea", "batchsche"]),
    rounds=st.integers(1, 2),
)
def test_the_end_of_the_timespan_only_cuts_rounds_off(seed: int, policy: str, rounds: int) -> None:
    # Algorithm 1, line 7: jobs that a batch leaves unscheduled join the next one.
    jobs = random_jobs(CLUSTER, 30, seed)
    end = next(turn.end for turn in RoundCalendar(rounds, 16) if turn.end >= 40)
    results = []
    for until in (None, end):
        notes = DecisionRecorder()
        simulate(CLUSTER, jobs, policy, {"lambda": rounds}, until=until, observers=[notes])
        results.append(
            {
                name: list(commit.schedule.rows())
                for name, commit in notes.commits.items()
                if commit.schedule.start < end
            }
        )
    assert results[0] == results[1]


def test_batchsche_keeps_every_tenant_on_its_own_share() -> None:
    jobs = {job.name: job for job in random_jobs(CLUSTER, 20, seed=11)}
    notes = DecisionRecorder()
    simulate(CLUSTER, list(jobs.values()), "batchsche", {}, observers=[notes])
    assert not notes.charges
    for running in notes.running.values():
        used: Counter[str] = Counter()
        for name, placement in running.items():
            used[jobs[name].tenant] += placement.total_workers
        assert all(count <= SHARE[tenant] for tenant, count in used.items())


def lone_borrower(**changes: Any) -> tuple[Any, list[Any]]:
    cluster = shared_cluster(2, {"a": {"worker": 4, "ps": 2}, "b": {}})
    owner = shared_job(cluster, "own", "a", chunks=1, epochs=4)
    return cluster, [owner, shared_job(cluster, "loan", "b", chunks=2, epochs=4, **changes)]


def test_a_lost_server_ends_the_payments_and_the_job_goes_on_later() -> None:
    cluster, jobs = lone_borrower()
    notes, before = DecisionRecorder(), DecisionRecorder()
    simulate(cluster, jobs, "astraea", {"lambda": 1}, observers=[before])
    plan = before.commits["loan"].schedule
    lost = plan.start + 1
    server = int(plan.servers[0])
    engine = simulate(
        cluster,
        jobs,
        "astraea",
        {"lambda": 1},
        observers=[notes],
        incidents=[
            ServerLost(lost, CLUSTER.names[server]),
            ServerBack(lost + 1, CLUSTER.names[server]),
        ],
    )
    record = engine.jobs["loan"]
    assert record.status is Status.FINISHED
    # The first slot of the lost gang made progress, and nothing is paid for the slots it lost.
    first = {charge.slot for charge in notes.charges if charge.slot < lost}
    assert first <= {plan.start}
    second = notes.commits["loan"].schedule
    assert second.start > lost
    assert len(second.active_slots) < len(plan.active_slots)
    assert {charge.slot for charge in notes.charges} - first == set(second.active_slots.tolist())


def test_a_cancelled_job_pays_no_more() -> None:
    cluster, jobs = lone_borrower()
    before, notes = DecisionRecorder(), DecisionRecorder()
    simulate(cluster, jobs, "astraea", {"lambda": 1}, observers=[before])
    cut = before.commits["loan"].schedule.start + 2
    simulate(
        cluster,
        jobs,
        "astraea",
        {"lambda": 1},
        observers=[notes],
        incidents=[JobCancelled(cut, "loan")],
    )
    assert (
        {c.slot for c in notes.charges} == {c.slot for c in before.charges if c.slot < cut} != set()
    )


def test_stragglers_finish_in_later_rounds() -> None:
    jobs = random_jobs(CLUSTER, 10, seed=2)
    engine = simulate(CLUSTER, jobs, "astraea", {}, execution=StragglerExecution(0.3, seed=1))
    outcomes = Counter(record.status for record in engine.jobs.values())
    assert outcomes[Status.FINISHED] >= 7
    assert not engine.open_jobs


def refusal_of(engine: Engine, name: str) -> tuple[RefusalReason, str]:
    refusal = engine.jobs[name].refusal
    assert refusal is not None
    return refusal.reason, refusal.message


def test_refusals_name_the_reason() -> None:
    cluster = shared_cluster(4, TENANTS, horizon=16)
    jobs = [
        shared_job(cluster, "wide", "a", chunks=9, workers={"min": 9}),
        shared_job(cluster, "long", "a", chunks=2, epochs=40),
        shared_job(
            cluster,
            "vain",
            "a",
            utility={"kind": "deadline", "value": 9, "by": "1 slots"},
            epochs=3,
        ),
        shared_job(cluster, "greedy", "a", worker={"worker": 2, "bandwidth": "1Gbps"}),
        shared_job(cluster, "fine", "a"),
    ]
    engine = simulate(cluster, jobs, "astraea")
    assert refusal_of(engine, "wide")[0] is RefusalReason.NEVER_FITS
    reason, message = refusal_of(engine, "long")
    assert reason is RefusalReason.TOO_LATE
    assert "40 slots at best" in message
    assert refusal_of(engine, "vain")[0] is RefusalReason.NO_VALUE
    assert refusal_of(engine, "greedy")[0] is RefusalReason.POLICY
    assert engine.jobs["fine"].status is Status.FINISHED
    # With a horizon that holds such a long round, the job runs.
    wider = shared_cluster(4, TENANTS, horizon=64)
    again = simulate(wider, [shared_job(wider, "long", "a", chunks=2, epochs=40)], "astraea")
    assert again.jobs["long"].status is Status.FINISHED


def test_the_price_refusal_s_change_is_the_smallest() -> None:
    cluster = shared_cluster(1, {"a": {"worker": 2, "ps": 1}, "b": {}}, horizon=4)

    def outcome(value: float) -> Engine:
        flat = {"kind": "constant", "value": value}
        jobs = [
            shared_job(
                cluster,
                "own",
                "a",
                chunks=1,
                epochs=2,
                ps=None,
                gradient=None,
                internal_bandwidth=None,
                utility={"kind": "constant", "value": 50},
            ),
            shared_job(
                cluster,
                "loan",
                "b",
                chunks=1,
                epochs=2,
                ps=None,
                gradient=None,
                internal_bandwidth=None,
                utility=flat,
            ),
        ]
        theta = {"worker": 100, "ps": 2}
        return simulate(cluster, jobs, "astraea", {"lambda": 1, "theta": theta}, until=4)

    refused = outcome(10.0).jobs["loan"]
    assert refused.refusal is not None
    assert refused.refusal.reason is RefusalReason.PRICE
    # A worker beside one of two taken costs 100^(1/2) - 1 = 9 a slot, two slots 18.
    assert refused.refusal.cost == pytest.approx(18)
    missing = refused.refusal.numbers["missing"]
    assert outcome(10.0 + missing).jobs["loan"].status is Status.REFUSED
    assert outcome(10.0 + missing + 1e-5).jobs["loan"].status is Status.FINISHED


def build(tenants: Any, settings_: Any = None, jobs: Any = None) -> Any:
    on = shared_cluster(4, tenants)
    return make_policy("astraea", PolicyContext(on, known_jobs=jobs), dict(settings_ or {}))


def test_shares_that_do_not_add_up_are_an_error() -> None:
    with pytest.raises(InputError, match=r"shares of worker add up to 5, .* hold 8: 3 too few"):
        build({"a": {"worker": 5, "ps": 4}})
    shares = build({"a": {}, "b": {}, "c": {}}).parameters_in_force()["shares"]
    assert [share["worker"] for share in shares.values()] == [3, 3, 2]


def test_a_job_without_an_owner_is_an_error_if_known_and_a_refusal_if_not() -> None:
    orphan = shared_job(CLUSTER, "orphan", None)
    with pytest.raises(InputError, match="no tenant is given for orphan"):
        simulate(CLUSTER, [orphan], "astraea")
    engine = simulate(CLUSTER, [orphan], "astraea", known=False)
    assert refusal_of(engine, "orphan")[0] is RefusalReason.POLICY
    alone = shared_cluster(2)
    engine = simulate(alone, [shared_job(alone, "orphan", None)], "astraea")
    assert engine.jobs["orphan"].status is Status.FINISHED


def test_parameters() -> None:
    given_ = build(TENANTS, {"theta": {"worker": "16", "ps": "4"}, "lambda": "3"})
    assert given_.parameters_in_force()["lambda"] == 3
    assert given_.parameters_in_force()["theta"]["in_force"] == {"worker": 16.0, "ps": 4.0}
    jobs = random_jobs(CLUSTER, 12, seed=0)
    known = build(TENANTS, {"theta": {"scale": "0.5"}}, jobs).parameters_in_force()["theta"]
    whole = build(TENANTS, {}, jobs).parameters_in_force()["theta"]
    for name, value in whole["in_force"].items():
        assert known["in_force"][name] == pytest.approx(value / 2)
    lemma = build(TENANTS, {"lambda": "lemma"}, jobs).parameters_in_force()
    assert lemma["lambda"] == lemma["rounds_of_lemma"] > 2
    for wrong in (
        {"theta": {"worker": 4}},
        {"theta": "sometimes"},
        {"lambda": "0"},
        {"lambda": "lemma"},
        {"rounds": "2"},
        {"workers": "soft"},
    ):
        with pytest.raises(InputError):
            build(TENANTS, wrong)
    with pytest.raises(InputError, match="lamda: unknown key; did you mean 'lambda'"):
        build(TENANTS, {"lamda": "2"})


def test_online_theta_is_known_theta_once_all_have_arrived() -> None:
    on = replace(CLUSTER, horizon=64)  # all jobs teach until the last one is scheduled
    jobs = random_jobs(on, 12, seed=3, latest=0)
    results = []
    for source in ("known", "online"):
        notes = DecisionRecorder()
        engine = simulate(on, jobs, "astraea", {"theta": source}, observers=[notes])
        assert {record.status for record in engine.jobs.values()} == {Status.FINISHED}
        results.append(engine.state_digest())
    assert results[0] == results[1]


def test_a_job_raises_theta_up_to_the_points_of_its_tenant() -> None:
    thetas = {}
    for value, points in ((1e5, None), (1e5, 40.0), (40.0, None), (1e5, 0.0)):
        policy = make_policy("astraea", PolicyContext(CLUSTER), {"theta": "online"})
        job = replace(shared_job(CLUSTER, "job", "a"), utility=Constant(value), points=points)
        Engine(CLUSTER, policy).handle(JobsArrived(0, (job,)))
        thetas[value, points] = policy.pools[0].thetas()  # type: ignore[attr-defined]
    assert thetas[1e5, 40.0] == thetas[40.0, None] < thetas[1e5, None]
    assert thetas[1e5, 0.0] == [NEARLY_FREE, NEARLY_FREE]


@given(
    values=st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), min_size=1, max_size=6),
    points=st.sampled_from([None, 0.0, 1e6]),
)
@settings(max_examples=example_count(20), deadline=None, derandomize=True)
def test_refused_and_cancelled_jobs_leave_theta_as_it_was(
    values: list[tuple[int, bool]], points: float | None
) -> None:
    """Also from the stored state on. Prices and plans of another tenant are the same."""
    results = []
    for attacked in (False, True):
        policy = make_policy("astraea", PolicyContext(CLUSTER), {"theta": "online"})
        engine = Engine(CLUSTER, policy)
        engine.handle(JobsArrived(0, (shared_job(CLUSTER, "first", "b"),)))
        hostile = []
        for index, (value, fits) in enumerate(values if attacked else ()):
            # No server holds a hundred workers, and no round is long enough for as many epochs.
            one = shared_job(CLUSTER, f"hostile-{index}", "a", epochs=1 if fits else 10**6)
            hostile.append(replace(one, utility=Constant(float(value)), points=points))
        for one in hostile:
            engine.handle(JobsArrived(0, (one,)))
        for one in hostile:
            engine.handle(JobCancelled(0, one.name))
        engine.session.load_state(engine.session.dump_state())
        engine.handle(JobsArrived(0, (shared_job(CLUSTER, "second", "b"),)))
        for slot in range(8):
            engine.handle(SlotBegan(slot))
            engine.handle(SlotEnded(slot, dict.fromkeys(engine.running, 0)))
        honest = [engine.jobs[name] for name in ("first", "second")]
        results.append(
            (
                policy.parameters_in_force()["theta"],
                policy.slot_prices(engine.view).tolist(),  # type: ignore[attr-defined]
                [(record.status, list(record.plan.rows())) for record in honest],
            )
        )
    assert results[0] == results[1]


def test_longer_batches_do_not_stall_the_simulation() -> None:
    # Rounds stop growing at the horizon: a late job waits for lambda of them.
    jobs = [
        shared_job(CLUSTER, "first", "a"),
        shared_job(CLUSTER, "late", "b", 70, epochs=5),
    ]
    engine = simulate(CLUSTER, jobs, "astraea", {"lambda": 3})
    assert engine.jobs["late"].status is Status.FINISHED
    assert np.array([r.completion for r in engine.jobs.values()]).max() > 70
