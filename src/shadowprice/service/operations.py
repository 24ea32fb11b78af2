"""What can be done to the truth: submissions, revisions, reports, slots, servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import bindparam, select

from shadowprice.core.cluster import Tenant
from shadowprice.core.errors import EventError, InputError, PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    ProgressMeasured,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    Start,
    StartFailed,
)
from shadowprice.core.job import MICRO
from shadowprice.core.quote import Quote
from shadowprice.core.specs import JobSpec
from shadowprice.engine.state import JobRecord
from shadowprice.executors.contract import Ended, Ending, Progressed, Refused, Started
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import tables
from shadowprice.service.submission import (
    Submission,
    read_submissions,
    resolved,
    revised_record,
)
from shadowprice.service.truth import Batch
from shadowprice.service.views import JobView, State, changes_of

log = logging.getLogger("shadowprice.service")

CATCH_UP: Final = 1_000
"""Slots that are caught up one by one; what is missed beyond is taken out of the count."""

EDGES: Final = 50
"""Slots begun in one batch, at most."""

EDGE_SECONDS: Final = 0.5
"""Seconds after which the slots that are left wait for the next batch."""

BACKLOG: Final = 1_000_000
"""Jobs that may wait to be decided on."""


# ------------------------------------------------------------------ jobs


@dataclass(frozen=True, slots=True)
class Submit:
    """Jobs are submitted: decided on at once, or accepted to be decided on soon.

    Parameters
    ----------
    submissions : sequence of Submission
        The jobs.
    at_once : bool
        Whether they are decided on within this batch.
    """

    submissions: Sequence[Submission]
    at_once: bool

    def perform(self, batch: Batch) -> list[tuple[str, ProblemError | None]]:
        """Return the names, each with what is wrong with it alone."""
        truth = batch.truth
        if len(truth.backlog) + len(self.submissions) > BACKLOG:
            raise ProblemError("too-many", f"{len(truth.backlog)} jobs wait to be decided on")
        known = batch.stored([one.name for one in self.submissions])
        answers: list[tuple[str, ProblemError | None]] = []
        fresh: list[str] = []
        for one in self.submissions:
            problem = None
            if one.name in known:
                problem = _taken(one, *known[one.name])
            else:
                moment = batch.now
                view = JobView(truth.next_job, one.name, one.tenant, State.PENDING, moment, moment)
                truth.next_job += 1
                batch.add(view, one.record, one.content)
                fresh.append(one.name)
            answers.append((one.name, problem))
        if self.at_once:
            try:
                _arrive(batch, fresh)
            except ShadowpriceError:
                for name in fresh:
                    batch.forget(name)
                raise
        else:
            truth.backlog.extend(fresh)
        return answers


def _taken(one: Submission, view: JobView, content: str) -> ProblemError | None:
    if view.tenant != one.tenant:
        return ProblemError("name-taken", f"another job is called {one.name!r}")
    if content != one.content:
        return ProblemError(
            "name-taken",
            f"job {one.name!r} was submitted with other content; revise it, or use another name",
        )
    return None


def _arrive(batch: Batch, names: Sequence[str]) -> None:
    """Let jobs that are known arrive."""
    truth = batch.truth
    slot = truth.coming
    edge = batch.calendar.begins(slot)
    jobs = []
    for name in names:
        view = truth.views[name]
        spec = JobSpec.model_validate(truth.specs[name])
        moment = min(view.submitted, edge)
        try:
            job = resolved(spec, batch.engine.cluster, batch.calendar, moment)
        except InputError as error:  # the servers are others than when it was accepted
            batch.tell("refused", name, decision=True, reason={"message": str(error)})
            batch.close(name, State.REFUSED, {"code": "input", "message": str(error)})
            continue
        if moment != view.arrived:
            batch.change(name, arrived=moment)
        jobs.append(job)
    if jobs:
        batch.take(JobsArrived(slot, tuple(jobs)))


@dataclass(frozen=True, slots=True)
class DecideBacklog:
    """Jobs that were accepted are decided on, so many of them."""

    most: int

    def perform(self, batch: Batch) -> int:
        """Return how many are left."""
        truth = batch.truth
        names: list[str] = []
        while truth.backlog and len(names) < self.most:
            name = truth.backlog.popleft()
            view = truth.views.get(name)
            if view is not None and view.state is State.PENDING:
                names.append(name)
        try:
            _arrive(batch, names)
        except ShadowpriceError as error:
            log.error("%d jobs cannot be decided on together: %s", len(names), error)
            for name in names:
                self._alone(batch, name)
        return len(truth.backlog)

    @staticmethod
    def _alone(batch: Batch, name: str) -> None:
        try:
            _arrive(batch, [name])
        except ShadowpriceError as error:
            reason = {"code": error.code, "message": f"it could not be decided on: {error}"}
            batch.tell("refused", name, decision=True, reason=reason)
            batch.close(name, State.REFUSED, reason)


@dataclass(frozen=True, slots=True)
class Cancel:
    """A job is withdrawn."""

    name: str

    def perform(self, batch: Batch) -> JobView:
        """Return the job as it is then."""
        view = batch.view(self.name)
        if view.state is State.CANCELLED:
            return view
        if not view.state.open:
            raise ProblemError("conflict", f"job {self.name!r} is {view.state} already")
        batch.tell("cancelled", self.name)
        if self.name not in batch.engine.open_jobs:
            return batch.close(
                self.name, State.CANCELLED, {"code": "cancelled", "message": "never decided on"}
            )
        batch.take(JobCancelled(batch.truth.coming, self.name))
        return batch.views[self.name]


@dataclass(frozen=True, slots=True)
class Revise:
    """What is known of a job changes.

    Parameters
    ----------
    name : str
        The job.
    changes : mapping
        New values by key of the job file, or ``deadline``.
    """

    name: str
    changes: Mapping[str, Any]

    def perform(self, batch: Batch) -> JobView:
        """Return the job as it is then."""
        view = batch.view(self.name)
        if not view.state.open:
            raise ProblemError("conflict", f"job {self.name!r} is {view.state} already")
        truth = batch.truth
        record = revised_record(truth.specs[self.name], self.changes)
        cluster = batch.engine.cluster
        [one] = read_submissions([record], cluster, tenant=None, runs=False, single=True)
        if one.content != _content(batch, self.name):
            known = batch.engine.open_jobs.get(self.name)
            if known is not None:
                job = resolved(one.spec, cluster, batch.calendar, view.arrived)
                before = known.job
                job = replace(job, arrival=before.arrival, before_arrival=before.before_arrival)
                batch.take(JobRevised(truth.coming, job))
            batch.revise(self.name, record, one.content)
            batch.tell("revised", self.name, changes=dict(self.changes))
        return truth.views.get(self.name) or batch.views[self.name]


def _content(batch: Batch, name: str) -> str:
    return batch.stored([name])[name][1]


@dataclass(frozen=True, slots=True)
class AskQuote:
    """What would become of a job is asked; nothing changes."""

    submission: Submission

    def perform(self, batch: Batch) -> Quote:
        """Return the policy's answer."""
        engine, truth = batch.engine, batch.truth
        if not engine.capabilities.quotes:
            raise ProblemError("unsupported", f"{truth.choice.name} gives no quotes")
        slot = truth.coming
        if slot > engine.slot:
            # Between two slots, nothing running: the books are at an older slot, and a quote is
            # for the one that can be decided. Moving on is what any event would do.
            engine.check_skip(slot)
            engine.ledger.advance(slot)
        moment = min(batch.now, batch.calendar.begins(slot))
        job = resolved(self.submission.spec, engine.cluster, batch.calendar, moment)
        if job.name in engine.jobs:
            job = replace(job, name=f"{job.name} (quote)")
        return engine.quote(job, explained=True)


