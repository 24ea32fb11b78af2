"""Controller that reconciles `TrainingJob` resources with the service's jobs.

Reconciliation is level-triggered. Each pass compares a resource with its job and takes the next
step. Every step is idempotent. A resource gets its finalizer before its job is submitted, and loses
it after the job's last process has ended. So no job outlives its resource.

The patch that adds the finalizer also claims the resource for this service, by an annotation. The
patch has the resource's version as its precondition, so only one of several services succeeds. The
others leave the resource alone.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.job_keys import Owner
from shadowprice.core.wording import escape_controls
from shadowprice.executors.background import BackgroundTasks, run_all
from shadowprice.inputs.families import with_family
from shadowprice.kubernetes.connection import MAX_INFLIGHT_REQUESTS, ApiClient
from shadowprice.kubernetes.errors import ApiError, LeadershipLostError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import CLAIM, CRD_NAME, FINALIZER, PLURAL, Reason
from shadowprice.service.execution import modes
from shadowprice.service.host import ServiceHost, find_view
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.durable_state import CommitResult
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import SubmitJobs, cancel_job, revise_job
from shadowprice.service.state.submission import MISSING_FAMILY_HINT, read_submissions
from shadowprice.service.trainingjobs.event_recorder import EventRecorder
from shadowprice.service.trainingjobs.resource import (
    ROUTE,
    ConditionValue,
    SubmissionRejected,
    TrainingJobResource,
    build_patch,
    build_status,
    diff_spec,
    needs_patch,
    state_changed,
)
from shadowprice.service.trainingjobs.shares import NamespaceShares
from shadowprice.service.usage import added_memory, estimate_memory

log = logging.getLogger("shadowprice.service")

WORKERS: Final = MAX_INFLIGHT_REQUESTS  # resources reconciled concurrently
CONFLICT_RETRY_SECONDS: Final = 1.0  # until a retry of a resource that a newer leader wrote
DELETION_POLL_SECONDS: Final = 5.0  # between polls of a deleted resource, if no event comes before
DELETION_POLLS_PER_SECOND: Final = 10.0  # maximum over all resources: cancellations come first
STATUS_WRITE_SECONDS: Final = 10.0  # minimum between two writes of figures only
STATUS_WRITES_PER_SECOND: Final = 10.0  # maximum, because a slot may change thousands of statuses
NEW_RESOURCE_PRIORITY_SECONDS: Final = 30.0  # head start of new resources before status writes
LIMIT_RETRY_SECONDS: Final = 60.0  # until a retry of an edit that exceeds a limit of its tenant
RETRY_SECONDS: Final = 5.0  # until the controller starts again, if the definition is missing
INITIAL_BACKOFF_SECONDS: Final = 0.1  # of a key whose reconciliation failed
MAX_BACKOFF_SECONDS: Final = 60.0
MAX_DOUBLINGS: Final = 20  # of the backoff; more than the maximum needs


class WorkQueue:
    """Delayed queue of keys for several workers; no key is processed twice at the same time.

    A key that is added while a worker processes it is processed again afterwards. ``gather`` is the
    default delay in seconds, in which changes of a key are merged.
    """

    def __init__(self, gather: float = 0.05, clock: Callable[[], float] = time.monotonic) -> None:
        self._gather = gather
        self._clock = clock
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: str, after: float | None = None) -> None:
        """Add a key with a delay in seconds (None: ``gather``); an earlier due time is kept."""
        due = self._clock() + (self._gather if after is None else after)
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            if key not in self._busy:  # else `mark_done` queues it
                self._push(key)

    def _push(self, key: str) -> None:
        heapq.heappush(self._heap, (self._due[key], key))
        self._wake.set()

    def add_rate_limited(self, key: str) -> float:
        """Add a failed key again with exponential backoff; return the delay in seconds."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        factor = 2.0 ** min(count - 1, MAX_DOUBLINGS)
        pause = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * factor)
        pause *= random.uniform(0.8, 1.2)  # jitter
        self.add(key, pause)
        return pause

    def reset_backoff(self, key: str) -> None:
        """Reset a key's backoff."""
        self._failures.pop(key, None)

    def take(self) -> str | None:
        """Return a due key that no worker processes, and mark it busy; None if there is none."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            # Another due time marks a stale entry, whose key was added again to run earlier.
            if self._due.get(key) == due and key not in self._busy:
                del self._due[key]
                self._busy.add(key)
                return key
        return None

    def mark_done(self, key: str) -> None:
        """Mark a key as not busy, and queue it if it was added meanwhile."""
        self._busy.discard(key)
        if key in self._due:
            self._push(key)

    async def work(self, process: Callable[[str], Awaitable[None]]) -> None:
        """Process due keys until cancelled. ``process`` must not raise."""
        while True:
            key = self.take()
            if key is None:
                await self._pause()
                continue
            try:
                await process(key)
            finally:
                self.mark_done(key)

    async def _pause(self) -> None:
        wait = min(1.0, self._heap[0][0] - self._clock()) if self._heap else 1.0
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0.001, wait)):
                await self._wake.wait()
        except TimeoutError:
            pass


class Controller:
    """Kubernetes controller of the service instance that leads.

    ``identity`` is equal for the replicas of a service, and different for other services. ``epoch``
    is the fencing token of this leader. It is higher than the epoch of every earlier leader, or 0
    without a lease, because then the store decides which instance writes. ``leads`` returns whether
    this instance still leads; it is called before every write.
    """

    def __init__(
        self,
        service: ServiceHost,
        connection: ApiClient,
        *,
        identity: str,
        epoch: int = 0,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        # Called with the name of a step and a resource's key; tests replace it to inject errors.
        self.fault: Callable[[str, str], None] = lambda *_: None
        self.health_error: str | None = None  # why resources aren't watched
        self._service = service
        self._writer = service.require_writer()
        self._connection = connection
        connection.restrict_writes(leads)
        self._identity = identity
        self._epoch = epoch
        self._leads = leads
        self._queue = WorkQueue()
        self._resources = Informer(
            connection, f"{ROUTE}/{PLURAL}", TrainingJobResource.of, self._on_change
        )
        self._jobs: dict[str, dict[str, Owner]] = {}  # owners by key of resource and of job
        # Generation and result of the last edit that was applied, by UID:
        self._edits: dict[str, tuple[int, ConditionValue | None]] = {}
        self._status_written: dict[str, float] = {}  # monotonic time by UID
        self._ending: dict[str, str] = {}  # resources that wait for the end of a job, by job
        self._warned_of_claim: set[str] = set()  # UIDs
        self._warned_of_epoch = False
        self._cluster: Cluster | None = None  # as last published
        self._recorder = EventRecorder(connection, self._may_write)
        self._shares = NamespaceShares(
            connection,
            self._writer,
            service.cluster,
            warn=self._recorder.warn,
            may_write=self._may_write,
            with_jobs=lambda: {key.partition("/")[0] for key in self._resources.items},
            changed=self._namespace_changed,
        )
        self._background = BackgroundTasks(log, service.metrics.count_failure)

    # ---------------------------------------------------------------- life

    @property
    def task_error(self) -> str | None:
        """Why a background task is failing; None if all are healthy."""
        return self._background.health_error

    def begin(self) -> None:
        """Start reconciling in the background, until `close`."""
        self._background.spawn_repeating(
            "trainingjobs", self._start_workers, "following TrainingJobs"
        )

    async def _start_workers(self) -> bool:
        """Start the informers and workers; return False if that failed, to be called again."""
        try:
            await self._shares.start()
            await self._resources.start()
            self.health_error = None
            await self._shares.apply()  # jobs of unknown tenants would be refused
        except ApiError as error:
            missing = f"the cluster has no {CRD_NAME}; apply deploy/kubernetes/crd.yaml"
            self.health_error = missing if error.not_found else str(error)
            log.warning("TrainingJobs are not watched: %s", self.health_error)
            await self._shares.close()
            await asyncio.sleep(RETRY_SECONDS)
            return False
        except Exception:
            await run_all(self._resources.close, self._shares.close)
            raise
        for name in list(self._writer.published.jobs):
            self._find_owner(name)  # so that `_jobs` has the jobs that are already open
        self._writer.subscribe(self._on_published)
        for key in {*self._resources.items, *self._jobs}:
            self._queue.add(key, 0.0)
        spawn = self._background.spawn_repeating
        for number in range(WORKERS):
            description = f"reconciling TrainingJobs ({number + 1})"
            spawn("trainingjobs", lambda: self._queue.work(self._reconcile_or_retry), description)
        spawn("trainingjobs", self._recorder.run, "recording events of TrainingJobs")
        spawn("trainingjobs", self._shares.run, "following shares")
        return True

    async def close(self) -> None:
        """Stop all tasks and close the connection."""
        self._writer.unsubscribe(self._on_published)
        await run_all(
            self._background.end, self._resources.close, self._shares.close, self._connection.close
        )

    # ---------------------------------------------------------------- changes

    def _on_change(
        self, key: str, old: TrainingJobResource | None, new: TrainingJobResource | None
    ) -> None:
        del old
        is_new = new is not None and not new.status
        # A negative delay puts new resources before status writes that are due.
        self._queue.add(key, -NEW_RESOURCE_PRIORITY_SECONDS if is_new else None)

    def _namespace_changed(self, name: str) -> None:
        for key in self._resources.items:
            if key.startswith(f"{name}/"):
                self._queue.add(key)

    def _on_published(self, committed: CommitResult) -> None:
        for name in committed.views:
            owner = self._find_owner(name)
            if owner is not None:
                self._queue.add(_key(owner))
        for event in committed.events:
            owner = None if event.job is None else self._cached_owner(event.job)
            if owner is not None:
                self._recorder.record(owner, event)
        self._requeue_invalid()
        if self._ending:
            commanded = self._commanded_jobs()
            for job in list(self._ending):
                if self._has_no_processes(job, commanded):
                    self._queue.add(self._ending.pop(job))

    def _requeue_invalid(self) -> None:
        """Queue invalid TrainingJobs after a change of tenants or resources of the cluster."""
        before, cluster = self._cluster, self._writer.published.servers.cluster
        self._cluster = cluster
        if before is None or before is cluster:
            return
        if (before.tenants, before.resources) != (cluster.tenants, cluster.resources):
            for key, resource in self._resources.items.items():
                if resource.status.get("reason") == Reason.INVALID:
                    self._queue.add(key)

    def _cached_owner(self, job: str) -> Owner | None:
        """Return the cached owner of a job; it may be closed."""
        return self._jobs.get(_key_of_job(job), {}).get(job)

    def _find_owner(self, job: str) -> Owner | None:
        """Return the owner of an open job, and cache it; None if no resource owns it."""
        cached = self._cached_owner(job)
        if cached is not None:
            return cached
        record = self._writer.published.specs.get(job)
        owner = None if record is None else Owner.from_labels(record.get("labels") or {})
        if owner is not None and owner.key == job:
            self._jobs.setdefault(_key(owner), {})[job] = owner
            return owner
        return None

    # ---------------------------------------------------------------- reconciliation

    async def _reconcile_or_retry(self, key: str) -> None:
        try:
            with self._writer.metrics.reconciled.time():
                await self._reconcile(key)
            self._queue.reset_backoff(key)
        except LeadershipLostError:
            self._queue.add(key, CONFLICT_RETRY_SECONDS)
        except ApiError as error:
            pause = self._queue.add_rate_limited(key)
            if not (error.conflict or error.not_found):
                log.warning("TrainingJob %s waits for %.1f s: %s", key, pause, error)
        except ProblemError as error:
            pause = self._queue.add_rate_limited(key)
            log.info("TrainingJob %s waits for %.1f s: %s", key, pause, error)
        except Exception:
            self._writer.metrics.failures.labels("trainingjobs").inc()
            log.exception("failed to reconcile TrainingJob %s", key)
            self._queue.add_rate_limited(key)

    async def _reconcile(self, key: str) -> None:
        """Compare a resource with its job, and take the next step; see the module's docstring."""
        resource = self._resources.items.get(key)
        is_foreign = resource is not None and resource.claim not in {"", self._identity}
        await self._cancel_orphaned(key, None if is_foreign else resource)
        if resource is None:
            return
        if is_foreign:
            self._warn_of_claim(resource)
            return
        if self._epoch and resource.epoch > self._epoch:
            self._warn_of_epoch(resource.epoch)
            raise LeadershipLostError("a newer leader wrote this resource")
        if resource.deleting:
            if resource.has_finalizer and not resource.claim:
                resource = await self._claim(key, resource)
            await self._release(key, resource)
            return
        if resource.is_settled and resource.has_finalizer:
            return
        if not (resource.has_finalizer and resource.claim):
            finalizers = dict.fromkeys((*resource.finalizers, FINALIZER))
            resource = await self._claim(key, resource, finalizers=list(finalizers))
        tenant = self._shares.tenant_of(resource.owner.namespace)
        result, edited = await self._job_for(resource, tenant)
        await self._write_status(key, resource, result, tenant, edited)

    async def _cancel_orphaned(self, key: str, resource: TrainingJobResource | None) -> None:
        """Cancel jobs with the key whose resource is gone, or was replaced by ``resource``."""
        for job, owner in list(self._jobs.get(key, {}).items()):
            if resource is not None and resource.owner == owner:
                continue
            view = self._writer.published.jobs.get(job)
            if view is not None:
                self._may_write("cancel", key)
                try:
                    await self._writer.do(cancel_job(job))
                except ProblemError as error:
                    if error.code not in {"conflict", "not-found"}:  # closed or purged meanwhile
                        raise
            self._jobs[key].pop(job, None)
            self._ending.pop(job, None)
            self._edits.pop(owner.uid, None)
            self._status_written.pop(owner.uid, None)
        if not self._jobs.get(key, True):
            del self._jobs[key]

    async def _claim(
        self, key: str, resource: TrainingJobResource, **more: Any
    ) -> TrainingJobResource:
        """Claim the resource for this service, if it didn't change since it was observed."""
        metadata = {"resourceVersion": resource.version, "annotations": {CLAIM: self._identity}}
        return await self._write(key, "hold", resource.path, {"metadata": {**metadata, **more}})

    def _warn_of_claim(self, resource: TrainingJobResource) -> None:
        if resource.owner.uid in self._warned_of_claim:
            return
        self._warned_of_claim.add(resource.owner.uid)
        log.warning(
            "left TrainingJob %s/%s alone: service %s drives it; to hand it over, remove its "
            "annotation %s",
            resource.owner.namespace,
            resource.owner.name,
            escape_controls(resource.claim[:64]),
            CLAIM,
        )

    def _warn_of_epoch(self, epoch: int) -> None:
        """Warn once that this leader leaves resources alone that a later leader wrote."""
        if not self._warned_of_epoch:
            self._warned_of_epoch = True
            log.warning(
                "left TrainingJobs alone: leader %d wrote them, and this one is number %d; if no "
                "other service leads, set leaseTransitions of its Lease to %d and restart it",
                epoch,
                self._epoch,
                epoch,
            )

    async def _release(self, key: str, resource: TrainingJobResource) -> None:
        """Cancel a deleted resource's job; remove the finalizer once none of its processes run."""
        if not resource.has_finalizer:
            return
        job = resource.owner.key
        view = await find_view(self._service, job)
        cancelled = view is not None and view.state.open
        if cancelled:
            self._may_write("cancel", key)
            view = await self._writer.do(cancel_job(job))
        if view is not None and (
            view.state.open or not self._has_no_processes(job, self._commanded_jobs())
        ):
            if not view.state.open:
                self._ending[job] = key
            # A job that was just cancelled mostly ends before the next pass; don't write twice.
            if not cancelled:
                tenant = view.tenant or resource.owner.namespace
                await self._write_status(key, resource, view, tenant, None)
            self._queue.add(
                key, max(DELETION_POLL_SECONDS, len(self._ending) / DELETION_POLLS_PER_SECOND)
            )
            return
        self._ending.pop(job, None)
        remaining = [finalizer for finalizer in resource.finalizers if finalizer != FINALIZER]
        body = {"metadata": {"resourceVersion": resource.version, "finalizers": remaining or None}}
        try:
            await self._write(key, "release", resource.path, body)
        except ApiError as error:
            if not error.not_found:
                raise
        self._edits.pop(resource.owner.uid, None)
        self._status_written.pop(resource.owner.uid, None)

    def _commanded_jobs(self) -> set[str]:
        return {command.job for command in self._writer.published.unacknowledged.values()}

    def _has_no_processes(self, job: str, commanded: Collection[str]) -> bool:
        execution = self._service.execution
        if job in self._writer.published.desired or job in commanded:
            return False
        return execution is None or not execution.holds(job)

    # ---------------------------------------------------------------- jobs

    async def _job_for(
        self, resource: TrainingJobResource, tenant: str
    ) -> tuple[JobView | SubmissionRejected, ConditionValue | None]:
        """Submit or revise the resource's job; return it, and the result of an edit or None."""
        job = resource.owner.key
        view = await find_view(self._service, job)
        if view is not None:
            edited = await self._apply_edits(resource, tenant) if view.state.open else None
            return await find_view(self._service, job) or view, edited
        record = resource.record(tenant)
        cluster = self._writer.published.servers.cluster
        if cluster.tenants and tenant not in cluster.tenant_index:
            # If any tenant has a share, jobs of unknown tenants are refused: add an empty share.
            await self._shares.apply()
            cluster = self._writer.published.servers.cluster
        try:
            [submission] = read_submissions(
                [record],
                cluster,
                tenant=None,
                runs=self._service.execution is not None,
                single=True,
                from_controller=True,
                families=self._service.families,
                now=self._writer.clock.now(),
            )
            fault = modes.user_diagnostic(self._service.settings, submission.spec, "spec")
            execution = self._service.execution
            if execution is not None:
                fault = fault or modes.container_diagnostic(
                    execution.executor, submission.spec, "spec"
                )
            fault = fault or modes.upload_diagnostic(
                self._service.upload_store, submission.spec, "spec"
            )
            if fault is not None:
                raise InputError(fault)
        except InputError as error:
            return SubmissionRejected(Reason.INVALID, _in_spec(error)), None
        self._may_write("submit", _key(resource.owner))
        # Before the job exists, so that events of an immediate refusal reach the resource too.
        self._jobs.setdefault(_key(resource.owner), {})[job] = resource.owner
        with self._reserve(resource, tenant, 1, estimate_memory(submission.record)):
            [(_, problem)] = await self._writer.do(SubmitJobs([submission], at_once=True))
        if problem is not None:
            return SubmissionRejected(Reason.NAME_TAKEN, str(problem)), None
        self.fault("submitted", _key(resource.owner))
        view = await find_view(self._service, job)
        assert view is not None
        return view, None

    async def _apply_edits(
        self, resource: TrainingJobResource, tenant: str
    ) -> ConditionValue | None:
        """Apply the resource's edits to its open job; return the result, or None without edits."""
        uid, job = resource.owner.uid, resource.owner.key
        cached = self._edits.get(uid)
        if cached is not None and cached[0] == resource.generation:
            return cached[1]
        before = self._writer.published.specs.get(job)
        if before is None:
            return None
        verdict: ConditionValue | None = None
        changes: dict[str, Any] = {}
        fixed: tuple[str, ...] = ()
        try:
            changes, fixed = diff_spec(before, self._with_curve(resource.record(tenant), before))
        except InputError as error:
            verdict = (False, Reason.NOT_APPLIED, _in_spec(error))
        if changes:
            self._may_write("revise", _key(resource.owner))
            try:
                with self._reserve(resource, tenant, 0, added_memory(before, changes)):
                    await self._writer.do(revise_job(job, changes))
                verdict = (True, Reason.APPLIED, f"{', '.join(changes)} changed")
            except ShadowpriceError as error:
                if isinstance(error, ProblemError) and error.code == "tenant-limit":
                    # Not cached, so that the edit is retried when some jobs may have ended.
                    self._queue.add(_key(resource.owner), LIMIT_RETRY_SECONDS)
                    return (False, Reason.NOT_APPLIED, _limit_text(error))
                if isinstance(error, ProblemError) and error.status >= 429:
                    raise  # the service is overloaded or unavailable, so the key is retried
                verdict = (False, Reason.NOT_APPLIED, _in_spec(error))
        if fixed:
            consequence = "the job is unchanged" if verdict is None else verdict[2]
            message = (
                f"{', '.join(fixed)} cannot be changed: {consequence}; "
                "delete the resource and apply it again"
            )
            verdict = (False, Reason.IMMUTABLE, message)
        # Without a difference, an edit that failed earlier was undone.
        if verdict is None and any(
            condition.get("type") == "Edited" and condition.get("status") == "False"
            for condition in resource.status.get("conditions") or ()
        ):
            verdict = (True, Reason.APPLIED, "the resource matches the job")
        self._edits[uid] = (resource.generation, verdict)
        return verdict

    @contextmanager
    def _reserve(
        self, resource: TrainingJobResource, tenant: str, jobs: int, memory: int
    ) -> Iterator[None]:
        """Reserve a tenant's jobs and memory during a block; warn if that exceeds a limit."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._service.reserve(tenant, jobs, memory))
            except ProblemError as error:
                if error.code == "tenant-limit":
                    self._recorder.warn(resource.reference(), "TenantLimit", _limit_text(error))
                raise
            yield

    def _with_curve(self, record: dict[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a resource's record with the throughput curve of its family.

        A job keeps the curve that it was admitted with if the library changes.
        """
        if record.get("family") is not None and record.get("family") == before.get("family"):
            admitted = {key: before[key] for key in ("throughput", "restart") if key in before}
            return {**admitted, **record}
        completed: Mapping[str, Any] = with_family(
            record, self._service.families, "spec", hint_without_library=MISSING_FAMILY_HINT
        )
        return completed

    # ---------------------------------------------------------------- writing

    async def _write_status(
        self,
        key: str,
        resource: TrainingJobResource,
        result: JobView | SubmissionRejected,
        tenant: str,
        edited: ConditionValue | None,
    ) -> None:
        """Write the status if it changed; writes of figures only are rate-limited."""
        now = self._writer.clock.now()
        status = build_status(
            resource, result, tenant=tenant, epoch=self._epoch, now=now, edited=edited
        )
        if needs_patch(resource, status):
            if not state_changed(resource, status):
                pause = status_write_interval(len(self._writer.published.jobs))
                last = self._status_written.get(resource.owner.uid)
                since = math.inf if last is None else time.monotonic() - last
                if since < pause:
                    self._queue.add(key, pause - since)
                    return
            path = f"{resource.path}/status"
            await self._write(key, "status", path, build_patch(resource, status))
            self._status_written[resource.owner.uid] = time.monotonic()
            if isinstance(result, SubmissionRejected):
                self._recorder.record_refusal(resource, result)

    def _may_write(self, step: str, key: str) -> None:
        """Raise `LeadershipLostError` if this instance no longer leads."""
        self.fault(step, key)
        if not self._leads():
            raise LeadershipLostError("this instance is no longer the leader")

    async def _write(
        self, key: str, step: str, path: str, body: Mapping[str, Any]
    ) -> TrainingJobResource:
        """Patch a resource, and update the informer's copy."""
        self._may_write(step, key)
        updated = TrainingJobResource.of(await self._connection.patch(path, body))
        if key in self._resources.items and self._resources.items[key].owner == updated.owner:
            self._resources.items[key] = updated
        self.fault(f"{step} done", key)
        return updated


def status_write_interval(jobs: int) -> float:
    """Return the minimum seconds between two status writes of figures only, given the open jobs."""
    return max(STATUS_WRITE_SECONDS, jobs / STATUS_WRITES_PER_SECOND)


def _key(owner: Owner) -> str:
    return f"{owner.namespace}/{owner.name}"


def _key_of_job(job: str) -> str:
    """Return the key of the resource that owns a job; meaningless for other jobs."""
    namespace, _, rest = job.removeprefix("/").partition(".")
    return f"{namespace}/{rest.rpartition('.')[0]}"


def _in_spec(error: ShadowpriceError) -> str:
    """Return the error's message, with locations relative to the resource's spec."""
    diagnostics = getattr(error, "faults", ())
    message = "; ".join(str(diagnostic) for diagnostic in diagnostics[:5]) or str(error)
    return message.replace("job.", "spec.")


def _limit_text(error: ProblemError) -> str:
    """Return the hint of an exceeded limit, without the present usage.

    The text is constant, so that equal events and statuses are written only once.
    """
    hints = "; ".join(fault.hint for fault in error.faults)
    return f"the tenant has reached a limit: {hints}"
