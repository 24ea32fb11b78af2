"""The event loop of the writer: runs the durable engine in real time.

It commits requests and reports in batches, accounts slots at their boundaries, and runs periodic
tasks: snapshots, retention, clock checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from shadowprice.executors.background import BackgroundTasks, monotonic
from shadowprice.executors.contract import Ended, Ending, Progressed
from shadowprice.service.budgets.operations import StartDuePeriods
from shadowprice.service.clock import SECOND, MonotonicWallClock, format_rfc3339
from shadowprice.service.metrics import Metrics
from shadowprice.service.operation_queue import PendingOperation, WriteBatch
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.operations import DecideBacklog
from shadowprice.service.state.price_history import PriceSampler, purge_prices
from shadowprice.service.state.report_operations import RecordProgress, RecordReports
from shadowprice.service.state.slot_operations import (
    AdvanceSlots,
    ShiftSlotOrigin,
    SlotAdvanceResult,
)
from shadowprice.service.store import retention
from shadowprice.service.uploads import UploadStore
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

BACKLOG_TIME_BUDGET_SECONDS: Final = 0.03
"""Target duration of a transaction with a chunk of the backlog; requests wait for it."""

PROGRESS_POLL_TIMEOUT_SECONDS: Final = 0.5
"""Timeout for fetching current progress before a slot is accounted."""

CATCH_UP_GRACE_SECONDS: Final = 1.0
"""Time for which reports are collected after downtime, before missed slots are accounted."""

SNAPSHOT_SECONDS: Final = 0.003  # maximum duration of a piece of a snapshot between two batches

PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS: Final = 3_600.0
"""Seconds without retention after a step of the wall clock, which may be a mistake.

A start counts as a step if the store's last change is longer ago than that. Budget accounts don't
go back in that time, nor in the same time after the start.
"""

PURGE_INTERVAL_SECONDS: Final = 0.5  # seconds between two transactions of one retention run

TICK_SECONDS: Final = 1.0  # maximum seconds between two checks of the clock

SWEEP_SECONDS: Final = 60.0  # seconds between two retention runs

FIRST_PURGE_DELAY_SECONDS: Final = 10.0
"""Seconds from the start to the first one: a service that is restarted often purges too."""

MIN_POINT_INTERVAL_NS: Final = SECOND // 2
"""Minimum nanoseconds between two points of a job's progress curve."""

MAX_POINT_INTERVAL_NS: Final = 3_600 * SECOND
"""Maximum of that spacing, because a step of the clock by years would stop the curve."""

POINTS_PER_RUNTIME: Final = 2_000
"""The spacing is a job's running time divided by this: a month has some 18,000 points."""

POINT_FLUSH_THRESHOLD: Final = 1_000
"""Number of unwritten points above which they are written before the slot ends."""


