"""The offline optimum against problem (1) as printed, against brute force, and as a policy."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import (
    CapacityChanged,
    JobRevised,
    ServerBack,
    ServerLost,
    ServerState,
)
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.time_limit import Clock, Deadline
from shadowprice.core.utility import Constant, Linear, Sigmoid, utility_value
from shadowprice.engine import Engine
from shadowprice.kernels.reactive.server_patterns import best_pattern
from shadowprice.policies.milp import IncrementalProgram, LinearProgram
from shadowprice.policies.offline.incumbent import EqualItems, pack
from shadowprice.policies.offline.model import add_totals, pools
from shadowprice.policies.offline.problem import full_problem
from shadowprice.policies.offline.solver import solve
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.oracles.offline import brute_optimum, plain_optimum
from tests.support.examples import example_count
from tests.support.policy_runs import run_policy
from tests.support.waiting import WAIT_LIMIT_SECONDS
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)


def small_world(seed: int, jobs: int, machines: int) -> tuple[Cluster, list[Job]]:
    rng = np.random.default_rng(seed)
    both = int(rng.integers(0, 2)) * machines
    cluster = make_cluster(
        int(rng.integers(1, machines + 1)),
        int(rng.integers(1, machines + 1)),
        both,
        gpus=int(rng.integers(1, 6)),
        horizon=6,
    )
    return cluster, [random_job(cluster, rng, f"job-{index}", latest=3) for index in range(jobs)]


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_agrees_with_the_problem_as_printed(seed: int) -> None:
    cluster, jobs = small_world(seed, 4, 2)
    until = 3 + seed % 5
    solution = solve(full_problem(cluster, jobs, until))
    plain = plain_optimum(cluster, jobs, until)
    assert solution.optimal
    assert plain.optimal
    assert solution.utility == pytest.approx(plain.objective, rel=1e-5, abs=1e-6)
    assert solution.bound >= plain.objective - 1e-6 * max(1.0, plain.objective)


def test_branching_agrees_with_the_problem_as_printed() -> None:
    """Jobs that compete for few servers."""
    nodes = []
    for seed in range(12):
        cluster, jobs = crowded_world(seed)
        solution = solve(full_problem(cluster, jobs, 6), time_limit=60.0, clock=Clock.PROCESSOR)
        plain = plain_optimum(cluster, jobs, 6)
        assert solution.optimal
        assert plain.optimal
        assert solution.utility == pytest.approx(plain.objective, rel=1e-5)
        assert solution.bound >= plain.objective * (1 - 1e-6)
        nodes.append(solution.nodes)
        rough = solve(full_problem(cluster, jobs, 6), gap=0.3)
        assert rough.optimal
        assert 0.7 * rough.bound - 1e-6 <= rough.utility <= plain.objective * (1 + 1e-6)
        assert rough.bound >= plain.objective * (1 - 1e-6)
    assert max(nodes) > 1


def crowded_world(seed: int, each: int = 2) -> tuple[Cluster, list[Job]]:
    """Return jobs whose parameter servers are fractions of a worker's, on unequal servers."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(each, each, gpus=4, horizon=6)
    capacity = cluster.capacity.copy()
    capacity[0] //= 2
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=int(rng.integers(0, 3)),
            chunks=int(rng.integers(2, 7)),
            minibatches=int(rng.integers(10, 40)),
            worker_amounts={
                "gpu": int(rng.integers(1, 3)) * 1000,
                "cpu": int(rng.integers(1, 5)) * 1000,
                "bandwidth": int(rng.integers(1, 5)) * 10**9,
            },
            ps_amounts={
                "cpu": int(rng.integers(2, 9)) * 1000,
                "bandwidth": int(rng.integers(5, 8)) * 10**9,
            },
            utility=Sigmoid(float(rng.integers(10, 100)), 1.0, float(rng.integers(1, 5))),
        )
        for index in range(5)
    ]
    return replace(cluster, capacity=capacity), jobs


