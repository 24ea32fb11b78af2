"""OASiS as a policy: admission against the MILP, refusals, lost servers, pools, parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice import simulate
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import (
    Commit,
    Decision,
    JobsArrived,
    PolicyEvent,
    Reject,
    ServerBack,
    ServerLost,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, Status, View
from shadowprice.core.quote import QuoteAnswer
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Constant, Deadline, Sigmoid, Utility
from shadowprice.engine import Engine
from shadowprice.policies.oasis.policy import OasisPolicy, server_pools
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.oracles.oasis import Side, milp_payoff
from tests.support.examples import sample
from tests.support.policy_runs import random_world
from tests.support.workloads import DIMENSIONS, GBPS, GIB, make_cluster, make_job, random_job

GIVEN: Mapping[str, Any] = {
    "prices": "given",
    "worker": {"L": 0.5, "U": {"gpu": 50.0, "cpu": 40.0, "memory": 30.0, "bandwidth": 20.0}},
    "ps": {"L": 0.2, "U": {"cpu": 30.0, "memory": 20.0, "bandwidth": 10.0}},
}
FLAT: Mapping[str, Any] = {
    "prices": "given",
    "worker": {"L": 1.0, "U": dict.fromkeys(("gpu", "cpu", "memory", "bandwidth"), 1.0)},
    "ps": {"L": 1.0, "U": dict.fromkeys(("cpu", "memory", "bandwidth"), 1.0)},
}


def oasis(
    cluster: Cluster, jobs: list[Job] | None = None, until: int | None = None, **settings: Any
):  # type: ignore[no-untyped-def]
    policy = make_policy("oasis", PolicyContext(cluster, jobs, until), settings)
    assert isinstance(policy, OasisPolicy)
    return policy


def run(
    cluster: Cluster,
    jobs: list[Job],
    settings: Mapping[str, Any],
    until: int | None = None,
    incidents: list[Incident] | None = None,
) -> Engine:
    policy = oasis(cluster, jobs, until, **settings)
    return Simulation(cluster, jobs, policy, until=until, incidents=incidents or []).run()


def refusal_of(engine: Engine, name: str = "job") -> Refusal:
    refusal = engine.jobs[name].refusal
    assert refusal is not None
    return refusal


class Examiner:
    """Solves the MILP for every arrival at the prices of that moment before OASiS decides."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.seen = {True: 0, False: 0}

    def resume(self, view: View) -> None:
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        decisions = iter(self.policy.decide(view, event))
        for arrived in event.jobs if isinstance(event, JobsArrived) else ():
            payoff = self.payoff(view, arrived)
            decision = next(decisions)
            admitted = payoff is not None and payoff > 0
            self.seen[admitted] += 1
            if admitted:
                assert isinstance(decision, Commit)
                assert decision.payoff == pytest.approx(payoff, rel=1e-6, abs=1e-6)
            else:
                assert isinstance(decision, Reject)
            yield decision
        yield from decisions

    def payoff(self, view: View, arrived: Job) -> float | None:
        sides = []
        on = view.cluster
        parts = (GIVEN["worker"], GIVEN["ps"])
        for members, part in zip(server_pools(on, halved=True), parts, strict=True):
            high = [part["U"].get(name, part["L"]) for name in on.resources]
            sides.append(
                Side.of(
                    members, on.capacity, view.ledger.capacity, view.ledger.used, part["L"], high
                )
            )
        slots = view.end - view.slot
        return milp_payoff(arrived, view.slot, slots, arrived.required, *sides)


def test_algorithm_1_admits_exactly_the_jobs_whose_best_payoff_is_positive() -> None:
    seen = {True: 0, False: 0}
    for seed in range(12):
        cluster, jobs, incidents = random_world(seed)
        jobs = [job for job in jobs if job.arrival < 9]
        if all(job.all_reduce for job in jobs):
            continue  # `any` servers would then not be split
        names = {job.name for job in jobs}
        incidents = [i for i in incidents if getattr(i, "job", None) in {*names, None}]
        examiner = Examiner(oasis(cluster, jobs, 14, **GIVEN))
        Simulation(cluster, jobs, examiner, until=14, incidents=incidents).run()
        for outcome, count in examiner.seen.items():
            seen[outcome] += count
    assert min(seen.values()) > 10


