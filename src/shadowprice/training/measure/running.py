"""Running a command with some workers and servers for as long as it takes to know its speed.

It is run as the local executor runs every generation, on slices of this machine and without a
service: under a supervisor, with its log, and with nothing left behind.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    Ended,
    Ending,
    ExecutorOptions,
    GenerationSpec,
    Refused,
    ServerSlice,
    Share,
    Started,
)
from shadowprice.executors.generations.entry import Entry
from shadowprice.executors.generations.store import Store
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.training.measure import memory
from shadowprice.training.measure.fit import Speed
from shadowprice.training.measure.pace import BackwardsError, Pace, StepTime

HERE: Final = "this machine"
_LOOK: Final = 0.05
_MEMORY_EVERY: Final = 1.0
_TAIL_LINES: Final = 8

METRICS: Final = (
    "gradient_bytes",
    "minibatch_time",
    "update_time",
    "worker_bandwidth",
    "ps_bandwidth",
)
"""Metrics of a job's reports that say what the schedulers' model is made of."""


class UnmeasuredError(ShadowpriceError):
    """A job's speed was not measured, and why; the last lines of its log follow."""

    code = "unmeasured"


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be measured.

    Parameters
    ----------
    words : tuple of str
        The command.
    directory : str
        Absolute path that it runs in.
    environment : mapping of str to str
        Variables beside those of the contract.
    cores, gpus : int
        What every worker gets; 0 cores for all.
    grace : float
        Seconds between SIGTERM and SIGKILL.
    """

    words: tuple[str, ...]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    gpus: int = 0
    grace: float = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a number of workers is measured.

    Parameters
    ----------
    seconds : float
        At the latest, from its start on.
    precision : float
        As soon as the step time is known so well: half its confidence interval, as a share.
    least_seconds : float
        But not before so long after the first report.
    steps : float or None
        After so many mini-batches, however exact.
    """

    seconds: float = 60.0
    precision: float = 0.02
    least_seconds: float = 3.0
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured with some workers and servers.

    Parameters
    ----------
    workers, ps : int
        How many there were.
    step : StepTime
        How long a mini-batch takes.
    precise : bool
        Whether it is as exact as was asked for.
    memory : mapping of str to int
        Bytes that the largest worker, and parameter server, took.
    metrics : mapping of str to float
        Newest of those that the job reported and that say something of its model.
    start : float
        Seconds from the order to start to the first report, without the steps in between.
    stop : float or None
        Seconds from the order to stop to the end; None where it ended by itself.
    resumed : bool or None
        Whether it went on from the checkpoint of the number before; None where there was none to go
        on from.
    forced : bool
        Whether it had to be killed after its grace.
    finished : bool
        Whether the job was done before it was stopped.
    """

    workers: int
    ps: int
    step: StepTime
    precise: bool
    memory: Mapping[str, int]
    metrics: Mapping[str, float]
    start: float
    stop: float | None
    resumed: bool | None
    forced: bool
    finished: bool

    @property
    def speed(self) -> Speed:
        """Its speed."""
        return Speed(self.workers, self.ps, self.step.per_second)


@dataclass(slots=True)
class _Seen:
    """What is known of a generation while it runs."""

    pace: Pace = field(default_factory=Pace)
    memory: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    started: float = 0.0
    over: Ended | Refused | None = None


Tell = Callable[[str, float, StepTime | None], None]
"""Called while a number of workers is measured: what goes on, the share of its time, and how
exact it is by now."""


class Bench:
    """Runs a command, one number of workers after the other.

    Parameters
    ----------
    directory : Path
        Where the executor keeps what it needs; empty before, and to be removed afterwards.
    command : Command
        What to run.
    """

    def __init__(self, directory: Path, command: Command) -> None:
        self._directory = directory
        self._command = command
        settings = {"memory": "off"}
        self._executor = LocalExecutor(ExecutorOptions(str(directory), settings=settings))
        self._job = 0
        self._generation = 0
        self._order = 0
        self._before = 0.0
        self._seen = _Seen()
        self._follow: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path, command: Command) -> AsyncIterator[Bench]:
        """Open a bench, and leave nothing running behind."""
        bench = cls(directory, command)
        await bench._executor.open()
        cores = len(os.sched_getaffinity(0))
        capacity = {"cpu": 1000 * cores, "gpu": 1000 * bench._command.gpus * 1024}
        try:
            await bench._executor.configure([ServerSlice(HERE, capacity)])
            bench._follow = asyncio.create_task(bench._watch())
            yield bench
        finally:
            await bench._executor.close()
            if bench._follow is not None:
                await bench._follow

    async def _watch(self) -> None:
        async for report in self._executor.watch():
            if not isinstance(report, Started | Ended | Refused):
                continue
            if (report.job, report.generation) != (self._name, self._generation):
                continue
            if isinstance(report, Started):
                self._seen.started = report.at
            else:
                self._seen.over = report

    @property
    def _name(self) -> str:
        return f"profile-{self._job}"

    def begin_anew(self) -> None:
        """Let the next number of workers begin at the job's beginning."""
        self._job += 1
        self._generation = 0
        self._before = 0.0

    async def measure(self, workers: int, ps: int, limits: Limits, tell: Tell) -> Point:
        """Run with so many workers and servers until the speed is known, and stop.

        It goes on from the checkpoint of the number before, as a job does that is moved.

        Raises
        ------
        UnmeasuredError
            If it dies, is never heard of, reports backwards, or is done too early.
        """
        self._generation += 1
        self._order += 1
        self._seen = seen = _Seen()
        spec = self._spec(workers, ps)
        entry = Entry(
            spec.job,
            spec.generation,
            Store(self._directory).generation(spec.job, spec.generation),
        )
        ordered = time.time()
        await self._executor.start(spec)
        stopped: float | None = None
        try:
            await self._until_known(entry, ordered, limits, tell)
            if seen.over is None:
                tell("stopping", 1.0, seen.pace.step_time())
                stopped = await self._stop(spec, self._command.grace)
        finally:
            if seen.over is None:
                await self._stop(spec, 0.0)
            await self._executor.forget(spec.job, spec.generation)
        return self._point(workers, ps, limits, ordered, stopped)

    def _spec(self, workers: int, ps: int) -> GenerationSpec:
        command = self._command
        demand = {"cpu": 1000 * command.cores, "gpu": 1000 * command.gpus}
        return GenerationSpec(
            command=self._order,
            job=self._name,
            generation=self._generation,
            placement=(Share(HERE, workers, ps),),
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

    async def _until_known(self, entry: Entry, ordered: float, limits: Limits, tell: Tell) -> None:
        """Read reports until the speed is known well enough, time is up, or it has ended."""
        seen = self._seen
        execution = ""
        weighed = 0.0
        while seen.over is None:
            await asyncio.sleep(_LOOK)
            now = time.time()
            report = entry.new_progress()
            if report is not None:
                try:
                    seen.pace.add(report.at, report.progress / 1e6)
                except BackwardsError as error:
                    raise UnmeasuredError(str(error)) from None
                seen.metrics |= {n: v for n, v in report.metrics.items() if n in METRICS}
            if not execution and seen.started:
                execution = entry.generation.plan().get("execution", "")
            if execution and now - weighed > _MEMORY_EVERY:
                weighed = now
                for role, size in (await asyncio.to_thread(memory.by_role, execution)).items():
                    seen.memory[role] = max(seen.memory.get(role, 0), size)
            known = seen.pace.step_time()
            elapsed = now - ordered
            tell(_doing(seen), min(1.0, elapsed / limits.seconds), known)
            if elapsed > limits.seconds or self._known(known, now, limits):
                return

    def _known(self, step: StepTime | None, now: float, limits: Limits) -> bool:
        first = self._seen.pace.first
        if step is None or first is None:
            return False
        if limits.steps is not None and step.minibatches >= limits.steps:
            return True
        return step.error <= limits.precision and now - first[0] >= limits.least_seconds

    async def _stop(self, spec: GenerationSpec, grace: float) -> float:
        """Stop a generation, wait for its end, and return how long that took."""
        self._order += 1
        began = time.monotonic()
        await self._executor.stop(self._order, spec.job, spec.generation, grace)
        while self._seen.over is None:
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    def _point(
        self, workers: int, ps: int, limits: Limits, ordered: float, stopped: float | None
    ) -> Point:
        seen = self._seen
        over = seen.over
        if isinstance(over, Refused):
            raise UnmeasuredError(f"it could not start: {over.reason}")
        assert over is not None
        finished = over.ending is Ending.DONE
        if over.ending not in {Ending.DONE, Ending.STOPPED}:
            raise UnmeasuredError(_with_tail(over.reason, over.tail))
        step, first = seen.pace.step_time(), seen.pace.first
        if step is None or first is None:
            raise UnmeasuredError(_why_unknown(seen.pace, limits, over))
        resumed = self._before <= first[1] if self._before > 0.0 else None
        steps = first[1] - self._before if resumed else first[1]
        self._before = seen.pace.done
        if finished:  # nothing is left of it to go on with
            self.begin_anew()
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
            forced=over.forced,
            finished=finished,
        )


