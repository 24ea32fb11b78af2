"""Events in, commands out: the truth of a cluster, without clock, files or randomness."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import OverbookingError, PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Charge,
    Command,
    Commit,
    Completed,
    Decided,
    Decision,
    DriverEvent,
    Drop,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    Pause,
    Place,
    PolicyEvent,
    Promise,
    Queue,
    Reject,
    Resize,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger
from shadowprice.core.policy import Policy, QuotingPolicy, Status
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import EMPTY, Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.engine.bags import check_bag, count_finished, narrowed
from shadowprice.engine.state import JobRecord
from shadowprice.engine.validation import (
    EmptyClusterCheck,
    check_commitment,
    check_placement,
)
from shadowprice.engine.view import EngineView

PRIORITY: Final[Mapping[type, int]] = {
    ServerLost: 0,
    ServerBack: 1,
    JobCancelled: 2,
    JobsArrived: 3,
    SlotBegan: 4,
    SlotEnded: 5,
}
"""Order of events within a slot; equal ones keep the order in which the driver sends them."""


class Engine:
    """One cluster under one policy.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    policy : Policy
        Who decides.
    until : int, optional
        End of the timespan T: nothing runs in slot T or later.

    Notes
    -----
    Time comes in events only. The same events give the same state, so a journal of events is a
    complete record (`state_digest` tells two states apart).
    """

    def __init__(self, cluster: Cluster, policy: Policy, *, until: int | None = None) -> None:
        self.cluster = cluster
        self.policy = policy
        self.until = until
        self.capabilities = policy.capabilities
        self._local_free = policy.capabilities.local_traffic_is_free
        self.ledger = Ledger(cluster, cluster.horizon if self.capabilities.plans_ahead else 1)
        self.jobs: dict[str, JobRecord] = {}
        self.open_jobs: dict[str, JobRecord] = {}
        self.lost: set[int] = set()
        self.running: dict[str, Placement] = {}
        self._agenda: dict[int, dict[str, Placement]] = {}
        self._planned: dict[str, None] = {}
        self._moved: dict[str, None] = {}
        self._position = (0, -1)
        self._in_slot = False
        self._never_fits = EmptyClusterCheck(cluster, local_free=self._local_free)
        self._view = EngineView(self)

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self.ledger.end if self.until is None else min(self.ledger.end, self.until)

    @property
    def view(self) -> EngineView:
        """What policies see now."""
        return self._view

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is planned: the driver may then skip slots."""
        return not self.running and not self._agenda and not self._moved

    def handle(self, event: DriverEvent) -> list[Command]:
        """Take an event in and return what the driver has to do.

        Parameters
        ----------
        event : DriverEvent
            Events in the order of (slot, `PRIORITY`).

        Returns
        -------
        list of Command
            In the order in which they take effect.

        Raises
        ------
        PolicyError
            If the policy's decision breaks a rule.
        ShadowpriceError
            If the event is out of order or speaks of an unknown job or server.
        """
        self._check_order(event)
        match event:
            case SlotBegan(slot):
                return self._begin_slot(slot)
            case SlotEnded(slot, progress, done):
                return self._end_slot(slot, progress, done)
            case JobsArrived(slot, jobs):
                return self._arrive(slot, jobs)
            case ServerLost(slot, server):
                return self._lose(slot, server)
            case ServerBack(slot, server):
                self.lost.discard(server)
                self.ledger.restore(server)
                return self._consult(event)
            case JobCancelled():
                return self._cancel(event)

    def quote(self, job: Job, *, explained: bool = False) -> Quote:
        """Return what would be decided about a job if it were the next to arrive; nothing changes.

        Parameters
        ----------
        job : Job
            The job; its utility's clock runs from its arrival slot, which may have passed.
        explained : bool
            Whether a refusal is to carry its reason.

        Raises
        ------
        ShadowpriceError
            If the policy gives no quotes, the job is open already, or arrives in a slot to come.
        """
        slot = self.ledger.start
        if not self.capabilities.quotes:
            raise ShadowpriceError("this policy gives no quotes")
        if job.name in self.open_jobs:
            raise ShadowpriceError(f"job {job.name!r} has arrived already")
        if job.arrival > slot:
            raise ShadowpriceError(
                f"job {job.name!r} arrives in slot {job.arrival}; quotes are for slot {slot}"
            )
        refusal = self._refused_at_once(job)
        if refusal is not None:
            return Quote.of(Reject(job.name, refusal), slot)
        policy = cast("QuotingPolicy", self.policy)
        return policy.quote(self._view, job, explained=explained)

    def state_digest(self) -> str:
        """Return a digest that equal states share, over jobs, reservations and lost servers."""
        state = {
            "slot": self.ledger.start,
            "jobs": {
                name: [
                    r.status.value,
                    r.progress,
                    r.started,
                    r.completion,
                    None if r.refusal is None else r.refusal.record(),
                    *([r.promise] if r.promise is not None else []),
                    *([r.finished, r.left] if r.job.bag is not None else []),
                ]
                for name, r in sorted(self.jobs.items())
            },
            "ledger": self.ledger.digest(),
            "running": {name: p.servers for name, p in sorted(self.running.items())},
            "lost": sorted(self.lost),
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    # ---------------------------------------------------------------- events

    def _check_order(self, event: DriverEvent) -> None:
        position = (event.slot, PRIORITY[type(event)])
        if position < self._position:
            raise ShadowpriceError(f"{type(event).__name__} of slot {event.slot} comes too late")
        if isinstance(event, SlotEnded) != self._in_slot:
            expected = "SlotEnded" if self._in_slot else "SlotBegan first"
            raise ShadowpriceError(
                f"{type(event).__name__} in slot {event.slot}: expected {expected}"
            )
        if event.slot > self.ledger.start:
            if self.running or self._moved or any(slot < event.slot for slot in self._agenda):
                raise ShadowpriceError(f"slots before {event.slot} were skipped while jobs run")
            self.ledger.advance(event.slot)
        self._position = position

    def _begin_slot(self, slot: int) -> list[Command]:
        commands = self._consult(SlotBegan(slot)) if self.capabilities.wakes_every_slot else []
        self._in_slot = True
        if self.until is not None and slot >= self.until:
            planned: dict[str, Placement] = {}
            for name in self.running:
                self._moved[name] = None
        else:
            planned = self._agenda.pop(slot, {})
        for name in (*self._moved, *(name for name in self._planned if name not in planned)):
            self._switch(slot, name, planned.get(name, self._standing(name)), commands)
        for name, placement in planned.items():
            self._switch(slot, name, placement, commands)
        self._planned = dict.fromkeys(planned)
        self._moved.clear()
        return commands

    def _standing(self, name: str) -> Placement | None:
        if self.until is not None and self.ledger.start >= self.until:
            return None
        record = self.open_jobs.get(name)
        return None if record is None else record.placement

    def _switch(
        self, slot: int, name: str, placement: Placement | None, commands: list[Command]
    ) -> None:
        before = self.running.get(name)
        if placement == before:
            return
        if placement is None:
            del self.running[name]
            commands.append(Stop(slot, name, finished=False))
            return
        self.running[name] = placement
        if before is None:
            record = self.jobs[name]
            if record.started is None:
                record.started = slot
            commands.append(Start(slot, name, placement))
        else:
            commands.append(Resize(slot, name, placement))

    def _end_slot(
        self, slot: int, progress: Mapping[str, int], done: Mapping[str, tuple[int, ...]]
    ) -> list[Command]:
        self._in_slot = False
        self.ledger.advance(slot + 1)
        self._position = (slot + 1, -1)
        commands: list[Command] = []
        finished: list[str] = []
        running, jobs = self.running, self.jobs
        for name, gained in progress.items():
            if name not in running:
                raise ShadowpriceError(f"job {name!r} made progress in slot {slot} without running")
            record = jobs[name]
            record.progress += gained
            if record.job.bag is not None:
                count_finished(record, slot, gained, done.get(name))
            if record.progress >= record.job.required:
                finished.append(name)
            elif record.job.bag is not None:
                self._give_back(record)
        for name in finished:
            record = self._close(name, Status.FINISHED)
            record.completion = slot
            earned = utility_value(record.job.utility, slot - record.job.arrival)
            commands += [Stop(slot + 1, name, finished=True), Completed(slot, name, earned)]
        if finished:
            commands += self._consult(JobsFinished(slot + 1, tuple(finished)))
        # A plan whose last slot is over without completing the job fell short of its promise.
        short = [name for name in self._planned if self._fell_short(name, slot)]
        if short:
            commands += self._consult(JobsDisplaced(slot + 1, self._displaced(short), None))
        return commands

    def _give_back(self, record: JobRecord) -> None:
        """Release the places of a bag that no copy can need any more."""
        name, job = record.job.name, record.job
        smaller = narrowed(record, self.ledger.start)
        if smaller is None:
            return
        self.ledger.release(name)
        self.ledger.reserve(name, smaller.from_slot(self.ledger.start), job.worker, None)
        for slot, placement in smaller.placements():
            if slot >= self.ledger.start:
                self._agenda[slot][name] = placement
        record.plan = smaller

    def _fell_short(self, name: str, slot: int) -> bool:
        record = self.open_jobs.get(name)
        return record is not None and len(record.plan) > 0 and record.plan.completion <= slot

    def _arrive(self, slot: int, jobs: Iterable[Job]) -> list[Command]:
        commands: list[Command] = []
        considered = []
        for job in jobs:
            if job.name in self.jobs:
                raise ShadowpriceError(f"job {job.name!r} arrived twice")
            self.jobs[job.name] = self.open_jobs[job.name] = JobRecord(job, len(self.jobs))
            refusal = self._refused_at_once(job)
            if refusal is None:
                considered.append(job)
            else:
                commands += self._apply(Reject(job.name, refusal))
        if considered:
            commands += self._consult(JobsArrived(slot, tuple(considered)))
        for job in considered:
            if self.jobs[job.name].status is Status.ARRIVED:
                raise PolicyError(f"{self.jobs[job.name].story()}: the policy decided nothing")
        return commands

    def _refused_at_once(self, job: Job) -> Refusal | None:
        """Return why a job is refused without asking the policy, None if it is asked."""
        return self._runs_no_bags(job) or self._never_fits(job)

    def _runs_no_bags(self, job: Job) -> Refusal | None:
        if job.bag is None or self.capabilities.runs_bags:
            return None
        return Refusal(
            Reason.POLICY,
            "a bag of tasks needs a policy that plans copies, and this one runs training jobs "
            "only; `shadowprice policies` tells which do",
        )

    def _lose(self, slot: int, server: int) -> list[Command]:
        self.lost.add(server)
        displaced = self._displaced(self.ledger.lose(server))
        commands = self._consult(ServerLost(slot, server))
        if displaced:
            commands += self._consult(JobsDisplaced(slot, displaced, server))
        return commands

    def _displaced(self, names: Iterable[str]) -> tuple[str, ...]:
        """Release all that these jobs hold; return them in order of arrival."""
        ordered = tuple(sorted(names, key=lambda name: self.jobs[name].order))
        for name in ordered:
            self._let_go(name)
            self.jobs[name].status = Status.QUEUED
        return ordered

    def _cancel(self, event: JobCancelled) -> list[Command]:
        if event.job not in self.jobs:
            raise ShadowpriceError(f"job {event.job!r} was cancelled, but never arrived")
        if event.job not in self.open_jobs:
            return []
        was_running = event.job in self.running
        record = self._close(event.job, Status.CANCELLED)
        record.refusal = Refusal(Reason.CANCELLED, "cancelled by its owner")
        stop: list[Command] = [Stop(event.slot, event.job, finished=False)] if was_running else []
        return stop + self._consult(event)

    # ---------------------------------------------------------------- decisions

    def _consult(self, event: PolicyEvent) -> list[Command]:
        commands: list[Command] = []
        for decision in self.policy.decide(self._view, event):
            commands += self._apply(decision)
        return commands

    def _apply(self, decision: Decision) -> list[Command]:
        if isinstance(decision, Charge):
            self._check_charge(decision)
            return [Decided(self.ledger.start, decision)]
        record = self.open_jobs.get(decision.job)
        if record is None:
            known = self.jobs.get(decision.job)
            story = f"job {decision.job!r} is unknown" if known is None else known.story()
            raise PolicyError(f"{story}: {type(decision).__name__} came too late")
        apply: Callable[[JobRecord, Any], None] = getattr(self, _HANDLERS[type(decision)])
        ran = decision.job in self.running
        try:
            apply(record, decision)
        except OverbookingError as error:
            raise PolicyError(f"{record.story()}: {error}") from error
        decided = Decided(self.ledger.start, decision)
        if ran and decision.job not in self.running:  # given up while it runs
            return [Stop(self.ledger.start, decision.job, finished=False), decided]
        return [decided]

    def _commit(self, record: JobRecord, decision: Commit) -> None:
        plan = decision.schedule
        if len(plan) and plan.start < self.ledger.start:
            raise PolicyError(f"{record.story()}: planned for slot {plan.start}, which is over")
        if record.job.bag is None and not decision.copies:
            check_commitment(
                record,
                plan,
                self.cluster,
                self.end,
                moved=self._restarts(record, plan),
                local_free=self._local_free,
            )
        else:
            check_bag(record, plan, decision.copies, self.cluster, self.end)
        job = record.job
        self._let_go(job.name)
        self.ledger.reserve(job.name, plan, job.worker, job.ps)
        record.plans += 1
        record.copies = decision.copies
        record.left = [entry.tasks for entry in decision.copies]
        for slot, placement in plan.placements():
            self._agenda.setdefault(slot, {})[job.name] = placement
        record.plan = plan
        record.status = Status.ADMITTED

    def _restarts(self, record: JobRecord, plan: Schedule) -> NDArray[np.bool_] | None:
        """Return before which slots of a plan its job restarts, None where that costs nothing."""
        if not record.job.restart or not self.capabilities.charges_restarts or not len(plan):
            return None
        before = self.running.get(record.job.name) if plan.start == self.ledger.start else None
        return plan.moved(before, ran=record.started is not None)

    def _place(self, record: JobRecord, decision: Place) -> None:
        if len(record.plan):
            raise PolicyError(f"{record.story()}: placed, although it follows a plan")
        if record.job.bag is not None:
            raise PolicyError(f"{record.story()}: placed, but copies of tasks follow a plan")
        check_placement(record, decision.placement, self.cluster, local_free=self._local_free)
        job = record.job
        self.ledger.stand(job.name, decision.placement, job.worker, job.ps)
        record.placement = decision.placement
        record.status = Status.ADMITTED
        self._moved[job.name] = None

    def _pause(self, record: JobRecord, decision: Pause) -> None:
        if record.placement is None:
            raise PolicyError(f"{record.story()}: paused, but it stands nowhere")
        self._let_go(decision.job)

    def _queue(self, record: JobRecord, _decision: Queue) -> None:
        if record.status is Status.ARRIVED:
            record.status = Status.QUEUED

    def _promise(self, record: JobRecord, decision: Promise) -> None:
        if record.job.bag is not None or len(record.plan):
            raise PolicyError(f"{record.story()}: promised, although it follows a plan")
        completion = decision.completion
        if completion is not None and completion < self.ledger.start:
            raise PolicyError(f"{record.story()}: promised for slot {completion}, which is over")
        if completion is not None and self.until is not None and completion >= self.until:
            raise PolicyError(
                f"{record.story()}: promised for slot {completion}, but nothing runs in slot "
                f"{self.until} or later"
            )
        if completion is None and record.promise is None:
            raise PolicyError(f"{record.story()}: a promise was taken back that was never given")
        record.promise = completion
        if completion is not None:
            record.status = Status.ADMITTED
        elif record.placement is None:
            record.status = Status.QUEUED

    def _reject(self, record: JobRecord, decision: Reject) -> None:
        if record.status is Status.ADMITTED:
            raise PolicyError(f"{record.story()}: refused after it was admitted; drop it instead")
        self._close(decision.job, Status.REFUSED).refusal = decision.refusal

    def _drop(self, record: JobRecord, decision: Drop) -> None:
        self._close(record.job.name, Status.DROPPED).refusal = decision.refusal

    def _check_charge(self, charge: Charge) -> None:
        for tenant in (charge.payer, charge.payee):
            if tenant not in self.cluster.tenant_index:
                raise PolicyError(f"charge of job {charge.job!r}: unknown tenant {tenant!r}")
        if min(charge.amounts.values(), default=0) < 0:
            raise PolicyError(f"charge of job {charge.job!r} in slot {charge.slot} is negative")

    # ---------------------------------------------------------------- shared steps

    def _let_go(self, name: str) -> None:
        """Release what a job holds from now on; it stops at the next slot unless placed again."""
        record = self.jobs[name]
        rest = self.ledger.release(name)
        if len(rest):
            for slot in rest.active_slots.tolist():
                agenda = self._agenda[slot]
                del agenda[name]
                if not agenda:
                    del self._agenda[slot]
        record.plan = EMPTY
        record.placement = None
        if name in self.running:
            self._moved[name] = None

    def _close(self, name: str, status: Status) -> JobRecord:
        plan = self.jobs[name].plan
        self._let_go(name)
        record = self.open_jobs.pop(name)
        record.status = status
        record.plan = plan
        self.running.pop(name, None)
        self._moved.pop(name, None)
        self._planned.pop(name, None)
        return record


_HANDLERS: Final[Mapping[type, str]] = {
    Commit: "_commit",
    Promise: "_promise",
    Place: "_place",
    Pause: "_pause",
    Queue: "_queue",
    Reject: "_reject",
    Drop: "_drop",
}
