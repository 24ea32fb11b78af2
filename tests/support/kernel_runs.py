"""Small runs that call every kernel, to compare compiled with interpreted code.

``NUMBA_DISABLE_JIT=1 python -m tests.support.kernel_runs`` runs them interpreted. It prints the
results, and which kernel files were executed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Results = dict[str, Any]

APART = frozenset({"dorm", "oasis", "optimum", "pdors", "rolling"})
"""Policies that have settings or workloads of their own below."""
PLACEMENTS = ("randomised", "exact", "greedy")


def results() -> Results:
    """Run everything; return decisions and integers, which don't depend on rounding."""
    parts = (_policies, _tenants, _bags, _cloning, _search, _priced, _rooms)
    return {name: found for part in parts for name, found in part()}


def _policies() -> Iterator[tuple[str, Any]]:
    from shadowprice.policies.registry import policies
    from tests.support.pdors_cases import random_pool, random_two_rate_job
    from tests.support.policy_runs import run_policy

    for name, info in policies().items():
        if name not in APART and not info.counts_places:
            yield name, [run_policy(name, seed, {}).state_digest() for seed in (1, 2)]
    yield "rolling", [run_policy("rolling", seed, {}, until=10).state_digest() for seed in (1, 2)]
    yield "rolling beside who stays", _staying()
    yield "dorm", run_policy("dorm", 3, {}, incidents=False).state_digest()
    for settings in ({}, {"prices": "online"}, {"chunks": "literal", "preset": "paper"}):
        runs = [run_policy("oasis", seed, settings, until=10).state_digest() for seed in (1, 4)]
        yield f"oasis {settings}", runs
    yield "optimum", run_policy("optimum", 5, {}, incidents=False, until=12).state_digest()
    jobs_of_two_rates = {
        "rolling of two rates": ("rolling", {}),
        **{f"pdors {placement}": ("pdors", {"placement": placement}) for placement in PLACEMENTS},
    }
    for said, (name, settings) in jobs_of_two_rates.items():
        runs = []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            on = random_pool(rng, horizon=6)
            jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=2) for index in range(5)]
            runs.append(_run(name, on, jobs, settings))
        yield said, runs


def _staying() -> list[str]:
    """Run jobs that lose a quarter of a slot by a restart, so that `rolling` pins running jobs."""
    from dataclasses import replace
    from fractions import Fraction

    from shadowprice.core.utility import Deadline
    from tests.support.policy_runs import random_world

    results = []
    for seed in (1, 2):
        cluster, jobs, _ = random_world(seed, incidents=False)
        lasting = [
            replace(job, restart=Fraction(1, 4), utility=Deadline(50.0, 12.0)) for job in jobs
        ]
        results.append(_run("rolling", cluster, lasting, {}))
    return results


def _tenants() -> Iterator[tuple[str, Any]]:
    from shadowprice.policies.registry import policies
    from tests.support.astraea_cases import (
        SETTINGS,
        example_cluster,
        example_jobs,
        random_jobs,
        shared_cluster,
    )

    on = example_cluster()
    yield "astraea example", _run("astraea", on, example_jobs(on), SETTINGS)
    share = {"worker": 4, "ps": 2}
    on = shared_cluster(4, {"u1": share, "u2": share})
    for name, info in policies().items():
        if info.counts_places:
            yield name, _run(name, on, random_jobs(on, 6, seed=3), {})


def _bags() -> Iterator[tuple[str, Any]]:
    from tests.support.bag_cases import build_bag, exponential, pareto, place_cluster

    on = place_cluster(2, 4)
    groups = pareto(4, 2.0, 0.5), exponential(2, 1.0)
    jobs = [build_bag(on, groups[index], name=f"bag-{index}", arrival=index) for index in range(2)]
    yield "bags", _run("oasis", on, jobs, {})


