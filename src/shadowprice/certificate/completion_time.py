"""Least mean completion time that any schedule can reach, for jobs that state no utility.

The bound counts completions. In any schedule, the k-th job to complete ends

- no earlier than the k-th, if every job ran alone at its maximum speed from its arrival;
- no earlier than the k-th, if only one limit of one pool counted (`policies.pricing.limits`), and
  that limit could be divided among jobs at will. A job then is a volume, the least share of the
  limit that completes it, and shortest remaining volume first completes the most jobs by any time
  (Schrage, *A proof of the optimality of the shortest remaining processing time discipline*,
  Operations Research 16, 1968).

The mean of the latest of these ends, less the mean arrival, is at most the mean completion time.
Other jobs are left out, which makes room, so the bound holds for mixed workloads too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.certificate.relaxation import Relaxation
from shadowprice.kernels.horizon.search import best_schedule

_WHOLE_SLOTS: Final = 64  # slots up to which a job's least volume is searched for in whole slots
_ROUNDING: Final = 1e-9  # relative error of volumes and of sums of them; the bound is lowered by it


@dataclass(frozen=True, slots=True)
class CompletionBound:
    """Lower bound on the mean completion time of the jobs that state no utility."""

    jobs: tuple[str, ...]  # names of these jobs, without those that can't run on the cluster
    mean_slots: float  # the bound, in slots from the submission to the end of the completion slot


def completion_bound(relaxation: Relaxation) -> CompletionBound | None:
    """Bound the mean completion time of the jobs that state no utility; None without such jobs."""
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
        fluid = shortest_remaining_first(arrivals.tolist(), volumes)
        whole = np.ceil(np.array(fluid) * (1 - _ROUNDING) - _ROUNDING).astype(np.int64)
        ends = np.maximum(ends, np.sort(whole))
    submitted = arrivals - np.array([job.before_arrival for job in jobs])
    mean = float(ends.mean() - submitted.mean())
    return CompletionBound(tuple(job.name for job in jobs), mean)


def _min_volume(relaxation: Relaxation, index: int, pool: int, limit: int) -> float:
    """Return the least share of a limit, times slots, that completes a job."""
    _, gains, use = relaxation.choices(index)
    required, share = relaxation.members[index].required, use[:, pool, limit]
    slots = -(-required // int(gains.min()))
    if slots > _WHOLE_SLOTS:
        return required * float((share / gains).min())
    # Work in whole slots: a short job may waste part of its last one.
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
