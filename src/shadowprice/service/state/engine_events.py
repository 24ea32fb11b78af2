"""Engine events within a unit of work, with their consequences for views, events and accounts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final

from shadowprice.core import events
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.relative_values import MAX_TENANTS, is_relative, utility_factor
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.journal import entry_line
from shadowprice.engine.records import placement_record
from shadowprice.service.budgets.billing import Billing, InsufficientPointsError, overrunning_jobs
from shadowprice.service.budgets.usage import SlotUsage
from shadowprice.service.state import ending
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import (
    OVERRUN,
    PARTLY_ENDED,
    JobView,
    State,
    expected_slot,
    promised_slot,
    view_changes,
)
from shadowprice.service.state.stated_work import begin_generation

VALUES_KEY: Final = "values"  # key of the store for the values of finished jobs by tenant
_LASTING_REASONS: Final = frozenset({PARTLY_ENDED, OVERRUN})  # that stay true after decisions


def apply_event(
    batch: Batch,
    event: events.DriverEvent,
    *,
    counted: Iterable[str] = (),
    billed: bool = True,
    completed_later: Set[str] = frozenset(),
) -> list[events.Command]:
    """Pass an event to the engine, and record its consequences.

    If a tenant can't pay the event's price for a waiting job, or for a job beyond its stated work,
    abandon that job first.

    ``counted`` are jobs whose progress the event changes, besides jobs of its commands. Unless
    ``billed``, the job that the event ends doesn't pay for the running slot. It was lost through no
    fault of its own, or had ended before the slot began. ``completed_later`` are jobs that have
    completed in a later slot, by their pending reports. This slot's price doesn't end them.

    Raise `InsufficientPointsError` if a tenant can't pay for jobs that arrive with the event, and
    `ShadowpriceError` if the event is invalid or the policy fails. The event then has no effect.
    """
    if isinstance(event, events.SlotBegan) and overrunning_jobs(batch):
        # The event fails if a tenant can't pay for such a job. Then it is repeated without the job.
        batch.engine.session.save_for_rollback()
    try:
        return _apply(batch, event, counted, completed_later, billed=billed)
    except InsufficientPointsError as error:
        unaffordable = [name for name in error.reasons if name in batch.engine.open_jobs]
        if not unaffordable:  # the jobs arrive with the event
            raise
        reasons = error.reasons
    with batch.savepoint():  # if the event fails, the jobs are kept
        for name in unaffordable:
            _abandon(batch, event, name, reasons[name])
        return apply_event(
            batch, event, counted=counted, billed=billed, completed_later=completed_later
        )


def _abandon(batch: Batch, event: events.DriverEvent, name: str, reason: Mapping[str, Any]) -> None:
    """Abandon an open job before an event whose price its tenant can't pay."""
    engine, view = batch.engine, batch.state.views[name]
    was_admitted = engine.open_jobs[name].status is Status.ADMITTED or view.generation > 0
    # `SlotEnded` names the running slot, other events name the next slot.
    slot = engine.slot if isinstance(event, events.SlotEnded) else event.slot
    apply_event(batch, events.JobCancelled(slot, name))
    kind, state = ("given-up", State.FAILED) if was_admitted else ("refused", State.REFUSED)
    batch.emit(kind, name, decision=True, reason=dict(reason))
    batch.update_view(name, state=state, reason=reason)


def _apply(
    batch: Batch,
    event: events.DriverEvent,
    counted: Iterable[str],
    completed_later: Set[str],
    *,
    billed: bool,
) -> list[events.Command]:
    engine, billing = batch.engine, Billing(batch)
    started = time.perf_counter()
    # Before the event, which may end the jobs that it bills.
    slot_usage = billing.slot_usage(event) if billed else SlotUsage(0, {})
    with _as_policy_error(event.tag), engine.staged(event) as staged:
        # Within the block, so that an error rolls the event back.
        overruns = billing.check_affordable(event, staged.commands, completed_later)
        line = entry_line(staged.entry, engine.cluster.names)
    batch.state.observe_event_seconds(time.perf_counter() - started)
    batch.append_journal(staged.entry.sequence, line)
    billing.record_usage(slot_usage)
    if isinstance(event, events.SlotBegan):
        billing.pay_overruns(event.slot, overruns)
    _record_consequences(batch, event, staged.commands, counted)
    return staged.commands


