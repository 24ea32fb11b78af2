"""Fig. 5: the offline optimum over the utility that OASiS earns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.experiments.oasis.setting import (
    CHUNK,
    OASIS,
    cluster,
    run,
    workload,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.experiments.variants import PolicyVariant
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.experiments.framework import ExperimentSettings, Tables

SLOTS: Final = 10
JOBS: Final = 10
DRAWN: Final = 4000
MAX_SLOTS: Final = 6
"""Slots that the longest job takes alone: with T = 10 it can still complete if it arrives by slot
4."""

SERVERS: Final = (3, 6, 9, 12)
SECONDS: Final = 60.0
QUICK_SECONDS: Final = 5.0  # limit of the search for an optimum, in processor time

OFFSET: Final = 0.25  # horizontal distance of the points of two ranges of priorities, in servers

VALUES: Final = ((1.0, 100.0), (25.0, 100.0), (50.0, 100.0), (75.0, 100.0))


def measure(settings: ExperimentSettings) -> Tables:
    """Solve problem (1) for 10 jobs in 10 slots, and run OASiS on the same jobs."""
    servers = SERVERS[:2] if settings.quick else SERVERS
    values = (VALUES[0], VALUES[3]) if settings.quick else VALUES
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    cases = [(count, value, seed) for value in values for count in servers for seed in seeds]
    limit = QUICK_SECONDS if settings.quick else SECONDS
    rows = settings.each(
        _row,
        [(*case, limit) for case in cases],
        lambda count, value, _seed, _limit: f"{count} servers, values from {value[0]:g}",
    )
    table = pl.DataFrame(rows)
    ratios = ratios_of_instances(table)
    return {"ratio": table, "ratios": ratios, "summary": summarize(ratios)}


def _row(count: int, value: tuple[float, float], seed: int, limit: float) -> dict[str, Any]:
    optimum = PolicyVariant(
        "optimum",
        PolicyChoice("optimum", {"time_limit": limit, "clock": "processor"}, "offline optimum"),
    )
    on = cluster(count - count // 2, count // 2, SLOTS, seed)
    jobs = draw_jobs(on, value, seed)
    row: dict[str, Any] = {"servers": count, "least_value": value[0], "seed": seed}
    for variant in (optimum, *OASIS):
        outcomes, policy = run(variant, on, jobs, SLOTS, seed)
        row[variant.key] = sum(outcome.utility for outcome in outcomes)
        if variant is optimum:
            proof = policy.parameters_in_force()
            row |= {"bound": proof["bound"], "proved": proof["proved_optimal"]}
    # If the search reached its time limit, an online schedule may be the best known.
    row["best_known"] = max(row[variant.key] for variant in (optimum, *OASIS))
    return row


def ratios_of_instances(table: pl.DataFrame) -> pl.DataFrame:
    """Return the ratios of each instance under each L; infinite if OASiS earns nothing."""
    return pl.concat(
        table.select(
            pl.lit(variant.key).alias("policy"),
            "servers",
            "least_value",
            "seed",
            "proved",
            (pl.col("best_known") / pl.col(variant.key)).alias("ratio"),
            (pl.col("bound") / pl.col(variant.key)).alias("bound_ratio"),
        )
        for variant in OASIS
    )


def summarize(ratios: pl.DataFrame) -> pl.DataFrame:
    """Return quartiles over all instances; of an even number, the nearest instance's."""
    quartiles = {"lower": 0.25, "median": 0.5, "upper": 0.75}
    return ratios.group_by("policy", maintain_order=True).agg(
        pl.len().alias("instances"),
        pl.col("proved").sum(),
        *(
            pl.col(column).quantile(share, "nearest").alias(f"{column}_{name}")
            for column in ("ratio", "bound_ratio")
            for name, share in quartiles.items()
        ),
    )


def draw_jobs(on: Cluster, value: tuple[float, float], seed: int) -> list[Job]:
    """Return 10 jobs, by arrival, from those of a long draw that can complete within T."""
    drawn = workload(on, CHUNK, DRAWN, SLOTS, seed, value=value, arrival_share=0.5)
    fitting = [job for job in drawn if _slots_alone(on, job) <= MAX_SLOTS]
    chosen = np.random.default_rng(seed).choice(len(fitting), JOBS, replace=False)
    return [fitting[index] for index in sorted(chosen.tolist())]


def _slots_alone(on: Cluster, job: Job) -> float:
    """Return the number of slots that a job takes if it has all servers to itself."""
    fits = job.worker_counts <= _places(on, on.hosts_workers, job.worker)
    if job.ps is not None:
        fits &= job.ps_counts <= _places(on, on.hosts_ps, job.ps)
    gains = job.gains[fits]
    return math.ceil(job.required / int(gains.max())) if len(gains) else math.inf


def _places(on: Cluster, members: NDArray[np.bool_], demand: NDArray[np.int64]) -> int:
    """Return how many processes of a demand the empty servers hold."""
    requested = demand > 0
    return int((on.capacity[members][:, requested] // demand[requested]).min(axis=1).sum())


def draw(tables: Tables, figure: Figure) -> None:
    """Draw one panel per L: a point per instance, and the median of each range of priorities.

    A point divides the best known schedule. If the optimum wasn't proved, a line reaches from it to
    the bound. Instances in which OASiS earns nothing aren't drawn.
    """
    table = tables["ratios"]
    values = table["least_value"].unique().sort().to_list()
    panels = figure.subplots(1, len(OASIS), sharey=True)
    for panel, variant in zip(panels, OASIS, strict=True):
        for index, (minimum_value, colour) in enumerate(zip(values, PALETTE, strict=False)):
            mine = table.filter(
                (pl.col("policy") == variant.key) & (pl.col("least_value") == minimum_value)
            )
            medians = mine.group_by("servers").agg(pl.col("ratio").median()).sort("servers")
            panel.plot(
                medians["servers"],
                medians["ratio"],
                color=colour,
                label=f"[{minimum_value:g}, 100]",
            )
            shift = OFFSET * (index - (len(values) - 1) / 2)
            drawn = mine.filter(pl.col("ratio").is_finite())
            position = drawn["servers"] + shift
            panel.scatter(position, drawn["ratio"], s=12, color=colour)
            panel.vlines(position, drawn["ratio"], drawn["bound_ratio"], color=colour, lw=1)
        panel.set(xlabel="servers in total", title=variant.label)
        panel.set_xticks(table["servers"].unique().sort().to_list())
        for limit in (1.1, 1.5):  # the range that the paper reports
            panel.axhline(limit, color=PALETTE[6], lw=1, ls=":")
    panels[0].set_ylabel("offline optimum / OASiS")
    panels[0].set_ylim(bottom=1.0)
    panels[0].legend(title="priority in", fontsize=9)
