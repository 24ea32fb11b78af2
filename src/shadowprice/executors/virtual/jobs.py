"""Simulated jobs: their actual behaviour, and the state of each generation over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shadowprice.core.job import MICRO, Job
from shadowprice.executors.contract import (
    Ended,
    Ending,
    GenerationPhase,
    GenerationSpec,
    Progressed,
    ServerAllocation,
    StartRefused,
)

Rate = Callable[[Sequence[ServerAllocation]], float]  # mini-batches per second for a placement


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
    """Actual behaviour of a simulated job, which may differ from its specification.

    Times are in seconds.
    """

    work: float  # mini-batches after which it exits with status 0
    rate: Rate  # on servers of speed 1
    launch_seconds: float = 0.0  # from the start command until its processes run
    start_seconds: tuple[float, ...] = (0.0,)  # from then to its first step; last one repeats
    save_seconds: float | None = None  # to save on SIGTERM; None if it ends without a checkpoint
    save_every: float | None = None  # of training between checkpoints; None if it writes none
    report_every: float | None = None  # first at its first step; None for no reports
    fails_after: Mapping[int, float] = field(default_factory=dict)
    hangs_at: float | None = None  # mini-batches after which it makes no progress

    @property
    def max_progress(self) -> float:
        """Mini-batches that it completes at most."""
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
    halted_at: float | None = None
    """When it stopped training, either to save a checkpoint or because it ended."""
    stop_ordered: float | None = None
    command: int = 0
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
        """Return the job's progress report at loop time ``now``.

        ``wall`` is the same time in seconds since 1970. A generation's first report includes how
        long the change of placement took.
        """
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
