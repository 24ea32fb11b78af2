"""Operations of clients on the durable state: jobs, quotes, servers and tenants."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sqlalchemy import Connection

from shadowprice import rest
from shadowprice.core import events
from shadowprice.core.budget import POINT, in_points
from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.job_keys import shown_key
from shadowprice.core.length_history import LengthPrediction, with_length
from shadowprice.core.quote import Quote, QuoteAnswer
from shadowprice.core.refusal import RevisionRefusedError
from shadowprice.core.relative_values import (
    OpenValues,
    RelativeValues,
    scale_utility,
    utility_factor,
)
from shadowprice.core.specs import JobSpec
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.engine.engine import Engine
from shadowprice.engine.snapshot import clone
from shadowprice.service.budgets import billing
from shadowprice.service.clock import SECOND, SlotCalendar, to_datetime
from shadowprice.service.problems import ProblemError
from shadowprice.service.state import ending, store_queries
from shadowprice.service.state.batch import Batch, Operation, operation
from shadowprice.service.state.engine_events import apply_event, weigh
from shadowprice.service.state.job_views import JobView, State, predicted_resource
from shadowprice.service.state.margins import Margin
from shadowprice.service.state.server_limits import clear_withheld, present_server
from shadowprice.service.state.stated_work import rescale_covered
from shadowprice.service.state.store_queries import StoredJob
from shadowprice.service.state.submission import (
    SPEED_KEYS,
    Submission,
    asks_for_more,
    content_hash,
    family_keys,
    merge_changes,
    raises_terms,
    read_submissions,
    resolve_job,
    without_keys,
)
from shadowprice.service.state.timespan import end_of_quote, explain_end

log = logging.getLogger("shadowprice.service")

MAX_BACKLOG_JOBS: Final = 1_000_000  # maximum number of accepted jobs that wait for a decision
MAX_SUBMISSIONS_PER_EVENT: Final = 32  # maximum submissions that one event decides


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """Stored jobs that submissions may repeat: the newest of each name, and those of requests."""

    newest: dict[str, StoredJob]
    of_requests: dict[str, StoredJob]

    @classmethod
    def of_batch(cls, batch: Batch, submissions: Sequence[Submission]) -> KnownJobs:
        """Return the stored jobs of these submissions, also those that the batch adds."""
        names, requests = _names(submissions), _requests(submissions)
        return cls(batch.newest_jobs(names), batch.jobs_of_requests(requests))

    def add(self, submission: Submission, view: JobView) -> None:
        """Add a new job."""
        job = StoredJob(view, submission.content_hash, submission.request)
        self.newest[submission.qualified_name] = job
        if submission.request is not None:
            self.of_requests[submission.request] = job

    def find(self, submission: Submission) -> tuple[str, ProblemError | None] | None:
        """Return the key of the known job that a submission repeats; None if it is a new job.

        A retry of a request repeats the request's job. Otherwise the newest job of the name counts:

        - open, and equal content: that job
        - open, and other content: that job, with the problem as the second element
        - finished, and equal content: that job, because finished work isn't repeated
        - any other closed job, or none: a new job, because the name is free
        """
        retried = self.of_requests.get(submission.request or "")
        if retried is not None:
            return retried.view.key, None
        newest = self.newest.get(submission.qualified_name)
        if newest is None:
            return None
        view, is_equal = newest.view, newest.content_hash == submission.content_hash
        if view.state.open:
            return view.key, None if is_equal else _name_conflict(submission)
        return (view.key, None) if is_equal and view.state is State.FINISHED else None


def _names(submissions: Sequence[Submission]) -> list[str]:
    return [submission.qualified_name for submission in submissions]


def _requests(submissions: Sequence[Submission]) -> list[str]:
    return [item.request for item in submissions if item.request is not None]


def _name_conflict(submission: Submission) -> ProblemError:
    problem = f"job {submission.name!r} was submitted with other content"
    return ProblemError("name-conflict", f"{problem}; revise it, or use another name")


@dataclass(frozen=True, slots=True)
class SubmitJobs:
    """Submit jobs that aren't known: decide them if ``at_once``, else add to the backlog."""

    submissions: Sequence[Submission]
    at_once: bool

    def perform(self, batch: Batch) -> list[tuple[str, ProblemError | None]]:
        """Return the key of each job, with its problem if it can't be accepted."""
        state = batch.state
        if len(state.backlog) + len(self.submissions) > MAX_BACKLOG_JOBS:
            raise ProblemError("overloaded", f"{len(state.backlog)} jobs wait to be decided on")
        if self.at_once:
            [answers] = submit_in_one_event(batch, [self])
            return answers
        answers, fresh = self._record_new(batch, KnownJobs.of_batch(batch, self.submissions))
        for key, item in fresh.items():
            state.backlog.push(item.tenant, key)
        return answers

    def _record_new(
        self, batch: Batch, known: KnownJobs
    ) -> tuple[list[tuple[str, ProblemError | None]], dict[str, Submission]]:
        """Record new jobs, also in ``known``; return the answers, and the new jobs by key."""
        state = batch.state
        answers: list[tuple[str, ProblemError | None]] = []
        fresh: dict[str, Submission] = {}
        for submission in self.submissions:
            answer = known.find(submission)
            if answer is None:
                now, number = batch.now, state.next_job
                # A purged job's name is unknown here, but the executor still refuses its
                # generation numbers. So if jobs were purged, each name counts as repeated.
                is_repeated = submission.qualified_name in known.newest or batch.has_purged_jobs()
                key = submission.key(number, is_repeated=is_repeated)
                view = JobView(
                    number, key, submission.name, submission.tenant, State.PENDING, now, now,
                    family=submission.spec.family,
                )  # fmt: skip
                state.next_job += 1
                batch.insert_job(
                    view, submission.record, submission.content_hash, submission.request
                )
                known.add(submission, view)
                fresh[key] = submission
                answer = key, None
            answers.append(answer)
        return answers, fresh


