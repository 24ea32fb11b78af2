"""Controller loop: makes the executor match the desired state, and records its reports.

The desired state is the newest launch command of each job that should run (`DurableState.desired`).
`executors.contract` defines generations, commands and reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError, PolicyError
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.program import Program
from shadowprice.core.specs import JobSpec
from shadowprice.core.specs.fields import to_integer_amounts
from shadowprice.executors.background import BackgroundTasks, monotonic, run_all
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    GenerationSpec,
    GenerationStatus,
    LimitsServers,
    Obstacle,
    PollsProgress,
    Progressed,
    Receipt,
    ReportsHealth,
    ReportsObstacles,
    ServerAllocation,
    ServerGone,
    ServerSeen,
    Started,
    StartRefused,
    UnpackFailure,
    UnpacksFiles,
)
from shadowprice.service.auth import command_identity, progress_token
from shadowprice.service.clock import SECOND
from shadowprice.service.execution.modes import container_diagnostic, user_diagnostic
from shadowprice.service.execution.pending_reports import PendingReport, PendingReports
from shadowprice.service.execution.reconciler import LaunchCommand, Reconciler, StopAction
from shadowprice.service.execution.server_discovery import ServerDiscovery, to_server_infos
from shadowprice.service.problems import ProblemError
from shadowprice.service.settings import ServiceSettings
from shadowprice.service.state.durable_state import CommitResult
from shadowprice.service.state.report_operations import (
    DurableReport,
    RecordReports,
    acknowledge_commands,
    emit_orphans,
    record_obstacles,
)
from shadowprice.service.uploads import UploadStore
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

ItemT = TypeVar("ItemT")

MAX_CONCURRENT_CALLS: Final = 16  # calls to the executor in flight at the same time
MAX_ACTIONS_PER_ROUND: Final = 4 * MAX_CONCURRENT_CALLS  # commands sent before the next comparison
POLL_SECONDS: Final = 5.0  # maximum seconds between two comparisons without a report
MIN_WAIT_SECONDS: Final = 0.05  # before an awaited retry, so that no busy loop arises
RETRY_SECONDS: Final = 1.0  # backoff after a failed step or an unreachable executor


class FileUnpacker:
    """Runs a task for each job whose files are unpacked, and a task that deletes unpacked files.

    A generation is started after its files are unpacked. Until then, its job can be stopped at
    once. `Executor.start` unpacks the files itself if they are missing. ``ready`` is called at the
    end of each unpacking.
    """

    def __init__(self, executor: Executor, ready: Callable[[], None]) -> None:
        self._executor = executor if isinstance(executor, UnpacksFiles) else None
        self._ready = ready
        self._tasks: dict[str, asyncio.Task[UnpackFailure | None]] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._unreleased: set[str] = set()  # jobs whose files couldn't be deleted

    def is_busy(self, job: str) -> bool:
        """Return whether the files of a job are being unpacked."""
        return job in self._tasks and not self._tasks[job].done()

    def result(self, spec: GenerationSpec) -> tuple[bool, UnpackFailure | None]:
        """Return whether unpacking has ended, and its failure or None. The first call starts it.

        A result is returned once: the next call for the job starts again.
        """
        if self._executor is None or not spec.archive:
            return True, None
        task = self._tasks.get(spec.job)
        if task is None:
            task = self._tasks[spec.job] = asyncio.create_task(self._executor.unpack(spec))
            task.add_done_callback(lambda _: self._ready())
        if not task.done():
            return False, None
        del self._tasks[spec.job]
        return True, task.result()

    def retain(self, jobs: Collection[str]) -> None:
        """Forget the results of all other jobs."""
        for job in [job for job, task in self._tasks.items() if task.done() and job not in jobs]:
            task = self._tasks.pop(job)
            if not task.cancelled():
                task.exception()  # asyncio would log it as never retrieved

    def release(self, closed: Callable[[str], bool]) -> None:
        """Start to delete the unpacked files that closed jobs didn't change."""
        if self._executor is None:
            return
        if self._releasing is not None and not self._releasing.done():
            return
        jobs = [
            job for job in self._executor.unpacked() if job not in self._unreleased and closed(job)
        ]
        if jobs:
            self._releasing = asyncio.create_task(self._release(self._executor, jobs))

    async def _release(self, executor: UnpacksFiles, jobs: Sequence[str]) -> None:
        for job in jobs:
            try:
                await executor.release(job)
            except ExecutorError as error:  # retried at the next start of the service
                self._unreleased.add(job)
                log.warning("failed to delete the unpacked files of %r: %s", job, error)

    async def close(self) -> None:
        """Cancel the tasks. Threads that unpack or delete files end by themselves."""
        tasks: list[asyncio.Task[Any]] = list(self._tasks.values())
        tasks += [] if self._releasing is None else [self._releasing]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ExecutionController:
    """Reconciles the executor's generations with the engine's desired state.

    ``key`` is the store's secret, which signs progress tokens and command identities. ``stated``
    are the servers of the cluster file: their capacity is the file's, or less if the executor has
    less. Jobs report their progress to the URL ``address``, unless it is empty. ``settings`` limit
    the users of jobs. ``uploads`` is None if the executor takes no files.
    """

    poll_seconds = POLL_SECONDS

    def __init__(
        self,
        writer: Writer,
        executor: Executor,
        key: bytes,
        stated: Collection[str] = (),
        *,
        address: str = "",
        settings: ServiceSettings | None = None,
        uploads: UploadStore | None = None,
    ) -> None:
        self.executor = executor
        self._address = address
        self._settings = settings
        self._uploads = uploads
        self._health_error: str | None = None
        self._writer = writer
        self._key = key
        discovers = executor.capabilities.discovers_servers
        self._servers = ServerDiscovery(writer, stated, discovers=discovers)
        self._reconciler = Reconciler()
        self.pending = PendingReports()
        self._unreported: list[GenerationStatus] = []
        self._reported_obstacles: set[tuple[str, int]] = set()
        self._reports_wake = asyncio.Event()  # `_record_step` has reports or published changes
        self._commands_wake = asyncio.Event()  # `_command_step` may have commands to send
        self._unpacker = FileUnpacker(executor, self._commands_wake.set)
        self._command_lock = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._limited: tuple[Cluster | None, Mapping[str, Mapping[str, int]]] = (None, {})
        self._resync = False
        self._retry_at = 0.0
        self._background = BackgroundTasks(log, writer.metrics.count_failure)
        writer.subscribe(self._on_published)

    @property
    def health_error(self) -> str | None:
        """Why commands or reports are delayed; None if they aren't."""
        executor = self.executor.health_error if isinstance(self.executor, ReportsHealth) else None
        return self._health_error or self._background.health_error or self.pending.fault or executor

    def obstacles(self) -> list[Obstacle]:
        """Return the generations that can't be started, ended or recorded, or end too slowly."""
        executor = self.executor
        obstacles = list(executor.obstacles()) if isinstance(executor, ReportsObstacles) else []
        reported = {(item.job, item.generation) for item in obstacles}
        now = self._writer.clock.physical()
        for (job, generation), since in self._reconciler.overdue_stops(now).items():
            if (job, generation) not in reported:
                reason = f"it was stopped {(now - since) // SECOND} s ago, and hasn't ended"
                obstacles.append(Obstacle(job, generation, (), reason))
        return obstacles + self.pending.obstacles()

    # ---------------------------------------------------------------- life

    async def open(self) -> None:
        """Open the executor, or raise `ExecutorError`, and resync with its generations."""
        await self.executor.open()
        await self._set_servers()
        await self._resync_generations()

    async def _resync_generations(self) -> None:
        """Resync with the generations that the executor holds, and detect orphans.

        Starts and ends are recorded again, because an earlier service may not have recorded them.
        An end is recorded with its start. Otherwise, a job that ended during downtime would seem to
        have done nothing, and could be abandoned before the slot of its end.
        """
        generations = await self.executor.list()
        command_times = await self._writer.fetch_command_times(
            [(item.job, item.generation) for item in generations]
        )
        orphans = [item for item in generations if not self._is_commanded(item, command_times)]
        for item in orphans:
            new = not self._reconciler.is_orphan(item.job, item.generation)
            if new and item.end is None:
                servers = ", ".join(share.server for share in item.placement)
                what = f"generation {item.generation} of {item.job!r} on {servers}"
                reason = "the store has no command for it (was a backup restored?)"
                log.warning("stopping %s: %s", what, reason)
                self._unreported.append(item)
        self._reconciler.set_actual_state(generations, orphans)
        self.pending.received += [
            Started(0, item.job, item.generation, item.started)  # 0: the command doesn't matter
            for item in generations
            if item.started is not None
        ]
        self.pending.received += [item.end for item in generations if item.end is not None]

    def _is_commanded(
        self, status: GenerationStatus, command_times: Mapping[tuple[str, int], int]
    ) -> bool:
        key = status.job, status.generation
        if key not in command_times:
            return False
        # A generation whose stop overtook its start has no identity.
        return status.identity in {"", command_identity(self._key, *key, command_times[key])}

    def mark_all_lost(self, reason: str) -> None:
        """Report every desired generation that the executor doesn't hold as lost."""
        timestamp = self._writer.clock.now() / SECOND
        self.pending.received += [
            Ended(0, job, command.generation, timestamp, Ending.LOST, None, reason)
            for job, command in self._writer.published.desired.items()
            if command.generation not in self._reconciler.phases.get(job, {})
        ]

    def begin(self) -> None:
        """Start the background tasks."""
        self._background.spawn_repeating("watch", self._watch, "following the executor's reports")
        self._background.spawn_repeating("runner", self._record_step, "recording reports")
        self._background.spawn_repeating("runner", self._command_step, "sending commands")
        self._reports_wake.set()

    async def close(self) -> None:
        """Stop the tasks and close the executor; running generations continue."""
        await run_all(self._background.end, self._unpacker.close, self.executor.close)

    def _on_published(self, committed: CommitResult) -> None:
        for name, view in committed.views.items():
            if not view.state.open:
                self._reconciler.on_job_closed(name)
        self._reports_wake.set()

    # ---------------------------------------------------------------- reports

    async def _watch(self) -> bool:
        try:
            async for report in self.executor.watch():
                self.pending.received.append(report)
                self._reports_wake.set()
        except ExecutorError as error:
            self._unreachable(error)
            await asyncio.sleep(RETRY_SECONDS)
            return False
        return True  # the executor was closed

    async def fetch_progress(self) -> None:
        """Poll the jobs' current progress, before a slot is accounted."""
        if not isinstance(self.executor, PollsProgress):
            return
        with suppress(ExecutorError):  # the next command reports the error
            for report in await self.executor.progress():
                self.report_progress(report)

    def report_progress(self, report: Progressed) -> None:
        """Buffer a job's progress; that of an orphan is ignored."""
        if not self._reconciler.is_orphan(report.job, report.generation):
            self._writer.progress.add(report)

    def stale_jobs(self) -> frozenset[str]:
        """Return the jobs whose current progress is unknown (stale jobs)."""
        return (
            self.executor.stale_jobs() if isinstance(self.executor, PollsProgress) else frozenset()
        )

    async def record_pending(self) -> None:
        """Record pending reports. A report that can't be recorded stays pending and is retried."""
        if self._unreported:
            orphans = tuple(self._unreported)
            await self._writer.do(emit_orphans(orphans))
            del self._unreported[: len(orphans)]
        await _each(self._acknowledge_end, self._keep_reports())
        due = self.pending.due
        for entry in due:
            if isinstance(entry.report, ServerSeen | ServerGone):
                await self._record_server(entry, entry.report)
        job_reports = [
            entry for entry in due if not isinstance(entry.report, ServerSeen | ServerGone)
        ]
        if job_reports:
            await _each(self._acknowledge_end, await self._record_batch(job_reports))

    def _keep_reports(self) -> Sequence[Ended]:
        """Keep new reports until they are recorded; return the ends of orphans, which never are."""
        now, orphan_ends = self._writer.clock.physical(), list[Ended]()
        for report in self.pending.received:
            self._reconciler.record_report(report, now)
            if self._reconciler.is_orphan_report(report):
                orphan_ends += [report] if isinstance(report, Ended) else []
                continue
            if isinstance(report, Progressed):
                self.report_progress(report)
            else:
                self.pending.keep(report)
        self.pending.received.clear()
        return orphan_ends

    async def _record_server(self, entry: PendingReport, report: ServerSeen | ServerGone) -> None:
        try:
            await self._servers.apply_report(report)
        except ProblemError:
            raise
        except Exception as error:
            self._retry_later(entry, error)
        else:
            self.pending.drop(entry)

    async def _record_batch(self, entries: Sequence[PendingReport]) -> list[Ended | StartRefused]:
        """Record reports, and return the recorded ends; bisect a batch that fails."""
        try:
            reports = [entry.report for entry in entries if isinstance(entry.report, DurableReport)]
            deferred = await self._writer.do(RecordReports(reports)) or ()
        except ProblemError:
            raise  # the store is unavailable; the reports stay pending
        except Exception as error:
            if len(entries) == 1:
                self._retry_later(entries[0], error)
                return []
            half = len(entries) // 2  # isolates the bad report, so that the others are recorded
            ends_of_first_half = await self._record_batch(entries[:half])
            return [*ends_of_first_half, *await self._record_batch(entries[half:])]
        ends: list[Ended | StartRefused] = []
        for entry in entries:
            if entry.report in deferred:
                self._retry_later(entry, None)
                continue
            self.pending.drop(entry)
            if isinstance(entry.report, Ended | StartRefused):
                ends.append(entry.report)
        return ends

    def _retry_later(self, entry: PendingReport, error: Exception | None) -> None:
        self.pending.retry_later(entry, error)
        self._writer.metrics.count_failure("report")

    async def _acknowledge_end(self, report: Ended | StartRefused) -> None:
        await self.executor.acknowledge_end(report.job, report.generation)
        is_open = report.job in self._writer.published.jobs
        self._reconciler.on_end_recorded(report.job, report.generation, is_open=is_open)

    # ---------------------------------------------------------------- commands

    async def _record_step(self) -> None:
        """Record reports, in a loop of its own, so that slow commands don't delay them."""
        await self._wait_for_reports()
        if await self._try(self.sync_reports):
            self._commands_wake.set()

    async def _command_step(self) -> None:
        """Send commands whenever the desired state may have changed."""
        await self._commands_wake.wait()
        self._commands_wake.clear()
        if await self._try(self.send_commands):
            self._health_error = None

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Run a step; if it fails, schedule a retry of both loops and return False."""
        try:
            await step()
        except ExecutorError as error:
            self._unreachable(error)
        except ProblemError as error:
            log.info("commands wait: %s", error)
            self._schedule_retry()
        except Exception:
            self._resync = True  # the step may have left the actual state half updated
            self._schedule_retry()
            raise
        else:
            return True
        return False

    async def _report_obstacles(self) -> None:
        """Record each obstacle once in the history of its job."""
        obstacles = self.obstacles()
        fresh = [
            item
            for item in obstacles
            if (item.job, item.generation) not in self._reported_obstacles
        ]
        if fresh:
            await self._writer.do(record_obstacles(tuple(fresh)))
        self._reported_obstacles = {(item.job, item.generation) for item in obstacles}

    def _schedule_retry(self) -> None:
        self._retry_at = monotonic() + RETRY_SECONDS
        self._reports_wake.set()

    def _unreachable(self, error: ExecutorError) -> None:
        self._writer.metrics.executor_errors.inc()
        self._health_error = f"failed to reach the executor: {error}"
        log.warning("%s", self._health_error)
        self._resync = True
        self._schedule_retry()

    async def _wait_for_reports(self) -> None:
        wait = self.poll_seconds
        now = self._writer.clock.physical()
        moment = self._reconciler.next_retry_at(self._writer.published.desired, now)
        if moment is not None:
            wait = min(wait, max(MIN_WAIT_SECONDS, (moment - now) / SECOND))
        wait = min(wait, max(MIN_WAIT_SECONDS, self.pending.seconds_to_next_retry(wait)))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._reports_wake.wait()
        await asyncio.sleep(max(0.0, self._retry_at - monotonic()))
        self._reports_wake.clear()

    async def sync_reports(self) -> None:
        """Record pending reports and acknowledge completed commands."""
        if self._resync:
            async with self._command_lock:  # the executor doesn't list a start in flight
                await self._resync_generations()
                self._resync = False
        await self._set_servers()
        await self.limit_servers()
        await self.record_pending()
        published = self._writer.published
        completed = self._reconciler.completed_commands(published.desired, published.unacknowledged)
        if completed:
            await self._writer.do(acknowledge_commands(completed))
        await self._report_obstacles()
        self._unpacker.release(lambda job: job not in published.jobs and not self.holds(job))

    async def send_commands(self) -> None:
        """Send the commands that make the actual state match the desired state."""
        async with self._command_lock:
            published = self._writer.published
            now = self._writer.clock.physical()
            actions = self._reconciler.actions(published.desired, published.unacknowledged, now)
            unpacking = self._unpacker.is_busy
            actions = [a for a in actions if isinstance(a, StopAction) or not unpacking(a.job)]
            # The next round compares again, because the desired state may change meanwhile.
            if len(actions) > MAX_ACTIONS_PER_ROUND:
                self._commands_wake.set()
            del actions[MAX_ACTIONS_PER_ROUND:]
            starts = [item for item in actions if not isinstance(item, StopAction)]
            command_times = await self._writer.fetch_command_times(
                [(item.job, item.generation) for item in starts]
            )
            self._unpacker.retain(published.desired)
            await _each(partial(self._perform, command_times), actions)

    async def _perform(
        self, command_times: Mapping[tuple[str, int], int], action: LaunchCommand | StopAction
    ) -> None:
        """Send a start or stop to the executor. A start is skipped until its files are unpacked."""
        if isinstance(action, StopAction):
            await self.executor.stop(action.command, action.job, action.generation)
            now = self._writer.clock.physical()
            self._reconciler.on_stop_accepted(action.job, action.generation, now)
            return
        wanted = self._writer.published.desired.get(action.job)
        if wanted is None or wanted.generation != action.generation:
            return  # superseded since the comparison, and its files may be deleted
        try:
            spec = self._spec(action, command_times[action.job, action.generation])
        except InputError as error:
            self._refuse(action, str(error))
            return
        is_done, failure = self._unpacker.result(spec)
        if not is_done:
            return  # sent when the files are there
        if failure is not None:
            self._refuse(action, failure.reason, lasting=failure.lasting)
            return
        self._reconciler.mark_starting(action.job, action.generation)
        receipt = await self.executor.start(spec)
        if receipt is Receipt.BUSY:  # nothing starts: undo `mark_starting`
            self._reconciler.phases.get(action.job, {}).pop(action.generation, None)
            self._resync = True
            self._schedule_retry()
        elif receipt is Receipt.STALE or (
            receipt is Receipt.DUPLICATE and not await self._is_held(action)
        ):
            # The executor's records are newer, because a backup of the store was restored.
            self._reconciler.mark_number_used(action.job, action.generation)
            reason = "the executor has a newer generation of the job, or another with this number"
            self._refuse(action, reason)

    async def _is_held(self, command: LaunchCommand) -> bool:
        generations = await self.executor.list()
        return any(
            (item.job, item.generation) == (command.job, command.generation) for item in generations
        )

    def _refuse(self, command: LaunchCommand, reason: str, *, lasting: bool = False) -> None:
        timestamp = self._writer.clock.now() / SECOND
        self.pending.received.append(
            StartRefused(command.id, command.job, command.generation, timestamp, reason, lasting)
        )
        self._reports_wake.set()

    def _spec(self, command: LaunchCommand, commanded_at: int) -> GenerationSpec:
        """Build the executor's specification of a generation; ``commanded_at`` is in ns."""
        servers = self._writer.published.servers
        spec = self.job_spec(command.job)
        if spec.run is None:
            raise InputError("the job has no command")
        if self._settings is not None:  # allowed users may have changed since submission
            fault = user_diagnostic(self._settings, spec, "")
            fault = fault or container_diagnostic(self.executor, spec, "")
            if fault is not None:
                raise InputError(fault)
        archive = ""
        if spec.run.upload:
            if self._uploads is None:
                raise InputError("its files are missing; submit it again from its directory")
            # The archive may be deleted: only the executor knows whether the job's files exist.
            archive = str(self._uploads.path(spec.tenant, spec.run.upload))
        program: Program = spec.run.resolve(servers.cluster.slot_seconds)
        placement = command.placement
        entries = zip(command.servers, placement.workers, placement.ps, strict=True)
        view = self._writer.published.jobs[command.job]
        return GenerationSpec(
            command=command.id,
            job=command.job,
            generation=command.generation,
            placement=tuple(
                ServerAllocation(server, workers, ps) for server, workers, ps in entries
            ),
            program=program,
            worker=to_integer_amounts(spec.worker),
            ps=to_integer_amounts(spec.ps or {}),
            progress_url=f"{self._address}/v1/jobs/{view.id}/progress" if self._address else "",
            progress_token=progress_token(self._key, command.job, command.generation),
            slot_end=servers.calendar.ends(command.slot) / SECOND,
            tenant=spec.tenant,
            labels=dict(spec.labels),
            identity=command_identity(self._key, command.job, command.generation, commanded_at),
            name=view.name,
            archive=archive,
        )

    def job_spec(self, key: str) -> JobSpec:
        """Return the submitted specification of an open job."""
        record = self._writer.published.specs.get(key)
        if record is None:
            raise InputError(f"job {name_of_key(key)!r} is not open")
        return JobSpec.model_validate(record)

    def holds(self, job: str) -> bool:
        """Return whether a job has a generation whose end isn't recorded."""
        return bool(self._reconciler.phases.get(job))

    # ---------------------------------------------------------------- retention

    async def delete_job_data(self, jobs: Sequence[str]) -> list[str]:
        """Delete the executor's data of closed jobs; return the jobs whose data is deleted."""
        try:
            held_jobs = {item.job for item in await self.executor.list()}
        except ExecutorError as error:
            self._unreachable(error)
            return []
        deleted: list[str] = []
        for job in jobs:
            if job in held_jobs:
                continue
            try:
                await self.executor.delete_job_data(job)
            except ExecutorError as error:
                self._writer.metrics.executor_errors.inc()
                log.warning("failed to delete the data of job %s: %s", name_of_key(job), error)
            else:
                deleted.append(job)
        return deleted

    # ---------------------------------------------------------------- servers

    async def _set_servers(self) -> None:
        cluster = self._writer.published.servers.cluster
        if cluster is self._cluster:
            return
        withheld = self._writer.published.servers.withheld
        await self.executor.set_servers(to_server_infos(cluster, withheld))
        self._cluster = cluster

    async def limit_servers(self) -> None:
        """Limit servers to the executor's capacity, so that no plan exceeds it."""
        if not isinstance(self.executor, LimitsServers):
            return
        cluster, available = self._writer.published.servers.cluster, self.executor.available()
        limited_cluster, limited_to = self._limited
        # The executor must be configured with the cluster first: until then, `available` is old.
        if cluster is not self._cluster or (cluster is limited_cluster and available is limited_to):
            return
        try:
            await self._servers.limit(available)
        except PolicyError:  # a failing policy must not delay reports
            log.exception("failed to limit the servers")
        self._limited = cluster, available


async def _each(call: Callable[[ItemT], Awaitable[None]], items: Iterable[ItemT]) -> None:
    """Call for every item, a few concurrently; raise the first error after all calls ended."""
    limit = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def call_item(item: ItemT) -> None:
        async with limit:
            await call(item)

    results = await asyncio.gather(*map(call_item, items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
