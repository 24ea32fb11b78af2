"""Runs of a command with some workers and servers until its speed is known.

A run works as in the local executor, on slices of this machine and without a service: under a
supervisor, with a log, and without leaving anything behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.program import Program
from shadowprice.executors import contract
from shadowprice.executors.generations.registry import TrackedGeneration
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.executors.supervision.children import find_by_execution_id, read_environ
from shadowprice.profiling.fit import BackwardsError, Pace, Speed, StepTime

HERE: Final = "this machine"
_POLL_SECONDS: Final = 0.05
_MEMORY_POLL_SECONDS: Final = 1.0
_TAIL_LINES: Final = 8

METRICS: Final = (
    "gradient_bytes",
    "minibatch_time",
    "update_time",
    "worker_bandwidth",
    "ps_bandwidth",
)
"""Reported metrics that are parameters of the schedulers' model of a job."""

# Called during a measurement with the activity, the elapsed share of its time, and the estimate.
ProgressCallback = Callable[[str, float, StepTime | None], None]


def memory_by_role(execution: str) -> dict[str, int]:
    """Return the memory in bytes that the largest process of each role needs now.

    It is the larger of two sizes: the proportional set size of the process with all its children,
    which control groups limit, and the largest total of private data (``VmData``) of one of them,
    which ``RLIMIT_DATA`` limits.
    """
    taken: Counter[tuple[str, str]] = Counter()
    mapped: Counter[tuple[str, str]] = Counter()
    for process in find_by_execution_id(execution):
        with contextlib.suppress(OSError, ValueError, IndexError):
            environment = read_environ(process)
            role = environment.get("SHADOWPRICE_ROLE", "worker")
            rank = environment.get("SHADOWPRICE_RANK", "0")
            taken[role, rank] += _bytes(process, "smaps_rollup", b"Pss")
            private = _bytes(process, "status", b"VmData")
            mapped[role, rank] = max(mapped[role, rank], private)
    largest: dict[str, int] = {}
    for (role, rank), size in taken.items():
        largest[role] = max(largest.get(role, 0), size, mapped[role, rank])
    return largest


def _bytes(process: int, file: str, name: bytes) -> int:
    """Return, in bytes, a size that a line of a file in /proc states in KiB."""
    content = Path(f"/proc/{process}/{file}").read_bytes()
    return int(content.partition(b"\n%b:" % name)[2].split()[0]) * 1024


class UnmeasuredError(ShadowpriceError):
    """A job's speed could not be measured; the message has the reason and the end of its log."""

    code = "unmeasured"


@dataclass(frozen=True, slots=True)
class Command:
    """Command to measure."""

    words: tuple[str, ...]
    directory: str  # absolute
    environment: Mapping[str, str] = field(default_factory=dict)  # in addition to the contract's
    cores: int = 0  # of every worker; 0 for all
    gpus: int = 0  # of every worker
    grace: float = 30.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class MeasurementLimits:
    """Conditions that end the measurement of a number of workers."""

    seconds: float = 60.0  # maximum time since its start
    precision: float = 0.02  # sufficient half-width of the confidence interval, over the step time
    min_seconds: float = 3.0  # minimum time since the first report
    steps: float | None = None  # sufficient number of mini-batches, whatever the precision


@dataclass(frozen=True, slots=True)
class Point:
    """Measurement with some workers and servers."""

    workers: int
    ps: int
    step: StepTime
    precise: bool  # the step time has the requested precision
    memory: Mapping[str, int]  # bytes of the largest process of each role
    metrics: Mapping[str, float]  # newest reported values of `METRICS`
    start: float  # seconds from the start command to the first report, without the steps in between
    stop: float | None  # seconds from the stop command to the end; None if the job ended by itself
    resumed: bool | None  # from the previous checkpoint; None without one
    forced: bool  # killed after its grace period
    finished: bool  # done before it was stopped

    @property
    def speed(self) -> Speed:
        """Measured speed."""
        return Speed(self.workers, self.ps, self.step.per_second)


@dataclass(slots=True)
class _Observation:
    pace: Pace = field(default_factory=Pace)
    memory: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    started: bool = False
    over: contract.Ended | contract.StartRefused | None = None

    def read(self, entry: TrackedGeneration) -> None:
        """Read the generation's state."""
        entry.read()
        status = entry.to_status()
        self.started, self.over = status.started is not None, status.end


