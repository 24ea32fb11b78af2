"""What a run cost, where the cluster file states what servers cost an hour."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.events import ServerBack, ServerLost
from shadowprice.results.metrics import NOT_ARRIVED, Summary
from shadowprice.results.recorder import Integers, Recorder
from shadowprice.results.slot_tables import Rows, amounts_held

Floats = NDArray[np.float64]


def job_costs(recorder: Recorder) -> Floats:
    """Return what each job cost: its dominant share of every server it stood on, by the hour.

    A job that takes half of a server's GPUs and a quarter of its memory pays for half of it, which
    leaves the other half, with what memory there is, for others to pay.

    Parameters
    ----------
    recorder : Recorder
        Of a cluster whose servers have prices.

    Returns
    -------
    ndarray of float64, shape (jobs,)
        In the currency of the cluster file.
    """
    segments = recorder.segments()
    costs = np.zeros(len(recorder.jobs))
    if len(segments.jobs):
        capacity = recorder.cluster.capacity[segments.servers]
        limited = (capacity > 0) & (capacity < UNLIMITED)
        held = amounts_held(recorder, segments)
        shares = np.where(limited, held / np.maximum(capacity, 1), 0.0).max(axis=1)
        hours = (segments.ends - segments.starts) * _slot_hours(recorder)
        np.add.at(costs, segments.jobs, shares * hours * _prices(recorder)[segments.servers])
    return costs


def spending(recorder: Recorder, jobs: pl.DataFrame, slots: Integers, rows: Rows) -> Summary:
    """Return what a run cost, and earned for it.

    Parameters
    ----------
    recorder : Recorder
        Of a cluster whose servers have prices.
    jobs : polars.DataFrame
        Its job table, with ``cost``.
    slots, rows : ndarray of int64, ndarray of int32
        What ran, as `slot_tables.expand` gives it.

    Returns
    -------
    dict
        ``used``, the jobs' shares of servers; ``occupied``, servers on which anything stood, for
        the slots in which it did; ``whole``, all servers that were there from the first arrival to
        the end of the run, idle or not; ``utility_per_used`` (None where nothing was used).
    """
    prices, hours = _prices(recorder), _slot_hours(recorder)
    servers = recorder.cluster.servers
    taken = np.unique(slots * servers + recorder.segments().servers[rows])
    used, earned = float(jobs["cost"].sum()), float(jobs["utility"].sum())
    arrived = jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    first = arrived["arrival"].min()
    last = max((int(slots.max()) if len(slots) else -1), int(arrived["arrival"].max() or 0))  # type: ignore[arg-type]  # integers
    there = np.zeros(servers)
    if first is not None:
        there = _slots_there(recorder, int(first), last + 1)  # type: ignore[arg-type]  # an integer
    return {
        "used": used,
        "occupied": float(prices[taken % servers].sum() * hours),
        "whole": float((prices * there).sum() * hours),
        "utility_per_used": earned / used if used else None,
    }


def _slots_there(recorder: Recorder, first: int, end: int) -> Floats:
    """Return for how many slots of a span each server was there."""
    there = np.full(recorder.cluster.servers, float(max(end - first, 0)))
    gone: dict[str, int] = {}
    incidents = [one for one in recorder.incidents if isinstance(one, ServerLost | ServerBack)]
    back = [ServerBack(end, name) for name in recorder.cluster.names]
    for incident in [*incidents, *back]:
        slot = min(max(incident.slot, first), end)
        if isinstance(incident, ServerLost):
            gone.setdefault(incident.server, slot)
        elif incident.server in gone:
            there[recorder.cluster.index[incident.server]] -= slot - gone.pop(incident.server)
    return there


def _prices(recorder: Recorder) -> Floats:
    assert recorder.cluster.costs is not None
    return recorder.cluster.costs


def _slot_hours(recorder: Recorder) -> float:
    return float(recorder.cluster.slot_seconds) / 3600
