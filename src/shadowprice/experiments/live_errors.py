"""Runs the live service under every policy, with jobs that take longer or shorter than stated."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import polars as pl

from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import utility_value
from shadowprice.executors.virtual import VirtualJob, stated_rate
from shadowprice.experiments.figures import PALETTE, POLICY_COLOURS, samples_by_policy
from shadowprice.experiments.framework import Experiment, ExperimentSettings, Figure, Tables, grid
from shadowprice.experiments.live import simulate_submissions
from shadowprice.experiments.virtual import run_live, submitted_key
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results import significance

# ------------------------------------------------------------------ workload


SLOT: Final = 1200  # seconds of a slot: the papers' 20 minutes
STEPS: Final = 1200  # mini-batches of a slot on one worker: one per second
START: Final = (0.01, 0.05)
"""Minimum and maximum share of a slot that a start takes, drawn for each start."""

SAVE: Final = 0.01  # share of a slot that a checkpoint takes on SIGTERM
RESTART: Final = "1min"  # restart cost that jobs state
AHEAD: Final = 30.0  # seconds before its slot at which a job is submitted
FIRST: Final = 1  # slot in which the first job may arrive
TENANTS: Final = ("vision", "speech", "text")

CLUSTER: Final[Mapping[str, Any]] = {
    "slot": f"{SLOT}s",
    "horizon": 60,
    # Capacity in places for workers and PS, because policies with tenants' shares require it.
    "servers": [{"name": "node", "count": 6, "capacity": {"worker": 4, "ps": 4}}],
    "tenants": [{"name": name, "share": {"worker": 8, "ps": 8}} for name in TENANTS],
}


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """One job of a draw."""

    record: Mapping[str, Any]  # record of a job file, without an arrival
    job: Job  # the resolved record, with the arrival
    relative_error: float  # error of its stated work in [-1, 1], relative to the maximum error
    starts: tuple[float, ...]  # seconds of its starts

    @property
    def submitted(self) -> float:
        """Submission time in seconds."""
        return self.job.arrival * SLOT - AHEAD

    @property
    def value_on_offer(self) -> float:
        """Utility of completing as fast as possible."""
        return utility_value(self.job.utility, self.job.min_slots_colocated - 1)

    def submission(self, error: float) -> tuple[float, Mapping[str, Any], VirtualJob]:
        """Return submission time, record and behaviour, for a maximum ``error`` of stated work."""
        rate, factor = stated_rate(self.job, SLOT), 1.0 + self.relative_error * error
        behaviour = VirtualJob(
            work=float(self.job.work),
            rate=lambda shares: rate(shares) / factor,
            start_seconds=self.starts,
            save_seconds=SAVE * SLOT,
            report_every=SLOT / 5,
        )
        run = {"command": ["train"], "grace": f"{SLOT // 10}s"}
        return self.submitted, {**self.record, "run": run}, behaviour


def draw_workload(seed: int, jobs: int, slots: int) -> list[DrawnJob]:
    """Draw jobs that need about one and a half times the cluster's 24 workers over some slots."""
    random_ = random.Random(f"live-errors {seed}")
    arrivals = sorted(random_.randrange(FIRST, slots) for _ in range(jobs))
    records: list[Mapping[str, Any]] = []
    for number, _ in enumerate(arrivals):
        workers = random_.choice([1, 2, 2, 4, 4, 8])
        length = random_.choice([2, 3, 4, 6, 8, 12])
        value = random_.uniform(1.0, 10.0) * workers * length
        target = round(length * random_.uniform(1.5, 4.0), 1)
        urgency = random_.choice([0.05, 0.3, 1.0])
        record: dict[str, Any] = {
            "name": f"job-{number}",
            "tenant": random_.choice(TENANTS),
            "epochs": length,
            "chunks": workers,
            "minibatches": STEPS,
            "minibatch_time": f"{float(Fraction(SLOT, STEPS))}s",
            "worker": {"worker": 1},
            "restart": RESTART,
            "utility": {
                "kind": "sigmoid",
                "value": round(value, 3),
                "decay": urgency,
                "target": f"{target} slots",
            },
        }
        if random_.random() < 0.5:
            record["ps"] = {"ps": 1}
        records.append(record)
    errors = [random_.uniform(-1.0, 1.0) for _ in records]
    starts = [tuple(SLOT * random_.uniform(*START) for _ in range(30)) for _ in records]
    on = ClusterSpec.model_validate(CLUSTER).resolve("live-errors")
    resolved = [
        JobSpec.model_validate({**record, "arrival": f"{arrival} slots"}).resolve(on)
        for record, arrival in zip(records, arrivals, strict=True)
    ]
    drawn = zip(records, resolved, errors, starts, strict=True)
    return [DrawnJob(*values) for values in drawn]


# ------------------------------------------------------------------ measurement