class Bench:
    """Runs a command with one number of workers after the other, in an empty directory."""

    def __init__(self, directory: Path, command: Command) -> None:
        self._directory = directory
        self._command = command
        options = contract.ExecutorOptions(str(directory), settings={"memory": "off"})
        # Generations end when this pipe closes, so a killed profiler leaves nothing running.
        self._lifeline = os.pipe()
        self._executor = LocalExecutor(options, self._lifeline[0])
        self._job = 0
        self._generation = 0
        self._order = 0
        self._previous_done = 0.0

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path, command: Command) -> AsyncIterator[Bench]:
        """Open a bench; at the end, stop everything that it runs."""
        bench = cls(directory, command)
        cores = len(os.sched_getaffinity(0))
        capacity = {"cpu": 1000 * cores, "gpu": 1000 * bench._command.gpus * 1024}
        try:
            await bench._executor.open()
            await bench._executor.set_servers([contract.ServerInfo(HERE, capacity)])
            yield bench
        finally:
            await bench._executor.close()
            for descriptor in bench._lifeline:
                os.close(descriptor)

    @property
    def _name(self) -> str:
        return f"profile-{self._job}"

    def reset_job(self) -> None:
        """Start the next measurement from the job's beginning, as a new job."""
        self._job += 1
        self._generation = 0
        self._previous_done = 0.0

    async def measure(
        self, workers: int, ps: int, limits: MeasurementLimits, on_progress: ProgressCallback
    ) -> Point:
        """Run until the speed is known, then stop; it resumes from the previous measurement."""
        self._generation += 1
        self._order += 1
        seen = _Observation()
        spec = self._spec(workers, ps)
        entry = TrackedGeneration(
            spec.job,
            spec.generation,
            GenerationStore(self._directory).generation(spec.job, spec.generation),
        )
        ordered = time.time()
        await self._executor.start(spec)
        stopped: float | None = None
        try:
            await _follow_until_known(entry, seen, ordered, limits, on_progress)
            if seen.over is None:
                on_progress("stopping", 1.0, seen.pace.step_time())
                stopped = await self._stop(entry, seen, self._command.grace)
        finally:
            if seen.over is None:
                await self._stop(entry, seen, 0.0)
            await self._executor.acknowledge_end(spec.job, spec.generation)
        return self._point(seen, workers, ps, limits, ordered, stopped)

    def _spec(self, workers: int, ps: int) -> contract.GenerationSpec:
        command = self._command
        demand = {"cpu": 1000 * command.cores, "gpu": 1000 * command.gpus}
        return contract.GenerationSpec(
            command=self._order,
            job=self._name,
            generation=self._generation,
            placement=(contract.ServerAllocation(HERE, workers, ps),),
            program=Program(
                command.words,
                dict(command.environment),
                command.directory,
                grace=command.grace,
            ),
            worker=demand,
            ps={"cpu": demand["cpu"]},
            slot_end=time.time() + 86_400.0,
        )

    async def _stop(self, entry: TrackedGeneration, seen: _Observation, grace: float) -> float:
        """Stop a generation; return the seconds that it took.

        It creates no asyncio task, because Ctrl-C cancels tasks.
        """
        self._order += 1
        began = time.monotonic()
        await self._executor.stop(self._order, entry.job, entry.number, grace)
        while seen.over is None:
            await asyncio.sleep(0.01)
            seen.read(entry)
        return time.monotonic() - began

    def _point(
        self,
        seen: _Observation,
        workers: int,
        ps: int,
        limits: MeasurementLimits,
        ordered: float,
        stopped: float | None,
    ) -> Point:
        end = seen.over
        if isinstance(end, contract.StartRefused):
            raise UnmeasuredError(f"it could not start: {end.reason}")
        assert end is not None
        finished = end.ending is contract.Ending.DONE
        if end.ending not in {contract.Ending.DONE, contract.Ending.STOPPED}:
            raise UnmeasuredError(_with_tail(end.reason, end.tail))
        step, first = seen.pace.step_time(), seen.pace.first
        if step is None or first is None:
            raise UnmeasuredError(_explain_missing_time(seen.pace, limits, end))
        resumed = self._previous_done <= first[1] if self._previous_done > 0.0 else None
        steps = first[1] - self._previous_done if resumed else first[1]
        self._previous_done = seen.pace.done
        if finished:  # the next measurement can't resume a finished job
            self.reset_job()
        return Point(
            workers=workers,
            ps=ps,
            step=step,
            precise=step.error <= limits.precision,
            memory=dict(seen.memory),
            metrics=dict(seen.metrics),
            start=max(0.0, first[0] - ordered - steps * step.seconds),
            stop=stopped,
            resumed=resumed,
            forced=end.forced,
            finished=finished,
        )


