"""Bags under prices: the planner against brute force, its promises against simulation."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from shadowprice.core.amounts import Dimension
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import Constant, Sigmoid
from shadowprice.engine import Engine
from shadowprice.kernels.cloning.bags import cheapest_copies, copy_costs, reserve
from shadowprice.policies.bags import planner
from shadowprice.policies.bags.planner import (
    RESERVE_SHARE,
    BagPlanner,
    CopyPlan,
    ProportionalCosts,
    TabulatedCosts,
)
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.oracles.bags import places as places_by_definition
from tests.oracles.bags import plans
from tests.support.bag_cases import build_bag, exponential, pareto, place_cluster, random_bag_market
from tests.support.examples import sample

PRICES = {"prices": "given", "worker": {"L": 0.01, "U": {"gpu": 100.0}}}


def best(seed: int, factor: float | None = None, slot: int = 0) -> CopyPlan | None:
    bag, cost, worth = random_bag_market(seed)
    if factor is not None:
        cost = cost.copy()
        cost[slot] *= factor
    left = [group.count for group in bag.groups]
    return BagPlanner(bag, left, 0, TabulatedCosts(cost), worth, bag.miss_probability).best()


def simulated(
    cluster: Cluster, jobs: list[Job], seed: int = 0, incidents: list[Incident] | None = None
) -> Engine:
    policy = make_policy("oasis", PolicyContext(cluster, jobs), PRICES)
    return Simulation(cluster, jobs, policy, seed=seed, incidents=incidents or []).run()


# ---------------------------------------------------------------- kernels


def test_the_cost_of_copies_is_the_sum_over_slots() -> None:
    log_survival = np.log(np.array([[1.0, 0.5, 0.2], [1.0, 1.0, 0.3]]))
    price = np.array([2.0, 1.0, 7.0])
    table = copy_costs(log_survival, price, 4)
    for group, r in itertools.product(range(2), range(1, 5)):
        alive = np.exp(log_survival[group]) ** r
        assert table[group, r - 1] == pytest.approx(r * float(price @ alive))


@pytest.mark.parametrize("seed", sample(range(40)))
def test_the_cheapest_copies_are_near_the_best_ones_and_their_bound_is_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, most = int(rng.integers(1, 3)), 6
    count = rng.integers(1, 4, groups)
    decay = rng.uniform(0.3, 4.0, groups)
    cost = rng.uniform(0.5, 3.0, (groups, 1)) * np.cumsum(rng.uniform(-0.1, 1, (groups, most)), 1)
    cost = np.abs(cost) + 0.1
    epsilon, room = float(rng.uniform(0.02, 0.5)), int(rng.integers(count.sum(), 15))
    budget = -math.log1p(-epsilon)
    owner = np.repeat(np.arange(groups), count)

    def late(copies: tuple[int, ...]) -> float:
        misses = (math.exp(-decay[g] * r) for g, r in zip(owner, copies, strict=True))
        return sum(-math.log1p(-miss) for miss in misses)

    every = itertools.product(range(1, most + 1), repeat=len(owner))
    allowed = {
        copies: sum(cost[g, r - 1] for g, r in zip(owner, copies, strict=True))
        for copies in every
        if late(copies) <= budget
    }
    copies, change = np.empty(groups, np.int64), np.empty(4, np.int64)
    cheapest, bound = cheapest_copies(count, cost, decay, budget, room, copies, change)
    fitting = [paid for given, paid in allowed.items() if sum(given) <= room]
    if not fitting:
        assert not cheapest
        return
    assert bound <= min(allowed.values()) + 1e-9
    if not cheapest:
        return  # free capacity is low: the planner's last resort is the minimum number of copies
    given = [int(copies[g]) for g in owner]
    if change[0] >= 0:
        first = int(np.searchsorted(owner, change[0]))
        given[first : first + change[1]] = [int(change[2])] * int(change[1])
        given[first + change[1]] = int(change[3])
    assert late(tuple(given)) <= budget * (1 + 1e-9)
    assert sum(given) <= room
    paid = sum(cost[g, r - 1] for g, r in zip(owner, given, strict=True))
    # Rounding the one fractional step costs less than what one task can cost.
    assert paid <= min(fitting) + 2.0 * cost.max()


def test_the_reserve_is_the_quantile_of_its_definition() -> None:
    for seed in sample(range(60)):
        bag, _, worth = random_bag_market(seed)
        rng = np.random.default_rng(seed)
        tasks = [g for g, group in enumerate(bag.groups) for _ in range(group.count)]
        copies = rng.integers(1, 4, len(bag.groups))
        slots = len(worth)
        level = bag.miss_probability * RESERVE_SHARE / max(slots - 1, 1)
        planner = BagPlanner(
            bag,
            [group.count for group in bag.groups],
            0,
            TabulatedCosts(np.zeros((slots, 40))),
            worth,
            bag.miss_probability,
        )
        counts = np.array([group.count for group in bag.groups])
        need = reserve(counts, copies, planner._log_survival, level)
        wanted = places_by_definition(
            bag, tasks, [int(copies[g]) for g in tasks], slots, RESERVE_SHARE
        )
        assert need[need > 0].tolist() == wanted, seed


# ---------------------------------------------------------------- planner


def test_the_plan_is_the_best_of_all_starts_promises_and_copies() -> None:
    """Tiny bags, where a single task weighs most; the copies of larger ones are closer still."""
    compared = 0
    for seed in range(70):
        bag, cost, worth = random_bag_market(seed, most_tasks=2)
        plan = BagPlanner(
            bag,
            [group.count for group in bag.groups],
            0,
            TabulatedCosts(cost),
            worth,
            bag.miss_probability,
        ).best()
        most = min(7, cost.shape[1] - bag.tasks)
        every = [payoff for payoff, *_ in plans(bag, 0, cost, worth, RESERVE_SHARE, most)]
        assert (plan is None) == (not every), seed
        if plan is None:
            continue
        payoff = float(worth[plan.promise]) - plan.cost
        compared += 1
        # With so few tasks, every assignment of copies is tried.
        assert payoff == pytest.approx(max(every), rel=1e-9, abs=1e-9), seed
        assert plan.loss_at_most == 0.0
        compared += 1
    assert compared > 25


def test_the_loss_of_copies_that_are_not_proved_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the listing, against all starts, promises and copies of tiny bags."""
    monkeypatch.setattr(planner, "MAX_LISTED", 0)
    compared = lost = 0
    for seed in range(140):
        bag, cost, worth = random_bag_market(seed, most_tasks=2)
        left = [group.count for group in bag.groups]
        plan = BagPlanner(bag, left, 0, TabulatedCosts(cost), worth, bag.miss_probability).best()
        if plan is None:
            continue
        most = min(7, cost.shape[1] - bag.tasks)
        every = [payoff for payoff, *_ in plans(bag, 0, cost, worth, RESERVE_SHARE, most)]
        payoff = float(worth[plan.promise]) - plan.cost
        assert payoff + plan.loss_at_most >= max(every) - 1e-9 * max(1.0, abs(max(every))), seed
        compared += 1
        lost += payoff < max(every) - 1e-9 * max(1.0, abs(max(every)))
    assert compared > 50
    assert 0 < lost < compared / 10


