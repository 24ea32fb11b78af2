"""The service: owns all components, starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, select

from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import GPU, is_gpu_kind
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.events import JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.moments import parse_moment_ahead
from shadowprice.core.specs import JobSpec
from shadowprice.core.wording import escape_controls
from shadowprice.engine.engine import Engine
from shadowprice.executors.background import run_all
from shadowprice.executors.contract import (
    ChecksReachability,
    Executor,
    ExecutorOptions,
    Obstacle,
    Progressed,
)
from shadowprice.executors.registry import create_executor
from shadowprice.inputs.families import Families, read_families
from shadowprice.inputs.files import read_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service import auth
from shadowprice.service.budgets.operations import sync_budgets
from shadowprice.service.clock import SECOND, Clock, MonotonicWallClock, SystemClock
from shadowprice.service.driver import Driver
from shadowprice.service.execution import modes
from shadowprice.service.execution.controller import ExecutionController
from shadowprice.service.execution.invalid_progress import InvalidProgressReporter
from shadowprice.service.execution.observer import ObservationLoop
from shadowprice.service.kubernetes_integration import KubernetesIntegration
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries.outlook import OutlookQueue
from shadowprice.service.queries.whatif import WhatIfRunner
from shadowprice.service.settings import NO_EXECUTOR, ServiceSettings
from shadowprice.service.state.batch import Operation
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.recovery import (
    build_live_policy,
    follow_cluster_file,
    policy_fingerprint,
)
from shadowprice.service.state.slot_operations import shift_slot_origin
from shadowprice.service.state.timespan import follow_option
from shadowprice.service.store import Store, StoreError, tables
from shadowprice.service.turns import TenantTurns, requester
from shadowprice.service.uploads import FOLDER as UPLOADS
from shadowprice.service.uploads import UploadStore
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

P = ParamSpec("P")
Result = TypeVar("Result")

STANDBY_POLL_SECONDS: Final = 2.0  # seconds between two attempts of a standby to become the writer
YIELD_SECONDS: Final = 10.0  # without candidacy, for a leader that can't open the store

READER_THREADS: Final = 2
"""Threads that read the store.