ERRORS: Final = (0.0, 0.05, 0.2, 0.5)
"""Maximum relative error of a job's stated work, in either direction."""

REFERENCE: Final = "rolling"  # policy that all others are compared with
_DORM: Final = {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}
"""Settings that limit Dorm's integer program, so that it is solved within seconds."""

POLICIES: Final = tuple(
    PolicyChoice(name, _DORM if name == "dorm" else {}, name)
    for name in (
        "rolling", "elasticflow", "rrh", "drf", "fifo", "srtf", "las", "backfill", "gandiva_fair",
        "hived", "oasis", "pdors", "dorm", "astraea", "batchsche",
    )
)  # fmt: skip
"""Every policy that runs without knowing future jobs."""

PLANNERS: Final = frozenset({"oasis", "pdors", "rolling"})
"""Policies whose promises are counted in longer runs."""

FIRST_LEAD_DRAW: Final = 1000
"""First draw of the runs that measure the lead; other draws than those that chose the rival."""

_LIVE_COLUMNS: Final = ("finished", "promised", "kept", "learnt", "learnt_kept", "moves", "lost")
"""Columns that a simulation leaves empty; ``learnt`` counts promises with a learnt margin."""


def measure_errors(settings: ExperimentSettings) -> Tables:
    """Run the same draws live under every policy and error, and simulated with stated work."""
    draws, jobs, slots = (2, 16, 16) if settings.quick else (5, 60, 60)
    choices = [
        candidate
        for candidate in POLICIES
        if not settings.quick or candidate.name in {"rolling", "oasis", "fifo"}
    ]
    seeds = range(settings.seed, settings.seed + draws)
    cases = grid(choice=choices, error=(None, *ERRORS), draw=seeds)
    runs = settings.table(_measure_row, cases, _label, jobs=jobs, slots=slots)
    summary = _summary(runs)
    lead = _lead(settings, summary, jobs, slots)
    return {"summary": summary, "lead": lead, "runs": runs, "promises": _promises(settings)}


def _lead(
    settings: ExperimentSettings, summary: pl.DataFrame, jobs: int, slots: int
) -> pl.DataFrame:
    """Measure the lead of the reference over its closest rival, on more draws.

    The rival is the other policy that earns most on average over the errors. The draws are new,
    because on the old ones a policy chosen as the best of many may only have been lucky.
    """
    live = summary.filter(pl.col("error").is_not_null(), pl.col("policy") != REFERENCE)
    means = live.group_by("policy").agg(pl.col("value").mean())
    rival = means.sort("value", "policy", descending=[True, False])["policy"][0]
    compared = [choice for choice in POLICIES if choice.name in {REFERENCE, rival}]
    first = settings.seed + FIRST_LEAD_DRAW
    draws = range(first, first + (2 if settings.quick else 20))
    cases = grid(choice=compared, error=ERRORS, draw=draws)
    runs = settings.table(_measure_row, cases, _label, jobs=jobs, slots=slots)
    rows, unadjusted = [], []
    for error in ERRORS:
        values = samples_by_policy(runs.filter(error=error), "value", "draw")
        reference, other = values[REFERENCE], values[rival]
        [paired] = significance.compare_to_reference(other, [reference])
        unadjusted.append(paired.p)
        rows.append(
            {
                "error": error,
                "draws": len(draws),
                "reference": significance.interval(reference).mean,
                "rival": rival,
                "rival_value": significance.interval(other).mean,
                "lead": paired.difference.mean,
                "lead_half": paired.difference.half,
                "draws_ahead": sum(map(operator.gt, reference, other)),
            }
        )
    return pl.DataFrame(rows).with_columns(p=pl.Series(significance.holm_adjust(unadjusted)))


def _promises(settings: ExperimentSettings) -> pl.DataFrame:
    """Run planners with many jobs, so that most promises have a learnt margin."""
    draws, jobs = (1, 40) if settings.quick else (2, 300)
    planners = [choice for choice in POLICIES if choice.name in PLANNERS]
    seeds = range(settings.seed, settings.seed + draws)
    cases = grid(choice=planners, error=ERRORS[1:], draw=seeds)
    columns = ["policy", "error", "draw", "promised", "kept", "learnt", "learnt_kept"]
    runs = settings.table(_measure_row, cases, _label, jobs=jobs, slots=jobs)
    return runs.select(columns)


def _label(choice: PolicyChoice, error: float | None, draw: int, **_: int) -> str:
    how = "simulated" if error is None else f"live, errors of {error:.0%}"
    return f"{choice.label}, draw {draw}, {how}"


