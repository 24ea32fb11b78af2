"""Figs. 7 and 8 on the live service in virtual time, compared with a simulation.

Slots are the paper's 20 minutes, and a start takes 1 to 5 % of a slot. Variants of OASiS differ in
their knowledge: their price constants are given or learnt, and they know the end of the timespan or
not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.utility import utility_value
from shadowprice.executors.virtual import Rate, VirtualJob
from shadowprice.experiments.figures import PALETTE, draw_box, policy_colours, samples_by_policy
from shadowprice.experiments.framework import grid
from shadowprice.experiments.live import simulate_submissions
from shadowprice.experiments.testbed.measure import POLICIES, InputFiles, scaled
from shadowprice.experiments.virtual import run_live
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import compare_with_first, interval
from shadowprice.simulator.source import ScenarioSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

SLOT_SECONDS: Final = 1200  # length of a slot: the paper's
LEAD_SLOTS: Final = 1  # slots of the service before the first one that counts
SUBMISSION_LEAD_SECONDS: Final = 30.0  # seconds before its slot at which a job is submitted
START_SHARE_RANGE: Final = (0.01, 0.05)  # minimum and maximum share of a slot that a start takes
STATED_RESTART_SECONDS: Final = 0.03 * SLOT_SECONDS  # cost of a start that jobs state: the mean
CHECKPOINT_SECONDS: Final = 0.01 * SLOT_SECONDS  # time that a job needs to write its checkpoint
FIRST_ORDER_DRAW: Final = 100
"""First draw of the simulations that order the policies; live runs have other draws."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, and whether it knows the price constants and the end of the timespan."""

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
    *(Variant(choice.label, choice) for choice in POLICIES if choice.name != "oasis"),
)


def measure_virtual(settings: ExperimentSettings) -> Tables:
    """Run every variant on every draw, live in virtual time and simulated."""
    draws = 2 if settings.quick else 10
    variants = [
        candidate for candidate in VARIANTS if not (settings.quick and candidate.label == "dorm")
    ]
    jobs = _run_draws(
        settings,
        grid(
            variant=variants, draw=range(settings.seed, settings.seed + draws), live=(False, True)
        ),
        lambda variant, draw, live: f"{variant.label}, draw {draw}{', live' if live else ''}",
    )
    runs = jobs.group_by("policy", "draw", "live", maintain_order=True).agg(
        pl.col("utility").sum(),
        completed=pl.col("completion").count(),
        moves=pl.col("moves").sum(),
    )
    order = _order(settings, variants)
    return {"summary": _summary(runs, jobs), "order": order, "runs": runs, "jobs": jobs}


def _order(settings: ExperimentSettings, variants: list[Variant]) -> pl.DataFrame:
    """Simulate many more draws, because the live draws are too few to order the policies.

    Only variants that know the end and the prices are compared, as in the paper.
    """
    first = settings.seed + FIRST_ORDER_DRAW
    draws = range(first, first + (3 if settings.quick else 120))
    compared = [variant for variant in variants if not variant.label.startswith("oasis, ")]
    jobs = _run_draws(
        settings,
        grid(variant=compared, draw=draws, live=[False]),
        "{variant.label}, order, draw {draw}".format,
    )
    runs = jobs.group_by("policy", "draw", maintain_order=True).agg(pl.col("utility").sum())
    columns_by_policy = _against_first(samples_by_policy(runs, "utility", "draw"))
    return pl.DataFrame(
        [
            {"policy": label, "draws": len(draws), **columns}
            for label, columns in columns_by_policy.items()
        ]
    )


def _run_draws(
    settings: ExperimentSettings, cases: list[dict[str, Any]], label: Callable[..., str]
) -> pl.DataFrame:
    """Return a row per case and job."""
    return settings.table(
        _run_draw, cases, label, dtypes={"completion": pl.Int64, "late": pl.Float64}
    )


def _against_first(samples: Mapping[str, list[float]]) -> dict[str, dict[str, float | None]]:
    """Return columns by policy: means with intervals, and paired differences to the first one."""
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


