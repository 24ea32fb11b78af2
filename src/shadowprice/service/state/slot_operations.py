"""Operations that follow time: slots end and begin, and clock changes move slots."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import JobRevised, SlotBegan, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.length_history import LengthPrediction
from shadowprice.core.relative_values import cap_utility
from shadowprice.engine.job_record import JobRecord
from shadowprice.executors.contract import Ended, Ending
from shadowprice.service.clock import SECOND
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.engine_events import apply_event, resync_policy
from shadowprice.service.state.report_operations import DurableReport, RecordReports
from shadowprice.service.state.stated_work import nanoseconds_run, pays_restart
from shadowprice.service.state.timespan import follow_clock

log = logging.getLogger("shadowprice.service")

MAX_CATCH_UP_SLOTS: Final = 1_000  # maximum missed slots that run; moving slot 0 skips the others
MAX_SLOTS_PER_BATCH: Final = 50  # maximum number of slots that begin in one batch
ADVANCE_TIME_BUDGET_SECONDS: Final = 0.5  # after which remaining slots wait for the next batch


class AdvanceResult(NamedTuple):
    """Result of `AdvanceSlots`.

    An error is returned instead of raised, because an exception would undo the earlier slots.
    """

    failed_reports: tuple[DurableReport, ...] = ()  # as `RecordReports` returns them
    is_caught_up: bool = False  # whether all due slots have begun, and all reports were applied
    error: ShadowpriceError | None = None  # that prevented a slot's start or end


@dataclass(frozen=True, slots=True)
class AdvanceSlots:
    """Advance time: end the slots that have passed, and begin the slots that are due.

    If ``virtual``, jobs are simulated: they progress at the declared rate and complete with their
    work. ``stale_jobs`` may have done more than was reported. Each of the executor's pending
    ``reports`` is applied in the slot in which it happened. The service only receives progress
    reports since the moment ``reports_since``, so reports in slots that began earlier may be lost.
    ``last_reports`` has the moment of each job's newest report. Moments are nanoseconds since 1970.
    """

    virtual: bool = False
    stale_jobs: frozenset[str] = frozenset()
    reports: Sequence[DurableReport] = ()
    reports_since: int = 0
    last_reports: Mapping[str, int] = field(default_factory=dict)

    def perform(self, batch: Batch) -> AdvanceResult:
        """Advance slot by slot, each atomically."""
        reports = deque(sorted(self.reports, key=lambda report: report.at))
        remaining: list[DurableReport] = []
        try:
            if not self._advance(batch, reports, remaining):
                return AdvanceResult()
            remaining += RecordReports(tuple(reports)).perform(batch)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            return AdvanceResult(error=error)
        return AdvanceResult(tuple(remaining), is_caught_up=True)

    def _advance(
        self, batch: Batch, reports: deque[DurableReport], remaining: list[DurableReport]
    ) -> bool:
        """End and begin slots; return whether the current slot was reached."""
        engine = batch.engine
        started = time.monotonic()
        target = self._reachable_slot(batch)
        for _ in range(MAX_SLOTS_PER_BATCH):
            running = engine.slot_running
            if running is not None:
                if running >= target:
                    return True
                end, happened = batch.calendar.ends(running), list[DurableReport]()
                while reports and int(reports[0].at * SECOND) <= end:
                    happened.append(reports.popleft())
                remaining += RecordReports(happened).perform(batch)
                self._end_slot(batch, running, _completed_later(batch, reports))
            next_slot = engine.slot
            if next_slot > target:
                return True
            if next_slot < target and batch.state.can_skip_to(target):
                next_slot = target
            if not engine.open_jobs and engine.state.idle:
                return True  # no slot needs to begin without jobs
            self._begin_slot(batch, next_slot, _completed_later(batch, reports))
            if time.monotonic() - started > ADVANCE_TIME_BUDGET_SECONDS:
                break
        return engine.slot_running is not None and engine.slot_running >= target

    def _reachable_slot(self, batch: Batch) -> int:
        """Return the current slot; if too many were missed, first move slot 0 to a later time."""
        calendar, engine = batch.calendar, batch.engine
        target = calendar.slot_at(batch.now)
        missed = target - engine.slot
        can_skip = engine.slot_running is None and batch.state.can_skip_to(target)
        if missed <= MAX_CATCH_UP_SLOTS or can_skip:
            return target
        shift = int((missed - MAX_CATCH_UP_SLOTS) * calendar.slot)
        shift_slot_origin(shift, "the service was down for many slots").perform(batch)
        return batch.calendar.slot_at(batch.now)

    def _begin_slot(self, batch: Batch, slot: int, completed_later: Set[str]) -> None:
        try:
            apply_event(batch, SlotBegan(slot), completed_later=completed_later)
        except PolicyError as error:
            # The event was rolled back. The policy state may be the cause, so resync the policy
            # and retry. If it fails again, the slot waits and the service reports the error.
            log.error("slot %d could not begin (%s); resetting the policy", slot, error)
            resync_policy(batch)
            apply_event(batch, SlotBegan(slot), completed_later=completed_later)

    def _end_slot(self, batch: Batch, slot: int, completed_later: Set[str]) -> None:
        """End a slot with the progress of its jobs; replan with measured speeds and costs."""
        engine = batch.engine
        progress: dict[str, int] = {}
        longer: dict[str, tuple[Job, LengthPrediction]] = {}
        slot_start = batch.calendar.begins(slot)
        missed = not self.virtual and slot_start < self.reports_since
        for name in engine.running:
            record = engine.jobs[name]
            if name in completed_later:
                # With less progress, the job could be abandoned before its completion is applied.
                progress[name] = max(0, record.remaining - 1)
                continue
            is_measured = not self.virtual and (record.measured or batch.state.views[name].reports)
            if is_measured and not (missed and self.last_reports.get(name, 0) < slot_start):
                continue  # its measured progress counts, even if it is 0
            gained = progress[name] = self._declared_progress(batch, record, slot)
            if record.job.predicted and not self.virtual and gained >= record.remaining:
                lengths, covered = batch.state.lengths, record.progress + gained
                longer[name] = lengths.extend(record, engine.cluster, covered)
        ended = SlotEnded(slot, progress, lengths={name: job for name, (job, _) in longer.items()})
        apply_event(batch, ended, counted=list(engine.running))
        for name, (_, prediction) in longer.items():
            self._record_prediction(batch, name, prediction)
        if not self.virtual:
            if missed:  # the next report covers several slots
                for name in engine.running:
                    batch.state.speeds.skip_slot(name)
            else:
                self._update_speeds(batch, slot)
            self._update_restart_costs(batch)

    @staticmethod
    def _update_restart_costs(batch: Batch) -> None:
        slot_seconds = batch.calendar.slot_seconds
        for name in list(batch.engine.running):
            revised = batch.state.restarts.revise(batch.engine.jobs[name].job, slot_seconds)
            if revised is None:
                continue
            if _revise(batch, revised, "restart cost"):
                batch.emit("remeasured", name, restart=float(revised.restart) * slot_seconds)
            else:
                batch.state.restarts.remove(name)

    def _update_speeds(self, batch: Batch, slot: int) -> None:
        """Replan jobs with their measured speed if it differs from the stated one."""
        engine, slot_start = batch.engine, batch.calendar.begins(slot)
        for name in list(engine.running):
            record, view = engine.jobs[name], batch.state.views.get(name)
            if view is None or not record.measured or view.started != record.generation:
                continue
            if view.running_since is None or view.running_since > slot_start:
                continue  # only whole slots measure a speed
            if name in self.stale_jobs:
                batch.state.speeds.skip_slot(name)
                continue
            revised = batch.state.speeds.revise(engine, record)
            measured = tuple(sorted({*view.measured, *batch.state.speeds.measured_counts(name)}))
            if measured != view.measured:
                batch.update_view(name, measured=measured)
            job = record.job if revised is None else cap_utility(revised.job, engine.cluster)
            if measured and job.predicted:
                job = replace(job, predicted=False)  # its speed and work give its length
            if job is record.job:
                continue
            if not _revise(batch, job, "speed"):
                batch.state.speeds.remove(name)
            elif revised is not None:
                batch.emit("remeasured", name, workers=revised.workers, factor=revised.factor)

    def _declared_progress(self, batch: Batch, record: JobRecord, slot: int) -> int:
        """Return the progress units of a slot at the declared rate, while the job ran."""
        job, placement = record.job, batch.engine.running[record.job.name]
        gain = job.gain(
            placement.total_workers,
            colocated=placement.colocated,
            moved=pays_restart(batch, record, slot),
        )
        if self.virtual:
            return min(gain, record.remaining)
        ran, length = nanoseconds_run(batch, record, slot), batch.calendar.slot_length(slot)
        if job.predicted:
            return gain * ran // length
        # A job completes only when its processes exit 0, so progress stops one unit below.
        return max(0, min(gain * ran // length, record.remaining - 1))

    @staticmethod
    def _record_prediction(batch: Batch, name: str, prediction: LengthPrediction) -> None:
        before = batch.state.views[name].predicted
        batch.update_view(name, predicted=prediction)
        old, (seconds, jobs, probability) = before.length if before else None, prediction
        new: dict[str, Any] = {"seconds": seconds, "jobs": jobs, "probability": probability}
        batch.emit("outlasted", name, before=old, **new)


def _revise(batch: Batch, job: Job, what: str) -> bool:
    """Replan a job with a measured value; return whether this succeeded, and log an error."""
    try:
        apply_event(batch, JobRevised(batch.engine.slot, job))
    except ShadowpriceError as error:
        log.info("failed to update the %s of job %r: %s", what, job.name, error)
        return False
    return True


def _completed_later(batch: Batch, reports: Iterable[DurableReport]) -> set[str]:
    """Return the open jobs that completed in a later slot, according to the remaining reports."""
    return {
        report.job
        for report in reports
        if isinstance(report, Ended)
        and report.ending is Ending.DONE
        and batch.is_end_recorded(report.job, report.generation) is False
    }


@operation
def shift_slot_origin(batch: Batch, by: int, why: str) -> None:
    """Move all slots by some nanoseconds (positive: later); ``why`` is the reason to report."""
    state = batch.state
    state.calendar = state.calendar.moved(by)
    batch.set_value("origin", str(state.calendar.origin))
    follow_clock(batch)
    moved = []
    for name, view in list(state.views.items()):
        if name not in batch.engine.open_jobs:
            continue
        if view.promise is not None:
            moved.append(name)
        if view.running_since is not None:
            batch.update_view(name, running_since=view.running_since + by)
    batch.emit("clock", seconds=by / SECOND, why=why, promises=len(moved))
    for name in moved:
        batch.emit("rescheduled", name, seconds=by / SECOND, why=why)