def without_known_jobs(
    connection: Connection, submissions: Sequence[Submission]
) -> list[Submission]:
    """Return the submissions that would add a job to those stored now."""
    names, requests = _names(submissions), _requests(submissions)
    known = KnownJobs(
        store_queries.newest_jobs(connection, names),
        store_queries.jobs_of_requests(connection, requests),
    )
    return [submission for submission in submissions if known.find(submission) is None]


def leading_submissions(operations: Sequence[Operation[Any]]) -> list[SubmitJobs]:
    """Return the leading submissions of a list of operations, to decide them in one event."""
    submits: list[SubmitJobs] = []
    for item in operations[:MAX_SUBMISSIONS_PER_EVENT]:
        if not isinstance(item, SubmitJobs) or not item.at_once:
            break
        submits.append(item)
    return submits


def submit_in_one_event(
    batch: Batch, submits: Sequence[SubmitJobs]
) -> list[list[tuple[str, ProblemError | None]]]:
    """Submit the jobs of several requests in one event; return the response to each request."""
    responses = []
    fresh: dict[str, Submission] = {}
    known = KnownJobs.of_batch(batch, [item for submit in submits for item in submit.submissions])
    for item in submits:
        response, new = item._record_new(batch, known)
        responses.append(response)
        fresh |= new
    _decide_jobs(batch, list(fresh), {key: submission.spec for key, submission in fresh.items()})
    return responses


def _resolve(batch: Batch, key: str, spec: JobSpec, moment: int) -> Job:
    """Resolve a job for the engine, as submitted at a moment in nanoseconds since 1970.

    Its restart cost is the stated cost, adjusted by measured restarts (`RestartCostEstimator`). If
    the job states no length, it gets the predicted length, which its view keeps from the decision
    on. Raise `InputError` if the cluster lacks a resource that the job needs.
    """
    cluster = batch.engine.cluster
    job = resolve_job(spec, cluster, batch.calendar, moment, key=key)
    if spec.has_unknown_length:
        seconds, view = _predicted_length(batch, job).length, batch.state.views.get(key)
        job = with_length(job, seconds / float(cluster.slot_seconds))
        if view is not None and view.measured:  # its speed and work give its length
            job = replace(job, predicted=False)
    account = batch.state.accounts.get(job.tenant)
    if account is not None:
        job = replace(job, points=max(0, account.balance) / POINT)
    if spec.tasks is not None:
        return job
    if not batch.state.virtual:
        resumable, max_overrun = _is_resumable(batch, key, spec), batch.state.max_overrun
        job = replace(job, resumable=resumable, max_overrun=max_overrun)
    is_stated = spec.restart is not None or cluster.restart_seconds
    stated = job.restart if is_stated else None
    share = batch.state.restarts.estimate(job.tenant, stated, float(cluster.slot_seconds))
    return job if share == job.restart else replace(job, restart=share)


