"""Problem (1) of OASiS as printed, and solved by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from tests.oracles.linear import Answer, Program


def plain_optimum(
    cluster: Cluster, jobs: Sequence[Job], until: int, *, time_limit: float = 60.0
) -> Answer:
    """Solve (1)-(13) with u[i, t] = 1 if job i completes in slot t.

    There is a variable for every job, slot and server. A job whose gain with n workers isn't n has
    a
    binary for every number of workers.
    """
    program = Program()
    used: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for job in jobs:
        slots = range(job.arrival, until)
        u = {
            t: program.column(cost=utility_value(job.utility, t - job.arrival), upper=1)
            for t in slots
        }
        if not u:
            continue
        program.row(u.values(), [1] * len(u), upper=1)
        linear = (
            job.worker_counts.tolist() == job.gains.tolist() == [*range(1, job.max_workers + 1)]
        )
        linear &= job.ps is None or (job.worker_bandwidth > 0 and job.ps_bandwidth > 0)
        gained: list[tuple[int, int]] = []
        for t in slots:
            y = {h: program.column() for h in range(cluster.servers) if cluster.hosts_workers[h]}
            z = {k: program.column() for k in range(cluster.servers) if cluster.hosts_ps[k]}
            later = [u[s] for s in slots if s >= t]
            # (3), and (8): nothing after completion.
            program.row(
                [*y.values(), *later], [*[1] * len(y), *[-job.max_workers] * len(later)], upper=0
            )
            if linear:
                gained += [(column, 1) for column in y.values()]
                if job.ps is not None:  # (6) and (7)
                    b, capital = job.worker_bandwidth, job.ps_bandwidth
                    program.row(
                        [*y.values(), *z.values()], [b / capital] * len(y) + [-1] * len(z), upper=0
                    )
                    program.row([*y.values(), *z.values()], [1] * len(y) + [-1] * len(z), lower=0)
            else:
                choice = [program.column(upper=1) for _ in job.gains]
                for columns, counts in ((y, job.worker_counts), (z, job.ps_counts)):
                    program.row(
                        [*columns.values(), *choice],
                        [*[1] * len(columns), *(-int(n) for n in counts)],
                        lower=0,
                        upper=0,
                    )
                program.row(choice, [1] * len(choice), upper=1)
                gained += zip(choice, job.gains.tolist(), strict=True)
            for columns, demand in ((y, job.worker), (z, job.ps)):
                if demand is None:
                    continue
                for server, column in columns.items():
                    for r, amount in enumerate(demand.tolist()):
                        if amount:
                            used.setdefault((t, server, r), []).append((column, amount))
        program.row(
            [column for column, _ in gained] + list(u.values()),
            [gain / job.required for _, gain in gained] + [-1.0] * len(u),
            lower=0,
        )
    for (_, server, r), entries in used.items():
        capacity = int(cluster.capacity[server, r])
        if capacity < UNLIMITED:  # (4), (5)
            divisor = int(np.gcd.reduce([amount for _, amount in entries]))
            program.row(
                [column for column, _ in entries],
                [amount // divisor for _, amount in entries],
                upper=capacity // divisor,
            )
    return program.solve(time_limit=time_limit)


def brute_optimum(cluster: Cluster, jobs: Sequence[Job], until: int) -> float:
    """Try every number of workers of every job in every slot; tiny instances only."""
    slots = range(until)
    packable = {
        counts: _packs(cluster, jobs, counts)
        for counts in itertools.product(*([0, *job.worker_counts.tolist()] for job in jobs))
    }
    best = 0.0
    plans = [list(_plans(job, slots)) for job in jobs]
    for chosen in itertools.product(*plans):
        if all(packable[tuple(plan[t] for plan in chosen)] for t in slots):
            best = max(best, sum(_worth(job, p) for job, p in zip(jobs, chosen, strict=True)))
    return best


def _plans(job: Job, slots: range) -> Iterator[tuple[int, ...]]:
    yield tuple(0 for _ in slots)
    choices = [[0] if t < job.arrival else [0, *job.worker_counts.tolist()] for t in slots]
    for plan in itertools.product(*choices):
        if sum(job.gain(n) for n in plan) >= job.required:
            yield plan


def _worth(job: Job, plan: tuple[int, ...]) -> float:
    active = [t for t, n in enumerate(plan) if n]
    return utility_value(job.utility, active[-1] - job.arrival) if active else 0.0


def _packs(cluster: Cluster, jobs: Sequence[Job], counts: tuple[int, ...]) -> bool:
    singles = []
    for job, count in zip(jobs, counts, strict=True):
        singles += [(job.worker, cluster.hosts_workers)] * count
        if job.ps is not None:
            singles += [(job.ps, cluster.hosts_ps)] * job.ps_needed(count)

    def fits(at: int, left: np.ndarray) -> bool:
        if at == len(singles):
            return True
        demand, hosts = singles[at]
        for server in np.flatnonzero(hosts).tolist():
            if (left[server] >= demand).all():
                after = left.copy()
                after[server] -= demand
                if fits(at + 1, after):
                    return True
        return False

    return fits(0, cluster.capacity)