@pytest.mark.parametrize("equal", [True, False])
def test_exchangeable_slots_and_tied_utilities_agree_with_the_problem_as_printed(
    equal: bool,
) -> None:
    """Six servers. Utilities hardly fall, so that many completion slots earn nearly the same."""
    nodes = []
    for seed in range(8):
        cluster, jobs = crowded_world(seed, each=3)
        if equal:
            capacity = cluster.capacity.copy()
            capacity[0] = capacity[1]
            cluster = replace(cluster, capacity=capacity)
        rng = np.random.default_rng(seed)
        flat = [
            replace(job, arrival=0, utility=Linear(float(rng.integers(10, 100)), -0.01))
            for job in jobs
        ]
        solution = solve(full_problem(cluster, flat, 6), time_limit=120.0, clock=Clock.PROCESSOR)
        plain = plain_optimum(cluster, flat, 6)
        assert solution.optimal
        assert plain.optimal
        assert solution.utility == pytest.approx(plain.objective, rel=3e-6)
        nodes.append(solution.nodes)
    assert max(nodes) > 1


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(SEEDS)
def test_rows_of_a_job_are_the_hull_of_its_numbers(seed: int) -> None:
    """Maximise random weights over the relaxed rows, and over all numbers that meet (6)."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 4, gpus=int(rng.integers(1, 9)), horizon=6)
    single_job = make_job(
        cluster,
        chunks=int(rng.integers(1, 13)),
        epochs=2,
        minibatches=10,
        worker_amounts={"gpu": 1000, "bandwidth": int(rng.integers(1, 30)) * 10**8},
        ps_amounts={"cpu": 1000, "bandwidth": int(rng.integers(30, 90)) * 10**8},
    )
    problem = full_problem(cluster, [single_job], 6)
    request = problem.requests[0]
    program = LinearProgram()
    totals = add_totals(program, problem, 0, request)
    assert request.linear
    assert totals is not None
    points = [(n, single_job.ps_needed(n)) for n in range(totals.maximum + 1)]
    ((n, _),), ((z, _),) = totals.workers, totals.ps
    for relaxed in (True, False):
        for price in rng.random(5) * single_job.ps_bandwidth / single_job.worker_bandwidth * 1.5:
            incremental = IncrementalProgram(program, Deadline.never(), relaxed=relaxed)
            incremental.set_costs([n, z], [1.0, -price])
            expected = max(count - price * ps for count, ps in points)
            assert incremental.solve().objective == pytest.approx(expected, abs=1e-6)
    for count, ps in points:
        # With one parameter server fewer, no number of workers that needs it is allowed.
        incremental = IncrementalProgram(program, Deadline.never())
        incremental.set_costs([n, z], [1.0, 0.0])
        incremental.limit_columns([z], [float(max(0, ps - 1))])
        allowed = max(k for k, needed in points if needed <= max(0, ps - 1))
        assert round(incremental.solve().objective) == allowed
        assert allowed < count or not count


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_inequalities_of_a_slot_are_those_of_its_packings(seed: int) -> None:
    """Compare the maximum sum of weights with that of every combination that can be packed."""
    rng = np.random.default_rng(seed)
    cluster, jobs = crowded_world(seed) if seed % 2 else small_world(seed, 3, 2)
    problem = full_problem(cluster, jobs[:3], 8)
    if not problem.slots:
        return
    slot = problem.slots - 1
    requests = problem.requests
    # More workers than the remaining work are useless.
    choices = [
        [0, *(n for n in r.job.worker_counts.tolist() if not r.linear or n <= r.required)]
        for r in requests
    ]
    packable = [
        np.array(counts)
        for counts in itertools.product(*choices)
        if pack(
            problem.free[slot],
            [
                group
                for index, count in enumerate(counts)
                if count
                for group in problem.items(index, count)
            ],
        )
        is not None
    ]
    for pool in pools(problem, slot):
        for _ in range(5):
            pool.separate(rng.random(len(pool.items)) * 6)
        for cut, counts in itertools.product(pool.cuts, packable):
            totals = [
                counts[item.owner]
                if item.is_worker
                else requests[item.owner].job.ps_needed(int(counts[item.owner]))
                for item in pool.items
            ]
            assert cut.weights @ np.array(totals) <= cut.limit


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_agrees_with_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, gpus=2, horizon=3)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=int(rng.integers(0, 2)),
            chunks=int(rng.integers(1, 3)),
            epochs=1,
            minibatches=int(rng.integers(5, 21)),
            worker_amounts={"gpu": int(rng.integers(1, 3)) * 1000},
            ps_amounts={"cpu": int(rng.integers(3, 9)) * 1000} if rng.random() < 0.6 else None,
            utility=Constant(float(rng.integers(1, 20)))
            if rng.random() < 0.3
            else random_job(cluster, rng, "other").utility,
        )
        for index in range(3)
    ]
    solution = solve(full_problem(cluster, jobs, 3))
    assert solution.optimal
    assert solution.utility == pytest.approx(brute_optimum(cluster, jobs, 3), rel=1e-6, abs=1e-6)


@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(SEEDS)
def test_the_best_pattern_is_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items, resources = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    demand = rng.integers(0, 6, (items, resources))
    capacity = rng.integers(0, 15, resources)
    limit = rng.integers(0, 5, items)
    weight = rng.integers(0, 20, items)
    pattern = np.zeros(items, dtype=np.int64)
    worth, bound = best_pattern(weight, demand, capacity, limit, 10**6, pattern)
    every = itertools.product(*(range(int(most) + 1) for most in limit))
    best = max(
        int(weight @ np.array(entry))
        for entry in every
        if (np.array(entry) @ demand <= capacity).all()
    )
    assert worth == bound == best == int(weight @ pattern)
    assert (pattern @ demand <= capacity).all()
    assert (pattern <= limit).all()
    _, guess = best_pattern(weight, demand, capacity, limit, 1, pattern)
    assert guess >= best


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(SEEDS)
def test_packing_is_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    servers = int(rng.integers(1, 4))
    free = rng.integers(0, 8, (servers, 2))
    ps, workers = rng.random(servers) < 0.6, np.array([True] * servers)
    items = [
        EqualItems(
            index,
            is_worker := bool(rng.random() < 0.6),
            int(rng.integers(1, 4)),
            rng.integers(1, 5, 2),
            workers if is_worker else ps,
        )
        for index in range(int(rng.integers(1, 4)))
    ]
    given_ = pack(free, items)
    singles = [item for item in items for _ in range(item.count)]

    def fits(at: int, left: np.ndarray) -> bool:
        if at == len(singles):
            return True
        item = singles[at]
        for server in np.flatnonzero(item.hosts).tolist():
            if (left[server] >= item.demand).all():
                after = left.copy()
                after[server] -= item.demand
                if fits(at + 1, after):
                    return True
        return False

    assert (given_ is not None) == fits(0, free)
    if given_ is not None:
        used = np.zeros_like(free)
        for item, counts in zip(items, given_, strict=True):
            assert counts.sum() == item.count
            assert not counts[~item.hosts].any()
            used += counts[:, None] * item.demand
        assert (used <= free).all()


def earned(engine: Engine) -> float:
    return sum(
        utility_value(record.job.utility, record.completion - record.job.arrival)
        for record in engine.jobs.values()
        if record.completion is not None
    )


@pytest.mark.parametrize("until", [6, 12, None])
@pytest.mark.parametrize("horizon", [2, 6])
@settings(deadline=None, derandomize=True, max_examples=example_count(10))
@given(seed=SEEDS)
def test_a_run_earns_what_was_planned_and_no_policy_earns_more(
    horizon: int, until: int | None, seed: int
) -> None:
    """Reactive policies run as long as it takes: no horizon limits what they earn."""
    cluster, jobs = small_world(seed, 4, 2)
    cluster = replace(cluster, horizon=horizon)
    policy: Any = make_policy("optimum", PolicyContext(cluster, jobs, until), {})
    best = earned(Simulation(cluster, jobs, policy, until=until).run())
    assert best == pytest.approx(policy.solution.utility, rel=1e-9, abs=1e-9)
    for other in ("fifo", "drf"):
        rival = make_policy(other, PolicyContext(cluster, jobs, until), {})
        assert (
            earned(Simulation(cluster, jobs, rival, until=until).run()) <= best * (1 + 1e-5) + 1e-6
        )


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_nothing_can_be_gained_after_the_slots_that_are_looked_at(seed: int) -> None:
    """The problem as printed, over more slots than it needs, has the same optimum."""
    cluster, jobs = small_world(seed, 3, 1)
    problem = full_problem(cluster, jobs, None)
    solution = solve(problem)
    assert solution.optimal
    plain = plain_optimum(cluster, jobs, problem.start + problem.slots + 4)
    assert plain.optimal
    assert solution.utility == pytest.approx(plain.objective, rel=1e-5, abs=1e-6)


def test_a_job_longer_than_the_horizon_is_planned_to_its_end() -> None:
    cluster = make_cluster(1, 0, gpus=1, horizon=3)
    jobs = [
        make_job(cluster, name, ps=None, arrival=index, epochs=8, chunks=1, minibatches=10)
        for index, name in enumerate(("one", "two"))
    ]
    for until, finished in ((None, 2), (40, 2), (15, 1)):
        policy = make_policy("optimum", PolicyContext(cluster, jobs, until), {})
        engine = Simulation(cluster, jobs, policy, until=until).run()
        ended = [
            record.completion for record in engine.jobs.values() if record.completion is not None
        ]
        assert len(ended) == finished
        # From slot 1 on, 16 slots of work: nothing is planned for later.
        assert max(ended) <= 16


@pytest.mark.parametrize(("until", "status"), [(1, Status.DROPPED), (2, Status.FINISHED)])
def test_plan_short_in_the_last_slot_is_abandoned_with_a_reason(until: int, status: Status) -> None:
    cluster = replace(make_cluster(1, 0, gpus=1), restart_first=True)
    single_job = make_job(
        cluster, ps=None, epochs=1, chunks=1, minibatches=10, restart_seconds=Fraction(300)
    )
    policy = make_policy("optimum", PolicyContext(cluster, [single_job], until), {})
    record = Simulation(cluster, [single_job], policy, until=until).run().jobs[single_job.name]
    assert record.status is status
    if status is Status.DROPPED:
        assert record.refusal is not None
        assert record.refusal.reason is RefusalReason.TOO_LATE


@settings(deadline=None, derandomize=True, max_examples=example_count(8))
@given(SEEDS)
def test_optimum_replans_after_lost_servers_and_cancelled_jobs(seed: int) -> None:
    engine = run_policy("optimum", seed, {}, until=14)
    assert not engine.open_jobs


def test_displaced_job_is_replanned_and_a_returned_server_is_used() -> None:
    cluster = make_cluster(2, 0, gpus=4)
    jobs = [
        make_job(cluster, "first", ps_amounts=None, chunks=4, epochs=4, minibatches=10),
        make_job(cluster, "later", arrival=6, ps_amounts=None, chunks=8, epochs=4, minibatches=10),
    ]
    policy = make_policy("optimum", PolicyContext(cluster, jobs, 10), {})
    incidents = [ServerLost(1, cluster.names[0]), ServerBack(5, cluster.names[0])]
    engine = Simulation(cluster, jobs, policy, until=10, incidents=incidents).run()
    assert {record.status for record in engine.jobs.values()} == {Status.FINISHED}


@settings(deadline=None, derandomize=True, max_examples=example_count(15))
@given(SEEDS)
def test_servers_that_change_before_anybody_arrives_are_as_if_they_had_always_been(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    before, after = (make_cluster(2, 1, gpus=int(rng.integers(2, 5)), horizon=6) for _ in range(2))
    jobs = [
        replace(each, arrival=each.arrival + 1)
        for each in (random_job(before, rng, f"job-{index}", latest=3) for index in range(4))
    ]
    states = {
        name: ServerState(role, dict(zip(after.resources, amounts.tolist(), strict=True)))
        for name, role, amounts in zip(after.names, after.roles, after.capacity, strict=True)
    }
    states["new"] = states[after.names[0]]
    policy = make_policy("optimum", PolicyContext(before, jobs, 7), {})
    changed = [CapacityChanged(0, states)]
    engine = Simulation(before, jobs, policy, until=7, incidents=changed).run()
    best = solve(full_problem(engine.cluster, jobs, 7))
    assert best.optimal
    assert earned(engine) == pytest.approx(best.utility, rel=1e-5, abs=1e-6)


def test_future_job_uses_a_new_server_and_yields_after_a_loss() -> None:
    cluster = make_cluster(1, 0, gpus=2)
    jobs = [
        make_job(cluster, name, arrival=2, ps_amounts=None, chunks=2, epochs=2, minibatches=10)
        for name in ("one", "two")
    ]
    state = ServerState(
        cluster.roles[0], dict(zip(cluster.resources, cluster.capacity[0].tolist(), strict=True))
    )
    finished = []
    added = CapacityChanged(1, {"new": state})
    removed = CapacityChanged(2, {cluster.names[0]: None})
    for happened in ([], [added], [added, removed]):
        policy = make_policy("optimum", PolicyContext(cluster, jobs, 4), {})
        engine = Simulation(cluster, jobs, policy, until=6, incidents=happened).run()
        finished.append(sum(record.status is Status.FINISHED for record in engine.jobs.values()))
    assert finished == [1, 2, 1]


def test_revised_job_is_replanned() -> None:
    cluster = make_cluster(1, 0, gpus=2)
    single_job = make_job(cluster, "one", ps_amounts=None, chunks=2, epochs=2, minibatches=10)
    policy = make_policy("optimum", PolicyContext(cluster, [single_job], 9), {})
    revised = replace(single_job, epochs=2 * single_job.epochs, required=2 * single_job.required)
    longer = Simulation(
        cluster, [single_job], policy, until=9, incidents=[JobRevised(1, revised)]
    ).run()
    plain = Simulation(
        cluster,
        [single_job],
        make_policy("optimum", PolicyContext(cluster, [single_job], 9), {}),
        until=9,
    ).run()
    assert longer.jobs["one"].status is Status.FINISHED
    assert longer.jobs["one"].completion > plain.jobs["one"].completion  # type: ignore[operator]


@pytest.mark.parametrize("clock", Clock)
def test_an_early_stop_is_reported_as_one(clock: Clock) -> None:
    rng = np.random.default_rng(5)
    cluster = make_cluster(5, 2, 2, gpus=3, horizon=10)
    jobs = [random_job(cluster, rng, f"job-{index}", latest=5) for index in range(30)]
    problem = full_problem(cluster, jobs, 10)
    stopped = solve(problem, time_limit=0.01, clock=clock)
    assert not stopped.optimal
    assert stopped.nodes == 0  # no program is built after the deadline
    assert stopped.utility <= stopped.bound
    assert stopped.gap > 0
    assert stopped.utility > 0


def test_a_limit_of_processor_time_ends_a_search() -> None:
    """A market split: four sums of 40 binaries that no solver hits within seconds."""
    rng = np.random.default_rng(0)
    program = LinearProgram()
    columns = [program.column(cost=1.0, upper=1) for _ in range(40)]
    for weights in rng.integers(0, 100, (4, 40)).tolist():
        half = sum(weights) // 2
        program.row(zip(columns, weights, strict=True), lower=half, upper=half)
    used = time.process_time()
    result = program.solve(time_limit=0.5, clock=Clock.PROCESSOR)
    assert time.process_time() - used >= 0.5
    assert not result.optimal
    assert result.bound >= result.objective


def test_a_row_that_is_added_later_may_name_a_column_twice() -> None:
    program = LinearProgram()
    x = program.column(cost=1.0, upper=5.0, integer=False)
    relaxation = IncrementalProgram(program, Deadline.never(), relaxed=True)
    assert relaxation.solve().objective == pytest.approx(5.0)
    relaxation.row([(x, 1.0), (x, 1.0)], 6.0)
    assert relaxation.solve().objective == pytest.approx(3.0)
    relaxation.limit_columns([x], [2.0])
    assert relaxation.solve().objective == pytest.approx(2.0)


def test_unsupported_inputs_are_refused() -> None:
    cluster = make_cluster(1, 1)
    single_job = make_job(cluster)
    with pytest.raises(InputError, match="needs to know all jobs"):
        make_policy("optimum", PolicyContext(cluster), {})
    with pytest.raises(InputError, match="too many to solve"):
        make_policy("optimum", PolicyContext(cluster, [single_job]), {"max_decisions": 1})
    two = make_job(cluster, "two", internal_bandwidth=10**11, speed=_speed())
    with pytest.raises(InputError, match="one rate"):
        make_policy("optimum", PolicyContext(cluster, [two]), {})
    nothing = make_policy("optimum", PolicyContext(cluster, []), {})
    assert "bound" not in nothing.parameters_in_force()
    late = make_job(cluster, "late", chunks=1, epochs=100)
    policy = make_policy("optimum", PolicyContext(cluster, [late], 50), {})
    engine = Simulation(cluster, [late], policy, until=50).run()
    refusal = engine.jobs["late"].refusal
    assert refusal is not None
    assert refusal.reason.value == "too-late"


def _speed() -> Any:
    from fractions import Fraction

    from shadowprice.core.job import StepModel

    return StepModel(Fraction(60), gradient_bytes=10**9)


def test_solves_where_progress_is_counted_in_millions() -> None:
    # Where restarts cost, progress counts in millionths of a mini-batch: rows of 10^10 beside 1.
    cluster = replace(make_cluster(0, 0, 3, gpus=8, horizon=60), slot_seconds=Fraction(1200))
    rng = random.Random(3)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=rng.randrange(40),
            epochs=rng.randint(1, 200),
            chunks=rng.randint(1, 10),
            minibatches=rng.randint(20, 300),
            speed=StepModel(Fraction(rng.randint(500, 4000), 1000)),
            worker_amounts={"gpu": 1000 * rng.choice((1, 1, 2))},
            ps=None,
            utility=Linear(float(rng.randint(1, 60)), -0.5),
            restart_seconds=Fraction(90),
        )
        for index in range(40)
    ]
    solution = solve(full_problem(cluster, jobs, 45), time_limit=2.0)
    assert 0 < solution.utility <= solution.bound


def test_solvers_print_nothing() -> None:
    """HiGHS prints its name and version once a process, unless every solver is silent."""
    program = (
        "from shadowprice.certificate.bound import Master; Master(1, 1)\n"
        "from shadowprice.policies.milp import LinearProgram\n"
        "program = LinearProgram()\n"
        "program.column(cost=1.0, upper=2.0, integer=True)\n"
        "assert program.solve().objective == 2.0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