def test_a_worked_example_of_price_and_payoff() -> None:
    """One server of 4 GPUs at a flat price of 1 a share: costs can be added by hand."""
    cluster = make_cluster(1, 1, horizon=8)
    # A worker takes 1/4 of the GPUs, 1/8 of the CPUs, 1/8 of the memory and 1/25 of the network;
    # its parameter server (one for up to 4) 1/8, 1/8 and 4/50 of the other server.
    worker, ps = 0.25 + 0.125 + 0.125 + 0.04, 0.125 + 0.125 + 0.08
    cost = 8 * worker + 2 * ps  # 8 worker-slots, 4 at once, in two slots
    for value, admitted in ((cost * (1 + 1e-9), True), (cost * (1 - 1e-9), False), (cost, False)):
        single_job = make_job(cluster, utility=Constant(value))
        assert (single_job.required, single_job.max_workers) == (8, 4)
        engine = run(cluster, [single_job], FLAT)
        record = engine.jobs["job"]
        assert (record.status is Status.FINISHED) == admitted
        if admitted:
            assert record.completion == 1
            assert record.plan.rows() == [[0, 0, 4, 0], [0, 1, 0, 1], [1, 0, 4, 0], [1, 1, 0, 1]]
    refusal = refusal_of(engine)
    assert refusal.reason is RefusalReason.PRICE
    assert refusal.cost == pytest.approx(cost)


