"""Jobs as they really are, beside what they state, and what became of each of their placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shadowprice.core.job import MICRO, Job
from shadowprice.executors.contract import (
    Ended,
    Ending,
    GenerationSpec,
    Phase,
    Progressed,
    Refused,
    Share,
)

Rate = Callable[[Sequence[Share]], float]
"""Mini-batches a second by placement."""


def stated_rate(job: Job, slot_seconds: float) -> Rate:
    """Return the speed that a job states, by placement."""

    def rate(placement: Sequence[Share]) -> float:
        workers = sum(share.workers for share in placement)
        if job.required != job.work * MICRO:  # counted in worker-slots, which are rounded up
            return workers / job.step_seconds
        gain = job.gain(workers, colocated=len(placement) == 1)
        return gain / MICRO / slot_seconds

    return rate


@dataclass(frozen=True, slots=True)
class VirtualJob:
    """How a job really runs.

    Parameters
    ----------
    work : float
        Mini-batches after which it exits 0.
    rate : callable
        Mini-batches a second by placement, on servers of speed 1.
    launch_seconds : float
        From the order to start until its processes run.
    start_seconds : tuple of float
        From then until its first step, by generation; the last entry is of all further ones.
    save_seconds : float or None
        Time to write a checkpoint on SIGTERM; None if SIGTERM ends it without one.
    save_every : float or None
        Seconds of training between two checkpoints; None if it writes none meanwhile.
    report_every : float or None
        Seconds between two reports of progress, the first with its first step; None if it never
        reports.
    fails_after : mapping of int to float
        Seconds of training after which it exits 1, by generation.
    """

    work: float
    rate: Rate
    launch_seconds: float = 0.0
    start_seconds: tuple[float, ...] = (0.0,)
    save_seconds: float | None = None
    save_every: float | None = None
    report_every: float | None = None
    fails_after: Mapping[int, float] = field(default_factory=dict)

    def start_of(self, generation: int) -> float:
        """Return the seconds that a generation takes from its processes' start to a step."""
        return self.start_seconds[min(generation, len(self.start_seconds)) - 1]


@dataclass(slots=True)
class VirtualGeneration:
    """One placement of a job, and what became of it. Times are in seconds of the loop.

    Parameters
    ----------
    spec : GenerationSpec
        What was ordered.
    job : VirtualJob
        How the job really runs.
    accepted : float
        When the order was taken.
    rate : float
        Mini-batches a second.
    base : float
        Mini-batches of the checkpoint that it starts from.
    left_seconds : float or None
        Seconds that the generation before it took to save; None if it did not.
    left_at : float
        When the generation before it ended.
    """

    spec: GenerationSpec
    job: VirtualJob
    accepted: float
    rate: float
    base: float
    left_seconds: float | None = None
    left_at: float = 0.0
    phase: Phase = Phase.STARTING
    started: float | None = None
    trains: float | None = None
    """When its first step begins."""
    halted: float | None = None
    """When it stopped to train, to save or for good."""
    stop_ordered: float | None = None
    command: int = 0
    ended: float | None = None
    end: Ended | Refused | None = None
    saved: float = 0.0
    """Mini-batches of the checkpoint that it left; set at its end."""
    forgotten: bool = False
    first_report: bool = True

    @property
    def key(self) -> tuple[str, int]:
        """Job and number."""
        return self.spec.job, self.spec.generation

    @property
    def alive(self) -> bool:
        """Whether its processes may run."""
        return self.phase is not Phase.ENDED

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it runs, and if it was refused."""
        return self.end.ending if isinstance(self.end, Ended) else None

    def reached(self, now: float) -> float:
        """Return the mini-batches that are done by a moment."""
        if self.trains is None:
            return self.base
        until = now if self.halted is None else min(now, self.halted)
        return min(self.job.work, self.base + self.rate * max(0.0, until - self.trains))

    def checkpoint(self, now: float) -> float:
        """Return the mini-batches of the newest checkpoint that was written while it trained."""
        every = self.job.save_every
        if self.trains is None or every is None:
            return self.base
        until = now if self.halted is None else min(now, self.halted)
        times = max(0.0, until - self.trains) // every
        return min(self.reached(now), self.base + self.rate * times * every)

    @property
    def lost(self) -> float:
        """Mini-batches that it did and no checkpoint has."""
        return 0.0 if self.ended is None else self.reached(self.ended) - self.saved

    def report(self, now: float, wall: float) -> Progressed:
        """Return what the job reports at a moment; ``wall`` is that in seconds since 1970.

        The first report of a generation says what the change of the placement took.
        """
        metrics: dict[str, float] = {}
        if self.first_report and self.left_seconds is not None and self.started is not None:
            metrics = {
                "change_checkpoint": self.left_seconds,
                "change_away": max(0.0, self.started - self.left_at),
                "change_start": self.job.start_of(self.spec.generation),
                "change_first_step": 0.0,
            }
        self.first_report = False
        progress = int(self.reached(now)) * MICRO
        saves = self.job.save_seconds is not None or self.job.save_every is not None
        return Progressed(*self.key, progress, metrics, wall, checkpoints=saves)
