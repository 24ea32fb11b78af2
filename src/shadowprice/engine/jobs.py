"""Event handlers of jobs: arrival, revision, failure, progress, end and cancellation."""

from __future__ import annotations

from shadowprice.core.errors import PolicyError
from shadowprice.core.events import (
    Acknowledged,
    Command,
    Completed,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobsFinished,
    ProgressMeasured,
    Reject,
    StartFailed,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import utility_value
from shadowprice.engine.promises import revised_plan_holds, standing_holds
from shadowprice.engine.servers import ServerEvents
from shadowprice.engine.state import JobRecord


class JobEvents(ServerEvents):
    """Handlers of job events, except those at slot boundaries."""

    def _arrive(self, event: JobsArrived) -> list[Command]:
        commands: list[Command] = []
        candidates = []
        for job in event.jobs:
            self.arrivals += 1
            self._enter(JobRecord(job, self.arrivals))
            refusal = self._refused_at_once(job)
            if refusal is None:
                candidates.append(job)
            else:
                commands += self._apply(Reject(job.name, refusal))
        if candidates:
            commands += self._query_policy(JobsArrived(event.slot, tuple(candidates)))
        for job in candidates:
            record = self.jobs[job.name]
            if record.status is Status.ARRIVED:
                if self._script is None:
                    raise PolicyError(f"{record.story()}: the policy decided nothing")
                self._touch(record).status = Status.QUEUED
        return commands

    def _refused_at_once(self, job: Job) -> Refusal | None:
        """Return why a job is refused without consulting the policy, or None."""
        return self._runs_no_bags(job) or self._never_fits(job)

    def _runs_no_bags(self, job: Job) -> Refusal | None:
        if job.bag is None or self.capabilities.runs_bags:
            return None
        return Refusal(
            Reason.POLICY,
            "a bag of tasks needs a policy that plans copies, and this one runs training jobs "
            "only; `shadowprice policies` tells which do",
        )

    def _cancel(self, event: JobCancelled) -> list[Command]:
        if event.job not in self.open_jobs:
            return []
        refusal = Refusal(Reason.CANCELLED, "cancelled by its owner")
        return self._withdraw(event, Status.CANCELLED, refusal)

    def _withdraw(self, event: JobCancelled, status: Status, refusal: Refusal) -> list[Command]:
        placement = self.running.get(event.job)
        record = self._close(event.job, status)
        record.refusal = refusal
        commands: list[Command] = []
        if placement is not None:
            commands.append(self._stop(event.slot, event.job, placement, finished=False))
        return commands + self._query_policy(event)

    def _revise(self, event: JobRevised) -> list[Command]:
        job = event.job
        record = self.open_jobs[job.name]
        old_job = record.job
        done_minibatches = record.progress * old_job.work // old_job.required
        self._touch(record).job = job
        if job.resumable and job.differs_only("resumable", old_job):
            return []  # plans don't depend on this field
        record.progress = min(job.required, done_minibatches * job.required // job.work)
        if record.measured:
            record.progress = min(job.required, record.units(record.measured))
        charged = self.capabilities.charges_restarts
        broken = not (
            revised_plan_holds(
                record,
                old_job,
                self.slot,
                self.running.get(job.name),
                charged=charged,
                first=self.cluster.restart_first,
            )
            if len(record.plan)
            else standing_holds(record, old_job)
        )
        self._resume_policy()
        commands = self._query_policy(event)
        if broken and job.name in self.open_jobs:
            if len(record.plan) and record.job.same_demand(old_job):
                commands += self._extend([job.name])
            else:
                commands += self._replan([job.name], None, "it was revised")
        return commands

    def _fail(self, event: JobFailed) -> list[Command]:
        record = self._newest(event.job, event.generation)
        if record is None:
            return []
        self._touch(record).failures = record.failures + 1
        self._end_run(event.job)
        if record.failures <= event.retries:
            return []  # the job restarts in its plan or placement at the next slot
        refusal = Refusal(Reason.FAILED, event.reason, numbers={"failures": record.failures})
        withdrawn = JobCancelled(event.slot, event.job)
        return self._withdraw(withdrawn, Status.FAILED, refusal)

    def _fail_to_start(self, event: StartFailed) -> list[Command]:
        if self._newest(event.job, event.generation) is None:
            return []
        self._end_run(event.job)
        return self._replan([event.job], None, f"it could not be started: {event.reason}")

    def _end_job(self, event: JobEnded) -> list[Command]:
        record = self._newest(event.job, event.generation)
        if record is None:
            return []
        slot = event.slot - 1
        self._touch(record).progress = record.job.required
        self._end_run(event.job)
        commands = self._complete(event.job, slot)
        return commands + self._query_policy(JobsFinished(event.slot, (event.job,)))

    def _newest(self, name: str, generation: int) -> JobRecord | None:
        """Return an open job if this is its newest generation and runs, None otherwise."""
        record = self.open_jobs.get(name)
        if record is None or record.generation != generation or name not in self.running:
            return None
        return record

    def _acknowledge(self, event: Acknowledged) -> list[Command]:
        for number in event.commands:
            if number in self.unacknowledged:
                self._undo.drop(self.unacknowledged, number, int)
        return []

    def _measure(self, event: ProgressMeasured) -> list[Command]:
        for name, (generation, measured) in event.progress.items():
            record = self._newest(name, generation)
            if record is None:
                continue
            if measured < record.measured:
                if record.measured <= record.resumed_at:
                    lost = max(record.lost, record.measured - measured)
                    self._touch(record).lost = lost
                continue
            previous = self._touch(record).measured
            record.measured = measured
            progress = min(record.job.required, record.units(measured))
            # The first report replaces the estimate by time, even if that makes progress smaller.
            record.progress = max(record.progress, progress) if previous else progress
        return []

    def _complete(self, name: str, slot: int) -> list[Command]:
        placement = self.running.get(name)
        record = self._close(name, Status.FINISHED)
        record.completion = slot
        utility = utility_value(record.job.utility, slot - record.job.arrival)
        commands: list[Command] = []
        if placement is not None:
            commands.append(self._stop(slot + 1, name, placement, finished=True))
        return [*commands, Completed(slot, name, utility)]
