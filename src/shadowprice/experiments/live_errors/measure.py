"""Utility of every policy in live runs when stated work is wrong, compared with simulation."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.policy import PolicyContext
from shadowprice.experiments.live_errors.workload import AHEAD, CLUSTER, SLOT, Workload, draw
from shadowprice.experiments.style import PALETTE, POLICY_COLOURS
from shadowprice.experiments.variants import samples_by_policy
from shadowprice.experiments.virtual import run_live, submitted_key
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import (
    compare_to_reference,
    compare_with_first,
    holm_adjust,
    interval,
)
from shadowprice.simulator.scenario import record_run
from shadowprice.simulator.source import ScenarioSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

ERRORS: Final = (0.0, 0.05, 0.2, 0.5)
"""Maximum relative error of a job's stated work, in either direction."""

REFERENCE: Final = "rolling"  # the policy that all others are compared with

_DORM: Final = {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}
"""Settings with which Dorm's program is solved within seconds."""

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
"""First draw of the runs that settle the reference's lead: other ones than those that chose the
rival."""

_LIVE_COLUMNS: Final = ("finished", "promised", "kept", "learnt", "learnt_kept", "moves", "lost")
"""Columns that a simulation leaves empty; ``learnt`` counts promises with a learnt margin."""


def measure_errors(settings: ExperimentSettings) -> Tables:
    """Run the same draws live under every policy and error; simulate each with its stated work."""
    draws, jobs, slots = (2, 16, 16) if settings.quick else (5, 60, 60)
    choices = [
        candidate
        for candidate in POLICIES
        if not settings.quick or candidate.name in {"rolling", "oasis", "fifo"}
    ]
    cases = [
        (choice, error, settings.seed + number, jobs, slots)
        for choice in choices
        for error in (None, *ERRORS)
        for number in range(draws)
    ]
    rows = settings.each(_measure_row, cases, _label)
    runs = pl.DataFrame(rows, infer_schema_length=None)
    summary = _summary(runs)
    lead = _lead(settings, summary, jobs, slots)
    return {"summary": summary, "lead": lead, "runs": runs, "promises": _promises(settings)}


def _lead(
    settings: ExperimentSettings, summary: pl.DataFrame, jobs: int, slots: int
) -> pl.DataFrame:
    """Run the reference and its closest rival on more draws: few leave the lead uncertain.

    The rival is the other policy that earns most on average over the errors. Its draws are fresh,
    so having been chosen as the best of many does not favour it.
    """
    live = summary.filter(pl.col("error").is_not_null(), pl.col("policy") != REFERENCE)
    means = live.group_by("policy").agg(pl.col("value").mean())
    rival = means.sort("value", "policy", descending=[True, False])["policy"][0]
    compared = [choice for choice in POLICIES if choice.name in {REFERENCE, rival}]
    first = settings.seed + FIRST_LEAD_DRAW
    draws = range(first, first + (2 if settings.quick else 20))
    cases = [
        (choice, error, draw, jobs, slots)
        for choice in compared
        for error in ERRORS
        for draw in draws
    ]
    values: dict[tuple[str, float], list[float]] = {}
    for row in settings.each(_measure_row, cases, _label):
        values.setdefault((row["policy"], row["error"]), []).append(row["value"])
    rows, unadjusted = [], []
    for error in ERRORS:
        reference, other = values[REFERENCE, error], values[rival, error]
        [paired] = compare_to_reference(other, [reference])
        unadjusted.append(paired.p)
        rows.append(
            {
                "error": error,
                "draws": len(draws),
                "reference": interval(reference).mean,
                "rival": rival,
                "rival_value": interval(other).mean,
                "lead": paired.difference.mean,
                "lead_half": paired.difference.half,
                "draws_ahead": sum(map(operator.gt, reference, other)),
            }
        )
    return pl.DataFrame(rows).with_columns(p=pl.Series(holm_adjust(unadjusted)))


def _promises(settings: ExperimentSettings) -> pl.DataFrame:
    """Run planners with many jobs, so that most promises have a learnt margin."""
    draws, jobs = (1, 40) if settings.quick else (2, 300)
    cases = [
        (choice, error, settings.seed + number, jobs, jobs)
        for choice in POLICIES
        if choice.name in PLANNERS
        for error in ERRORS[1:]
        for number in range(draws)
    ]
    columns = ["policy", "error", "draw", "promised", "kept", "learnt", "learnt_kept"]
    return pl.DataFrame(settings.each(_measure_row, cases, _label)).select(columns)


