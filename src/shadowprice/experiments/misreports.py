"""Gain of a tenant that misreports its jobs, and loss of the other tenants, under each policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import polars as pl

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.relative_values import RELATIVE, STATED, VALUE_MODES
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.experiments.figures import PALETTE
from shadowprice.experiments.framework import Experiment, ExperimentSettings, Figure, Tables, grid
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import interval
from shadowprice.simulator.audit import (
    Misreport,
    ReportedJob,
    TrueRevenue,
    build_misreport,
    misstate_rate,
    scale_urgency,
    scale_value,
    split_job,
    understate_work,
)
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import ExactExecution

# ------------------------------------------------------------------ workload


TENANTS: Final = ("vision", "speech", "text", "robots")
LIAR: Final = TENANTS[0]  # the tenant that misreports; all tenants draw their jobs alike
ACCOUNTS: Final = (LIAR, *(f"{LIAR}-{number}" for number in range(1, 8)))
"""Names under which the liar can submit jobs."""

WORKERS: Final = 24  # workers of the cluster, on servers of four; as many parameter servers fit
STEPS: Final = 1200  # mini-batches of a slot on one worker: one per second


def build_cluster(*, shares: bool) -> Cluster:
    """Return the cluster; with ``shares``, each of `TENANTS` owns a quarter of it."""
    part = WORKERS // len(TENANTS)
    share = {"worker": part, "ps": part}
    document: dict[str, Any] = {
        "slot": "20min",
        "horizon": 60,
        "servers": [{"name": "node", "count": WORKERS // 4, "capacity": {"worker": 4, "ps": 4}}],
    }
    if shares:
        document["tenants"] = [
            *({"name": name, "share": share} for name in TENANTS),
            *({"name": name} for name in ACCOUNTS[1:]),
        ]
    return ClusterSpec.model_validate(document).resolve("misreports")


def draw_jobs(seed: int, jobs: int, cluster: Cluster) -> list[Job]:
    """Draw equal numbers of jobs per tenant, which together need about twice the cluster.

    Values per worker-slot are log-uniform over a factor of 20.
    """
    random_ = random.Random(f"misreports {seed}")
    slots = jobs // 2
    tenants = [TENANTS[index % len(TENANTS)] for index in range(jobs)]
    random_.shuffle(tenants)
    drawn = []
    for index, arrival in enumerate(sorted(random_.randrange(slots) for _ in range(jobs))):
        workers = random_.choice([1, 2, 2, 4, 4, 8])
        length = random_.choice([2, 3, 4, 6, 8, 12])
        record: dict[str, Any] = {
            "name": f"job-{index}",
            "tenant": tenants[index],
            "arrival": f"{arrival} slots",
            "epochs": length,
            "chunks": workers,
            "minibatches": STEPS,
            # With measured curves, progress counts in millionths, so rounding hides no misreport.
            "throughput": {n: round(n**0.9, 3) for n in (1, 2, 4, 8) if n <= workers},
            "worker": {"worker": 1},
            "utility": {
                "kind": "sigmoid",
                "value": round(20.0 ** random_.random() * workers * length, 3),
                "decay": random_.choice([0.05, 0.3, 1.0]),
                "target": f"{round(length * random_.uniform(1.5, 4.0), 1)} slots",
            },
        }
        if random_.random() < 0.5:
            record["ps"] = {"ps": 1}
        drawn.append(JobSpec.model_validate(record).resolve(cluster))
    return drawn


@dataclass(frozen=True, slots=True)
class MisreportCase:
    """A way of misreporting, and its size."""

    kind: str = ""  # key of `STRATEGIES`; empty for an honest report
    size: int = 1  # size of the misreport, such as the factor of values

    def __str__(self) -> str:
        return f"{self.kind} {self.size}" if self.kind else "honest"

    def apply(self, jobs: Sequence[Job]) -> Report:
        """Return the jobs that are submitted if the liar misreports."""
        if not self.kind:
            return Report(Misreport("", "", tuple(jobs)))
        return STRATEGIES[self.kind][1](jobs, self.size)


@dataclass(frozen=True, slots=True)
class Report:
    """A workload as reported, with the jobs that will be cancelled."""

    misreport: Misreport
    incidents: tuple[JobCancelled, ...] = ()


Strategy = Callable[[Sequence[Job], int], Report]
"""Function that misreports the liar's jobs by some size."""


def _own(jobs: Sequence[Job]) -> list[int]:
    """Return the indices of the liar's jobs."""
    return [index for index, job in enumerate(jobs) if job.tenant == LIAR]