def test_a_dearer_start_never_gets_more_copies() -> None:
    moved = fewer = 0
    for seed in range(600):
        plan = best(seed)
        if plan is None:
            continue
        factor = 10.0 ** np.random.default_rng(seed).uniform(0.1, 2.0)
        other = best(seed, factor, plan.start)
        assert other is not None
        assert other.start != plan.start or other.places[0] <= plan.places[0], seed
        moved += other.start != plan.start
        fewer += other.start == plan.start and other.places[0] < plan.places[0]
    assert moved > 40
    assert fewer > 2


def test_later_deadline_or_higher_miss_probability_never_lowers_the_payoff() -> None:
    def payoff(deadline: float, miss_probability: float, seed: int) -> float:
        rng = np.random.default_rng(seed)
        on = place_cluster()
        job = build_bag(
            on,
            pareto(30, rng.uniform(1.3, 3.0), 0.4),
            exponential(20, 0.9, 0.2),
            deadline=deadline,
            miss_probability=miss_probability,
        )
        assert job.bag is not None
        price = 10.0 ** rng.uniform(-1, 1, 8)[: math.ceil(deadline)]
        cost = np.outer(price, np.arange(201.0))
        plan = BagPlanner(
            job.bag,
            (30, 20),
            0,
            TabulatedCosts(cost),
            np.full(len(price), 1e4),
            miss_probability,
        ).best()
        return -math.inf if plan is None else 1e4 - plan.cost

    for seed in sample(range(12)):
        by_deadline = [payoff(deadline, 0.05, seed) for deadline in (2.0, 3.0, 5.0, 8.0)]
        assert by_deadline == sorted(by_deadline)
        by_promise = [payoff(5.0, epsilon, seed) for epsilon in (0.01, 0.03, 0.1, 0.3)]
        assert all(b >= a * (1 - 2e-3) for a, b in itertools.pairwise(by_promise)), seed


