"""The Kubernetes executor: runs jobs as pods of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from shadowprice.core.job_keys import Owner, key_digest
from shadowprice.executors import contract
from shadowprice.executors.background import run_all
from shadowprice.executors.contract import Election, ExecutorError
from shadowprice.executors.generations.base import ExecutorBase, read_chunk
from shadowprice.executors.generations.disk import make_private
from shadowprice.executors.generations.generation import TERMINAL_PHASES, Phase
from shadowprice.executors.generations.store import KEPT_LOG_GENERATIONS, JobDirectories
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.controller import KubernetesGenerationController
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.pods import build_launch_plan, job_paths
from shadowprice.executors.kubernetes.records import ConfigMapStore
from shadowprice.executors.kubernetes.session import (
    GenerationObjects,
    KubernetesGeneration,
    KubernetesSession,
)
from shadowprice.executors.kubernetes.settings import read_settings
from shadowprice.executors.kubernetes.views import PodView, observe_jobs, pod_view
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError, ConfigError, LeadershipLostError
from shadowprice.kubernetes.lease import Lease
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.executors")

ACQUIRE_TIMEOUT_SECONDS: Final = 45.0  # at the start, as a killed service's lease has to expire
REACQUIRE_TIMEOUT_SECONDS: Final = 2.0  # after an outage; short, as the resync tries again

_POD_SCHEMA: Final = "io.k8s.api.core.v1.PodSpec"
ORPHAN_CHECK_SECONDS: Final = 10.0  # between searches for orphaned pods
MAX_CHECK_BACKOFF_SECONDS: Final = 320.0  # maximum between attempts to delete one orphan
RESYNC_SECONDS: Final = 1.0  # seconds between resyncs of nodes and missed events
MAX_RESYNC_BACKOFF_SECONDS: Final = 10.0  # after requests that the API server refused
LOG_FETCH_TIMEOUT_SECONDS: Final = 10.0  # timeout in seconds for fetching a log
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


class ExecutorLease:
    """The lease of an executor, subject to the leader election of its service.

    The two leases expire independently: a newly elected replica may have to wait until the executor
    lease of its predecessor expires.
    """

    def __init__(self, service: str, election: Election | None) -> None:
        self._name = f"{service}-executor"
        self._election = election
        self._lease: Lease | None = None

    def holds(self) -> bool:
        """Return whether this executor, and no other, may send commands now."""
        return self.is_elected() and self._lease is not None and self._lease.holds()

    @property
    def lost(self) -> bool:
        """Whether the lease isn't held and may be reacquired."""
        return self._lease is None or self._lease.lost.is_set()

    async def acquire(self, connection: ApiClient, namespace: str, timeout: float) -> bool:
        """Acquire the lease; return False if another service holds it. See `Lease.acquire`."""
        if self._lease is None:
            identity, election = secrets.token_hex(8), self._election
            if election is not None and election.number:
                identity = f"{election.name} {election.number} {identity}"
            self._lease = Lease(connection, namespace, self._name, identity)
        return await self._lease.acquire(timeout, self._is_deposed)

    async def release(self) -> None:
        """Release the lease, so that the next holder needn't wait."""
        if self._lease is not None:
            await self._lease.release()

    def is_elected(self) -> bool:
        """Return whether the service is the leader, or runs alone."""
        return self._election is None or self._election.holds()

    def _is_deposed(self, holder: str) -> bool:
        """Return whether a lease holder was elected before this service, and so is deposed."""
        name, number, *_ = [*holder.split(" "), "", ""]
        election = self._election
        return (
            election is not None
            and name == election.name
            and number.isdecimal()
            and (int(number) < election.number)
        )


async def supports_scheduling_gates(connection: ApiClient) -> bool:
    """Return whether the API server supports scheduling gates of pods."""
    try:
        index = await connection.get("/openapi/v3")
        path = index["paths"]["api/v1"]["serverRelativeURL"]
        text = await connection.text(path)
    except ApiError as error:
        if error.passing:
            raise
        return False  # before 1.24: no OpenAPI v3 and no gates
    except (KeyError, TypeError):
        return False
    return schema_has_scheduling_gates(await asyncio.to_thread(json.loads, text))


def schema_has_scheduling_gates(document: Mapping[str, Any]) -> bool:
    """Return whether the pod schema of an OpenAPI document has scheduling gates."""
    try:
        return "schedulingGates" in document["components"]["schemas"][_POD_SCHEMA]["properties"]
    except (KeyError, TypeError):
        return False


