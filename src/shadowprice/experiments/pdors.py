"""Figures 3.11 to 3.14 of PD-ORS's thesis: utility of co-location, and roundings of Algorithm 4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Final

import highspy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, JobsArrived, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.core.specs import ClusterSpec
from shadowprice.experiments.figures import PALETTE, POLICY_COLOURS, PolicyVariant, draw_band
from shadowprice.experiments.framework import Experiment, ExperimentSettings, Figure, Tables, grid
from shadowprice.kernels.slots.coupled_lp import solve_slots_lp
from shadowprice.kernels.slots.placement import EXACT as EXACT_METHOD
from shadowprice.kernels.slots.placement import RANDOMISED, Method, place_external, slot_at
from shadowprice.kernels.slots.polygons import Counts, Point, Slot
from shadowprice.kernels.slots.rounding import WHOLE, RequiredTotals, mix, round_feasibly
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.milp import LinearProgram, QuietHighs, weighted
from shadowprice.policies.pdors import PdorsParameters
from shadowprice.policies.pdors.policy import Pdors, PdorsPricedJob, SlotChoices, build_pairs
from shadowprice.simulator.driver import Simulation
from shadowprice.traces.generator import GeneratorOptions, colocated_cluster, generate

# ------------------------------------------------------------------ setting


SLOT: Final = Fraction(60)
"""Seconds of a slot, which the thesis doesn't state; its jobs then take 2 to 40 slots."""


PAPER: Final[Mapping[str, Any]] = {"preset": "paper"}
PDORS: Final = PolicyVariant("pdors", PolicyChoice("pdors", PAPER, "PD-ORS"))
EXACT: Final = PolicyVariant(
    "pdors-exact", PolicyChoice("pdors", {**PAPER, "placement": "exact"}, "PD-ORS, exact placement")
)
LITERAL: Final = PolicyVariant(
    "pdors-literal",
    PolicyChoice("pdors", {**PAPER, "bandwidth": "literal"}, "PD-ORS, (3.4) to the letter"),
)
OASIS: Final = PolicyVariant(
    "oasis", PolicyChoice("oasis", {**PAPER, "split": "half"}, "OASiS, half of the machines each")
)


@cache
def cluster(machines: int, slots: int, slot_seconds: Fraction, seed: int) -> Cluster:
    """Return the machines of a seed."""
    document = colocated_cluster(
        machines=machines, slot_seconds=slot_seconds, horizon=slots, seed=seed
    )
    return ClusterSpec.model_validate(document).resolve()


def workload(
    on: Cluster, jobs: int, slots: int, *, ratio: float = 40.0, seed: int = 0
) -> Sequence[Job]:
    """Return the jobs of a seed; ``ratio`` of internal to external bandwidth changes no draw."""
    options = GeneratorOptions(
        preset="pdors", jobs=jobs, slots=slots, slot_seconds=on.slot_seconds, internal_ratio=ratio
    )
    return generate(options, seed=seed).to_jobs(on)


# ------------------------------------------------------------------ figures


COLOURS: Final = {
    "pdors": POLICY_COLOURS["pdors"],
    "pdors-exact": PALETTE[4],
    "pdors-literal": PALETTE[3],
    "oasis": POLICY_COLOURS["oasis"],
}
MARKERS: Final = {"pdors": "o", "pdors-exact": "x", "pdors-literal": "s", "oasis": "^"}
JOBS: Final = (5, 10, 15, 20, 25, 30)
SLOT_SECONDS: Final = (20, 60, 120, 300, 600, 1200)
RATIOS: Final = (1, 2, 5, 10, 15, 20, 30, 40, 50, 60)


def _row(
    variant: PolicyVariant,
    jobs: int,
    ratio: float,
    slot_seconds: int,
    seed: int,
    machines: int,
    slots: int,
) -> dict[str, Any]:
    on = cluster(machines, slots, Fraction(slot_seconds), seed)
    run = variant.run(on, workload(on, jobs, slots, ratio=ratio, seed=seed), slots, seed)
    finished = run.jobs.filter(outcome="finished")
    guarantee = run.info["guarantee"]  # by Theorem 3, for OASiS by its Theorem 4
    servers = (
        run.allocations.filter(pl.col("job").is_in(finished["job"].implode()))
        .group_by("job", "slot")
        .len()["len"]
    )
    return {
        "policy": variant.key,
        "utility": run.jobs["utility"].sum(),
        "finished": len(finished),
        # Share of the running slots of finished jobs with all processes on one machine.
        "colocated": (servers == 1).mean(),
        "alpha": guarantee["alpha"],
        "ratio_proved": guarantee["ratio"],
        "optimum_at_most": guarantee["optimum_at_most"],
    }


