"""Builds a `RunData` from a recorder and the context of the run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

import shadowprice
from shadowprice.core.amounts import UNLIMITED, format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.policy import Policy, as_guaranteed_policy
from shadowprice.core.specs.utilities import DEFAULT_UTILITY
from shadowprice.results import tables
from shadowprice.results.metrics import NOT_ARRIVED, Summary, latency, summarise
from shadowprice.results.recorder import Integers, Recorder
from shadowprice.results.run_directory import FORMAT, Fields, RunData
from shadowprice.results.tables import Rows

LIBRARIES: Final = ("highspy", "numba", "numpy", "polars", "scipy")
"""Libraries that can change a result; their versions are recorded with it."""


@dataclass(frozen=True, slots=True)
class RunInput:
    """Source of one input of a run.

    Parameters
    ----------
    kind : str
        ``cluster``, ``jobs``, ``trace``, ``trace format`` (the file of a format that isn't part of
        this package), ``params`` or ``incidents``.
    name : str
        As the user gave it.
    sha256 : str
        Digest of the content; empty if the input isn't a single file.
    begins : str or None
        Date and time of the start of slot 0 in ISO 8601, if a trace defines it.
    """

    kind: str
    name: str
    sha256: str
    begins: str | None = None

    @classmethod
    def of(
        cls, kind: str, path: Path, name: str | None = None, begins: datetime | None = None
    ) -> RunInput:
        """Build an input from a file, or from all files of a directory sorted by name."""
        digest = hashlib.sha256()
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
        for file in files if path.is_dir() else [path]:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        date = None if begins is None else begins.isoformat()
        return cls(kind, name or str(path), digest.hexdigest(), date)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Properties of a run that the recorder doesn't observe.

    ``settings`` are the policy's as given by the user; None if unknown. ``options`` are those with
    which the inputs were read. ``origin`` is the source and digest of a policy that isn't part of
    this package.
    """

    policy: str
    seed: int
    until: int | None
    inputs: Sequence[RunInput]
    settings: Mapping[str, object] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    origin: Mapping[str, object] | None = None


def build_run(
    recorder: Recorder,
    policy: Policy,
    context: RunContext,
    wall: float,
    preparing: float = 0.0,
    *,
    partial: bool,
) -> RunData:
    """Return a run with its tables, from a recorder that has observed the end of the run.

    ``wall`` is the wall time in seconds, without the time of this function. ``preparing`` is the
    part of it that compiling and loading kernels took. A ``partial`` run was stopped before its
    end.
    """
    slots, rows = tables.expand(recorder.segments())
    jobs = tables.job_table(recorder)
    per_slot = tables.slot_table(recorder, slots, rows)
    summary = summarise(jobs, per_slot)
    if recorder.cluster.costs is not None:
        jobs = jobs.with_columns(pl.Series("cost", job_costs(recorder)))
        summary["money"] = cost_summary(recorder, jobs, slots, rows)
    info: Fields = {
        "format": FORMAT,
        "partial": partial,
        "interrupted_in_slot": recorder.next_slot if partial else None,
        "policy": context.policy,
        "policy_origin": None if context.origin is None else dict(context.origin),
        "settings": tables.plain(context.settings),
        "parameters": tables.plain(policy.parameters_in_force()),
        "capabilities": asdict(policy.capabilities),
        "seed": context.seed,
        "until": context.until,
        "default_utility": {
            **DEFAULT_UTILITY,
            "jobs": sum(job.has_default_utility for job in recorder.jobs),
        },
        "inputs": [asdict(item) for item in context.inputs],
        "options": dict(context.options),
        "versions": {
            "shadowprice": shadowprice.__version__,
            "python": platform.python_version(),
            **{library: metadata.version(library) for library in LIBRARIES},
        },
        "cluster": _cluster_record(recorder.cluster),
        "incidents": [_incident(event) for event in recorder.incidents],
        "summary": summary,
        "state_digest": recorder.engine.state_digest() if recorder.engine else None,
        "timing": {
            "wall_seconds": wall,
            "preparing_seconds": preparing,
            "decision_latency": latency(recorder.latencies),
        },
    }

    guaranteeing = as_guaranteed_policy(policy)
    # The theorems assume that policies know the true lengths.
    if guaranteeing is not None and "lengths" not in context.options:
        arrived = [job for job in recorder.jobs if job.name in recorder.arrived]
        if guarantee := guaranteeing.guarantee(arrived):
            info["guarantee"] = tables.plain(guarantee)

    def decisions(plans: bool) -> Iterator[Fields]:
        return tables.decision_records(recorder, plans=plans)

    return RunData(
        info=info,
        jobs=jobs,
        slots=per_slot,
        allocations=tables.allocation_table(recorder, slots, rows),
        heat=tables.heat_table(recorder, slots, rows),
        decisions=decisions,
        payments=(lambda: map(tables.payment_record, recorder.charges))
        if policy.capabilities.charges
        else None,
    )


