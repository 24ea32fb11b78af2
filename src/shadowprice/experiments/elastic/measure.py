"""Real jobs of two tenants under several policies, compared with the simulator.

The cost of a start is measured first, on jobs that run one after the other. The cost of a move is
measured on a job that gives servers to another job and gets them back. Jobs state the larger cost.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import polars as pl

from shadowprice.core.errors import ShadowpriceError
from shadowprice.experiments import live
from shadowprice.experiments.figures import PALETTE, draw_completions, draw_predicted_and_real
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables
from shadowprice.policies.choice import PolicyChoice
from shadowprice.profiling.findings import Findings, round_significant
from shadowprice.profiling.running import Command, MeasurementLimits, measure_all

POLICIES: Final = (
    PolicyChoice("rolling", {"steady": True}, "rolling"),
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("fifo"),
    PolicyChoice("drf"),
)
"""Policies with the settings of both drivers: the simulator has to decide like the service."""

MIN_SLOT_SECONDS: Final = 5.0  # if starts take long, a slot is a multiple of this
MIN_STARTS_PER_SLOT: Final = 3  # minimum length of a slot, in durations of a start
PROBE_JOBS: Final = 3  # jobs that start one after the other to measure a start
MAX_SLOTS: Final = 120  # slots after which jobs that aren't over are cancelled
SCRIPT: Final = Path(__file__).with_name("train.py")
SERVERS: Final = ("server-1", "server-2")
WORKER_COUNTS: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """A job of the workload: submission time in seconds, steps and utility."""

    name: str
    tenant: str
    after: float
    steps: int
    utility: Mapping[str, Any]

    def scaled(self, factor: int) -> WorkloadJob:
        """Return the job with times and steps multiplied by a factor, for longer slots."""
        utility = dict(self.utility)
        for key in ("target", "by"):
            if key in utility:
                utility[key] = f"{float(utility[key].removesuffix('s')) * factor:g}s"
        after, steps = self.after * factor, self.steps * factor
        return replace(self, after=after, steps=steps, utility=utility)


def cluster(slot: float) -> dict[str, Any]:
    """Return the cluster's record for a length of slots in seconds."""
    return {
        "slot": f"{slot:g}s",
        "horizon": 60,
        "restart_first": True,
        "servers": [{"name": name, "capacity": {"cpu": 2, "memory": "4GiB"}} for name in SERVERS],
        "tenants": [{"name": "vision"}, {"name": "language"}],
    }


def _sigmoid(value: float, target: float) -> Mapping[str, Any]:
    return {"kind": "sigmoid", "value": value, "decay": 0.6, "target": f"{target:g}s"}


WORKLOAD: Final = (
    WorkloadJob("digits", "vision", 0.0, 240, _sigmoid(10, 60)),
    WorkloadJob("words", "language", 0.0, 240, _sigmoid(8, 90)),
    WorkloadJob("urgent", "vision", 17.0, 120, _sigmoid(40, 30)),
    WorkloadJob("tune", "language", 22.0, 80, {"kind": "deadline", "value": 12, "by": "60s"}),
    WorkloadJob("late", "vision", 36.0, 160, _sigmoid(15, 50)),
    WorkloadJob("batch", "language", 36.0, 120, {"kind": "constant", "value": 3}),
)


