"""The testbed's jobs under each policy: real runs, compared with the simulator.

The cost of a start is measured first, on jobs that start together, and then stated in the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.beside import (
    check_live_jobs,
    measured_progress,
    predicted_progress,
    prediction_errors,
    progress_rows,
    submitted_scenario,
)
from shadowprice.experiments.live import ExecutorTarget, LiveJobResult, run_live_in_temp_dir
from shadowprice.experiments.testbed.files import InputFiles, scaled, to_submission
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import run_policy
from shadowprice.simulator.source import ScenarioSource

if TYPE_CHECKING:
    from shadowprice.experiments.framework import ExperimentSettings, Tables

POLICIES: Final = (
    PolicyChoice("fifo"),
    PolicyChoice("drf"),
    PolicyChoice("rrh"),
    PolicyChoice("dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}, "dorm"),
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("rolling", {"steady": True}, "rolling"),
)
"""Policies as on a live service, which doesn't know future jobs."""

SUBMIT_LEAD_SECONDS: Final = 3.0  # seconds before its slot at which a job is submitted

PROBE_JOBS: Final = 3  # jobs of a wave that start together to measure a start; there are two waves

PROBE_GAP_SLOTS: Final = 2  # slots between the two waves

BUSY_RETRY_FACTOR: Final = 4
"""Factor of slots in a second try, if no job made progress on a busy machine."""


@dataclass(frozen=True, slots=True)
class ExperimentScale:
    """Size of a run; ``seconds`` is the length of a slot."""

    seconds: int
    slots: int
    jobs: int
    policies: tuple[PolicyChoice, ...]


FULL: Final = ExperimentScale(seconds=40, slots=10, jobs=12, policies=POLICIES)
QUICK: Final = ExperimentScale(seconds=30, slots=4, jobs=4, policies=(POLICIES[0], POLICIES[-2]))


def measure_testbed(settings: ExperimentSettings) -> Tables:
    """Measure a start, run the jobs for real under each policy, and simulate the same files."""
    check_live_jobs(training=True)
    size = QUICK if settings.quick else FULL
    target = settings.target or ExecutorTarget()
    (start,) = settings.each(
        _mean_start_seconds, [(size, target, settings.seed)], lambda *_: "measuring a start"
    )
    restart = min(float(size.seconds), start)
    files = _files(size, settings.seed, restart)
    ran = settings.each(
        _run_policy,
        [(size, choice, target, settings.seed, restart) for choice in size.policies],
        lambda _size, choice, *_: f"really running under {choice.label}",
    )
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    hindsight: list[float] = []
    for choice, live_results in zip(size.policies, ran, strict=True):
        _compare(files, choice, live_results, rows, curves)
        mean_start = _mean_start(files, live_results)
        adjusted = _files(size, settings.seed, restart if mean_start is None else mean_start)
        hindsight.append(_predicted_utility(adjusted, choice, live_results))
    # A column without values has no type of its own.
    integers = dict.fromkeys(("completion", "predicted_completion"), pl.Int64)
    floats = dict.fromkeys(("late", "predicted_late", "start"), pl.Float64)
    table = pl.DataFrame(rows, schema_overrides={**integers, **floats}, infer_schema_length=None)
    progress = pl.DataFrame(curves, infer_schema_length=None)
    return {
        "jobs": table,
        "progress": progress,
        "starts": pl.DataFrame(
            [{"executor": target.executor, "slot": size.seconds, "start": start}]
        ),
        "summary": _summary(
            table, progress, [choice.label for choice in size.policies]
        ).with_columns(hindsight_utility=pl.Series(hindsight)),
    }


def _files(size: ExperimentScale, seed: int, restart: float | None) -> InputFiles:
    return scaled(size.seconds, seed=seed, jobs=size.jobs, slots=size.slots, restart=restart)


# ------------------------------------------------------------------ real runs


def _run_live(
    files: InputFiles,
    jobs: Sequence[Mapping[str, Any]],
    choice: PolicyChoice,
    target: ExecutorTarget,
    seed: int,
    slots: int,
) -> dict[str, LiveJobResult]:
    """Run some of the files' jobs, and return their results."""
    submissions = []
    for job in jobs:
        after = files.seconds * int(str(job["arrival"]).removesuffix(" slots"))
        submissions.append((after, to_submission(files, job, seed)))
    return run_live_in_temp_dir(
        files.cluster, submissions, choice, files.seconds * slots, target, ahead=SUBMIT_LEAD_SECONDS
    )


def _mean_start_seconds(size: ExperimentScale, target: ExecutorTarget, seed: int) -> float:
    """Return the mean seconds without progress after a start, from the beginning of a slot.

    In the runs several jobs start and move at one slot boundary, and share this machine's
    processors. The same happens here. The first wave starts with cold caches, so it only counts if
    the second made no progress.
    """
    files = _files(size, seed, None)
    waves = [
        wave for wave in (files.jobs[:PROBE_JOBS], files.jobs[PROBE_JOBS : 2 * PROBE_JOBS]) if wave
    ]
    jobs = [
        {**job, "arrival": f"{PROBE_GAP_SLOTS * number} slots"}
        for number, wave in enumerate(waves)
        for job in wave
    ]
    once = PROBE_GAP_SLOTS * len(waves)
    for slots in (once, BUSY_RETRY_FACTOR * once):
        live_results = _run_live(files, jobs, PolicyChoice("drf"), target, seed, slots)
        for wave in reversed(waves):
            starts = [live_results[str(job["name"])].start(files.speeds(job)) for job in wave]
            measured = [value for value in starts if value is not None]
            if measured:
                return fmean(measured)
    reasons = [value.record.get("reason") for value in live_results.values()]
    raise ShadowpriceError(f"the jobs that were to be measured got nowhere: {reasons}")


