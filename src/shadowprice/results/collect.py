"""Making a run out of what a recorder kept and the circumstances of the run."""

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
from shadowprice.core.policy import Policy, guaranteed
from shadowprice.results.files import FORMAT, Fields, Run
from shadowprice.results.metrics import latency, summarise
from shadowprice.results.money import job_costs, spending
from shadowprice.results.recorder import Recorder
from shadowprice.results.slot_tables import allocation_table, expand, heat_table, slot_table
from shadowprice.results.tables import decision_records, job_table, payment_record, plain

LIBRARIES: Final = ("highspy", "numba", "numpy", "polars", "scipy")
"""Libraries that can change a result; their versions are part of it."""


@dataclass(frozen=True, slots=True)
class Input:
    """Where a part of a run came from.

    Parameters
    ----------
    kind : str
        ``cluster``, ``jobs``, ``trace``, ``trace format`` (the file of one that isn't part of this
        package), ``params`` or ``incidents``.
    name : str
        As the user gave it.
    sha256 : str
        Digest of the bytes; empty where there is no single file.
    begins : str or None
        Date and time at which slot 0 begins, as ISO 8601 writes them, where a trace tells.
    """

    kind: str
    name: str
    sha256: str
    begins: str | None = None

    @classmethod
    def of(
        cls, kind: str, path: Path, name: str | None = None, begins: datetime | None = None
    ) -> Input:
        """Digest a file, or all files of a directory in the order of their names."""
        digest = hashlib.sha256()
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
        for file in files if path.is_dir() else [path]:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        date = None if begins is None else begins.isoformat()
        return cls(kind, name or str(path), digest.hexdigest(), date)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run was of, beside what the recorder saw of it.

    Parameters
    ----------
    policy : str
        Name of the policy.
    seed : int
        Seed of everything drawn.
    until : int or None
        End of the timespan T.
    inputs : sequence of Input
        Where its parts came from.
    settings : mapping or None
        The policy's settings as they were given, None where they are not known.
    options : mapping
        How the inputs were read, by the name of the option.
    origin : mapping or None
        Source of a policy that isn't part of this package, with its digest.
    """

    policy: str
    seed: int
    until: int | None
    inputs: Sequence[Input]
    settings: Mapping[str, object] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    origin: Mapping[str, object] | None = None


def collect(
    recorder: Recorder,
    policy: Policy,
    circumstances: Circumstances,
    wall: float,
    preparing: float = 0.0,
    *,
    partial: bool,
) -> Run:
    """Return a run with its tables, from a recorder that has seen its end.

    Parameters
    ----------
    recorder : Recorder
        What it kept.
    policy : Policy
        Who decided.
    circumstances : Circumstances
        What the run was of.
    wall : float
        Seconds that the run took, less what follows.
    preparing : float
        Seconds that compiling and loading kernels took meanwhile.
    partial : bool
        Whether it was stopped before its end.

    Returns
    -------
    Run
        With all that a run directory holds.
    """
    slots, rows = expand(recorder.segments())
    jobs = job_table(recorder)
    per_slot = slot_table(recorder, slots, rows)
    summary = summarise(jobs, per_slot)
    if recorder.cluster.costs is not None:
        jobs = jobs.with_columns(pl.Series("cost", job_costs(recorder)))
        summary["money"] = spending(recorder, jobs, slots, rows)
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
        "inputs": [asdict(part) for part in circumstances.inputs],
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

    proved = guaranteed(policy)
    if proved is not None:
        arrived = [job for job in recorder.jobs if job.name in recorder.arrived]
        if told := proved.guarantee(arrived):
            info["guarantee"] = plain(told)

    def decisions(plans: bool) -> Iterator[Fields]:
        return decision_records(recorder, plans=plans)

    return Run(
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
    """Return the cluster as ``run.json`` keeps it: servers refer to their kind by number."""
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