def _cloning() -> Iterator[tuple[str, Any]]:
    from shadowprice.cloning.api import (
        CloningProblem,
        DeadlineConstraint,
        LogNormal,
        Pareto,
        SolveMethod,
        TaskGroup,
        Weibull,
        simulate,
        solve,
    )
    from shadowprice.cloning.waves import WaveRule, WaveRuleKind, poisson_jobs, simulate_waves

    groups = [
        TaskGroup(3, Pareto.of_mean(2.0, 12.0)),
        TaskGroup(2, Weibull(0.7, 9.0, 1.0)),
        TaskGroup(1, LogNormal.of_mean(0.8, 8.0)),
    ]
    problem = CloningProblem(groups, 20, 60.0, 0.1)
    relaxed = CloningProblem(groups[:1], 20, 60.0, 0.1)
    for one, method, constraint in (
        (problem, SolveMethod.EXACT, DeadlineConstraint.EXACT),
        (relaxed, SolveMethod.SUBGRADIENT, DeadlineConstraint.RELAXED),
    ):
        solution = solve(one, method, constraint)
        yield f"cloning {method.value}", np.asarray(solution.copies).tolist()
    copies = np.full(6, 2)
    yield "cloning simulate", simulate(problem, copies, trials=50, seed=1).misses
    jobs = poisson_jobs(groups, machines=6, load=0.9, jobs=8, seed=2)
    for rule in WaveRuleKind:
        yield f"waves {rule.value}", simulate_waves(jobs, 6, WaveRule(rule)).copies.tolist()


def _search() -> Iterator[tuple[str, Any]]:
    from shadowprice.kernels.horizon.search import best_schedule
    from tests.oracles.knapsack import random_instance

    for seed in range(12):
        cost, gain, required, utility = random_instance(np.random.default_rng([2, seed]), 12, 5)
        result = best_schedule(cost, gain, required, utility)
        yield f"search {seed}", [result.completion, result.choice.tolist()]


def _priced() -> Iterator[tuple[str, Any]]:
    from shadowprice.certificate.relaxation import Relaxation
    from tests.support.workloads import make_cluster, random_job

    for seed in range(4):
        rng = np.random.default_rng([5, seed])
        cluster = make_cluster(2, 1, gpus=3, horizon=6)
        jobs = [random_job(cluster, rng, f"job-{index}", latest=2) for index in range(5)]
        relaxation = Relaxation(cluster, jobs, 8)
        priced = relaxation.price_all(np.arange(5), rng.uniform(0, 5, relaxation.shape))
        yield f"priced {seed}", (priced.use > 0).tolist()


def _rooms() -> Iterator[tuple[str, Any]]:
    from shadowprice.kernels.slots.rooms import choice_costs, choose_servers, subtract_entries

    for seed in range(6):
        rng = np.random.default_rng([4, seed])
        free = rng.integers(0, 9, (6, 5, 2))
        pools, (worker, ps) = (np.arange(3), np.arange(3, 5)), rng.integers(1, 4, (2, 2))
        workers, servers = np.array([1, 2, 4]), rng.integers(0, 3, 3)
        requested = (
            free,
            1,
            pools[0],
            worker,
            np.ones(5),
            pools[1],
            ps,
            np.ones(5),
            workers,
            servers,
        )
        cost = choice_costs(*requested)
        # The choice with the most workers that fits in each slot, -1 if none fits.
        choice = np.isfinite(cost).cumsum(axis=1).argmax(axis=1)
        choice[np.isinf(cost).all(axis=1)] = -1
        placed = free, 1, pools[0], worker, pools[1], ps, workers, servers, choice
        entries = choose_servers(*placed)
        taken = subtract_entries(free, entries, worker, ps, 1)
        yield f"rooms {seed}", [np.isfinite(cost).tolist(), entries.tolist(), taken, free.tolist()]


def _run(name: str, on: Any, jobs: Any, settings: Mapping[str, Any]) -> str:
    from shadowprice.core.policy import PolicyContext
    from shadowprice.policies.registry import make_policy
    from shadowprice.simulator.driver import Simulation

    policy = make_policy(name, PolicyContext(on, jobs, 16, 1), settings)
    return Simulation(on, jobs, policy, until=16).run().state_digest()


def _recorded(seen: set[str]) -> Callable[[Any], Any]:
    """Return a replacement of the compiler that records the file of every called kernel."""

    def kernel(function: Any) -> Any:
        @functools.wraps(function)
        def called(*arguments: Any) -> Any:
            seen.add(function.__code__.co_filename)
            return function(*arguments)

        return called

    return kernel


def main() -> None:
    """Run everything interpreted; print the results."""
    from shadowprice.kernels import jit

    seen: set[str] = set()
    jit.kernel = jit.inlined = jit.allocation_free = _recorded(seen)  # before any kernel is defined
    result = results()
    root = Path(jit.__file__).parent
    files = sorted(Path(name).relative_to(root).as_posix() for name in seen)
    print(json.dumps({"results": result, "files": files}))


if __name__ == "__main__":
    main()
