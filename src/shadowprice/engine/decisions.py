"""The policy's decisions: each one is validated, then applied to the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import events
from shadowprice.core.errors import OverbookingError, PolicyError
from shadowprice.core.policy import Status
from shadowprice.core.schedule import Schedule
from shadowprice.engine.commands import stop
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.state import EngineState
from shadowprice.engine.unstoppable import is_unstoppable, runs_on
from shadowprice.engine.validation import check_bag, check_commitment, check_copies, check_placement


def apply_decision(state: EngineState, decision: events.Decision) -> list[events.Command]:
    """Validate and apply a decision; raise PolicyError if it breaks a rule."""
    if isinstance(decision, events.Charge):
        _check_charge(state, decision)
        return [events.Decided(state.slot, decision)]
    apply = _APPLY.get(type(decision))
    if apply is None:
        raise PolicyError(f"{decision!r} is not a decision")
    name = decision.job
    record = state.open_jobs.get(name)
    if record is None:
        closed = state.jobs.get(name)
        text = f"job {name!r} is unknown" if closed is None else closed.describe()
        raise PolicyError(f"{text}: {decision.tag} needs an open job")
    placement = state.running.get(name)
    try:
        apply(state, record, decision)
    except OverbookingError as error:
        raise record.error(str(error)) from error
    if isinstance(decision, events.Displace):
        return [events.Displaced(state.slot, name, decision.reason)]
    decided = events.Decided(state.slot, decision)
    if placement is not None and name not in state.running:  # abandoned while it runs
        return [stop(state, state.slot, name, placement, finished=False), decided]
    return [decided]


def _commit(state: EngineState, record: JobRecord, decision: events.Commit) -> None:
    plan = decision.schedule
    if len(plan) and plan.start < state.slot:
        raise record.error(f"planned for slot {plan.start}, which has passed")
    if record.job.bag is None and not decision.copies:
        check_commitment(
            record,
            plan,
            state.cluster,
            state.end,
            moved=_restarts(state, record, plan),
            local_free=state.capabilities.local_traffic_is_free,
            unstoppable=is_unstoppable(state, record.job.name),
        )
    else:
        check_bag(record, plan, decision.copies, state.cluster, state.end)
    _check_servers_available(state, record, plan.servers.tolist())
    job, undo = state.touch(record).job, state.undo
    state.release_job(job.name)
    state.ledger.reserve(job.name, plan, job.worker, job.ps)
    undo.push(state.ledger.undo_reserve, job.name)
    state.commitments += 1
    record.commitment = state.commitments
    record.plans = record.plans + 1
    if decision.copies or record.copies:  # only bags have copies
        record.copies = decision.copies
        record.unfinished = [entry.tasks for entry in decision.copies]
    for slot, placement in plan.placements():
        if slot not in state.agenda:
            undo.put(state.agenda, slot, {})
        undo.put(state.agenda[slot], job.name, placement)
    record.plan = plan
    state.set_status(record, Status.ADMITTED)


def _restarts(state: EngineState, record: JobRecord, plan: Schedule) -> NDArray[np.bool_] | None:
    """Return which active slots of a plan begin with a restart, None if restarts cost nothing."""
    if not record.job.restart or not state.capabilities.charges_restarts or not len(plan):
        return None
    # After a pause, the first placement is a restart even if it equals the running one.
    present = state.running.get(record.job.name) if plan.start == state.slot else None
    return plan.moved(present, ran=state.cluster.restart_first or record.started is not None)


def _place(state: EngineState, record: JobRecord, decision: events.Place) -> None:
    if len(record.plan):
        raise record.error("placed, although it follows a plan")
    job = record.job
    if job.bag is not None or decision.copies:
        check_copies(record, decision, state.cluster, state.slot)
    else:
        local_free = state.capabilities.local_traffic_is_free
        check_placement(record, decision.placement, state.cluster, local_free=local_free)
    _check_servers_available(state, record, decision.placement.servers)
    previous = record.placement
    state.ledger.place(job.name, decision.placement, job.worker, job.ps)
    state.undo.push(state.ledger.undo_place, job.name, previous)
    state.touch(record).placement = decision.placement
    if decision.copies:
        record.plans = record.plans + 1
        record.copies = decision.copies
        record.unfinished = [entry.tasks for entry in decision.copies]
    state.set_status(record, Status.ADMITTED)
    state.mark_moved(job.name)


def _check_servers_available(state: EngineState, record: JobRecord, servers: Iterable[int]) -> None:
    """Check that the servers are available, or are cordoned ones on which the job runs."""
    # The ledger alone can't refuse these: a process may need no counted resource.
    for row in state.lost.intersection(servers) if state.lost else ():
        if row not in state.cordoned or not runs_on(state, record.job.name, row):
            name = state.cluster.names[row]
            raise record.error(f"put on {name!r}, which is unavailable")


def _pause(state: EngineState, record: JobRecord, decision: events.Pause) -> None:
    if record.placement is None:
        raise record.error("paused, but it has no placement")
    state.release_job(decision.job)
    if record.promise is None:  # a promised job stays admitted while it is paused
        state.set_status(record, Status.QUEUED)


def _queue(state: EngineState, record: JobRecord, _decision: events.Queue) -> None:
    if record.status is Status.ARRIVED:  # for other jobs, the decision only carries a message
        state.set_status(record, Status.QUEUED)


def _promise(state: EngineState, record: JobRecord, decision: events.Promise) -> None:
    if len(record.plan):
        raise record.error("promised, although it follows a plan")
    completion = decision.completion
    # A job that runs may complete in the running slot, which is the one before `state.slot`.
    runs = state.slot_running is not None and record.job.name in state.running
    if completion is not None and completion < state.slot - runs:
        raise record.error(f"promised for slot {completion}, which has passed")
    if completion is not None and state.until is not None and completion >= state.until:
        raise record.error(
            f"promised for slot {completion}, but nothing runs in slot {state.until} or later"
        )
    bag = record.job.bag
    if completion is not None and bag is not None:
        last = record.job.arrival + bag.slots - 1
        if completion > last:
            raise record.error(
                f"promised for slot {completion}, but its deadline falls in slot {last}"
            )
    if completion is None and record.promise is None:
        raise record.error("withdrew a promise that it does not have")
    state.touch(record).promise = completion
    if completion is not None:
        state.set_status(record, Status.ADMITTED)
    elif record.placement is None:
        state.set_status(record, Status.QUEUED)


def _close(state: EngineState, _record: JobRecord, decision: events.Reject | events.Drop) -> None:
    status = Status.REFUSED if isinstance(decision, events.Reject) else Status.DROPPED
    state.close(decision.job, status).refusal = decision.refusal


def _displace(state: EngineState, _record: JobRecord, decision: events.Displace) -> None:
    state.displace([decision.job])


def _check_charge(state: EngineState, charge: events.Charge) -> None:
    for tenant in (charge.payer, charge.payee):
        if tenant not in state.cluster.tenant_index:
            raise PolicyError(f"charge of job {charge.job!r}: unknown tenant {tenant!r}")
    if min(charge.amounts.values(), default=0) < 0:
        raise PolicyError(f"charge of job {charge.job!r} in slot {charge.slot} is negative")


_APPLY: Final[Mapping[type[events.Decision], Callable[[EngineState, JobRecord, Any], None]]] = {
    events.Commit: _commit,
    events.Place: _place,
    events.Pause: _pause,
    events.Queue: _queue,
    events.Promise: _promise,
    events.Reject: _close,
    events.Drop: _close,
    events.Displace: _displace,
}
"""Function that validates and applies each type of decision about an open job."""
