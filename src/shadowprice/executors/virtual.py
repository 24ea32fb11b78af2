"""An executor in simulated time: hours of a live service take seconds of processor time.

`VirtualLoop` is an event loop whose clock jumps to the next timer. `VirtualExecutor` implements the
executor contract with jobs (`VirtualJob`) whose real behaviour may differ from their specification,
and with failures of servers. A service runs unchanged with both.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from shadowprice.core.job import MICRO, Job
from shadowprice.executors.contract import (
    Ended,
    Ending,
    ExecutorCapabilities,
    GenerationPhase,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    ObservedJob,
    Progressed,
    Receipt,
    Report,
    ServerAllocation,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)

Result = TypeVar("Result")

SECOND: Final = 1_000_000_000  # nanoseconds in a second
ORIGIN: Final = 1_800_000_000 * SECOND  # initial wall time: a full hour, so that slots start then
STARTED: Final = 3_600 * SECOND  # initial loop time; not 0, because programs use 0 for long ago
MAX_STEPS_AT_ONCE: Final = 100_000  # turns of the loop without progress of time: a livelock

Rate = Callable[[Sequence[ServerAllocation]], float]  # mini-batches per second for a placement
SIGTERM_EXIT: Final = 143
SIGKILL_EXIT: Final = 137


class StalledError(RuntimeError):
    """Virtual time can't advance: no task waits for a timer, or tasks wake each other forever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as every task waits.

    A call for another thread runs inline, and its result arrives one turn later.
    """

    def __init__(self) -> None:
        self.elapsed = STARTED  # its clock in nanoseconds
        self._turns = 0
        self.advances = 0
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        """Return the loop's clock in seconds."""
        return self.elapsed / SECOND

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise StalledError("every task waits, and none of them for a timer")
        if timeout > 0.0:
            # Rounded up, so that the timer is due afterwards.
            self.elapsed += math.ceil(timeout * SECOND)
            self.advances += 1
            self._turns = 0
            return
        self._turns += 1
        if self._turns > MAX_STEPS_AT_ONCE:
            raise StalledError(f"no time passed in {MAX_STEPS_AT_ONCE} turns of the loop")

    def run_in_executor(  # type: ignore[override]  # typeshed uses type variable tuples
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Run a function inline, and deliver its result in the next turn."""
        del executor
        future: asyncio.Future[Result] = self.create_future()
        try:
            deliver = partial(future.set_result, func(*args))
        except Exception as error:
            deliver = partial(future.set_exception, error)
        self.call_soon(lambda: None if future.done() else deliver())
        return future


class _JumpingSelector(selectors.SelectSelector):
    """Advances time instead of waiting: the only registered file is the loop's own pipe."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []


class VirtualClock:
    """A machine's clocks, which follow a loop's time; the wall clock starts at `ORIGIN`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""
        return ORIGIN + self._loop.elapsed - STARTED

    def physical(self) -> int:
        """Return the loop's clock in nanoseconds."""
        return self._loop.elapsed


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine to its end in virtual time; raise `StalledError` if no timer is pending."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(main(VirtualClock(loop)))


def stated_rate(job: Job, slot_seconds: float) -> Rate:
    """Return a function that gives the specified rate for a placement."""

    def rate(placement: Sequence[ServerAllocation]) -> float:
        workers = sum(share.workers for share in placement)
        if job.required != job.work * MICRO and not job.predicted:
            return workers / job.step_seconds  # progress is counted in worker-slots
        gain = job.gain(workers, colocated=len(placement) == 1)
        return gain * job.work / job.required / slot_seconds

    return rate


@dataclass(frozen=True, slots=True)
class VirtualJob:
    """Actual behaviour of a simulated job, which may differ from its specification; in seconds."""

    work: float  # mini-batches after which it exits with status 0
    rate: Rate  # on servers of speed 1
    launch_seconds: float = 0.0  # from the start command until its processes run
    start_seconds: tuple[float, ...] = (0.0,)  # then to the first step, by generation; last repeats
    save_seconds: float | None = None  # to save on SIGTERM; None if it ends without a checkpoint
    save_every: float | None = None  # of training between checkpoints; None if it writes none
    report_every: float | None = None  # the first after its first step; None for no reports
    fails_after: Mapping[int, float] = field(default_factory=dict)  # of training, by generation
    hangs_at: float | None = None  # mini-batches after which it makes no progress

    @property
    def max_progress(self) -> float:
        """Maximum number of mini-batches that it completes."""
        return self.work if self.hangs_at is None else min(self.work, self.hangs_at)

    def start_seconds_for(self, generation: int) -> float:
        """Return the seconds from the start of a generation's processes to its first step."""
        return self.start_seconds[min(generation, len(self.start_seconds)) - 1]


@dataclass(slots=True)
class VirtualGeneration:
    """One generation of a job and its state; times are the event loop's, in seconds."""

    spec: GenerationSpec
    job: VirtualJob
    accepted: float  # when the start command was accepted
    rate: float  # mini-batches per second
    base: float  # mini-batches of the checkpoint that it starts from
    previous_save_seconds: float | None = None  # None if the previous generation saved nothing
    previous_ended_at: float = 0.0
    phase: GenerationPhase = GenerationPhase.STARTING
    started_at: float | None = None
    first_step_at: float | None = None
    halted_at: float | None = None  # when it stopped training, to save or because it ended
    stop_ordered: float | None = None
    command: int = 0  # number of the stop command
    ended_at: float | None = None
    end: Ended | StartRefused | None = None
    saved: float = 0.0  # mini-batches of the checkpoint that it left; set at its end
    forgotten: bool = False
    first_report: bool = True

    @property
    def key(self) -> tuple[str, int]:
        """Job and generation number."""
        return self.spec.job, self.spec.generation

    @property
    def alive(self) -> bool:
        """Whether its processes may run."""
        return self.phase is not GenerationPhase.ENDED

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it runs, or if it was refused."""
        return self.end.ending if isinstance(self.end, Ended) else None

    def progress_at(self, now: float) -> float:
        """Return the number of mini-batches completed by ``now``."""
        if self.first_step_at is None:
            return self.base
        until = now if self.halted_at is None else min(now, self.halted_at)
        progress = self.base + self.rate * max(0.0, until - self.first_step_at)
        return min(self.job.max_progress, progress)

    def checkpoint_progress_at(self, now: float) -> float:
        """Return the number of mini-batches in the newest periodic checkpoint at ``now``."""
        every = self.job.save_every
        if self.first_step_at is None or every is None:
            return self.base
        until = now if self.halted_at is None else min(now, self.halted_at)
        times = max(0.0, until - self.first_step_at) // every
        return min(self.progress_at(now), self.base + self.rate * times * every)

    @property
    def lost_progress(self) -> float:
        """Mini-batches that it completed but no checkpoint contains."""
        return 0.0 if self.ended_at is None else self.progress_at(self.ended_at) - self.saved

    def build_report(self, now: float, wall: float) -> Progressed:
        """Return a progress report at loop time ``now``; the first has the times of the change."""
        metrics: dict[str, float] = {}
        saving = self.previous_save_seconds
        if self.first_report and saving is not None and self.started_at is not None:
            metrics = {
                "change_checkpoint": saving,
                "change_away": max(0.0, self.started_at - self.previous_ended_at),
                "change_start": self.job.start_seconds_for(self.spec.generation),
                "change_first_step": 0.0,
            }
        self.first_report = False
        progress = int(self.progress_at(now)) * MICRO
        saves = self.job.save_seconds is not None or self.job.save_every is not None
        return Progressed(*self.key, progress, metrics, wall, checkpoints=saves)


class VirtualExecutor:
    """Runs simulated jobs; like a cluster, it outlives the services that use it.

    ``speeds`` are factors of jobs' rates by server, by default 1. A generation runs at the speed of
    its slowest server.
    """

    capabilities = ExecutorCapabilities(discovers_servers=True)

    def __init__(
        self,
        clock: VirtualClock,
        jobs: Mapping[str, VirtualJob],
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        self.jobs = dict(jobs)
        self.speeds = dict(speeds or {})
        self.generations: list[VirtualGeneration] = []
        self._clock = clock
        self._entries: dict[tuple[str, int], VirtualGeneration] = {}
        self._live: dict[str, VirtualGeneration] = {}
        self._fences: dict[str, int] = {}
        self._checkpoints: dict[str, float] = {}
        # Seconds that each job's last generation took to save, and when it ended.
        self._last_ends: dict[str, tuple[float | None, float]] = {}
        self._capacity: dict[str, Mapping[str, int]] = {}
        self._gone: set[str] = set()
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()

    # ------------------------------------------------------------------ injected faults

    def lose_server(self, server: str) -> None:
        """Remove a server, and end its generations as lost."""
        self._gone.add(server)
        for entry in list(self._live.values()):
            if any(share.server == server for share in entry.spec.placement):
                self._end(entry, Ending.LOST, None, f"server {server} is gone")
        self._reports.put_nowait(ServerGone(server, self._wall()))

    def return_server(self, server: str) -> None:
        """Add a lost server again."""
        self._gone.discard(server)
        info = ServerInfo(server, self._capacity.get(server, {}))
        self._reports.put_nowait(ServerSeen(info, self._wall()))

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """End `watch`; jobs continue."""
        self._reports.put_nowait(None)

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set the servers and their capacities."""
        self._capacity = {server.name: server.capacity for server in servers}

    # ------------------------------------------------------------------ commands

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation; see `Executor.start`."""
        key, fence = (spec.job, spec.generation), self._fences.get(spec.job, 0)
        existing = self._entries.get(key)
        if existing is not None:
            return Receipt.DUPLICATE if existing.spec.identity == spec.identity else Receipt.STALE
        if spec.generation <= fence:
            return Receipt.STALE
        if spec.job in self._live:
            return Receipt.BUSY
        self._fences[spec.job] = spec.generation
        job, now = self.jobs[spec.job], self._now()
        speed = min(self.speeds.get(share.server, 1.0) for share in spec.placement)
        base = self._checkpoints.get(spec.job, 0.0)
        previous = self._last_ends.get(spec.job, (None, now))
        entry = VirtualGeneration(spec, job, now, job.rate(spec.placement) * speed, base, *previous)
        self._entries[key] = entry
        self.generations.append(entry)
        refusal = self._refusal(spec)
        if refusal:
            self._end_generation(entry, StartRefused(spec.command, *key, self._wall(), refusal))
            return Receipt.ACCEPTED
        self._live[spec.job] = entry
        self._call_later(job.launch_seconds, self._on_launched, entry)
        return Receipt.ACCEPTED

    def _refusal(self, spec: GenerationSpec) -> str:
        """Return why a placement can't be used: a server is missing or full; else empty."""
        for share in spec.placement:
            if share.server in self._gone or share.server not in self._capacity:
                return f"server {share.server} is gone or unknown"
        used = self.used()
        for share in spec.placement:
            for resource, capacity in self._capacity[share.server].items():
                demand = share.workers * spec.worker.get(resource, 0)
                demand += share.ps * spec.ps.get(resource, 0)
                taken = used.get((share.server, resource), 0)
                if demand + taken > capacity:
                    return f"{resource} of {share.server}: {taken} of {capacity} are in use"
        return ""

    def used(self) -> dict[tuple[str, str], int]:
        """Return the current usage, by server and resource."""
        used: Counter[tuple[str, str]] = Counter()
        for spec in (entry.spec for entry in self._live.values()):
            for share in spec.placement:
                for count, amounts in ((share.workers, spec.worker), (share.ps, spec.ps)):
                    for resource, amount in amounts.items():
                        used[share.server, resource] += count * amount
        return used

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation; see `Executor.stop`."""
        self._fences[job] = max(generation, self._fences.get(job, 0))
        entry = self._entries.get((job, generation))
        if entry is None:  # never started; the fence now bars it
            refused = StartRefused(
                command, job, generation, self._wall(), "stopped before it started"
            )
            self._reports.put_nowait(refused)
            return Receipt.ACCEPTED
        if not entry.alive:
            if not entry.forgotten and entry.end is not None:
                self._reports.put_nowait(entry.end)
            return Receipt.DUPLICATE
        if entry.stop_ordered is not None:
            return Receipt.DUPLICATE
        entry.command, entry.stop_ordered = command, self._now()
        entry.halted_at, entry.phase = self._now(), GenerationPhase.STOPPING
        limit = entry.spec.program.grace if grace is None else grace
        saving = entry.job.save_seconds
        if entry.first_step_at is None or self._now() < entry.first_step_at or saving is None:
            self._call_later(0.0, self._on_stopped, entry, None, False)  # nothing to save
        elif saving > limit:
            self._call_later(limit, self._on_stopped, entry, None, True)
        else:
            self._call_later(saving, self._on_stopped, entry, saving, False)
        return Receipt.ACCEPTED

    # ------------------------------------------------------------------ job behaviour

    def _on_launched(self, entry: VirtualGeneration) -> None:
        if entry.phase is not GenerationPhase.STARTING:
            return
        entry.phase, entry.started_at = GenerationPhase.RUNNING, self._now()
        self._reports.put_nowait(Started(entry.spec.command, *entry.key, self._wall()))
        self._call_later(entry.job.start_seconds_for(entry.spec.generation), self._train, entry)

    def _train(self, entry: VirtualGeneration) -> None:
        if entry.phase is not GenerationPhase.RUNNING:
            return
        entry.first_step_at = self._now()
        remaining = (entry.job.work - entry.base) / entry.rate
        fails = entry.job.fails_after.get(entry.spec.generation)
        if fails is not None and fails < remaining:
            self._call_later(fails, self._exit, entry, Ending.FAILED, 1, "exit status 1")
        elif entry.job.hangs_at is None:
            self._call_later(remaining, self._exit, entry, Ending.DONE, 0, "")
        if entry.job.report_every is not None:
            # First at the first step: an earlier report doesn't show the job's speed.
            self._call_later(1.0 / entry.rate, self._report, entry)

    def _report(self, entry: VirtualGeneration) -> None:
        if entry.phase is not GenerationPhase.RUNNING or entry.job.report_every is None:
            return
        self._reports.put_nowait(entry.build_report(self._now(), self._wall()))
        self._call_later(entry.job.report_every, self._report, entry)

    def _exit(self, entry: VirtualGeneration, ending: Ending, code: int, reason: str) -> None:
        if entry.phase is GenerationPhase.RUNNING:
            entry.halted_at = self._now()
            self._end(entry, ending, code, reason)

    def _on_stopped(self, entry: VirtualGeneration, saving: float | None, forced: bool) -> None:
        if not entry.alive:  # its server was lost meanwhile
            return
        code = SIGKILL_EXIT if forced else SIGTERM_EXIT
        self._end(
            entry, Ending.STOPPED, code, "the scheduler stopped it", saving=saving, forced=forced
        )

    def _end(
        self,
        entry: VirtualGeneration,
        ending: Ending,
        code: int | None,
        reason: str,
        *,
        saving: float | None = None,
        forced: bool = False,
    ) -> None:
        now = self._now()
        keeps_all = ending is Ending.DONE or saving is not None
        entry.saved = entry.progress_at(now) if keeps_all else entry.checkpoint_progress_at(now)
        self._checkpoints[entry.spec.job] = entry.saved
        self._last_ends[entry.spec.job] = saving, now
        wall = self._wall()
        end = Ended(entry.command, *entry.key, wall, ending, code, reason, (), forced)
        self._end_generation(entry, end)

    def _end_generation(self, entry: VirtualGeneration, end: Ended | StartRefused) -> None:
        entry.phase, entry.ended_at, entry.end = GenerationPhase.ENDED, self._now(), end
        if self._live.get(entry.spec.job) is entry:
            del self._live[entry.spec.job]
        self._reports.put_nowait(end)

    # ------------------------------------------------------------------ reports

    async def progress(self) -> Sequence[Progressed]:
        """Return the current progress of running jobs that report; see `PollsProgress`."""
        now, wall = self._now(), self._wall()
        return [
            entry.build_report(now, wall)
            for entry in self._live.values()
            if entry.job.report_every is not None
            and entry.phase is GenerationPhase.RUNNING
            and entry.first_step_at is not None
            and now - entry.first_step_at >= 1.0 / entry.rate
        ]

    def stale_jobs(self) -> frozenset[str]:
        """Return an empty set: every job can be queried at any time; see `PollsProgress`."""
        return frozenset()

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten."""
        return tuple(
            GenerationStatus(
                *entry.key,
                entry.phase,
                entry.spec.placement,
                (),
                None if entry.started_at is None else self._wall(entry.started_at),
                entry.end,
                entry.spec.identity,
            )
            for entry in self._entries.values()
        )

    async def watch(self) -> AsyncIterator[Report]:
        """Yield the current state of servers and generations, then new reports."""
        reports = self._reports = asyncio.Queue[Report | None]()
        for server in self._gone:
            reports.put_nowait(ServerGone(server, self._wall()))
        for server in self._capacity.keys() - self._gone:
            reports.put_nowait(ServerSeen(ServerInfo(server, self._capacity[server]), self._wall()))
        for entry in self._entries.values():
            if entry.started_at is not None:
                started = self._wall(entry.started_at)
                reports.put_nowait(Started(entry.spec.command, *entry.key, started))
            if entry.end is not None:
                reports.put_nowait(entry.end)
        while True:
            report = await reports.get()
            if report is None:
                return
            yield report

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Forget a generation whose end was recorded."""
        entry = self._entries.get((job, generation))
        if entry is not None and not entry.alive:
            entry.forgotten = True
            del self._entries[job, generation]

    async def delete_job_data(self, job: str) -> None:
        """Remove a job's checkpoint; keep its fence."""
        self._checkpoints.pop(job, None)

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> LogChunk:
        """Raise `KeyError`: no process writes a log."""
        del start, max_bytes
        raise KeyError(f"{process} of generation {generation} of {job}")

    async def observe(self) -> tuple[ObservedJob, ...]:
        """Return the generations that run."""
        return tuple(
            ObservedJob(
                job,
                entry.spec.placement,
                self._wall(entry.started_at),
                entry.spec.tenant,
                is_own=True,
            )
            for job, entry in self._live.items()
            if entry.started_at is not None
        )

    # ------------------------------------------------------------------ time

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _wall(self, moment: float | None = None) -> float:
        """Return the wall time, in seconds, now or at a loop time."""
        now = self._clock.wall() / SECOND
        return now if moment is None else now - self._now() + moment

    @staticmethod
    def _call_later(seconds: float, action: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(seconds, action, *arguments)
