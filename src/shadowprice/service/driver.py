"""The main loop of the writing service, which runs the engine in real time.

It commits requests and reports in batches, accounts slots at their boundaries, and runs periodic
tasks: snapshots, retention, clock checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final

from shadowprice.executors.background import BackgroundTasks, monotonic
from shadowprice.executors.contract import Ended, Ending
from shadowprice.service.budgets.operations import start_due_periods
from shadowprice.service.clock import SECOND, format_rfc3339
from shadowprice.service.execution.controller import ExecutionController
from shadowprice.service.operation_queue import BatchEntry, PendingOperation
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.operations import decide_backlog
from shadowprice.service.state.price_history import PriceSampler, purge_prices
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.slot_operations import (
    AdvanceResult,
    AdvanceSlots,
    shift_slot_origin,
)
from shadowprice.service.store import retention
from shadowprice.service.store.retention import ExpiredJob
from shadowprice.service.uploads import UploadStore
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

BACKLOG_TIME_BUDGET_SECONDS: Final = 0.03
"""Target duration of a transaction with a chunk of the backlog; requests wait for it."""
INITIAL_BACKLOG_CHUNK: Final = 16  # jobs of the backlog in a transaction, before any was timed
MIN_BACKLOG_CHUNK: Final = 4
MAX_BACKLOG_CHUNK: Final = 256
PROGRESS_POLL_TIMEOUT_SECONDS: Final = 0.5  # of polling progress before a slot is accounted

PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS: Final = 3_600.0
"""Seconds without retention after a step of the wall clock, which may be a mistake.