def _label(choice: PolicyChoice, error: float | None, seed: int, *_: int) -> str:
    how = "simulated" if error is None else f"live, errors of {error:.0%}"
    return f"{choice.label}, draw {seed}, {how}"


def _measure_row(
    choice: PolicyChoice, error: float | None, seed: int, jobs: int, slots: int
) -> dict[str, Any]:
    """Return the result row of one draw.

    It is of a live run with errors of work up to ``error``, or, for None, of a simulation of the
    stated work.
    """
    workload = draw(seed, jobs, slots)
    row: dict[str, Any] = {"policy": choice.label, "error": error, "draw": seed}
    offer = workload.on_offer()
    if error is None:
        return (
            row
            | {"value": _simulated_utility(choice, workload) / offer}
            | dict.fromkeys(_LIVE_COLUMNS)
        )
    # Long enough for every policy to finish all that it took.
    outcomes = run_live(
        CLUSTER, workload.submissions(error), choice, (slots + 100.0) * SLOT
    ).values()
    done = sum(outcome.done for outcome in outcomes)
    return row | {
        "value": sum(outcome.utility for outcome in outcomes) / offer,
        "finished": sum(outcome.state == "finished" for outcome in outcomes),
        "promised": sum(outcome.kept is not None for outcome in outcomes),
        "kept": sum(outcome.kept is True for outcome in outcomes),
        "learnt": sum(
            outcome.kept is not None and outcome.has_learnt_margin for outcome in outcomes
        ),
        "learnt_kept": sum(
            outcome.kept is True and outcome.has_learnt_margin for outcome in outcomes
        ),
        "moves": sum(max(0, outcome.generations - 1) for outcome in outcomes),
        "lost": sum(outcome.lost for outcome in outcomes) / done if done else 0.0,
    }


def _simulated_utility(choice: PolicyChoice, workload: Workload) -> float:
    """Return the simulated utility: jobs take their stated work and restart costs."""
    # `fifo` and others draw worker counts by the name, so it is that of the live job.
    documents = [
        {**record, "name": submitted_key(record), "arrival": f"{arrival * SLOT - AHEAD:.0f}s"}
        for record, arrival in zip(workload.records, workload.arrivals, strict=True)
    ]
    cluster = {**CLUSTER, "restart_first": True}
    scenario, _ = ScenarioSource(cluster=cluster, jobs=documents).scenario()
    # Without known jobs, as a live service decides.
    policy = choice.build(PolicyContext(cluster=scenario.cluster))
    run = record_run(scenario, choice.label, policy, at_once=True)
    return float(run.jobs["utility"].fill_null(0.0).sum())


def _summary(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row per policy and error: means with intervals, and distances to `rolling`."""
    rows: list[dict[str, Any]] = []
    for error in (None, *ERRORS):
        same = runs.filter(pl.col("error").is_null() if error is None else pl.col("error") == error)
        values = samples_by_policy(same, "value", "draw", REFERENCE)
        paired = compare_with_first(values)
        for policy, earned in values.items():
            rows_of_policy = same.filter(pl.col("policy") == policy)
            mean, difference = interval(earned), paired.get(policy)
            promised, learnt = (
                int(rows_of_policy[name].sum() or 0) for name in ("promised", "learnt")
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
                    "kept": int(rows_of_policy["kept"].sum() or 0) / promised if promised else None,
                    "learnt": learnt,
                    "learnt_kept": int(rows_of_policy["learnt_kept"].sum() or 0) / learnt
                    if learnt
                    else None,
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
            rows = summary.filter(pl.col("policy") == policy).drop_nulls(column).sort("error")
            if not len(rows):
                continue
            panel.plot(
                100.0 * rows["error"],
                scale * rows[column],
                marker="o^sv"[index // 4 % 4],
                color=POLICY_COLOURS.get(str(policy), PALETTE[index % len(PALETTE)]),
                linestyle=("-", "--", ":")[index // len(PALETTE) % 3],
                label=policy,
            )
        panel.set(title=title, xlabel="errors of stated work, at most (%)")
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
