"""Comparison of jobs that really ran with a simulation of the same jobs and submissions."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl

from shadowprice.core.errors import MissingExtraError
from shadowprice.core.job_keys import qualified_name
from shadowprice.experiments.framework import UnavailableError
from shadowprice.experiments.live import LiveJobResult
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import Scenario
from shadowprice.simulator.source import ScenarioSource


def check_live_jobs(*, training: bool = False) -> None:
    """Raise an error if jobs can't really run on this machine, or its extras are missing."""
    if not sys.platform.startswith("linux"):
        raise UnavailableError("jobs really run in this experiment, which needs Linux")
    if find_spec("uvicorn") is None:
        raise MissingExtraError("uvicorn", "service", "running the live service")
    if training and find_spec("torch") is None:
        raise MissingExtraError("torch", "train", "training the jobs")


def live_key(job: Mapping[str, Any], live_result: LiveJobResult) -> str:
    """Return the key by which the service's policy knew a job: `fifo` draws worker counts by it."""
    return qualified_name(job.get("tenant"), live_result.record["name"])


def submitted_record(job: Mapping[str, Any], live_result: LiveJobResult) -> dict[str, Any]:
    """Return a job's record with the key under which it ran and its real submission time."""
    # A job submitted before slot 0 arrives with slot 0.
    arrival = f"{max(0.0, live_result.submitted):.6f}s"
    return {**job, "name": live_key(job, live_result), "arrival": arrival}


def submitted_scenario(
    cluster: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    live_results: Mapping[str, LiveJobResult],
    seed: int = 0,
) -> Scenario:
    """Return the jobs for the simulator as they were really submitted, under their real names."""
    documents = []
    for job in jobs:
        stated = {key: value for key, value in job.items() if key != "run"}
        documents.append(submitted_record(stated, live_results[str(job["name"])]))
    return ScenarioSource(cluster=dict(cluster), jobs=documents).scenario(seed)[0]


def predicted_progress(
    run: RunData,
    cluster: Mapping[str, Any],
    job: Mapping[str, Any],
    speeds: Mapping[int, float],
    slots: int,
    seconds: float,
) -> list[float]:
    """Return the simulated mini-batches at the end of each slot.

    ``cluster`` and ``job`` are the records that the simulator ran. ``speeds`` has mini-batches per
    second by number of workers. ``seconds`` is the length of a slot.
    """
    restart = float(str(job.get("restart", "0s")).removesuffix("s"))
    first = restart if cluster.get("restart_first") else 0.0
    placements: dict[int, list[tuple[int, int, int]]] = {}
    for row in run.allocations.filter(pl.col("job") == job["name"]).iter_rows(named=True):
        placements.setdefault(row["slot"], []).append((row["server"], row["workers"], row["ps"]))
    done, total = [], 0.0
    previous: tuple[int, list[tuple[int, int, int]]] | None = None
    for slot in range(slots):
        now = sorted(placements.get(slot, ()))
        if now:
            lost = 0.0
            if previous is None:
                lost = first
            elif now != previous[1] or previous[0] != slot - 1:
                lost = restart
            total += speeds[sum(workers for _, workers, _ in now)] * (seconds - lost)
            previous = (slot, now)
        done.append(total)
    return done


def measured_progress(
    live_result: LiveJobResult, slots: int, seconds: float, finished: int | None, work: float
) -> list[float]:
    """Return the reported mini-batches at the end of each slot.

    ``seconds`` is the length of a slot, and ``work`` all mini-batches of the job. ``finished`` is
    the slot of completion; from then on all work counts as done.
    """
    moments = np.array([moment for moment, _ in live_result.curve])
    running_maximum = (
        np.maximum.accumulate([done for _, done in live_result.curve])
        if len(moments)
        else np.zeros(0)
    )
    done = []
    for slot in range(slots):
        count = int(np.searchsorted(moments, (slot + 1) * seconds, side="right"))
        complete = finished is not None and slot >= finished
        done.append(work if complete else float(running_maximum[count - 1]) if count else 0.0)
    return done


def progress_rows(
    policy: str,
    name: str,
    predicted: Sequence[float],
    measured: Sequence[float],
    slots: range,
    work: float,
) -> list[dict[str, Any]]:
    """Return a row per slot: shares of a job's work, predicted and measured, by its end.

    ``slots`` are the slots that count; the first is slot 0 of the rows.
    """
    return [
        {
            "policy": policy,
            "job": name,
            "slot": slot - slots.start,
            "predicted": min(1.0, predicted[slot] / work),
            "measured": min(1.0, measured[slot] / work),
        }
        for slot in slots
    ]


def prediction_errors(jobs: pl.DataFrame, progress: pl.DataFrame) -> dict[str, float]:
    """Return the mean errors of predicted slots of completion, and of progress."""
    both = jobs.drop_nulls(["completion", "predicted_completion"])
    off = (both["completion"] - both["predicted_completion"]).abs().cast(pl.Float64)
    errors = (progress["measured"] - progress["predicted"]).abs()
    return {
        "slots_off": float(np.mean(off.to_numpy())) if len(off) else math.nan,
        "progress_off": float(np.mean(errors.to_numpy())) if len(errors) else math.nan,
    }