def _predicted_length(batch: Batch, job: Job) -> LengthPrediction:
    """Return the predicted length in seconds of a job that states none."""
    view = batch.state.views.get(job.name)
    if view is not None and view.predicted is not None:
        return view.predicted
    return batch.state.lengths.predict(job, batch.engine.cluster)


def _is_resumable(batch: Batch, key: str, spec: JobSpec) -> bool | None:
    """Return the stated ``run.checkpoints``, or the value observed from the job's processes."""
    if spec.run is not None and spec.run.checkpoints is not None:
        return spec.run.checkpoints
    record = batch.engine.open_jobs.get(key)
    return None if record is None else record.job.resumable


def _decide_jobs(
    batch: Batch, keys: Sequence[str], specs: Mapping[str, JobSpec] | None = None
) -> None:
    """Decide stored jobs in one event; ``specs`` holds specifications that are already parsed."""
    state = batch.state
    slot = state.next_slot
    slot_start = batch.calendar.begins(slot)
    jobs = []
    for key in keys:
        view = state.views[key]
        spec = specs[key] if specs else JobSpec.model_validate(state.specs[key])
        moment = min(view.submitted, slot_start)  # not after the slot that it's decided for
        try:
            job = _resolve(batch, key, spec, moment)
        except InputError as error:  # the servers changed after the job was accepted
            batch.emit("refused", key, decision=True, reason={"message": str(error)})
            batch.close_job(key, State.REFUSED, {"code": "input", "message": str(error)})
            continue
        if moment != view.arrived:
            batch.update_view(key, arrived=moment)
        if spec.has_unknown_length:
            prediction = _predicted_length(batch, job)
            batch.update_view(key, predicted=prediction, first_length=prediction.length)
        jobs.append(job)
    try:
        if jobs:
            apply_event(batch, events.JobsArrived(slot, weigh(batch, jobs)))
            explain_end(batch, jobs)
    except billing.InsufficientPointsError as error:
        if len(jobs) > 1:  # retry one by one: each is checked against the remaining balance
            for job in jobs:
                _decide_alone(batch, job.name)
            return
        [(key, reason)] = error.reasons.items()
        batch.emit("refused", key, decision=True, reason=dict(reason))
        batch.close_job(key, State.REFUSED, reason)


def _decide_alone(batch: Batch, key: str) -> None:
    """Decide one job in an event of its own; refuse it if the event fails."""
    try:
        with batch.savepoint():
            _decide_jobs(batch, [key])
    except ShadowpriceError as error:
        reason = {"code": error.code, "message": f"the policy failed to decide on it: {error}"}
        batch.emit("refused", key, decision=True, reason=reason)
        batch.close_job(key, State.REFUSED, reason)


@operation
def decide_backlog(batch: Batch, maximum: int) -> int:
    """Decide up to ``maximum`` accepted jobs of the backlog; tenants take turns.

    Return the number of jobs that remain in the backlog.
    """
    state = batch.state
    keys: list[str] = []
    while state.backlog and len(keys) < maximum:
        key = state.backlog.pop()
        view = state.views.get(key)
        if view is not None and view.state is State.PENDING:
            keys.append(key)
    try:
        with batch.savepoint():
            _decide_jobs(batch, keys)
    except ShadowpriceError as error:
        log.error("failed to decide on %d jobs together: %s", len(keys), error)
        for key in keys:
            _decide_alone(batch, key)
    return len(state.backlog)


@operation
def cancel_job(batch: Batch, key: str) -> JobView:
    """Cancel the job with a key, and return it."""
    view = batch.get_view(key)
    if view.state is State.CANCELLED:
        return view
    if not view.state.open:
        raise ProblemError("conflict", f"job {view.name!r} is {view.state} already")
    batch.emit("cancelled", key)
    if key not in batch.engine.open_jobs:
        reason = {"code": "cancelled", "message": "cancelled before it was decided"}
        return batch.close_job(key, State.CANCELLED, reason)
    apply_event(batch, events.JobCancelled(batch.state.next_slot, key))
    return batch.views[key]


