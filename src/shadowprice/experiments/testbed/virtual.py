"""Figs. 7 and 8 on the live service in virtual time, compared with a simulation.

Slots are the paper's 20 minutes, and a start takes 1 to 5 % of a slot. Variants of OASiS differ in
their knowledge: price constants of the whole job set or learnt ones, and a known or unknown end of
the timespan.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import utility_value
from shadowprice.executors.virtual import Rate, VirtualJob
from shadowprice.experiments.figures import PALETTE, draw_box, policy_colours, samples_by_policy
from shadowprice.experiments.testbed.measure import POLICIES, InputFiles, scaled
from shadowprice.experiments.virtual import run_live
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import compare_with_first, interval
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.source import ScenarioSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

SLOT_SECONDS: Final = 1200  # length of a slot: the paper's
LEAD_SLOTS: Final = 1  # slots of the service before the first one that counts
SUBMISSION_LEAD_SECONDS: Final = 30.0  # seconds before its slot at which a job is submitted
START_SHARE_RANGE: Final = (0.01, 0.05)  # minimum and maximum share of a slot that a start takes
STATED_RESTART_SECONDS: Final = 0.03 * SLOT_SECONDS  # seconds that jobs state for a start: the mean
CHECKPOINT_SECONDS: Final = 0.01 * SLOT_SECONDS  # seconds that a job needs to write its checkpoint
FIRST_ORDER_DRAW: Final = 100
"""First draw of the simulations that tell the order of the policies: other ones than the live."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy and its knowledge."""

    label: str
    choice: PolicyChoice
    knows_prices: bool = False  # whether it has the price constants of the whole job set
    end: bool = True  # whether it knows the end of the timespan

    def informed(self, files: InputFiles, seed: int) -> PolicyChoice:
        """Return the policy with the price constants of a draw, if it has them."""
        if not self.knows_prices:
            return self.choice
        return replace(self.choice, settings=_price_constants(files, seed))


OASIS: Final = PolicyChoice("oasis", {"prices": "online"}, "oasis")

VARIANTS: Final = (
    Variant("oasis", OASIS, knows_prices=True),
    Variant("oasis, prices given, end unknown", OASIS, knows_prices=True, end=False),
    Variant("oasis, prices learnt, end known", OASIS),
    Variant("oasis, prices learnt, end unknown", OASIS, end=False),
    *(Variant(one.label, one) for one in POLICIES if one.name != "oasis"),
)


def measure_virtual(settings: ExperimentSettings) -> Tables:
    """Run every variant on every draw, live in virtual time and simulated."""
    draws = 2 if settings.quick else 10
    variants = [
        candidate for candidate in VARIANTS if not (settings.quick and candidate.label == "dorm")
    ]
    seeds = range(settings.seed, settings.seed + draws)
    results = settings.each(
        _run_draw,
        product(variants, seeds, (False, True)),
        lambda candidate, seed, live: f"{candidate.label}, draw {seed}{', live' if live else ''}",
    )
    jobs = pl.DataFrame(
        [row for rows in results for row in rows],
        schema_overrides={"completion": pl.Int64, "late": pl.Float64},
        infer_schema_length=None,
    )
    runs = jobs.group_by("policy", "draw", "live", maintain_order=True).agg(
        pl.col("utility").sum(),
        completed=pl.col("completion").is_not_null().sum(),
        moves=pl.col("moves").sum(),
    )
    order = _order(settings, variants)
    return {"summary": _summary(runs, jobs), "order": order, "runs": runs, "jobs": jobs}


def _order(settings: ExperimentSettings, variants: list[Variant]) -> pl.DataFrame:
    """Simulate many more draws, because the order of the policies needs more than the live ones.

    Only variants that know the end and the prices take part, as in the paper.
    """
    first = settings.seed + FIRST_ORDER_DRAW
    draws = range(first, first + (3 if settings.quick else 120))
    compared = [variant for variant in variants if not variant.label.startswith("oasis, ")]
    cases = [(variant, draw, False) for variant in compared for draw in draws]
    results = settings.each(
        _run_draw, cases, lambda variant, seed, _: f"{variant.label}, order, draw {seed}"
    )
    values: dict[str, list[float]] = {}
    for (variant, _, _), rows in zip(cases, results, strict=True):
        values.setdefault(variant.label, []).append(sum(row["utility"] for row in rows))
    compared_columns = _against_first(values).items()
    return pl.DataFrame(
        [{"policy": label, "draws": len(draws), **columns} for label, columns in compared_columns]
    )