def weigh(batch: Batch, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return arriving jobs with the utilities that count in decisions (`core.relative_values`).

    Raise `ShadowpriceError` if a value can't be compared.
    """
    state, engine = batch.state, batch.engine
    if state.values is None or state.open_values is None or not state.compares_values(jobs):
        return tuple(jobs)
    with _as_policy_error("comparing values"):
        return state.values.weigh(jobs, state.open_values, engine.cluster, state.next_slot)


def resync_policy(batch: Batch) -> None:
    """Resync the policy with the engine's state; raise `ShadowpriceError` if it can't."""
    with _as_policy_error("resyncing"):
        batch.engine.session.resync()


# ---------------------------------------------------------------- consequences


def _record_consequences(
    batch: Batch,
    event: events.DriverEvent,
    commands: Sequence[events.Command],
    counted: Iterable[str],
) -> None:
    """Record the commands of an event, and update the views of all jobs that it touched."""
    touched: dict[str, None] = dict.fromkeys(counted)
    for job in getattr(event, "jobs", ()):
        touched[job.name] = None
    subject = getattr(event, "job", None)
    if subject is not None:
        touched[subject if isinstance(subject, str) else subject.name] = None
    # A slot can also change views without a decision: jobs are delayed, or the timespan has ended.
    if isinstance(event, events.SlotBegan):
        ended, names = ending.has_ended(batch.engine), batch.engine.open_jobs
        touched |= dict.fromkeys(
            name
            for name, view in batch.state.views.items()
            if ended and name in names and not _waits_for_end(view)
        )
        touched |= dict.fromkeys(name for name in names if _is_delayed(batch, name))
    messages: dict[str, str] = {}
    for command in commands:
        if isinstance(command, events.Start | events.Resize | events.Stop):
            _record_command(batch, command)
            touched[command.job] = None
        elif isinstance(command, events.Decided):
            _record_decision(batch, command, messages)
            touched[command.decision.job] = None
        else:
            touched[command.job] = None
            if isinstance(command, events.Displaced):
                messages.setdefault(command.job, command.reason)
                batch.emit("displaced", command.job, reason=command.reason)
                if command.job in batch.state.views:
                    message = f"{command.reason}: it waits for free resources"
                    batch.update_view(command.job, reason={"code": "displaced", "message": message})
            elif isinstance(command, events.Completed):
                _record_value(batch, command)
                view = batch.state.views.get(command.job)
                if view is not None:
                    batch.update_view(command.job, utility=command.utility)
                    emit_finished(batch, view, command.slot, command.utility)
    for name in touched:
        record = batch.engine.jobs.get(name)
        if record is not None and name in batch.state.views:
            _follow_record(batch, record, messages.get(name, ""))


def _is_delayed(batch: Batch, name: str) -> bool:
    """Return whether a job that doesn't run can't complete any more in its expected slot."""
    view = batch.state.views.get(name)
    if view is None or view.expected is None or name in batch.engine.running:
        return False
    record = batch.engine.open_jobs[name]
    return expected_slot(batch.engine, record, view.expected) is None


def _record_decision(batch: Batch, command: events.Decided, messages: dict[str, str]) -> None:
    """Record a decision; add the policy's message about the job to ``messages``."""
    decision = command.decision
    name = decision.job
    view = batch.state.views.get(name)
    if view is None:
        return
    engine, calendar = batch.engine, batch.calendar
    job = engine.jobs[name].job
    if isinstance(decision, events.Commit | events.Promise) and decision.message:
        messages[name] = ending.with_clock_times(decision.message, calendar)
    match decision:
        case events.Commit():
            Billing(batch).debit_admission(decision)
            _record_price(batch, view, decision)
        case events.Promise():
            batch.update_view(name, expected=decision.expected)
            if decision.completion is not None:
                Billing(batch).debit_admission(decision)
                _record_price(batch, view, decision)
            else:
                reason = ending.queue_reason(engine, calendar, job, decision.message)
                batch.update_view(name, reason=_lasting_reason(batch, view) or reason)
        case events.Queue():
            reason = ending.queue_reason(engine, calendar, job, decision.message)
            batch.update_view(name, reason=_lasting_reason(batch, view) or reason)
            batch.emit("standby", name, decision=True, message=reason["message"])
        case events.Reject() | events.Drop():
            kind = "refused" if isinstance(decision, events.Reject) else "given-up"
            reason = ending.refusal_reason(engine, calendar, job, decision.refusal)
            batch.emit(kind, name, decision=True, reason=reason)
        case events.Place():
            if view.state in {State.PENDING, State.STANDBY} and view.generation == 0:
                batch.update_view(name, reason=None)
                batch.emit("placed", name, decision=True)
        case events.Pause():
            if engine.jobs[name].status is Status.QUEUED:  # not placed elsewhere in this event
                batch.update_view(name, reason=ending.queue_reason(engine, calendar, job, ""))
        case events.Charge():
            batch.emit(
                "paid",
                name,
                decision=True,
                slot=decision.slot,
                payer=decision.payer,
                payee=decision.payee,
                amounts=dict(decision.amounts),
            )
            Billing(batch).transfer_payment(decision)


def _record_price(batch: Batch, view: JobView, decision: events.Commit | events.Promise) -> None:
    """Record the values of a decision, in units of the stated utility."""
    share = utility_factor(batch.engine.jobs[view.key].job)
    stated = {}
    for name in ("payoff", "utility", "cost"):
        value = getattr(decision, name)
        stated[name] = value if value is None or share == 1.0 else value / share
    batch.update_view(view.key, reason=_lasting_reason(batch, view), **stated)


def _lasting_reason(batch: Batch, view: JobView) -> Mapping[str, Any] | None:
    """Return the reason of a view if it stays true after decisions, while the job runs."""
    is_lasting = view.reason is not None and view.reason.get("code") in _LASTING_REASONS
    return view.reason if is_lasting and view.key in batch.engine.running else None


def _record_command(batch: Batch, command: events.Start | events.Resize | events.Stop) -> None:
    record: dict[str, Any] = {
        "slot": command.slot,
        "after": list(command.after),
        "frees": list(command.frees),
    }
    name = command.job
    if isinstance(command, events.Stop):
        record["finished"] = command.finished
        if name in batch.state.desired:
            batch.undo.drop(batch.state.desired, name)
        _end_previous_at_once(batch, command)
        if not command.finished:
            batch.emit("stopped", name, slot=command.slot, generation=command.generation)
    else:
        on = placement_record(command.placement, batch.engine.cluster.names)
        record["on"] = on
        record["plan"] = command.plan
        batch.undo.put(batch.state.desired, name, command)
        begin_generation(batch, name)
        view = batch.state.views.get(name)
        code = None if view is None else (view.reason or {}).get("code")
        is_start = isinstance(command, events.Start)
        if code == "displaced" or (code == "standby" and is_start):
            batch.update_view(name, reason=None)  # the job no longer waits
        kind = "started" if is_start else "resized"
        batch.emit(kind, name, slot=command.slot, generation=command.generation, placement=on)
        start = None
        if batch.state.virtual:
            _end_previous_at_once(batch, command)
            start = batch.calendar.begins(command.slot)
            if view is not None:
                first = start if view.first_start is None else view.first_start
                run = {"started": command.generation, "running_since": start, "first_start": first}
                batch.update_view(name, **run)
        batch.insert_generation(command, on, start)
    batch.insert_command(command, record)


def _end_previous_at_once(
    batch: Batch, command: events.Start | events.Resize | events.Stop
) -> None:
    """In virtual mode, end the job's previous generation when the command's slot begins."""
    if batch.state.virtual:
        batch.end_generations(command.job, batch.calendar.begins(command.slot))


def emit_finished(batch: Batch, view: JobView, slot: int, utility: float | None) -> None:
    """Emit the event of a job that completed in a slot."""
    kept = None if view.first_promise is None else slot <= view.first_promise
    data: dict[str, Any] = {"slot": slot, "utility": utility, "kept": kept}
    if not (batch.state.virtual or view.reports):
        data["reported"] = False  # only its exit was observed, so it may have done no work
    batch.emit("finished", view.key, **data)


def _record_value(batch: Batch, command: events.Completed) -> None:
    """Add a finished job to the sums with which its tenant's later values are compared."""
    values, job = batch.state.values, batch.engine.jobs[command.job].job
    if values is None or not is_relative(job):
        return
    finished = values.sum_with(job, batch.engine.cluster, command.slot)
    batch.undo.put(values.finished, job.tenant or "", finished)
    if len(values.finished) > MAX_TENANTS:
        oldest = min(values.finished, key=lambda name: values.finished[name].slot)
        batch.undo.drop(values.finished, oldest)
    batch.set_value(VALUES_KEY, values.record)  # as a function: serialized once per batch


def _follow_record(batch: Batch, record: JobRecord, message: str) -> None:
    """Update a job's view from its record, with the effects of the change.

    A new promise gets its margin. Changes of the promise and waits for the end of the timespan are
    emitted. A job that is closed now leaves the state and gets its refund.
    """
    name = record.job.name
    before = batch.state.views[name]
    if before.first_promise is None and record.status.open:
        before = _with_margin(batch, record, before)
    changes = view_changes(batch.engine, record, before, batch.calendar, batch.now)
    if not changes["state"].open:
        batch.mark_closed(name)
        Billing(batch).refund_unused(name)
    elif changes["promise"] != before.promise:
        promise, old, first = changes["promise"], before.promise, before.first_promise
        if old is None and first is None:
            _emit_admission(batch, name, promise)
        else:
            kind = "broken" if promise is None else "moved"
            moves: dict[str, Any] = {"promise": promise, "before": old, "first": first}
            batch.emit(kind, name, decision=True, **moves, reason=message)
    elif record.job.predicted and before.completion is None and changes["completion"] is not None:
        _emit_admission(batch, name, None)  # it has a plan now, but predicted jobs get no promise
    reason = changes.get("reason")
    if reason is not None and reason["code"] == ending.CODE and not _waits_for_end(before):
        batch.emit("standby", name, message=f"waits: {reason['message']}")
    batch.update_view(name, **changes)


def _with_margin(batch: Batch, record: JobRecord, view: JobView) -> JobView:
    """Add the promise margin to the view of a job that gets its first promise now."""
    planned, job = promised_slot(record), record.job
    if planned is None or job.predicted:
        return view
    margin = batch.state.margins.margin(
        view.tenant, view.family, planned, job.arrival, batch.engine.until
    )
    batch.update_view(view.key, margin=margin.slots, margin_jobs=margin.jobs)
    return batch.state.views[view.key]


def _emit_admission(batch: Batch, name: str, promise: int | None) -> None:
    view = batch.state.views[name]
    numbers = ("payoff", "utility", "cost", "margin", "margin_jobs")
    values: dict[str, Any] = {number: getattr(view, number) for number in numbers}
    batch.emit("admitted", name, decision=True, promise=promise, **values)


def _waits_for_end(view: JobView) -> bool:
    return view.reason is not None and view.reason.get("code") == ending.CODE


@contextmanager
def _as_policy_error(what: str) -> Iterator[None]:
    """Raise unexpected errors of a block as `PolicyError`; its event was rolled back."""
    try:
        yield
    except ShadowpriceError:
        raise
    except Exception as error:
        raise PolicyError(f"{what}: {error!r}") from error