def _run_policy(
    size: ExperimentScale, choice: PolicyChoice, target: ExecutorTarget, seed: int, restart: float
) -> dict[str, LiveJobResult]:
    """Run all jobs under a policy until the last slot is over."""
    files = _files(size, seed, restart)
    return _run_live(files, files.jobs, choice, target, seed, size.slots)


# ------------------------------------------------------------------ comparison with the simulator


def simulated(
    files: InputFiles, choice: PolicyChoice, live_results: Mapping[str, LiveJobResult] | None = None
) -> RunData:
    """Simulate the files, or the jobs as they were really submitted.

    With ``live_results``, jobs have their real names and submission times. `fifo` draws numbers of
    workers by name.
    """
    if live_results is None:
        source = ScenarioSource(cluster=dict(files.cluster), jobs=list(files.jobs))
        return run_policy(source.scenario()[0], choice)
    # A job that is submitted ahead of its slot gets its response within the slot before.
    return run_policy(
        submitted_scenario(files.cluster, files.jobs, live_results), choice, at_once=True
    )


def _compare(
    files: InputFiles,
    choice: PolicyChoice,
    live_results: Mapping[str, LiveJobResult],
    rows: list[dict[str, Any]],
    curves: list[dict[str, Any]],
) -> None:
    """Compare real results with a simulation of the same files and submissions."""
    run = simulated(files, choice, live_results)
    simulated_jobs = {row["job"]: row for row in run.jobs.iter_rows(named=True)}
    on = ClusterSpec.model_validate(files.cluster).resolve("testbed")
    base = next(iter(live_results.values())).base
    end = base + files.slots
    for job in files.jobs:
        name = str(job["name"])
        result = live_results[name]
        record = result.record
        forecast = simulated_jobs[record["name"]]
        done = _within(record["completion_slot"], end) if record["state"] == "finished" else None
        expected = _within(forecast["completion"], end)
        utility = JobSpec.model_validate(job).resolve(on).utility
        assert isinstance(utility, Sigmoid)
        arrival = base + files.arrival(name)

        def late(slot: int | None, due: float = arrival + utility.target) -> float | None:
            return None if slot is None else slot - due

        rows.append(
            {
                "policy": choice.label, "job": name, "family": job["labels"]["family"],
                "class": job["labels"]["class"], "arrival": arrival - base,
                "state": record["state"], "predicted_state": forecast["outcome"],
                "completion": None if done is None else done - base,
                "predicted_completion": None if expected is None else expected - base,
                "late": late(done), "predicted_late": late(expected),
                "utility": 0.0 if done is None else float(record["utility"] or 0.0),
                "predicted_utility": 0.0 if expected is None else float(forecast["utility"] or 0.0),
                "generations": record["generation"], "failures": record["failures"],
                "start": result.start(files.speeds(job)),
                "reason": (record["reason"] or {}).get("message", ""),
            }
        )  # fmt: skip
        work = float(job["epochs"] * job["chunks"] * job["minibatches"])
        named = {**job, "name": record["name"]}
        predicted = predicted_progress(
            run, files.cluster, named, files.speeds(job), end, files.seconds
        )
        measured = measured_progress(result, end, files.seconds, done, work)
        curves += progress_rows(choice.label, name, predicted, measured, range(base, end), work)


def _mean_start(files: InputFiles, live_results: Mapping[str, LiveJobResult]) -> float | None:
    """Return the mean duration of first starts, at most a slot; None if no job started."""
    starts = (live_results[str(job["name"])].start(files.speeds(job)) for job in files.jobs)
    measured = [seconds for seconds in starts if seconds is not None]
    return min(files.seconds, fmean(measured)) if measured else None


def _predicted_utility(
    files: InputFiles, choice: PolicyChoice, live_results: Mapping[str, LiveJobResult]
) -> float:
    """Return the simulated utility at the end of the run."""
    run = simulated(files, choice, live_results)
    end = next(iter(live_results.values())).base + files.slots
    done = run.jobs.filter(pl.col("completion") < end)
    return float(done["utility"].sum())


def _within(slot: int | None, over: int) -> int | None:
    """Return a slot of completion, None if it is after the end of the run."""
    return None if slot is None or slot >= over else int(slot)


def _summary(jobs: pl.DataFrame, progress: pl.DataFrame, policies: Sequence[str]) -> pl.DataFrame:
    """Return a row per policy; the error of progress is a mean over jobs and slots."""
    summaries = []
    for policy in policies:
        rows = jobs.filter(pl.col("policy") == policy)
        summaries.append(
            {
                "policy": policy,
                "utility": rows["utility"].sum(),
                "predicted_utility": rows["predicted_utility"].sum(),
                "completed": rows["completion"].is_not_null().sum(),
                "predicted_completed": rows["predicted_completion"].is_not_null().sum(),
                "late": rows["late"].mean(),
                "predicted_late": rows["predicted_late"].mean(),
                "deviation": rows["late"].std(),
                "predicted_deviation": rows["predicted_late"].std(),
                **prediction_errors(rows, progress.filter(pl.col("policy") == policy)),
                "start": rows["start"].mean(),
                "generations": int(rows["generations"].sum()),
                "failures": int(rows["failures"].sum()),
            }
        )
    return pl.DataFrame(summaries, infer_schema_length=None)
