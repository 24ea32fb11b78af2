"""Conversion of clusters, events and decisions to values of JSON and back; servers by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from fractions import Fraction
from typing import Any, Final, get_args

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.events import (
    CapacityChanged,
    Commit,
    Decision,
    DriverEvent,
    JobRevised,
    Place,
    Promise,
    Queue,
    ServerState,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule

Fields = dict[str, Any]  # a JSON object: values by name

# ---------------------------------------------------------------- clusters


def cluster_record(cluster: Cluster) -> Fields:
    """Return a cluster as plain values."""
    return {
        "slot_seconds": str(cluster.slot_seconds),
        "horizon": cluster.horizon,
        "restart_seconds": str(cluster.restart_seconds),
        **({"restart_first": True} if cluster.restart_first else {}),
        "resources": [
            [name, dimension.value]
            for name, dimension in zip(cluster.resources, cluster.dimensions, strict=True)
        ],
        "servers": [
            [name, role.value, row]
            for name, role, row in zip(
                cluster.names, cluster.roles, cluster.capacity.tolist(), strict=True
            )
        ],
        "tenants": [[tenant.name, dict(tenant.share)] for tenant in cluster.tenants],
        "costs": None if cluster.costs is None else cluster.costs.tolist(),
    }


def cluster_from_record(record: Mapping[str, Any]) -> Cluster:
    """Build the cluster from the result of `cluster_record`."""
    servers, resources = record["servers"], record["resources"]
    capacity = np.array([row for _, _, row in servers], dtype=np.int64)
    return Cluster(
        slot_seconds=Fraction(record["slot_seconds"]),
        horizon=record["horizon"],
        resources=tuple(name for name, _ in resources),
        dimensions=tuple(Dimension(dimension) for _, dimension in resources),
        names=tuple(name for name, _, _ in servers),
        roles=tuple(Role(role) for _, role, _ in servers),
        capacity=capacity.reshape(len(servers), len(resources)),
        tenants=tuple(Tenant(name, share) for name, share in record["tenants"]),
        restart_seconds=Fraction(record["restart_seconds"]),
        restart_first=bool(record.get("restart_first", False)),
        costs=None if record["costs"] is None else np.array(record["costs"], dtype=np.float64),
    )


# ---------------------------------------------------------------- events and decisions

_EVENTS: Final[Mapping[str, type[DriverEvent]]] = {kind.tag: kind for kind in get_args(DriverEvent)}
_DECISIONS: Final[Mapping[str, type[Decision]]] = {kind.tag: kind for kind in get_args(Decision)}

_OPTIONAL: Final[Mapping[type, Collection[str]]] = {
    SlotEnded: {"finished", "lengths"},
    JobRevised: {"admission"},
    CapacityChanged: {"tenants", "restart_seconds", "restart_first"},
    Commit: {"copies", "charged", "payoff_bound", "slot_costs", "message"},
    Place: {"copies"},
    Queue: {"message"},
    Promise: {"copies"},
}
"""Fields that a record lacks if they have their default."""


def event_record(event: DriverEvent) -> Fields:
    """Return an event as plain values."""
    return {"event": event.tag, **_record(event, ())}


def event_from_record(record: Mapping[str, Any]) -> DriverEvent:
    """Build the event from the result of `event_record`.

    Raises ValueError, KeyError, TypeError or AttributeError for other values.
    """
    event: DriverEvent = _from_record(_EVENTS[record["event"]], record, {})
    return event


def decision_record(decision: Decision, names: Sequence[str]) -> Fields:
    """Return a decision as plain values; ``names`` are the servers by row."""
    return {"decide": decision.tag, **_record(decision, names)}


def decision_from_record(record: Mapping[str, Any], index: Mapping[str, int]) -> Decision:
    """Build the decision from the result of `decision_record`; ``index`` maps names to rows.

    Raises ValueError, KeyError, TypeError or AttributeError for other values.
    """
    decision: Decision = _from_record(_DECISIONS[record["decide"]], record, index)
    return decision


def _record(message: DriverEvent | Decision, names: Sequence[str]) -> Fields:
    optional = _OPTIONAL.get(type(message), ())
    record: Fields = {}
    for field in fields(message):
        name, value = field.name, getattr(message, field.name)
        # Rows follow from names. The value {} is that of fields with a default factory.
        if name == "row" or (name in optional and value in (field.default, {})):
            continue
        if name == "schedule":
            record["plan"] = schedule_record(value, names)
        elif name == "placement":
            record["on"] = placement_record(value, names)
        else:
            record[name] = _WRITERS[name](value) if name in _WRITERS else value
    return record


def _from_record(
    kind: Callable[..., Any], record: Mapping[str, Any], index: Mapping[str, int]
) -> Any:
    values: Fields = {}
    for name, value in record.items():
        if name == "plan":
            values["schedule"] = schedule_from_record(value, index)
        elif name == "on":
            values["placement"] = placement_from_record(value, index)
        elif name not in {"event", "decide"}:
            values[name] = _READERS[name](value) if name in _READERS else value
    return kind(**values)


def _servers_record(servers: Mapping[str, ServerState | None]) -> Fields:
    return {
        name: None if state is None else asdict(state) | {"role": state.role.value}
        for name, state in servers.items()
    }


def _read_servers(record: Mapping[str, Any]) -> dict[str, ServerState | None]:
    return {
        name: None if state is None else ServerState(**(state | {"role": Role(state["role"])}))
        for name, state in record.items()
    }


def _read_progress(record: Mapping[str, Any]) -> Fields:
    # Numbers in `SlotEnded`, and pairs or task counts elsewhere, which JSON turned into lists.
    return {job: tuple(item) if isinstance(item, list) else item for job, item in record.items()}


def refusal_from_record(record: Mapping[str, Any]) -> Refusal:
    """Build the refusal from the result of `Refusal.record`."""
    values = dict(record)
    return Refusal(RefusalReason(values.pop("code")), **values)


_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "job": lambda job: job.record() if isinstance(job, Job) else job,
    "jobs": lambda jobs: [job.record() for job in jobs],
    "lengths": lambda jobs: [job.record() for job in jobs.values()],
    "servers": _servers_record,
    "tenants": lambda tenants: [[tenant.name, dict(tenant.share)] for tenant in tenants],
    "restart_seconds": str,
    "progress": dict,
    "finished": dict,
    "copies": lambda copies: [list(entry) for entry in copies],
    "slot_costs": list,
    "refusal": Refusal.record,
    "amounts": dict,
}
"""Conversion of fields to plain values, by name; fields that aren't listed need none."""

