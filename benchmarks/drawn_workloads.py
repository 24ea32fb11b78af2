"""`rolling` compared with other policies on random workloads: where it is behind, and how far.

Three quarters of the workloads are generated; the others are windows of Philly's and Microsoft's
traces. Load, restart cost, slots, arrivals, servers, tenants and their shares are drawn. Policies
only know jobs that have arrived, and all but `rolling` ignore shares. Tenants own equal shares.

Run: ``python -m benchmarks.drawn_workloads [KIND] [--seed N] [--count N] [--variants POLICY...]``.
A variant may have parameters, such as ``rolling?quota=false``. The kinds:

values
    the workloads above: value earned, relative to the best other policy;
deadlines
    windows of traces with equal values and deadlines: jobs in time, relative to `elasticflow`;
shares
    generated workloads whose tenants own whole servers: utility of each tenant, relative to the
    same policy on the tenant's own servers alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import polars as pl

from shadowprice.core.amounts import Dimension, format_amount
from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Deadline
from shadowprice.experiments.rolling import (
    ITP,
    PHILLY,
    PHILLY_VIRTUAL_CLUSTERS,
    NamedWorkload,
)
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


def draw_deadlines(seed: int, number: int) -> tuple[str, Scenario]:
    """Return a window of a trace in which each job is worth 1 until its deadline.

    Deadlines are one to six times a job's minimum duration.
    """
    rng = np.random.default_rng([seed, number, 1])
    restart = Fraction(int(rng.choice([0, 0, 10, 50])), 100)
    name, scenario = _trace_window(rng)
    jobs = []
    for job in scenario.jobs:
        slots = job.min_slots_colocated * rng.uniform(1.0, 3.0) * int(rng.choice([1, 2]))
        deadline = Deadline(1.0, float(int(slots) + 1))
        jobs.append(replace(job, utility=deadline, restart=restart))
    return f"{name}, restarts {float(restart):.0%} of a slot", replace(scenario, jobs=jobs)


def draw_shares(seed: int, number: int) -> tuple[str, Scenario, list[tuple[Scenario, Scenario]]]:
    """Return a workload of tenants that own whole servers, and two workloads per tenant.

    These have the tenant's jobs only, on its own servers, and with one more server of either kind.
    """
    rng = np.random.default_rng([seed, number, 2])
    restart = Fraction(int(rng.choice([0, 0, 10, 50])), 100)
    options = _generator_options(rng)
    tenants, owned = int(rng.choice([2, 3, 4])), int(rng.choice([2, 3, 4]))
    count = tenants * owned + int(rng.choice([0, 1]))  # an extra server belongs to no tenant
    seed = seed * 1000 + number
    document = paper_cluster(
        workers=count,
        parameter_servers=count,
        slot_seconds=options.slot_seconds,
        horizon=options.slots,
        seed=seed,
    )
    cluster = ClusterSpec.model_validate(document).resolve("drawn cluster")
    roles = np.flatnonzero(cluster.hosts_workers), np.flatnonzero(cluster.hosts_ps)
    parts = [
        np.concatenate([role[owned * tenant : owned * (tenant + 1)] for role in roles]).tolist()
        for tenant in range(tenants)
    ]
    names = [f"tenant-{tenant}" for tenant in range(tenants)]
    shares = [
        {
            name: _amount(int(cluster.capacity[part, column].sum()), dimension)
            for column, (name, dimension) in enumerate(
                zip(cluster.resources, cluster.dimensions, strict=True)
            )
        }
        for part in parts
    ]
    document["tenants"] = [
        {"name": name, "share": share} for name, share in zip(names, shares, strict=True)
    ]
    weight = rng.choice([1.0, 1.0, 4.0, 8.0], size=tenants)
    jobs = generate(options, seed=seed).to_jobs(cluster)
    owners = rng.choice(tenants, size=len(jobs), p=weight / weight.sum()).tolist()
    jobs = [
        replace(job, tenant=names[owner], restart=restart)
        for job, owner in zip(jobs, owners, strict=True)
    ]
    alone = []
    for tenant, part in zip(names, parts, strict=True):
        others = [next(row for row in role.tolist() if row not in part) for role in roles]
        own_jobs = [job for job in jobs if job.tenant == tenant]
        clusters = [
            ClusterSpec.model_validate(
                document | {"tenants": [], "servers": [document["servers"][row] for row in rows]}
            ).resolve("drawn cluster")
            for rows in (part, sorted({*part, *others}))
        ]
        few, more = (Scenario(cluster, own_jobs, options.slots, 0) for cluster in clusters)
        alone.append((few, more))
    name = (
        f"{options.preset}, {options.arrivals}, {options.jobs} jobs, {options.slots} slots, "
        f"{tenants} tenants with {owned} servers of either kind, "
        f"restarts {float(restart):.0%} of a slot"
    )
    together = ClusterSpec.model_validate(document).resolve("drawn cluster")
    return name, Scenario(together, jobs, options.slots, 0), alone


def _generator_options(rng: np.random.Generator) -> GeneratorOptions:
    preset = _PRESETS[rng.integers(2)]
    return GeneratorOptions(
        preset=preset,
        jobs=int(rng.choice([60, 100, 150])),
        slots=int(rng.choice([60, 100, 200])),
        slot_seconds=Fraction(3600 if preset == "chunk" else 1200),
        arrivals=_ARRIVALS[rng.integers(3)],
    )


def _amount(value: int, dimension: Dimension) -> float | str:
    """Return the exact amount of a resource in the notation of cluster files."""
    if dimension is Dimension.COUNT:
        return value / 1000
    return f"{value}B" if dimension is Dimension.BYTES else f"{value}bps"


def _trace_window(rng: np.random.Generator) -> tuple[str, Scenario]:
    limit = int(rng.choice([80, 150, 250]))
    if rng.random() < 0.6:
        # Not the two smallest virtual clusters, which have too few jobs.
        vc, day = rng.choice(PHILLY_VIRTUAL_CLUSTERS[2:]), int(rng.integers(100))
        name, trace = f"Philly {vc}", f"{PHILLY}?vc={vc}&from={day}d&limit={limit}"
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
    options = _generator_options(rng)
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
    if tenants:  # some submit several times as many jobs as others
        weight = rng.choice([1.0, 1.0, 4.0, 8.0], size=tenants)
        owners = rng.choice(tenants, size=len(jobs), p=weight / weight.sum())
        jobs = [
            replace(job, tenant=f"tenant-{owner}")
            for job, owner in zip(jobs, owners.tolist(), strict=True)
        ]
    name = (
        f"{options.preset}, {options.arrivals}, {options.jobs} jobs, {options.slots} slots, "
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
    """Return a workload's description, and by policy the shares of value and of abandoned work."""
    name, scenario = draw(seed, number)
    rows = []
    for policy in policies:
        summary: Any = run_policy(scenario, policy).info["summary"]
        share = summary["total_utility"] / max(1e-12, summary["value"])
        rows.append((share, summary["abandoned_work"] or 0.0))
    return name, rows