def _cluster_record(cluster: Cluster) -> Fields:
    """Return the cluster for ``run.json``; servers refer to their kind by number."""
    kinds = cluster.kinds.tolist()
    # Reversed, so that the first server of each kind remains.
    first = {kind: row for row, kind in reversed(list(enumerate(kinds)))}
    return {
        "slot_seconds": float(cluster.slot_seconds),
        "horizon": cluster.horizon,
        "resources": dict(
            zip(cluster.resources, (d.value for d in cluster.dimensions), strict=True)
        ),
        "kinds": [
            {
                "role": cluster.roles[first[kind]].value,
                "servers": kinds.count(kind),
                "capacity": {
                    resource: format_amount(int(amount), dimension)
                    for resource, dimension, amount in zip(
                        cluster.resources,
                        cluster.dimensions,
                        cluster.capacity[first[kind]],
                        strict=True,
                    )
                    if amount
                },
            }
            for kind in sorted(first)
        ],
        "servers": [list(pair) for pair in zip(cluster.names, kinds, strict=True)],
        "tenants": [tenant.name for tenant in cluster.tenants],
        **({} if cluster.costs is None else {"costs_per_hour": cluster.costs.tolist()}),
    }


def _incident(event: ServerLost | ServerBack | JobCancelled) -> Fields:
    if isinstance(event, ServerLost):
        return {"slot": event.slot, "server_lost": event.server}
    if isinstance(event, ServerBack):
        return {"slot": event.slot, "server_back": event.server}
    return {"slot": event.slot, "cancel": event.job}


Floats = NDArray[np.float64]


def job_costs(recorder: Recorder) -> Floats:
    """Return the cost of each job, shape (jobs,), in the currency of the cluster file.

    A job pays its dominant share of each server's cost per hour. With half of the GPUs and a
    quarter of the memory, it pays for half of the server.
    """
    segments = recorder.segments()
    costs = np.zeros(len(recorder.jobs))
    if len(segments.jobs):
        capacity = recorder.cluster.capacity[segments.servers]
        limited = (capacity > 0) & (capacity < UNLIMITED)
        reserved = tables.segment_usage(recorder, segments)
        shares = np.where(limited, reserved / np.maximum(capacity, 1), 0.0).max(axis=1)
        hours = (segments.ends - segments.starts) * _slot_hours(recorder)
        np.add.at(costs, segments.jobs, shares * hours * _hourly_costs(recorder)[segments.servers])
    return costs


def cost_summary(recorder: Recorder, jobs: pl.DataFrame, slots: Integers, rows: Rows) -> Summary:
    """Return the cost of a run and its utility per cost.

    ``slots`` and ``rows`` are the allocations, from `tables.expand`. ``used`` is the cost of
    the jobs' shares of servers, and ``occupied`` that of whole servers in slots in which jobs run
    on them. ``whole`` is the cost of all servers from the first arrival to the end of the run, also
    while idle, but not while lost. ``utility_per_used`` is None if nothing was used.
    """
    hourly, hours = _hourly_costs(recorder), _slot_hours(recorder)
    servers = recorder.cluster.servers
    occupied = np.unique(slots * servers + recorder.segments().servers[rows])  # (slot, server)
    used, earned = float(jobs["cost"].sum()), float(jobs["utility"].sum())
    arrivals = jobs.filter(pl.col("outcome") != NOT_ARRIVED)["arrival"].to_list()
    first, end = min(arrivals, default=0), max(arrivals, default=-1) + 1
    if len(slots):
        end = max(end, int(slots.max()) + 1)
    present = np.full(servers, float(end - first))
    for row, span in tables.lost_spans(recorder, end):
        lost, back = np.clip(span, first, end)
        present[row] -= back - lost
    return {
        "used": used,
        "occupied": float(hourly[occupied % servers].sum() * hours),
        "whole": float((hourly * present).sum() * hours),
        "utility_per_used": earned / used if used else None,
    }


def _hourly_costs(recorder: Recorder) -> Floats:
    assert recorder.cluster.costs is not None
    return recorder.cluster.costs


def _slot_hours(recorder: Recorder) -> float:
    return float(recorder.cluster.slot_seconds) / 3600