@operation
def resubmit_job(batch: Batch, key: str, submission: Submission) -> str:
    """Submit a job again, and return the key of the new one.

    If the job is open, it is cancelled, unless the new job exists already or is refused.
    """
    is_new = KnownJobs.of_batch(batch, [submission]).find(submission) is None
    before = batch.get_view(key)
    is_requeued = is_new and before.state.open
    if is_requeued:
        batch.engine.session.save_for_rollback()  # the new job may be refused
    with batch.savepoint():
        if is_requeued:  # cancelled first, because the new job may need its servers
            cancel_job(key).perform(batch)
        [(key, problem)] = SubmitJobs([submission], at_once=True).perform(batch)
        if problem is not None:
            raise problem
        after = batch.get_view(key)
        if is_requeued and after.state is State.REFUSED:
            reason = str((after.reason or {}).get("message", "")) or "the new job is refused"
            raise _refusal(before.name, reason)
    return key


@operation
def revise_job(
    batch: Batch, key: str, changes: Mapping[str, Any], *, dry_run: bool = False
) -> JobView:
    """Revise an open job, and return it.

    ``changes`` maps keys of the job file, or ``deadline``, to values. If the revision asks for
    more, the policy must admit the remaining work at current prices. Only the difference is
    debited. If it is refused, the job is unchanged. With ``dry_run``, every change is rolled back.
    """
    if not dry_run:
        return _revise(batch, key, changes)
    batch.engine.session.save_for_rollback()
    try:
        with batch.savepoint():
            raise _DryRunError(_revise(batch, key, changes))
    except _DryRunError as result:
        return result.view


def _revise(batch: Batch, key: str, changes: Mapping[str, Any]) -> JobView:
    view = batch.get_view(key)
    if not view.state.open:
        raise ProblemError("conflict", f"job {view.name!r} is {view.state} already")
    state = batch.state
    record = merge_changes(state.specs[key], changes)
    cluster, submitted = batch.engine.cluster, view.submitted
    # `merge_changes` has checked reserved labels, and a job keeps its tenant and its `run`.
    [submission] = read_submissions(
        [record], cluster, tenant=None, runs=False, single=True, from_controller=True, now=submitted
    )
    if record != state.specs[key]:
        with batch.savepoint():
            _apply_revision(batch, view, submission.spec, changes)
        # Hashed without its family's curve, so that the revised file can be submitted again.
        hash_before = batch.find_jobs([key])[key].content_hash
        added = family_keys(state.specs[key], hash_before)
        batch.update_spec(key, record, content_hash(without_keys(record, added - changes.keys())))
        if submission.spec.family != view.family:
            batch.update_view(key, family=submission.spec.family)
        if view.predicted is not None and not submission.spec.has_unknown_length:
            batch.update_view(key, predicted=None, first_length=None)
        batch.update_view(key, blamed=view.generation)  # see `stated_work`
        required = [view.required, batch.views[key].required]
        batch.emit("revised", key, changes=dict(changes), required=required)
    return state.views.get(key) or batch.views[key]


def _apply_revision(batch: Batch, view: JobView, spec: JobSpec, changes: Mapping[str, Any]) -> None:
    """Revise the job in the engine, and debit the price of its additional demand."""
    state, engine, key = batch.state, batch.engine, view.key
    record = engine.open_jobs.get(key)
    if record is None:
        return  # the job waits to be decided
    job = _resolve(batch, key, spec, view.arrived)
    before = record.job
    job = replace(
        job,
        arrival=before.arrival,
        before_arrival=before.before_arrival,
        # Those of its admission, unless its tenant's budget was removed since.
        points=None if job.points is None else before.points,
    )
    spec_before = JobSpec.model_validate(state.specs[key])
    stated = _resolve(batch, key, spec_before, view.arrived)
    # Utilities count from the arrival, so the horizon does too.
    horizon = state.next_slot - job.arrival + engine.cluster.horizon
    is_admission = asks_for_more(stated, job, horizon=horizon)
    counted = _with_counted_utility(batch, before, stated, job, is_admission=is_admission)
    done = record.progress * before.work // before.required
    if is_admission:
        engine.session.save_for_rollback()  # the revision may be refused
    try:
        commands = apply_event(batch, events.JobRevised(state.next_slot, counted, is_admission))
    except RevisionRefusedError as error:
        reason = ending.with_clock_times(error.refusal.message, batch.calendar)
        raise _refusal(view.name, reason) from error
    for command in commands:
        if isinstance(command, events.Displaced) and command.job != key:
            raise _refusal(view.name, "it would displace another job")
    if key not in engine.open_jobs:
        raise _refusal(view.name, "it would end the job")
    if is_admission:
        raised = raises_terms(stated, job, horizon=horizon)
        terms = billing.RevisedWork(stated, job, done, raised=raised)
        billing.Billing(batch).debit_revision(key, terms, billing.cost_of_revision(commands, key))
    if not SPEED_KEYS.isdisjoint(changes):
        rescale_covered(batch, stated, job)


