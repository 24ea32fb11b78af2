"""Gain of a tenant that misreports its jobs, and loss of the others, under each policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.relative_values import RELATIVE, STATED, VALUES
from shadowprice.experiments.misreports.workload import (
    LIAR,
    STRATEGIES,
    TENANTS,
    MisreportCase,
    build_cluster,
    draw_jobs,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import interval
from shadowprice.simulator.audit import TrueRevenue
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import ExactExecution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

POLICIES: Final = tuple(PolicyChoice(name) for name in ("oasis", "pdors", "rolling", "astraea"))
"""Policies that decide by stated values."""

HONEST: Final = MisreportCase()

TOO_SLOW: Final = {("astraea", MisreportCase("split", 64))}
"""Cases that aren't measured: Astraea decides for half a minute on so many jobs in each run."""


def measure(settings: ExperimentSettings) -> Tables:
    """Run every workload with and without each misreport."""
    seeds, jobs = (2, 40) if settings.quick else (10, 80)
    misreports = [
        MisreportCase(kind, size)
        for kind, (sizes, _) in STRATEGIES.items()
        for size in (sizes[-1:] if settings.quick else sizes)
    ]
    cases = [
        (choice, values, case, settings.seed + number, jobs)
        for choice in POLICIES
        for values in VALUES
        for case in (HONEST, *misreports)
        for number in range(seeds)
        if (choice.name, case) not in TOO_SLOW
    ]
    runs = pl.DataFrame(settings.each(_run, cases, _label))
    return {"summary": _summarize(runs), "honest": _compare_honest(runs), "runs": runs}


def _label(choice: PolicyChoice, values: str, case: MisreportCase, seed: int, jobs: int) -> str:
    del jobs
    report = f"{case.kind} {case.size}" if case.kind else "honest"
    return f"{choice.label}, {values} values, {report}, seed {seed}"


def _run(
    choice: PolicyChoice, values: str, case: MisreportCase, seed: int, jobs: int
) -> dict[str, Any]:
    cluster = build_cluster(shares=choice.name == "astraea")
    row = {
        "policy": choice.label,
        "values": values,
        "lie": case.kind,
        "size": case.size,
        "seed": seed,
    }
    drawn = draw_jobs(seed, jobs, cluster)
    return row | run_misreport(choice, case, drawn, cluster, values)


def run_misreport(
    choice: PolicyChoice,
    case: MisreportCase,
    jobs: Sequence[Job],
    cluster: Cluster,
    values: str = STATED,
) -> dict[str, float]:
    """Return true utilities of a run, the liar's net income from payments, and the value on offer.

    ``jobs`` are the true jobs, and ``values`` says how their values count.
    """
    report = case.apply(jobs)
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
        relative_values=values == RELATIVE,
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
    for (policy, values), of_policy in runs.group_by(["policy", "values"], maintain_order=True):
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
                    "values": values,
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


def _compare_honest(runs: pl.DataFrame) -> pl.DataFrame:
    """Return what all tenants earn if they are honest, as a share of the value on offer."""
    rows = []
    honest = runs.filter(pl.col("lie") == "")
    for (policy,), of_policy in honest.group_by(["policy"], maintain_order=True):
        shares = {}
        for (values,), same in of_policy.group_by(["values"], maintain_order=True):
            ordered = same.sort("seed")
            earned = ordered["liar"] + ordered["others"]
            shares[values] = (earned / ordered["value"]).to_numpy()
        stated, relative = (interval(shares[values].tolist()) for values in (STATED, RELATIVE))
        change = interval((shares[RELATIVE] - shares[STATED]).tolist())
        rows.append(
            {
                "policy": policy,
                "stated": stated.mean,
                "relative": relative.mean,
                "change": change.mean,
                "change_half": change.half,
            }
        )
    return pl.DataFrame(rows)


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the others' loss over the liar's gain, by policy and by how values count."""
    summary = tables["summary"]
    panels = figure.subplots(len(VALUES), len(POLICIES), sharey=True, sharex=True)
    for row, values in zip(panels, VALUES, strict=True):
        row[0].set_ylabel(f"{values} values\nloss of the others (%)")
        for panel, choice in zip(row, POLICIES, strict=True):
            for index, kind in enumerate(STRATEGIES):
                same = summary.filter(policy=choice.label, values=values, lie=kind)
                panel.errorbar(
                    100 * same["gain"].to_numpy(),
                    100 * same["loss"].to_numpy(),
                    xerr=100 * same["gain_half"].to_numpy(),
                    yerr=100 * same["loss_half"].to_numpy(),
                    fmt="os"[index // len(PALETTE)],
                    color=PALETTE[index % len(PALETTE)],
                    elinewidth=0.7,
                    label=kind,
                )
            panel.axhline(2, color="black", linewidth=0.6, linestyle=":")
            panel.axvline(0, color="black", linewidth=0.6, linestyle=":")
    for panel, choice in zip(panels[0], POLICIES, strict=True):
        panel.set_title(choice.label)
    for panel in panels[-1]:
        panel.set_xlabel("gain of the liar (%)")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