def test_proportional_costs_are_those_of_their_table() -> None:
    for seed in sample(range(40)):
        rng = np.random.default_rng(seed)
        price = float(rng.choice([0.0, rng.random(), np.inf]))
        fit_counts = rng.integers(0, 5, int(rng.integers(1, 7)))
        counts = np.arange(int(fit_counts.max()) + 1)
        with np.errstate(invalid="ignore"):  # nothing at an infinite price
            table = np.where(counts <= fit_counts[:, None], counts * price, np.inf)
        costs, tabulated = ProportionalCosts(price, fit_counts), TabulatedCosts(table)
        assert costs.limit == tabulated.limit
        assert costs.fit_counts.tolist() == np.maximum(tabulated.fit_counts, 0).tolist()
        same = [np.equal.outer(kind, kind).tolist() for kind in (costs.kind, tabulated.kind)]
        assert same[0] == same[1]
        slots, units = (indices[:, 1:] for indices in np.indices(table.shape))
        assert costs.cost(slots, units).tolist() == table[:, 1:].tolist()


@pytest.mark.parametrize(("name", "parameters"), [("rolling", {}), ("oasis", PRICES)])
def test_large_bags_take_no_table_of_slots_and_copies(
    name: str, parameters: dict[str, object]
) -> None:
    cluster = place_cluster(10, 20_000)
    peaks = []
    for tasks in (2, 10_000):  # the first imports everything
        job = build_bag(cluster, exponential(tasks, 0.5), deadline=16.0, miss_probability=0.1)
        policy = make_policy(name, PolicyContext(cluster, [job]), parameters)
        tracemalloc.start()
        engine = Simulation(cluster, [job], policy).run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert engine.jobs["bag"].status is Status.FINISHED
    assert peaks[-1] < 12 << 20  # 160,000 copies in each of 16 slots take 20 MiB


def test_copies_follow_the_price_of_the_slot_they_start_in() -> None:
    """An earlier end saves later slots: the more expensive the start, the fewer copies."""
    job = build_bag(place_cluster(), pareto(40, 1.5, 0.7), deadline=6.0, miss_probability=0.2)
    assert job.bag is not None
    started = []
    for price in (0.1, 1.0, 10.0):
        cost = np.outer([price, 1, 1, 1, 1, 1], np.arange(401.0))
        worth = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1e5])
        planner = BagPlanner(job.bag, (40,), 0, TabulatedCosts(cost), worth, 0.2)
        plan, _ = planner._plan(0, 5)
        assert plan is not None
        started.append(int(plan.places[0]))
    assert started == sorted(started, reverse=True)
    assert started[0] > started[-1]


# ---------------------------------------------------------------- promises, simulated