With two, a slow query doesn't block the others. Four aren't faster, because they contend for the
interpreter lock.
"""

DAY: Final = 86_400 * SECOND


class Service:
    """A running scheduler: the writer, or a standby until it becomes the writer.

    ``clock`` replaces the system's clock, and ``executor`` that of the settings. In an observing
    service, the executor reports the jobs of another scheduler.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = Store(settings.data)
        self.tokens = auth.Tokens(self.store)
        cluster = read_cluster(settings.cluster, starts_cost=True)
        if settings.until is not None:  # refuse an invalid text before the store is created
            parse_moment_ahead(settings.until, 0, cluster.slot_seconds, "--until")
        self.families: Families = read_families(settings.families) if settings.families else {}
        # Accounts enforce budgets, so the engine and its policies get tenants without budgets.
        self.budgets = {
            entry.name: entry.budget for entry in cluster.tenants if entry.budget is not None
        }
        tenants = tuple(replace(tenant, budget=None) for tenant in cluster.tenants)
        self.cluster: Cluster = replace(cluster, tenants=tenants)
        self.choice = settings.policy
        self.writer: Writer | None = None
        self.driver: Driver | None = None
        self.execution: ExecutionController | None = None
        self.observation: ObservationLoop | None = None
        self.upload_store: UploadStore | None = None
        self.whatifs = WhatIfRunner(self._folder / "whatif")
        self.invalid_progress = InvalidProgressReporter()
        self.key = b""
        self.address = ""
        self.stopping = self.failed = False
        self._request_exit: Callable[[], None] = lambda: None
        self._clock = clock or SystemClock()
        self._executor = executor
        self.outlooks = OutlookQueue()
        self.bodies = TenantTurns()  # for parsing and validating large request bodies
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader")
        self._read_turns = TenantTurns(READER_THREADS)
        self._tasks: list[asyncio.Task[None]] = []
        self._executor_was_replaced = False
        self._kubernetes: KubernetesIntegration | None = None
        if settings.trainingjobs is not None or settings.lease is not None:
            self._kubernetes = KubernetesIntegration(self)
        if executor is None and settings.executor != NO_EXECUTOR:
            self._executor = create_executor(settings.executor, self._executor_options())
        modes.check_executor(settings, self._executor)
        modes.check_users(settings, self._executor)

    @property
    def _folder(self) -> Path:
        """Directory of files that aren't in the database."""
        # A database server has no data directory.
        return (self.store.folder or Path.cwd() / "shadowprice-executor").absolute()

    def _executor_options(self) -> ExecutorOptions:
        return ExecutorOptions(
            directory=str(self._folder / "executor"),
            address=self.settings.address,
            settings=self.settings.executor_settings,
            observing=self.settings.observe,
            election=None if self.settings.lease is None else self._kubernetes,
            failed=self.metrics.count_failure,
        )

    # ---------------------------------------------------------------- starting

    def open(self) -> bool:
        """Validate the startup options and open the store; return whether this instance writes.

        It is a standby if another instance writes. Called before an event loop runs. Raise
        `InputError` if the options are invalid. Raise `ExecutorError`, before the store is opened,
        if the executor is unreachable.
        """
        self._check_token_file()
        if self._kubernetes is not None:
            asyncio.run(self._kubernetes.check())
        warm_up_policy(self.cluster, self.choice)
        if self.settings.lease is not None:
            return False  # the Kubernetes lease decides which instance writes
        if isinstance(self._executor, ChecksReachability):
            asyncio.run(self._executor.reach())
        return self.store.open()

    async def start(self) -> None:
        """Become the writer: recover, apply the cluster file, resync with the executor."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._readers, self.whatifs.clear)
        clock = MonotonicWallClock(self._clock)
        durable = await loop.run_in_executor(self._readers, self._recover, clock)
        self.tokens.load()
        writer = Writer(durable, self.metrics)
        executor = None if self.settings.observe else self._executor
        if executor is not None:
            if executor.capabilities.takes_uploads:
                self.upload_store = self._open_uploads(writer)
            self.execution = ExecutionController(
                writer,
                executor,
                self.key,
                self.cluster.names,
                address=self.address,
                settings=self.settings,
                uploads=self.upload_store,
            )
        driver = Driver(
            durable,
            writer,
            self.execution,
            self.upload_store,
            virtual=self.settings.observe,
            keep=int(self.settings.keep_days * DAY),
        )
        # From here on requests are answered, while the executor still opens.
        self.writer, self.driver = writer, driver
        if self.settings.observe and self._executor is not None:
            self.observation = ObservationLoop(writer, self._executor)
            await self.observation.open()
        if self.execution is not None:
            await self.execution.open()
            if self._executor_was_replaced:
                reason = "the executor's records of it are gone, and so is what ran"
                self.execution.mark_all_lost(reason)
        self._tasks.append(asyncio.create_task(self._run_driver(driver)))
        if self.execution is not None:
            # At once, so that a job which the executor can never start is refused.
            try:
                await self.execution.limit_servers()
            except ProblemError as error:
                log.warning("failed to limit the servers; retrying: %s", error)
            self.execution.begin()
        if self.observation is not None:
            self.observation.begin()
        self.metrics.writer.set(1)
        if self._kubernetes is not None:
            await self._kubernetes.begin()

    async def _run_driver(self, driver: Driver) -> None:
        try:
            await driver.run()
        except Exception:
            log.exception("the service can't continue")
            self.metrics.failures.labels("driver").inc()
            self.fail()

    def attach_server(self, address: str, request_exit: Callable[[], None]) -> None:
        """Set the URL of the web server, and the call that asks it to exit."""
        self.address, self._request_exit = address, request_exit

    def request_exit(self) -> None:
        """Ask the web server to exit, which stops the service and ends the process."""
        self._request_exit()

    def fail(self) -> None:
        """End the process as `request_exit` does, with a failure status."""
        self.failed = True
        self.request_exit()

    async def run_standby(self) -> None:
        """Wait until this instance may write, then start."""
        loop = asyncio.get_running_loop()
        self.metrics.writer.set(0)
        last_error = ""
        while not self.stopping:
            try:
                kubernetes, later = self._kubernetes, self.store.later_epoch
                epoch = 0 if kubernetes is None else await kubernetes.acquire_leadership(later)
                open_store = partial(self.store.open, epoch or 0)
                if epoch is not None and await loop.run_in_executor(self._readers, open_store):
                    await self.start()
                    log.warning("this instance is the leader from now on")
                    return
            except (InputError, StoreError) as error:
                if str(error) != last_error:  # a standby may get the same error for days
                    last_error = str(error)
                    log.warning("standing by: %s", error)
                self.store.close()  # another instance may be able to open it
                if self._kubernetes is not None:
                    await self._kubernetes.yield_leadership(YIELD_SECONDS)
            except Exception:
                log.exception("taking over failed")
                self.fail()
                return
            await asyncio.sleep(STANDBY_POLL_SECONDS)

    def start_standby(self) -> None:
        """Run `run_standby` in the background."""
        self._tasks.append(asyncio.create_task(self.run_standby()))

    async def stop(self) -> None:
        """Stop all components in order, and commit pending operations. Running jobs continue."""
        self.stopping = True
        try:
            await run_all(
                self.whatifs.close,
                *(
                    part.close
                    for part in (self._kubernetes, self.execution, self.observation)
                    if part
                ),
                self.close_streams,
                lambda: self.writer.stop() if self.writer else None,
                self._end_tasks,
                lambda: self.writer.finish() if self.writer else None,
                lambda: self._readers.shutdown(wait=True),
                self.store.close,
                lambda: self._kubernetes.leave() if self._kubernetes else None,
            )
        except Exception:
            log.exception("the service failed during shutdown")
            self.failed = True

    def close_streams(self) -> None:
        """End the event streams of all subscribers."""
        if self.writer is not None:
            self.writer.broadcaster.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            if self.writer is None:  # a standby's task doesn't end by itself
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            except Exception:
                # The service may stop during a takeover, whose connections are closed already.
                log.exception("takeover interrupted")

    # ---------------------------------------------------------------- steps of the start

    def _recover(self, clock: MonotonicWallClock) -> DurableEngine:
        """Recover the state, and apply changed options; runs in a thread."""
        started = time.monotonic()
        durable = DurableEngine(
            self.store,
            self.cluster,
            self.choice,
            clock,
            virtual=self.settings.observe,
            max_overrun=self.settings.max_overrun,
            values=self.settings.values,
            observe_event_seconds=self.metrics.decision.observe,
        )
        state, seconds = durable.state, time.monotonic() - started
        modes.check_mode(self.store, len(state.views), observe=self.settings.observe)
        if not self.settings.observe:
            self._executor_was_replaced = modes.check_executor_identity(
                state, self._executor, nothing_runs=self.settings.nothing_runs
            )
        if durable.store.get("policy") != policy_fingerprint(self.choice):
            durable.write_snapshot()  # the next start replays no events of the previous policy
        recovered = (seconds, state.recovered_events, len(state.views))
        log.info("recovered in %.2f s: %d events replayed, %d open jobs", *recovered)
        now = clock.now()
        if state.last_at - now > SECOND:
            reason = "the clock is earlier than when the service stopped"
            _commit_one(durable, shift_slot_origin(now - state.last_at, reason))
        _commit_one(durable, follow_cluster_file(self.cluster))
        _commit_one(durable, sync_budgets(self.budgets))
        _commit_one(durable, follow_option(self.settings.until))
        self.key = self._secret()
        self._operator_token(durable)
        return durable

    def _secret(self) -> bytes:
        key = self.store.get("key")
        if key is None:
            key = secrets.token_hex(32)
            with self.store.transaction() as connection:
                self.store.put(connection, "key", key)
        return bytes.fromhex(key)

    @property
    def token_file(self) -> Path:
        """Path of the operator's token file."""
        if self.settings.token_file is not None:
            return self.settings.token_file
        return (self.store.folder or Path.cwd()) / auth.TOKEN_FILE

    def _check_token_file(self) -> None:
        folder = self.token_file.parent
        if folder.exists() and not folder.is_dir():
            hint = "name a directory; the first start creates it"
            raise InputError(Fault(str(folder), "is not a directory", hint))
        will_create_folder = folder == self.store.folder and not folder.exists()
        if auth.read_token_file(self.token_file) is None and not will_create_folder:
            auth.check_token_path(self.token_file)

    def _operator_token(self, durable: DurableEngine) -> None:
        """Register the token in the operator's file; create the file if it doesn't exist."""
        token = auth.read_token_file(self.token_file)
        table = tables.tokens
        if token is None:
            token = auth.new_token()
            try:
                auth.write_token_file(self.token_file, token)
            except OSError as error:
                raise InputError(f"{self.token_file}: cannot be written: {error}") from error
        query = select(table.c.id).where(table.c.hash == auth.hash_token(token))
        with self.store.reading() as connection:
            is_new = connection.execute(query).first() is None
        if is_new:
            note = f"first start, {escape_controls(str(self.token_file))}"
            _commit_one(durable, auth.create_token(token, "operator", None, note, None))

    def _open_uploads(self, writer: Writer) -> UploadStore:
        folder, settings = self._folder / UPLOADS, self.settings
        limits = settings.max_upload_bytes, settings.max_tenant_upload_bytes
        uploads = UploadStore(folder, *limits, writer.usage.uploads)
        try:
            uploads.open()
        except OSError as error:
            where = str(error.filename or folder)
            raise InputError(Fault(where, f"cannot be used: {error.strerror}")) from error
        return uploads

    # ---------------------------------------------------------------- requests

    @property
    def uploads(self) -> UploadStore:
        """The store of jobs' files; `ProblemError` on a standby or if the executor takes none."""
        if self.writer is None:
            raise self._not_writing()
        if self.upload_store is None:
            detail = "jobs of this service get no files from their submitters"
            raise ProblemError("unsupported", f"{detail}; {modes.WITHOUT_UPLOADS_HINT}")
        return self.upload_store

    def report_progress(self, report: Progressed) -> None:
        """Buffer a job's progress, until the driver records it."""
        if self.execution is not None:
            self.execution.report_progress(report)
        else:
            self.require_writer().progress.add(report)

    def require_writer(self) -> Writer:
        """Return the writer; raise `ProblemError` if this instance is a standby."""
        if self.writer is None:
            raise self._not_writing()
        return self.writer

    def _not_writing(self) -> ProblemError:
        code, detail = "standby", "another instance is the leader; send requests there"
        if self.stopping:
            code, detail = "stopping", "it is ending"
        return ProblemError(code, detail, headers={"Retry-After": "5"})

    async def read(
        self,
        query: Callable[Concatenate[Connection, P], Result],
        *args: P.args,
        **options: P.kwargs,
    ) -> Result:
        """Run a query of the store in a reader thread; tenants take turns."""

        def run_query() -> Result:
            try:
                with self.store.reading() as connection:
                    return query(connection, *args, **options)
            except StoreError as error:
                log.error("the store cannot be read: %s", error)
                raise

        async with self._read_turns.turn(requester.get()):
            return await asyncio.get_running_loop().run_in_executor(self._readers, run_query)

    def ready(self) -> str | None:
        """Return why the service isn't ready; None if it is."""
        if self.writer is None or self.driver is None:
            return "this instance stands by"
        if self.writer.health_error is not None:
            return self.writer.health_error
        if self.driver.health_error is not None:
            return self.driver.health_error
        if self.store.damage is not None:
            return self.store.damage
        parts = (self.execution, self.observation, self._kubernetes)
        errors = (part.health_error for part in parts if part is not None)
        return next((health_error for health_error in errors if health_error is not None), None)

    def obstacles(self) -> Sequence[Obstacle]:
        """Return the generations that can't be started or ended now, with reasons."""
        return () if self.execution is None else self.execution.obstacles()

    def reserve(self, tenant: str | None, jobs: int, memory: int) -> AbstractContextManager[None]:
        """Reserve jobs and bytes of memory within a tenant's limits, or raise `ProblemError`."""
        return self.require_writer().usage.reserve(self.settings, tenant, jobs, memory)

    @property
    def trainingjobs_error(self) -> str | None:
        """Why the TrainingJobs of Kubernetes aren't followed; None if they are, or needn't be."""
        return None if self._kubernetes is None else self._kubernetes.watch_error