def measure_elastic(settings: ExperimentSettings) -> Tables:
    """Profile the job, run the workload for real under each policy, and simulate it."""
    live.check_live_jobs()
    target = settings.target or live.LOCAL_TARGET
    policies = POLICIES[:2] if settings.quick else POLICIES
    workload = WORKLOAD[:4] if settings.quick else WORKLOAD
    # Each part's result is stored, so a resumed experiment has the same speeds and slots.
    (steps,) = settings.each(_profile_speeds, [(WORKER_COUNTS,)], lambda *_: "measuring the job")
    speeds = {n: round_significant(per_second) for n, (per_second, _) in steps.items()}
    (start,) = settings.each(
        _median_start_seconds, [(speeds, target, settings.seed)], lambda *_: "measuring a start"
    )
    minimum = start + 1.0 / speeds[1]  # a job that moves finishes a step before it stops
    long = math.ceil(MIN_STARTS_PER_SLOT * minimum / MIN_SLOT_SECONDS) * MIN_SLOT_SECONDS
    (move,) = settings.each(
        _median_move_seconds, [(speeds, target, settings.seed, long)], lambda *_: "measuring a move"
    )
    restart = max(minimum, move)
    factor = math.ceil(MIN_STARTS_PER_SLOT * restart / MIN_SLOT_SECONDS)
    slot = factor * MIN_SLOT_SECONDS
    jobs = [
        (job.after, _record(job, speeds, settings.seed, restart))
        for job in (job.scaled(factor) for job in workload)
    ]
    ran = settings.each(
        _run_live,
        [(jobs, choice, slot, target) for choice in policies],
        lambda _jobs, choice, *_: f"really running under {choice.label}",
    )
    records = [job for _, job in jobs]
    runs = {
        choice.label: (results, live.predict(cluster(slot), records, results, choice))
        for choice, results in zip(policies, ran, strict=True)
    }
    table, progress = live.compare_runs(
        records, runs, itemgetter("throughput"), slot, None, _promise_and_changes
    )
    measured = [
        {"workers": n, "per_second": per_second, "half_width": half_width}
        for n, (per_second, half_width) in steps.items()
    ]
    seconds = {"slot": slot, "start": start, "move": move, "restart": restart}
    summary = live.summarize_runs(
        table,
        progress,
        finished=(pl.col("state") == "finished").sum(),
        promised=pl.col("first_promise").count(),
        kept=(pl.col("completion") <= pl.col("first_promise")).sum(),
    )
    return {
        "jobs": table,
        "progress": progress.with_columns(until=(pl.col("slot") + 1) * slot),
        "speed": pl.DataFrame(measured),
        "starts": pl.DataFrame([{"executor": target.executor, **seconds}]),
        "summary": summary,
    }


def _promise_and_changes(
    job: Mapping[str, Any], result: live.LiveJobResult, _row: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "tenant": job["tenant"],
        "first_promise": result.record["first_promise_slot"],
        "promise": result.record["promise_slot"],
        "changes": len(result.changes),
        "change": fmean(result.changes) if result.changes else None,
        "restart": result.restart,
    }


def _run_live(
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    choice: PolicyChoice,
    slot: float,
    target: live.ExecutorTarget,
) -> dict[str, live.LiveJobResult]:
    """Run jobs for real, and return their results."""
    return live.run_live_in_temp_dir(cluster(slot), jobs, choice, MAX_SLOTS * slot, target)


def _probe(
    number: int, steps: int, speeds: Mapping[int, float], seed: int, tenant: str = "vision"
) -> dict[str, Any]:
    """Return the record of a job that is run to measure its starts."""
    job = WorkloadJob(f"probe-{number}", tenant, 0.0, steps, {"kind": "constant", "value": 1})
    return _record(job, speeds, seed, 0.0)


def _median_move_seconds(
    speeds: Mapping[int, float], target: live.ExecutorTarget, seed: int, slot: float
) -> float:
    """Return the median seconds of a job's moves, 0 if the job reported none.

    The job has the cluster to itself, gives half of it to another job after two slots, and gets it
    back.
    """
    long, short = (int(speeds[2] * slot * slots) for slots in (10, 3))
    jobs = [
        (0.0, _probe(1, long, speeds, seed)),
        (2 * slot, _probe(2, short, speeds, seed, "language")),
    ]
    changes = _run_live(jobs, PolicyChoice("drf"), slot, target)["probe-1"].changes
    return median(changes) if changes else 0.0