# ------------------------------------------------------------------ time


@dataclass(frozen=True, slots=True)
class Edge:
    """Time went on: slots that are over end, and those that are due begin.

    Parameters
    ----------
    virtual : bool
        Whether nothing really runs: jobs progress as declared, and are done when their work is.
    """

    virtual: bool = False

    def perform(self, batch: Batch) -> bool:
        """Return whether all slots were caught up."""
        truth, engine = batch.truth, batch.engine
        began = time.monotonic()
        target = truth.calendar.slot_at(batch.now)
        for _ in range(EDGES):
            running = engine.slot_running
            if running is not None:
                if running >= target:
                    return True
                self._end(batch, running)
            following = engine.slot
            if following > target:
                return True
            if following < target and self._idle(batch, target):
                following = target
            if not engine.open_jobs and engine.idle:
                return True  # nobody asks for anything: no slot is begun
            self._begin(batch, following)
            if time.monotonic() - began > EDGE_SECONDS:
                break
        return engine.slot_running is not None and engine.slot_running >= target

    @staticmethod
    def _idle(batch: Batch, slot: int) -> bool:
        try:
            batch.engine.check_skip(slot)
        except EventError:
            return False
        return True

    def _begin(self, batch: Batch, slot: int) -> None:
        try:
            commands = batch.take(SlotBegan(slot))
        except PolicyError as error:
            # The state is as before. A policy that stumbles over what it remembers begins anew on
            # what it sees; if it fails again, the slot waits, and the service says so.
            log.error("slot %d could not begin (%s); the policy begins anew", slot, error)
            batch.engine.begin_policy_anew()
            commands = batch.take(SlotBegan(slot))
        for command in commands:
            if isinstance(command, Start):
                view = batch.truth.views.get(command.job)
                if view is not None and view.done:  # it exited 0 while it was being stopped
                    ended = JobEnded(batch.truth.coming, command.job, command.generation)
                    batch.take(ended)

    def _end(self, batch: Batch, slot: int) -> None:
        engine = batch.engine
        progress: dict[str, int] = {}
        for name in engine.running:
            record = engine.jobs[name]
            if record.measured and not self.virtual:
                continue  # it reports
            progress[name] = self._gain(batch, record, slot)
        batch.take(SlotEnded(slot, progress), counted=list(engine.running))

    def _gain(self, batch: Batch, record: JobRecord, slot: int) -> int:
        """Return what a slot yielded at the declared rate, for the share that the job ran."""
        engine, job = batch.engine, record.job
        placement = engine.running[job.name]
        order = batch.truth.orders.get(job.name)
        moved = record.generation > 1 and order is not None and order.slot == slot
        gain = job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
        if self.virtual:
            return min(gain, record.remaining)
        view = batch.truth.views[job.name]
        if view.started != record.generation or view.running_since is None:
            return 0
        begins, ends = batch.calendar.begins(slot), batch.calendar.ends(slot)
        ran = ends - max(begins, min(view.running_since, ends))
        # Only a process that exits 0 is done: what is counted stops one short.
        return max(0, min(gain * ran // (ends - begins), record.remaining - 1))


@dataclass(frozen=True, slots=True)
class MoveOrigin:
    """Slots are at other times than was thought.

    Parameters
    ----------
    by : int
        By how many nanoseconds they are later.
    why : str
        For people.
    """

    by: int
    why: str

    def perform(self, batch: Batch) -> None:
        """Move them, and tell whose promise is at another time now."""
        truth = batch.truth
        truth.calendar = truth.calendar.moved(self.by)
        truth.store.put(batch.connection, "origin", str(truth.calendar.origin))
        moved = []
        for name, view in list(truth.views.items()):
            record = batch.engine.open_jobs.get(name)
            if record is None:
                continue
            changes = changes_of(batch.engine, record, view, truth.calendar, batch.now)
            if changes["promise"] is not None:
                moved.append(name)
            batch.change(name, **changes)
        batch.tell("clock", seconds=self.by / SECOND, why=self.why, promises=len(moved))
        for name in moved:
            batch.tell("rescheduled", name, seconds=self.by / SECOND, why=self.why)


# ------------------------------------------------------------------ what runs


@dataclass(frozen=True, slots=True)
class TakeReports:
    """What the executor says happened.

    Parameters
    ----------
    reports : sequence of Started, Refused or Ended
        In its order.
    retries : mapping of str to int
        Failures that each job is allowed.
    """

    reports: Sequence[Started | Refused | Ended]

    def perform(self, batch: Batch) -> None:
        """Take them in; what was taken in before changes nothing."""
        for report in self.reports:
            try:
                if isinstance(report, Started):
                    self._started(batch, report)
                elif self._first(batch, report):
                    self._over(batch, report)
            except EventError as error:
                log.warning("a report on job %r was left out: %s", report.job, error)

    @staticmethod
    def _first(batch: Batch, report: Refused | Ended) -> bool:
        """Whether the end of a generation was not recorded yet; it is now."""
        table = tables.generations
        key = (table.c.job == report.job) & (table.c.generation == report.generation)
        row = batch.connection.execute(select(table.c.ended).where(key)).first()
        if row is None or row.ended is not None:
            return row is None and report.job in batch.engine.open_jobs
        ended = isinstance(report, Ended)
        batch.truth.store.write(
            batch.connection,
            table.update()
            .where(key)
            .values(
                ended=int(report.at * SECOND),
                exit=report.code if isinstance(report, Ended) else None,
                reason=(f"{report.ending}: {report.reason}" if ended else report.reason)[:2_000],  # type: ignore[union-attr]  # told apart beside
            ),
        )
        return True

    @staticmethod
    def _started(batch: Batch, report: Started) -> None:
        name, at = report.job, int(report.at * SECOND)
        table = tables.generations
        batch.also(
            table.update()
            .where(
                (table.c.job == bindparam("one"))
                & (table.c.generation == bindparam("which"))
                & table.c.started.is_(None)
            )
            .values(started=bindparam("at")),
            [{"one": name, "which": report.generation, "at": at}],
        )
        view = batch.truth.views.get(name)
        record = batch.engine.open_jobs.get(name)
        if view is None or record is None or report.generation <= view.started:
            return
        batch.change(name, started=report.generation, running_since=at)
        if view.first_start is None:
            batch.change(name, first_start=at)
        changes = changes_of(
            batch.engine, record, batch.truth.views[name], batch.calendar, batch.now
        )
        batch.change(name, **changes)
        batch.tell("running", name, generation=report.generation)

    def _over(self, batch: Batch, report: Refused | Ended) -> None:
        engine, name, generation = batch.engine, report.job, report.generation
        record = engine.open_jobs.get(name)
        if record is None:
            return
        slot = batch.truth.coming
        current = record.generation == generation and name in engine.running
        if isinstance(report, Refused):
            if current:
                batch.tell("start-failed", name, generation=generation, reason=report.reason)
                batch.take(StartFailed(slot, name, generation, report.reason or "refused"))
            return
        if report.ending is Ending.DONE:
            if name in engine.running:
                batch.take(JobEnded(slot, name, record.generation))
            else:
                batch.change(name, done=True)
        elif current:
            self._failed(batch, record, report)

    @staticmethod
    def _failed(batch: Batch, record: JobRecord, report: Ended) -> None:
        """Let a generation that should run, and does not, be one that failed, or was lost."""
        name = report.job
        view = batch.truth.views[name]
        slot = batch.truth.coming
        if report.ending is not Ending.FAILED:
            # No fault of the job: its retries are left as they are.
            batch.change(name, lost=view.lost + 1)
            batch.tell("lost", name, generation=report.generation, reason=report.reason)
            allowed = record.failures + 1
        else:
            run = batch.truth.specs[name].get("run") or {}
            allowed = int(run.get("retries", 0)) + view.lost
        tail = "\n".join(report.tail[-20:])
        reason = f"{report.reason}\n{tail}" if tail else report.reason
        failed = JobFailed(slot, name, report.generation, reason or "it ended", allowed)
        batch.take(failed)
        if report.ending is Ending.FAILED:
            batch.tell(
                "failed" if name not in batch.engine.open_jobs else "retrying",
                name,
                generation=report.generation,
                code=report.code,
                reason=reason,
            )


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Commands were carried out."""

    commands: Sequence[int]

    def perform(self, batch: Batch) -> None:
        """Take that in."""
        waiting = batch.engine.unacknowledged
        numbers = tuple(number for number in self.commands if number in waiting)
        if not numbers:
            return
        batch.take(Acknowledged(batch.truth.coming, numbers))
        table = tables.commands
        batch.also(
            table.update().where(table.c.id == bindparam("key")).values(acknowledged=batch.now),
            [{"key": number} for number in numbers],
        )


@dataclass(frozen=True, slots=True)
class TakeProgress:
    """How far jobs say they are.

    Parameters
    ----------
    newest : mapping of str to Progressed
        The newest report of each job.
    points : sequence of Progressed
        What is kept for the curves.
    """

    newest: Mapping[str, Progressed]
    points: Sequence[Progressed]

    def perform(self, batch: Batch) -> None:
        """Take it in; what is not of the newest generation changes nothing."""
        progress: dict[str, tuple[int, int]] = {}
        for name, report in self.newest.items():
            record = batch.engine.open_jobs.get(name)
            if (
                record is None
                or record.generation != report.generation
                or name not in batch.engine.running
            ):
                continue
            # Only a process that exits 0 is done: what is counted stops one short.
            most = record.job.work * MICRO - 1
            micro = min(report.progress, most)
            if micro > record.measured:
                progress[name] = (report.generation, micro)
        if progress:
            batch.take(ProgressMeasured(batch.truth.coming, progress), counted=list(progress))
        if self.points:
            import json  # noqa: PLC0415

            batch.also(
                tables.progress.insert(),
                [
                    {
                        "job": point.job,
                        "generation": point.generation,
                        "at": int(point.at * SECOND),
                        "minibatches": point.progress / MICRO,
                        "metrics": json.dumps(dict(point.metrics)),
                    }
                    for point in self.points
                ],
            )


# ------------------------------------------------------------------ servers and tenants


@dataclass(frozen=True, slots=True)
class ChangeServers:
    """Servers are added, removed, resized, drained, or take work again.

    Parameters
    ----------
    servers : mapping of str to ServerState or None
        As of `CapacityChanged`.
    what : str
        For people.
    """

    servers: Mapping[str, ServerState | None]
    what: str

    def perform(self, batch: Batch) -> None:
        """Let the engine follow."""
        batch.take(CapacityChanged(batch.truth.coming, dict(self.servers)))
        for name in self.servers:
            batch.tell("server", server=name, what=self.what)


@dataclass(frozen=True, slots=True)
class LoseServer:
    """A server went away, or came back."""

    server: str
    back: bool = False

    def perform(self, batch: Batch) -> None:
        """Let the engine follow."""
        kind = ServerBack if self.back else ServerLost
        batch.take(kind(batch.truth.coming, self.server))
        batch.tell("server", server=self.server, what="back" if self.back else "lost")


@dataclass(frozen=True, slots=True)
class ChangeTenants:
    """Tenants and their shares are others from now on."""

    tenants: tuple[Tenant, ...]

    def perform(self, batch: Batch) -> None:
        """Let the engine follow."""
        batch.take(CapacityChanged(batch.truth.coming, {}, self.tenants))
        batch.tell("tenants", names=[tenant.name for tenant in self.tenants])
