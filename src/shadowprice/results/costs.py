"""Cost of a run, if the cluster file states the hourly cost of servers."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.events import ServerBack, ServerLost
from shadowprice.results.metrics import NOT_ARRIVED, Summary
from shadowprice.results.recorder import Integers, Recorder
from shadowprice.results.slot_tables import Rows, segment_usage

Floats = NDArray[np.float64]


def job_costs(recorder: Recorder) -> Floats:
    """Return the cost of each job: its dominant share of every server that it ran on, by the hour.

    A job that uses half of a server's GPUs and a quarter of its memory pays for half of the server.
    Costs are in the currency of the cluster file, in an array of shape (jobs,).
    """
    segments = recorder.segments()
    costs = np.zeros(len(recorder.jobs))
    if len(segments.jobs):
        capacity = recorder.cluster.capacity[segments.servers]
        limited = (capacity > 0) & (capacity < UNLIMITED)
        reserved = segment_usage(recorder, segments)
        shares = np.where(limited, reserved / np.maximum(capacity, 1), 0.0).max(axis=1)
        hours = (segments.ends - segments.starts) * _slot_hours(recorder)
        np.add.at(costs, segments.jobs, shares * hours * _prices(recorder)[segments.servers])
    return costs


def cost_summary(recorder: Recorder, jobs: pl.DataFrame, slots: Integers, rows: Rows) -> Summary:
    """Return the cost of a run and its utility per cost.

    ``slots`` and ``rows`` are the allocations, from `slot_tables.expand`. ``used`` is the cost of
    the jobs' shares of servers, and ``occupied`` that of all servers during the slots in which a
    job runs on them. ``whole`` is the cost of all servers from the first arrival to the end of the
    run, also while idle, but not while lost. ``utility_per_used`` is None if nothing was used.
    """
    prices, hours = _prices(recorder), _slot_hours(recorder)
    servers = recorder.cluster.servers
    occupied = np.unique(slots * servers + recorder.segments().servers[rows])
    used, earned = float(jobs["cost"].sum()), float(jobs["utility"].sum())
    arrived = jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    first = arrived["arrival"].min()
    last = max((int(slots.max()) if len(slots) else -1), int(arrived["arrival"].max() or 0))  # type: ignore[arg-type]  # integers
    present = np.zeros(servers)
    if first is not None:
        present = _present_slots(recorder, int(first), last + 1)  # type: ignore[arg-type]  # an integer
    return {
        "used": used,
        "occupied": float(prices[occupied % servers].sum() * hours),
        "whole": float((prices * present).sum() * hours),
        "utility_per_used": earned / used if used else None,
    }


def _present_slots(recorder: Recorder, first: int, end: int) -> Floats:
    """Return the number of slots from `first` to `end` in which each server was present."""
    present = np.full(recorder.cluster.servers, float(max(end - first, 0)))
    lost_since: dict[str, int] = {}
    incidents = [
        event for event in recorder.incidents if isinstance(event, ServerLost | ServerBack)
    ]
    back = [ServerBack(end, name) for name in recorder.cluster.names]
    for incident in [*incidents, *back]:
        slot = min(max(incident.slot, first), end)
        if isinstance(incident, ServerLost):
            lost_since.setdefault(incident.server, slot)
        elif incident.server in lost_since:
            present[recorder.cluster.index[incident.server]] -= slot - lost_since.pop(
                incident.server
            )
    return present


def _prices(recorder: Recorder) -> Floats:
    assert recorder.cluster.costs is not None
    return recorder.cluster.costs


def _slot_hours(recorder: Recorder) -> float:
    return float(recorder.cluster.slot_seconds) / 3600
