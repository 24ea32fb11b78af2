"""Validation of events: the engine validates an event completely before it changes anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from shadowprice.core import bounds, events
from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.errors import EventError
from shadowprice.core.job import Job
from shadowprice.core.wording import hint_for_unknown
from shadowprice.engine.state import EngineState

_MAX_PROGRESS: Final = int(bounds.PROGRESS.maximum)
_MAX_AMOUNT: Final = 2**62  # of a resource; the sum of two amounts fits an int64


def check_event(state: EngineState, event: events.DriverEvent) -> None:
    """Check an event's types, ranges, order and names; raise EventError if one is wrong."""
    _check_time(state, event)
    check = _CHECKS.get(type(event))
    if check is not None:
        check(state, event)


def _check_time(state: EngineState, event: events.DriverEvent) -> None:
    name, slot = event.tag, event.slot
    if type(slot) is not int or slot < 0:
        raise EventError(f"{name} of slot {slot!r}: a slot is a whole number from 0 on")
    running = state.slot_running
    if isinstance(event, events.SlotEnded):
        if running != slot:
            expected = "SlotBegan first" if running is None else f"SlotEnded of slot {running}"
            raise EventError(f"SlotEnded in slot {slot}: expected {expected}")
        return
    if isinstance(event, events.SlotBegan) and running is not None:
        raise EventError(f"SlotBegan in slot {slot}: expected SlotEnded of slot {running}")
    if slot < state.slot:
        raise EventError(f"{name} of slot {slot} comes too late: slot {state.slot} is next")
    if slot > state.slot:
        if running is not None:
            raise EventError(f"{name} of slot {slot} comes too early: slot {running} runs")
        state.check_skip(slot)


def _check_integer(what: str, value: object, maximum: int = _MAX_PROGRESS) -> None:
    if type(value) is not int or not 0 <= value <= maximum:
        raise EventError(f"{what} is {value!r}, not a whole number from 0 to {maximum}")


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise EventError(f"{what} is {value!r}, not a name")


def _check_known(what: str, name: object, known: Collection[str]) -> None:
    _check_name(what, name)
    if str(name) not in known:
        hint = hint_for_unknown(name, known, "")
        raise EventError(f"unknown {what} {name!r}{hint and f'; {hint}'}")


# ---------------------------------------------------------------- jobs


def _check_arrivals(state: EngineState, event: events.JobsArrived) -> None:
    seen: set[str] = set()
    for job in event.jobs:
        check_job(state.cluster, job, event.slot)
        if job.name in state.jobs or job.name in seen:
            raise EventError(f"job {job.name!r} arrived twice")
        seen.add(job.name)


def check_job(cluster: Cluster, job: Job, slot: int) -> None:
    """Raise EventError unless a job fits the cluster, and arrives by ``slot``."""
    if not isinstance(job, Job):
        raise EventError(f"{job!r} is not a job")
    _check_name("a job's name", job.name)
    if type(job.arrival) is not int or not 0 <= job.arrival <= slot:
        raise EventError(f"job {job.name!r} arrives in slot {job.arrival}, not by slot {slot}")
    resource_count = len(cluster.resources)
    if len(job.worker) != resource_count or (job.ps is not None and len(job.ps) != resource_count):
        raise EventError(f"job {job.name!r} was built for a cluster with other resources")
    if job.required < 1 or not len(job.worker_counts):
        raise EventError(f"job {job.name!r} has no work, or no allowed worker count")
    if job.tenant is not None and cluster.tenants:
        _check_known("tenant", job.tenant, cluster.tenant_index)


def _check_cancellation(state: EngineState, event: events.JobCancelled) -> None:
    _check_name("a job's name", event.job)
    if event.job not in state.jobs and event.job not in state.departed:
        raise EventError(f"job {event.job!r} was cancelled, but never arrived")


def _check_revision(state: EngineState, event: events.JobRevised) -> None:
    job = event.job
    check_job(state.cluster, job, event.slot)
    _check_known("open job", job.name, state.open_jobs)
    current = state.open_jobs[job.name].job
    if (job.arrival, job.tenant) != (current.arrival, current.tenant):
        raise EventError(f"job {job.name!r}: neither arrival nor tenant can be revised")
    if job.bag is not None or current.bag is not None:
        raise EventError(f"job {job.name!r}: a bag of tasks cannot be revised; cancel it")


def _check_generation(state: EngineState, event: events.GenerationEvent) -> None:
    if event.job in state.departed and event.job not in state.jobs:  # a late report
        return
    _check_known("job", event.job, state.jobs)
    _check_integer(f"the generation of job {event.job!r}", event.generation)
    if event.generation > state.jobs[event.job].generation:
        raise EventError(f"job {event.job!r} has no generation {event.generation} yet")
    if isinstance(event, events.JobFailed):
        _check_integer(f"the retries of job {event.job!r}", event.retries)
    if isinstance(event, events.JobStarted):
        _check_integer(f"the first slot of job {event.job!r}", event.since, event.slot)