def test_promises_are_broken_as_rarely_as_promised() -> None:
    """Simulated bags against (3) for the copies chosen, and against the miss probability."""
    on = place_cluster(10, 8)
    kept = broken = 0
    predicted = 0.0
    for seed in range(24):
        jobs = [
            build_bag(
                on,
                pareto(6, 2.0, 0.5),
                exponential(4, 0.8, 0.2),
                name=f"bag-{index}",
                arrival=4 * index,
                deadline=3.0,
                miss_probability=0.2,
                utility=Sigmoid(100.0, 0.1, 50.0),
            )
            for index in range(25)
        ]
        engine = simulated(on, jobs, seed)
        for job in jobs:
            record = engine.jobs[job.name]
            assert job.bag is not None
            if record.refusal is not None:
                assert record.refusal.reason is RefusalReason.DEADLINE
            broken += record.plans > 1 or record.status is Status.DROPPED
            kept += record.plans == 1 and record.status is Status.FINISHED
        first = simulated(on, jobs[:1], seed).jobs["bag-0"]
        assert jobs[0].bag is not None
        if first.plans == 1:
            ends = first.plan.completion + 1 - first.plan.start
            predicted = _predicted(first.copies, float(min(ends, 3)))
    total = kept + broken
    rate, spread = broken / total, math.sqrt(0.2 * 0.8 / total)
    assert total == 600
    # (3) of the chosen copies, and at most the reserve's share of the miss probability beyond it.
    assert predicted - 3 * spread <= rate <= min(predicted + 0.02, 0.2) + 3 * spread


def _predicted(copies: tuple[TaskCopies, ...], slots: float) -> float:
    survival = [(0.5 / slots) ** 2, math.exp(-(slots - 0.2) / 0.6)]
    in_time = math.prod((1 - survival[g] ** r) ** tasks for g, tasks, r in copies)
    return 1.0 - in_time


def test_bag_durations_are_independent_of_other_jobs() -> None:
    on = place_cluster()
    alone = simulated(on, [build_bag(on)], seed=3).jobs["bag"]
    other = build_bag(on, pareto(3, 1.5, 0.4), name="other", arrival=9)
    together = simulated(on, [other, build_bag(on)], seed=3).jobs["bag"]
    assert alone.plan.rows() == together.plan.rows()
    assert alone.completion == together.completion
    completions = {simulated(on, [build_bag(on)], seed=s).jobs["bag"].completion for s in range(12)}
    assert len(completions) > 1


# ---------------------------------------------------------------- through the policy


def test_a_bag_beside_training_jobs() -> None:
    from tests.support.workloads import make_job

    on = place_cluster()
    trainers = [
        make_job(
            on,
            f"train-{index}",
            arrival=index,
            epochs=1,
            minibatches=5,
            worker_amounts={"gpu": 1000},
            ps_amounts=None,
            utility=Constant(200.0),
        )
        for index in range(4)
    ]
    jobs = [*trainers, build_bag(on, arrival=2)]
    engine = simulated(on, jobs)
    assert {record.status for record in engine.jobs.values()} == {Status.FINISHED}
    assert not engine.ledger.used.any()


@pytest.mark.parametrize("name", ["optimum", "srtf", "fifo", "drf"])
def test_policies_without_bags_refuse_them_and_schedule_the_rest(name: str) -> None:
    from tests.support.workloads import make_job

    on = place_cluster()
    small = {"epochs": 1, "minibatches": 5, "worker_amounts": {"gpu": 1000}, "ps_amounts": None}
    trainers = [make_job(on, f"train-{index}", **small) for index in range(2)]

    def completions(jobs: list[Job]) -> list[int | None]:
        policy = make_policy(name, PolicyContext(on, jobs, 20), {})
        engine = Simulation(on, jobs, policy, until=20).run()
        for job in jobs:
            if job.bag is not None:
                refusal = engine.jobs[job.name].refusal
                assert refusal is not None
                assert refusal.reason is RefusalReason.POLICY
        return [engine.jobs[trainer.name].completion for trainer in trainers]

    assert completions([build_bag(on), *trainers]) == completions(trainers)
    assert None not in completions(trainers)


