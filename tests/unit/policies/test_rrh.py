"""RRH: the threshold of admission, the ranking, and fixed numbers of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import (
    Constant,
    Deadline,
    Linear,
    Power,
    Utility,
    utility_value,
)
from shadowprice.engine import Engine
from shadowprice.kernels.reactive.risk_reward import Candidates, appraise
from shadowprice.kernels.reactive.worth import TABULATED, Worths, worth
from shadowprice.policies.reactive.worths import UtilityTable
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.examples import example_count
from tests.support.policy_runs import SlotObserver, run_policy
from tests.support.workloads import make_cluster, make_job, random_utility

SEEDS = st.integers(0, 2**32 - 1)


def build_table(utilities: list[Utility]) -> Worths:
    table = UtilityTable()
    for row, utility in enumerate(utilities):
        table.enter(row, utility)
    return table.columns


def test_kernel_supports_every_utility_family() -> None:
    rng = np.random.default_rng(0)
    some = [random_utility(rng) for _ in range(40)] + [Linear(9.0, -0.4), Power(20.0, 1.5)]
    columns = build_table(some)
    assert set(columns.family.tolist()) == set(range(TABULATED))
    assert not columns.knots.size
    for row, one in enumerate(some):
        for duration in (0, 1, 2, 7.5, 40):
            got = worth(columns, row, float(duration))
            assert got == pytest.approx(utility_value(one, duration), rel=1e-12, abs=1e-300)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_the_ranking_is_the_sum_that_it_represents(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 12))
    utilities = [random_utility(rng) for _ in range(jobs)]
    arrival, left = rng.integers(0, 5, jobs), rng.integers(1, 9, jobs)
    share = rng.uniform(0.05, 1.0, jobs)
    alpha, discount = float(rng.uniform()), float(rng.uniform(0, 0.2))
    table = Candidates(build_table(utilities), arrival, left, share)
    reward = appraise(6, np.arange(jobs), table, alpha, discount).reward

    def yield_(at: int, later: int) -> float:
        return utility_value(utilities[at], int(6 + left[at] - 1 - arrival[at]) + later)

    for index in range(jobs):
        takes = share[index] * left[index]
        cost = 0.0
        for other in range(jobs):
            decay = yield_(other, 0) - yield_(other, 1)
            if other != index and decay > 0:
                cost += decay * min(takes, yield_(other, 0) / decay)
        present = yield_(index, 0) / (1 + discount * left[index])
        wanted = (alpha * present - (1 - alpha) * cost) / takes
        assert reward[index] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def one_gpu_job(cluster: Cluster, name: str, slots: int, **changes: Any) -> Job:
    """Return a job that needs one worker with a whole server's GPUs for some slots."""
    return make_job(
        cluster,
        name,
        chunks=1,
        epochs=slots,
        minibatches=10,
        worker_amounts={"gpu": 4000},
        ps_amounts=None,
        **changes,
    )


def outcome(threshold: float, newcomer: float, **more: Any) -> Any:
    """Admit a job beside one that loses 3 a slot; both fill the only server, for 2 and 4 slots."""
    cluster = make_cluster(1, 0)
    jobs = [
        one_gpu_job(cluster, "fading", 4, utility=Linear(60.0, -3.0)),
        one_gpu_job(cluster, "new", 2, utility=Constant(newcomer)),
    ]
    settings_ = {"threshold": threshold, "discount": 0.0, "workers": "min", **more}
    policy = make_policy("rrh", PolicyContext(cluster), settings_)
    return Simulation(cluster, jobs, policy).run()


def test_the_threshold_is_value_less_the_cost_of_delay() -> None:
    # Ranked first (by gain alone), "new" delays "fading" by two slots: a cost of 6.
    assert outcome(20.0, 50.0, alpha=1.0).jobs["new"].status is Status.FINISHED
    for threshold, status in ((43.9, Status.FINISHED), (44.0, Status.REFUSED)):
        engine = outcome(threshold, 50.0, alpha=1.0)
        assert engine.jobs["new"].status is status
    refusal = engine.jobs["new"].refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.POLICY
    assert refusal.value == pytest.approx(50.0)
    assert refusal.cost == pytest.approx(6.0)
    assert refusal.completion == 1
    # Ranked last, by the cost it imposes, it delays no other job, and completes after both are
    # done.
    engine = outcome(9.0, 9.5, alpha=0.0)
    assert engine.jobs["new"].status is Status.FINISHED
    assert engine.jobs["new"].completion == 5


