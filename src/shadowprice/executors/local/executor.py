"""The local executor: runs jobs as processes of this machine.

An observing service also sees jobs that something else started, such as a shell, cron, or another
scheduler's prolog. The environment of these jobs has to contain ``SHADOWPRICE_JOB=name``;
``SHADOWPRICE_TENANT`` and ``SHADOWPRICE_ROLE`` are optional. A process whose parent has the same
name and tenant isn't counted besides its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest, name_of_key
from shadowprice.executors import contract
from shadowprice.executors.background import run_all
from shadowprice.executors.generations.base import DiskExecutor
from shadowprice.executors.generations.disk import make_private
from shadowprice.executors.generations.generation import (
    TERMINAL_PHASES,
    GenerationDirectory,
    Phase,
    boot_id,
    start_time,
)
from shadowprice.executors.generations.registry import TrackedGeneration
from shadowprice.executors.local import launch_plan
from shadowprice.executors.local.launch_plan import UserJobDirs, user_credentials
from shadowprice.executors.local.machine import MachineAllocator, physical_devices
from shadowprice.executors.options_reader import DEFAULT_LOG_BYTES, OptionsReader
from shadowprice.executors.processes import PlacementError, validate_spec
from shadowprice.executors.supervision import cgroups, children
from shadowprice.executors.supervision.children import processes, read_environ

_MAX_OBSERVED_JOBS: Final = 10_000  # maximum number of jobs of other schedulers observed at once

_MEMORY_MODES: Final = ("auto", "cgroup", "rlimit", "off")
log = logging.getLogger("shadowprice.executors")

RESYNC_SECONDS: Final = 1.0  # between checks for changes without a bell, as of a killed supervisor
CLAIM_TIMEOUT_SECONDS: Final = 5.0  # for a supervisor to claim its generation; then another starts
_KILL_ATTEMPTS: Final = 50  # 20 ms apart, before the next resync continues


def observe_jobs(
    own: Iterable[contract.GenerationStatus], slice_of: Callable[[Sequence[int]], str | None]
) -> tuple[contract.ObservedJob, ...]:
    """Return this executor's running and ended generations, and jobs of other schedulers."""
    ours: dict[str, contract.ObservedJob] = {}
    for status in own:  # in order of acceptance: the newest generation of a job wins
        if status.started is not None:
            ours[status.job] = contract.ObservedJob(
                status.job, status.placement, status.started, is_own=True, **_end_fields(status)
            )
    foreign: dict[tuple[str, str | None], list[tuple[int, dict[str, str]]]] = {}
    marked = _marked_processes()
    for process, (parent, variables) in marked.items():
        name_and_tenant = _name_and_tenant(variables)
        if parent in marked and _name_and_tenant(marked[parent][1]) == name_and_tenant:
            continue
        foreign.setdefault(name_and_tenant, []).append((process, variables))
    for job in ours.values():  # this executor's processes also name their job, without a tenant
        if job.ended is None:
            foreign.pop((name_of_key(job.job), None), None)
    theirs = (
        _to_observed_job(name, tenant, members, slice_of)
        for (name, tenant), members in list(foreign.items())[:_MAX_OBSERVED_JOBS]
    )
    return (*ours.values(), *(job for job in theirs if job is not None))


def _end_fields(status: contract.GenerationStatus) -> dict[str, Any]:
    if not isinstance(status.end, contract.Ended):
        return {}
    return {"ended": status.end.at, "done": status.end.ending is contract.Ending.DONE}


def _marked_processes() -> dict[int, tuple[int, dict[str, str]]]:
    """Return the processes whose environment names a job, with their parent and variables."""
    marked = {}
    for process, parent, _ in processes():
        variables = read_environ(process)
        if 0 < len(variables.get("SHADOWPRICE_JOB", "")) <= bounds.NAME.maximum:
            marked[process] = (parent, variables)
    return marked


def _name_and_tenant(variables: Mapping[str, str]) -> tuple[str, str | None]:
    return variables["SHADOWPRICE_JOB"], variables.get("SHADOWPRICE_TENANT") or None


