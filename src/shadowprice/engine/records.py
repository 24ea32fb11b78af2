"""Conversion of clusters, events and decisions to plain values and back; servers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final, get_args

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    Charge,
    Commit,
    Decision,
    Displace,
    DriverEvent,
    Drop,
    JobRevised,
    JobsArrived,
    Pause,
    Place,
    ProgressMeasured,
    Promise,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
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


# ---------------------------------------------------------------- events

_EVENTS: Final[Mapping[str, type[DriverEvent]]] = {kind.tag: kind for kind in get_args(DriverEvent)}


def event_record(event: DriverEvent) -> Fields:
    """Return an event as plain values."""
    record: Fields = {"event": event.tag, "slot": event.slot}
    match event:
        case ServerLost() | ServerBack():
            record["server"] = event.server
        case SlotEnded():
            record |= _slot_end_record(event)
        case JobsArrived():
            record["jobs"] = [job.record() for job in event.jobs]
        case JobRevised():
            record["job"] = event.job.record()
            if event.admission:
                record["admission"] = True
        case CapacityChanged():
            record["servers"] = {
                name: None if state is None else _state_record(state)
                for name, state in event.servers.items()
            }
            if event.tenants is not None:
                record["tenants"] = [[tenant.name, dict(tenant.share)] for tenant in event.tenants]
            if event.restart_seconds is not None:
                record["restart_seconds"] = str(event.restart_seconds)
            if event.restart_first is not None:
                record["restart_first"] = event.restart_first
        case ProgressMeasured():
            record["progress"] = dict(event.progress)
        case _:  # all other fields are plain values
            record |= {field.name: getattr(event, field.name) for field in fields(event)}
    return record


def _slot_end_record(event: SlotEnded) -> Fields:
    record: Fields = {"progress": dict(event.progress)}
    if event.finished:
        record["finished"] = dict(event.finished)
    if event.lengths:
        record["lengths"] = [job.record() for job in event.lengths.values()]
    return record


def event_from_record(record: Mapping[str, Any]) -> DriverEvent:
    """Build the event from the result of `event_record`.

    Raises ValueError, KeyError, TypeError or AttributeError for other values.
    """
    values = dict(record)
    kind = _EVENTS[values.pop("event")]
    read = _READ.get(kind)
    if read is not None:
        read(values)
    return kind(**values)


def _read_arrivals(values: Fields) -> None:
    values["jobs"] = tuple(Job.from_record(job) for job in values["jobs"])


def _read_revision(values: Fields) -> None:
    values["job"] = Job.from_record(values["job"])


def _read_end(values: Fields) -> None:
    if "finished" in values:
        finished = values["finished"].items()
        values["finished"] = {job: tuple(done) for job, done in finished}
    if "lengths" in values:
        jobs = map(Job.from_record, values["lengths"])
        values["lengths"] = {job.name: job for job in jobs}


def _read_progress(values: Fields) -> None:
    values["progress"] = {job: tuple(report) for job, report in values["progress"].items()}


def _read_commands(values: Fields) -> None:
    values["commands"] = tuple(values["commands"])


def _read_capacity(values: Fields) -> None:
    values["servers"] = {
        name: None if state is None else ServerState(**(state | {"role": Role(state["role"])}))
        for name, state in values["servers"].items()
    }
    if "tenants" in values:
        values["tenants"] = tuple(Tenant(name, share) for name, share in values["tenants"])
    if "restart_seconds" in values:
        values["restart_seconds"] = Fraction(values["restart_seconds"])


_READ: Final[Mapping[type, Callable[[Fields], None]]] = {
    JobsArrived: _read_arrivals,
    JobRevised: _read_revision,
    SlotEnded: _read_end,
    ProgressMeasured: _read_progress,
    Acknowledged: _read_commands,
    CapacityChanged: _read_capacity,
}


def _state_record(state: ServerState) -> Fields:
    return {
        "role": state.role.value,
        "capacity": dict(state.capacity),
        "drained": state.drained,
        "cordoned": state.cordoned,
        "cost": state.cost,
    }


# ---------------------------------------------------------------- decisions


def decision_record(decision: Decision, names: Sequence[str]) -> Fields:
    """Return a decision as plain values; ``names`` are the servers by row."""
    record: Fields = {"decide": decision.tag, "job": decision.job}
    match decision:
        case Commit():
            record["plan"] = schedule_record(decision.schedule, names)
            record["payoff"], record["utility"] = decision.payoff, decision.utility
            record["cost"] = decision.cost
            record |= _copies_record(decision)
            if decision.charged is not None:
                record["charged"] = decision.charged
            if decision.payoff_bound is not None:
                record["payoff_bound"] = decision.payoff_bound
            if decision.slot_costs:
                record["slot_costs"] = list(decision.slot_costs)
            if decision.message:
                record["message"] = decision.message
        case Place():
            record["on"] = placement_record(decision.placement, names)
            record |= _copies_record(decision)
        case Reject() | Drop():
            record["refusal"] = decision.refusal.record()
        case Displace():
            record["reason"] = decision.reason
        case Queue():
            if decision.message:
                record["message"] = decision.message
        case Promise():
            record["completion"], record["expected"] = decision.completion, decision.expected
            record["payoff"], record["utility"] = decision.payoff, decision.utility
            record["cost"], record["message"] = decision.cost, decision.message
            record |= _copies_record(decision)
        case Charge():
            record |= {"slot": decision.slot, "payer": decision.payer, "payee": decision.payee}
            record["amounts"] = dict(decision.amounts)
        case Pause():
            pass
    return record


def _copies_record(decision: Commit | Place | Promise) -> Fields:
    """Return the field of a bag's copies, empty if the decision has none."""
    if not decision.copies:
        return {}
    return {"copies": [list(entry) for entry in decision.copies]}


def decision_from_record(record: Mapping[str, Any], index: Mapping[str, int]) -> Decision:
    """Build the decision from the result of `decision_record`; ``index`` maps names to rows.

    Raises ValueError, KeyError, TypeError or AttributeError for other values.
    """
    job = record["job"]
    copies = tuple(TaskCopies(*entry) for entry in record.get("copies", ()))
    match record["decide"]:
        case Commit.tag:
            plan = schedule_from_record(record["plan"], index)
            values = record["payoff"], record["utility"], record["cost"]
            bounds = record.get("charged"), record.get("payoff_bound")
            costs = tuple(float(cost) for cost in record.get("slot_costs", ()))
            message = record.get("message", "")
            return Commit(job, plan, *values, copies, *bounds, slot_costs=costs, message=message)
        case Place.tag:
            return Place(job, placement_from_record(record["on"], index), copies)
        case Reject.tag:
            return Reject(job, refusal_from_record(record["refusal"]))
        case Displace.tag:
            return Displace(job, record["reason"])
        case Drop.tag:
            return Drop(job, refusal_from_record(record["refusal"]))
        case Queue.tag:
            return Queue(job, record.get("message", ""))
        case Pause.tag:
            return Pause(job)
        case Promise.tag:
            return Promise(
                job,
                completion=record["completion"],
                expected=record["expected"],
                payoff=record["payoff"],
                utility=record["utility"],
                cost=record["cost"],
                message=record["message"],
                copies=copies,
            )
        case Charge.tag:
            amounts = record["amounts"]
            return Charge(job, record["slot"], record["payer"], record["payee"], amounts)
    raise ValueError(f"{record['decide']!r} is not a decision")


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


def refusal_from_record(record: Mapping[str, Any]) -> Refusal:
    """Build the refusal from the result of `Refusal.record`."""
    values = dict(record)
    return Refusal(RefusalReason(values.pop("code")), **values)
