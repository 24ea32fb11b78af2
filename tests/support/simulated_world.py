"""A simulated world around a service: clocks, servers and processes that survive its crashes.

The world logs every start itself, so that tests can check the service's records against the log.
Its executor follows the contract: it acts once on a generation, refuses older generations, and
repeats its reports until `acknowledge_end`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from shadowprice.executors.contract import (
    Ended,
    Ending,
    ExecutorCapabilities,
    GenerationPhase,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    ObservedJob,
    Receipt,
    Report,
    ServerInfo,
    Started,
    StartRefused,
)
from shadowprice.service.clock import SECOND


@dataclass
class ManualClock:
    """Clocks that only a test advances."""

    at: int = 1_800_000_000 * SECOND
    set_by: int = 0

    def wall(self) -> int:
        return self.at + self.set_by

    def physical(self) -> int:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)


@dataclass
class Process:
    """The actual state of one generation of a job."""

    spec: GenerationSpec
    began: float
    phase: GenerationPhase = GenerationPhase.RUNNING
    stop_at: float | None = None
    command: int = 0
    ended: float | None = None
    end: Ended | StartRefused | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.spec.job, self.spec.generation

    @property
    def alive(self) -> bool:
        return self.phase is not GenerationPhase.ENDED


def _no_fault(point: str) -> None:
    del point


@dataclass
class World:
    """Servers, processes, and a log of all starts.

    `work` holds the worker-seconds that each job takes. A job keeps its progress from generation to
    generation.
    """

    clock: ManualClock
    work: dict[str, float] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)
    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    forgotten: set[tuple[str, int]] = field(default_factory=set)
    fails: dict[tuple[str, int], str] = field(default_factory=dict)
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)
    fault: Callable[[str], None] = _no_fault
    faults: list[str] = field(default_factory=list)
    starts: list[tuple[str, int, float]] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)

    @property
    def now(self) -> float:
        """Physical time in seconds; setting the wall clock doesn't change it."""
        return self.clock.at / SECOND

    def wall_time(self, moment: float) -> float:
        """Convert physical time to the present wall clock."""
        return moment + self.clock.set_by / SECOND

    def advance(self, seconds: float) -> None:
        """Advance time: processes make progress, end, and obey stop commands."""
        before = self.now
        self.clock.advance(seconds)
        for process in self.processes.values():
            if not process.alive:
                continue
            name = process.spec.job
            speed = process.spec.workers
            left = self.work[name] - self.done.get(name, 0.0)
            until = before + left / speed
            failing = self.fails.get(process.key)
            if process.stop_at is not None and process.stop_at <= min(self.now, until):
                self._gain(process, process.stop_at - before)
                self._end(process, process.stop_at, Ending.STOPPED, 143, "stopped")
            elif failing is not None:
                self._end(process, self.now, Ending(failing), 1, "injected failure")
            elif until <= self.now:
                self.done[name] = self.work[name]
                self._end(process, until, Ending.DONE, 0, "")
            else:
                self._gain(process, seconds)

    def _gain(self, process: Process, seconds: float) -> None:
        name = process.spec.job
        self.done[name] = self.done.get(name, 0.0) + max(0.0, seconds) * process.spec.workers

    def _end(
        self, process: Process, at: float, ending: Ending, code: int | None, reason: str
    ) -> None:
        process.phase, process.ended = GenerationPhase.ENDED, at
        job, generation = process.key
        process.end = Ended(
            process.command, job, generation, self.wall_time(at), ending, code, reason
        )

    def check(self) -> None:
        """Record violations: two live generations of a job, or an overbooked server."""
        used: dict[tuple[str, str], int] = {}
        alive: set[str] = set()
        for process in self.processes.values():
            if not process.alive:
                continue
            if process.spec.job in alive:
                self.faults.append(f"{process.spec.job} runs twice at {self.now}")
            alive.add(process.spec.job)
            for share in process.spec.placement:
                for resource, amount in process.spec.worker.items():
                    key = share.server, resource
                    used[key] = used.get(key, 0) + share.workers * amount
        for (server, resource), amount in used.items():
            most = self.capacity.get(server, {}).get(resource)
            if most is not None and amount > most:
                self.faults.append(f"{amount} of {most} {resource} on {server} at {self.now}")


class FakeExecutor:
    """The executor of a world. A crash replaces the executor, but not the world."""

    capabilities = ExecutorCapabilities()

    def __init__(self, world: World) -> None:
        self.world = world

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        for server in servers:
            known = self.world.capacity.setdefault(server.name, {})
            # A job that runs when its server shrinks may finish its slot.
            for resource, amount in server.capacity.items():
                known[resource] = max(amount, known.get(resource, 0))

    async def start(self, spec: GenerationSpec) -> Receipt:
        world = self.world
        world.fault("start")
        key = spec.job, spec.generation
        fence = world.fences.get(spec.job, 0)
        if key in world.processes or spec.generation == fence:
            return Receipt.DUPLICATE
        if spec.generation < fence:
            return Receipt.STALE
        if any(
            process.alive and process.spec.job == spec.job for process in world.processes.values()
        ):
            return Receipt.BUSY
        world.fences[spec.job] = spec.generation
        world.processes[key] = Process(spec, world.now)
        world.starts.append((*key, world.now))
        world.kept.add(spec.job)
        world.check()
        world.fault("started")
        return Receipt.ACCEPTED

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        world = self.world
        world.fault("stop")
        world.fences[job] = max(generation, world.fences.get(job, 0))
        process = world.processes.get((job, generation))
        if process is None:
            return Receipt.STALE
        if process.alive and process.stop_at is None:
            process.stop_at = world.now + 1.0
            process.command = command
            process.phase = GenerationPhase.STOPPING
        world.fault("stopped")
        return Receipt.ACCEPTED

    async def list(self) -> tuple[GenerationStatus, ...]:
        return tuple(
            GenerationStatus(
                *process.key,
                process.phase,
                process.spec.placement,
                (),
                process.began,
                process.end,
                process.spec.identity,
            )
            for process in self.world.processes.values()
            if process.key not in self.world.forgotten
        )

    def reports(self) -> Sequence[Report]:
        """Return the reports of every generation that is not forgotten, again in each call."""
        results = []
        for process in self.world.processes.values():
            if process.key not in self.world.forgotten:
                results.append(
                    Started(process.spec.command, *process.key, self.world.wall_time(process.began))
                )
                if process.end is not None:
                    results.append(process.end)
        return results

    async def watch(self) -> AsyncIterator[Report]:
        for report in self.reports():
            yield report

    async def acknowledge_end(self, job: str, generation: int) -> None:
        self.world.fault("acknowledge_end")
        self.world.forgotten.add((job, generation))
        self.world.fault("forgot")

    async def delete_job_data(self, job: str) -> None:
        self.world.fault("delete_job_data")
        self.world.kept.discard(job)
        self.world.fault("discarded")

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        most: int = 65_536,
    ) -> LogChunk:
        raise KeyError(job)

    async def observe(self) -> tuple[ObservedJob, ...]:
        return ()