def _to_observed_job(
    name: str,
    tenant: str | None,
    members: list[tuple[int, dict[str, str]]],
    slice_of: Callable[[Sequence[int]], str | None],
) -> contract.ObservedJob | None:
    counts: dict[str, Counter[str]] = {}
    starts = []
    for process, variables in members:
        ticks = start_time(process)
        if ticks is None:  # ended meanwhile
            continue
        try:
            cores = sorted(os.sched_getaffinity(process))
        except OSError:  # ended meanwhile
            continue
        role = "ps" if variables.get("SHADOWPRICE_ROLE") == "ps" else "worker"
        server = slice_of(cores) or socket.gethostname()
        counts.setdefault(server, Counter())[role] += 1
        starts.append(ticks / os.sysconf("SC_CLK_TCK"))
    if not starts:
        return None
    since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + min(starts)
    placement = tuple(
        contract.ServerAllocation(server, count["worker"], count["ps"])
        for server, count in counts.items()
    )
    return contract.ObservedJob(name, placement, since, tenant)


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of the local executor, as docs/executors.md describes them."""

    cgroup: str = "auto"
    devices: tuple[str, ...] | None = None  # by number or UUID; None to simulate GPUs
    log_bytes: int = DEFAULT_LOG_BYTES
    memory: str = "auto"
    users: str = ""  # directory for jobs of other users; if empty, one beside the data directory


def read_settings(values: Mapping[str, str]) -> LocalSettings:
    """Parse the settings; raise InputError with all errors."""
    reader = OptionsReader(values, LocalSettings)
    devices = tuple(filter(None, (name.strip() for name in values.get("devices", "").split(","))))
    if len(set(devices)) < len(devices):
        reader.add_error("devices", "it names a device twice", "name each once")
    hint = "write auto, off, or the path of a delegated group"
    settings = LocalSettings(
        reader.matching("cgroup", r"auto|off|/.*", "auto", hint),
        devices or physical_devices(),
        reader.log_bytes(),
        reader.choice("memory", _MEMORY_MODES),
        reader.path("users"),
    )
    reader.raise_errors()
    return settings


class LocalExecutor(DiskExecutor[TrackedGeneration]):
    """Runs every generation under its own supervisor, which outlives the service.

    If ``lifeline``, the read end of a pipe, is given, generations end when the process that has the
    write end exits.
    """

    def __init__(self, options: contract.ExecutorOptions, lifeline: int | None = None) -> None:
        if not sys.platform.startswith("linux"):
            raise InputError("the local executor needs Linux's process control")
        super().__init__(options, TrackedGeneration)
        self._settings = read_settings(options.settings)
        self._lifeline = lifeline
        self._bell_path = self.path / "bell"
        data = self.path.parent
        default_users = data.parent / f"{data.name}-users"
        self._users = UserJobDirs(Path(self._settings.users or default_users))
        self._machine = MachineAllocator(sorted(os.sched_getaffinity(0)), self._settings.devices)
        self._bell = -1
        self._cgroup: Path | None = None
        self._memory = "off"
        self._launched: set[int] = set()  # pids of supervisors, to be reaped
        self._launch_errors: dict[tuple[str, int], str] = {}  # why supervisors can't be started
        self._warnings: dict[tuple[str, int], str] = {}  # the last warning about each generation
        self._bell_bytes = b""  # an incomplete line

    @property
    def capabilities(self) -> contract.ExecutorCapabilities:
        """Features of this executor; only root can isolate users."""
        return contract.ExecutorCapabilities(
            observes=True, isolates_users=os.geteuid() == 0, takes_uploads=True
        )

    @property
    def health_error(self) -> str | None:
        """Current failure of a background task or of a start; see `ReportsHealth`."""
        return super().health_error or next(iter(self._launch_errors.values()), None)

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Acquire the directory's lock, and adopt generations that are still running."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            await asyncio.shield(opening)
        except BaseException as error:
            # Cancellation doesn't stop the thread, and its open files must be closed too.
            await asyncio.gather(opening, return_exceptions=True)
            await self.close()
            if isinstance(error, OSError):
                message = f"{error.filename or self.path}: {error.strerror}"
                hint = "check that it is a directory that this user can write"
                raise contract.ExecutorError(f"{message}; {hint}") from error
            raise
        asyncio.get_running_loop().add_reader(self._bell, self._on_bell)
        resync = ("resync", self._resync, "resyncing with the running jobs")
        await self._background.attempt(*resync)
        self._background.spawn_repeating(*resync, RESYNC_SECONDS)

    def _open(self) -> None:
        make_private(self.path)
        self._acquire_lock()
        self._open_store()
        if not self._bell_path.is_fifo():  # backup tools may restore it as a file
            self._bell_path.unlink(missing_ok=True)
            os.mkfifo(self._bell_path, 0o600)
        # Opened for writing too: without a writer, reads would return end-of-file at once.
        self._bell = os.open(self._bell_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._settings.cgroup != "off":
            parent = "" if self._settings.cgroup == "auto" else self._settings.cgroup
            name = f"shadowprice-{key_digest(str(self.path))[:12]}"
            self._cgroup = cgroups.find_or_create(name, parent)
            if parent and self._cgroup is None:
                raise contract.ExecutorError(
                    f"cgroup={parent}, but this user can't create a control group of version 2 "
                    "there; delegate it (systemd: Delegate=yes), or set cgroup=auto"
                )
        self._memory = self._settings.memory
        if self._memory in {"auto", "cgroup"}:
            can_limit = self._cgroup is not None and cgroups.enable_memory_controller(self._cgroup)
            if self._memory == "cgroup" and not can_limit:
                raise contract.ExecutorError(
                    "memory=cgroup, but no control group of this user may limit memory; delegate "
                    "one (systemd: Delegate=memory), or set memory=rlimit"
                )
            self._memory = "cgroup" if can_limit else "rlimit"
        self._load_existing()

    async def close(self) -> None:
        """Release the directory; running generations continue."""
        await run_all(
            self._background.end,
            self._close_bell,
            self._release_lock,
            self._registry.close_watch,
        )

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, -1
        if bell >= 0:
            asyncio.get_running_loop().remove_reader(bell)
            os.close(bell)

    def _release_lock(self) -> None:
        if self._lock is not None and self._cgroup is not None:
            with contextlib.suppress(OSError):  # not empty while generations run
                self._cgroup.rmdir()
        self._unlock()

    async def set_servers(self, servers: Sequence[contract.ServerInfo]) -> None:
        """Set the slices of this machine that are servers."""
        self._machine.set_servers(servers, self._registry.allocations)

    def available(self) -> Mapping[str, Mapping[str, int]]:
        """Return the GPUs of each server; see `LimitsServers`."""
        return self._machine.available()

    # ------------------------------------------------------------------ commands

    def _job_directory(self, spec: contract.GenerationSpec) -> Path:
        """Return the job's directory, which belongs to its user."""
        if spec.program.user:
            return self._users.job(key_digest(spec.job))
        return self._store.job(spec.job)

    def _make_job_directory(
        self, spec: contract.GenerationSpec, directory: Path
    ) -> tuple[int, int] | None:
        if not spec.program.user:
            return super()._make_job_directory(spec, directory)
        user = user_credentials(spec.program.user)
        self._users.make(key_digest(spec.job), user)
        return user["uid"], user["gid"]

    def _remove_job_files(self, job: str) -> None:
        self._users.remove(key_digest(job))

    def _prepare(
        self, spec: contract.GenerationSpec, entry: TrackedGeneration
    ) -> tuple[dict[str, Any], str]:
        try:
            validate_spec(spec)
            user = user_credentials(spec.program.user) if spec.program.user else None
            allocations = self._machine.allocate(spec, self._registry.allocations)
            port = launch_plan.free_port({other.port for other in self._registry.unended})
        except PlacementError as error:
            return {}, str(error)
        directory, progress = self._job_directory(spec), entry.generation.progress
        if user is not None:  # the user can't enter the generation's own directory
            progress = directory / "progress" / f"{spec.generation}.json"
        plan = launch_plan.build_launch_plan(
            spec,
            allocations,
            job_directory=directory,
            progress=progress,
            port=port,
            memory=self._memory,
            user=user,
        )
        name = f"{key_digest(spec.job)}-{spec.generation}"
        plan["cgroup"] = str(self._cgroup / name) if self._cgroup is not None else ""
        plan |= {"log_bytes": self._settings.log_bytes, "bell": str(self._bell_path)}
        if user is not None:
            try:
                self._users.make(key_digest(spec.job), user)
            except OSError as error:
                return {}, f"{error.filename}: {error.strerror}"
        return plan, ""

    async def _begin(self, entry: TrackedGeneration) -> None:
        await asyncio.to_thread(self._launch, entry)

    def _launch(self, entry: TrackedGeneration) -> None:
        """Start a supervisor; if it doesn't claim the generation, a resync starts another."""
        entry.launched = time.monotonic()
        key = (entry.job, entry.number)
        try:
            self._launched.add(children.spawn_supervisor(entry.generation.path, self._lifeline))
        except OSError as error:
            text = (
                f"failed to start the supervisor of generation {entry.number} of {entry.job!r}: "
                f"{error.filename or sys.executable}: {error.strerror}"
            )
            if self._launch_errors.get(key) != text:
                log.warning("%s; retrying", text)
            self._launch_errors[key] = text
        else:
            self._launch_errors.pop(key, None)

    # ------------------------------------------------------------------ following

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell_bytes += os.read(self._bell, 65_536)
        *lines, self._bell_bytes = self._bell_bytes.split(b"\n")
        names = {line.decode("ascii", "replace") for line in lines}
        for entry in tuple(self._registry.entries.values()):
            if f"{entry.key} {entry.number}" in names:
                # Not vital: the resync polls again, and reports a health error while it fails.
                description = "polling generations with new reports"
                self._background.spawn("poll", self._poll(entry), description, vital=False)

    async def _poll(self, entry: TrackedGeneration) -> None:
        """Emit a generation's new reports, and signal its supervisor if a stop is pending."""
        await super()._poll(entry)
        if entry.stop_ordered:
            children.signal_supervisor(entry.state, signal.SIGTERM)

    async def _poll_progress(self) -> list[contract.Progressed]:
        async with contextlib.AsyncExitStack() as locks:
            # The lock's holder is emitting that entry's progress already.
            entries = [entry for entry in self._registry.unended if not entry.refreshing.locked()]
            for unlocked in entries:
                await locks.enter_async_context(unlocked.refreshing)
            reports = await asyncio.to_thread(lambda: [entry.poll_progress() for entry in entries])
        return [report for report in reports if report is not None]

    def stale_jobs(self) -> frozenset[str]:
        """Return an empty set: progress files are local and always current."""
        return frozenset()

    async def _resync(self) -> None:
        """Reap supervisors, replace missing ones, and poll all generations that haven't ended."""
        for process in tuple(self._launched):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(process, os.WNOHANG)[0]:
                    continue
            self._launched.discard(process)
        unexpected: list[Exception] = []
        live = {(entry.job, entry.number): entry for entry in self._registry.unended}
        for recorded in (self._launch_errors, self._warnings):
            for key in recorded.keys() - live.keys():
                del recorded[key]
        for entry in live.values():
            try:
                await asyncio.to_thread(self._check_supervisor, entry)
                await self._poll(entry)
            except (OSError, ValueError) as error:  # of one generation; the others continue
                self._warn(entry, str(error))
            except Exception as error:
                error.add_note(f"of generation {entry.number} of {entry.job!r}")
                unexpected.append(error)
        if unexpected:
            raise unexpected[0]

    def _warn(self, entry: TrackedGeneration, text: str) -> None:
        """Log a warning about a generation, unless it repeats the last one."""
        if self._warnings.get((entry.job, entry.number)) != text:
            log.warning("generation %d of %r: %s", entry.number, entry.job, text)
        self._warnings[entry.job, entry.number] = text

    def _check_supervisor(self, entry: TrackedGeneration) -> None:
        """Restart a missing supervisor, or end the generation that it left behind."""
        generation = entry.generation
        try:
            lock = generation.try_lock()
        except FileNotFoundError:  # not yet accepted, or deleted
            if entry.phase in {Phase.LAUNCHING, Phase.RUNNING} and self._has_directory():
                self._end_without_records(entry)
            return
        if lock is None:  # the supervisor lives, but its job may have sent SIGSTOP to it
            if children.is_stopped(entry.state.get("supervisor", 0)):
                children.signal_supervisor(entry.state, signal.SIGCONT)
            return
        with lock:
            try:
                # Read again: the cached state may precede the claim.
                state = generation.state()
            except ValueError:
                state = {**entry.state, "phase": Phase.DAMAGED}
        phase, cause = state["phase"], "its supervisor was killed"
        plan = self._read_plan(entry)
        if phase == Phase.ACCEPTED and plan is not None:
            if time.monotonic() - entry.launched > CLAIM_TIMEOUT_SECONDS:
                self._launch(entry)
            return
        if phase == Phase.ACCEPTED:  # no supervisor can read what to run
            claimed = generation.claim({})
            if claimed is None:
                return
            claimed.release()
            cause = "its plan is damaged"
        elif state.get("boot", boot_id()) != boot_id():  # so none of its processes is left
            cause = "this machine was restarted"
        elif phase in TERMINAL_PHASES or not self._kill_processes(plan or {}, state):
            return
        generation.mark_lost_if_dead(f"{cause}, and the generation with it")

    def _has_directory(self) -> bool:
        """Return whether the directory is still the one that was opened, not moved or unmounted."""
        if self._lock is None or not (self.path / "jobs").is_dir():
            return False
        return os.path.samestat(os.fstat(self._lock.descriptor), self.path.stat())

    def _end_without_records(self, entry: TrackedGeneration) -> None:
        """End a generation whose directory was deleted, for example by its own job."""
        # Its supervisor couldn't record the end.
        children.signal_supervisor(entry.state, signal.SIGKILL)
        if self._kill_processes({}, entry.state):
            reason = "its records were deleted, and the generation with it"
            lost = {"phase": Phase.ENDED, "at": time.time(), "ending": "lost", "reason": reason}
            entry.generation.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            GenerationDirectory.create(entry.generation.path, {}, {**entry.state, **lost})

    def _read_plan(self, entry: TrackedGeneration) -> dict[str, Any] | None:
        """Return the plan of a generation; None, with a warning, if it is damaged."""
        try:
            return entry.generation.plan()
        except ValueError as error:
            self._warn(entry, f"its plan is damaged: {error}")
            return None

    @staticmethod
    def _kill_processes(plan: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Kill the processes of an abandoned generation; return whether none remain."""
        group = Path(plan["cgroup"]) if plan.get("cgroup") else None
        for _ in range(_KILL_ATTEMPTS):
            remaining = children.find_by_sessions(state.get("processes", {}).values())
            if group is not None:
                remaining |= set(cgroups.list_processes(group))
            if plan:
                remaining |= children.find_by_execution_id(plan["execution"])
            if not remaining:
                if group is not None:
                    cgroups.remove(group)
                return True
            if group is not None:
                cgroups.kill(group)
            for process in remaining:
                children.signal_process(process, signal.SIGKILL)
            time.sleep(0.02)
        return False

    async def observe(self) -> tuple[contract.ObservedJob, ...]:
        """Return the jobs that run on this machine; see `observe_jobs`."""
        own = [
            entry.to_status()
            for entry in self._registry.in_acceptance_order
            if entry.phase == Phase.RUNNING or entry.is_finished
        ]
        return await asyncio.to_thread(observe_jobs, own, self._machine.slice_of)