def test_a_cheaper_slot_is_waited_for_only_as_long_as_the_utility_allows() -> None:
    cluster = make_cluster(1, 1, horizon=6)
    first = make_job(cluster, "first", ps=None, utility=Constant(1000.0), minibatches=5)
    assert first.required == 4
    completions = {}
    for decay in (0.0, 3.0):
        second = make_job(
            cluster, "second", ps=None, utility=Sigmoid(100.0, decay, 0.5), epochs=1, chunks=2,
            minibatches=10, worker_range=(1, 2),
        )  # fmt: skip
        settings = {
            **GIVEN,
            "worker": {"L": 1e-3, "U": dict.fromkeys(cluster.resources, 40.0)},
        }
        engine = run(cluster, [replace(first, worker=first.worker // 2), second], settings)
        completions[decay] = engine.jobs["second"].completion
    patient, hurried = completions[0.0], completions[3.0]
    assert patient is not None
    assert hurried is not None
    assert hurried == 0 < patient


# ---------------------------------------------------------------------------- refusals


def scaled(utility: Utility, factor: float) -> Utility:
    return replace(utility, value=utility.value * factor)  # type: ignore[attr-defined, type-var]


def test_cost_over_value_is_the_least_factor_that_would_have_been_admitted() -> None:
    tried = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        cluster = make_cluster(int(rng.integers(1, 3)), 1, horizon=8)
        many_jobs = [random_job(cluster, rng, f"job-{index}", latest=2) for index in range(6)]
        many_jobs.sort(key=lambda one: one.arrival)
        engine = run(cluster, many_jobs, GIVEN, until=10)
        for index, one in enumerate(many_jobs):
            refusal = engine.jobs[one.name].refusal
            if refusal is None or refusal.reason is not RefusalReason.PRICE:
                continue
            tried += 1
            assert refusal.value is not None
            assert refusal.cost is not None
            factor = refusal.cost / refusal.value
            assert factor >= 1.0
            for nudge, admitted in ((1 + 1e-5, True), (1 - 1e-5, False)):
                rescaled = [
                    *many_jobs[:index],
                    replace(one, utility=scaled(one.utility, factor * nudge)),
                ]
                status = run(cluster, rescaled, GIVEN, until=10).jobs[one.name].status
                assert (status is not Status.REFUSED) == admitted
    assert tried > 20


def test_the_bottleneck_of_a_price_is_the_resource_that_costs_most() -> None:
    cluster = make_cluster(1, 1, horizon=4)
    dear = {"L": 1e-4, "U": {"gpu": 1e-4, "cpu": 100.0, "memory": 1e-4, "bandwidth": 1e-4}}
    settings = {
        **GIVEN,
        "worker": dear,
        "ps": {"L": 1e-6, "U": dict.fromkeys(cluster.resources, 1e-6)},
    }
    jobs = make_job(cluster, "crowd", utility=Constant(1e6), worker_range=(4, 4), minibatches=20)
    assert jobs.required == 16  # four slots at its only width
    jobs = replace(jobs, worker=np.array([500, 3000, GIB, GBPS]))
    late = replace(
        make_job(cluster, utility=Constant(0.5)), worker=np.array([500, 1000, GIB, GBPS])
    )
    refusal = refusal_of(run(cluster, [jobs, late], settings))
    assert refusal.reason is RefusalReason.PRICE
    assert refusal.bottleneck is not None
    assert refusal.bottleneck.startswith("cpu of worker servers, 100% of the cost over slots 0 to")
    # The same, if the servers of the parameter servers are the expensive ones.
    settings = {**FLAT, "ps": {"L": 90.0, "U": dict.fromkeys(cluster.resources, 90.0)}}
    refusal = refusal_of(run(cluster, [make_job(cluster, utility=Constant(1.0))], settings))
    assert str(refusal.bottleneck).startswith("cpu of parameter-server servers")


def test_job_too_long_for_the_window_states_the_excess() -> None:
    cluster = make_cluster(2, 1, horizon=5)
    long = make_job(cluster, epochs=20)  # 80 worker-slots, 20 slots at full width
    refusal = refusal_of(run(cluster, [long], {}))
    assert refusal.reason is RefusalReason.TOO_LATE
    assert "needs 20 slots with its maximum number of workers" in refusal.message
    assert "the planning horizon has 5 left" in refusal.message
    assert refusal.numbers == {"slots_needed": 20, "slots_left": 5}
    refusal = refusal_of(run(cluster, [make_job(cluster, epochs=3, arrival=2)], {}, until=4))
    assert refusal.reason is RefusalReason.TOO_LATE
    assert "timespan" in refusal.message


def test_full_cluster_names_the_scarce_resource() -> None:
    cluster = make_cluster(1, 1, gpus=4, horizon=4)
    jobs = make_job(cluster, "crowd", utility=Constant(1e6), worker_range=(4, 4), minibatches=20)
    late = make_job(cluster, utility=Constant(1e6))
    settings = {**FLAT, "worker": {"L": 1e-3, "U": dict.fromkeys(cluster.resources, 1e-3)}}
    refusal = refusal_of(run(cluster, [jobs, late], settings))
    assert refusal.reason is RefusalReason.NO_ROOM
    assert refusal.bottleneck == "gpu of worker servers"
    # Parameter servers that take all of theirs.
    hog = {"cpu": 16_000, "memory": GIB, "bandwidth": 4 * GBPS}
    jobs = make_job(
        cluster, "crowd", utility=Constant(1e6), worker_range=(1, 1), epochs=1, ps_amounts=hog
    )
    jobs = replace(jobs, required=4)
    refusal = refusal_of(run(cluster, [jobs, late], settings))
    assert refusal.reason is RefusalReason.NO_ROOM
    assert refusal.bottleneck == "cpu of parameter-server servers"


def test_job_past_its_deadline_has_no_utility() -> None:
    cluster = make_cluster(1, 1, horizon=6)
    refusal = refusal_of(run(cluster, [make_job(cluster, utility=Deadline(5.0, 0.0))], {}))
    assert refusal.reason is RefusalReason.NO_VALUE
    assert refusal.value == 0.0
    assert refusal.completion == 1
    assert "needs 2 slots with its maximum number of workers" in refusal.message


def test_job_delayed_past_its_deadline_by_others_is_refused_for_capacity() -> None:
    cluster = make_cluster(1, 1, horizon=6)
    first = make_job(cluster, "first", utility=Constant(1e3))
    refusal = refusal_of(run(cluster, [first, make_job(cluster, utility=Deadline(5.0, 1.0))], {}))
    assert refusal.reason is RefusalReason.NO_ROOM
    assert "too little free capacity to complete by slot 1" in refusal.message
    assert refusal.completion == 3


def test_a_job_that_no_server_can_hold_never_reaches_the_prices() -> None:
    cluster = make_cluster(1, 1, gpus=1)
    big = {"gpu": 2000, "cpu": 1000, "memory": GIB, "bandwidth": GBPS}
    assert (
        refusal_of(run(cluster, [make_job(cluster, worker_amounts=big)], {})).reason
        is RefusalReason.NEVER_FITS
    )


# ---------------------------------------------------------------------------- servers lost


def test_a_job_whose_server_is_lost_keeps_its_work_on_the_other_one() -> None:
    cluster = make_cluster(2, 1, horizon=10)
    single_job = make_job(cluster, epochs=4)  # 16 worker-slots: 4 slots
    engine = run(cluster, [single_job], {}, incidents=[ServerLost(2, cluster.names[0])])
    record = engine.jobs["job"]
    assert record.status is Status.FINISHED
    moved = record.plan.from_slot(2)
    assert 0 not in moved.servers.tolist()
    assert record.completion is not None
    assert record.completion >= 3
    # Progress before the loss counts: the new plan covers only the rest.
    assert int(moved.workers.sum()) < single_job.required


def test_an_admitted_job_is_kept_at_any_price_while_it_fits() -> None:
    cluster = make_cluster(2, 0, horizon=10)
    single_job = make_job(cluster, ps=None, epochs=4, utility=Deadline(60.0, 3.0))
    settings = {"prices": "given", "worker": FLAT["worker"]}
    engine = run(
        cluster,
        [single_job],
        settings,
        incidents=[
            ServerLost(1, cluster.names[0]),
            ServerLost(1, cluster.names[1]),
            ServerBack(3, cluster.names[1]),
        ],
    )
    record = engine.jobs["job"]
    assert record.status is Status.DROPPED  # planned again at once, and then there is no server
    engine = run(
        cluster,
        [single_job],
        settings,
        incidents=[ServerLost(1, cluster.names[0]), ServerLost(2, cluster.names[1])],
    )
    assert engine.jobs["job"].status is Status.DROPPED
    blocker = make_job(cluster, "blocker", ps=None, arrival=0, epochs=2, utility=Constant(1e3))
    engine = run(
        cluster, [single_job, blocker], settings, incidents=[ServerLost(1, cluster.names[0])]
    )
    assert engine.jobs["job"].status is Status.FINISHED  # past its deadline, for nothing
    assert engine.jobs["job"].completion > 3


def test_job_without_remaining_capacity_is_abandoned_with_the_reason() -> None:
    cluster = make_cluster(1, 1, horizon=10)
    engine = run(
        cluster, [make_job(cluster, epochs=4)], {}, incidents=[ServerLost(2, cluster.names[0])]
    )
    record = engine.jobs["job"]
    assert record.status is Status.DROPPED
    refusal = refusal_of(engine)
    assert refusal.reason is RefusalReason.SERVER_LOST
    assert refusal.message.startswith("gpu-0 is unavailable, and the rest of the job does not fit")
    assert not engine.ledger.used.any()


def test_a_lost_server_is_used_again_once_it_is_back() -> None:
    cluster = make_cluster(1, 1, horizon=10)
    incidents: list[Incident] = [ServerLost(1, cluster.names[0]), ServerBack(4, cluster.names[0])]
    jobs = [make_job(cluster, "early", arrival=2), make_job(cluster, "late", arrival=4)]
    engine = run(cluster, jobs, {}, incidents=incidents)
    assert refusal_of(engine, "early").reason is RefusalReason.NO_ROOM
    assert engine.jobs["late"].status is Status.FINISHED


# ---------------------------------------------------------------------------- pools


def test_servers_for_both_are_split_in_halves_of_each_kind() -> None:
    cluster = make_cluster(1, 1, both=3)
    workers, servers = server_pools(cluster, halved=True)
    assert workers.tolist() == [True, False, True, True, False]
    assert servers.tolist() == [False, True, False, False, True]
    workers, servers = server_pools(cluster, halved=False)
    assert workers.sum() == 4
    assert servers.tolist() == [False, True, False, False, False]


def test_of_kinds_of_one_server_each_half_are_for_parameter_servers() -> None:
    """Without, all would be for workers, or all but one."""
    alone = [("big", {"gpu": 4, "cpu": 8}), ("small", {"cpu": 4}), ("more", {"gpu": 8, "cpu": 8}),
             ("most", {"gpu": 8, "cpu": 16}), ("least", {"gpu": 1, "cpu": 1})]  # fmt: skip

    def split(kinds: int) -> tuple[list[bool], list[bool]]:
        cluster = build_cluster(
            slot_seconds=Fraction(600),
            horizon=4,
            servers=[(name, Role.ANY, amounts) for name, amounts in alone[:kinds]],
            dimensions=DIMENSIONS,
        )
        workers, servers = server_pools(cluster, halved=True)
        return workers.tolist(), servers.tolist()

    assert split(2) == ([True, False], [False, True])
    assert split(3) == ([True, False, True], [False, True, False])
    # Of those with as many resources the later ones.
    assert split(4) == ([True, False, True, False], [False, True, False, True])
    assert split(5) == ([True, False, True, True, False], [False, True, False, False, True])
    # Beside servers for workers only, one for both is for parameter servers.
    workers, servers = server_pools(make_cluster(2, 0, both=1), halved=True)
    assert servers.tolist() == [False, False, True]
    assert workers.tolist() == [True, True, False]


def test_one_machine_for_both_carries_workers_only_so_parameter_servers_find_no_room() -> None:
    cluster = make_cluster(0, 0, both=1)
    engine = run(
        cluster, [make_job(cluster), make_job(cluster, "allreduce", ps=None, arrival=1)], {}
    )
    assert refusal_of(engine).reason is RefusalReason.NO_ROOM
    assert engine.jobs["allreduce"].status is Status.FINISHED


def test_split_pools_hold_for_whole_runs() -> None:
    for seed in sample(range(10)):
        rng = np.random.default_rng(seed)
        cluster = make_cluster(0, 0, both=4)
        jobs = [random_job(cluster, rng, f"job-{index}") for index in range(8)]
        engine = run(cluster, jobs, {"split": "half"})
        for record in engine.jobs.values():
            assert not (record.plan.ps[record.plan.servers < 2]).any()
            assert not (record.plan.workers[record.plan.servers >= 2]).any()
    assert any(record.status is Status.FINISHED for record in engine.jobs.values())


def all_reduce(cluster: Cluster, name: str, arrival: int = 0) -> Job:
    wide = {"chunks": 40, "worker_range": (8, 40)}
    return make_job(cluster, name, ps=None, arrival=arrival, utility=Constant(50.0), **wide)


def test_without_known_jobs_servers_are_halved_when_the_first_parameter_server_comes() -> None:
    cluster = make_cluster(0, 0, both=4, horizon=12)
    policy = oasis(cluster)
    engine = Engine(cluster, policy)
    engine.handle(JobsArrived(0, (all_reduce(cluster, "before"),)))
    plan = engine.jobs["before"].plan
    assert set(plan.servers.tolist()) == {0, 1, 2, 3}
    # A quote divides nothing.
    quoted = policy.quote(engine.view, make_job(cluster, "with-ps", utility=Constant(50.0)))
    assert quoted.answer is QuoteAnswer.ADMITTED
    assert len(policy._planner.boards[0].servers) == 4
    engine.handle(JobsArrived(0, (make_job(cluster, "with-ps", utility=Constant(50.0)),)))
    plan = engine.jobs["with-ps"].plan
    assert engine.jobs["with-ps"].completion is None
    assert quoted.completion == quoted.expected == plan.completion
    assert not plan.ps[plan.servers < 2].any()
    assert not plan.workers[plan.servers >= 2].any()
    engine.handle(JobsArrived(0, (all_reduce(cluster, "after"),)))
    assert set(engine.jobs["after"].plan.servers.tolist()) <= {0, 1}


def test_learnt_prices_of_halves_are_those_of_halves_from_the_beginning() -> None:
    cluster = make_cluster(0, 0, both=4, horizon=12)
    jobs = [all_reduce(cluster, f"a-{index}") for index in range(3)]
    jobs += [make_job(cluster, f"p-{index}", utility=Constant(4.0 + index)) for index in range(9)]
    messages = []
    for split in ("auto", "half"):
        policy = oasis(cluster, prices="online", split=split)
        for job in jobs:
            for _ in policy.decide(Engine(cluster, policy).view, JobsArrived(0, (job,))):
                pass
        messages.append(policy.parameters_in_force() | {"split": None})
    assert messages[0] == messages[1]


@pytest.mark.parametrize("lower", ["theory", "clearing"])
@pytest.mark.parametrize("unlike", ["gpu", "cpu", "no gpu"])
def test_unlike_servers_are_divided_and_prices_are_those_of_the_halves(
    unlike: str, lower: str
) -> None:
    """Prices learnt for all servers are in shares of the largest, which is now removed."""
    cluster = make_cluster(0, 0, both=2, horizon=12)
    capacity = cluster.capacity.copy()
    column = cluster.resources.index("gpu" if unlike == "no gpu" else unlike)
    capacity[1, column] *= 0 if unlike == "no gpu" else 3
    cluster = replace(cluster, capacity=capacity)
    jobs = [
        replace(all_reduce(cluster, f"a-{index}"), utility=Constant(2.0 + index))
        for index in range(3)
    ]
    jobs += [make_job(cluster, f"p-{index}", utility=Constant(4.0 + index)) for index in range(9)]
    policy = oasis(cluster, prices="online", split="auto", lower=lower)
    engine = Engine(cluster, policy)
    for one in jobs:
        engine.handle(JobsArrived(0, (one,)))
    halves = oasis(cluster, prices="online", split="half", lower=lower)
    admitted = [job for job in jobs if engine.jobs[job.name].status is Status.ADMITTED]
    for one in admitted:
        halves.learn(engine.view, one)
    for pool in ("worker", "ps"):
        actual, expected = (each.parameters_in_force()[pool] for each in (policy, halves))
        assert actual["ln_L"] == pytest.approx(expected["ln_L"], rel=1e-12)
        assert actual["ln_U"] == pytest.approx(expected["ln_U"], rel=1e-12)
    assert any(entry.ps is not None for entry in admitted)


def test_whole_chunks_are_planned_with_their_restarts() -> None:
    cluster = replace(make_cluster(1, 0, gpus=2), restart_first=True)
    single_job = make_job(cluster, ps=None, chunks=2, minibatches=10, restart_seconds=Fraction(300))
    record = run(cluster, [single_job], {"chunks": "literal"}).jobs[single_job.name]
    assert record.status is Status.FINISHED
    assert record.plans == 1  # nothing fell short


# ---------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prices": "given"}, "prices=given needs worker.L and worker.U.<resource>"),
        ({"worker": {"L": 1.0, "U": {"gpu": 2.0}}}, "only read with prices=given"),
        ({"prices": "given", "worker": {"L": 2.0, "U": {"gpu": 1.0}}}, "U of gpu is below L = 2"),
        ({"prices": "given", "worker": {"L": 0.0, "U": {"gpu": 1.0}}}, "greater than 0"),
        ({"prices": "given", "worker": {"L": 1.0, "U": {"gpu": math.inf}}}, "finite"),
        ({"prices": "given", "worker": {"L": 1.0, "U": {"tpu": 2.0}}}, "no server has it"),
        ({"prices": "given", "worker": {"L": 1.0, "U": {"gpu": 2.0}}}, "set ps.L and ps.U"),
        ({"price_scale": 0.0}, "greater than 0"),
        ({"chunks": "whole"}, "exact"),
        ({"split": "thirds"}, "half"),
        ({"price_scal": 1.0}, "price_scale"),
    ],
)
def test_invalid_parameter_is_refused_with_its_name_and_hint(
    settings: dict[str, Any], said: str
) -> None:
    cluster = make_cluster()
    with pytest.raises(InputError, match="oasis") as caught:
        make_policy(
            "oasis", PolicyContext(cluster, [make_job(cluster)] if "ps.L" in said else []), settings
        )
    assert said in str(caught.value)


def test_offline_prices_need_the_job_set() -> None:
    with pytest.raises(InputError, match="needs the whole job set") as caught:
        make_policy("oasis", PolicyContext(make_cluster()), {"prices": "offline"})
    assert "use online or given" in str(caught.value)


def test_given_prices_without_parameter_servers_need_no_ps() -> None:
    cluster = make_cluster()
    settings = {"prices": "given", "worker": FLAT["worker"]}
    engine = run(cluster, [make_job(cluster, ps=None)], settings)
    assert engine.jobs["job"].status is Status.FINISHED


def test_a_resource_without_an_upper_price_is_free_at_every_load() -> None:
    cluster = make_cluster(1, 0, horizon=6)
    settings = {"prices": "given", "worker": {"L": 1.0, "U": {"gpu": 1.0}}, "split": "none"}
    costs = []
    for jobs in ([], [make_job(cluster, "crowd", ps=None, worker_range=(2, 2), epochs=1)]):
        single_job = make_job(
            cluster, ps=None, utility=Constant(1e3), worker_range=(1, 1), epochs=1
        )
        policy = oasis(cluster, [*jobs, single_job], **settings)
        engine = Engine(cluster, policy)
        decided = list(engine.handle(JobsArrived(0, (*jobs, single_job))))
        decision = decided[-1].decision  # type: ignore[union-attr]
        assert isinstance(decision, Commit)
        costs.append(decision.cost)
    assert costs == [pytest.approx(4 * 0.25)] * 2


def test_prices_shown_are_those_of_the_whole_server_and_rise_with_use() -> None:
    cluster = make_cluster(2, 1)
    policy = oasis(cluster, **GIVEN)
    engine = Engine(cluster, policy)
    empty = policy.slot_prices(engine.view)
    column = cluster.column["gpu"]
    assert empty[0, column] == pytest.approx(0.5)  # L, for a share of 1
    assert empty[2, column] == 0.0  # a server for parameter servers has none
    single_job = make_job(cluster, utility=Constant(1e6), worker_range=(4, 4))
    engine.handle(JobsArrived(0, (single_job,)))
    busy = policy.slot_prices(engine.view)
    used = engine.ledger.used[0]
    for server in range(2):
        fraction = used[server, column] / cluster.capacity[server, column]
        assert busy[server, column] == pytest.approx(0.5 * 100**fraction)
    assert busy.max() > empty.max()


def test_effective_parameters_state_constants_as_logarithms() -> None:
    cluster = make_cluster()
    parameters = oasis(cluster, **GIVEN).parameters_in_force()
    assert parameters["worker"] == {
        "ln_L": pytest.approx(math.log(0.5)),
        "ln_U": {
            name: pytest.approx(math.log(value)) for name, value in GIVEN["worker"]["U"].items()
        },
    }
    nothing = oasis(cluster, []).parameters_in_force()
    assert nothing["worker"] == {"ln_L": None, "ln_U": {}}


def test_a_scale_moves_every_ratio_and_no_lower_price() -> None:
    cluster = make_cluster()
    jobs = [make_job(cluster, f"job-{index}", utility=Constant(5.0 + index)) for index in range(3)]
    at_one, at_ten, at_little = (
        oasis(cluster, jobs, price_scale=scale).parameters_in_force()["worker"]
        for scale in (1.0, 10.0, 1e-30)
    )
    assert at_one["ln_L"] == at_ten["ln_L"] == at_little["ln_L"]
    for name, upper in at_one["ln_U"].items():
        assert at_ten["ln_U"][name] == pytest.approx(upper + math.log(10))
        assert at_little["ln_U"][name] == at_one["ln_L"]  # U / L never falls below 1


def test_online_constants_end_at_the_offline_ones() -> None:
    rng = np.random.default_rng(3)
    cluster = make_cluster(2, 2, horizon=20)
    jobs = sorted(
        (random_job(cluster, rng, f"job-{index}") for index in range(10)),
        key=lambda one: one.arrival,
    )
    online = oasis(cluster, jobs, 20, preset="paper", prices="online")
    Simulation(cluster, jobs, online, until=20).run()
    offline = oasis(cluster, jobs, 20, preset="paper")
    for pool in ("worker", "ps"):
        assert online.parameters_in_force()[pool] == offline.parameters_in_force()[pool]


def test_learnt_price_applies_to_the_job_that_taught_it() -> None:
    cluster = make_cluster(1, 1, horizon=8)
    policy = oasis(cluster, prices="online")
    engine = Engine(cluster, policy)
    engine.handle(JobsArrived(0, (make_job(cluster, "first", utility=Constant(10.0)),)))
    first = policy.parameters_in_force()["worker"]
    engine.handle(SlotBegan(0))
    assert first["ln_U"]["gpu"] == pytest.approx(math.log(10.0 / 0.25))


def test_after_a_loss_jobs_replan_in_order_of_potential_loss() -> None:
    cluster = make_cluster(2, 1, horizon=10)
    shape = {"chunks": 8, "worker_range": (4, 8), "ps_amounts": None}
    patient = make_job(cluster, "patient", utility=Constant(1.0), **shape)
    urgent = make_job(cluster, "urgent", utility=Deadline(50.0, 4.0), **shape)
    engine = run(cluster, [patient, urgent], {}, incidents=[ServerLost(1, cluster.names[0])])
    # With one server left, the urgent job needs every slot from 1 to 4 to be in time.
    assert engine.jobs["urgent"].completion == 4
    assert engine.jobs["patient"].completion == 6


@pytest.mark.parametrize("decay", [30.0, 50.0, 100.0, 1e6])
def test_vanishing_utility_is_refused_with_plain_numbers(decay: float) -> None:
    cluster = make_cluster(horizon=40)
    # At a price of 1e6 or so, cost over utility overflows.
    dear = {
        part: {"L": 1e6, "U": dict.fromkeys(cluster.resources, 1e6)} for part in ("worker", "ps")
    }
    late = make_job(cluster, epochs=4, worker_range=(1, 1), utility=Sigmoid(100.0, decay, 1.0))
    assert late.min_slots_colocated > 13
    quote = Engine(cluster, make_policy("oasis", PolicyContext(cluster), FLAT | dear)).quote(
        late, explained=True
    )
    assert quote.answer is QuoteAnswer.REFUSED
    assert quote.refusal is not None
    assert quote.refusal.reason in {RefusalReason.PRICE, RefusalReason.NO_VALUE}


@pytest.mark.parametrize("short", ["worker", "ps"])
def test_job_without_counted_demand_is_not_refused_for_capacity(short: str) -> None:
    # No server declares bandwidth, so nothing limits it: the refusal names the other demand.
    servers = [
        {"name": "g", "role": "worker", "capacity": {"gpu": 1}},
        {"name": "n", "role": "ps", "capacity": {"cpu": 1}},
    ]
    shape = {"arrival": "0 slots", "chunks": 1, "minibatch_time": "10min"}
    shape |= {"utility": {"kind": "constant", "value": 5}}
    demands = {"worker": {"gpu": 1}, "ps": {"cpu": 1}}
    free = {"worker": {"bandwidth": "1Gbps"}, "ps": {"bandwidth": "1Gbps"}}
    jobs = [
        shape | demands | {"name": "long", "minibatches": 8},
        shape | free | {short: demands[short], "name": "next", "minibatches": 1},
    ]
    cluster_ = {"slot": "10min", "horizon": 8, "servers": servers}
    ran = simulate(cluster_, jobs, policy="oasis", parameters={"lower": "theory"})
    decisions = {decision["job"]: decision for decision in ran.run.decisions(False)}
    assert decisions["long"]["outcome"] == "admitted"
    assert decisions["next"]["reason"] == "no-room"
    assert decisions["next"]["refusal"]["bottleneck"].startswith(
        {"worker": "gpu", "ps": "cpu"}[short]
    )