def _commit_one(durable: DurableEngine, operation: Operation[Any]) -> Any:
    """Commit one operation, and return its result or raise its error."""
    [result] = durable.commit([operation]).answers
    if isinstance(result, BaseException):
        raise result
    return result


def warm_up_policy(cluster: Cluster, choice: PolicyChoice) -> None:
    """Schedule artificial jobs, so that the policy's kernels are compiled and loaded."""
    engine = Engine(cluster, build_live_policy(choice, cluster))
    largest = cluster.capacity.max(axis=0).tolist()
    counts = {  # at most one unit of each resource, in thousandths
        name: max(1, min(amount, 1_000))
        for name, amount, dimension in zip(
            cluster.resources, largest, cluster.dimensions, strict=True
        )
        if amount and dimension.value == "count"
    }
    if counts.get(GPU):  # a worker with every kind of GPU may fit on no server
        counts = {name: count for name, count in counts.items() if not is_gpu_kind(name)}
    try:
        spec = JobSpec.model_validate(
            {
                "name": "rehearsal",
                "minibatch_time": f"{float(cluster.slot_seconds)}s",
                "chunks": 4,
                "worker": {name: count / 1_000 for name, count in counts.items()},
                "utility": {"kind": "sigmoid", "value": 1, "decay": 0.1, "target": "10 slots"},
                "tenant": cluster.tenants[0].name if cluster.tenants else None,
            }
        )
        job = spec.resolve(cluster)
        if engine.capabilities.quotes:
            engine.quote(job, explained=True)
        engine.handle(JobsArrived(0, (job,)))
        engine.handle(JobsArrived(0, (replace(job, name="rehearsal again"),)))
        for slot in range(3):
            engine.handle(SlotBegan(slot))
            progress = dict.fromkeys(engine.running, 1)
            engine.handle(SlotEnded(slot, progress))
    except (ShadowpriceError, ValueError) as error:
        log.info("the policy's warm-up ended early: %s", error)
