"""Certificates: an upper bound on the total utility, and a schedule close to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shadowprice.certificate.bound import Bound, Stop, never, upper_bound
from shadowprice.certificate.completion_time import CompletionBound, completion_bound
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.certificate.rounding import best_schedules
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger
from shadowprice.core.schedule import Schedule
from shadowprice.core.time_limit import Clock
from shadowprice.policies.pricing.posted import PostedPrices

_PROVING: Final = 0.5  # share of the time for the bound, unless it converges earlier
_BEGINNING: Final = 0.4
"""Share of the remaining time for runs of policies that give initial schedules."""

Starts = Callable[[Stop], Iterable[Mapping[str, Schedule]]]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Distance of the best known schedule from the optimum."""

    bound: float  # upper bound on the total utility
    best: float  # total utility of the best schedule found; 0 if none was searched for
    seconds: float  # elapsed time
    processor: float  # processor time; less than ``seconds`` if other processes use the machine
    rounds: int  # number of trials of prices over all jobs
    settled: bool  # whether the bound is that of the relaxation, within the tolerance
    prices: PostedPrices  # prices that prove the bound
    schedules: Mapping[str, Schedule]  # best schedule found, by job
    completion: CompletionBound | None
    """Least mean completion time of the jobs that state no utility; None without such jobs."""

    @property
    def gap(self) -> float:
        """Relative distance of best and bound, from 0 to 1."""
        return max(0.0, self.bound - self.best) / self.bound if self.bound > 0 else 0.0

    def record(self) -> dict[str, object]:
        """Return the certificate as ``bound -o json`` prints it."""
        return {
            "bound": self.bound,
            "best": self.best,
            "gap": self.gap,
            "seconds": self.seconds,
            "processor_seconds": self.processor,
            "rounds": self.rounds,
            "exact_pricing": True,
            "settled": self.settled,
            "completion": None
            if self.completion is None
            else {"jobs": len(self.completion.jobs), "mean_slots": self.completion.mean_slots},
        }


def _emit_nothing(bound: float, best: float) -> None:
    """Ignore a report."""
    del bound, best


def certify(
    cluster: Cluster,
    jobs: Sequence[Job],
    until: int | None = None,
    *,
    gap: float = 0.01,
    seconds: float = 600.0,
    clock: Clock = Clock.WALL,
    schedules: bool = True,
    starts: Starts | None = None,
    stop: Stop = never,
    report: Callable[[float, float], None] | None = None,
    seed: int = 0,
) -> Certificate:
    """Bound the total utility of any schedule, and search for a schedule that comes close.

    All servers are up. The search stops at the relative distance ``gap`` of bound and best, after
    ``seconds`` of ``clock``, or when ``stop`` returns True; the bound is valid in any case. Without
    ``schedules`` only the bound is computed. ``starts`` yields initial schedules by name of the
    job, one mapping per run of a policy, and is given a stop condition. ``report`` is called with
    bound and best (0 at first) whenever either improves. Raises `InputError` if the gap is
    negative, or a job is a bag of tasks.
    """
    if not 0 <= gap < math.inf:
        raise InputError(
            Fault("gap", f"must be 0 or more, not {gap:g}", "write a share, such as 1%")
        )
    now = clock.now
    started, wall, processor = now(), time.perf_counter(), time.process_time()
    relaxation = Relaxation(cluster, jobs, until)
    emit = report or _emit_nothing

    def spent() -> float:
        return (now() - started) / max(seconds, 1e-9)

    def ended() -> bool:
        return stop() or spent() >= 1.0

    proved: Bound = upper_bound(
        relaxation,
        # The bound's distance from the optimum adds to that of the schedules.
        tolerance=gap / 10 if schedules else gap,
        deadline=started + seconds * (_PROVING if schedules else 1.0),
        now=now,
        stop=stop,
        report=lambda bound: emit(bound.value, 0.0),
    )
    best, placed = 0.0, {}
    if schedules:
        share_spent = spent()
        rows = {job.name: index for index, job in enumerate(jobs)}

        def given() -> Iterator[Mapping[int, Schedule]]:
            limit = share_spent + _BEGINNING * (1.0 - share_spent)
            for by_name in starts(lambda: stop() or spent() >= limit) if starts else ():
                yield {rows[name]: schedule for name, schedule in by_name.items()}

        rounded = best_schedules(
            cluster,
            relaxation,
            proved,
            gap=gap,
            stop=ended,
            spent=spent,
            report=lambda value: emit(proved.value, value),
            starts=given(),
            seed=seed,
        )
        best = rounded.utility
        placed = {jobs[index].name: plan for index, plan in rounded.schedules.items()}
        _check(cluster, relaxation, rounded.schedules)
    prices = PostedPrices(relaxation.start, proved.prices, relaxation.limits)
    return Certificate(
        # Rounding errors may put the bound below a schedule that meets it.
        max(proved.value, best),
        best,
        time.perf_counter() - wall,
        time.process_time() - processor,
        proved.rounds,
        proved.settled,
        prices,
        placed,
        completion_bound(relaxation),
    )


def _check(cluster: Cluster, relaxation: Relaxation, schedules: Mapping[int, Schedule]) -> None:
    """Reserve all schedules in a ledger, which refuses to overbook."""
    ends = (schedule.completion + 1 for schedule in schedules.values())
    slots = max(ends, default=relaxation.start + 1) - relaxation.start
    ledger = Ledger(cluster, slots, relaxation.start)
    for index, schedule in schedules.items():
        job = relaxation.members[index]
        ledger.reserve(job.name, schedule, job.worker, job.ps)
