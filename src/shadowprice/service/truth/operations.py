"""What clients do to the truth: jobs, servers, tenants."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadowprice.core.budget import in_points
from shadowprice.core.cluster import Tenant
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import (
    CapacityChanged,
    JobCancelled,
    JobRevised,
    JobsArrived,
    ServerBack,
    ServerLost,
    ServerState,
)
from shadowprice.core.job import Job
from shadowprice.core.quote import Quote
from shadowprice.core.specs import JobSpec
from shadowprice.rest import jobs as rest
from shadowprice.service.budgets.billing import CannotPayError, price_of, reason_of
from shadowprice.service.clock import Calendar, to_datetime
from shadowprice.service.problems import ProblemError
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.ending import lengthened, without_end_text
from shadowprice.service.truth.margins import Margin
from shadowprice.service.truth.outcome import Operation
from shadowprice.service.truth.submission import (
    Submission,
    read_submissions,
    resolved,
    revised_record,
)
from shadowprice.service.truth.timespan import end_of_quote, explain_end
from shadowprice.service.truth.views import JobView, State

log = logging.getLogger("shadowprice.service")

BACKLOG: Final = 1_000_000
"""Jobs that may wait to be decided on."""

TOGETHER: Final = 32
"""Submissions that are decided on in one event, at most, where several wait."""


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
            raise ProblemError("overloaded", f"{len(truth.backlog)} jobs wait to be decided on")
        answers, fresh = self._take_in(batch, batch.stored([one.name for one in self.submissions]))
        if self.at_once:
            _arrive_fresh(batch, fresh)
        else:
            truth.backlog.extend(one.name for one in fresh)
        return answers

    def _take_in(
        self, batch: Batch, known: dict[str, tuple[JobView, str]]
    ) -> tuple[list[tuple[str, ProblemError | None]], list[Submission]]:
        """Note the jobs that are new; return the answer, and those.

        ``known`` are jobs by their names, as `Batch.stored` has them; the new ones join them.
        """
        truth = batch.truth
        answers: list[tuple[str, ProblemError | None]] = []
        fresh: list[Submission] = []
        for one in self.submissions:
            problem = None
            if one.name in known:
                problem = _taken(one, *known[one.name])
            else:
                moment = batch.now
                view = JobView(
                    truth.next_job, one.name, one.tenant, State.PENDING, moment, moment,
                    family=one.spec.family,
                )  # fmt: skip
                truth.next_job += 1
                batch.add(view, one.record, one.content)
                known[one.name] = view, one.content
                fresh.append(one)
            answers.append((one.name, problem))
        return answers, fresh


def waiting_together(operations: Sequence[Operation]) -> list[Submit]:
    """Return the submissions that operations begin with, to be decided on in one event."""
    found: list[Submit] = []
    for operation in operations[:TOGETHER]:
        if not isinstance(operation, Submit) or not operation.at_once:
            break
        found.append(operation)
    return found


def submit_together(batch: Batch, submits: Sequence[Submit]) -> list[Any]:
    """Let jobs that were submitted one by one arrive in one event; return the answer to each.

    Raises
    ------
    ShadowpriceError
        If they cannot be decided on together.
    """
    answers, fresh = [], []
    known = batch.stored([one.name for submit in submits for one in submit.submissions])
    for one in submits:
        answer, new = one._take_in(batch, known)
        answers.append(answer)
        fresh += new
    _arrive_fresh(batch, fresh)
    return answers


def _arrive_fresh(batch: Batch, fresh: Sequence[Submission]) -> None:
    """Let jobs arrive that were just submitted."""
    _arrive(batch, [one.name for one in fresh], {one.name: one.spec for one in fresh})


def _taken(one: Submission, view: JobView, content: str) -> ProblemError | None:
    if view.tenant != one.tenant:
        return ProblemError("name-conflict", f"another job is called {one.name!r}")
    if content != one.content:
        return ProblemError(
            "name-conflict",
            f"job {one.name!r} was submitted with other content; revise it, or use another name",
        )
    return None


def _resolved(batch: Batch, spec: JobSpec, moment: int) -> Job:
    """Return a job as schedulers see it, submitted at a moment.

    What a change of its placement costs is what its file, or the cluster's, says, and what jobs
    here lost (`Restarts.expected`).

    Raises
    ------
    InputError
        If the cluster has not what it asks for.
    """
    cluster = batch.engine.cluster
    job = resolved(spec, cluster, batch.calendar, moment)
    if spec.tasks is not None:
        return job
    if not batch.truth.virtual:
        job = replace(job, resumable=_is_resumable(batch, spec))
    said = spec.restart is not None or cluster.restart_seconds
    stated = job.restart if said else None
    share = batch.truth.restarts.expected(stated, float(cluster.slot_seconds))
    return job if share == job.restart else replace(job, restart=share)


def _is_resumable(batch: Batch, spec: JobSpec) -> bool | None:
    """Return what a job states of its checkpoints, else what its processes have shown so far."""
    if spec.run is not None and spec.run.checkpoints is not None:
        return spec.run.checkpoints
    record = batch.engine.open_jobs.get(spec.name)
    return None if record is None else record.job.resumable


def _arrive(batch: Batch, names: Sequence[str], specs: Mapping[str, JobSpec] | None = None) -> None:
    """Let jobs that are known arrive; ``specs`` are those that were read already."""
    truth = batch.truth
    slot = truth.coming
    edge = batch.calendar.begins(slot)
    jobs = []
    for name in names:
        view = truth.views[name]
        spec = specs[name] if specs else JobSpec.model_validate(truth.specs[name])
        moment = min(view.submitted, edge)
        try:
            job = _resolved(batch, spec, moment)
        except InputError as error:  # the servers are others than when it was accepted
            batch.tell("refused", name, decision=True, reason={"message": str(error)})
            batch.close(name, State.REFUSED, {"code": "input", "message": str(error)})
            continue
        if moment != view.arrived:
            batch.change(name, arrived=moment)
        jobs.append(job)
    try:
        if jobs:
            batch.take(JobsArrived(slot, tuple(jobs)))
            explain_end(batch, jobs)
    except CannotPayError as error:
        if len(jobs) > 1:  # one by one: each is judged by what those before it left
            for job in jobs:
                _arrive_alone(batch, job.name)
            return
        [(name, reason)] = error.reasons.items()
        batch.tell("refused", name, decision=True, reason=dict(reason))
        batch.close(name, State.REFUSED, reason)


def _arrive_alone(batch: Batch, name: str) -> None:
    """Let a job arrive by itself; one that cannot be decided on is refused."""
    try:
        with batch.whole():
            _arrive(batch, [name])
    except ShadowpriceError as error:
        reason = {"code": error.code, "message": f"it could not be decided on: {error}"}
        batch.tell("refused", name, decision=True, reason=reason)
        batch.close(name, State.REFUSED, reason)


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
            with batch.whole():
                _arrive(batch, names)
        except ShadowpriceError as error:
            log.error("%d jobs cannot be decided on together: %s", len(names), error)
            for name in names:
                _arrive_alone(batch, name)
        return len(truth.backlog)


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
        [one] = read_submissions(
            [record], cluster, tenant=None, runs=False, single=True, owned=True
        )
        if record != truth.specs[self.name]:
            known = batch.engine.open_jobs.get(self.name)
            if known is not None:
                job = _resolved(batch, one.spec, view.arrived)
                before = known.job
                job = replace(job, arrival=before.arrival, before_arrival=before.before_arrival)
                stated = JobSpec.model_validate(truth.specs[self.name])
                stated_job = _resolved(batch, stated, view.arrived)
                extra = batch.billing.more_work(view, stated_job, job)
                batch.take(JobRevised(truth.coming, job))
                batch.billing.pay_more(self.name, extra)
            batch.revise(self.name, record, one.content)
            if one.spec.family != view.family:
                batch.change(self.name, family=one.spec.family)
            after = truth.views.get(self.name) or batch.views[self.name]
            required = [view.required, after.required]
            batch.tell("revised", self.name, changes=dict(self.changes), required=required)
        return truth.views.get(self.name) or batch.views[self.name]


@dataclass(frozen=True, slots=True)
class Quoted:
    """A quote, and what it means to whoever would pay.

    Parameters
    ----------
    quote : Quote
        The policy's answer.
    price : int or None
        In millionths of a point, None where nothing is priced.
    held : int or None
        What the tenant holds, None where it has no budget.
    reason : mapping or None
        Why the job would be refused though the policy would admit it.
    timespan : mapping
        What the end of the timespan means to it; empty where that is far.
    margin : Margin
        Of its promise.
    """

    quote: Quote
    price: int | None = None
    held: int | None = None
    reason: Mapping[str, Any] | None = None
    timespan: Mapping[str, Any] = field(default_factory=dict)
    margin: Margin = field(default_factory=Margin)

    def to_resource(self, job: str, calendar: Calendar, *, names: bool) -> rest.Quote:
        """Return the quote as clients get it.

        Parameters
        ----------
        job : str
            The job's name in the request.
        calendar : Calendar
            The times of slots.
        names : bool
            Whether the caller may see the names of displaced jobs, or only their number.
        """
        quote, reason, points, message = self.quote, self.reason, None, self.quote.message
        if reason is None and quote.refusal is not None:
            reason = quote.refusal.record()
        if self.timespan.get("admitted_without"):
            ends = str(self.timespan["ends"])
            text = without_end_text(ends)
            if quote.refusal is None:
                message = f"{message}; {text}".removeprefix("; ")
            elif self.reason is None:
                reason = lengthened(quote.refusal.record(), text, ends)
        if self.held is not None:
            left = None if self.price is None else in_points(self.held - self.price)
            points = rest.QuotePoints(held=in_points(self.held), left=left)
        completion = None if quote.completion is None else quote.completion + self.margin.slots
        return rest.Quote(
            job=job,
            slot=quote.slot,
            answer="refused" if self.reason is not None else quote.answer.value,
            admitted=quote.admitted and self.reason is None,
            completion=completion,
            promise=None if completion is None else to_datetime(calendar.ends(completion)),
            utility=quote.utility,
            promise_margin_slots=self.margin.slots,
            promise_margin_jobs=self.margin.jobs,
            price=quote.price,
            displaced=list(quote.displaced) if names else len(quote.displaced),
            refusal=None if reason is None else rest.JobReason.model_validate(reason),
            message=message,
            points=points,
            timespan=rest.QuoteEnd.model_validate(self.timespan) if self.timespan else None,
        )


@dataclass(frozen=True, slots=True)
class AskQuote:
    """What would become of a job is asked; nothing changes."""

    submission: Submission

    def perform(self, batch: Batch) -> Quoted:
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
        job = _resolved(batch, self.submission.spec, moment)
        if job.name in engine.jobs:
            job = replace(job, name=f"{job.name} (quote)")
        quote = engine.quote(job, explained=True)
        end = end_of_quote(engine, batch.calendar, job, quote)
        price = None if quote.price is None else price_of(quote.price)
        margin = Margin()
        if quote.completion is not None:
            family = self.submission.spec.family
            margin = truth.margins.margin(
                job.tenant, family, quote.completion, job.arrival, engine.until
            )
        account = truth.accounts.get(job.tenant)
        if account is None:
            return Quoted(quote, price, timespan=end, margin=margin)
        dear = quote.admitted and price is not None and price > account.balance
        reason = reason_of(account, price) if dear and price is not None else None
        return Quoted(quote, price, account.balance, reason, end, margin)


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
        batch.tell("tenants")  # everybody is told; who they are is the operator's to know