def measure_deadlines(
    seed: int, number: int, policies: list[PolicyChoice]
) -> tuple[str, list[float]]:
    """Return a workload's description, and the number of jobs in time by policy."""
    name, scenario = draw_deadlines(seed, number)
    infos = [run_policy(scenario, policy).info for policy in policies]
    return name, [info["summary"]["total_utility"] for info in infos]


def measure_shares(
    seed: int, number: int, policies: list[PolicyChoice]
) -> tuple[str, list[list[tuple[float, ...]]]]:
    """Return a workload's description, and by policy what each tenant earns.

    That is its utility beside the other tenants, alone, and alone with two more servers.
    """
    name, scenario, alone = draw_shares(seed, number)
    rows = []
    for policy in policies:
        jobs = run_policy(scenario, policy).jobs
        earned = dict(jobs.group_by("tenant").agg(pl.col("utility").sum()).iter_rows())
        rows.append(
            [
                (
                    earned[own[0].jobs[0].tenant],
                    *(run_policy(each, policy).info["summary"]["total_utility"] for each in own),
                )
                for own in alone
                if own[0].jobs
            ]
        )
    return name, rows


def report_values(results: list[tuple[str, list[Any]]], variants: list[str]) -> None:
    """Print the median ratio to the best other policy, and the workloads with a low ratio."""
    best = [
        max((rows[column][0], policy.name) for column, policy in enumerate(OTHERS))
        for _, rows in results
    ]
    for column, text in enumerate(variants, len(OTHERS)):
        own = [rows[column] for _, rows in results]
        ratios = [share / max(top, 1e-12) for (share, _), (top, _) in zip(own, best, strict=True)]
        print(
            f"{text}: {len(own)} workloads, median "
            f"{statistics.median(ratios):.2f} of the best other policy, "
            f"{statistics.mean(share for share, _ in own):.1%} of the value on offer, "
            f"{statistics.mean(lost for _, lost in own):.1%} of worker-slots abandoned"
        )
        for ratio, (name, _), (_, policy) in sorted(zip(ratios, results, best, strict=True)):
            if ratio < BEHIND:
                print(f"  {ratio:.2f} of {policy}: {name}")


