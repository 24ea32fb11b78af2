"""Shares of tenants under `rolling`: promises stay within them, and lent shares come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import JobCancelled, JobsArrived, Promise, SlotBegan, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling import policy as policy_module
from shadowprice.policies.rolling.planner import Planner
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Simulation
from tests.oracles.promises import completions
from tests.oracles.shares import overdrawn, starved
from tests.support.bag_cases import build_bag, exponential, place_cluster
from tests.support.examples import example_count
from tests.support.policy_runs import SlotObserver, random_world
from tests.support.workloads import DIMENSIONS, make_job, random_utility

SEEDS = st.integers(0, 2**32 - 1)


def shared(shares: Sequence[int], unowned: int, each: int = 1, horizon: int = 20) -> Cluster:
    """Return servers with a number of GPUs, divided among tenants a, b, ..."""
    places = sum(shares) + unowned
    rows = [(f"gpu-{index}", Role.WORKER, {"gpu": each * 1000}) for index in range(places // each)]
    tenants = [Tenant(chr(97 + index), {"gpu": own * 1000}) for index, own in enumerate(shares)]
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=horizon,
        servers=rows,
        dimensions=DIMENSIONS,
        tenants=tenants,
    )


def owned(
    cluster: Cluster, rng: np.random.Generator, name: str, tenant: str | None, latest: int
) -> Job:
    """Return a job of one GPU a worker; a worker's slot is a unit of progress."""
    return make_job(
        cluster,
        name,
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
        arrival=int(rng.integers(latest + 1)),
        epochs=int(rng.integers(1, 8)),
        worker_range=(1, int(rng.integers(1, 6))),
        utility=random_utility(rng),
        tenant=tenant,
    )


def drawn(seed: int, horizon: int = 20) -> tuple[Cluster, list[Job], dict[str, int], int]:
    """Return a shared cluster, jobs of all tenants, their shares and what nobody owns."""
    rng = np.random.default_rng(seed)
    shares = rng.integers(0, 4, int(rng.integers(1, 4))).tolist()
    shares[0] += 1
    unowned = int(rng.integers(0, 3))
    on = shared(shares, unowned, horizon=horizon)
    names = [tenant.name for tenant in on.tenants]
    jobs = [
        owned(on, rng, f"job-{index}", names[int(rng.integers(len(names)))], 8)
        for index in range(int(rng.integers(1, 16)))
    ]
    return on, jobs, dict(zip(names, shares, strict=True)), unowned


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(SEEDS, st.sampled_from([2, 4, 20]))
def test_a_tenant_is_owed_at_most_half_a_horizon_of_its_share(seed: int, horizon: int) -> None:
    on, jobs, share, unowned = drawn(seed, horizon)
    owed = dict.fromkeys(share, Fraction(0))
    watched = [-1]

    def watch(engine: Engine, slot: int) -> None:
        if slot > watched[-1] + 1:  # slots without open jobs are skipped
            owed.update(dict.fromkeys(share, Fraction(0)))
        watched.append(slot)
        still = dict(engine.open_jobs)
        owner = {name: record.job.tenant or "" for name, record in still.items()}
        running = {name: placed.total_workers for name, placed in engine.running.items()}
        most = {
            name: min(record.job.max_workers, record.remaining) for name, record in still.items()
        }
        for name in starved(share, running, owner, most):
            assert owed[owner[name]] <= Fraction(horizon, 2), slot
        for tenant, places in share.items():
            owed[tenant] = owed_by_counting(owed[tenant], tenant, places, running, owner, most)
            assert owed[tenant] <= Fraction(horizon, 2) + 1
        recorded = owed_by_policy(policy)
        assert recorded == pytest.approx([float(owed[tenant.name]) for tenant in on.tenants])
        for tenant, places in share.items():
            promised = [
                (record.promise, record.remaining)
                for name, record in still.items()
                if owner[name] == tenant and record.promise is not None
            ]
            assert overdrawn(places + unowned, slot, promised) is None

    policy = make_policy("rolling", PolicyContext(on), {})
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy).run([recorder, SlotObserver(watch)])
    done = completions(jobs, recorder.segments())
    for _, made in recorder.decisions:
        if isinstance(made, Promise):
            assert made.completion is not None
            assert done[made.job] <= made.completion


