"""Jobs that really ran, set beside what the simulator says of the same jobs and submissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from shadowprice.experiments.live import Lived
from shadowprice.results.files import Run


def as_submitted(job: Mapping[str, Any], lived: Lived) -> dict[str, Any]:
    """Return what a job file says of a job, under the name it ran by and as it was submitted."""
    # A job of a slot that has not begun is settled before it: it arrives with the slot.
    arrival = f"{max(0.0, lived.submitted):.6f}s"
    return {**job, "name": lived.record["name"], "arrival": arrival}


def predicted_progress(
    run: Run,
    cluster: Mapping[str, Any],
    job: Mapping[str, Any],
    speeds: Mapping[int, float],
    slots: int,
    seconds: float,
) -> list[float]:
    """Return mini-batches by the end of each slot, from what the simulator ran.

    Parameters
    ----------
    run : Run
        What it ran.
    cluster, job : mapping
        What it was told of the cluster, and of the job.
    speeds : mapping of int to float
        Mini-batches a second by number of workers.
    slots : int
        How many.
    seconds : float
        Length of one.
    """
    restart = float(str(job.get("restart", "0s")).removesuffix("s"))
    first = restart if cluster.get("restart_first") else 0.0
    held: dict[int, list[tuple[int, int, int]]] = {}
    for row in run.allocations.filter(pl.col("job") == job["name"]).iter_rows(named=True):
        held.setdefault(row["slot"], []).append((row["server"], row["workers"], row["ps"]))
    done, total = [], 0.0
    before: tuple[int, list[tuple[int, int, int]]] | None = None
    for slot in range(slots):
        now = sorted(held.get(slot, ()))
        if now:
            lost = 0.0
            if before is None:
                lost = first
            elif now != before[1] or before[0] != slot - 1:
                lost = restart
            total += speeds[sum(workers for _, workers, _ in now)] * (seconds - lost)
            before = (slot, now)
        done.append(total)
    return done


def measured_progress(
    lived: Lived, slots: int, seconds: float, finished: int | None, work: float
) -> list[float]:
    """Return mini-batches that were reported by the end of each slot.

    Parameters
    ----------
    lived : Lived
        What became of the job.
    slots : int
        How many.
    seconds : float
        Length of one.
    finished : int or None
        The slot in which it completed: from then on all is done.
    work : float
        All of it.
    """
    at = np.array([moment for moment, _ in lived.curve])
    most = np.maximum.accumulate([done for _, done in lived.curve]) if len(at) else np.zeros(0)
    done = []
    for slot in range(slots):
        seen = int(np.searchsorted(at, (slot + 1) * seconds, side="right"))
        over = finished is not None and slot >= finished
        done.append(work if over else float(most[seen - 1]) if seen else 0.0)
    return done