def _measure_row(
    choice: PolicyChoice, error: float | None, draw: int, jobs: int, slots: int
) -> dict[str, Any]:
    """Return the row of a live run with errors up to ``error``, or of a simulation for None."""
    workload = draw_workload(draw, jobs, slots)
    row: dict[str, Any] = {"policy": choice.label}
    offer = sum(drawn.value_on_offer for drawn in workload)
    if error is None:
        value = _simulated_utility(choice, workload) / offer
        return {**row, "value": value, **dict.fromkeys(_LIVE_COLUMNS)}
    # Long enough for every policy to finish all admitted jobs.
    seconds = (slots + 100.0) * SLOT
    submissions = [drawn.submission(error) for drawn in workload]
    outcomes = run_live(CLUSTER, submissions, choice, seconds).values()
    done = sum(outcome.done for outcome in outcomes)
    learnt = [outcome.kept for outcome in outcomes if outcome.has_learnt_margin]
    return row | {
        "value": sum(outcome.utility for outcome in outcomes) / offer,
        "finished": sum(outcome.state == "finished" for outcome in outcomes),
        "promised": sum(outcome.kept is not None for outcome in outcomes),
        "kept": sum(outcome.kept is True for outcome in outcomes),
        "learnt": sum(kept is not None for kept in learnt),
        "learnt_kept": sum(kept is True for kept in learnt),
        "moves": sum(max(0, outcome.generations - 1) for outcome in outcomes),
        "lost": sum(outcome.lost for outcome in outcomes) / done if done else 0.0,
    }


def _simulated_utility(choice: PolicyChoice, workload: Iterable[DrawnJob]) -> float:
    """Return the utility of a simulation with stated work and stated restart costs."""
    # `fifo` and others draw worker counts by the name, so use the live job's.
    submitted = [
        (drawn.submitted, {**drawn.record, "name": submitted_key(drawn.record)})
        for drawn in workload
    ]
    run = simulate_submissions({**CLUSTER, "restart_first": True}, submitted, choice)
    return float(run.jobs["utility"].fill_null(0.0).sum())


def _summary(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per policy and error: means with intervals, and differences to `REFERENCE`."""
    rows: list[dict[str, Any]] = []
    for error in (None, *ERRORS):
        same = runs.filter(pl.col("error").eq_missing(error))
        values = samples_by_policy(same, "value", "draw", REFERENCE)
        paired = significance.compare_with_first(values)
        for policy, earned in values.items():
            rows_of_policy = same.filter(policy=policy)
            mean, difference = significance.interval(earned), paired.get(policy)
            promised, kept, learnt, learnt_kept = (
                int(rows_of_policy[name].sum() or 0)
                for name in ("promised", "kept", "learnt", "learnt_kept")
            )
            rows.append(
                {
                    "policy": policy,
                    "error": error,
                    "value": mean.mean,
                    "value_half": mean.half,
                    "below_reference": None if difference is None else -difference.difference.mean,
                    "below_half": None if difference is None else difference.difference.half,
                    "p": None if difference is None else difference.adjusted,
                    "finished": rows_of_policy["finished"].mean(),
                    "promised": promised,
                    "kept": kept / promised if promised else None,
                    "learnt": learnt,
                    "learnt_kept": learnt_kept / learnt if learnt else None,
                    "moves": rows_of_policy["moves"].mean(),
                    "lost": rows_of_policy["lost"].mean(),
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def draw_errors(tables: Tables, figure: Figure) -> None:
    """Draw utility, promises, moves and lost work of every policy over the size of errors."""
    panels = figure.subplots(2, 2).ravel()
    summary = tables["summary"].filter(pl.col("error").is_not_null())
    columns = (
        ("value", "value earned (% of that on offer)", 100.0),
        ("kept", "first promises that are kept (%)", 100.0),
        ("moves", "moves (a run)", 1.0),
        ("lost", "work lost (% of that done)", 100.0),
    )
    policies = summary["policy"].unique(maintain_order=True).to_list()
    for panel, (column, title, scale) in zip(panels, columns, strict=True):
        for index, policy in enumerate(policies):
            rows = summary.filter(policy=policy).drop_nulls(column).sort("error")
            style: dict[str, Any] = {
                "marker": "o^sv"[index // 4 % 4],
                "color": POLICY_COLOURS.get(str(policy), PALETTE[index % len(PALETTE)]),
                "linestyle": ("-", "--", ":")[index // len(PALETTE) % 3],
            }
            if len(rows):
                panel.plot(100.0 * rows["error"], scale * rows[column], label=policy, **style)
        panel.set(title=title, xlabel="errors of stated work, at most (%)")
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)


EXPERIMENTS = (
    Experiment(
        name="live-errors",
        title="Value, promises, moves and lost work on the live service, by error of stated work",
        source="this project",
        reported="Aim: OASiS with errors of 5 % earns 95 % of its simulated value; rolling earns "
        "the most at every error.",
        measure=measure_errors,
        draw=draw_errors,
        size=(12.0, 8.0),
    ),
)