def _doing(seen: _Seen) -> str:
    if not seen.started:
        return "starting"
    return "waiting for its first report" if not seen.pace.reports else "measuring"


def _why_unknown(pace: Pace, limits: Limits, over: Ended) -> str:
    """Return why there is no step time of a generation that did not fail."""
    if over.ending is Ending.DONE:
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
    limits: Limits,
    tell: Callable[[int, str, float, StepTime | None], None],
) -> tuple[list[Point], dict[tuple[int, int], str]]:
    """Measure a command with several numbers of workers and servers.

    Parameters
    ----------
    directory : Path
        As for `Bench`.
    command : Command
        What to run.
    counts : list of (workers, servers)
        In this order.
    limits : Limits
        Of each.
    tell : callable
        As `Tell`, with the place among ``counts`` before.

    Returns
    -------
    points : list of Point
        Those that were measured.
    unmeasured : mapping of (workers, servers) to str
        Why others were not.
    """
    points: list[Point] = []
    unmeasured: dict[tuple[int, int], str] = {}
    async with Bench.opened(directory, command) as bench:
        for place, (workers, ps) in enumerate(counts):

            def told(what: str, share: float, step: StepTime | None, at: int = place) -> None:
                tell(at, what, share, step)

            try:
                points.append(await bench.measure(workers, ps, limits, told))
            except UnmeasuredError as error:
                unmeasured[workers, ps] = str(error)
                if not points:  # what never works is not tried with more
                    break
                bench.begin_anew()
    return points, unmeasured
