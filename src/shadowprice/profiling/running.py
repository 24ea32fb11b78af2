"""Runs of a command with given numbers of workers and parameter servers, to measure its speed.

A run uses the local executor on this machine, without a service. It leaves nothing behind.
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

from shadowprice.core.amounts import MILLI
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.program import DEFAULT_GRACE_SECONDS, Program
from shadowprice.executors import contract
from shadowprice.executors.generations.registry import TrackedGeneration
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.executors.supervision.children import find_by_execution_id, read_environ
from shadowprice.profiling.fit import BackwardsError, Pace, Speed, StepTime

HERE: Final = "this machine"  # name of the executor's only server
_POLL_SECONDS: Final = 0.05
_MEMORY_POLL_SECONDS: Final = 1.0  # reading a process's memory maps is slow
_TAIL_LINES: Final = 8  # lines at the end of the log that an error shows
_MAX_WORKERS: Final = 1024  # above the limit of the command `profile`

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
    """Return the memory in bytes that the largest worker, and the largest server, needs now.

    This is the larger of two sizes. The first is the proportional set size of the process with all
    its children, which control groups limit. The second is the largest total of private data
    (``VmData``) of one of them, which ``RLIMIT_DATA`` limits.
    """
    taken: Counter[tuple[str, str]] = Counter()
    mapped: Counter[tuple[str, str]] = Counter()
    for process in find_by_execution_id(execution):
        # A process may end between the search and here.
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
    directory: str  # absolute path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those that every executor sets."""
    cores: int = 0  # per worker; 0 for all
    gpus: int = 0  # per worker
    grace: float = DEFAULT_GRACE_SECONDS  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class MeasurementLimits:
    """Conditions that end the measurement of a number of workers."""

    seconds: float = 60.0  # maximum time since the start
    precision: float = 0.02
    """Sufficient precision: half-width of the confidence interval, divided by the step time."""
    min_seconds: float = 3.0  # minimum time since the first report, to reach this precision
    steps: float | None = None  # sufficient number of mini-batches, whatever the precision


@dataclass(frozen=True, slots=True)
class Point:
    """Measurement with a number of workers and servers."""

    workers: int
    ps: int
    step: StepTime
    precise: bool  # the step time has the requested precision
    memory: Mapping[str, int]  # bytes of the largest process of each role
    metrics: Mapping[str, float]  # newest reported values of `METRICS`
    start: float  # seconds from the start command to the first report, minus the steps in between
    stop: float | None  # seconds from the stop command to the end; None if the job ended by itself
    resumed: bool | None  # whether it resumed from a checkpoint; None if there was none
    forced: bool  # whether it was killed after its grace period
    finished: bool  # whether the job ended before it was stopped

    @property
    def speed(self) -> Speed:
        """Measured speed."""
        return Speed(self.workers, self.ps, self.step.per_second)


@dataclass(slots=True)
class _Observation:
    """Reports and state of the generation that is measured now."""

    pace: Pace = field(default_factory=Pace)
    memory: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    started: bool = False
    end: contract.Ended | contract.StartRefused | None = None  # None while it runs

    def read(self, entry: TrackedGeneration) -> None:
        entry.read()
        status = entry.to_status()
        self.started, self.end = status.started is not None, status.end


