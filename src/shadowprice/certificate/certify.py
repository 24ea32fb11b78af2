"""Certificates: an upper bound on the total utility, and a schedule close to it."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.certificate.bound import Bound, Stop, emit_nothing, never, upper_bound
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.certificate.rounding import best_schedules
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger
from shadowprice.core.schedule import Schedule
from shadowprice.core.time_limit import Clock
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.policies.pricing.posted import PostedPrices

_MAX_SEARCHED_SLOTS: Final = 64  # a search over more slots takes long and raises the bound little
_ROUNDING: Final = 1e-9  # relative error of volumes and of their sums; subtracted from the bound


@dataclass(frozen=True, slots=True)
class CompletionBound:
    """Lower bound on the mean completion time of the jobs that state no utility."""

    jobs: tuple[str, ...]  # names of these jobs, without jobs that don't fit on the cluster
    mean_slots: float  # the bound, in slots from the submission to the end of the completion slot


def completion_bound(relaxation: Relaxation) -> CompletionBound | None:
    """Bound the mean completion time of the jobs that state no utility; None without such jobs.

    In any schedule, the k-th completion is no earlier than the k-th completion in each of these
    relaxed problems:

    - Every job runs alone at its maximum speed from its arrival.
    - Only one limit of one pool is in force (`policies.pricing.posted`), and it can be divided
      among jobs at will. A job's volume is the smallest share of the limit, times slots, that
      completes the job. Shortest remaining volume first completes the most jobs by any time
      (Schrage, *A proof of the optimality of the shortest remaining processing time discipline*,
      Operations Research 16, 1968).

    The bound is the mean over k of the latest of these completions, minus the mean submission time.
    Jobs with a utility are left out. This frees capacity, so the bound holds for mixed workloads.
    """
    rows = [
        index
        for index, job in enumerate(relaxation.members)
        if job.has_default_utility and len(relaxation.choices(index)[0])
    ]
    if not rows:
        return None
    jobs = [relaxation.members[index] for index in rows]
    arrivals = np.array([job.arrival for job in jobs])
    alone = [
        -(-job.required // int(relaxation.choices(index)[1].max()))
        for index, job in zip(rows, jobs, strict=True)
    ]
    ends = np.sort(arrivals + np.array(alone))
    for pool, limit in np.argwhere(relaxation.counted).tolist():
        volumes = [_min_volume(relaxation, index, pool, limit) for index in rows]
        fluid_ends = shortest_remaining_first(arrivals.tolist(), volumes)
        # A job completes at the end of a slot. A rounding error must not add a slot.
        slot_ends = np.ceil(np.array(fluid_ends) * (1 - _ROUNDING) - _ROUNDING).astype(np.int64)
        ends = np.maximum(ends, np.sort(slot_ends))
    submitted = arrivals - np.array([job.before_arrival for job in jobs])
    mean = float(ends.mean() - submitted.mean())
    return CompletionBound(tuple(job.name for job in jobs), mean)


def _min_volume(relaxation: Relaxation, index: int, pool: int, limit: int) -> float:
    """Return a job's volume: the smallest share of a limit, times slots, that completes it."""
    _, gains, use = relaxation.choices(index)
    required, share = relaxation.members[index].required, use[:, pool, limit]
    slots = -(-required // int(gains.min()))
    if slots > _MAX_SEARCHED_SLOTS:
        return required * float((share / gains).min())
    # A job occupies whole slots, and a short job may waste part of its last slot.
    cost = np.repeat(share[None], slots, axis=0)
    return best_schedule(cost, gains, required, np.zeros(slots)).cost


def shortest_remaining_first(arrivals: Sequence[int], volumes: Sequence[float]) -> list[float]:
    """Return when jobs end on a machine of speed 1 that runs the least remaining volume first."""
    ends = [0.0] * len(arrivals)
    waiting: list[tuple[float, int]] = []
    clock = 0.0
    order = sorted(range(len(arrivals)), key=lambda index: arrivals[index])
    for position, index in enumerate(order):
        clock = max(clock, float(arrivals[index]))
        heapq.heappush(waiting, (volumes[index], index))
        following = order[position + 1 : position + 2]
        until = float(arrivals[following[0]]) if following else math.inf
        while waiting and clock < until:
            remaining, running = heapq.heappop(waiting)
            if clock + remaining > until:
                heapq.heappush(waiting, (remaining - (until - clock), running))
                clock = until
            else:
                clock += remaining
                ends[running] = clock
    return ends


_BOUND_TIME_SHARE: Final = 0.5  # maximum share of the time for the bound
_INITIAL_TIME_SHARE: Final = 0.4
"""Share of the remaining time for runs of policies, whose plans are the initial schedules."""

Starts = Callable[[Stop], Iterable[Mapping[str, Schedule]]]
"""Yields initial schedules by name of the job, one mapping per run of a policy, until stopped."""


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
    """Bound on the mean completion time of jobs that state no utility; None without such jobs."""

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

    All servers are up, and nothing runs in slot ``until`` or later. The search stops at the
    relative distance ``gap`` of bound and best, after ``seconds`` of ``clock``, or when ``stop``
    returns True; the bound is valid in any case. ``report`` is called with bound and best whenever
    either improves. Raises `InputError` if the gap is negative, or a job is a bag of tasks.
    """
    if not 0 <= gap < math.inf:
        raise InputError(
            Fault("gap", f"must be 0 or more, not {gap:g}", "write a share, such as 1%")
        )
    now = clock.now
    started, wall, processor = now(), time.perf_counter(), time.process_time()
    relaxation = Relaxation(cluster, jobs, until)
    emit = report or emit_nothing

    def spent() -> float:
        return (now() - started) / max(seconds, 1e-9)

    def must_stop() -> bool:
        return stop() or spent() >= 1.0

    proved: Bound = upper_bound(
        relaxation,
        # The bound's distance from the optimum adds to that of the schedules.
        tolerance=gap / 10 if schedules else gap,
        deadline=started + seconds * (_BOUND_TIME_SHARE if schedules else 1.0),
        now=now,
        stop=stop,
        report=lambda bound: emit(bound.value, 0.0),
    )
    best, placed = 0.0, {}
    if schedules:
        share_spent = spent()
        rows = {job.name: index for index, job in enumerate(jobs)}

        def initial_schedules() -> Iterator[Mapping[int, Schedule]]:
            limit = share_spent + _INITIAL_TIME_SHARE * (1.0 - share_spent)
            for by_name in starts(lambda: stop() or spent() >= limit) if starts else ():
                yield {rows[name]: schedule for name, schedule in by_name.items()}

        rounded = best_schedules(
            cluster,
            relaxation,
            proved,
            gap=gap,
            stop=must_stop,
            spent=spent,
            report=lambda value: emit(proved.value, value),
            starts=initial_schedules(),
            seed=seed,
        )
        best = rounded.utility
        placed = {jobs[index].name: plan for index, plan in rounded.schedules.items()}
        _check_capacity(cluster, relaxation, rounded.schedules)
    prices = PostedPrices(relaxation.start, proved.prices, relaxation.limits)
    return Certificate(
        # Rounding errors may put the bound below the utility of an optimal schedule.
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


def _check_capacity(
    cluster: Cluster, relaxation: Relaxation, schedules: Mapping[int, Schedule]
) -> None:
    """Reserve all schedules in a ledger, which raises an error instead of overbooking."""
    ends = (schedule.completion + 1 for schedule in schedules.values())
    slots = max(ends, default=relaxation.start + 1) - relaxation.start
    ledger = Ledger(cluster, slots, relaxation.start)
    for index, schedule in schedules.items():
        job = relaxation.members[index]
        ledger.reserve(job.name, schedule, job.worker, job.ps)
