"""Utility of policies on the testbed's files by the cost of a start, simulated.

If the jobs really run, a start takes a large part of a slot; in the paper it takes a fiftieth. This
experiment isolates that difference. It simulates many draws of the jobs, submitted as in real runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.experiments.live import LiveJobResult
from shadowprice.experiments.panels import policy_colours
from shadowprice.experiments.testbed.files import scaled
from shadowprice.experiments.testbed.measure import POLICIES, SUBMIT_LEAD_SECONDS, simulated
from shadowprice.experiments.variants import samples_by_policy
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import compare_with_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

SECONDS: Final = 40  # length of a slot, as in the real runs

BEFORE: Final = 2  # slots before the first one that counts

REFERENCE: Final = "oasis"  # policy to which the others are compared, draw by draw

PRINTED: Final = PolicyChoice(
    "oasis", {"prices": "online", "restarts": "ignored"}, "oasis, as printed"
)
"""OASiS as in its paper, which plans as if a start cost nothing."""


def measure_starts(settings: ExperimentSettings) -> Tables:
    """Simulate every policy on many draws of the jobs, for several costs of a start."""
    starts = (0.0, 12.0, 30.0) if settings.quick else (0.0, 3.0, 6.0, 12.0, 20.0, 30.0, 40.0)
    draws = 3 if settings.quick else 20
    choices = tuple(choice for choice in POLICIES if not (settings.quick and choice.name == "dorm"))
    cases = [
        (choice, start, settings.seed + number)
        for choice in (*choices, PRINTED)
        for start in starts
        for number in range(draws)
    ]
    rows = settings.each(
        run_policy_draw, cases, lambda choice, start, _: f"{choice.label}, a start of {start:g} s"
    )
    table = pl.DataFrame(rows)
    summary = table.group_by("policy", "start", maintain_order=True).agg(
        utility=pl.col("utility").mean(),
        error=pl.col("utility").std() / pl.len().sqrt(),
        completed=pl.col("completed").mean(),
        promised=pl.col("promised").sum(),
        kept=pl.col("kept").sum(),
    )
    return {"summary": summary, "differences": _differences(table), "runs": table}


def _differences(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the paired differences of each policy's utility to that of `oasis`, by start."""
    rows: list[dict[str, Any]] = []
    for (start,), same in runs.group_by("start", maintain_order=True):
        pairs = compare_with_first(samples_by_policy(same, "utility", "seed", REFERENCE))
        rows += [
            {
                "policy": other,
                "start": start,
                "beyond_oasis": pair.difference.mean,
                "beyond_half": pair.difference.half,
                "p": pair.p,
                "adjusted_p": pair.adjusted,
            }
            for other, pair in pairs.items()
        ]
    return pl.DataFrame(rows)


def run_policy_draw(choice: PolicyChoice, start: float, seed: int) -> dict[str, Any]:
    """Return a policy's utility on one draw of the jobs, and the promises that it keeps.

    ``start`` is the seconds that a job loses when it starts or moves.
    """
    files = scaled(SECONDS, seed=seed, restart=start or None)
    submitted = {
        str(job["name"]): LiveJobResult(
            record={"name": job["name"]},
            submitted=(BEFORE + files.arrival(str(job["name"]))) * files.seconds
            - SUBMIT_LEAD_SECONDS,
            curve=(),
            base=BEFORE,
        )
        for job in files.jobs
    }
    run = simulated(files, choice, submitted)
    completion = dict(run.jobs.select("job", "completion").iter_rows())
    promised: dict[str, int] = {}
    for decision in run.decisions(False):
        promise = decision.get("promise", decision.get("completion"))
        if decision["outcome"] == "admitted" and promise is not None:
            promised.setdefault(decision["job"], promise)
    kept = [job for job, promise in promised.items() if completion[job] in range(promise + 1)]
    done = run.jobs.filter(pl.col("completion") < BEFORE + files.slots)
    return {
        "policy": choice.label,
        "start": start,
        "seed": seed,
        "utility": float(done["utility"].sum()),
        "completed": len(done),
        "promised": len(promised),
        "kept": len(kept),
    }


def draw_starts(tables: Tables, figure: Figure) -> None:
    """Draw utility, and promises kept, by the cost of a start."""
    left, right = figure.subplots(1, 2)
    summary = tables["summary"]
    for policy in summary["policy"].unique(maintain_order=True):
        rows = summary.filter(pl.col("policy") == policy).sort("start")
        (colour,) = policy_colours([policy])
        style: dict[str, Any] = {
            "color": colour,
            "linestyle": "--" if "," in policy else "-",
            "marker": "o",
            "label": policy,
        }
        left.errorbar(rows["start"], rows["utility"], rows["error"], capsize=2, **style)
        rows = rows.filter(pl.col("promised") > 0)
        if len(rows):
            right.plot(rows["start"], 100 * rows["kept"] / rows["promised"], **style)
    left.set(
        title=f"Fig. 7 by what a start costs (of {SECONDS} s)",
        xlabel="a start takes (s)",
        ylabel="total utility, mean and its error",
    )
    left.set_ylim(bottom=0)
    left.legend(fontsize=8, handlelength=3.5)
    right.set(
        title="First promises that are kept", xlabel="a start takes (s)", ylabel="% of those made"
    )
    right.set_ylim(-3, 103)
    right.legend(fontsize=8, handlelength=3.5)