A longer downtime counts as a step. For the same time after a step or a start, budget accounts whose
period begins in the future aren't moved back to the present.
"""

RETRY_SECONDS: Final = 1.0  # between attempts to recover the store, begin a slot or decide jobs
FIRST_PURGE_DELAY_SECONDS: Final = 10.0  # short, so that a service that often restarts purges too


class Driver:
    """Runs the durable engine in real time: decides when the writer commits, and what is due.

    ``writer`` commits to ``durable``. ``execution`` is None if no jobs run, and ``uploads`` if jobs
    get no files from their submitters. If ``virtual``, the service only observes, and simulates its
    decisions. ``keep`` is the retention of closed jobs in nanoseconds.
    """

    snapshot_seconds = 0.003  # maximum duration of a piece of a snapshot between two batches
    tick_seconds = 1.0  # minimum seconds between two runs of the periodic tasks
    purge_interval_seconds = 60.0  # seconds between two retention runs
    purge_pause_seconds = 0.5  # seconds between two transactions of one retention run
    report_wait_seconds = (
        1.0  # of collecting reports after downtime, before missed slots are accounted
    )

    def __init__(
        self,
        durable: DurableEngine,
        writer: Writer,
        execution: ExecutionController | None = None,
        uploads: UploadStore | None = None,
        *,
        virtual: bool,
        keep: int,
    ) -> None:
        self._durable = durable
        self._writer = writer
        self._execution = execution
        self._uploads = uploads
        self._virtual = virtual
        self._retention_ns = keep
        self._clock = writer.clock
        self._metrics = writer.metrics
        self._published = writer.published
        self._progress = writer.progress
        self._catching_up = False
        self._start_collecting()
        self._boundary_failed_at = self._backlog_failed_at = 0.0
        self._backlog_chunk = INITIAL_BACKLOG_CHUNK
        self._last_tick = 0.0
        self._snapshot_due = False
        self._steady_since = monotonic()  # since when the clock has made no step
        may_have_stepped = durable.downtime_ns > PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS * SECOND
        first_purge_delay = (
            PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS if may_have_stepped else FIRST_PURGE_DELAY_SECONDS
        )
        # The next purge is due `purge_interval_seconds` later, which is after the first delay:
        self._last_purge = self._steady_since - self.purge_interval_seconds + first_purge_delay
        self._background = BackgroundTasks(log, writer.metrics.count_failure)
        self._purge_task: asyncio.Task[None] | None = None
        self._sampler = PriceSampler()

    # ---------------------------------------------------------------- running

    async def run(self) -> None:
        """Run the loop until the writer is stopped and has no pending operations."""
        writer = self._writer
        self._background.spawn_repeating("events", writer.broadcaster.step, "delivering events")
        try:
            while not writer.is_finished:
                await self._pause()
                if writer.health_error is not None:
                    await writer.recover()
                    continue
                await self._tick()
                if self._writer.health_error is not None:
                    continue  # a commit failed, and the state in memory must be recovered first
                await self._step()
                await self._snapshot()
        finally:
            writer.refuse_pending()  # after an error too, so that no request waits forever
            await self._background.end()

    async def _pause(self) -> None:
        """Wait for an operation, a slot boundary or a tick.

        Requests that arrive during a commit are committed together in the next batch.
        """
        is_healthy = self._writer.health_error is None
        has_more_work = self._decides_backlog or self._durable.snapshotting
        if self._writer.queue or (has_more_work and is_healthy):
            await asyncio.sleep(0)  # lets requests that have arrived enter the queue
            return
        due = min(self.tick_seconds, self._seconds_to_boundary())
        await self._writer.wait(due if is_healthy else RETRY_SECONDS)

    def _seconds_to_boundary(self) -> float:
        servers, now = self._published.servers, self._clock.now()
        if self._boundary_failed_at and monotonic() - self._boundary_failed_at < RETRY_SECONDS:
            return RETRY_SECONDS
        running = servers.slot_running
        if running is not None:
            return (servers.calendar.ends(running) - now) / SECOND
        if self._published.jobs or servers.backlog:
            return (servers.calendar.begins(servers.next_slot) - now) / SECOND
        return self.tick_seconds  # without jobs, no slot begins

    async def _tick(self) -> None:
        """Run the periodic tasks: clock check, budget renewal, retention, snapshot, prices."""
        now = monotonic()
        if now - self._last_tick < self.tick_seconds:
            return
        self._last_tick = now
        step = self._clock.detected_step_ns()
        if step:
            reason = f"the clock was set {'forward' if step > 0 else 'back'}"
            shift = BatchEntry(shift_slot_origin(step, reason), partial(self._on_shift, step))
            await self._writer.commit([shift])
            # Gives operators time to correct a wrong clock, by which data would look expired.
            self._last_purge = now + PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS
            self._steady_since = now
        steady_seconds = now - self._steady_since
        accounts = self._durable.state.accounts
        accounts.may_go_back = steady_seconds >= PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS
        if accounts.due(self._clock.now()):
            await self._writer.commit([BatchEntry(start_due_periods())])
        if now - self._last_purge > self.purge_interval_seconds:
            self._last_purge = now
            self._progress.remove_closed(self._published.jobs)
            if self._purge_task is None or self._purge_task.done():
                description = "removing expired data"
                self._purge_task = self._background.spawn(
                    "retention", self.purge_expired(), description, vital=False
                )
        self._snapshot_due = self._durable.snapshot_due()
        durable = self._durable
        if self._sampler.is_due(durable.state):
            await self._writer.run_in_thread(lambda: self._sampler.take(durable.state))

    def _on_shift(self, step: int, result: Exception | None) -> None:
        """Follow a step of the wall clock if the slots were shifted; else the next tick retries."""
        if isinstance(result, Exception):
            self._metrics.count_failure("clock")
            log.error("failed to shift the slots after a clock step: %s", result)
        else:
            self._metrics.clock_steps.inc()
            self._clock.follow(step)

    async def _snapshot(self) -> None:
        """Write a piece of a due snapshot; a complete one would block requests."""
        durable = self._durable
        if (self._snapshot_due or durable.snapshotting) and self._writer.health_error is None:
            self._snapshot_due = False
            seconds = self.snapshot_seconds
            await self._writer.run_in_thread(lambda: durable.write_snapshot_step(seconds))

    async def purge_expired(self) -> None:
        """Purge closed jobs, prices and uploads past their retention, in small transactions."""
        now = self._clock.now()
        cutoff = now - self._retention_ns
        last: ExpiredJob | None = None
        more = True
        while more:
            more, last = await self._purge_batch(cutoff, last)
            if more:
                await asyncio.sleep(self.purge_pause_seconds)
        await self._writer.run_in_thread(lambda: purge_prices(self._durable.store, now, cutoff))
        if self._uploads is not None:
            self._uploads.purge_unused(now)

    async def _purge_batch(
        self, before: int, after: ExpiredJob | None
    ) -> tuple[bool, ExpiredJob | None]:
        """Purge a batch of the jobs after ``after``; return whether more may remain, and its last.

        Jobs whose files the executor can't delete are skipped until the next retention run.
        """
        writer, store = self._writer, self._durable.store
        expired = await writer.run_in_thread(lambda: retention.expired_jobs(store, before, after))
        if expired is None:  # the store failed
            return False, after
        keys: Sequence[str] = [job.key for job in expired]
        if expired and self._execution is not None:
            keys = await self._execution.delete_job_data(keys)
        more = await writer.run_in_thread(lambda: retention.purge(store, before, keys))
        if more is None:  # the store failed
            return False, after
        for key in keys:
            self._published.recent.pop(key, None)
        more = more or len(expired) == retention.PURGE_BATCH_JOBS
        return more, expired[-1] if expired else after

    async def _step(self) -> None:
        """Commit the pending operations, and the slot boundary if it is due, in one batch."""
        is_boundary_due = self._seconds_to_boundary() <= 0
        if is_boundary_due:
            await self._wait_for_reports()
            await self._poll_progress()
        pending, batch = self._writer.queue.take(), list[BatchEntry]()
        if is_boundary_due:  # the boundary comes before requests
            if self._progress:
                batch.append(BatchEntry(self._progress.take()))
            reports = [entry for entry in pending if isinstance(entry.operation, RecordReports)]
            pending = [entry for entry in pending if not isinstance(entry.operation, RecordReports)]
            on_boundary = partial(self._on_boundary, reports)
            batch.append(BatchEntry(self._build_boundary(reports), on_boundary, reports))
        elif self._progress.needs_write or (
            self._progress.has_points and any(_reports_exit_after_stop(entry) for entry in pending)
        ):
            batch.append(BatchEntry(self._progress.take()))
        batch += [entry.to_entry() for entry in pending]
        decides_backlog = self._decides_backlog
        if decides_backlog:
            chunk = decide_backlog(self._backlog_chunk)
            batch.append(BatchEntry(chunk, self._on_backlog))
        if not batch:
            return
        started = monotonic()
        self._metrics.lag.set(started - pending[0].since if pending else 0.0)
        if not await self._writer.commit(batch):
            return
        duration = monotonic() - started
        self._metrics.commit.observe(duration)
        if decides_backlog:
            if duration < BACKLOG_TIME_BUDGET_SECONDS:
                self._backlog_chunk = min(MAX_BACKLOG_CHUNK, self._backlog_chunk * 2)
            else:
                self._backlog_chunk = max(MIN_BACKLOG_CHUNK, self._backlog_chunk // 2)

    @property
    def _decides_backlog(self) -> bool:
        """Whether the next batch decides jobs of the backlog; not directly after a failure."""
        failed_at = self._backlog_failed_at
        has_just_failed = failed_at and monotonic() - failed_at < RETRY_SECONDS
        return self._published.servers.backlog > 0 and not has_just_failed

    def _on_backlog(self, result: int | Exception) -> None:
        self._backlog_failed_at = 0.0
        if isinstance(result, Exception):
            self._backlog_failed_at = monotonic()
            self._metrics.count_failure("backlog")
            log.error("failed to decide the backlog: %s", result)

    # ---------------------------------------------------------------- slot boundaries

    def _build_boundary(self, pending: Sequence[PendingOperation]) -> AdvanceSlots:
        """Build the operation that advances to the current slot, with the pending reports."""
        operations = [entry.operation for entry in pending]
        recorded = [item.reports for item in operations if isinstance(item, RecordReports)]
        reports, last_reports = list(chain(*recorded)), self._progress.last_reports
        return AdvanceSlots(
            self._virtual, self._stale_jobs(), reports, self._reports_since, last_reports
        )

    def _stale_jobs(self) -> frozenset[str]:
        """Return the jobs whose current progress is unknown: all jobs if the executor fails."""
        if self._execution is None:
            return frozenset()
        try:
            return frozenset(self._execution.stale_jobs())
        except Exception:  # an executor's fault must not stop the slots
            self._metrics.count_failure("progress")
            log.exception("failed to list the jobs whose progress is unknown")
            return frozenset(self._published.desired)

    async def _wait_for_reports(self) -> None:
        """Wait for reports after downtime, before the missed slots are accounted.

        Executors soon report the progress and the ends of that time. If the slots were accounted
        before, jobs would seem to have made no progress and to have ended late.
        """
        if self._virtual or not self._published.desired:
            return
        servers, now = self._published.servers, self._clock.now()
        running = servers.slot_running
        late = running is not None and now - servers.calendar.ends(running) > servers.calendar.slot
        if late and not self._catching_up:  # while catching up, the reports are already collected
            self._start_collecting()
        remaining = self._collecting_since + self.report_wait_seconds - monotonic()
        if remaining > 0.0 and self._execution is not None:
            await asyncio.sleep(remaining)

    def _start_collecting(self) -> None:
        self._reports_since, self._collecting_since = self._clock.now(), monotonic()

    async def _poll_progress(self) -> None:
        """Poll current progress; on timeout or error, the slot is accounted without it."""
        if self._execution is None:
            return
        try:
            async with asyncio.timeout(PROGRESS_POLL_TIMEOUT_SECONDS):
                await self._execution.fetch_progress()
        except TimeoutError:
            pass  # late reports count for the next slot
        except Exception:  # an executor's fault must not stop the slots
            self._metrics.count_failure("progress")
            log.exception("failed to poll job progress before a slot was accounted")

    def _on_boundary(
        self,
        reports: Sequence[PendingOperation],
        result: AdvanceResult | Exception,
    ) -> None:
        """Handle the result of `AdvanceSlots`; ``reports`` wait until all due slots have begun."""
        error = result if isinstance(result, Exception) else result.error
        if isinstance(result, Exception) or error is not None:
            self._boundary_failed_at = monotonic()
            self._catching_up = True
            self._metrics.count_failure("slot")
            log.error("failed to start a slot: %s", error)
        else:
            self._boundary_failed_at = 0.0
            self._catching_up = not result.is_caught_up
            self._publish_slot()
            if result.is_caught_up:
                for entry in reports:
                    entry.resolve(result.failed_reports)
                return
        # All, because some belong to later slots, and recording a report twice has no effect.
        self._writer.queue.put_back(reports)

    def _publish_slot(self) -> None:
        servers = self._published.servers
        running = servers.slot_running
        if running is not None:
            start = servers.calendar.begins(running)
            self._metrics.slot_lag.set((self._clock.now() - start) / SECOND)
            end = servers.calendar.ends(running)
            self._writer.broadcaster.publish_transient(
                "slot",
                {"slot": running, "begins": format_rfc3339(start), "ends": format_rfc3339(end)},
            )

    @property
    def health_error(self) -> str | None:
        """Why slots don't begin or a background task fails; None if neither is the case."""
        if self._boundary_failed_at:
            return "failed to start a slot; see the log"
        return self._background.health_error


def _reports_exit_after_stop(entry: PendingOperation) -> bool:
    """Return whether an operation reports an exit 0 after a stop command.

    Earlier progress must be recorded first, because it decides whether the job is completed.
    """
    return isinstance(entry.operation, RecordReports) and any(
        isinstance(report, Ended) and report.ending is Ending.DONE and report.command
        for report in entry.operation.reports
    )
