"""Comparison of jobs that really ran with a simulation of the same jobs and submissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from shadowprice.core.job_keys import qualified_name
from shadowprice.experiments.live import LiveJobResult
from shadowprice.results.run_directory import RunData


def live_key(job: Mapping[str, Any], lived: LiveJobResult) -> str:
    """Return the key by which the service's policy knew a job: `fifo` draws worker counts by it."""
    return qualified_name(job.get("tenant"), lived.record["name"])


def submitted_record(job: Mapping[str, Any], lived: LiveJobResult) -> dict[str, Any]:
    """Return a job's record with the key under which it ran and its real submission time."""
    # A job submitted before slot 0 arrives with slot 0.
    arrival = f"{max(0.0, lived.submitted):.6f}s"
    return {**job, "name": live_key(job, lived), "arrival": arrival}


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
    lived: LiveJobResult, slots: int, seconds: float, finished: int | None, work: float
) -> list[float]:
    """Return the reported mini-batches at the end of each slot.

    ``seconds`` is the length of a slot, and ``work`` all mini-batches of the job. ``finished`` is
    the slot of completion; from then on all work counts as done.
    """
    moments = np.array([moment for moment, _ in lived.curve])
    running_maximum = (
        np.maximum.accumulate([done for _, done in lived.curve]) if len(moments) else np.zeros(0)
    )
    done = []
    for slot in range(slots):
        count = int(np.searchsorted(moments, (slot + 1) * seconds, side="right"))
        complete = finished is not None and slot >= finished
        done.append(work if complete else float(running_maximum[count - 1]) if count else 0.0)
    return done
