"""Utility of `rolling`: compared with every other policy, without its parts, and with a bound.

Workloads whose trace isn't available locally are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast
from zlib import crc32

import numpy as np
import polars as pl

from shadowprice.certificate.certify import certify
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import ClusterSpec
from shadowprice.experiments.figures import PALETTE
from shadowprice.experiments.framework import Experiment, ExperimentSettings, Figure, Tables, grid
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.posted import PostedPrices
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster
from shadowprice.traces.locate import parse_spec

# ------------------------------------------------------------------ workloads, policies and one run


_JOBS_A_SERVER: Final = 8
"""Jobs per server of each role in generated workloads: OASiS's 400 jobs on 50 and 50 servers."""

ITP: Final = "itp:microsoft_itp_2021/elasticflow/cluster0{}.csv.gz"
PHILLY: Final = "philly:philly/philly.csv.gz"
PHILLY_VIRTUAL_CLUSTERS: Final = (
    *("51b7ef", "23dbec", "e13805", "2869ce", "0e4a51", "103959", "b436b2", "6214e9"),
)
"""Virtual clusters of the Philly file, in ascending order of size."""


ROLLING: Final = PolicyChoice("rolling")
OASIS_CLAIRVOYANT: Final = PolicyChoice("oasis", {"prices": "offline"}, "oasis, all jobs known")
POLICY_VARIANTS: Final = (
    ROLLING,
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("rrh"),
    PolicyChoice("elasticflow"),
    PolicyChoice("srtf"),
    PolicyChoice("las"),
    PolicyChoice("backfill"),
    PolicyChoice("drf"),
    PolicyChoice("fifo"),
    OASIS_CLAIRVOYANT,
)
"""Policies run on all workloads; only the last knows jobs before they arrive."""
FULL_SETTING: Final = (
    *POLICY_VARIANTS[:-1],
    PolicyChoice("pdors"),
    PolicyChoice("dorm"),
    OASIS_CLAIRVOYANT,
)
"""Policies run on whole workloads: also those that solve a program at every decision."""


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """Jobs and their cluster: sized for the trace at load 1, or OASiS's for generated jobs."""

    name: str
    trace: str = ""  # trace in the format of ``--trace``; empty for a generated workload
    slot: str = "20min"  # length of a slot
    preset: Preset = "calibrated"  # ranges of the generator, for a generated workload
    jobs: int = 0
    slots: int = 0  # its timespan

    @property
    def at_hand(self) -> bool:
        """Whether its trace is available locally."""
        return not self.trace or parse_spec(self.trace).path.exists()

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        if self.trace:
            return ScenarioSource(trace=self.trace, slot=self.slot).scenario(seed)[0]
        options = GeneratorOptions(
            preset=self.preset,
            jobs=self.jobs,
            slots=self.slots,
            slot_seconds=Fraction(1200),
            arrivals="bursty",
        )
        servers = max(1, self.jobs // _JOBS_A_SERVER)
        document = paper_cluster(
            workers=servers,
            parameter_servers=servers,
            slot_seconds=options.slot_seconds,
            horizon=self.slots,
            seed=seed,
        )
        on = ClusterSpec.model_validate(document).resolve("generated cluster")
        return Scenario(on, generate(options, seed=seed).to_jobs(on), self.slots, seed)


def workloads(*, quick: bool) -> list[NamedWorkload]:
    """Return the available workloads; if quick, a few with about a hundred jobs."""
    part = "limit=120" if quick else ""
    jobs, slots = (60, 100) if quick else (400, 300)
    available = [
        *(
            NamedWorkload(f"ITP cluster0{number}", _with(ITP.format(number), part))
            for number in range(1, 7)
        ),
        *(
            NamedWorkload(f"Philly {vc}", _with(PHILLY, f"vc={vc}", part))
            for vc in PHILLY_VIRTUAL_CLUSTERS
        ),
        *(() if quick else (NamedWorkload("Philly", PHILLY),)),
        NamedWorkload("Philly, 6,000 jobs", _with(PHILLY, "from=20d", part or "limit=6000")),
        NamedWorkload(
            "ElasticFlow's Philly file",
            _with("itp:philly/elasticflow/philly_103959.csv", part),
            slot="60s",
        ),
        NamedWorkload("generated: calibrated", jobs=jobs, slots=slots),
        NamedWorkload("generated: paper", preset="paper", jobs=jobs, slots=slots),
    ]
    return [
        workload
        for workload in available
        if workload.at_hand and (not quick or workload.name in QUICK)
    ]


QUICK: Final = frozenset(
    {"ITP cluster03", "ITP cluster05", "Philly 103959", "Philly 0e4a51", "generated: calibrated"}
)


def _with(trace: str, *options: str) -> str:
    query = "&".join(filter(None, options))
    return f"{trace}?{query}" if query else trace


def run(scenario: Scenario, scheme: PolicyChoice) -> dict[str, Any]:
    """Run a policy on a workload; return a row of a table."""
    info = run_policy(scenario, scheme).info
    summary = cast("dict[str, Any]", info["summary"])
    met, latency = summary["met_target"], info["timing"]["decision_latency"]
    return {
        "policy": scheme.label,
        "jobs": summary["arrived"],
        "utility": summary["total_utility"],
        "share": summary["total_utility"] / max(1e-12, summary["value"]),
        "in time": met["share"],
        "JCT": summary["jct"]["mean"],
        "restricted JCT": summary["jct"]["restricted_mean"],
        "restarts": summary["restarts"],
        "decision p99 ms": 1e3 * latency["p99"] if latency["p99"] is not None else None,
    }


class MisstatedWork(ExecutionModel):
    """Execution in which a job's work is its stated work times a random factor.

    The factor is log-uniform between ``1 / max_factor`` and ``max_factor``. It only depends on the
    job's name and ``seed``.
    """

    def __init__(self, max_factor: float, seed: int) -> None:
        self._max_factor, self._seed = max_factor, seed
        self._exact = ExactExecution()
        self._factors: dict[str, float] = {}

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the stated progress over the job's factor, at least 1 unless it is 0."""
        if job.name not in self._factors:
            exponent = np.random.default_rng([self._seed, crc32(job.name.encode())]).uniform(-1, 1)
            self._factors[job.name] = self._max_factor**exponent
        stated = self._exact.progress(job, placement, slot, moved=moved)
        return max(min(stated, 1), int(stated / self._factors[job.name]))


def misstated(scenario: Scenario, maximum: float) -> Scenario:
    """Return the scenario with work that differs from the stated work by up to a factor."""
    return replace(scenario, execution=MisstatedWork(maximum, scenario.seed))


def with_restart_cost(scenario: Scenario, seconds: int) -> Scenario:
    """Return the scenario with jobs that lose some seconds at every move."""
    share = Fraction(seconds) / scenario.cluster.slot_seconds
    jobs: Sequence[Job] = [replace(job, restart=share) for job in scenario.jobs]
    return replace(scenario, jobs=jobs)


# ------------------------------------------------------------------ every policy on every workload


def _run_whole(workload: NamedWorkload, scheme: PolicyChoice, seed: int) -> dict[str, Any]:
    return {"workload": workload.name, **run(workload.scenario(seed), scheme)}


def measure_traces(settings: ExperimentSettings) -> Tables:
    """Run every policy on every workload."""
    table = settings.table(
        _run_whole,
        grid(
            workload=workloads(quick=settings.quick),
            scheme=POLICY_VARIANTS if settings.quick else FULL_SETTING,
        ),
        "{workload.name}, {scheme.label}".format,
        seed=settings.seed,
    )
    return {"runs": table, "shares": shares(table)}


def shares(table: pl.DataFrame) -> pl.DataFrame:
    """Return shares of the value on offer: a row per workload, a column per policy."""
    return table.pivot(on="policy", index="workload", values="share", maintain_order=True)


def draw_traces(tables: Tables, figure: Figure) -> None:
    """Draw a row of points per workload: a point per policy."""
    table = tables["runs"]
    panel = figure.subplots()
    names = table["workload"].unique(maintain_order=True).to_list()
    for index, policy in enumerate(table["policy"].unique(maintain_order=True)):
        points = table.filter(policy=policy)
        rows = [names.index(name) for name in points["workload"]]
        panel.plot(
            points["share"].to_numpy(),
            np.array(rows),
            "D" if policy == "rolling" else "o",
            color=PALETTE[index % len(PALETTE)],
            fillstyle="full" if index < len(PALETTE) else "none",
            markersize=9 if policy == "rolling" else 5,
            label=policy,
        )
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(xlabel="earned of the value on offer", xlim=(0, 1.02))
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


# ------------------------------------------------------------------ parts, restarts, misstated work


PARTS: Final = (
    ROLLING,
    PolicyChoice("rolling", {"revision": False}, "plans don't move"),
    PolicyChoice("rolling", {"evidence": 1e6}, "no limit of promises"),
    PolicyChoice("rolling", {"prices": "given"}, "promises are free"),
    PolicyChoice("rolling", {"spare": False}, "spare capacity unused"),
    PolicyChoice("rolling", {"standby": False}, "no waiting jobs"),
    # No job is worth this price.
    PolicyChoice("rolling", {"prices": "given", "price": 1e12}, "no promises"),
)
"""`rolling`, and variants without one of its parts."""
RESTARTS: Final = (30, 300)  # seconds that a job loses when it moves
FACTORS: Final[Mapping[str, float]] = {"stated right": 1.0, "up to 1.5": 1.5, "up to 2": 2.0}
"""Maximum factor between real and stated work, in either direction."""

LEARNING: Final = ("rolling", "oasis", "rrh", "elasticflow", "srtf", "las", "drf")
"""Policies run with misstated work."""


def _representative_workloads(settings: ExperimentSettings) -> list[NamedWorkload]:
    """Return some of the workloads, because the effect of a part is similar on all."""
    names = {"ITP cluster03", "ITP cluster05", "Philly 103959", "generated: calibrated"}
    return [workload for workload in workloads(quick=settings.quick) if workload.name in names]


def measure_parts(settings: ExperimentSettings) -> Tables:
    """Run `rolling` without each of its parts, and with restart costs."""
    restarts = [(PolicyChoice("rolling", titled=f"restarts of {n} s"), n) for n in RESTARTS]
    table = settings.table(
        _part,
        grid(
            workload=_representative_workloads(settings),
            part=[*((part, 0) for part in PARTS), *restarts],
        ),
        "{workload.name}, {part[0].label}".format,
        seed=settings.seed,
    )
    return {"parts": table}


def _part(
    workload: NamedWorkload, part: tuple[PolicyChoice, int], seed: int
) -> list[dict[str, Any]]:
    """Return a row, or none if a restart would be longer than a slot."""
    scheme, restart = part
    scenario = workload.scenario(seed)
    if restart > scenario.cluster.slot_seconds:
        return []
    adjusted = with_restart_cost(scenario, restart) if restart else scenario
    return [{"workload": workload.name, **run(adjusted, scheme)}]


def measure_misstated(settings: ExperimentSettings) -> Tables:
    """Run policies on jobs with misstated work."""
    learning = [scheme for scheme in POLICY_VARIANTS if scheme.label in LEARNING]
    table = settings.table(
        _run_misstated,
        grid(workload=_representative_workloads(settings), work=FACTORS, scheme=learning),
        "{workload.name}, {work}, {scheme.label}".format,
        seed=settings.seed,
    )
    return {"misstated": table}


def _run_misstated(
    workload: NamedWorkload, work: str, scheme: PolicyChoice, seed: int
) -> dict[str, Any]:
    scenario = misstated(workload.scenario(seed), FACTORS[work])
    return {"workload": workload.name, **run(scenario, scheme)}


def draw_parts(tables: Tables, figure: Figure) -> None:
    """Draw bars, a panel per workload."""
    (table,) = tables.values()
    if "work" in table.columns:
        table = table.with_columns(pl.format("{}: {}", "policy", "work").alias("policy"))
    names = table["workload"].unique(maintain_order=True).to_list()
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for panel, name, colour in zip(panels, names, PALETTE, strict=False):
        rows = table.filter(workload=name)
        panel.barh(rows["policy"].to_list(), rows["share"].to_numpy(), color=colour)
        panel.set(title=name, xlim=(0, 1), xlabel="of the value on offer")
        panel.tick_params(axis="y", labelsize=7)
    panels[0].invert_yaxis()


# ------------------------------------------------------------------ comparison with the bound


# No job is worth this price, so no job gets a promise.
NO_PROMISES: Final = PolicyChoice(
    "rolling", {"prices": "given", "price": 1e12}, "rolling, no promises"
)
FREE_PROMISES: Final = PolicyChoice("rolling", {"prices": "given"}, "rolling, promises free")
PROMISED_JOBS_ONLY: Final = {"standby": False, "spare": False}
"""Settings of `rolling` with which only promised jobs run, and only on planned capacity."""


def measure_gap(settings: ExperimentSettings) -> Tables:
    """Compute upper bounds for generated workloads, and run policies at the bounds' prices."""
    jobs, slots, seconds = (40, 60, 5.0) if settings.quick else (200, 150, 60.0)
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    table = settings.table(
        _share_of_bound,
        grid(seed=seeds),
        lambda seed, jobs, **_: f"{jobs} jobs, seed {seed}",
        jobs=jobs,
        slots=slots,
        seconds=seconds,
    )
    means = table.group_by("policy", maintain_order=True).agg(pl.col("of the bound").mean())
    return {"gap": table, "means": means}


def _share_of_bound(seed: int, jobs: int, slots: int, seconds: float) -> list[dict[str, Any]]:
    """Return the utility of each policy as a share of the bound."""
    scenario = NamedWorkload("generated: calibrated", jobs=jobs, slots=slots).scenario(seed)
    certificate = certify(
        scenario.cluster, scenario.jobs, gap=0.01, seconds=seconds, seed=scenario.seed
    )
    earned = {
        "the bound": certificate.bound,
        "best schedule found, all jobs known": certificate.best,
    }
    with TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.json"
        prices.write_text(
            json.dumps(certificate.prices.document(scenario.cluster)), encoding="utf-8"
        )
        fixed = PolicyChoice("oasis", {"prices": f"fixed:{prices}"}, "oasis at the bound's prices")
        online = next(scheme for scheme in POLICY_VARIANTS if scheme.label == "oasis")
        uniform, price = _one_price(certificate.prices)
        constant = Path(folder) / "constant.json"
        constant.write_text(json.dumps(uniform.document(scenario.cluster)), encoding="utf-8")
        schemes = (
            fixed,
            OASIS_CLAIRVOYANT,
            online,
            *_uniform_price_policies(price, constant),
            ROLLING,
            NO_PROMISES,
            FREE_PROMISES,
        )
        for scheme in schemes:
            earned[scheme.label] = float(run(scenario, scheme)["utility"])
    return [
        {"policy": name, "utility": value, "of the bound": value / max(1e-12, certificate.bound)}
        for name, value in earned.items()
    ]


def _one_price(prices: PostedPrices) -> tuple[PostedPrices, float]:
    """Return the certificate's mean price: as posted prices for `oasis`, as a number for `rolling`.

    `rolling` applies a given price to every resource that servers limit. For `oasis`, only limits
    of whole resources get this price, so that both policies charge the same for a plan.
    """
    is_resource = np.zeros(prices.prices.shape[1:], np.bool_)
    for index, pool in enumerate(prices.limits):
        is_resource[index, : len(pool)] = [limit.parts == 0 for limit in pool]
    price = float(prices.prices.sum(axis=(1, 2)).mean()) / max(1, int(is_resource.sum()))
    return replace(prices, prices=np.where(is_resource, price, np.zeros_like(prices.prices))), price


def _uniform_price_policies(price: float, file: Path) -> tuple[PolicyChoice, ...]:
    """Return policies with the same uniform price, from least to most revision of plans."""
    uniform = {"prices": "given", "price": price}
    return (
        PolicyChoice("oasis", {"prices": f"fixed:{file}"}, "oasis at one price"),
        PolicyChoice(
            "rolling",
            {**uniform, **PROMISED_JOBS_ONLY, "revision": False},
            "rolling at one price, plans never revised",
        ),
        PolicyChoice(
            "rolling", {**uniform, **PROMISED_JOBS_ONLY}, "rolling at one price, plans revised"
        ),
        PolicyChoice("rolling", {**uniform, "standby": False}, "and spare capacity used"),
        PolicyChoice("rolling", uniform, "and jobs without a promise wait"),
    )


def draw_gap(tables: Tables, figure: Figure) -> None:
    """Draw a bar per policy: its mean share of the bound."""
    means = tables["means"]
    panel = figure.subplots()
    panel.barh(means["policy"].to_list(), means["of the bound"].to_numpy(), color=PALETTE[0])
    for index, share in enumerate(means["of the bound"]):
        panel.text(share + 0.005, index, f"{share:.1%}", va="center")
    panel.invert_yaxis()
    panel.set(xlabel="of the bound", xlim=(0, 1.12))


SOURCE = "this project (design/0017-rolling.md)"

EXPERIMENTS = (
    Experiment(
        name="rolling-traces",
        title="Share of the value on offer that each policy earns, on every workload",
        source=SOURCE,
        reported="Aim: on every workload rolling earns at least as much as every policy that does "
        "not know the future.",
        measure=measure_traces,
        draw=draw_traces,
        size=(12.0, 6.5),
    ),
    Experiment(
        name="rolling-parts",
        title="Value earned without parts of rolling, and with restart costs",
        source=SOURCE,
        reported="Aim: every part increases the value earned.",
        measure=measure_parts,
        draw=draw_parts,
        size=(11.0, 5.0),
    ),
    Experiment(
        name="rolling-misstated",
        title="Value earned when jobs take 0.5 to 2 times the work they state",
        source=SOURCE,
        reported="Aim: only promises change.",
        measure=measure_misstated,
        draw=draw_parts,
        size=(11.0, 5.0),
    ),
    Experiment(
        name="rolling-gap",
        title="Parts of the gap to the upper bound: prices, online arrivals, plans never revised",
        source=SOURCE,
        reported="No aim: compares policies with the bound of `shadowprice bound`.",
        measure=measure_gap,
        draw=draw_gap,
        size=(10.0, 4.6),
    ),
)