@pytest.mark.parametrize("resynced", [False, True])
def test_a_tenant_without_promises_gets_its_share_back(*, resynced: bool) -> None:
    """Restarts of nearly a slot: nothing is promised, and the other tenant's jobs are denser."""
    on = shared([2, 2], 0, horizon=8)

    def long(name: str, tenant: str, value: float) -> Job:
        return replace(
            make_job(
                on,
                name,
                worker_amounts={"gpu": 1000},
                ps_amounts=None,
                epochs=60,
                worker_range=(1, 4),
                utility=Constant(value),
                tenant=tenant,
            ),
            restart=Fraction(9, 10),
        )

    jobs = [long("poor", "a", 1.0), long("rich", "b", 1000.0)]
    ran: list[tuple[int, int]] = []

    def watch(engine: Engine, slot: int) -> None:
        if resynced and slot == 3:  # as after a change of servers
            policy.resume(engine.view)
        running = {name: placed.total_workers for name, placed in engine.running.items()}
        ran.append((running.get("poor", 0), running.get("rich", 0)))

    policy = make_policy("rolling", PolicyContext(on), {})
    Simulation(on, jobs, policy).run([SlotObserver(watch)])
    # Half a horizon is lent, and the slot after which more is owed.
    assert ran[:12] == [(0, 4)] * 5 + [(2, 2)] * 7


def owed_by_policy(policy: Policy) -> list[float]:
    """Return what `rolling` records that it owes to each tenant of a cluster."""
    assert isinstance(policy, RollingPolicy)
    return [float(slots) for slots in policy._state.owed[:-1]]


def gpu_job(
    cluster: Cluster, name: str, tenant: str, most: int, epochs: int = 60, **more: Any
) -> Job:
    """Return a job of ``4 * epochs`` worker-slots, and up to ``most`` workers of one GPU."""
    return make_job(
        cluster,
        name,
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
        epochs=epochs,
        worker_range=(1, most),
        tenant=tenant,
        **more,
    )


def unpromised(job: Job, value: float) -> Job:
    """Return a job whose restarts take nearly a slot, so that nothing is promised to it."""
    return replace(job, restart=Fraction(9, 10), utility=Constant(value))


def test_a_tenant_whose_jobs_lack_nothing_is_owed_nothing() -> None:
    """A job a slot with 4 worker-slots of work: more than 4 workers are of no use to it."""
    on = shared([8, 8], 0, horizon=8)
    engine = Engine(on, make_policy("rolling", PolicyContext(on), {}), saves_policy_state=False)
    for slot in range(12):
        name = f"job-{slot}"
        engine.handle(JobsArrived(slot, (gpu_job(on, name, "a", 8, epochs=1, arrival=slot),)))
        engine.handle(SlotBegan(slot))
        assert {at: held.total_workers for at, held in engine.running.items()} == {name: 4}
        assert owed_by_policy(engine.policy) == [0.0, 0.0]
        engine.handle(SlotEnded(slot, {name: 4}))


def test_a_job_that_is_faster_on_one_server_could_use_more_servers_too() -> None:
    """Servers of 2 GPUs: both levels on one server use a quarter of the share of 8, others all."""
    on = shared([8, 8], 0, each=2, horizon=20)
    poor = gpu_job(on, "poor", "a", 8)
    poor = unpromised(replace(poor, internal_gains=poor.gains * 2), 1.0)
    rich = unpromised(gpu_job(on, "rich", "b", 16), 1000.0)
    owed = []

    def watch(engine: Engine, slot: int) -> None:
        if slot < 6:
            held = {name: placed.total_workers for name, placed in engine.running.items()}
            assert held == {"rich": 16}
            owed.append(owed_by_policy(policy))

    policy = make_policy("rolling", PolicyContext(on), {})
    Simulation(on, [poor, rich], policy).run([SlotObserver(watch)])
    assert owed == [[slot + 1.0, 0.0] for slot in range(6)]