_LABEL: Final = "{jobs} jobs, ratio {ratio:g}, {variant.key}".format


def measure_jobs(settings: ExperimentSettings) -> Tables:
    """Run 30 machines over 100 slots with 5 to 30 jobs, and 15 jobs at several slot lengths."""
    seeds = range(settings.seed, settings.seed + (4 if settings.quick else 30))
    all_variants, variants = (PDORS, EXACT, LITERAL, OASIS), (PDORS, LITERAL, OASIS)
    size: dict[str, Any] = {"machines": 30, "slots": 100}
    cases = grid(
        jobs=JOBS, ratio=[40.0], slot_seconds=[int(SLOT)], seed=seeds, variant=all_variants
    )
    utility = settings.table(_row, cases, _LABEL, **size)
    cases = grid(jobs=[15], ratio=[40.0], slot_seconds=SLOT_SECONDS, seed=seeds, variant=variants)
    lengths = settings.table(_row, cases, _LABEL, **size)
    return {"utility": utility, "slot_lengths": lengths, "theorem": _theorem(utility)}


def _theorem(table: pl.DataFrame) -> pl.DataFrame:
    """Return the proved ratio, and an upper bound of the actual ratio, by number of jobs."""
    return table.group_by("policy", "jobs", maintain_order=True).agg(
        pl.col("alpha", "ratio_proved").mean(),
        (pl.col("optimum_at_most").sum() / pl.col("utility").sum()).alias("ratio_at_most"),
        (pl.col("optimum_at_most") / pl.col("utility")).max().alias("ratio_at_most_worst"),
    )


def draw_jobs(tables: Tables, figure: Figure) -> None:
    """Draw utility over jobs, and PD-ORS's over OASiS's by the length of a slot."""
    left, right = figure.subplots(1, 2)
    _curves(left, tables["utility"], "jobs", (PDORS, EXACT, LITERAL, OASIS))
    left.set(xlabel="jobs", ylabel="total utility", title="30 machines, 100 slots of a minute")
    left.set_ylim(bottom=0)
    left.legend()
    lengths = tables["slot_lengths"]
    sums = lengths.group_by("slot_seconds", "policy").agg(pl.col("utility").sum())
    totals = sums.pivot(on="policy", index="slot_seconds").sort("slot_seconds")
    seconds = totals["slot_seconds"].to_numpy()
    for variant in (PDORS, LITERAL):
        key = variant.key
        relative = (totals[key] / totals["oasis"]).to_numpy()
        style = {"marker": MARKERS[key], "color": COLOURS[key], "label": variant.label}
        right.plot(seconds, relative, **style)
        if variant is PDORS:
            for x, y in zip(seconds, relative, strict=True):
                offset = {"textcoords": "offset points", "xytext": (5, 5), "fontsize": 9}
                right.annotate(f"{y:.1f}", (x, y), **offset)
    right.axhline(7, color=PALETTE[6], linestyle="--", linewidth=1)
    right.text(1300, 7.3, "thesis: more than 7", ha="right", fontsize=9, color=PALETTE[6])
    right.set_xscale("log")
    right.set_xticks(SLOT_SECONDS, [str(seconds) for seconds in SLOT_SECONDS])
    right.minorticks_off()
    right.set(
        xlabel="length of a slot in seconds (the thesis names none)",
        ylabel="utility over OASiS's",
        title="15 jobs",
    )
    right.set_ylim(0, None)
    right.margins(x=0.08, y=0.12)
    right.legend()


def measure_ratios(settings: ExperimentSettings) -> Tables:
    """Run 20 machines over 50 slots with 20 jobs at ratios of 1 to 60."""
    seeds = range(settings.seed, settings.seed + (6 if settings.quick else 40))
    ratios, variants = map(float, RATIOS), (PDORS, LITERAL, OASIS)
    cases = grid(jobs=[20], ratio=ratios, slot_seconds=[int(SLOT)], seed=seeds, variant=variants)
    return {"utility": settings.table(_row, cases, _LABEL, machines=20, slots=50)}