class Driver(Writer):
    """Runs the durable engine in real time.

    From now on, only the writer's thread accesses ``durable``. If ``virtual``, the service only
    observes and simulates its decisions. ``keep`` is the retention of closed jobs in nanoseconds.
    """

    snapshot_seconds = SNAPSHOT_SECONDS
    tick_seconds = TICK_SECONDS
    sweep_seconds = SWEEP_SECONDS
    listen_seconds = CATCH_UP_GRACE_SECONDS
    sweep_pause = PURGE_INTERVAL_SECONDS

    def __init__(
        self,
        durable: DurableEngine,
        clock: MonotonicWallClock,
        *,
        virtual: bool,
        keep: int,
        metrics: Metrics,
    ) -> None:
        super().__init__(durable, metrics)
        self.clock = clock
        self.virtual = virtual
        self._retention_ns = keep
        self._reports: dict[str, Progressed] = {}
        self._points: list[Progressed] = []
        self._last_point: dict[str, int] = {}
        self._last_reports: dict[str, int] = {}
        self._catching_up = False
        self._start_collecting()
        self._boundary_failed_at = 0.0
        self._chunk = 16
        self._last_tick = 0.0
        self._snapshot_due = False
        self._steady_since = monotonic()
        may_have_stepped = durable.downtime_ns > PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS * SECOND
        first_purge_delay = (
            PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS if may_have_stepped else FIRST_PURGE_DELAY_SECONDS
        )
        self._last_purge = self._steady_since - self.sweep_seconds + first_purge_delay
        self._background = BackgroundTasks(log, metrics.count_failure)
        self._purge_task: asyncio.Task[None] | None = None
        self.uploads: UploadStore | None = None
        # Methods of `ExecutionController` and `Reconciler`, set by the controller of an executor.
        self.delete_job_data: Callable[[Sequence[str]], Awaitable[list[str]]] | None = None
        self.fetch_progress: Callable[[], Awaitable[None]] | None = None
        self.stale_jobs: Callable[[], frozenset[str]] | None = None
        self.is_orphan: Callable[[str, int], bool] | None = None
        self._sampler = PriceSampler(durable)

    # ---------------------------------------------------------------- progress

    def report(self, report: Progressed) -> None:
        """Buffer a progress report; it's written at the next slot boundary, or earlier."""
        if self.is_orphan is not None and self.is_orphan(report.job, report.generation):
            return
        self._last_reports[report.job] = max(
            self._last_reports.get(report.job, 0), int(report.at * SECOND)
        )
        previous = self._reports.get(report.job)
        if previous is None or (report.generation, report.progress) > (
            previous.generation,
            previous.progress,
        ):
            self._reports[report.job] = report
        now = self.clock.now()
        since = now - self._last_point.get(
            report.job, -now
        )  # negative after the clock was set back
        too_soon = 0 <= since < self._between_points(report.job, now)
        if not too_soon and len(self._points) < 10_000:
            self._last_point[report.job] = now
            self._points.append(report)

    def _between_points(self, job: str, now: int) -> int:
        """Return the nanoseconds between points of a curve, in proportion to the running time."""
        view = self.published.jobs.get(job)
        ran = 0 if view is None or view.first_start is None else now - view.first_start
        return max(MIN_POINT_INTERVAL_NS, min(MAX_POINT_INTERVAL_NS, ran // POINTS_PER_RUNTIME))

    def _progress(self) -> RecordProgress:
        newest, points = self._reports, self._points
        self._reports, self._points = {}, []
        return RecordProgress(newest, points)

    # ---------------------------------------------------------------- running

    async def run(self) -> None:
        """Run the loop until `stop`."""
        self._background.spawn_repeating("events", self.hub.step, "delivering events")
        try:
            while not (self._stopping and not self._queue):
                await self._pause()
                if self.health_error is not None:
                    await self._recover_store()
                    continue
                await self._tick()
                await self._step()
                await self._snapshot()
        finally:
            self._stopping = True  # after an error too, so that no request waits forever
            self._queue.fail(ProblemError("stopping", "the service is ending"))
            await self._background.end()

    async def stop(self) -> None:
        """Make `run` return after the pending operations."""
        self._stopping = True
        self._wake.set()

    async def _pause(self) -> None:
        """Wait for an operation, a slot boundary or the next tick.

        An idle driver commits a request at once. Requests that arrive during a commit share the
        next one, so batches grow with the load.
        """
        has_more_work = self.published.servers.backlog or self._durable.snapshotting
        if self._queue or (has_more_work and self.health_error is None):
            await asyncio.sleep(0)  # lets requests that have arrived enter the queue
            return
        wait = min(self.tick_seconds, self._seconds_to_boundary())
        if self.health_error is not None:
            wait = 1.0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait)):
                await self._wake.wait()
        self._wake.clear()

    def _seconds_to_boundary(self) -> float:
        servers, now = self.published.servers, self.clock.now()
        if self._boundary_failed_at and monotonic() - self._boundary_failed_at < 1.0:
            return 1.0
        running = servers.slot_running
        if running is not None:
            return (servers.calendar.ends(running) - now) / SECOND
        if self.published.jobs or servers.backlog:
            return (servers.calendar.begins(servers.next_slot) - now) / SECOND
        return self.tick_seconds

    async def _tick(self) -> None:
        """Run the periodic tasks: clock check, budget renewal, retention, snapshot, prices."""
        now = monotonic()
        if now - self._last_tick < self.tick_seconds:
            return
        self._last_tick = now
        step = self.clock.detected_step_ns()
        if step:
            self.metrics.clock_steps.inc()
            reason = f"the clock was set {'forward' if step > 0 else 'back'}"
            if await self._commit(WriteBatch(ShiftSlotOrigin(step, reason))):
                self.clock.follow(step)
            # Operators can correct a wrong clock before it makes data look old.
            self._last_purge = now + PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS
            self._steady_since = now
        steady_seconds = now - self._steady_since
        self._durable.accounts.may_go_back = steady_seconds >= PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS
        if self._durable.accounts.any_due(self.clock.now()):
            await self._commit(WriteBatch(StartDuePeriods()))
        if now - self._last_purge > self.sweep_seconds:
            self._last_purge = now
            self._last_point = {
                job: timestamp
                for job, timestamp in self._last_point.items()
                if job in self.published.jobs
            }
            self._last_reports = {
                job: timestamp
                for job, timestamp in self._last_reports.items()
                if job in self.published.jobs
            }
            if self._purge_task is None or self._purge_task.done():
                description = "removing expired data"
                self._purge_task = self._background.spawn(
                    "retention", self.sweep(), description, vital=False
                )
        self._snapshot_due = self._durable.snapshot_due()
        if self._sampler.due:
            await self._in_thread(self._sampler.take)

    async def _snapshot(self) -> None:
        """Write a piece of a due snapshot; a complete one would block requests."""
        durable = self._durable
        if (self._snapshot_due or durable.snapshotting) and self.health_error is None:
            self._snapshot_due = False
            await self._in_thread(lambda: durable.write_snapshot_step(self.snapshot_seconds))

    async def sweep(self) -> None:
        """Purge closed jobs, prices and uploads past their retention, in small transactions.

        The executor's data of a job are deleted before its rows. If the purge is interrupted, the
        job still exists, and the next run repeats all steps.
        """
        now = self.clock.now()
        cutoff = now - self._retention_ns
        while await self._purge_batch(cutoff):
            await asyncio.sleep(self.sweep_pause)
        await self._in_thread(lambda: purge_prices(self._store, now, cutoff))
        if self.uploads is not None:
            self.uploads.sweep(now)

    async def _purge_batch(self, before: int) -> bool:
        """Purge one batch of jobs; return whether there may be more."""
        old = await self._in_thread(lambda: retention.expired_jobs(self._store, before))
        if old is None:
            return False
        discarded = (
            await self.delete_job_data(old) if old and self.delete_job_data is not None else old
        )
        more = await self._in_thread(lambda: retention.purge(self._store, before, discarded))
        if more is None:
            return False
        for name in discarded:
            self.published.recent.pop(name, None)
        return more or bool(discarded and len(old) == retention.PURGE_BATCH_JOBS)

    async def _step(self) -> None:
        """Commit the pending operations, and the slot boundary if it is due, in one batch."""
        if self._seconds_to_boundary() <= 0:
            await self._collect_reports()
            await self._poll_progress()
        pending, batch = self._queue.take(), WriteBatch()
        if self._seconds_to_boundary() <= 0:  # a due slot boundary precedes requests
            if self._reports or self._points:
                batch.add(self._progress())
            reports = [entry for entry in pending if isinstance(entry.operation, RecordReports)]
            pending = [entry for entry in pending if not isinstance(entry.operation, RecordReports)]
            batch.add(self._build_boundary(reports), partial(self._on_boundary, reports), reports)
        elif len(self._points) > POINT_FLUSH_THRESHOLD or (
            self._points and any(_exits_after_stop(entry) for entry in pending)
        ):
            batch.add(self._progress())
        batch.add_pending(pending)
        decides_backlog = self.published.servers.backlog > 0
        if decides_backlog:
            batch.add(DecideBacklog(self._chunk))
        if not batch:
            return
        started = monotonic()
        self.metrics.lag.set(started - pending[0].since if pending else 0.0)
        if not await self._commit(batch):
            return
        duration = monotonic() - started
        self.metrics.commit.observe(duration)
        if decides_backlog:
            faster = duration < BACKLOG_TIME_BUDGET_SECONDS
            self._chunk = min(256, self._chunk * 2) if faster else max(4, self._chunk // 2)

    # ---------------------------------------------------------------- slot boundaries

    def _build_boundary(self, pending: Sequence[PendingOperation]) -> AdvanceSlots:
        """Build the operation that advances to the current slot, with the pending reports."""
        stale_jobs = self.stale_jobs() if self.stale_jobs is not None else frozenset()
        reports = [
            report
            for entry in pending
            if isinstance(entry.operation, RecordReports)
            for report in entry.operation.reports
        ]
        return AdvanceSlots(
            self.virtual, stale_jobs, reports, self._since, dict(self._last_reports)
        )

    async def _collect_reports(self) -> None:
        """Collect reports after downtime, before the missed slots are accounted.

        Executors report the progress and the ends of that time within moments. If slots were
        accounted earlier, jobs would seem to have made no progress and to have ended late.
        """
        if self.virtual or not self.published.running:
            return
        servers, now = self.published.servers, self.clock.now()
        running = servers.slot_running
        late = running is not None and now - servers.calendar.ends(running) > servers.calendar.slot
        if late and not self._catching_up:  # while catching up, the reports are already collected
            self._start_collecting()
        remaining = self._collecting_since + self.listen_seconds - monotonic()
        if remaining > 0.0 and self.fetch_progress is not None:
            await asyncio.sleep(remaining)

    def _start_collecting(self) -> None:
        self._since, self._collecting_since = self.clock.now(), monotonic()

    async def _poll_progress(self) -> None:
        """Fetch current progress; on timeout or error, the slot is accounted without it.

        Without it, progress since the last poll would be missing, and plans would seem to fail.
        """
        if self.fetch_progress is None:
            return
        try:
            async with asyncio.timeout(PROGRESS_POLL_TIMEOUT_SECONDS):
                await self.fetch_progress()
        except TimeoutError:
            pass  # later reports count for the next slot
        except Exception:  # an executor's fault must not stop the slots
            self.metrics.failures.labels("progress").inc()
            log.exception("failed to poll job progress before a slot was accounted")

    def _on_boundary(
        self, reports: Sequence[PendingOperation], result: SlotAdvanceResult | Exception
    ) -> None:
        """Handle the result of `AdvanceSlots`; reports wait until all due slots have begun."""
        if isinstance(result, Exception):
            self._boundary_failed_at = monotonic()
            self._catching_up = True
            self.metrics.failures.labels("slot").inc()
            log.error("failed to start a slot: %s", result)
        else:
            self._boundary_failed_at = 0.0
            self._catching_up = not result.caught_up
            self._publish_slot()
            if result.caught_up:
                for entry in reports:
                    entry.resolve(result.left)
                return
        # Some belong to later slots. Those that were recorded have no effect when repeated.
        self._queue.put_back(reports)

    def _publish_slot(self) -> None:
        """Publish the slot that runs now."""
        servers = self.published.servers
        running = servers.slot_running
        if running is not None:
            start = servers.calendar.begins(running)
            self.metrics.slot_lag.set((self.clock.now() - start) / SECOND)
            end = servers.calendar.ends(running)
            self.hub.publish_transient(
                "slot",
                {"slot": running, "begins": format_rfc3339(start), "ends": format_rfc3339(end)},
            )

    @property
    def stuck(self) -> str | None:
        """Why slots don't begin or a background task fails; None if neither is the case."""
        if self._boundary_failed_at:
            return "failed to start a slot; see the log"
        return self._background.health_error


def _exits_after_stop(entry: PendingOperation) -> bool:
    """Return whether reported progress decides what an operation records.

    After a stop command, an exit 0 completes a job only if the job has reported enough work.
    """
    return isinstance(entry.operation, RecordReports) and any(
        isinstance(report, Ended) and report.ending is Ending.DONE and report.command
        for report in entry.operation.reports
    )