def test_bags_within_a_share_reduce_no_debt() -> None:
    """A job that requests one of 8 GPUs and doesn't get it, beside a bag of its tenant."""
    on = replace(place_cluster(4, 4), tenants=tuple(Tenant(name, {"gpu": 8000}) for name in "ab"))
    bag = build_bag(on, exponential(2, 8.0, 6.0), deadline=40.0)
    poor = unpromised(gpu_job(on, "poor", "a", 1, minibatches=1), 1.0)
    rich = unpromised(gpu_job(on, "rich", "b", 16, minibatches=1), 1000.0)
    owed = []

    def watch(engine: Engine, slot: int) -> None:
        if slot < 6:
            held = {name: placed.total_workers for name, placed in engine.running.items()}
            assert held == {"bag": 2, "rich": 14}
            owed.append(owed_by_policy(policy))

    policy = make_policy("rolling", PolicyContext(on), {})
    Simulation(
        on,
        [replace(bag, tenant="a"), poor, rich],
        policy,
        incidents=[JobCancelled(4, "poor")],
    ).run([SlotObserver(watch)])
    # Three GPUs of the eight are requested and two are used, until the job leaves.
    assert owed == [[each, 0.0] for each in (0.125, 0.25, 0.375, 0.5, 0.5, 0.5)]


@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_tenant_without_open_jobs_is_owed_nothing(*, is_skipped: bool) -> None:
    """Of one tenant while the other's job runs on, and of both in slots without any jobs."""
    on = shared([2, 2], 0, horizon=20)

    def long(tenant: str, value: float, arrival: int = 0) -> Job:
        return unpromised(gpu_job(on, f"{tenant}-{arrival}", tenant, 4, arrival=arrival), value)

    engine = Engine(on, make_policy("rolling", PolicyContext(on), {}), saves_policy_state=False)

    def run(slot: int) -> list[float]:
        engine.handle(SlotBegan(slot))
        owed = owed_by_policy(engine.policy)
        engine.handle(SlotEnded(slot, {}))
        return owed

    engine.handle(JobsArrived(0, (long("a", 1.0), long("b", 1000.0))))
    assert [run(slot) for slot in range(3)] == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    engine.handle(JobCancelled(3, "a-0"))
    assert run(3) == [0.0, 0.0]
    engine.handle(JobsArrived(4, (long("a", 1.0, 4),)))
    assert [run(slot) for slot in (4, 5)] == [[1.0, 0.0], [2.0, 0.0]]
    engine.handle(JobCancelled(6, "a-4"))
    engine.handle(JobCancelled(6, "b-0"))
    if not is_skipped:
        assert run(6) == [0.0, 0.0]
    engine.handle(JobsArrived(7, (long("a", 1.0, 7), long("b", 1000.0, 7))))
    assert run(7) == [1.0, 0.0]


def test_an_owed_tenant_comes_first_also_if_plans_are_not_carried_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault injection: promised jobs never fit as before once waiting ones are left out.

    Only the denser job is planned ahead, so the other one depends on spare capacity.
    """
    on = shared([2, 2], 0, horizon=8)
    poor = unpromised(gpu_job(on, "poor", "a", 4), 1.0)
    rich = unpromised(gpu_job(on, "rich", "b", 4), 1000.0)
    ran: list[tuple[int, int]] = []

    def watch(engine: Engine, slot: int) -> None:
        del slot
        running = {name: placed.total_workers for name, placed in engine.running.items()}
        ran.append((running.get("poor", 0), running.get("rich", 0)))

    monkeypatch.setattr(Planner, "carry_over", lambda *_: None)
    monkeypatch.setattr(policy_module, "_MAX_PLANNED_AHEAD", 1)
    policy = make_policy("rolling", PolicyContext(on), {})
    Simulation(on, [poor, rich], policy).run([SlotObserver(watch)])
    assert ran[:12] == [(0, 4)] * 5 + [(2, 2)] * 7


def owed_by_counting(
    before: Fraction,
    tenant: str,
    places: int,
    running: Mapping[str, int],
    owner: Mapping[str, str],
    most: Mapping[str, int],
) -> Fraction:
    """Return the slots of its share that a tenant's jobs could have used and did not get."""
    wanted = sum(most[name] for name, owns in owner.items() if owns == tenant)
    if not wanted or not places:
        return Fraction(0)
    used = sum(workers for name, workers in running.items() if owner[name] == tenant)
    return max(before + Fraction(min(places, wanted) - used, places), Fraction(0))