def _with_counted_utility(
    batch: Batch, before: Job, stated: Job, after: Job, *, is_admission: bool
) -> Job:
    """Return a revised job with its counted utility.

    Only an admission can raise the factor between counted and stated utility. ``before`` is the
    engine's job, and ``stated`` the job as its owner stated it before the revision.
    """
    [weighed] = weigh(batch, [after])
    if before.stated_utility is None or weighed.stated_utility is None:
        return weighed if is_admission else after
    is_same = after.utility == stated.utility and after.worker_slots == stated.worker_slots
    share, previous = utility_factor(weighed), utility_factor(before)
    if is_same:
        share = previous
    elif not is_admission:
        share = min(share, previous)
    return scale_utility(after, share)


class _DryRunError(Exception):  # rolls a dry run back, and holds its result
    def __init__(self, view: JobView) -> None:
        super().__init__(view.name)
        self.view = view


def _refusal(name: str, reason: str) -> ProblemError:
    return ProblemError("refused", f"job {name!r} stays as it was: {reason}")


@dataclass(frozen=True, slots=True)
class QuoteResult:
    """A policy's quote, with the effects of the budget, the timespan and the promise margin."""

    quote: Quote
    refusal: Mapping[str, Any] | None = None  # the policy's reason if the job would be refused
    message: str = ""  # the policy's remark, such as the resource that the job would wait for
    price: int | None = None  # in millionths of a point; None if the policy gave none
    held: int | None = None  # the tenant's balance, in the unit of ``price``; None without a budget
    reason: Mapping[str, Any] | None = None  # why the service would refuse what the policy admits
    timespan: Mapping[str, Any] = field(default_factory=dict)  # `end_of_quote`
    margin: Margin = field(default_factory=Margin)  # from planned completion to promise
    share: float = 1.0  # factor from the stated to the counted utility
    predicted: LengthPrediction | None = None  # of a job that states no length; it has no promise

    def to_resource(self, job: str, calendar: SlotCalendar, *, names: bool) -> rest.Quote:
        """Return the quote as a REST resource; with ``names``, it lists the displaced jobs."""
        quote, reason, points, message = self.quote, self.reason, None, self.message
        if reason is None:
            reason = self.refusal
        if self.timespan.get("admitted_without"):
            end = str(self.timespan["ends"])
            text = ending.without_end_text(end)
            if self.refusal is None:
                message = f"{message}; {text}".removeprefix("; ")
            elif self.reason is None:
                reason = ending.append_end_text(self.refusal, text, end)
        if self.held is not None:
            remaining = None if self.price is None else in_points(self.held - self.price)
            points = rest.QuotePoints(held=in_points(self.held), left=remaining)
        completion = None
        if quote.completion is not None and self.predicted is None:
            completion = quote.completion + self.margin.slots
        return rest.Quote(
            job=job,
            slot=quote.slot,
            answer="refused" if self.reason is not None else quote.answer.value,
            admitted=quote.admitted and self.reason is None,
            completion=completion,
            promise=None if completion is None else to_datetime(calendar.ends(completion)),
            expected=None if quote.expected is None else to_datetime(calendar.ends(quote.expected)),
            utility=None if quote.utility is None else quote.utility / self.share,
            promise_margin_slots=self.margin.slots,
            promise_margin_jobs=self.margin.jobs,
            predicted=predicted_resource(self.predicted),
            price=None if quote.price is None else quote.price / self.share,
            displaced=list(map(shown_key, quote.displaced)) if names else len(quote.displaced),
            refusal=None if reason is None else rest.JobReason.model_validate(reason),
            message=message,
            points=points,
            timespan=rest.QuoteEnd.model_validate(self.timespan) if self.timespan else None,
        )


