"""Gain of a tenant that misreports its jobs, and loss of the others, under each policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.experiments.misreports.workload import (
    LIAR,
    LIES,
    TENANTS,
    Lie,
    build_cluster,
    draw_jobs,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import interval
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import ExactExecution
from shadowprice.simulator.misreports import TrueRevenue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

POLICIES: Final = tuple(PolicyChoice(name) for name in ("oasis", "pdors", "rolling", "astraea"))
"""Policies that decide by stated values."""

HONEST: Final = Lie()

TOO_SLOW: Final = {("astraea", Lie("split", 64))}
"""Cases that aren't measured: Astraea decides for half a minute on so many jobs in each run."""


def measure(settings: ExperimentSettings) -> Tables:
    """Run every workload with and without each misreport."""
    seeds, jobs = (2, 40) if settings.quick else (10, 80)
    lies = [
        Lie(kind, size)
        for kind, (sizes, _) in LIES.items()
        for size in (sizes[-1:] if settings.quick else sizes)
    ]
    cases = [
        (choice, lie, settings.seed + number, jobs)
        for choice in POLICIES
        for lie in (HONEST, *lies)
        for number in range(seeds)
        if (choice.name, lie) not in TOO_SLOW
    ]
    runs = pl.DataFrame(settings.each(_run, cases, _label))
    return {"summary": _summarize(runs), "runs": runs}


def _label(choice: PolicyChoice, lie: Lie, seed: int, jobs: int) -> str:
    del jobs
    return f"{choice.label}, {f'{lie.kind} {lie.size}' if lie.kind else 'honest'}, seed {seed}"


def _run(choice: PolicyChoice, lie: Lie, seed: int, jobs: int) -> dict[str, Any]:
    cluster = build_cluster(shares=choice.name == "astraea")
    row = {"policy": choice.label, "lie": lie.kind, "size": lie.size, "seed": seed}
    return row | run_misreport(choice, lie, draw_jobs(seed, jobs, cluster), cluster)


def run_misreport(
    choice: PolicyChoice, lie: Lie, jobs: Sequence[Job], cluster: Cluster
) -> dict[str, float]:
    """Return true utilities of a run, the liar's net income from payments, and the value on offer.

    ``jobs`` are the true jobs.
    """
    report = lie.apply(jobs)
    observers = {
        tenant: TrueRevenue(
            {job.name: job for job in jobs if job.tenant == tenant},
            tenant,
            report.misreport.reported,
        )
        for tenant in TENANTS
    }
    Simulation(
        cluster,
        report.misreport.jobs,
        choice.build(PolicyContext(cluster)),  # future jobs aren't known
        execution=report.misreport.execution(ExactExecution()),
        incidents=report.incidents,
    ).run([*observers.values()])
    return {
        "liar": observers[LIAR].utility,
        "others": sum(observers[tenant].utility for tenant in TENANTS if tenant != LIAR),
        "income": observers[LIAR].revenue - observers[LIAR].utility,
        "value": sum(_offer(job) for job in jobs),
    }


def _offer(job: Job) -> float:
    """Return the utility of completing a job as fast as possible."""
    return float(job.utility.values(np.array([job.shortest_slots - 1]))[0])


def _summarize(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per policy and misreport: changes as shares of what honest reports earn."""
    rows: list[dict[str, Any]] = []
    for (policy,), of_policy in runs.group_by(["policy"], maintain_order=True):
        honest = of_policy.filter(pl.col("lie") == "").sort("seed")
        liar, others = honest["liar"].to_numpy(), honest["others"].to_numpy()
        income = honest["income"].to_numpy()
        lies = of_policy.filter(pl.col("lie") != "").group_by(["lie", "size"], maintain_order=True)
        for (lie, size), same in lies:
            reported = same.sort("seed")
            earned = reported["liar"].to_numpy() - liar
            gain = interval(earned / liar.mean())
            with_payments = interval(
                (earned + reported["income"].to_numpy() - income) / liar.mean()
            )
            loss = interval((others - reported["others"].to_numpy()) / others.mean())
            rows.append(
                {
                    "policy": policy,
                    "lie": lie,
                    "size": size,
                    "gain": gain.mean,
                    "gain_half": gain.half,
                    "gain_with_payments": with_payments.mean,
                    "gain_with_payments_half": with_payments.half,
                    "loss": loss.mean,
                    "loss_half": loss.half,
                }
            )
    return pl.DataFrame(rows)


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the others' loss over the liar's gain, a panel for each policy."""
    summary = tables["summary"]
    policies = summary["policy"].unique(maintain_order=True).to_list()
    panels = np.atleast_1d(figure.subplots(1, len(policies), sharey=True, sharex=True))
    kinds = list(LIES)
    for panel, policy in zip(panels, policies, strict=True):
        for index, kind in enumerate(kinds):
            rows = summary.filter((pl.col("policy") == policy) & (pl.col("lie") == kind))
            panel.errorbar(
                100 * rows["gain"].to_numpy(),
                100 * rows["loss"].to_numpy(),
                xerr=100 * rows["gain_half"].to_numpy(),
                yerr=100 * rows["loss_half"].to_numpy(),
                fmt="o^sv"[index // len(PALETTE) % 4],
                color=PALETTE[index % len(PALETTE)],
                elinewidth=0.7,
                label=kind,
            )
        panel.axhline(2, color="black", linewidth=0.6, linestyle=":")
        panel.axvline(0, color="black", linewidth=0.6, linestyle=":")
        panel.set(title=policy, xlabel="gain of the liar (%)")
    panels[0].set_ylabel("loss of the others (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