def _median_start_seconds(
    speeds: Mapping[int, float], target: live.ExecutorTarget, seed: int
) -> float:
    """Return the median seconds from the beginning of a job's first slot to its first progress."""
    probes = [(0.0, _probe(number, 40, speeds, seed)) for number in range(PROBE_JOBS)]
    live_results = _run_live(probes, PolicyChoice("fifo"), MIN_SLOT_SECONDS, target)
    starts = [value.start(speeds) for value in live_results.values()]
    measured = [value for value in starts if value is not None]
    if not measured:
        reasons = [value.reason for value in live_results.values()]
        reason = next(filter(None, reasons), "the service recorded no reason")
        raise ShadowpriceError(f"the measured job made no progress: {reason}")
    return median(measured)


def _profile_speeds(worker_counts: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return mini-batches per second by number of workers, and half their confidence interval."""
    with tempfile.TemporaryDirectory(prefix="shadowprice-elastic-") as folder:
        command = Command(
            (sys.executable, str(SCRIPT), "--steps", "100000"), folder, _environment()
        )
        points, unmeasured = asyncio.run(
            measure_all(
                Path(folder, "bench"),
                command,
                [(n, 0) for n in worker_counts],
                MeasurementLimits(seconds=60.0),
                _without_progress,
            )
        )
    if unmeasured:
        raise ShadowpriceError(f"the job could not be measured: {next(iter(unmeasured.values()))}")
    curve = Findings(points, unmeasured, command).curve
    return {
        n: (float(point.step.per_second), float(point.step.half_width))
        for n, point in curve.items()
    }


def _without_progress(*_: object) -> None:
    """Ignore the profiler's progress, because the experiment shows its own."""


def _environment() -> dict[str, str]:
    """Return variables that make this package importable in a job, and limit it to one thread."""
    return {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}


def _record(
    job: WorkloadJob, speeds: Mapping[int, float], seed: int, restart: float
) -> dict[str, Any]:
    argv = [sys.executable, str(SCRIPT), "--steps", str(job.steps), "--seed", str(seed)]
    return {
        "name": job.name,
        "tenant": job.tenant,
        "chunks": max(speeds),
        "minibatches": job.steps // max(speeds),
        "throughput": dict(speeds),
        "worker": {"cpu": 1, "memory": "512MiB"},
        "restart": f"{restart:.2f}s",
        "utility": dict(job.utility),
        "run": {"command": argv, "env": _environment(), "retries": 2, "grace": "20s"},
    }


# ------------------------------------------------------------------ the figure


def draw_elastic(tables: Tables, figure: Figure) -> None:
    """Draw progress by policy, utility, and slots of completion, predicted and measured."""
    policies = tables["summary"]["policy"].to_list()
    slot = float(tables["starts"]["slot"][0])
    grid = figure.subplots(2, 3, squeeze=False)
    for axes, policy in zip(grid[:, :2].ravel(), policies, strict=False):
        rows = tables["progress"].filter(policy=policy)
        for colour, name in zip(PALETTE, rows["job"].unique(maintain_order=True), strict=False):
            job = rows.filter(job=name)
            seconds = (job["slot"] + 1) * slot
            axes.plot(seconds, job["predicted"], color=colour, linestyle="--", linewidth=1.0)
            axes.plot(seconds, job["measured"], color=colour, label=name, linewidth=1.6)
        axes.set(title=policy, xlabel="seconds", ylabel="share of the work", ylim=(-0.03, 1.05))
    grid[0, 0].legend(fontsize=8, loc="lower right")
    for axes in grid[:, :2].ravel()[len(policies) :]:
        axes.set_visible(False)
    title = "Utility: predicted (pale), earned"
    draw_predicted_and_real(
        grid[0, 2], tables["summary"], labelled=False, title=title, ylabel="utility"
    )
    draw_completions(grid[1, 2], tables["jobs"], policies, title="Slot of completion")