@operation
def quote_job(batch: Batch, submission: Submission) -> QuoteResult:
    """Quote a job for the first slot that can still be decided, without submitting it."""
    engine, state = batch.engine, batch.state
    if not engine.capabilities.quotes:
        raise ProblemError("unsupported", f"{state.choice.name} gives no quotes")
    slot = state.next_slot
    if slot > engine.slot:
        # An idle engine stays at an older slot until the next event. Advance the ledger as that
        # event would, because the quote is for the first slot that can still be decided.
        engine.state.check_skip(slot)
        engine.state.advance_for_query(slot)
    moment = min(batch.now, batch.calendar.begins(slot))
    key = submission.qualified_name
    newest = batch.newest_jobs([key]).get(key)
    if newest is not None and newest.view.state.open:
        key = newest.view.key
    [job] = weigh(batch, [_resolve(batch, key, submission.spec, moment)])
    if job.name in engine.jobs:
        job = replace(job, name=f"{job.name} (quote)")
    quote = engine.quote(job, explained=True)
    share = utility_factor(job)
    refusal, message = None, ending.with_clock_times(quote.message, batch.calendar)
    if quote.refusal is not None:
        refusal = ending.refusal_reason(engine, batch.calendar, job, quote.refusal)
    elif quote.answer is QuoteAnswer.QUEUED:
        message = ending.queue_reason(engine, batch.calendar, job, quote.message)["message"]
    effect = end_of_quote(engine, batch.calendar, job, quote)
    price = None if quote.price is None else billing.to_price_units(quote.price)
    margin = Margin()
    predicted = _predicted_length(batch, job) if job.predicted else None
    if quote.completion is not None and predicted is None:
        family, planned = submission.spec.family, quote.completion
        margin = state.margins.margin(job.tenant, family, planned, job.arrival, engine.until)
    held = reason = None
    account = state.accounts.get(job.tenant)
    if account is not None:  # the tenant pays in points, which must not be scaled
        held, share = account.balance, 1.0
        if quote.admitted and price is not None and not account.can_pay(price):
            reason = billing.insufficient_points_reason(account, price)
    return QuoteResult(
        quote, refusal, message, price, held, reason, effect, margin, share, predicted
    )


@dataclass(frozen=True, slots=True)
class EngineFork:
    """A copy of the engine at one moment, and a job for queries of the copy.

    The copy is at the first slot that can still be decided, and the job is as if submitted now.
    ``resolve`` resolves another specification of the job in the same way, or raises `InputError`.
    """

    engine: Engine
    calendar: SlotCalendar
    job: Job
    resolve: Callable[[JobSpec], Job]
    start: StartPrediction | None = None  # None if the history says nothing


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """When a job that waits starts, if it waits like earlier similar jobs."""

    by: int  # in nanoseconds since 1970, rounded up to a second
    probability: float
    jobs: int  # number of similar jobs that waited longer than this job has waited


@operation
def fork_engine(batch: Batch, key: str, spec: JobSpec) -> EngineFork:
    """Copy the engine, for queries about a job that take too long for a batch."""
    state, calendar = batch.state, batch.calendar
    if not batch.engine.capabilities.quotes:
        raise ProblemError("unsupported", f"{state.choice.name} gives no quotes")
    slot = state.next_slot
    moment = min(batch.now, calendar.begins(slot))
    [job] = weigh(batch, [_resolve(batch, key, spec, moment)])
    cluster, length = batch.engine.cluster, None
    if spec.has_unknown_length:
        length = _predicted_length(batch, job).length
    plain = resolve_job(spec, cluster, calendar, moment, key=key, length=length)
    is_restart_known = job.restart != plain.restart

    def resolve(spec: JobSpec) -> Job:
        other = resolve_job(spec, cluster, calendar, moment, key=key, length=length)
        other = replace(other, points=job.points, resumable=job.resumable)
        if is_restart_known:
            other = replace(other, restart=job.restart)
        if values is not None:
            [other] = values.weigh([other], open_values, cluster, slot)
        return other

    twin = clone(batch.engine)
    values = None
    if state.values is not None and state.compares_values([job]):
        values = RelativeValues(state.values.finished)
    open_values = OpenValues(twin.open_jobs, twin.state.watch_jobs())
    if slot > twin.slot:
        twin.state.check_skip(slot)
        twin.ledger.advance(slot)
    return EngineFork(twin, calendar, job, resolve, _predict_start(batch, key, job))