def _late(jobs: Sequence[Job]) -> list[int]:
    """Return the indices of the liar's jobs that arrive in the second half of the run."""
    return [index for index in _own(jobs) if jobs[index].arrival > jobs[-1].arrival // 2]


def _by_job(
    misreport: Callable[[Job, int], ReportedJob | None],
    chosen: Callable[[Sequence[Job]], list[int]] = _own,
) -> Strategy:
    """Return a strategy that applies one misreport to each of the chosen jobs."""

    def strategy(jobs: Sequence[Job], size: int) -> Report:
        misreported = {
            index: report
            for index in chosen(jobs)
            if (report := misreport(jobs[index], size)) is not None
        }
        return Report(build_misreport("several", "", jobs, misreported))

    return strategy


def _split(job: Job, parts: int) -> ReportedJob | None:
    """Split a job into parts with at least one progress unit each."""
    return split_job(job, min(parts, job.required), whole=False)


def _use_accounts(jobs: Sequence[Job], size: int) -> Report:
    """Submit the liar's jobs under several tenant names in turn, its own included."""
    renamed = {
        index: ReportedJob.of(replace(jobs[index], tenant=ACCOUNTS[number % size]), jobs[index])
        for number, index in enumerate(_own(jobs))
    }
    return Report(build_misreport("several", "", jobs, renamed))


def _add_shams(sham: Callable[[Job, int], Job]) -> Strategy:
    """Return a strategy that submits a sham job before each job, and cancels it a slot later."""

    def strategy(jobs: Sequence[Job], size: int) -> Report:
        stated: list[Job] = []
        incidents: list[JobCancelled] = []
        for job in jobs:
            if job.tenant == LIAR:
                name = f"{job.name}+sham"
                stated.append(replace(sham(job, size), name=name))
                incidents.append(JobCancelled(job.arrival + 1, name))
            stated.append(job)
        return Report(Misreport("sham", "", tuple(stated)), tuple(incidents))

    return strategy


def _overstate_value(job: Job, size: int) -> Job:
    report = scale_value(job, size)
    return job if report is None else report.jobs[0]


def _overstate_job_work(job: Job, size: int) -> Job:
    return replace(job, required=job.required * size, epochs=job.epochs * size)


STRATEGIES: Final[Mapping[str, tuple[tuple[int, ...], Strategy]]] = {
    "inflate": ((2, 10, 100, 1000), _by_job(scale_value)),
    "inflate late": ((1000,), _by_job(scale_value, _late)),
    "inflate a tenth": ((1000,), _by_job(scale_value, lambda jobs: _own(jobs)[::10])),
    "split": ((2, 8, 64), _by_job(_split)),
    "accounts": ((8,), _use_accounts),
    "cancel dense": ((1000,), _add_shams(_overstate_value)),
    "cancel poor": ((1000,), _add_shams(_overstate_job_work)),
    "less work": ((2, 4), _by_job(lambda job, size: understate_work(job, Fraction(1, size)))),
    "slower": ((2,), _by_job(lambda job, size: misstate_rate(job, Fraction(1, size)))),
    "urgent": ((2,), _by_job(scale_urgency)),
}
"""Sizes and strategy of each kind of misreport.

- inflate: multiply the values of all jobs, of the later half, or of a tenth of the jobs.
- split: submit each job as parts, each worth its part.
- accounts: submit the jobs under several names.
- cancel: submit a sham copy before each job and cancel it a slot later; the copy states the size
  times the job's value (dense) or work (poor).
- less work, slower: divide the work, or the throughput.
- urgent: divide deadlines and targets, and multiply the decay.
"""


# ------------------------------------------------------------------ measurement


POLICIES: Final = tuple(PolicyChoice(name) for name in ("oasis", "pdors", "rolling", "astraea"))
"""Policies that decide by stated values."""

HONEST: Final = MisreportCase()
TOO_SLOW: Final = {("astraea", MisreportCase("split", 64))}
"""Cases that aren't measured, because Astraea takes half a minute per run for so many jobs."""


def measure(settings: ExperimentSettings) -> Tables:
    """Run every workload with and without each misreport."""
    trials, jobs = (2, 40) if settings.quick else (10, 80)
    misreports = [
        MisreportCase(kind, size)
        for kind, (sizes, _) in STRATEGIES.items()
        for size in (sizes[-1:] if settings.quick else sizes)
    ]
    seeds = range(settings.seed, settings.seed + trials)
    runs = settings.table(
        _run,
        [
            case
            for case in grid(
                choice=POLICIES, values=VALUE_MODES, report=(HONEST, *misreports), seed=seeds
            )
            if (case["choice"].name, case["report"]) not in TOO_SLOW
        ],
        "{choice.label}, {values} values, {report}, seed {seed}".format,
        jobs=jobs,
    )
    return {"summary": _summarize(runs), "honest": _compare_honest(runs), "runs": runs}


def _run(
    choice: PolicyChoice, values: str, report: MisreportCase, seed: int, jobs: int
) -> dict[str, Any]:
    cluster = build_cluster(shares=choice.name == "astraea")
    reported = {"policy": choice.label, "lie": report.kind, "size": report.size}
    return reported | run_misreport(choice, report, draw_jobs(seed, jobs, cluster), cluster, values)


def run_misreport(
    choice: PolicyChoice,
    case: MisreportCase,
    jobs: Sequence[Job],
    cluster: Cluster,
    values: str = STATED,
) -> dict[str, float]:
    """Return true utilities, the liar's net income from payments, and the value on offer."""
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
        "value": sum(_value_on_offer(job) for job in jobs),
    }