def draw_ratios(tables: Tables, figure: Figure) -> None:
    """Draw utility, and the share of co-located slots, over the ratio."""
    left, right = figure.subplots(1, 2)
    table = tables["utility"]
    _curves(left, table, "ratio", (PDORS, LITERAL, OASIS))
    left.set(ylabel="total utility", title="20 jobs, 20 machines, 50 slots of a minute")
    left.set_ylim(bottom=0)
    left.legend()
    _curves(right, table, "ratio", (PDORS, LITERAL), value="colocated")
    right.set(ylabel="share of running slots on one machine", title="Co-location")
    right.set_ylim(-0.02, 1.05)
    for panel in (left, right):
        panel.set_xlabel("internal over external bandwidth")


def _curves(
    axes: Any,
    table: pl.DataFrame,
    over: str,
    variants: Sequence[PolicyVariant],
    value: str = "utility",
) -> None:
    """Draw means over seeds with their standard errors."""
    mean = pl.col(value).mean()
    error = (pl.col(value).std() / pl.len().sqrt()).fill_null(0.0)
    band = {"mean": mean, "low": mean - error, "high": mean + error}
    for variant in variants:
        key = variant.key
        style: dict[str, Any] = {
            "color": COLOURS[key], "marker": MARKERS[key], "label": variant.label,
        }  # fmt: skip
        line = ":" if key == "pdors-exact" else "-"
        draw_band(axes, table.filter(policy=key), over, band, ls=line, **style)


# ------------------------------------------------------------------ rounding


PROBE_MACHINES: Final = 50
PROBE_SLOTS: Final = 100
PROBE_JOBS: Final = 150
TRIES: Final = 1000
SHOWN: Final = 0.01  # largest G - 1 of the thesis
WIDER: Final = 0.15  # largest G - 1 shown: the minimum of the rounds lies beyond the thesis's range
SURPLUS: Final = (
    *(1e-6, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01),
    *(0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 4.4),
)
"""Values of G - 1. Lemma 1 requires G above 1, so the smallest replaces the thesis's G = 1. The
largest is that of Theorem 2 at delta = 1 if one parameter server is enough.
"""

SOLUTION_SURPLUS: Final = (1e-6, 0.002, 0.006, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 4.4)
"""G - 1 at which both solutions of the relaxation are rounded."""
SOLUTION_SEEDS: Final = 2
"""Number of seeds whose placements are rounded from both solutions."""


PRINTED: Final = PdorsParameters(prices="offline", lower="theory")
"""The thesis's L and U. The default's higher L leaves machines emptier, with less to round."""

OURS: Final = POLICY_COLOURS["pdors"]


class PlacementProbe(Pdors):
    """PD-ORS that also computes the external placements of each decision at every G.

    ``states`` is the maximum number of slot states per job, evenly spread over its window. With
    ``solutions``, a vertex and an interior solution of the relaxation are rounded, too.
    """

    def __init__(
        self, context: PolicyContext, parameters: PdorsParameters, states: int, *, solutions: bool
    ) -> None:
        super().__init__(context, parameters)
        self._states = states
        self._solutions = solutions
        self.placements: list[pl.DataFrame] = []
        self.by_solution: list[pl.DataFrame] = []

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Record each job's placements, then decide as usual."""
        if not isinstance(event, JobsArrived):
            yield from super().decide(view, event)
            return
        for job in event.jobs:
            self._planner.follow(view.ledger)
            priced = self._planner.quote(view, job, job.required)
            assert isinstance(priced, PdorsPricedJob)
            choices = priced.choices
            count = len(choices.cost)
            sampled = np.unique(np.linspace(0, count - 1, self._states).astype(int))
            for state in sampled.tolist():
                self.placements.append(_placements(job, choices, state))
                if self._solutions:
                    rows = _round_solutions(job, choices, state)
                    # In the sums of a job, the sampled states stand for all states.
                    weight = pl.lit(count / len(sampled)).alias("weight")
                    self.by_solution.append(
                        rows.with_columns(weight, pl.lit(job.name).alias("job"))
                    )
            yield from super().decide(view, JobsArrived(event.slot, (job,)))


def _placements(job: Job, choices: SlotChoices, state: int) -> pl.DataFrame:
    """Place every number of workers in one state at the external rate, at every G."""
    optimum, _, _ = _place(job, choices, state, EXACT_METHOD, 2.0)  # ignores the gain
    frames = []
    for surplus in SURPLUS:
        cost, relaxed, rounds = _place(job, choices, state, RANDOMISED, 1.0 + surplus)
        fits = np.isfinite(optimum) & (optimum > 0)
        frames.append(
            pl.DataFrame(
                {
                    "surplus": np.full(int(fits.sum()), surplus),
                    "workers": job.worker_counts[fits],
                    "rounds": rounds[fits],
                    "over_relaxation": cost[fits] / relaxed[fits],
                    "over_optimum": cost[fits] / optimum[fits],
                }
            )
        )
    return pl.concat(frames)