def report_deadlines(results: list[tuple[str, list[float]]], variants: list[str]) -> None:
    """Print the jobs in time, and the workloads on which `elasticflow` has more."""
    total = sum(rows[0] for _, rows in results)
    for column, text in enumerate(variants, 1):
        differences = sorted((rows[column] - rows[0], name) for name, rows in results)
        behind = [(number, name) for number, name in differences if number < 0]
        print(
            f"{text}: {len(results)} workloads, {sum(rows[column] for _, rows in results):.0f} "
            f"jobs in time, elasticflow {total:.0f}; fewer on {len(behind)} workloads, "
            f"by {-sum(number for number, _ in behind):.0f} jobs in total"
        )
        for number, name in behind:
            print(f"  {number:+.0f}: {name}")


def report_shares(
    results: list[tuple[str, list[list[tuple[float, ...]]]]], variants: list[str]
) -> None:
    """Print how many tenants earn less than on their own servers alone.

    For comparison, print how many earn less alone with two more servers: any difference changes
    decisions, and with them the utility of a few jobs.
    """
    for column, text in enumerate(variants):
        earned = [(row, name) for name, rows in results for row in rows[column]]
        tenants = [(together / max(alone, 1e-12), name) for (together, alone, _), name in earned]
        less_with_more = sum(more < BEHIND * alone for (_, alone, more), _ in earned)
        behind = sorted(row for row in tenants if row[0] < BEHIND)
        print(
            f"{text}: {len(results)} workloads, {len(tenants)} tenants, median "
            f"{statistics.median(ratio for ratio, _ in tenants):.2f} of what each earns alone; "
            f"{len(behind)} earn less than {BEHIND:.0%} of it; "
            f"alone with one more server of either kind, {less_with_more} do"
        )
        for ratio, name in behind:
            print(f"  {ratio:.2f}: {name}")


KINDS: Final[
    dict[str, tuple[tuple[PolicyChoice, ...], Callable[..., Any], Callable[..., None]]]
] = {
    "values": (OTHERS, measure, report_values),
    "deadlines": ((PolicyChoice("elasticflow"),), measure_deadlines, report_deadlines),
    "shares": ((), measure_shares, report_shares),
}
"""For each kind, the other policies, the measurement of a workload, and the report."""


def main() -> None:
    """Measure drawn workloads of a kind, and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, default="values")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--variants", nargs="+", default=["rolling"])
    chosen = parser.parse_args()
    if chosen.kind != "shares" and not NamedWorkload("Philly", PHILLY).at_hand:
        sys.exit("Philly's trace is missing: set SHADOWPRICE_TRACES to the folder of the traces")
    others, run, report = KINDS[chosen.kind]
    policies = [*others, *map(PolicyChoice.parse, chosen.variants)]
    spawn = multiprocessing.get_context("spawn")  # a fork has none of the threads that read traces
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        tasks = [pool.submit(run, chosen.seed, number, policies) for number in range(chosen.count)]
        report([task.result() for task in tasks], chosen.variants)


if __name__ == "__main__":
    main()