def test_pdors_plans_bags_as_oasis_does_on_servers_that_carry_workers() -> None:
    """At the same prices; servers for parameter servers alone take no copies."""
    given = {"L": 0.01, "U": {"gpu": 100.0}}
    on = place_cluster()
    mixed = build_cluster(
        slot_seconds=on.slot_seconds,
        horizon=on.horizon,
        servers=[
            *((f"gpu-{index}", Role.WORKER, {"gpu": 4000}) for index in range(4)),
            *((f"net-{index}", Role.PS, {"gpu": 4000}) for index in range(2)),
        ],
        dimensions={"gpu": Dimension.COUNT},
    )
    runs: list[tuple[str, Cluster, dict[str, Any]]] = [
        ("oasis", on, {"worker": given}),
        ("pdors", on, given),
        ("pdors", mixed, given),
    ]
    finished = 0
    for seed in range(12):
        results = []
        for name, cluster, prices in runs:
            sizes = np.random.default_rng(seed).integers(1, 5, 3)
            jobs = [
                build_bag(cluster, pareto(int(size), 1.8, 0.6), name=f"bag-{index}", arrival=index,
                    deadline=5.0, miss_probability=0.1, utility=Constant(60.0))
                for index, size in enumerate(sizes)
            ]  # fmt: skip
            policy = make_policy(name, PolicyContext(cluster, jobs), {"prices": "given", **prices})
            engine = Simulation(cluster, jobs, policy, seed=seed).run()
            records = [engine.jobs[job.name] for job in jobs]
            results.append(
                [(record.status, record.completion, str(record.plan.workers)) for record in records]
            )
            finished += sum(record.status is Status.FINISHED for record in records)
        assert results[0] == results[1] == results[2], seed
    assert finished > 60


def test_infeasible_deadline_names_a_feasible_one() -> None:
    on = place_cluster(1, 4)
    tight = build_bag(on, pareto(4, 2.0, 0.9), deadline=1.5, miss_probability=0.01)
    refusal = simulated(on, [tight]).jobs["bag"].refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.DEADLINE
    assert "on 4 places" in refusal.message
    enough = float(refusal.numbers["smallest_deadline_s"]) / 60.0
    later = build_bag(on, pareto(4, 2.0, 0.9), deadline=enough * 1.001, miss_probability=0.01)
    assert simulated(on, [later]).jobs["bag"].plans >= 1
    sooner = build_bag(on, pareto(4, 2.0, 0.9), deadline=enough * 0.999, miss_probability=0.01)
    assert simulated(on, [sooner]).jobs["bag"].plans == 0


def test_bag_below_the_price_is_refused_with_the_price() -> None:
    on = place_cluster()
    refusal = simulated(on, [build_bag(on, utility=Constant(1e-6))]).jobs["bag"].refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.PRICE
    assert refusal.value == 1e-6
    assert refusal.cost is not None
    assert refusal.cost > refusal.value


def test_full_cluster_states_the_missing_capacity() -> None:
    on = place_cluster(2, 4)
    first = build_bag(on, pareto(8, 2.0, 0.9), name="first", deadline=7.0, miss_probability=0.5)
    second = build_bag(on, pareto(8, 2.0, 0.6), name="second", deadline=2.0, miss_probability=0.9)
    engine = simulated(on, [first, second])
    assert engine.jobs["first"].plans >= 1
    refusal = engine.jobs["second"].refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.NO_ROOM
    assert refusal.numbers["places_needed"] == 8
    room = "needs room for 8 copies in one slot, or more in later slots, plus room for copies"
    assert refusal.message.startswith(room)


def test_lost_server_replans_the_remaining_tasks_before_the_deadline() -> None:
    on = place_cluster()
    jobs = [build_bag(on, exponential(8, 1.5, 0.9), deadline=12.0)]
    lost: list[Incident] = [ServerLost(1, on.names[server]) for server in range(2)]
    record = simulated(on, jobs, incidents=lost).jobs["bag"]
    assert record.plans > 1
    assert record.status is Status.FINISHED
    assert record.completion is not None
    assert record.completion < 12


def test_bag_that_misses_its_deadline_is_abandoned() -> None:
    on = place_cluster()
    dropped = None
    for seed in sample(range(60)):
        bag = build_bag(on, pareto(6, 1.2, 0.6), deadline=1.7, miss_probability=0.5)
        record = simulated(on, [bag], seed).jobs["bag"]
        if record.status is Status.DROPPED:
            dropped = record
            break
    assert dropped is not None
    assert dropped.refusal is not None
    assert dropped.refusal.reason is RefusalReason.DEADLINE
    assert dropped.refusal.numbers["tasks_unfinished"] == 6 - dropped.progress
