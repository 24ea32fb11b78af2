"""Figs. 5 and 6: revenue divided by that of an offline optimum, or by an upper bound of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import sparse
from scipy.optimize import linprog

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import Linear, utility_value
from shadowprice.experiments.astraea.setting import (
    FOUND,
    POLICIES,
    STATED,
    TINY,
    Preset,
    draw_bars_by_jobs,
)
from shadowprice.experiments.figures import draw_curves
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables, grid
from shadowprice.policies.astraea.optimum import GangBatch, OptimumResult
from shadowprice.policies.tenants.tenancy import (
    GangJob,
    TenantShares,
    UnitClaim,
    gang_job,
    min_gang_slots,
    read_tenant_shares,
)

TIMESPAN: Final = 48  # slots of the offline schedule
TIME_LIMIT: Final = 20.0
"""Maximum seconds for one offline optimum; its upper bound replaces an unproved optimum."""


SMALL: Final = Preset("small jobs", "", TINY)
CASES: Final[Mapping[str, tuple[Preset, bool]]] = {
    "linear": (SMALL, False),
    "convex": (SMALL, True),
    "found": (FOUND, False),
    "stated": (STATED, False),
}
"""Settings, and whether utilities are convex. Only small jobs are compared with the offline
optimum, because those of the other settings take half a day or more on a server. They are compared
with `linear_bound`.
"""

TITLES: Final = {
    "linear": "linear utilities, small jobs",
    "convex": "convex utilities, small jobs",
    "found": "linear utilities, setting found",
    "stated": "linear utilities, as stated",
}


def _gangs(cluster: Cluster, jobs: Sequence[Job]) -> tuple[TenantShares, list[GangJob]]:
    """Return the shares in a cluster with one type of workers and of PS, and the jobs as gangs."""
    tenancy = read_tenant_shares(cluster)
    gangs = []
    for job in jobs:
        claim = tenancy.claim_of(job)
        assert isinstance(claim, UnitClaim)
        gangs.append(gang_job(job, claim, int(tenancy.units[1].max())))
    return tenancy, gangs


def linear_bound(cluster: Cluster, jobs: Sequence[Job]) -> float:
    """Return an upper bound of the offline optimum for linear utilities, by a linear program.

    A gang that runs d consecutive slots completes (d - 1) / 2 slots after their mean. So its
    utility is linear in the mean of its slots. The program relaxes the problem: all workers are one
    machine, and a job's minimum worker-slots may lie in any slots and fractions. d is the minimum
    over worker counts. (Mean busy times: Goemans, Queyranne, Schulz, Skutella and Wang, *Single
    machine scheduling with release dates*, SIAM J. Discrete Math. 15, 2002.)
    """
    tenancy, gangs = _gangs(cluster, jobs)
    workers, ps = tenancy.units
    capacity = int(workers.sum())
    first = min(job.arrival for job in jobs)
    minimum_work, shortest = [], []
    for gang in gangs:
        slots = min_gang_slots(gang, workers, ps)
        possible = slots < UNLIMITED
        minimum_work.append(int((gang.counts[possible] * slots[possible]).min()))
        shortest.append(int(slots[possible].min()))
    # By then all jobs would be complete, even if the machine only started with the last arrival.
    last = (
        max(job.arrival for job in jobs) - first + max(shortest) + sum(minimum_work) // capacity + 1
    )
    values: list[float] = []
    rows: list[int] = []
    slots_of_columns: list[int] = []
    for index, job in enumerate(jobs):
        assert isinstance(job.utility, Linear)
        for slot in range(job.arrival - first, last):
            duration = slot - (job.arrival - first) + (shortest[index] - 1) / 2
            value = job.utility.value + job.utility.slope * duration
            if value > 0:
                values.append(value / minimum_work[index])
                rows.append(index)
                slots_of_columns.append(slot)
    columns = np.arange(len(values))
    per_job = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(jobs), len(rows)))
    per_slot = sparse.coo_array(
        (np.ones(len(rows)), (slots_of_columns, columns)), shape=(last, len(rows))
    )
    result = linprog(
        -np.array(values),
        A_ub=sparse.vstack([per_job, per_slot]).tocsr(),
        b_ub=[*minimum_work, *[capacity] * last],
        method="highs",
    )
    assert result.success
    return float(-result.fun)


def offline(
    cluster: Cluster, jobs: Sequence[Job], *, time_limit: float = TIME_LIMIT
) -> OptimumResult:
    """Return the optimum of problem (3), with placements relaxed to the totals of the cluster.

    The relaxation makes it an upper bound, so revenue over it is at most the true ratio. After
    ``time_limit`` seconds the result is the best schedule so far, without a proof.
    """
    tenancy, gangs = _gangs(cluster, jobs)
    workers, ps = tenancy.units
    first = min(job.arrival for job in jobs)
    batch = GangBatch(
        gangs,
        workers,
        ps,
        TIMESPAN,
        releases=[job.arrival - first for job in jobs],
        worth=lambda index, end: utility_value(
            jobs[index].utility, first + end - 1 - jobs[index].arrival
        ),
    )
    return batch.solve(placed=False, time_limit=time_limit, gap=1e-3)


def _rows(
    case: str, servers: int, jobs: int, trial: int, policies: Sequence[str], first_seed: int
) -> list[dict[str, Any]]:
    setting, convex = CASES[case]
    cluster = setting.cluster(2, servers, 64 if setting is SMALL else 512)
    seed = first_seed + 1000 * trial + jobs
    drawn, source = setting.draw(cluster, jobs, seed, convex=convex)
    if setting is SMALL:
        best = offline(cluster, drawn)
        bound, proved = best.bound, best.proved
    else:
        bound, proved = linear_bound(cluster, drawn), False
    rows = []
    for policy in policies:
        outcome = setting.run(policy, cluster, drawn)
        rows.append(
            {
                "policy": policy,
                "revenue": outcome.revenue,
                "ideal_revenue": outcome.ideal,
                "offline_bound": bound,
                "optimum_proved": proved,
                "arrivals": source,
            }
        )
    return rows


def measure(
    settings: ExperimentSettings,
    cases: Sequence[str],
    jobs: Sequence[int],
    servers: Sequence[int],
    policies: Sequence[str],
) -> Tables:
    """Return the mean ratio of each policy over trials, for each of `CASES`."""
    trials = 1 if settings.quick else 3
    frame = settings.table(
        _rows,
        grid(case=cases, servers=servers, jobs=jobs, trial=range(trials)),
        "{case}: {jobs} jobs, {servers} servers".format,
        policies=tuple(policies),
        first_seed=settings.seed,
    )
    keys = ("case", "policy", "jobs", "servers", "arrivals")
    ratio = frame.group_by(keys, maintain_order=True).agg(
        (pl.col("revenue") / pl.col("offline_bound")).mean().alias("ratio"),
        (pl.col("revenue") / pl.col("offline_bound")).min().alias("least"),
        (pl.col("ideal_revenue") / pl.col("offline_bound")).mean().alias("ideal_ratio"),
        pl.col("optimum_proved").mean(),
    )
    return {"ratio": ratio, "trials": frame}


def measure_fig5(settings: ExperimentSettings) -> Tables:
    """Return Astraea's ratio by jobs and servers."""
    if settings.quick:
        return measure(settings, tuple(CASES), (5, 15), (5, 15, 45), ("astraea",))
    return measure(settings, tuple(CASES), (5, 10, 15), (5, 15, 25, 35, 45), ("astraea",))