def test_job_without_utility_at_completion_is_refused() -> None:
    cluster = make_cluster(1, 0)
    late = one_gpu_job(cluster, "late", 4, utility=Deadline(50.0, 2.0))
    engine = Simulation(cluster, [late], make_policy("rrh", PolicyContext(cluster), {})).run()
    refusal = engine.jobs["late"].refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.NO_VALUE


def test_more_rewarding_job_preempts_the_other() -> None:
    cluster = make_cluster(1, 0)
    jobs = [
        one_gpu_job(cluster, "cheap", 6, utility=Constant(5.0)),
        one_gpu_job(cluster, "dear", 2, arrival=2, utility=Constant(90.0)),
    ]
    policy = make_policy("rrh", PolicyContext(cluster), {})
    ran: list[list[str]] = []

    def watch(engine: Engine, slot: int) -> None:
        ran.append(list(engine.running))

    Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
    assert ran == [["cheap"]] * 2 + [["dear"]] * 2 + [["cheap"]] * 4


@settings(deadline=None, derandomize=True, max_examples=example_count(50))
@given(SEEDS, st.sampled_from(["drawn", "max", "min", 2]))
def test_a_job_waits_only_for_room_beside_more_rewarding_ones(seed: int, workers: Any) -> None:
    widths: dict[str, int] = {}
    before: set[str] = set()

    def rewards(engine: Engine, slot: int) -> dict[str, float]:
        on = engine.cluster
        up = [index for index in range(on.servers) if index not in engine.lost]
        total = on.capacity[up].astype(float).sum(axis=0)
        names = list(engine.open_jobs)
        found: dict[str, tuple[float, float, float, float]] = {}
        for name in names:
            record, count = engine.open_jobs[name], widths[name]
            used = count * record.job.worker.astype(float)
            if record.job.ps is not None:
                used = used + record.job.ps_needed(count) * record.job.ps
            share = float(np.divide(used, total, out=np.zeros_like(used), where=total > 0).max())
            left = max(1, -(-record.remaining // record.job.gain(count)))
            duration = slot + left - 1 - record.job.arrival
            gain = utility_value(record.job.utility, duration)
            found[name] = (
                gain,
                gain - utility_value(record.job.utility, duration + 1),
                share,
                left,
            )
        result = {}
        for name in names:
            gain, _, share, left = found[name]
            cost = sum(
                min(decay * share * left, its)
                for its, decay, _, _ in (found[other] for other in names if other != name)
            )
            result[name] = (0.5 * gain / (1 + 0.01 * left) - 0.5 * cost) / max(share * left, 1e-12)
        return result

    def watch(engine: Engine, slot: int) -> None:
        for name, placement in engine.running.items():
            assert widths.setdefault(name, placement.total_workers) == placement.total_workers
        names = set(engine.open_jobs)
        settled = names == before
        before.clear()
        before.update(names)
        if settled or engine.lost or not names <= widths.keys():
            return  # ranked in an earlier slot, or the fixed number of a job is not seen yet
        reward = rewards(engine, slot)
        on = engine.cluster
        for name in names - engine.running.keys():
            free = on.capacity.copy()
            for other, placement in engine.running.items():
                if reward[other] > reward[name] - 1e-9:
                    its = engine.jobs[other].job
                    for server, count, ps in zip(
                        placement.servers, placement.workers, placement.ps, strict=True
                    ):
                        free[server] -= count * its.worker
                        if its.ps is not None:
                            free[server] -= ps * its.ps
            one, count = engine.jobs[name].job, widths[name]
            room = places(free, one.worker, on.hosts_workers) >= count
            if one.ps is not None:
                room &= places(free, one.ps, on.hosts_ps) >= one.ps_needed(count)
            assert not room

    engine = run_policy("rrh", seed, {"workers": workers}, watch, both=False)
    assert not engine.open_jobs


def places(free: np.ndarray, demand: np.ndarray, hosts: np.ndarray) -> int:
    demanded = demand > 0
    return int((free[hosts][:, demanded] // demand[demanded]).min(axis=1, initial=10**6).sum())


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_every_admitted_job_ends_on_machines_that_carry_both(seed: int) -> None:
    engine = run_policy("rrh", seed, {})
    assert not engine.open_jobs
    assert all(record.status is not Status.DROPPED for record in engine.jobs.values())