async def _follow_until_known(
    entry: TrackedGeneration,
    seen: _Observation,
    ordered: float,
    limits: MeasurementLimits,
    on_progress: ProgressCallback,
) -> None:
    """Read reports until the speed is known, time is up, or the job has ended."""
    execution = ""
    memory_read_at = 0.0
    while seen.over is None:
        await asyncio.sleep(_POLL_SECONDS)
        now = time.time()
        seen.read(entry)  # before the progress, so that the last report precedes the end
        report = entry.poll_progress()
        if report is not None:
            try:
                seen.pace.add(report.at, report.progress / 1e6)  # millionths of a mini-batch
            except BackwardsError as error:
                raise UnmeasuredError(str(error)) from None
            seen.metrics |= {n: v for n, v in report.metrics.items() if n in METRICS}
        if not execution and seen.started:
            execution = entry.generation.plan().get("execution", "")
        if execution and now - memory_read_at > _MEMORY_POLL_SECONDS:
            memory_read_at = now
            for role, size in (await asyncio.to_thread(memory_by_role, execution)).items():
                seen.memory[role] = max(seen.memory.get(role, 0), size)
        estimate = seen.pace.step_time()
        elapsed = now - ordered
        on_progress(_activity(seen), min(1.0, elapsed / limits.seconds), estimate)
        if elapsed > limits.seconds or _is_measured(seen.pace, estimate, now, limits):
            return


def _is_measured(pace: Pace, step: StepTime | None, now: float, limits: MeasurementLimits) -> bool:
    if step is None or pace.first is None:
        return False
    if limits.steps is not None and step.minibatches >= limits.steps:
        return True
    return step.error <= limits.precision and now - pace.first[0] >= limits.min_seconds


def _activity(seen: _Observation) -> str:
    if not seen.started:
        return "starting"
    return "waiting for its first report" if not seen.pace.reports else "measuring"


def _explain_missing_time(pace: Pace, limits: MeasurementLimits, over: contract.Ended) -> str:
    """Return why a generation that did not fail has no step time."""
    if over.ending is contract.Ending.DONE:
        what = f"it was done after {pace.done:g} mini-batches, {pace.reports} reports"
        return _with_tail(f"{what}: too few; let it train longer, or report more often", over.tail)
    if not pace.reports:
        what = (
            f"it never reported within {limits.seconds:g} s; worker 0 is to call "
            "shadowprice.jobs.report(mini-batches done), see docs/executors.md"
        )
        return _with_tail(what, over.tail)
    return _with_tail(
        f"{pace.reports} reports within {limits.seconds:g} s are too few; report more often, or "
        "raise --time",
        over.tail,
    )


def _with_tail(what: str, tail: tuple[str, ...]) -> str:
    return "\n".join((what, *(f"  | {line}" for line in tail[-_TAIL_LINES:])))


async def measure_all(
    directory: Path,
    command: Command,
    counts: list[tuple[int, int]],
    limits: MeasurementLimits,
    on_progress: Callable[[int, str, float, StepTime | None], None],
) -> tuple[list[Point], dict[tuple[int, int], str]]:
    """Measure a command with several numbers of (workers, servers), in this order.

    ``on_progress`` is a `ProgressCallback` with the index in ``counts`` as first argument. Returns
    the measurements, and why the others failed.
    """
    points: list[Point] = []
    unmeasured: dict[tuple[int, int], str] = {}
    async with Bench.opened(directory, command) as bench:
        for index, (workers, ps) in enumerate(counts):
            try:
                on_step = partial(on_progress, index)
                points.append(await bench.measure(workers, ps, limits, on_step))
            except UnmeasuredError as error:
                unmeasured[workers, ps] = str(error)
                if not points:  # a command that has never worked isn't tried with more workers
                    break
                bench.reset_job()
    return points, unmeasured