def _value_on_offer(job: Job) -> float:
    """Return the utility of completing a job as fast as possible."""
    return float(job.utility.values(np.array([job.shortest_slots - 1]))[0])


def _summarize(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per policy and misreport: changes relative to the utility of honest reports."""
    rows: list[dict[str, Any]] = []
    for (policy, values), of_policy in runs.group_by(["policy", "values"], maintain_order=True):
        honest = of_policy.filter(pl.col("lie") == "").sort("seed")
        liar, others = honest["liar"].to_numpy(), honest["others"].to_numpy()
        income = honest["income"].to_numpy()
        lies = of_policy.filter(pl.col("lie") != "").group_by(["lie", "size"], maintain_order=True)
        for (lie, size), same in lies:
            reported = same.sort("seed")
            earned = reported["liar"].to_numpy() - liar
            changes = {
                "gain": earned / liar.mean(),
                "gain_with_payments": (earned + reported["income"].to_numpy() - income)
                / liar.mean(),
                "loss": (others - reported["others"].to_numpy()) / others.mean(),
            }
            row = {"policy": policy, "values": values, "lie": lie, "size": size}
            for name, samples in changes.items():
                estimate = interval(samples)
                row |= {name: estimate.mean, f"{name}_half": estimate.half}
            rows.append(row)
    return pl.DataFrame(rows)


def _compare_honest(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the utility of honest tenants, as a share of the value on offer."""
    share = (pl.col("liar") + pl.col("others")) / pl.col("value")
    honest = runs.filter(lie="").with_columns(share=share)
    shares = honest.pivot(on="values", index=["policy", "seed"], values="share")
    rows = []
    for (policy,), same in shares.group_by("policy", maintain_order=True):
        change = interval((same[RELATIVE] - same[STATED]).to_list())
        rows.append(
            {
                "policy": policy,
                "stated": same[STATED].mean(),
                "relative": same[RELATIVE].mean(),
                "change": change.mean,
                "change_half": change.half,
            }
        )
    return pl.DataFrame(rows)


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the others' loss over the liar's gain: a column per policy, a row per value mode."""
    summary = tables["summary"]
    panels = figure.subplots(len(VALUE_MODES), len(POLICIES), sharey=True, sharex=True)
    for row, values in zip(panels, VALUE_MODES, strict=True):
        row[0].set_ylabel(f"{values} values\nloss of the others (%)")
        for panel, choice in zip(row, POLICIES, strict=True):
            for index, kind in enumerate(STRATEGIES):
                same = summary.filter(policy=choice.label, values=values, lie=kind)
                columns = ("gain", "loss", "gain_half", "loss_half")
                x, y, xerr, yerr = (100 * same[column].to_numpy() for column in columns)
                marker, colour = "os"[index // len(PALETTE)], PALETTE[index % len(PALETTE)]
                style: dict[str, Any] = {"fmt": marker, "color": colour, "label": kind}
                panel.errorbar(x, y, xerr=xerr, yerr=yerr, elinewidth=0.7, **style)
            panel.axhline(2, color="black", linewidth=0.6, linestyle=":")
            panel.axvline(0, color="black", linewidth=0.6, linestyle=":")
    for panel, choice in zip(panels[0], POLICIES, strict=True):
        panel.set_title(choice.label)
    for panel in panels[-1]:
        panel.set_xlabel("gain of the liar (%)")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)


EXPERIMENTS = (
    Experiment(
        name="misreports",
        title="Gain of a tenant that misreports its jobs and loss of the others, by policy",
        source="this project (design/0046-values-of-tenants-without-budgets.md)",
        reported="Aim: the others lose at most 2 %, and the liar gains nothing on average.",
        measure=measure,
        draw=draw,
        size=(12.0, 8.0),
    ),
)