def _predict_start(batch: Batch, key: str, job: Job) -> StartPrediction | None:
    view = batch.state.views.get(key)
    if view is not None and view.first_start is not None:
        return None  # the history has waits of new jobs, and paused jobs wait for other reasons
    since = batch.now if view is None else view.arrived
    waited = max(0, batch.now - since) / SECOND
    prediction = batch.state.lengths.predict_wait(job, batch.engine.cluster, waited)
    if prediction is None or prediction.probability is None:
        return None
    by = math.ceil((since + prediction.length * SECOND) / SECOND) * SECOND
    return StartPrediction(by, prediction.probability, prediction.jobs)


# ------------------------------------------------------------------ servers and tenants


@operation
def update_servers(
    batch: Batch,
    servers: Mapping[str, events.ServerState | None],
    what: str,
    *,
    sets_capacity: bool = True,
) -> None:
    """Change servers as `CapacityChanged` does; ``what`` describes the change in the stream."""
    apply_event(batch, events.CapacityChanged(batch.state.next_slot, dict(servers)))
    if sets_capacity:
        clear_withheld(batch, servers.keys())
    for name in servers:
        batch.emit("server", server=name, what=what)


@operation
def add_servers(batch: Batch, servers: Mapping[str, events.ServerState]) -> None:
    """Add servers; raise `ProblemError` if one of them exists."""
    taken = next((name for name in servers if name in batch.engine.cluster.index), None)
    if taken is not None:
        raise ProblemError("conflict", f"the server {quote_for_display(taken)} already exists")
    update_servers(servers, "added").perform(batch)


Availability = Literal["up", "drained", "cordoned"]


@operation
def change_server(
    batch: Batch,
    name: str,
    availability: Availability | None = None,
    capacity: Mapping[str, int] | None = None,
    role: Role | None = None,
    cost: float | None = None,
) -> None:
    """Change a server; None keeps the value that it has when the operation runs.

    Raise `ProblemError` if the server is unknown.
    """
    _check_server(batch.engine.cluster, name)
    state = replace(present_server(batch.engine, name), cost=cost)
    if role is not None:
        state = replace(state, role=role)
    if capacity is not None:
        state = replace(state, capacity=capacity)
    if availability is not None:
        drained, cordoned = availability == "drained", availability == "cordoned"
        state = replace(state, drained=drained, cordoned=cordoned)
    what = "changed"
    if (capacity, role, cost) == (None, None, None):
        what = "takes work" if availability == "up" else availability or what
    sets_capacity = capacity is not None
    update_servers({name: state}, what, sets_capacity=sets_capacity).perform(batch)


@operation
def remove_server(batch: Batch, name: str) -> None:
    """Remove a server; raise `ProblemError` if it is unknown."""
    _check_server(batch.engine.cluster, name)
    update_servers({name: None}, "removed").perform(batch)


def _check_server(cluster: Cluster, name: str) -> None:
    if name not in cluster.index:
        hint = hint_for_unknown(name, cluster.names, "GET /v1/servers lists them")
        raise ProblemError("not-found", f"unknown server {quote_for_display(name)}; {hint}")


@operation
def set_server_availability(batch: Batch, server: str, *, back: bool = False) -> None:
    """Record the loss of a server, or its return if ``back``."""
    kind = events.ServerBack if back else events.ServerLost
    apply_event(batch, kind(batch.state.next_slot, server))
    batch.emit("server", server=server, what="back" if back else "lost")


@operation
def update_tenants(batch: Batch, tenants: tuple[Tenant, ...]) -> None:
    """Replace all tenants and their shares."""
    apply_event(batch, events.CapacityChanged(batch.state.next_slot, {}, tenants))
    batch.emit("tenants")  # without names: every subscriber gets it, only operators see tenants