class Bench:
    """Runs a command with several numbers of workers in turn, as generations of one job.

    ``directory`` is empty, and holds the executor's files.
    """

    def __init__(self, directory: Path, command: Command) -> None:
        self._directory = directory
        self._command = command
        # Memory is measured here, so it isn't limited.
        options = contract.ExecutorOptions(str(directory), settings={"memory": "off"})
        # Generations end when this pipe closes, so a killed profiler leaves nothing running.
        self._lifeline = os.pipe()
        self._executor = LocalExecutor(options, self._lifeline[0])
        self._job = 0
        self._generation = 0
        self._command_number = 0
        self._previous_done = 0.0  # progress of the previous generation, in mini-batches

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path, command: Command) -> AsyncIterator[Bench]:
        """Open a bench; at the end, stop everything that it runs."""
        bench = cls(directory, command)
        cores = len(os.sched_getaffinity(0))
        # More GPUs than any number of workers needs: only the machine's own devices are a limit.
        capacity = {"cpu": MILLI * cores, "gpu": MILLI * bench._command.gpus * _MAX_WORKERS}
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
        """Run the job, from its last checkpoint if it has one, until the speed is known; stop it.

        Raises `UnmeasuredError`.
        """
        self._generation += 1
        self._command_number += 1
        seen = _Observation()
        spec = self._spec(workers, ps)
        entry = TrackedGeneration(
            spec.job,
            spec.generation,
            GenerationStore(self._directory).generation(spec.job, spec.generation),
        )
        commanded = time.time()
        await self._executor.start(spec)
        stop_seconds: float | None = None
        try:
            await _follow_until_known(entry, seen, commanded, limits, on_progress)
            if seen.end is None:
                on_progress("stopping", 1.0, seen.pace.step_time())
                stop_seconds = await self._stop(entry, seen, self._command.grace)
        finally:
            if seen.end is None:  # an error or Ctrl-C: kill it
                await self._stop(entry, seen, 0.0)
            await self._executor.acknowledge_end(spec.job, spec.generation)
        return self._point(seen, workers, ps, limits, commanded, stop_seconds)

    def _spec(self, workers: int, ps: int) -> contract.GenerationSpec:
        command = self._command
        demand = {"cpu": MILLI * command.cores, "gpu": MILLI * command.gpus}
        return contract.GenerationSpec(
            command=self._command_number,
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
            slot_end=time.time() + 86_400.0,  # late enough: a measurement isn't part of any slot
        )

    async def _stop(self, entry: TrackedGeneration, seen: _Observation, grace: float) -> float:
        """Stop a generation; return the seconds that it took.

        It creates no asyncio task, because Ctrl-C cancels tasks.
        """
        self._command_number += 1
        stopped_at = time.monotonic()
        await self._executor.stop(self._command_number, entry.job, entry.number, grace)
        while seen.end is None:
            await asyncio.sleep(0.01)
            seen.read(entry)
        return time.monotonic() - stopped_at

    def _point(
        self,
        seen: _Observation,
        workers: int,
        ps: int,
        limits: MeasurementLimits,
        commanded: float,
        stop_seconds: float | None,
    ) -> Point:
        end = seen.end
        if isinstance(end, contract.StartRefused):
            raise UnmeasuredError(f"it could not start: {end.reason}")
        assert end is not None
        finished = end.ending is contract.Ending.DONE
        if end.ending not in {contract.Ending.DONE, contract.Ending.STOPPED}:
            raise UnmeasuredError(_with_tail(end.reason, end.tail))
        step, first = seen.pace.step_time(), seen.pace.first
        if step is None or first is None:
            raise UnmeasuredError(_explain_missing_time(seen.pace, limits, end))
        # A job that starts from the beginning first reports less than it did before.
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
            start=max(0.0, first[0] - commanded - steps * step.seconds),
            stop=stop_seconds,
            resumed=resumed,
            forced=end.forced,
            finished=finished,
        )


async def _follow_until_known(
    entry: TrackedGeneration,
    seen: _Observation,
    commanded: float,
    limits: MeasurementLimits,
    on_progress: ProgressCallback,
) -> None:
    """Read reports until the speed is known, time is up, or the job has ended."""
    execution = ""
    memory_read_at = 0.0
    while seen.end is None:
        await asyncio.sleep(_POLL_SECONDS)
        now = time.time()
        seen.read(entry)  # before the progress, so that no report before the end is missed
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
        elapsed = now - commanded
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


def _explain_missing_time(pace: Pace, limits: MeasurementLimits, end: contract.Ended) -> str:
    """Return why a generation that did not fail has no step time."""
    if end.ending is contract.Ending.DONE:
        what = f"it ended after {pace.done:g} mini-batches and {pace.reports} reports"
        return _with_tail(f"{what}: too few; let it train longer, or report more often", end.tail)
    if not pace.reports:
        what = (
            f"it never reported within {limits.seconds:g} s; worker 0 must call "
            "shadowprice.jobs.report(mini-batches done), see docs/executors.md"
        )
        return _with_tail(what, end.tail)
    return _with_tail(
        f"{pace.reports} reports within {limits.seconds:g} s are too few; report more often, or "
        "raise --time",
        end.tail,
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