class KubernetesExecutor(ExecutorBase[KubernetesGeneration]):
    """Runs every process of a generation in a pod, on its planned node; only logs are on disk."""

    capabilities = contract.ExecutorCapabilities(
        discovers_servers=True, several_machines=True, observes=True, runs_containers=True
    )

    def __init__(self, options: contract.ExecutorOptions) -> None:
        super().__init__(options)
        self.settings = read_settings(options.settings)
        self._address = options.address
        self._observing = options.observing
        namespace = options.namespace
        self.service = (
            namespace if _LABEL.fullmatch(namespace) else f"s-{key_digest(namespace)[:16]}"
        )
        self._directories = JobDirectories(self.path)
        # Index by the key in pods' labels, because pod events are frequent.
        self._by_key: WeakValueDictionary[tuple[str, int], KubernetesGeneration] = (
            WeakValueDictionary()
        )
        self._acknowledging: set[tuple[str, int]] = set()  # ended, but still in the records
        self._lease = ExecutorLease(self.service, options.election)
        self._orphans: dict[str, Backoff] = {}  # delays of deletions, by namespace/name of the pod
        self._refusals: dict[str, str] = {}  # why pods couldn't be deleted, by namespace/name
        self._orphans_checked_at = 0.0
        self._records_loaded = True  # false while they have to be read after a lost lease
        self._backoff = Backoff(RESYNC_SECONDS, MAX_RESYNC_BACKOFF_SECONDS)
        self._session: KubernetesSession | None = None

    @property
    def session(self) -> KubernetesSession:
        """The open connection."""
        if self._session is None:
            raise contract.ExecutorError("not connected to Kubernetes")
        return self._session

    # ------------------------------------------------------------------ opening and closing

    async def reach(self) -> None:
        """Check that the API server answers; see `contract.ChecksReachability.reach`."""
        try:
            connection = await ApiClient.open(self._address, self.settings.context)
            try:
                await connection.get("/version")
            finally:
                await connection.close()
        except ApiError as error:
            if error.status != 403:  # the version may be forbidden to this user
                raise contract.UnreachableError(f"can't use Kubernetes: {error}") from error
        except ConfigError as error:
            raise contract.UnreachableError(f"can't use Kubernetes: {error}") from error

    async def open(self) -> None:
        """Connect, acquire the lease, and adopt generations that are still running."""
        try:
            make_private(self.path)
            self._acquire_lock()
        except OSError as error:
            raise contract.ExecutorError(f"{error.filename}: {error.strerror}") from error
        try:
            await self._open()
        except (ApiError, ConfigError) as error:
            await self.close()
            raise contract.UnreachableError(f"can't use Kubernetes: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        connection = await ApiClient.open(self._address, self.settings.context)
        connection.restrict_writes(self._lease.holds)
        namespace = self.settings.namespace or connection.namespace
        identity = ServiceId(self.service, namespace)
        self._session = session = KubernetesSession(
            self.settings,
            identity,
            connection,
            ConfigMapStore(connection, namespace, self.service),
            ClusterCache(
                connection, identity, self.settings, self._on_pod_changed, self._on_node_changed
            ),
            self._background,
            self._registry.emit,
            self._mark_strays,
        )
        if not self._observing and not await self._lease.acquire(
            connection, namespace, ACQUIRE_TIMEOUT_SECONDS
        ):
            raise ExecutorError(
                f"the lease {self.service}-executor in {namespace} is held: the cluster is used "
                "by another service; stop that one, or serve from another namespace"
            )
        await session.cluster.start()
        if not self._observing:
            session.gates = await supports_scheduling_gates(connection)
            await self._load_records()
        self._poll_nodes()
        self._background.spawn_repeating(
            "resync", self._resync, "resyncing with the cluster", RESYNC_SECONDS
        )

    async def _load_records(self) -> None:
        for record in await self.session.records.load():
            for number, state in record.generations.items():
                self._track(record.job, number, state)

    async def close(self) -> None:
        """Disconnect; running generations continue."""
        await run_all(
            self._background.end, self._disconnect, self._unlock, self._registry.close_watch
        )

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # The lease is released over the connection.
            await run_all(session.cluster.close, self._lease.release, session.connection.close)

    async def set_servers(self, servers: Sequence[contract.ServerInfo]) -> None:
        """Set the expected servers; see `ExecutorBase.set_servers`."""
        self._expected = frozenset(server.name for server in servers)
        self._poll_nodes()  # an expected server may be unready for a while
        await super().set_servers(servers)

    def _absence_reason(self, name: str) -> str:
        exists = self._session is not None and name in self._session.cluster.nodes.items
        return "its node is not ready" if exists else "no node of the cluster has this name"

    # ------------------------------------------------------------------ commands

    async def start(self, spec: contract.GenerationSpec) -> contract.Receipt:
        """Start a generation; see `Executor.start`."""
        async with self._registry.job_lock(spec.job):
            self._check_lease()
            owner = Owner.from_labels(spec.labels)
            session = self.session
            namespace = owner.namespace if owner is not None else session.identity.namespace
            allocations = self._registry.allocations
            plan, refusal = build_launch_plan(spec, session.cluster, allocations, namespace)
            if owner is not None and plan:
                plan["owner"] = build_owner_reference(owner)
            refusal = refusal or await self._older_pods_reason(spec, namespace)
            if refusal:
                plan = {}
            with _raising_executor_errors():
                receipt: contract.Receipt = await session.records.change(
                    spec.job, lambda record: record.accept(spec, plan, refusal)
                )
            self._track_job(spec.job, spec)
            return receipt

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> contract.Receipt:
        """Stop a generation; see `Executor.stop`."""
        async with self._registry.job_lock(job):
            self._check_lease()
            with _raising_executor_errors():
                receipt: contract.Receipt = await self.session.records.change(
                    job, lambda record: record.stop(command, generation, grace)
                )
            entry = self._registry.entries.get((job, generation))
            if entry is not None:
                entry.end_reported = False  # report the end again, with this command's number
            self._track_job(job)
            return receipt

    async def _older_pods_reason(self, spec: contract.GenerationSpec, namespace: str) -> str:
        """Return why a generation is refused if pods of an older generation still run, else ``""``.

        Such pods exist if the API server refused to delete them. The cache may also be out of date,
        so they are listed.
        """
        key, session = key_digest(spec.job), self.session
        if not any(view.job == key and view.continues for view in session.cluster.own.values()):
            return ""
        with _raising_executor_errors():
            page = await session.connection.get(
                f"/api/v1/namespaces/{namespace}/pods",
                labelSelector=session.identity.selector(spec.job),
            )
        views = map(pod_view, page.get("items") or ())
        older = [view for view in views if view.generation < spec.generation and view.continues]
        if not older:
            return ""
        names = ", ".join(sorted(view.name for view in older[:3]))
        reason = self._refusal_suffix(f"{view.namespace}/{view.name}" for view in older)
        return f"pods of an earlier generation still run ({names}){reason}"

    def _refusal_suffix(self, pods: Iterable[str]) -> str:
        """Return ``: `` and why the API server refused to delete one of the pods, or ``""``."""
        return next((f": {self._refusals[pod]}" for pod in pods if pod in self._refusals), "")

    def _mark_strays(self, views: Iterable[PodView]) -> None:
        self.session.cluster.mark_strays(views)
        self._poll_nodes()

    def obstacles(self) -> tuple[contract.Obstacle, ...]:
        """Return the generations that can't be started or ended; see `ReportsObstacles`."""
        obstacles = [
            contract.Obstacle(
                entry.job,
                entry.number,
                tuple(dict.fromkeys(part.server for part in entry.parts.values())),
                entry.obstacle,
            )
            for entry in self._registry.unended
            if entry.obstacle
        ]
        strays: dict[tuple[str, int], list[tuple[str, PodView]]] = {}
        for key, view in () if self._session is None else self._session.cluster.strays():
            strays.setdefault((view.origin[0] or view.job, view.generation), []).append((key, view))
        for (job, number), pods in strays.items():
            text = f"its pods still run after its end{self._refusal_suffix(key for key, _ in pods)}"
            servers = tuple(dict.fromkeys(view.node for _, view in pods))
            obstacles.append(contract.Obstacle(job, number, servers, text))
        return tuple(obstacles)

    def _check_lease(self) -> None:
        if not self._lease.holds():
            raise contract.ExecutorError("the lease was lost; another service may have taken over")

    def _track_job(self, job: str, spec: contract.GenerationSpec | None = None) -> None:
        """Register every generation of a job's record; ``spec`` is that of a new generation."""
        record = self.session.records.cached.get(job)
        for number, state in (record.generations if record is not None else {}).items():
            self._track(job, number, state, spec)

    def _track(
        self,
        job: str,
        number: int,
        state: Mapping[str, Any],
        spec: contract.GenerationSpec | None = None,
    ) -> None:
        if (job, number) in self._acknowledging:
            return
        entry = self._registry.entries.get((job, number))
        if entry is None:
            generation = self._directories.generation(job, number)
            entry = self._registry.entries[job, number] = KubernetesGeneration(
                job, number, generation
            )
            self._by_key[entry.key, number] = entry
            if spec is not None and spec.generation == number and state["phase"] == Phase.ACCEPTED:
                entry.spec = spec
        if not entry.accepts_state(state):  # its record was deleted
            state = entry.state_without_record()
        if not entry.is_finished or entry.state is not state:
            entry.load_state(dict(state))
        if not entry.is_finished and (entry.driving is None or entry.driving.done()):
            controller = KubernetesGenerationController(self.session, entry)
            entry.driving = self._background.spawn(
                "drive", controller.run(), entry.task_description
            )
        self._registry.emit(entry.pop_reports())
        entry.changed.set()

    # ------------------------------------------------------------------ following

    def _on_pod_changed(self, job: str, generation: int) -> None:
        entry = self._by_key.get((job, generation))
        if entry is not None:
            entry.changed.set()

    def _on_node_changed(self, name: str) -> None:
        for entry in self._registry.unended:
            if any(part.server == name for part in entry.parts.values()):
                entry.changed.set()

    async def _resync(self) -> None:
        try:
            self._poll_nodes()
            if not self._observing and self._backoff.over:
                if self._lease.lost:
                    self._records_loaded = False
                    await self._reacquire_lease()
                if not self._records_loaded:
                    await self._load_records()
                    self._records_loaded = True
                for key in tuple(self._acknowledging):
                    await self._acknowledge_end(*key)
                if (
                    time.monotonic() - self._orphans_checked_at > ORPHAN_CHECK_SECONDS
                    and self._lease.holds()
                ):
                    await self._delete_orphans()
                    self._orphans_checked_at = time.monotonic()
                self._backoff.reset()
        except ApiError as error:
            pause = self._backoff.record_failure()
            log.warning(
                "failed to resync with the API server; retrying in %.0f s: %s", pause, error
            )

    async def _reacquire_lease(self) -> None:
        """Reacquire a lease that expired while the API server was away, or raise `ApiError`."""
        if not self._lease.is_elected():
            raise LeadershipLostError
        connection, namespace = self.session.connection, self.session.identity.namespace
        if not await self._lease.acquire(connection, namespace, REACQUIRE_TIMEOUT_SECONDS):
            raise ApiError(409, "Conflict", f"another service holds the lease of {self.service}")
        log.info("reacquired the lease of %s", self.service)

    async def _delete_orphans(self) -> None:
        """Delete pods that, by the current record of their job, belong to no live generation."""
        session, live = self.session, self._live()
        orphans: dict[str, Backoff] = {}
        for key, view in tuple(session.cluster.own.items()):  # a copy, as requests let it change
            if (view.job, view.generation) in live:
                continue
            orphans[key] = self._orphans.get(key) or Backoff(
                ORPHAN_CHECK_SECONDS, MAX_CHECK_BACKOFF_SECONDS
            )
            if key not in self._orphans:
                orphans[key].record_failure()  # wait: its generation may be about to be tracked
            # A pod whose annotation doesn't match its label wasn't made by this service.
            if not orphans[key].over or key_digest(view.origin[0]) != view.job:
                continue
            orphans[key].record_failure()
            record = await session.records.read(view.origin[0])
            state = record.generations.get(view.generation)
            if state is not None and state["phase"] not in TERMINAL_PHASES:
                continue
            path = f"/api/v1/namespaces/{view.namespace}/pods/{view.name}"
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1}
            try:
                await session.connection.delete(path, {**body, "preconditions": {"uid": view.uid}})
            except ApiError as error:
                self._refusals[key] = str(error)
        self._orphans = orphans
        self._refusals = {key: text for key, text in self._refusals.items() if key in orphans}

    def _live(self) -> set[tuple[str, int]]:
        return {(entry.key, entry.number) for entry in self._registry.unended}

    def _poll_nodes(self) -> None:
        """Update the servers from the cached nodes and pods, and report changes."""
        if not self._observing:
            self.session.cluster.find_strays(self._live())
        self.session.cluster.refresh_servers(self._expected)
        self._update_servers(self.session.cluster.servers)

    # ------------------------------------------------------------------ retention and queries

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end; see `Executor.acknowledge_end`."""
        entry = self._registry.entries.get((job, generation))
        if entry is None or not entry.is_finished:
            return
        del self._registry.entries[job, generation]
        for part in entry.parts.values():
            self.session.cluster.last_views.pop(f"{entry.namespace}/{part.pod}", None)
        self._acknowledging.add((job, generation))
        with contextlib.suppress(ApiError):  # the resync retries
            await self._acknowledge_end(job, generation)

    async def _acknowledge_end(self, job: str, generation: int) -> None:
        records = self.session.records
        await records.change(job, lambda record: record.generations.pop(generation, None))
        self._acknowledging.discard((job, generation))
        await asyncio.to_thread(self._prune_logs, job)

    def _prune_logs(self, job: str) -> None:
        for old in self._directories.generations(job)[:-KEPT_LOG_GENERATIONS]:
            shutil.rmtree(self._directories.generation(job, old).path, ignore_errors=True)

    async def delete_job_data(self, job: str) -> None:
        """Remove the files and records of a finished job."""
        async with self._registry.job_lock(job):
            if any(entry.job == job for entry in self._registry.unended):
                return
            records = self.session.records
            with _raising_executor_errors():
                record = await records.read(job)
                if record.meta:
                    await records.change(
                        job, lambda current: current.generations.clear(), is_open=False
                    )
            records.cached.pop(job, None)
            self._registry.remove_job(job)
            await asyncio.to_thread(shutil.rmtree, self._directories.job(job), ignore_errors=True)
            if self.settings.shared:  # has no effect if it isn't mounted on this machine
                files = Path(job_paths(self.settings, job)[0]).parent
                await asyncio.to_thread(shutil.rmtree, files, ignore_errors=True)

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> contract.LogChunk:
        """Return a chunk of a process's log; see `Executor.logs`."""
        if generation is None:
            started = [
                candidate.number
                for candidate in self._registry.entries.values()
                if candidate.job == job
                and any(part.has_started for part in candidate.parts.values())
            ]
            generation = max([*started, *self._directories.generations(job)], default=0)
        entry = self._registry.entries.get((job, generation))
        if entry is not None and not entry.is_finished:
            await self._fetch(entry, process)
        complete = entry is None or entry.is_finished
        folder = self._directories.generation(job, generation).logs
        return await asyncio.to_thread(
            read_chunk, folder, generation, process, start, max_bytes, complete=complete
        )

    async def _fetch(self, entry: KubernetesGeneration, process: str) -> None:
        part = entry.parts.get(process)
        if part is None or not part.has_started:
            return
        try:
            async with asyncio.timeout(LOG_FETCH_TIMEOUT_SECONDS):
                await GenerationObjects(self.session, entry).follower(part).fetch_new()
        except (ApiError, TimeoutError) as error:
            # The caller gets what was fetched earlier, and its next read retries.
            message = str(error) or f"no answer within {LOG_FETCH_TIMEOUT_SECONDS:g} s"
            log.warning("the log of %s of %r cannot be read now: %s", process, entry.job, message)

    async def observe(self) -> tuple[contract.ObservedJob, ...]:
        """Return running jobs: this executor's own generations, and those of other schedulers."""
        ours = [] if self._observing else self._registry.running_jobs()
        identity = self.session.identity
        skipped = None if self._observing else identity
        pods = self.session.cluster.pods.items.values()
        return (*ours, *observe_jobs(pods, identity.namespace, skipped))


@contextlib.contextmanager
def _raising_executor_errors() -> Iterator[None]:
    """Raise errors of the API server as `ExecutorError`."""
    try:
        yield
    except ApiError as error:
        raise contract.ExecutorError(f"the API server refused it: {error}") from error


def build_owner_reference(owner: Owner) -> dict[str, Any]:
    """Return the owner reference of a `TrainingJob` resource."""
    return {
        "apiVersion": "shadowprice.io/v1alpha1",
        "kind": "TrainingJob",
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