def _place(
    job: Job, choices: SlotChoices, state: int, method: int, gain: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    cost, relaxed, rounds, _ = place_external(
        slot_at(choices.slots, state),
        build_pairs(job),
        np.full(len(job.worker_counts), np.inf),
        Method(method, False, gain, 1.0, TRIES),
        choices.streams[state],
        -1,
    )
    return cost, relaxed, rounds


def solve_interior(
    slot: Slot, workers: NDArray[np.int64], servers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Solve (3.22) for every pair by an interior-point method without crossover.

    If the optima form a face, the solution lies in its middle instead of a corner. Return workers
    and parameter servers, shape (pairs, 2, machines); NaN if a pair has no solution.
    """
    usable = np.flatnonzero(np.isfinite(slot.price_worker) & np.isfinite(slot.price_ps))
    count = len(usable)
    price = np.concatenate([slot.price_worker[usable], slot.price_ps[usable]])
    price /= max(float(price.max(initial=0.0)), 1e-300)  # at most 1, for the solver's tolerances
    limits = np.repeat([float(workers[-1]), float(servers[-1])], count)
    program = LinearProgram()
    columns = [
        program.column(cost=-cost, upper=limit, integer=False)
        for cost, limit in zip(price.tolist(), limits.tolist(), strict=True)
    ]
    program.row(weighted(columns[:count]), lower=0.0)
    program.row(weighted(columns[count:]), lower=0.0)
    for resource in np.flatnonzero((slot.worker > 0) | (slot.ps > 0)).tolist():
        worker, ps = float(slot.worker[resource]), float(slot.ps[resource])
        scale = max(worker, ps)
        for column, machine in enumerate(usable.tolist()):
            free = max(float(slot.free[machine, resource]), 0.0) / scale
            program.row([(column, worker / scale), (column + count, ps / scale)], upper=free)
    solver = QuietHighs()
    for option, value in (("solver", "ipm"), ("run_crossover", "off"), ("presolve", "off")):
        solver.setOptionValue(option, value)
    solver.passModel(program.model(relaxed=True))
    points = np.full((len(workers), 2, len(slot.free)), np.nan)
    for pair, (m_w, m_p) in enumerate(zip(workers.tolist(), servers.tolist(), strict=True)):
        solver.changeRowBounds(0, float(m_w), highspy.kHighsInf)
        solver.changeRowBounds(1, float(m_p), highspy.kHighsInf)
        solver.clearSolver()
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            values = np.maximum(np.array(solver.getSolution().col_value), 0.0)
            points[pair] = 0.0
            points[pair][:, usable] = values.reshape(2, count)
    return points


def _round_solutions(job: Job, choices: SlotChoices, state: int) -> pl.DataFrame:
    """Round a vertex and an interior solution of every placement in one state."""
    slot = slot_at(choices.slots, state)
    workers, servers = build_pairs(job)
    optimum, _, _ = _place(job, choices, state, EXACT_METHOD, 2.0)
    vertex = np.full((len(workers), 2, len(slot.free)), np.nan)
    solve_slots_lp(slot, workers, servers, False, vertex)
    solutions = {"vertex": vertex, "interior": solve_interior(slot, workers, servers)}
    fits = np.isfinite(optimum) & (optimum > 0)
    for points in solutions.values():
        fits &= np.isfinite(points[:, 0, 0])
    rows = []
    scratch = Counts(*np.zeros((2, len(slot.free)), np.int64))
    for pair in np.flatnonzero(fits).tolist():
        m_w, m_p = int(workers[pair]), int(servers[pair])
        stream = np.uint64(mix(choices.streams[state], m_w))
        for name, points in solutions.items():
            point = points[pair]
            between = int((np.abs(point - np.rint(point)) > WHOLE).sum())
            for surplus in SOLUTION_SURPLUS:
                rounds, _ = round_feasibly(
                    Point(*point), slot, RequiredTotals(m_w, m_p, int(workers[-1])),
                    1.0 + surplus, TRIES, stream, scratch,
                )  # fmt: skip
                rows.append((name, surplus, between, rounds))
    schema = {
        "solution": pl.String, "surplus": pl.Float64, "fractional": pl.Int64, "rounds": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _probe_rounding(seed: int, solutions: bool) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
    on = cluster(PROBE_MACHINES, PROBE_SLOTS, SLOT, seed)
    jobs = workload(on, PROBE_JOBS, PROBE_SLOTS, ratio=1.0, seed=seed)
    probe = PlacementProbe(
        PolicyContext(on, jobs, PROBE_SLOTS, seed), PRINTED, 4, solutions=solutions
    )
    Simulation(on, jobs, probe, until=PROBE_SLOTS).run()
    return probe.placements, probe.by_solution


def _by_solution(placements: pl.DataFrame) -> pl.DataFrame:
    """Return rounds per placement and per job by solution and G.

    A job's rounds are those of all placements of its decision: each number of workers in each state
    of its window.
    """
    rounded = pl.col("rounds") > 0
    tries = pl.when(rounded).then(pl.col("rounds")).otherwise(TRIES)
    keys = ("solution", "surplus")
    placements = placements.with_columns(tries.alias("tries"))
    per_placement = placements.group_by(keys).agg(
        pl.len().alias("placements"),
        pl.col("fractional").mean(),
        rounded.mean().alias("share_rounded"),
        pl.col("rounds").filter(rounded).mean().alias("mean_rounds"),
        pl.col("tries").mean().alias("mean_tries"),
    )
    sums = placements.group_by(*keys, "seed", "job").agg(
        (pl.col("rounds") * pl.col("weight")).sum(), (pl.col("tries") * pl.col("weight")).sum()
    )
    per_job = sums.group_by(keys).agg(
        pl.len().alias("jobs"),
        pl.col("rounds").mean().alias("rounds_per_job"),
        pl.col("rounds").median().alias("median_rounds_per_job"),
        pl.col("tries").mean().alias("tries_per_job"),
    )
    return per_placement.join(per_job, on=keys).sort(keys)


def measure_rounding(settings: ExperimentSettings) -> Tables:
    """Round placements that occur on 50 machines over 100 slots, at G from 1 to 5.4.

    Internal links are as fast as external ones here. With faster internal links, nearly every job
    is on one machine, the cluster stays empty, and few placements need rounding.
    """
    seeds = 2 if settings.quick else 10
    results = settings.each(
        _probe_rounding,
        [(settings.seed + index, index < SOLUTION_SEEDS) for index in range(seeds)],
        lambda seed, _: f"seed {seed}",
    )
    placements = pl.concat([table for tables, _ in results for table in tables])
    by_solution = pl.concat(
        [
            table.with_columns(pl.lit(index).alias("seed"))
            for index, (_, tables) in enumerate(results)
            for table in tables
        ]
    )
    rounded = pl.col("rounds") > 0
    table = (
        placements.group_by("surplus")
        .agg(
            pl.len().alias("placements"),
            rounded.mean().alias("share_rounded"),
            pl.col("rounds").filter(rounded).mean().alias("mean_rounds"),
            pl.col("rounds").filter(rounded).median().alias("median_rounds"),
            pl.col("rounds").filter(rounded).quantile(0.99).alias("rounds_99"),
            # As in the thesis, an infeasible placement counts with all its tries.
            pl.when(rounded).then(pl.col("rounds")).otherwise(TRIES).mean().alias("mean_tries"),
            pl.col("over_relaxation").mean(),
            pl.col("over_relaxation").filter(rounded).mean().alias("over_relaxation_rounded"),
            pl.col("over_optimum").mean(),
            pl.col("over_optimum").filter(rounded).mean().alias("over_optimum_rounded"),
            pl.col("over_optimum").quantile(0.99).alias("over_optimum_99"),
            pl.col("over_optimum").max().alias("over_optimum_worst"),
        )
        .sort("surplus")
    )
    return {"rounding": table, "solutions": _by_solution(by_solution)}


def draw_rounds(tables: Tables, figure: Figure) -> None:
    """Draw mean rounds over G, rounds of placements that rounding found, and their share."""
    left, middle, right = figure.subplots(1, 3)
    all_rows = tables["rounding"]
    table = all_rows.filter(pl.col("surplus") <= WIDER)
    gain = 1 + table["surplus"].to_numpy()
    tries = table["mean_tries"].to_numpy()
    left.plot(gain, tries, marker="o", color=OURS)
    best = int(np.argmin(tries))
    left.annotate(
        f"minimum: {tries[best]:.0f} at {gain[best]:.6g}", (gain[best], tries[best]),
        textcoords="offset points", xytext=(18, -18), fontsize=9,
        arrowprops={"arrowstyle": "-", "color": PALETTE[6]},
    )  # fmt: skip
    left.set_ylim(0.8 * tries.min(), None)
    left.set(ylabel="rounds, 1,000 if none succeeds", title="Minimum (in the thesis: 570 at 1.006)")
    style = {"color": PALETTE[0], "ls": ":", "marker": "o", "label": "99 % quantile"}
    middle.plot(gain, table["rounds_99"].to_numpy(), **style)
    middle.plot(gain, table["mean_rounds"].to_numpy(), marker="s", color=PALETTE[0], label="mean")
    middle.set_yscale("log")
    middle.set(ylabel="rounds", title="Placements found by rounding")
    middle.legend()
    for panel in (left, middle):
        panel.axvspan(1.0, 1.0 + SHOWN, color=PALETTE[6], alpha=0.12, linewidth=0)
        panel.set_xlabel("gain factor G (grey: the thesis's range)")
    right.plot(
        all_rows["surplus"].to_numpy(), all_rows["share_rounded"].to_numpy(), marker="o", color=OURS
    )
    right.axvspan(1e-6, SHOWN, color=PALETTE[6], alpha=0.12, linewidth=0)
    right.set_xscale("log")
    right.set(xlabel="G - 1", ylabel="share of placements", title="Found within 1,000 rounds")
    right.set_ylim(0, 1)


def draw_cost_ratios(tables: Tables, figure: Figure) -> None:
    """Draw costs relative to the relaxation and to the optimum."""
    left, right = figure.subplots(1, 2, sharex=True)
    table = tables["rounding"].filter(pl.col("surplus") <= SHOWN)
    gain = 1 + table["surplus"].to_numpy()
    for axes, column, title in (
        (left, "over_relaxation", "Over the relaxation of (3.22)"),
        (right, "over_optimum", "Over the cheapest placement"),
    ):
        for name, label, marker, colour in (
            (column, "all placements, repaired ones included", "o", OURS),
            (f"{column}_rounded", "placements found by rounding", "s", PALETTE[0]),
        ):
            axes.plot(gain, table[name].to_numpy(), marker=marker, color=colour, label=label)
        axes.axhline(1.0025, color=PALETTE[6], linestyle="--", linewidth=1)
        axes.set(xlabel="gain factor G", ylabel="mean ratio of costs", title=title)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_ylim(bottom=1.0)
    right.annotate(
        "thesis: at most 1.0025", (1.01, 1.0025), textcoords="offset points", xytext=(0, -12),
        ha="right", fontsize=9, color=PALETTE[6],
    )  # fmt: skip
    left.legend(loc="center")


SOURCE = "Yu, MSc thesis (Iowa State 2019)"

EXPERIMENTS = (
    Experiment(
        name="pdors-fig3.11",
        title="Total utility over the number of jobs, compared with OASiS on the same machines",
        source=f"{SOURCE}, Fig. 3.11",
        reported="PD-ORS well above OASiS throughout; more than 7 times its utility at 15 jobs "
        "(30 machines, 100 slots, internal links 40 times as fast).",
        measure=measure_jobs,
        draw=draw_jobs,
    ),
    Experiment(
        name="pdors-fig3.12",
        title="Total utility over the ratio of internal to external bandwidth",
        source=f"{SOURCE}, Fig. 3.12",
        reported="Rises rapidly at first, slowly beyond a ratio of 30, when most jobs are "
        "co-located (20 machines, 50 slots).",
        measure=measure_ratios,
        draw=draw_ratios,
    ),
    Experiment(
        name="pdors-fig3.13",
        title="Rounds of rounding until a placement is feasible, over the gain factor",
        source=f"{SOURCE}, Fig. 3.13",
        reported="Fewest rounds, 570, at G = 1.006; more on either side, fewer than 1,000 for "
        "every G from 1 to 1.01 (50 machines, 100 slots).",
        measure=measure_rounding,
        draw=draw_rounds,
        size=(14.0, 4.4),
    ),
    Experiment(
        name="pdors-fig3.14",
        title="Cost of rounded placements over that of the relaxation and of the optimum",
        source=f"{SOURCE}, Fig. 3.14",
        reported="At most 1.0025 for every G from 1 to 1.01 (50 machines, 100 slots).",
        measure=measure_rounding,
        draw=draw_cost_ratios,
    ),
)