def _check_measurements(state: EngineState, event: events.ProgressMeasured) -> None:
    for name, report in event.progress.items():
        if name in state.departed and name not in state.jobs:
            continue
        _check_known("job", name, state.jobs)
        if not isinstance(report, tuple) or len(report) != 2:
            raise EventError(f"job {name!r} reports {report!r}, not a generation and its progress")
        _check_integer(f"the generation of job {name!r}", report[0])
        _check_integer(f"the progress of job {name!r}", report[1])
        if state.jobs[name].job.bag is not None:
            raise EventError(f"job {name!r} is a bag: its tasks are counted when the slot ends")


# ---------------------------------------------------------------- slots


def _check_slot_end(state: EngineState, event: events.SlotEnded) -> None:
    running = state.running
    for name, gained in event.progress.items():
        if type(gained) is int and 0 <= gained <= _MAX_PROGRESS and name in running:
            continue
        if name not in running and name not in state.ran:
            raise EventError(f"job {name!r} made progress in slot {event.slot} without running")
        _check_integer(f"the progress of job {name!r} in slot {event.slot}", gained)
    for name in event.finished:
        if name not in event.progress:
            raise EventError(f"bag {name!r} finished tasks in slot {event.slot} without progress")
    for name, job in event.lengths.items():
        _check_length(state, name, job, event)


_LENGTH_FIELDS: Final = (
    "required", "epochs", "chunks", "minibatches", "utility", "walltime", "predicted",
)  # fmt: skip
"""Fields of a job's record that depend on its length."""


def _check_length(state: EngineState, name: str, job: Job, event: events.SlotEnded) -> None:
    check_job(state.cluster, job, event.slot)
    if name != job.name or name not in event.progress:
        raise EventError(f"job {name!r} has a new length in slot {event.slot} without running")
    if name not in state.open_jobs:
        return
    current = state.open_jobs[name].job
    new, old = job.record(), current.record()
    keys = (new.keys() | old.keys()) - set(_LENGTH_FIELDS)
    changed = sorted(key for key in keys if new.get(key) != old.get(key))
    if changed or job.bag is not None:
        raise EventError(
            f"job {name!r} has a new length in slot {event.slot}, but other fields differ too: "
            f"{', '.join(changed) or 'its tasks'}"
        )


# ---------------------------------------------------------------- servers and commands


def _check_server(state: EngineState, event: events.ServerLost | events.ServerBack) -> None:
    _check_known("server", event.server, state.cluster.index)


def _check_capacity(state: EngineState, event: events.CapacityChanged) -> None:
    cluster = state.cluster
    for name, server in event.servers.items():
        _check_name("a server's name", name)
        if server is None:
            _check_known("server", name, cluster.index)
            continue
        if not isinstance(server, events.ServerState) or not isinstance(server.role, Role):
            raise EventError(f"unknown state {server!r} of server {name!r}")
        if server.drained and server.cordoned:
            raise EventError(f"server {name!r} can't be both drained and cordoned")
        for resource, amount in server.capacity.items():
            _check_known("resource", resource, cluster.column)
            _check_integer(f"the {resource} of server {name!r}", amount, _MAX_AMOUNT)
    removed = {name for name, server in event.servers.items() if server is None}
    if len(removed) == cluster.servers and not event.servers.keys() - removed:
        raise EventError("the last server cannot be removed; drain it, or add others with it")
    if event.tenants is not None:
        names = [tenant.name for tenant in event.tenants if isinstance(tenant, Tenant)]
        if len(names) != len(event.tenants) or len(set(names)) < len(names):
            raise EventError("tenants are repeated or invalid")
        missing = {record.job.tenant for record in state.open_jobs.values()} - {None, *names}
        if names and missing:  # without tenants, jobs may name any
            listed = ", ".join(sorted(map(str, missing)))
            raise EventError(f"tenants with open jobs cannot be removed: {listed}")
        for tenant in event.tenants:
            for resource, amount in tenant.share.items():
                _check_known("resource", resource, cluster.column)
                what = f"the {resource} share of tenant {tenant.name!r}"
                _check_integer(what, amount, _MAX_AMOUNT)
    restart = event.restart_seconds
    if restart is not None and not 0 <= restart <= cluster.slot_seconds:
        raise EventError(f"a restart of {float(restart):g} s is negative, or longer than a slot")


def _check_acknowledgements(state: EngineState, event: events.Acknowledged) -> None:
    for number in event.commands:
        _check_integer("a command's number", number)
        if number > state.commands:
            raise EventError(f"unknown command {number}; the last one is {state.commands}")


def _check_timespan(_state: EngineState, event: events.TimespanChanged) -> None:
    if event.until is not None:
        _check_integer("the end of the timespan", event.until, int(bounds.SLOT.maximum))


_CHECKS: Final[Mapping[type[events.DriverEvent], Callable[[EngineState, Any], None]]] = {
    events.SlotEnded: _check_slot_end,
    events.JobsArrived: _check_arrivals,
    events.JobRevised: _check_revision,
    events.JobCancelled: _check_cancellation,
    events.JobFailed: _check_generation,
    events.StartFailed: _check_generation,
    events.JobStarted: _check_generation,
    events.JobEnded: _check_generation,
    events.ProgressMeasured: _check_measurements,
    events.Acknowledged: _check_acknowledgements,
    events.ServerLost: _check_server,
    events.ServerBack: _check_server,
    events.CapacityChanged: _check_capacity,
    events.TimespanChanged: _check_timespan,
}
"""Checks of an event besides its slot, by type."""