def _run_draw(variant: Variant, draw: int, live: bool) -> list[dict[str, Any]]:
    """Return a row per job of a draw; slots count from the first counted slot."""
    files = scaled(SLOT_SECONDS, seed=draw, restart=STATED_RESTART_SECONDS)
    choice = variant.informed(files, draw)
    end = LEAD_SLOTS + files.slots if variant.end else None
    run = _run_virtual if live else _simulate_jobs
    rows = []
    for name, (completion, moves) in run(files, choice, draw, end).items():
        slot = None if completion is None else completion - LEAD_SLOTS
        if slot is not None and slot >= files.slots:
            slot = None  # after the end of the timespan
        utility = files.utilities[name]
        duration = None if slot is None else slot - files.arrival(name)
        rows.append(
            {
                "policy": variant.label,
                "job": name,
                "completion": slot,
                "late": None if duration is None else duration - utility.target,
                "utility": 0.0 if duration is None else utility_value(utility, duration),
                "moves": moves,
            }
        )
    return rows


def _submitted(files: InputFiles) -> list[tuple[float, dict[str, Any]]]:
    """Return the jobs with their submission times in seconds since the start of the service."""
    share = SUBMISSION_LEAD_SECONDS / SLOT_SECONDS
    return [
        ((LEAD_SLOTS + files.arrival(str(job["name"])) - share) * files.seconds, dict(job))
        for job in files.jobs
    ]


def _price_constants(files: InputFiles, seed: int) -> dict[str, Any]:
    """Return OASiS's price constants over the whole job set, as settings of ``prices=given``."""
    documents = [{**job, "arrival": f"{after:.0f}s"} for after, job in _submitted(files)]
    scenario, _ = ScenarioSource(cluster=dict(files.cluster), jobs=documents).scenario(seed)
    context = replace(scenario, until=LEAD_SLOTS + files.slots).context()
    in_force = PolicyChoice("oasis", {"prices": "offline"}).build(context).parameters_in_force()
    settings: dict[str, Any] = {"prices": "given"}
    for pool in ("worker", "ps"):
        logarithms = in_force[pool]
        assert isinstance(logarithms, Mapping)
        if logarithms["ln_L"] is not None:
            lower = math.exp(logarithms["ln_L"])
            # exp() may round U below L.
            upper = {name: max(lower, math.exp(ln)) for name, ln in logarithms["ln_U"].items()}
            settings[pool] = {"L": lower, "U": upper}
    return settings


def _simulate_jobs(
    files: InputFiles, choice: PolicyChoice, _seed: int, end: int | None
) -> dict[str, tuple[int | None, int]]:
    # The seed is that of the service, because `fifo` and `rrh` draw numbers of workers.
    run = simulate_submissions(files.cluster, _submitted(files), choice, until=end)
    return {row["job"]: (row["completion"], 0) for row in run.jobs.iter_rows(named=True)}


def _rate(pace: float) -> Rate:
    """Return a job's rate in mini-batches per second; ``pace`` is one worker's mini-batch time."""
    return lambda shares: sum(share.workers for share in shares) / pace


def _run_virtual(
    files: InputFiles, choice: PolicyChoice, seed: int, end: int | None
) -> dict[str, tuple[int | None, int]]:
    generator = random.Random(f"testbed starts {seed}")
    submitted = []
    for after, job in _submitted(files):
        starts = tuple(
            SLOT_SECONDS * generator.uniform(*START_SHARE_RANGE) for _ in range(3 * files.slots)
        )
        behaviour = VirtualJob(
            work=float(job["epochs"] * job["chunks"] * job["minibatches"]),
            rate=_rate(files.pace[str(job["name"])]),
            start_seconds=starts,
            save_seconds=CHECKPOINT_SECONDS,
            report_every=30.0,
        )
        del job["arrival"]
        job["run"] = {"command": ["train"], "grace": "60s"}
        submitted.append((after, job, behaviour))
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