def measure_fig6(settings: ExperimentSettings) -> Tables:
    """Return all policies' ratios by jobs, at fifteen servers."""
    return measure(settings, ("linear", "convex", "found"), (5, 10, 15), (15,), POLICIES)


def draw_fig5(tables: Tables, figure: Figure) -> None:
    """Draw a line for each number of jobs over servers, one panel per case."""
    cases = tables["ratio"]["case"].unique(maintain_order=True).to_list()
    panels = figure.subplots(1, len(cases), sharey=True)
    for axes, kind in zip(panels, cases, strict=True):
        table = tables["ratio"].filter(case=kind).sort("jobs")
        draw_curves(axes, table, "servers", "ratio", "jobs", text="{} jobs", marker="o")
        draw_curves(axes, table, "servers", "ideal_ratio", "jobs", text="_", ls=":")
        axes.axhline(0.6, color="#6B6B6B", lw=1, ls="--")
        axes.set(xlabel="servers", title=TITLES[kind])
    panels[0].annotate("the paper: above 0.6", (5, 0.62), color="#6B6B6B", va="bottom")
    panels[0].set_ylabel("revenue over offline bound")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="lower right", title="dotted: ideal clock")


def draw_fig6(tables: Tables, figure: Figure) -> None:
    """Draw groups of bars, one panel per case."""
    cases = tables["ratio"]["case"].unique(maintain_order=True).to_list()
    panels = figure.subplots(1, len(cases), sharey=True)
    for axes, kind in zip(panels, cases, strict=True):
        table = tables["ratio"].filter(case=kind)
        for bars in draw_bars_by_jobs(axes, table, "ratio", "{} jobs"):
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.set_title(TITLES[kind])
    panels[0].set(ylabel="revenue over offline bound", ylim=(0, 1.25))
    panels[0].legend(ncols=2, loc="upper left", fontsize=9)