_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "job": lambda job: job if isinstance(job, str) else Job.from_record(job),
    "jobs": lambda jobs: tuple(map(Job.from_record, jobs)),
    "lengths": lambda jobs: {job.name: job for job in map(Job.from_record, jobs)},
    "servers": _read_servers,
    "tenants": lambda tenants: tuple(Tenant(name, share) for name, share in tenants),
    "restart_seconds": Fraction,
    "progress": _read_progress,
    "finished": _read_progress,
    "commands": tuple,
    "copies": lambda copies: tuple(TaskCopies(*entry) for entry in copies),
    "slot_costs": lambda costs: tuple(map(float, costs)),
    "refusal": refusal_from_record,
}


# ---------------------------------------------------------------- plans and placements


def schedule_record(plan: Schedule, names: Sequence[str]) -> Fields:
    """Return a schedule as plain values.

    A row holds the slot, the position of the server in ``servers``, workers and PS.
    """
    rows, positions = np.unique(plan.servers, return_inverse=True)
    columns = (plan.slots, positions, plan.workers, plan.ps)
    return {
        "servers": [names[row] for row in rows.tolist()],
        "rows": [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)],
    }


def schedule_from_record(record: Mapping[str, Any], index: Mapping[str, int]) -> Schedule:
    """Build the schedule from the result of `schedule_record`."""
    rows = [index[name] for name in record["servers"]]
    entries = (
        (slot, rows[position], workers, ps) for slot, position, workers, ps in record["rows"]
    )
    return Schedule.of(entries)


def placement_record(placement: Placement, names: Sequence[str]) -> list[list[Any]]:
    """Return a placement as rows of server, workers and PS."""
    entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
    return [[names[server], workers, ps] for server, workers, ps in entries]


def placement_from_record(record: Sequence[Sequence[Any]], index: Mapping[str, int]) -> Placement:
    """Build the placement from the result of `placement_record`."""
    return Placement.of((index[name], workers, ps) for name, workers, ps in record)
