"""The Kubernetes executor: runs jobs as pods of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from shadowprice.core.job_keys import Owner, key_digest
from shadowprice.executors.background import BackgroundTasks, run_all
from shadowprice.executors.contract import (
    ExecutorCapabilities,
    ExecutorError,
    ExecutorOptions,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    ObservedJob,
    Obstacle,
    Receipt,
    Report,
    ServerGone,
    ServerInfo,
    ServerSeen,
)
from shadowprice.executors.generations.disk import FileLock, make_private
from shadowprice.executors.generations.generation import ACCEPTED, RUNNING
from shadowprice.executors.generations.log_chunks import read_chunk
from shadowprice.executors.generations.registry import GenerationRegistry
from shadowprice.executors.generations.store import KEPT_LOG_GENERATIONS, JobDirectories
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.controller import KubernetesGenerationController
from shadowprice.executors.kubernetes.discovery import supports_scheduling_gates
from shadowprice.executors.kubernetes.executor_lease import ExecutorLease
from shadowprice.executors.kubernetes.launch_plan import build_launch_plan
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.objects import GenerationObjects
from shadowprice.executors.kubernetes.observation import observe_jobs
from shadowprice.executors.kubernetes.orphan_pods import ORPHAN_CHECK_SECONDS, OrphanPodCollector
from shadowprice.executors.kubernetes.pods import job_paths
from shadowprice.executors.kubernetes.records import ConfigMapStore
from shadowprice.executors.kubernetes.session import KubernetesSession
from shadowprice.executors.kubernetes.settings import read_settings
from shadowprice.executors.kubernetes.tracked_generation import KubernetesGeneration
from shadowprice.executors.kubernetes.views import PodView, pod_view
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError, ConfigError
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.executors")

RESYNC_SECONDS: Final = 1.0  # seconds between resyncs of nodes and missed events

MAX_RESYNC_BACKOFF_SECONDS: Final = 10.0
"""Maximum backoff in seconds of requests that the API server didn't accept."""

LOG_FETCH_TIMEOUT_SECONDS: Final = 10.0  # timeout in seconds for fetching a log

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


class KubernetesUnreachableError(ExecutorError):
    """No usable Kubernetes cluster answers; a usage error at the service's start."""

    exit_code = 2


