"""Builds a `RunData` from a recorder and the circumstances of the run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import polars as pl

import shadowprice
from shadowprice.core.amounts import format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.policy import Policy, as_guaranteed_policy
from shadowprice.core.specs.utilities import DEFAULT_UTILITY
from shadowprice.results.costs import cost_summary, job_costs
from shadowprice.results.metrics import latency, summarise
from shadowprice.results.recorder import Recorder
from shadowprice.results.run_directory import FORMAT, Fields, RunData
from shadowprice.results.slot_tables import allocation_table, expand, heat_table, slot_table
from shadowprice.results.tables import decision_records, job_table, payment_record, plain

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
    circumstances: RunContext,
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
    slots, rows = expand(recorder.segments())
    jobs = job_table(recorder)
    per_slot = slot_table(recorder, slots, rows)
    summary = summarise(jobs, per_slot)
    if recorder.cluster.costs is not None:
        jobs = jobs.with_columns(pl.Series("cost", job_costs(recorder)))
        summary["money"] = cost_summary(recorder, jobs, slots, rows)
    info: Fields = {
        "format": FORMAT,
        "partial": partial,
        "interrupted_in_slot": recorder.next_slot if partial else None,
        "policy": circumstances.policy,
        "policy_origin": None if circumstances.origin is None else dict(circumstances.origin),
        "settings": None if circumstances.settings is None else plain(circumstances.settings),
        "parameters": plain(policy.parameters_in_force()),
        "capabilities": asdict(policy.capabilities),
        "seed": circumstances.seed,
        "until": circumstances.until,
        "default_utility": {
            **DEFAULT_UTILITY,
            "jobs": sum(job.has_default_utility for job in recorder.jobs),
        },
        "inputs": [asdict(item) for item in circumstances.inputs],
        "options": dict(circumstances.options),
        "versions": _versions(),
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
    if guaranteeing is not None and "lengths" not in circumstances.options:
        arrived = [job for job in recorder.jobs if job.name in recorder.arrived]
        if guarantee := guaranteeing.guarantee(arrived):
            info["guarantee"] = plain(guarantee)

    def decisions(plans: bool) -> Iterator[Fields]:
        return decision_records(recorder, plans=plans)

    return RunData(
        info=info,
        jobs=jobs,
        slots=per_slot,
        allocations=allocation_table(recorder, slots, rows),
        heat=heat_table(recorder, slots, rows),
        decisions=decisions,
        payments=(lambda: map(payment_record, recorder.charges))
        if policy.capabilities.charges
        else None,
    )


def _versions() -> dict[str, str]:
    return {
        "shadowprice": shadowprice.__version__,
        "python": platform.python_version(),
        **{library: metadata.version(library) for library in LIBRARIES},
    }


def _cluster_record(cluster: Cluster) -> Fields:
    """Return the cluster for ``run.json``; servers refer to their kind by number."""
    kinds = cluster.kinds.tolist()
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
