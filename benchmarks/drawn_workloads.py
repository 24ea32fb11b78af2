"""`rolling` beside other policies on random workloads: how often, and by how much, it is behind.

Three quarters of the workloads are generated, the others are windows of Philly's and Microsoft's
traces. Load, restart cost, slots, arrivals, servers, tenants and their shares are drawn. Policies
know only jobs that have arrived; all but `rolling` ignore shares. Each tenant owns the same share.

Run: ``python -m benchmarks.drawn_workloads [--seed N] [--count N] [--variants POLICY...]``. A
variant may have parameters, such as ``rolling?quota=false``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shadowprice.core.amounts import format_amount
from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec
from shadowprice.experiments.rolling.setting import ITP, PHILLY, PHILLY_VIRTUAL_CLUSTERS
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.arrivals import Pattern
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster

OTHERS: Final = (
    PolicyChoice("oasis", {"prices": "online"}),
    *map(PolicyChoice, ("rrh", "elasticflow", "srtf", "las", "drf", "backfill")),
)
_PRESETS: Final[tuple[Preset, ...]] = ("calibrated", "chunk")
_ARRIVALS: Final[tuple[Pattern, ...]] = ("uniform", "poisson", "bursty")
BEHIND: Final = 0.98
"""`rolling` counts as behind if it earns less than this share of the best other policy."""


def draw(seed: int, number: int) -> tuple[str, Scenario]:
    """Return a workload and its description."""
    rng = np.random.default_rng([seed, number])
    is_trace = rng.random() < 0.25
    restart = Fraction(int(rng.choice([0, 0, 10, 50])), 100)
    name, scenario = _trace_window(rng) if is_trace else _generated(rng, seed * 1000 + number)
    jobs = [replace(job, restart=restart) for job in scenario.jobs]
    return f"{name}, restarts {float(restart):.0%} of a slot", replace(scenario, jobs=jobs)


def _trace_window(rng: np.random.Generator) -> tuple[str, Scenario]:
    limit = int(rng.choice([80, 150, 250]))
    if rng.random() < 0.6:
        circle, day = rng.choice(PHILLY_VIRTUAL_CLUSTERS[2:]), int(rng.integers(100))
        name, trace = f"Philly {circle}", f"{PHILLY}?vc={circle}&from={day}d&limit={limit}"
    else:
        cluster, day = int(rng.integers(1, 7)), int(rng.integers(40))
        name, trace = f"ITP {cluster:02}", f"{ITP.format(f'{cluster}')}?from={day}d&limit={limit}"
    load, slot = float(rng.choice([0.5, 1, 1, 2, 4])), str(rng.choice(["20min", "20min", "5min"]))
    try:
        scenario = ScenarioSource(trace=trace, slot=slot, load=load).scenario(0)[0]
    except InputError:  # the trace ends before that day
        return _trace_window(rng)
    return f"{name} from day {day}, {limit} jobs, load {load:g}, slots of {slot}", scenario


def _generated(rng: np.random.Generator, seed: int) -> tuple[str, Scenario]:
    preset = _PRESETS[rng.integers(2)]
    options = GeneratorOptions(
        preset=preset,
        jobs=int(rng.choice([60, 100, 150])),
        slots=int(rng.choice([60, 100, 200])),
        slot_seconds=Fraction(3600 if preset == "chunk" else 1200),
        arrivals=_ARRIVALS[rng.integers(3)],
    )
    servers = int(rng.choice([5, 8, 10, 15]))
    document = paper_cluster(
        workers=servers,
        parameter_servers=servers,
        slot_seconds=options.slot_seconds,
        horizon=options.slots,
        seed=seed,
    )
    tenants = int(rng.choice([0, 0, 2, 3, 4]))
    if tenants:
        document["tenants"] = _tenants(document, tenants, float(rng.choice([0.8, 0.9])) / tenants)
    cluster = ClusterSpec.model_validate(document).resolve("drawn cluster")
    jobs = generate(options, seed=seed).to_jobs(cluster)
    if tenants:  # some bring several times as many jobs as others
        weight = rng.choice([1.0, 1.0, 4.0, 8.0], size=tenants)
        owners = rng.choice(tenants, size=len(jobs), p=weight / weight.sum())
        jobs = [
            replace(job, tenant=f"tenant-{owner}")
            for job, owner in zip(jobs, owners.tolist(), strict=True)
        ]
    name = (
        f"{preset}, {options.arrivals}, {options.jobs} jobs, {options.slots} slots, "
        f"{servers} servers of either kind, {tenants} tenants"
    )
    return name, Scenario(cluster, jobs, options.slots, 0)


def _tenants(document: dict[str, Any], count: int, part: float) -> list[dict[str, Any]]:
    cluster = ClusterSpec.model_validate(document).resolve("drawn cluster")
    share = {
        name: format_amount(int(column.sum() * part), kind).replace(",", "")
        for name, column, kind in zip(
            cluster.resources, cluster.capacity.T, cluster.dimensions, strict=True
        )
    }
    return [{"name": f"tenant-{number}", "share": share} for number in range(count)]


def measure(seed: int, number: int, policies: list[PolicyChoice]) -> tuple[str, list[Any]]:
    """Return a workload's description, and the share of its value and abandoned work by policy."""
    name, scenario = draw(seed, number)
    rows = []
    for policy in policies:
        summary: Any = run_policy(scenario, policy).info["summary"]
        share = summary["total_utility"] / max(1e-12, summary["value"])
        rows.append((share, summary["abandoned_work"] or 0.0))
    return name, rows


def main() -> None:
    """Print the median ratio to the best other policy, and the workloads where it is behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--variants", nargs="+", default=["rolling"])
    chosen = parser.parse_args()
    variants = [PolicyChoice.parse(text) for text in chosen.variants]
    policies = [*OTHERS, *variants]
    apart = multiprocessing.get_context("spawn")  # traces are read by threads, which a fork loses
    with ProcessPoolExecutor(os.cpu_count(), mp_context=apart) as pool:
        tasks = [
            pool.submit(measure, chosen.seed, number, policies) for number in range(chosen.count)
        ]
        results = [task.result() for task in tasks]
    best = [
        max((rows[column][0], policy.name) for column, policy in enumerate(OTHERS))
        for _, rows in results
    ]
    for column, text in enumerate(chosen.variants, len(OTHERS)):
        own = [rows[column] for _, rows in results]
        ratio = [share / max(top, 1e-12) for (share, _), (top, _) in zip(own, best, strict=True)]
        print(
            f"{text}: {len(own)} workloads, median "
            f"{statistics.median(ratio):.2f} of the best other policy, "
            f"{statistics.mean(share for share, _ in own):.1%} of the value on offer, "
            f"{statistics.mean(lost for _, lost in own):.1%} of worker-slots abandoned"
        )
        for value, (name, _), (_, policy) in sorted(zip(ratio, results, best, strict=True)):
            if value < BEHIND:
                print(f"  {value:.2f} of {policy}: {name}")


if __name__ == "__main__":
    main()