class KubernetesExecutor:
    """Runs every process of a generation in a pod, on its planned node.

    Its directory has logs only; all other state is in the API server. The address is as in
    `ApiClient.open`. Raises InputError if a setting is invalid.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        self.settings = read_settings(options.settings)
        self._address = options.address
        self._observing = options.observing
        namespace = options.namespace
        self.service = (
            namespace if _LABEL.fullmatch(namespace) else f"s-{key_digest(namespace)[:16]}"
        )
        self.path = Path(options.directory)
        self._directories = JobDirectories(self.path)
        self._registry: GenerationRegistry[KubernetesGeneration] = GenerationRegistry()
        # Index by the key in pods' labels, because pod events are frequent.
        self._by_key: WeakValueDictionary[tuple[str, int], KubernetesGeneration] = (
            WeakValueDictionary()
        )
        self._expected: frozenset[str] = frozenset()
        self._acknowledging: set[tuple[str, int]] = set()
        self._lock: FileLock | None = None
        self._lease = ExecutorLease(self.service, options.election)
        self.background = BackgroundTasks(log, options.failed)
        self._orphans = OrphanPodCollector()
        self._last_collection = 0.0
        self._records_loaded = True  # since the lease was last acquired
        self._backoff = Backoff(RESYNC_SECONDS, MAX_RESYNC_BACKOFF_SECONDS)
        self._session: KubernetesSession | None = None

    @property
    def capabilities(self) -> ExecutorCapabilities:
        """Features of this executor."""
        return ExecutorCapabilities(
            discovers_servers=True, several_machines=True, observes=True, runs_containers=True
        )

    @property
    def health_error(self) -> str | None:
        """Current failure of a background task; see `ReportsHealth`."""
        return self.background.health_error

    @property
    def session(self) -> KubernetesSession:
        """The open connection."""
        if self._session is None:
            raise ExecutorError("not connected to Kubernetes")
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
                raise KubernetesUnreachableError(f"can't use Kubernetes: {error}") from error
        except ConfigError as error:
            raise KubernetesUnreachableError(f"can't use Kubernetes: {error}") from error

    async def open(self) -> None:
        """Connect, acquire the lease, and adopt generations that are still running.

        Raises `ExecutorError` if the API server doesn't answer, or another service uses the
        directory or the lease.
        """
        try:
            make_private(self.path)
            self._lock = FileLock.try_acquire(self.path)
        except OSError as error:
            raise ExecutorError(f"{error.filename}: {error.strerror}") from error
        if self._lock is None:
            raise ExecutorError(
                f"{self.path} is in use by another service; stop it, or use another --data"
            )
        try:
            await self._open()
        except (ApiError, ConfigError) as error:
            await self.close()
            raise KubernetesUnreachableError(f"can't use Kubernetes: {error}") from error
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
            self.background,
            self._registry.emit,
            self._leave,
        )
        if not self._observing:
            await self._lease.acquire(connection, namespace)
        await session.cluster.start()
        if not self._observing:
            session.gates = await supports_scheduling_gates(connection)
            await self._load_records()
        self._poll_nodes()
        self.background.spawn_repeating(
            "resync", self._resync, "resyncing with the cluster", RESYNC_SECONDS
        )

    async def _load_records(self) -> None:
        for record in await self.session.records.load():
            for number, state in record.generations.items():
                self._track(record.job, number, state)

    async def close(self) -> None:
        """Disconnect; running generations continue."""
        await run_all(
            self.background.end, self._disconnect, self._unlock, self._registry.close_watch
        )

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # The lease is released over the connection.
            await run_all(session.cluster.close, self._lease.release, session.connection.close)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set the servers that the service expects; missing ones are reported as `ServerGone`."""
        self._expected = frozenset(server.name for server in servers)
        self._poll_nodes()
        self._registry.emit(map(self._gone, self._expected - self.session.cluster.servers.keys()))

    def _gone(self, name: str) -> ServerGone:
        exists = self._session is not None and name in self._session.cluster.nodes.items
        reason = "its node is not ready" if exists else "no node of the cluster has this name"
        return ServerGone(name, time.time(), reason)

    # ------------------------------------------------------------------ commands

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation; see `Executor.start`."""
        async with self._registry.job_lock(spec.job):
            self._check_lease()
            owner = Owner.from_labels(spec.labels)
            session, cluster = self.session, self.session.cluster
            namespace = owner.namespace if owner is not None else session.identity.namespace
            plan, refusal = build_launch_plan(
                spec,
                nodes=cluster.nodes.items,
                servers=cluster.servers,
                used=cluster.used,
                held=self._registry.allocations,
                settings=self.settings,
                namespace=namespace,
            )
            if owner is not None and plan:
                plan["owner"] = build_owner_reference(owner)
            refusal = refusal or await self._older_pods_reason(spec, namespace)
            if refusal:
                plan = {}
            receipt: Receipt = await self._change_record(
                spec.job, lambda record: record.accept(spec, plan, refusal)
            )
            self._track_job(spec)
            return receipt

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation; see `Executor.stop`."""
        async with self._registry.job_lock(job):
            self._check_lease()
            receipt: Receipt = await self._change_record(
                job, lambda record: record.stop(command, generation, grace)
            )
            entry = self._registry.entries.get((job, generation))
            if entry is not None:
                entry.end_reported = False  # emitted again, with this command's number
            self._track_job(None, job)
            return receipt

    async def _older_pods_reason(self, spec: GenerationSpec, namespace: str) -> str:
        """Return a reason to refuse a generation if pods of an older one still run, else ``""``.

        They only do if the API server refused to delete them. Otherwise an older generation has
        ended, and the cached pods of it are out of date.
        """
        key, session = key_digest(spec.job), self.session
        if not any(view.job == key and view.continues for view in session.cluster.own.values()):
            return ""
        try:
            page = await session.connection.get(
                f"/api/v1/namespaces/{namespace}/pods",
                labelSelector=session.identity.selector(spec.job),
            )
        except ApiError as error:
            raise ExecutorError(f"the API server refused it: {error}") from error
        views = map(pod_view, page.get("items") or ())
        older = [view for view in views if view.generation < spec.generation and view.continues]
        if not older:
            return ""
        names = ", ".join(sorted(view.name for view in older[:3]))
        reason = next(
            (
                f": {text}"
                for view in older
                if (text := self._orphans.refusals.get(f"{view.namespace}/{view.name}"))
            ),
            "",
        )
        return f"pods of an earlier generation still run ({names}){reason}"

    def _leave(self, views: Iterable[PodView]) -> None:
        self.session.cluster.leave(views)
        self._poll_nodes()

    def obstacles(self) -> tuple[Obstacle, ...]:
        """Return the generations that can't be started or ended; see `ReportsObstacles`."""
        found = [
            Obstacle(
                entry.job,
                entry.number,
                tuple(dict.fromkeys(part.server for part in entry.parts.values())),
                entry.obstacle,
            )
            for entry in self._registry.live
            if entry.obstacle
        ]
        strays: dict[tuple[str, int], list[tuple[str, PodView]]] = {}
        for key, view in () if self._session is None else self._session.cluster.strays():
            strays.setdefault((view.outer[0] or view.job, view.generation), []).append((key, view))
        for (job, number), pods in strays.items():
            reason = next(filter(None, (self._orphans.refusals.get(key) for key, _ in pods)), "")
            text = "its pods still run after its end" + (f": {reason}" if reason else "")
            servers = tuple(dict.fromkeys(view.node for _, view in pods))
            found.append(Obstacle(job, number, servers, text))
        return tuple(found)

    def _check_lease(self) -> None:
        if not self._lease.holds():
            raise ExecutorError("the lease was lost; another service may have taken over")

    async def _change_record(self, job: str, update: Any) -> Any:
        try:
            return await self.session.records.change(job, update)
        except ApiError as error:
            raise ExecutorError(f"the API server refused it: {error}") from error

    def _track_job(self, spec: GenerationSpec | None, job: str = "") -> None:
        """Register every generation of a job's record."""
        name = spec.job if spec is not None else job
        record = self.session.records.known.get(name)
        for number, state in (record.generations if record is not None else {}).items():
            own = spec is not None and number == spec.generation
            self._track(name, number, state, spec if own else None)

    def _track(
        self,
        job: str,
        number: int,
        state: Mapping[str, Any],
        spec: GenerationSpec | None = None,
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
            entry.spec = spec if state["phase"] == ACCEPTED else None
        if not entry.accepts_state(state):  # its record was deleted
            state = entry.state_without_record()
        if not entry.is_finished or entry.state is not state:
            entry.load_state(dict(state))
        if not entry.is_finished and (entry.driving is None or entry.driving.done()):
            drive = KubernetesGenerationController(self.session, entry)
            entry.driving = self.background.spawn("drive", drive.run(), entry.task_description)
        self._registry.emit(entry.pop_reports())
        entry.changed.set()

    # ------------------------------------------------------------------ following

    def _on_pod_changed(self, job: str, generation: int) -> None:
        """Wake the generation of a changed pod."""
        entry = self._by_key.get((job, generation))
        if entry is not None:
            entry.changed.set()

    def _on_node_changed(self, name: str) -> None:
        """Wake the generations on a node whose readiness changed."""
        for entry in self._registry.live:
            if any(part.server == name for part in entry.parts.values()):
                entry.changed.set()

    async def _resync(self) -> None:
        try:
            self._poll_nodes()
            if not self._observing and self._backoff.over:
                if self._lease.lost:
                    self._records_loaded = False
                    identity = self.session.identity
                    await self._lease.reacquire(self.session.connection, identity.namespace)
                if not self._records_loaded:
                    await self._load_records()
                    self._records_loaded = True
                for key in tuple(self._acknowledging):
                    await self._acknowledge_end(*key)
                if (
                    time.monotonic() - self._last_collection > ORPHAN_CHECK_SECONDS
                    and self._lease.holds()
                ):
                    await self._orphans.delete_orphans(self.session, self._live())
                    self._last_collection = time.monotonic()
                self._backoff.reset()
        except ApiError as error:
            pause = self._backoff.record_failure()
            log.warning(
                "failed to resync with the API server; retrying in %.0f s: %s", pause, error
            )

    def _live(self) -> set[tuple[str, int]]:
        return {(entry.key, entry.number) for entry in self._registry.live}

    def _poll_nodes(self) -> None:
        if not self._observing:
            self.session.cluster.find_strays(self._live())
        changed, gone = self.session.cluster.diff_servers(self._expected)
        now = time.time()
        self._registry.emit(ServerSeen(server, now) for server in changed)
        self._registry.emit(map(self._gone, gone))

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten."""
        return self._registry.statuses()

    def watch(self) -> AsyncIterator[Report]:
        """Yield reports; see `Executor.watch`."""
        return self._registry.watch(self._servers)

    def _servers(self) -> Iterator[Report]:
        if self._session is not None:
            servers = self._session.cluster.servers
            for server in servers.values():
                yield ServerSeen(server, time.time())
            yield from map(self._gone, self._expected - servers.keys())

    # ------------------------------------------------------------------ retention and queries

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end; see `Executor.acknowledge_end`."""
        entry = self._registry.entries.get((job, generation))
        if entry is None or not entry.is_finished:
            return
        del self._registry.entries[job, generation]
        for part in entry.parts.values():
            self.session.cluster.last.pop(f"{entry.namespace}/{part.pod}", None)
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
            if any(entry.job == job for entry in self._registry.live):
                return
            records = self.session.records
            try:
                record = await records.read(job)
                if record.meta:
                    await records.change(
                        job, lambda current: current.generations.clear(), open_=False
                    )
            except ApiError as error:
                raise ExecutorError(f"the API server refused it: {error}") from error
            records.known.pop(job, None)
            self._registry.remove_job(job)
            await asyncio.to_thread(shutil.rmtree, self._directories.job(job), ignore_errors=True)
            if self.settings.shared:  # does nothing if it isn't mounted here
                own = Path(job_paths(self.settings, job)[0]).parent
                await asyncio.to_thread(shutil.rmtree, own, ignore_errors=True)

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> LogChunk:
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
            # The reader gets the part fetched earlier, and the next read retries.
            message = str(error) or f"no answer within {LOG_FETCH_TIMEOUT_SECONDS:g} s"
            log.warning("the log of %s of %r cannot be read now: %s", process, entry.job, message)

    async def observe(self) -> tuple[ObservedJob, ...]:
        """Return running jobs: this executor's own generations, and those of other schedulers."""
        own = (
            []
            if self._observing
            else [
                entry.to_status()
                for entry in self._registry.entries.values()
                if entry.phase == RUNNING
            ]
        )
        ours = [ObservedJob(job.job, job.placement, job.started or 0.0, is_own=True) for job in own]
        identity = self.session.identity
        skipped = None if self._observing else identity
        pods = self.session.cluster.pods.items.values()
        return (*ours, *observe_jobs(pods, identity.namespace, skipped))


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