def answers(
    cluster: Cluster, before: Sequence[Job], last: Sequence[Job]
) -> dict[str, tuple[object, ...]]:
    """Return the outcomes of the jobs in the last slot, after the others have run until then."""
    policy = make_policy("rolling", PolicyContext(cluster), {})
    jobs = [*before, *last]
    recorder = Recorder(cluster, jobs, policy)
    Simulation(cluster, jobs, policy).run([recorder])
    first: dict[str, tuple[object, ...]] = {}
    for _, made in recorder.decisions:
        name = getattr(made, "job", None)
        if name is None or name in first or name not in {entry.name for entry in last}:
            continue
        promises = (
            (made.completion, made.utility, round(made.cost, 9))
            if isinstance(made, Promise)
            else ()
        )
        first[name] = (type(made).__name__, *promises)
    return first


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_a_tenants_first_jobs_get_the_promises_of_its_share_alone(seed: int) -> None:
    """Whatever was promised to others: promises are those of a cluster of the share alone."""
    rng = np.random.default_rng(seed)
    share, others = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    on, alone = shared([share, others], 0), shared([share], 0)
    flood = [owned(on, rng, f"flood-{index}", "b", 5) for index in range(int(rng.integers(1, 12)))]
    state = int(rng.integers(2**32))

    def mine(where: Cluster) -> list[Job]:
        same = np.random.default_rng(state)
        return [
            replace(owned(where, same, f"mine-{index}", "a", 0), arrival=6) for index in range(4)
        ]

    assert answers(on, flood, mine(on)) == answers(alone, [], mine(alone))


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_promises_hold_with_shares_of_several_resources(seed: int) -> None:
    cluster, jobs, _ = random_world(seed, incidents=False)
    rng = np.random.default_rng(seed)
    total = cluster.capacity.sum(axis=0)
    cut = rng.uniform(0, 1, 2)
    shares = [
        {name: int(part * total[cluster.column[name]]) for name in ("gpu", "cpu")}
        for part in (cut.min(), 1 - cut.max())
    ]
    cluster = replace(
        cluster, tenants=tuple(Tenant(f"t{index}", own) for index, own in enumerate(shares))
    )
    owners = [None, "t0", "t1"]
    jobs = [replace(job, tenant=owners[int(rng.integers(3))]) for job in jobs]
    policy = make_policy("rolling", PolicyContext(cluster), {})
    recorder = Recorder(cluster, jobs, policy)
    engine = Simulation(cluster, jobs, policy).run([recorder])
    done = completions(jobs, recorder.segments())
    promises = [made for _, made in recorder.decisions if isinstance(made, Promise)]
    for made in promises:
        assert made.completion is not None
        assert done[made.job] <= made.completion
    assert len({made.job for made in promises}) == len(promises)
    assert not engine.open_jobs


def test_unused_capacity_of_a_tenant_goes_to_the_others() -> None:
    on = shared([2, 2], 0)
    engine = Engine(on, make_policy("rolling", PolicyContext(on), {}), saves_policy_state=False)

    def greedy(tenant: str, arrival: int) -> Job:
        return make_job(
            on,
            f"of-{tenant}",
            worker_amounts={"gpu": 1000},
            ps_amounts=None,
            worker_range=(1, 4),
            tenant=tenant,
            arrival=arrival,
        )

    engine.handle(JobsArrived(0, (greedy("a", 0),)))
    engine.handle(SlotBegan(0))
    assert {name: held.total_workers for name, held in engine.running.items()} == {"of-a": 4}
    engine.handle(SlotEnded(0, {"of-a": 4}))
    engine.handle(JobsArrived(1, (greedy("b", 1),)))
    engine.handle(SlotBegan(1))
    standing = {name: held.total_workers for name, held in engine.running.items()}
    assert standing == {"of-a": 2, "of-b": 2}


def test_shares_that_add_up_to_more_than_there_is_are_refused() -> None:
    on = shared([2, 2], 0)
    tenants = (Tenant("a", {"gpu": 3000}), Tenant("b", {"gpu": 2000}))
    on = replace(on, tenants=tenants)
    with pytest.raises(InputError, match="shares of gpu add up to 5, and the servers hold 4"):
        make_policy("rolling", PolicyContext(on), {})
    make_policy("rolling", PolicyContext(on), {"quota": False})