def _against_first(samples: Mapping[str, list[float]]) -> dict[str, dict[str, float | None]]:
    """Return columns by policy: means with intervals, and paired differences to the first."""
    tests, columns = compare_with_first(samples), {}
    for policy, sample in samples.items():
        mean, test = interval(sample), tests.get(policy)
        columns[policy] = {
            "utility": mean.mean,
            "half": mean.half,
            "beyond_oasis": None if test is None else test.difference.mean,
            "beyond_half": None if test is None else test.difference.half,
            "p": None if test is None else test.adjusted,
        }
    return columns


def _run_draw(variant: Variant, seed: int, live: bool) -> list[dict[str, Any]]:
    """Return a row per job of a draw; slots count from the first counted slot."""
    files = scaled(SLOT_SECONDS, seed=seed, restart=STATED_RESTART_SECONDS)
    choice = variant.informed(files, seed)
    end = LEAD_SLOTS + files.slots if variant.end else None
    completions = (
        _run_virtual(files, choice, seed, end) if live else _simulate_jobs(files, choice, seed, end)
    )
    rows = []
    for job in files.jobs:
        name = str(job["name"])
        completion, moves = completions[name]
        if completion is not None and completion >= LEAD_SLOTS + files.slots:
            completion = None  # after the end of the timespan
        arrival = LEAD_SLOTS + files.arrival(name)
        utility = files.utilities[name]
        duration = None if completion is None else completion - arrival
        rows.append(
            {
                "policy": variant.label,
                "draw": seed,
                "live": live,
                "job": name,
                "completion": None if completion is None else completion - LEAD_SLOTS,
                "late": None if duration is None else duration - utility.target,
                "utility": 0.0 if duration is None else utility_value(utility, duration),
                "moves": moves,
            }
        )
    return rows


def _submission_seconds(files: InputFiles, job: Mapping[str, Any]) -> float:
    """Return the submission time of a job in seconds since the start of the service."""
    share = SUBMISSION_LEAD_SECONDS / SLOT_SECONDS
    return (LEAD_SLOTS + files.arrival(str(job["name"])) - share) * files.seconds


def _scenario(files: InputFiles, seed: int, end: int | None) -> Scenario:
    """Return the draw for the simulator, with the submission times of the live service."""
    documents = [
        {**job, "arrival": f"{_submission_seconds(files, job):.0f}s"} for job in files.jobs
    ]
    scenario, _ = ScenarioSource(cluster=dict(files.cluster), jobs=documents).scenario(seed)
    return replace(scenario, until=end)


def _price_constants(files: InputFiles, seed: int) -> dict[str, Any]:
    """Return OASiS's price constants over the whole job set, as settings of ``prices=given``."""
    scenario = _scenario(files, seed, LEAD_SLOTS + files.slots)
    policy = PolicyChoice("oasis", {"prices": "offline"}).build(scenario.context())
    in_force = policy.parameters_in_force()
    settings: dict[str, Any] = {"prices": "given"}
    for pool in ("worker", "ps"):
        logarithms = in_force[pool]
        assert isinstance(logarithms, Mapping)
        if logarithms["ln_L"] is not None:
            lower = math.exp(logarithms["ln_L"])
            # Rounding must not make U smaller than L.
            upper = {name: max(lower, math.exp(ln)) for name, ln in logarithms["ln_U"].items()}
            settings[pool] = {"L": lower, "U": upper}
    return settings


