"""Handling of engine events within a unit of work, with all rows that follow from them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final, Protocol

from sqlalchemy import Connection

from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Charge,
    Command,
    Commit,
    Completed,
    Decided,
    Displaced,
    DriverEvent,
    Drop,
    JobCancelled,
    Place,
    Promise,
    Queue,
    Reject,
    Resize,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.relative_values import MAX_TENANTS, counted_share, is_relative
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.journal import entry_line
from shadowprice.engine.records import placement_record
from shadowprice.service.budgets.billing import Billing, InsufficientPointsError
from shadowprice.service.budgets.overruns import overrunning_jobs
from shadowprice.service.budgets.usage import SlotUsage
from shadowprice.service.state.clock_texts import with_clock_times
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.ending import CODE, has_ended, queue_reason, refusal_reason
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
from shadowprice.service.state.transaction import Transaction

VALUES_KEY: Final = "values"  # key of the store for the values of finished jobs by tenant


class Batch(Transaction):
    """A unit of work that passes events to the engine; `Transaction` collects the rows."""

    def __init__(self, state: DurableState, connection: Connection) -> None:
        super().__init__(state, connection)
        self.billing = Billing(self)

    def _lists(self) -> tuple[list[Any], ...]:
        return (*super()._lists(), self.billing.entries)

    def flush(self) -> None:
        """Write all recorded changes to the store."""
        super().flush()
        self.billing.flush()

    def apply_event(
        self,
        event: DriverEvent,
        *,
        counted: Iterable[str] = (),
        billed: bool = True,
        completed_later: Set[str] = frozenset(),
    ) -> list[Command]:
        """Pass an event to the engine, and record its consequences.

        If the event gives a waiting job, or one beyond its stated work, a price that its tenant
        can't pay, abandon that job first.

        ``counted`` are jobs whose progress it changes, besides those of its commands. Unless
        ``billed``, the job that it ends doesn't pay for the running slot, because it was lost
        through no fault of its own, or had ended before the slot began. ``completed_later`` are
        jobs that completed after the slot that begins; they aren't abandoned for its price.

        Raise `InsufficientPointsError` if a tenant can't pay for jobs that arrive with the event,
        and `ShadowpriceError` if the event is invalid or the policy fails. The event then has no
        effect.
        """
        if isinstance(event, SlotBegan) and overrunning_jobs(self):
            # Their tenants may be unable to pay. The rollback restores exactly this policy state.
            self.engine.session.dump_state()
        try:
            return self._apply(event, counted, completed_later, billed=billed)
        except InsufficientPointsError as error:
            waiting = [name for name in error.reasons if name in self.engine.open_jobs]
            if not waiting:
                raise
            reasons = error.reasons
        with self.savepoint():  # if the event fails, the jobs are kept
            for name in waiting:
                self._abandon(event, name, reasons[name])
            return self.apply_event(
                event, counted=counted, billed=billed, completed_later=completed_later
            )

    def _abandon(self, event: DriverEvent, name: str, reason: Mapping[str, Any]) -> None:
        """Abandon an open job before an event whose price its tenant can't pay."""
        engine, view = self.engine, self.state.views[name]
        ran = engine.open_jobs[name].status is Status.ADMITTED or view.generation > 0
        slot = engine.slot if isinstance(event, SlotEnded) else event.slot
        self.apply_event(JobCancelled(slot, name))
        self.emit("given-up" if ran else "refused", name, decision=True, reason=dict(reason))
        self.update_view(name, state=State.FAILED if ran else State.REFUSED, reason=reason)

    def _apply(
        self,
        event: DriverEvent,
        counted: Iterable[str],
        completed_later: Set[str],
        *,
        billed: bool,
    ) -> list[Command]:
        engine = self.engine
        started = time.perf_counter()
        # Before the event, which may end the jobs that it bills.
        occupied = self.billing.slot_usage(event) if billed else SlotUsage(0, {})
        with _as_policy_error(event.tag), engine.staged(event) as staged:
            # Within the block, so that an error rolls the event back.
            overruns = self.billing.check_affordable(event, staged.commands, completed_later)
            line = entry_line(staged.entry, engine.cluster.names)
        self.state.decided(time.perf_counter() - started)
        sequence = staged.entry.sequence
        self._journal.append({"sequence": sequence, "at": self.now, "entry": line})
        self.state.last_at = self.now
        self.billing.record_usage(occupied)
        if isinstance(event, SlotBegan):
            self.billing.pay_overruns(event.slot, overruns)
        self._record_consequences(event, staged.commands, counted)
        return staged.commands

    def weigh(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """Return jobs that arrive together with the utilities that count.

        Raise `ShadowpriceError` if a value can't be compared.
        """
        state, engine = self.state, self.engine
        if state.values is None or not state.compares_values(jobs):
            return tuple(jobs)
        with _as_policy_error("comparing values"):
            return state.values.weigh(jobs, state.open_values, engine.cluster, state.next_slot)

    def resync_policy(self) -> None:
        """Resync the policy with the engine's state; raise `ShadowpriceError` if it can't."""
        with _as_policy_error("resyncing"):
            self.engine.session.resync()

    # ---------------------------------------------------------------- consequences

    def _record_consequences(
        self, event: DriverEvent, commands: Sequence[Command], counted: Iterable[str]
    ) -> None:
        """Record the commands of an event, and refresh the views of all jobs that it touched."""
        touched: dict[str, None] = dict.fromkeys(counted)
        for job in getattr(event, "jobs", ()):
            touched[job.name] = None
        subject = getattr(event, "job", None)
        if subject is not None:
            touched[subject if isinstance(subject, str) else subject.name] = None
        if isinstance(event, SlotBegan) and has_ended(self.engine):
            touched.update(
                dict.fromkeys(name for name in self.engine.open_jobs if self._is_unaware(name))
            )
        if isinstance(event, SlotBegan):
            touched.update(
                dict.fromkeys(name for name in self.engine.open_jobs if self._is_delayed(name))
            )
        messages: dict[str, str] = {}
        for command in commands:
            if isinstance(command, Start | Resize | Stop):
                self._record_command(command)
                touched[command.job] = None
            elif isinstance(command, Decided):
                self._record_decision(command, messages)
                touched[command.decision.job] = None
            else:
                touched[command.job] = None
                if isinstance(command, Displaced):
                    messages.setdefault(command.job, command.reason)
                    self.emit("displaced", command.job, reason=command.reason)
                    if command.job in self.state.views:
                        message = f"{command.reason}: it waits for free resources"
                        self.update_view(
                            command.job, reason={"code": "displaced", "message": message}
                        )
                elif isinstance(command, Completed):
                    self._record_completion(command)
        for name in touched:
            record = self.engine.jobs.get(name)
            if record is not None and name in self.state.views:
                self._refresh_view(record, messages.get(name, ""))

    def _is_unaware(self, name: str) -> bool:
        """Return whether a job's view doesn't say yet that the timespan has ended."""
        view = self.state.views.get(name)
        return view is not None and not _waits_for_end(view)

    def _is_delayed(self, name: str) -> bool:
        """Return whether a job can't complete any more when its view expects it to."""
        view = self.state.views.get(name)
        if view is None or view.expected is None or name in self.engine.running:
            return False
        record = self.engine.open_jobs[name]
        return expected_slot(self.engine, record, view.expected) is None

    def _record_decision(self, command: Decided, messages: dict[str, str]) -> None:
        decision = command.decision
        name = decision.job
        view = self.state.views.get(name)
        if view is None:
            return
        match decision:
            case Commit(_, _, payoff, utility, cost):
                if decision.message:
                    messages[name] = with_clock_times(decision.message, self.calendar)
                self.billing.debit_admission(decision)
                self._record_price(view, payoff, utility, cost)
            case Promise():
                if decision.message:
                    messages[name] = with_clock_times(decision.message, self.calendar)
                self.update_view(name, expected=decision.expected)
                if decision.completion is not None:
                    self.billing.debit_admission(decision)
                    self._record_price(view, decision.payoff, decision.utility, decision.cost)
                else:
                    job = self.engine.jobs[name].job
                    reason = queue_reason(self.engine, self.calendar, job, decision.message)
                    self.update_view(name, reason=self._lasting_reason(view) or reason)
            case Queue():
                job = self.engine.jobs[name].job
                reason = queue_reason(self.engine, self.calendar, job, decision.message)
                self.update_view(name, reason=self._lasting_reason(view) or reason)
                self.emit("standby", name, decision=True, message=reason["message"])
            case Reject() | Drop():
                kind = "refused" if isinstance(decision, Reject) else "given-up"
                job = self.engine.jobs[name].job
                reason = refusal_reason(self.engine, self.calendar, job, decision.refusal)
                self.emit(kind, name, decision=True, reason=reason)
            case Place():
                if view.state in {State.PENDING, State.STANDBY} and view.generation == 0:
                    self.update_view(name, reason=None)
                    self.emit("placed", name, decision=True)
            case Charge():
                self.emit(
                    "paid",
                    name,
                    decision=True,
                    slot=decision.slot,
                    payer=decision.payer,
                    payee=decision.payee,
                    amounts=dict(decision.amounts),
                )
                self.billing.transfer_payment(decision)
            case _:
                pass

    def _record_price(
        self, view: JobView, payoff: float | None, utility: float | None, cost: float | None
    ) -> None:
        """Record the values of a decision, in units of the stated utility."""
        share = counted_share(self.engine.jobs[view.key].job)
        values = {"payoff": payoff, "utility": utility, "cost": cost}
        stated = {
            name: value if value is None or share == 1.0 else value / share
            for name, value in values.items()
        }
        self.update_view(view.key, reason=self._lasting_reason(view), **stated)

    def _lasting_reason(self, view: JobView) -> Mapping[str, Any] | None:
        """Return the reason of a view if decisions don't outdate it while the job runs."""
        is_lasting = view.reason is not None and view.reason.get("code") in _LASTING_REASONS
        return view.reason if is_lasting and view.key in self.engine.running else None

    def _record_command(self, command: Start | Resize | Stop) -> None:
        """Record a command with its generation, and emit its event."""
        record: dict[str, Any] = {
            "slot": command.slot,
            "after": list(command.after),
            "frees": list(command.frees),
        }
        name, engine = command.job, self.engine
        if isinstance(command, Stop):
            record["finished"] = command.finished
            if name in self.state.orders:
                self.undo.drop(self.state.orders, name)
            self._end_previous_at_once(command)
            if not command.finished:
                self.emit("stopped", name, slot=command.slot, generation=command.generation)
        else:
            record["on"] = on = placement_record(command.placement, engine.cluster.names)
            record["plan"] = command.plan
            self.undo.put(self.state.orders, name, command)
            begin_generation(self, name)
            view = self.state.views.get(name)
            if view is not None and view.reason and view.reason.get("code") == "displaced":
                self.update_view(name, reason=None)
            kind = "started" if isinstance(command, Start) else "resized"
            self.emit(kind, name, slot=command.slot, generation=command.generation, placement=on)
            start = None
            if self.state.virtual:
                self._end_previous_at_once(command)
                self._run_at_once(command)
                start = self.calendar.begins(command.slot)
            self._generations.append(
                {
                    "job": name,
                    "generation": command.generation,
                    "ordered": self.now,
                    "started": start,
                    "placement": json.dumps(on),
                    "slot": command.slot,
                    "workers": command.placement.total_workers,
                    "ps": command.placement.total_ps,
                }
            )
        self._commands.append(
            {
                "id": command.id,
                "sequence": self.engine.sequence,
                "job": name,
                "generation": command.generation,
                "kind": command.tag.lower(),
                "at": self.now,
                "record": json.dumps(record),
                "acknowledged": None,
            }
        )

    def _end_previous_at_once(self, command: Start | Resize | Stop) -> None:
        """In virtual mode, end the job's previous generation when the command's slot begins."""
        if not self.state.virtual:
            return
        self._over.append({"of": command.job, "at": self.calendar.begins(command.slot)})

    def _run_at_once(self, command: Start | Resize) -> None:
        view = self.state.views.get(command.job)
        if view is not None:
            start = self.calendar.begins(command.slot)
            first = start if view.first_start is None else view.first_start
            self.update_view(
                command.job, started=command.generation, running_since=start, first_start=first
            )

    def _record_completion(self, command: Completed) -> None:
        view = self.state.views.get(command.job)
        self._remember_value(command)
        if view is None:
            return
        self.update_view(command.job, utility=command.utility)
        self.emit_finished(view, command.slot, command.utility)

    def emit_finished(self, view: JobView, slot: int, utility: float | None) -> None:
        """Emit the event of a job that completed in a slot."""
        kept = None if view.first_promise is None else slot <= view.first_promise
        data: dict[str, Any] = {"slot": slot, "utility": utility, "kept": kept}
        if not (self.state.virtual or view.reports):
            data["reported"] = False  # it may have done no work: only its exit was observed
        self.emit("finished", view.key, **data)

    def _remember_value(self, command: Completed) -> None:
        """Add a finished job to what its tenant's values are compared with."""
        values, job = self.state.values, self.engine.jobs[command.job].job
        if values is None or not is_relative(job):
            return
        finished = values.sum_with(job, self.engine.cluster, command.slot)
        self.undo.put(values.finished, job.tenant or "", finished)
        if len(values.finished) > MAX_TENANTS:
            oldest = min(values.finished, key=lambda name: values.finished[name].slot)
            self.undo.drop(values.finished, oldest)
        self.set_value(VALUES_KEY, values.record)  # once for all jobs that finished

    def _refresh_view(self, record: JobRecord, message: str) -> None:
        """Update the view of a job after an event, and emit changes of its promise."""
        name = record.job.name
        before = self.state.views[name]
        if before.first_promise is None and record.status.open:
            before = self._with_margin(record, before)
        changes = view_changes(self.engine, record, before, self.calendar, self.now)
        if not changes["state"].open:
            self.closed.append(name)
            self.billing.refund_unused(name)
        elif changes["promise"] != before.promise:
            self._emit_promise(name, before, changes, message)
        elif _is_first_plan(record, before, changes):
            self._emit_admission(name, None)
        waits = changes.get("reason")
        if waits is not None and waits["code"] == CODE and not _waits_for_end(before):
            self.emit("standby", name, message=f"waits: {waits['message']}")
        self.update_view(name, **changes)

    def _with_margin(self, record: JobRecord, view: JobView) -> JobView:
        """Add the promise margin to the view of a job that is about to get a promise."""
        planned, job = promised_slot(record), record.job
        if planned is None or job.predicted:
            return view
        margin = self.state.margins.margin(
            view.tenant, view.family, planned, job.arrival, self.engine.until
        )
        self.update_view(view.key, margin=margin.slots, margin_jobs=margin.jobs)
        return self.state.views[view.key]

    def _emit_promise(
        self, name: str, before: JobView, changes: Mapping[str, Any], message: str
    ) -> None:
        promise = changes["promise"]
        if before.promise is None and before.first_promise is None:
            self._emit_admission(name, promise)
        else:
            kind = "broken" if promise is None else "moved"
            self.emit(
                kind,
                name,
                decision=True,
                promise=promise,
                before=before.promise,
                first=before.first_promise,
                reason=message,
            )

    def _emit_admission(self, name: str, promise: int | None) -> None:
        view = self.state.views[name]
        self.emit(
            "admitted",
            name,
            decision=True,
            promise=promise,
            payoff=view.payoff,
            utility=view.utility,
            cost=view.cost,
            margin=view.margin,
            margin_jobs=view.margin_jobs,
        )


class Operation(Protocol):
    """An atomic operation on the durable state.

    An operation of several independent steps runs each step within `Batch.savepoint`. It doesn't
    raise if a step fails: its answer says which steps succeeded.
    """

    def perform(self, batch: Batch) -> Any:
        """Perform the operation, and return the answer for its caller.

        It records rows with the batch (`Batch.execute_on_flush`, `Batch.set_value`), which writes
        them later. A row that is written at once, to get its id, must be the last step. Raise
        `ShadowpriceError` if the operation fails. The caller rolls it back.
        """
        ...


_LASTING_REASONS: Final = frozenset({PARTLY_ENDED, OVERRUN})


def _is_first_plan(record: JobRecord, before: JobView, changes: Mapping[str, Any]) -> bool:
    """Return whether a job of unknown length, which gets no promise, is planned at last."""
    waited = before.completion is None and not before.generation
    return record.job.predicted and waited and changes["completion"] is not None


def _waits_for_end(view: JobView) -> bool:
    return view.reason is not None and view.reason.get("code") == CODE


@contextmanager
def _as_policy_error(what: str) -> Iterator[None]:
    """Raise unexpected errors of a block as `PolicyError`; they have no effect on the engine."""
    try:
        yield
    except ShadowpriceError:
        raise
    except Exception as error:
        raise PolicyError(f"{what}: {error!r}") from error