def _simulate_jobs(
    files: InputFiles, choice: PolicyChoice, seed: int, end: int | None
) -> dict[str, tuple[int | None, int]]:
    scenario = _scenario(files, seed, end)
    # Use the service's seed, because `fifo` and `rrh` draw numbers of workers.
    policy = choice.build(PolicyContext(cluster=scenario.cluster, until=end))
    run = record_run(scenario, choice.label, policy, at_once=True)
    return {row["job"]: (row["completion"], 0) for row in run.jobs.iter_rows(named=True)}


def _rate(pace: float) -> Rate:
    """Return the stated rate of a job, from the seconds of a mini-batch on a worker."""
    return lambda shares: sum(share.workers for share in shares) / pace


def _run_virtual(
    files: InputFiles, choice: PolicyChoice, seed: int, end: int | None
) -> dict[str, tuple[int | None, int]]:
    generator = random.Random(f"testbed starts {seed}")
    submitted = []
    for job in files.jobs:
        name = str(job["name"])
        pace = files.pace[name]
        starts = tuple(
            SLOT_SECONDS * generator.uniform(*START_SHARE_RANGE) for _ in range(3 * files.slots)
        )
        behaviour = VirtualJob(
            work=float(job["epochs"] * job["chunks"] * job["minibatches"]),
            rate=_rate(pace),
            start_seconds=starts,
            save_seconds=CHECKPOINT_SECONDS,
            report_every=30.0,
        )
        record = {key: value for key, value in job.items() if key != "arrival"}
        record["run"] = {"command": ["train"], "grace": "60s"}
        submitted.append((_submission_seconds(files, job), record, behaviour))
    end_seconds = (LEAD_SLOTS + files.slots) * SLOT_SECONDS
    # The last slot counts only after its end.
    seconds = end_seconds + 0.5 * SLOT_SECONDS
    settings = {} if end is None else {"until": f"{end} slots"}
    outcomes = run_live(files.cluster, submitted, choice, seconds, settings=settings)
    return {
        name: (outcome.completion, max(0, outcome.generations - 1))
        for name, outcome in outcomes.items()
    }


def _summary(runs: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per variant: means with intervals, and paired differences to the first."""
    rows: list[dict[str, Any]] = []
    for live in (False, True):
        same = runs.filter(live=live)
        for policy, columns in _against_first(samples_by_policy(same, "utility", "draw")).items():
            rows_of_policy = same.filter(policy=policy)
            late = jobs.filter(live=live, policy=policy)["late"]
            rows.append(
                {
                    "policy": policy,
                    "live": live,
                    **columns,
                    "completed": rows_of_policy["completed"].mean(),
                    "late": late.mean(),
                    "deviation": late.std(),
                    "moves": rows_of_policy["moves"].mean() if live else None,
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def draw_virtual(tables: Tables, figure: Figure) -> None:
    """Draw utility and timeliness, simulated (pale) and live."""
    left, right = figure.subplots(1, 2)
    summary, jobs = tables["summary"], tables["jobs"]
    policies = summary["policy"].unique(maintain_order=True).to_list()
    for index, (policy, colour) in enumerate(zip(policies, policy_colours(policies), strict=True)):
        for live, shift, alpha in ((False, -0.2, 0.35), (True, 0.2, 1.0)):
            is_case = (pl.col("policy") == policy) & (pl.col("live") == live)
            row = summary.row(by_predicate=is_case, named=True)
            left.bar(
                index + shift, row["utility"], 0.38, yerr=row["half"], color=colour, alpha=alpha,
                capsize=2,
            )  # fmt: skip
            late = jobs.filter(is_case)["late"]
            draw_box(right, index + shift, late, 0.32, facecolor=colour, alpha=alpha)
    ticks = [str(policy).replace(", ", "\n") for policy in policies]
    for panel in (left, right):
        panel.set_xticks(range(len(policies)), ticks, fontsize=7)
        panel.grid(visible=False, axis="x")
    left.set(title="Fig. 7: simulated (pale) and live", ylabel="total utility of 12 jobs, 95 %")
    right.axhline(0, color=PALETTE[6], lw=1)
    right.set(title="Fig. 8: of those that completed", ylabel="completion minus target (slots)")
